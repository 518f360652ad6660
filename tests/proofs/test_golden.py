"""Decodes on record: whatever is rebuilt, their tokens and blocks stay
(tests/proofs/golden/cases.py)."""

from __future__ import annotations

import json

import pytest

from superres.native import build
from tests.proofs.golden.cases import CASES, RECORD

ON_RECORD = json.loads(RECORD.read_text())


@pytest.mark.parametrize("name", CASES)
def test_tokens_and_blocks_are_those_on_record(name):
    if "native" in name and build.compiler() is None:
        pytest.skip("no C++ compiler on this machine")
    assert CASES[name]() == ON_RECORD[name]


def test_the_record_holds_nothing_else():
    assert list(ON_RECORD) == list(CASES)
