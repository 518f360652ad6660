"""Decodes on record: whatever is rebuilt, their tokens and blocks stay (tests/golden/cases.py)."""

from __future__ import annotations

import json

import pytest
import torch
from golden.cases import CASES, NAMES, RECORD, name_here

from superres.nn.engines.native import build

ON_RECORD = json.loads(RECORD.read_text())
PLAIN_FLOAT32 = ("faces, plain", "text, plain")


@pytest.mark.parametrize("name", CASES)
def test_tokens_and_blocks_are_those_on_record(name):
    if "native" in name and build.compiler() is None:
        pytest.skip("no C++ compiler on this machine")
    if name.startswith(PLAIN_FLOAT32) and torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("torch's float32 sums were recorded with AVX-512, and others differ")
    assert CASES[name]() == ON_RECORD[name_here(name)]


def test_the_record_holds_nothing_else():
    assert list(ON_RECORD) == NAMES
