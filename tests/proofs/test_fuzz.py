"""Readers of files from elsewhere, under random damage and, with SUPERRES_FUZZ_SECONDS, a
coverage-guided fuzzer.

For longer: `python tests/proofs/fuzz/fuzz.py image -max_total_time=600`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

FUZZ = Path(__file__).parent / "fuzz"
SECONDS = os.environ.get("SUPERRES_FUZZ_SECONDS")
"""For each target; without it, none is fuzzed."""

spec = importlib.util.spec_from_file_location("fuzz_targets", FUZZ / "targets.py")
targets = importlib.util.module_from_spec(spec)
spec.loader.exec_module(targets)


@st.composite
def damaged(draw, name):
    """A good file with some bytes changed, cut out, doubled or inserted."""
    data = bytearray(draw(st.sampled_from(targets.seeds(name))))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(data)))
        length = draw(st.sampled_from([0, 1, 9, len(data)]))
        data[place : place + length] = draw(st.binary(max_size=9)
                                            | st.just(bytes(data[max(place - 40, 0) : place])))
    return bytes(data)


@pytest.mark.parametrize("name", targets.TARGETS)
def test_good_files_are_read_and_damaged_ones_read_or_refused_in_one_line(name):
    for seed in targets.seeds(name):
        targets.TARGETS[name](seed)

    @given(damaged(name))
    def holds(data):
        targets.TARGETS[name](data)

    holds()


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9),
                                                                                inner, max_size=3),
                    max_leaves=5)


@given(st.dictionaries(st.sampled_from([*targets.Row.__dataclass_fields__, "later"]), JSON))
def test_rows_of_any_values_are_read_or_refused(values):
    good = {"input": "a", "output": "/out/a.png", "status": "ok"}
    targets.manifest(json.dumps({**good, **values}).encode() + b"\n")


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None or not SECONDS, reason="no fuzzer "
                    "or no time for it")
def test_a_coverage_guided_fuzzer_finds_nothing(tmp_path):
    words = [sys.executable, str(FUZZ / "fuzz.py"), ",".join(targets.TARGETS),
             f"-max_total_time={SECONDS}", "-seed=1", "-timeout=100", "-rss_limit_mb=4000",
             "-verbosity=0"]
    path = os.pathsep.join([str(FUZZ.parents[2]), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path},
                            capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert not list(tmp_path.glob("crash-*"))
