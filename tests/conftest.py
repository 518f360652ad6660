"""What all tests share: one thread, fixed seeds, and hypothesis profiles."""

from __future__ import annotations

import os
import sys

# Before numpy or torch is imported: small tensors are slower with more threads, and sums then depend on the machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(autouse=True)
def _seed() -> None:
    # Layers draw their first weights from torch's global generator; tests without torch should not have to import it.
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
