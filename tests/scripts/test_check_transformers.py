"""Assisted generation of transformers is checked as it is, and what it refuses is no failure."""

from __future__ import annotations

import pytest

import check_transformers
from superres.testing import check_lossless


@pytest.mark.slow
@pytest.mark.parametrize("way", ["network", "lookup"])
def test_assisted_generation_gives_the_tokens_of_plain_generation(way):
    decode = check_transformers.decoder(*check_transformers.networks(way))
    report = check_lossless(decode, check_transformers.PROMPTS[:2], length=12,
                            end_token=check_transformers.END, block_sizes=(4,), samples=20,
                            seeds=(1,))
    assert report.ok, report
    assert report["batches"].text.startswith("assisted generate is only supported for batch_size")
