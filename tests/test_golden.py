"""Decodes on record: whatever is rebuilt, their tokens and blocks stay (tests/golden/cases.py)."""

from __future__ import annotations

import json

import pytest
import torch
from golden.cases import CASES, RECORD

from superres.nn.engines.native import build

ON_RECORD = json.loads(RECORD.read_text())
FLOAT32 = ("faces", "text", "native")


@pytest.mark.parametrize("name", CASES)
def test_tokens_and_blocks_are_those_on_record(name):
    if "native" in name and build.compiler() is None:
        pytest.skip("no C++ compiler on this machine")
    if name.startswith(FLOAT32) and torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("recorded where float32 sums are those of AVX-512")
    assert CASES[name]() == ON_RECORD[name]


def test_the_record_holds_nothing_else():
    assert list(ON_RECORD) == list(CASES)
