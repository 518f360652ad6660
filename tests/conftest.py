"""What all tests share: one thread, fixed seeds, fixed costs of a step, and hypothesis profiles."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

# Before numpy or torch is imported: small tensors are slower with more threads, and sums then depend on the machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from torch import Tensor

    from superres.config import DecodeConfig
    from superres.pipeline.upscaler import Upscaler
    from superres.survey.store import Store

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(autouse=True)
def _seed() -> None:
    # Layers draw their first weights from torch's global generator; tests without torch should not have to import it.
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Locks of this test run: a user's training neither delays a test nor adds a line to its output."""
    from superres.system import training_lock

    folder = tmp_path_factory.mktemp("locks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_lock, "cache_folder", lambda: folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def _costs() -> Iterator[None]:
    """Costs of adaptive block sizes: fixed ones, so that no decode depends on the machine or on its other work.

    Tests of the measurement pass their own `measure` to `BlockSizes`, and get the costs that it returns.
    """
    from fakes import UntimedBlockSize, fixed_costs

    from superres.decoding.cost import measured_costs
    from superres.pipeline import block_sizes

    own = block_sizes.BlockSizes._costs

    def costs(sizes: block_sizes.BlockSizes, options: DecodeConfig, *sources: Tensor | None) -> list[float]:
        if sizes.measure is not measured_costs:
            return own(sizes, options, *sources)
        return fixed_costs(options.block_size or sizes.model.prediction_heads)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_sizes.BlockSizes, "_costs", costs)
        patch.setattr(block_sizes, "AdaptiveBlockSize", UntimedBlockSize)
        yield


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def upscaler() -> Upscaler:
    """An untrained network for faces."""
    import torch
    from fakes import TINY, random_model

    from superres.pipeline.upscaler import Upscaler

    return Upscaler(random_model(TINY, dtype=torch.float32), "tiny", device="cpu")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a PostgreSQL server of this test run's own."""
    from survey_tools import postgres, postgres_programs

    if postgres_programs() is None:
        pytest.skip("no PostgreSQL server here; apt-get install postgresql")
    with postgres(durable=False) as url:
        yield url


@pytest.fixture
def memory_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for a survey's store, in memory where the machine has such: every vote waits for its disk."""
    memory = Path("/dev/shm")  # noqa: S108
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def sqlite(memory_folder: Path) -> Iterator[Store]:
    """An empty survey store in SQLite, for what does not depend on the database."""
    from superres.survey.store import Store

    store = Store(memory_folder / "survey.db", create=True)
    yield store
    store.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, memory_folder: Path) -> Iterator[Store]:
    """An empty survey store, in SQLite and on a real PostgreSQL server; its `address` opens it anew."""
    from superres.survey.store import Store

    if request.param == "sqlite":
        address = str(memory_folder / "survey.db")
    else:
        import psycopg

        server = request.getfixturevalue("postgres_server")
        name = f"test_{secrets.token_hex(6)}"
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        address = server.rsplit("/", 1)[0] + f"/{name}"
    store = Store(address, create=True)
    store.address = address
    yield store
    store.close()
