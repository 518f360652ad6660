"""What the tests of scores and tables share."""

from __future__ import annotations

import numpy as np

from superres.tasks.face_data import FacePairs
from superres.tasks.faces import area_reduce


def face_pairs(count, side=32, rng=None):
    """Return pairs of noise and its reductions to a quarter of the side."""
    rng = rng or np.random.default_rng(0)
    hr = rng.integers(0, 256, (count, side, side, 3)).astype(np.uint8)
    return FacePairs(hr, area_reduce(hr, side // 4, side // 4), np.arange(count, dtype=np.int32))


def constants(*values):
    """Return pictures of one grey level each."""
    return np.stack([np.full((32, 32, 3), value, np.uint8) for value in values])
