"""Record the costs of WebAssembly in the stages of a bundled checkpoint, for `superres export web`.

    python scripts/browser_costs.py --data dev.npz

Headless Chromium draws the first faces with each module of WebAssembly, with every block
size that `superres tune` times on this processor. The smallest times over rounds and faces count.
"""

from __future__ import annotations

import functools
import http.server
import itertools
import math
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Annotated, Any

import numpy as np
import typer

sys.path.append(str(Path(__file__).resolve().parent))

from measurements import Busy, Checkpoint, Faces, run
from superres.checkpoint import open_checkpoint
from superres.config import DEFAULT_CASCADE, StepCosts
from superres.decoding.cost import TIMED
from superres.evaluation.recording import record_of, stages_of
from superres.evaluation.timing import require_idle
from superres.pictures.read import Pixels
from superres.pipeline.browser_export import MODULES, write_engine
from superres.pipeline.recorded_costs import save_costs
from superres.pipeline.upscaler import Upscaler
from superres.system.machine import cpu_name
from superres.tasks.face_data import read_faces

LOAD = """async variant => {
  const read = async name => new Uint8Array(await (await fetch(name)).arrayBuffer());
  window.engine = await (await import('./superres.js')).open(read, [variant]);
}"""
STEPS = """({cells, way}) => {
  const found = [];
  for (const one of window.engine.upscale(Uint8Array.from(cells), way)) {
    found[one.stage] = [one.seconds, one.steps];
  }
  return found;
}"""
"""Returns the seconds from the beginning to the end of each stage, and the stage's steps."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder, and yield its address."""
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *words: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0),
                                             functools.partial(Quiet, directory=str(folder)))
    (folder / "empty.html").write_text("<!doctype html><title>engine</title>")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/empty.html"
    server.shutdown()


def step_times(page: Any, sizes: list[int], sources: Pixels, rounds: int,  # noqa: ANN401 -- of playwright
               stages: int) -> list[dict[int, float]]:
    """Return the least microseconds per step of every stage, by block size."""
    least: list[dict[int, float]] = [{} for _ in range(stages)]
    for _, size, source in itertools.product(range(rounds), sizes, sources):
        found = page.evaluate(STEPS,
                              {"cells": source.flatten().tolist(), "way": {"blockSize": size}})
        # Every stage ends the stage before it.
        for times, (seconds, steps), (before, _) in zip(least, found, [(0, 0), *found],
                                                        strict=False):
            times[size] = min(times.get(size, math.inf), 1e6 * (seconds - before) / steps)
    return least


def costs_of(times: Mapping[int, float], heads: int) -> StepCosts:
    """Return the costs of blocks of up to `heads` tokens, between those that were timed, too."""
    known = [size for size in sorted(times) if size <= heads]
    # A larger block never costs less; if it seems to, other work slowed down the smaller one.
    rising = np.minimum.accumulate([times[size] for size in known[::-1]])[::-1]
    blocks = np.interp(range(1, known[-1] + 1), known, rising)
    return StepCosts(tuple(map(float, blocks)), float(rising[0]), threads=1).rounded()


def main(
    data: Faces, checkpoint: Checkpoint = DEFAULT_CASCADE,
    limit: Annotated[int, typer.Option(min=1, help="Number of faces.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of measurement.")] = 3,
    busy: Busy = False,
) -> None:
    """Record the costs of both modules in the stages of a checkpoint."""
    from playwright.sync_api import sync_playwright

    if not busy:
        require_idle()
    opened = open_checkpoint(checkpoint)
    upscaler = Upscaler.load(opened, "cpu", "native-int8")
    stages = stages_of(upscaler)
    folders = {one.folder.name: one.folder for one in opened.networks}
    sources = read_faces(data, upscaler.face_task, "valid", limit).lr
    heads = [stage.model_config.prediction_heads for stage in stages]
    with tempfile.TemporaryDirectory() as made, sync_playwright() as playwright:
        write_engine(Path(made), upscaler)
        chromium = playwright.chromium.launch(
            executable_path=which("chromium") or which("google-chrome"), args=["--no-sandbox"])
        with served(Path(made)) as address:
            for variant in MODULES:
                page = chromium.new_page()
                page.goto(address)
                page.evaluate(LOAD, variant)
                found = step_times(page, sorted({1, *TIMED, *heads}), sources, rounds, len(stages))
                where = f"Chromium {chromium.version} on {cpu_name()}"
                for stage, most, times in zip(stages, heads, found, strict=True):
                    record = record_of(stage, {"1": costs_of(times, most)}, where, 1)
                    save_costs(folders[stage.name], stage.engine, variant, record)
        chromium.close()


if __name__ == "__main__":
    run(main)
