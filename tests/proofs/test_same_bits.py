"""Every processor computes the same bits: what is packed, every table of a decode, and what is
decoded.

Other instruction sets stand for other processors: those of torch, MKL and oneDNN, and that of the
compiled code.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from superres.checkpoint import bundled_checkpoints, open_checkpoint
from superres.native import build

SETTINGS = {
    "the oldest and two threads": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41",
                                   "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "2"},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2",
             "MKL_ENABLE_INSTRUCTIONS": "AVX2", "SUPERRES_NATIVE": "x86-64-v3"},
}
"""One process each: the variables of one setting change kernels of different libraries."""
NAMES = [name for name in bundled_checkpoints() if not open_checkpoint(name).stages]

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")


@functools.cache
def digests(setting: str | None) -> dict[str, str]:
    """Return the digests of tests/bits.py, computed in a process of its own with a setting."""
    folder = Path(__file__).parents[1]
    path = os.pathsep.join(map(str, (folder.parent, folder.parent / "scripts", folder)))
    environment = {**os.environ, "PYTHONPATH": path,
                   **(SETTINGS[setting] if setting else {})}
    result = subprocess.run([sys.executable, folder / "bits.py", *NAMES], env=environment,
                            capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("setting", SETTINGS)
def test_all_that_is_computed_has_the_same_bits_under_every_instruction_set(setting):
    variant = SETTINGS[setting].get("SUPERRES_NATIVE")
    if variant and variant not in [each.name for each in build.candidates(None,
                                                                          build.processor())[1:]]:
        pytest.skip(f"{variant} is the best that this processor runs, or does not run here")
    assert digests(setting) == digests(None)
