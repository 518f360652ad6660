"""What all tests share: one thread, a time limit, fixed seeds, hypothesis profiles, and markers by
file."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

# Before numpy or torch is imported: small tensors are slower with more threads, and sums then
# depend on the machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from limits import hear_signals, limited

from superres.system import threads

if TYPE_CHECKING:
    from superres.pipeline.upscaler import Upscaler
    from superres.survey.store import Store

hear_signals()
settings.register_profile("default", max_examples=int(os.environ.get("SUPERRES_DRAWS", "25")),
                          deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


MARKED = {
    "browser": ["journeys/*"], "cluster": ["batch/test_scale_out.py"],
    "extended": ["gpu/test_triton.py", "scripts/test_device.py", "system/test_cpu_time.py",
                 "training/test_published*"],
    "variants": ["native/test_browser_engine.py", "native/test_variants.py",
                 "proofs/test_same_bits.py"],
    "slow": [
        "proofs/test_[!bs]*", "proofs/test_batch_resume.py", "proofs/test_speculative.py",
        "batch/test_photos.py", "cli/test_terminal.py", "config/test_hostile*",
        "config/test_hub.py", "decoding/test_adaptive.py", "decoding/test_lookahead*",
        "decoding/test_proposers.py", "decoding/test_registration.py",
        "decoding/test_speculative*", "evaluation/test_benchmark.py", "evaluation/test_table*",
        "evaluation/test_tuning.py", "nn/test_tree*", "pipeline/test_bundled*",
        "pipeline/test_export.py", "pipeline/test_translator.py", "project/test_docs.py",
        "project/test_without_torch.py",
        "scripts/test_[cdfsw]*", "survey/*", "system/test_signals.py", "system/test_threads.py",
        "tasks/test_sizes.py", "training/test_stages.py", "training/test_t*", "web/*"],
}
"""Files with a marker for all their tests; single slow tests have it where they stand."""

ALONE = "SUPERRES_TEST_ALONE"
"""Environment variable of a process that runs a failed test once more."""


EXTENDED = ("browser", "cluster", "postgresql", "variants")
"""Markers of tests that need more than Python: `make test-all` runs them beside `extended` ones."""

QUICK_SECONDS = 2.0 if os.environ.get("CI") else 1.0
"""Processor time in which a test must end that is neither slow nor extended; CI may be slower."""


def markers_of(path: Path) -> list[str]:
    """Return the markers of all tests in a file."""
    name = path.relative_to(Path(__file__).parent).as_posix()
    markers = [marker for marker, patterns in MARKED.items()
               if any(fnmatch(name, pattern) for pattern in patterns)]
    return ["extended", *markers] if set(markers) & set(EXTENDED) else markers


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file whose tests `-m` leaves out."""
    markers = markers_of(collection_path) if collection_path.is_file() else []
    return True if any(f"not {marker}" in config.option.markexpr for marker in markers) else None


def pytest_itemcollected(item: pytest.Item) -> None:
    for marker in markers_of(item.path):
        item.add_marker(marker)
    if any(item.get_closest_marker(marker) for marker in EXTENDED):
        item.add_marker("extended")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files with slow tests first, so that no worker is left with one at the end."""
    items.sort(key=lambda item: (item.get_closest_marker("extended") is None,
                                 item.get_closest_marker("slow") is None))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    with limited():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Bound the time of a test: a quick one's by its own thread, so that no neighbour counts."""
    started = time.thread_time()
    with limited():
        result = yield
    spent = time.thread_time() - started
    if not any(map(item.get_closest_marker, ("slow", "extended"))) and spent > QUICK_SECONDS:
        pytest.fail(f"the test took {spent:.1f} s of processor time; make it quicker than "
                    f"{QUICK_SECONDS:g} s, or mark it slow")
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    with limited():
        return (yield)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Run each browser test that failed once more, alone, when all others have ended.

    Both runs are reported. A test that passes the second time does not fail the run.
    """
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus != pytest.ExitCode.TESTS_FAILED or hasattr(session.config,
                                                             "workerinput") or ALONE in os.environ:
        return
    failed = [report for kind in ("failed", "error") for report in reporter.stats.get(kind, [])]
    passed = set()
    for node in dict.fromkeys(report.nodeid for report in failed if "browser"
                              in getattr(report, "keywords", ())):
        reporter.ensure_newline()
        reporter.section(f"{node} failed, and is run once more, alone", flush=True)
        again = subprocess.run([sys.executable, "-m", "pytest", "-q", "--no-header", node],
                               cwd=session.config.rootpath, env={**os.environ, ALONE: "1"},
                               check=False)
        if again.returncode == 0:
            passed.add(node)
    for report in failed:
        if report.nodeid in passed:
            reporter.write_line(report.longreprtext)
            reporter.stats["failed" if report.when == "call" else "error"].remove(report)
            reporter.stats.setdefault("failed once and passed alone", []).append(report)
    if failed and not reporter.stats.get("failed") and not reporter.stats.get("error"):
        session.exitstatus = pytest.ExitCode.OK


@pytest.fixture(autouse=True)
def _seed() -> None:
    # Layers draw their first weights from torch's global generator; tests without torch should not
    # have to import it.
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    # The page, which some tests start in their own process, bounds the threads of that process.
    monkeypatch.setattr(threads._Bound, "threads", None)


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
    from tests.survey.helpers import postgres, postgres_programs

    if postgres_programs() is None:
        pytest.skip("no PostgreSQL server here; apt-get install postgresql")
    with postgres() as url:
        yield url


@pytest.fixture
def memory_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for a survey's store, in memory where the machine has such: every vote waits for its
    disk."""
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


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def store(request: pytest.FixtureRequest, memory_folder: Path) -> Iterator[Store]:
    """An empty survey store, in SQLite and on a real PostgreSQL server; its `address` opens it
    anew."""
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
