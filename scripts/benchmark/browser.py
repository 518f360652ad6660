"""Time the engine in a browser beside the compiled engine in int8: the same faces, in turns, on one
thread each.

    python scripts/benchmark/browser.py --data dev.npz --output browser
    python scripts/benchmark/browser.py --data dev.npz --record  # the costs of WebAssembly, in the
    checkpoint

Headless Chromium draws with both modules of WebAssembly. A digest that differs from the compiled
engine's ends the run. The times are medians over rounds and faces, from the call to the last
picture; `load` is that of the engine from this machine's disk, with its check of the module and the
transformation of the weights.
"""

from __future__ import annotations

import functools
import http.server
import itertools
import math
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shutil import which
from typing import Annotated, Any

import numpy as np
import typer

sys.path.append(str(Path(__file__).resolve().parents[1]))

from measurements import (
    Busy,
    Columns,
    Document,
    Faces,
    Output,
    Page,
    Row,
    Table,
    Values,
    columns_table,
    in_turns,
    medians,
    run,
    values,
)
from superres.checkpoint import find_checkpoint, read_stages
from superres.config import DEFAULT_CASCADE, DecodeConfig, StepCosts, require
from superres.decoding.cost import TIMED
from superres.evaluation.recording import record_of, stages_of
from superres.native.build import chosen
from superres.pictures.read import Pixels
from superres.pipeline.browser_export import MODULES, write_engine
from superres.pipeline.recorded_costs import save_costs
from superres.pipeline.upscaler import Upscaler
from superres.system.machine import cpu_name, require_idle
from superres.system.output import short_digest
from superres.tasks.face_data import read_faces

WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "first stage, epsilon 2": (0, {"accept": "distance"}),
    "all stages, epsilon 2": (-1, {"accept": "distance"}), "all stages, exact, blocks of "
    "4": (-1, {"block_size": 4}), "all stages, one token per step": (-1, {"block_size": 1}),
}
"""Last stage and settings of the pictures by name; without a block size, it is that of all
heads."""
LOAD = """async variant => {
  const read = async name => new Uint8Array(await (await fetch(name)).arrayBuffer());
  const {open} = await import('./superres.js'), started = performance.now();
  window.engine = await open(read, [variant]);
  return (performance.now() - started) / 1000;
}"""
DRAW = """({cells, way}) => {
  let last;
  for (last of window.engine.upscale(Uint8Array.from(cells), way));
  return last.digest;
}"""


STEPS = """({cells, way}) => {
  const found = [];
  for (const one of window.engine.upscale(Uint8Array.from(cells), way)) found[one.stage] = [one.seconds, one.steps];
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


def drawn(page: Any, size: int, settings: Values, sources: Pixels) -> list[str]:  # noqa: ANN401 -- of playwright
    """Draw pictures in the browser, and return their digests."""
    names = {"block_size": "blockSize"}
    way = {"size": size, **{names.get(name, name): value for name, value in settings.items()}}
    return [page.evaluate(DRAW, {"cells": source.flatten().tolist(), "way": way})
            for source in sources]


def digests(upscaler: Upscaler, size: int, settings: Values, sources: Pixels) -> list[str]:
    """Draw pictures one by one with the compiled engine, and return their digests."""
    own = upscaler.at_size(size)
    options = DecodeConfig(consistent=True, **{"block_size": own.model_config.prediction_heads,
                                               **settings})
    return [short_digest(own(source[None], options).images[0].tobytes()) for source in sources]


def measure(draws: dict[str, Callable[[], list[str]]], count: int, rounds: int) -> Values:
    """Check that all variants draw the same pictures, and return the seconds per picture of each,
    in turns."""
    found = {name: draw() for name, draw in draws.items()}
    first = next(iter(found.values()))
    require(all(one == first for one in found.values()), f"the pictures differ: {found}")
    return {name: seconds / count for name, seconds in medians(in_turns(draws, rounds)).items()}


def recorded(
    pages: Mapping[str, Any], folder: Path, upscaler: Upscaler, sources: Pixels, rounds: int,
    browser: str,
) -> None:
    """Record the costs of both modules in the stages of a checkpoint: the smallest times over
    rounds and faces."""
    stages, folders = stages_of(upscaler), {one.name: one for one in read_stages(folder)
                                            or [folder]}
    sizes = {1, *TIMED, *(stage.model_config.prediction_heads for stage in stages)}
    for variant, page in pages.items():
        least: list[dict[int, float]] = [{} for _ in stages]
        for _, size, source in itertools.product(range(rounds), sorted(sizes), sources):
            found = page.evaluate(STEPS,
                                  {"cells": source.flatten().tolist(), "way": {"blockSize": size}})
            for times, (seconds, steps), (before, _) in zip(least, found, [(0, 0), *found],
                                                            strict=False):
                times[size] = min(times.get(size, math.inf), 1e6 * (seconds - before) / steps)
        for stage, times in zip(stages, least, strict=True):
            known = [size for size in sorted(times) if size <= stage.model_config.prediction_heads]
            # A larger block never costs less; if it seems to, other work slowed down the smaller
            # one.
            rising = np.minimum.accumulate([times[size] for size in known[::-1]])[::-1]
            blocks = np.interp(range(1, known[-1] + 1), known, rising)
            costs = StepCosts(tuple(map(float, blocks)), float(rising[0]), threads=1).rounded()
            record = record_of(stage, {"1": costs}, f"{browser} on {cpu_name()}", 1)
            save_costs(folders[stage.name], stage.engine, variant, record)


def views(document: Document) -> dict[str, str]:
    """Return the seconds per picture of each variant, and how many times as long WebAssembly
    takes."""
    rows = [{"way": way, **found, "ratio": found["wasm32-relaxed"] / found["native"]}
            for way, found in values(document).items() if way != "load"]
    columns: Columns = {
        "seconds per picture": ("way", 0), "compiled for this processor": ("native", 2),
        "WebAssembly, relaxed SIMD": ("wasm32-relaxed", 2), "WebAssembly, SIMD": ("wasm32", 2),
        "relaxed over compiled": ("ratio", 1)}
    return {"seconds": columns_table(rows, columns)}


def main(
    data: Faces, output: Output = Path("browser"), page: Page = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of faces.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of measurement.")] = 3,
    busy: Busy = False,
    record: Annotated[bool, typer.Option("--record", help="Record costs in the checkpoint; write "
                                         "no table.")] = False,
    checkpoint: Annotated[str,
                          typer.Option(help="Bundled checkpoint or folder.")] = DEFAULT_CASCADE,
) -> None:
    """Write a table of seconds per picture, and of the seconds until the engine is loaded; or
    record the costs."""
    from playwright.sync_api import sync_playwright

    if not busy:
        require_idle()
    upscaler = Upscaler.load(checkpoint, "cpu", "native-int8")
    for stage in stages_of(upscaler):
        stage.scoring.threads = 1  # type: ignore[attr-defined]
    sources = read_faces(data, upscaler.face_task, "valid", limit).lr
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        size = write_engine(Path(folder), upscaler)
        chromium = playwright.chromium.launch(
            executable_path=which("chromium") or which("google-chrome"), args=["--no-sandbox"])
        with served(Path(folder)) as address:
            pages, load = {name: chromium.new_page() for name in MODULES}, dict[str, float]()
            for name, shown in pages.items():
                shown.goto(address)
                load[name] = shown.evaluate(LOAD, name)
            if record:
                recorded(pages, find_checkpoint(checkpoint), upscaler, sources, rounds, "Chromium "
                         f"{chromium.version}")
            else:
                table = Table("browser", output, {"faces": len(sources), "rounds": rounds,
                                                  "bytes": size, "native": chosen().variant.name,
                                                  "browser": chromium.version})
                table.measure([Row("load", lambda: load),
                               *rows_of(pages, upscaler, sources, rounds)])
                table.finish(page)
        chromium.close()


def rows_of(pages: Mapping[str, Any], upscaler: Upscaler, sources: Pixels,
            rounds: int) -> Iterator[Row]:
    """Yield the row of each of WAYS."""
    sides = *upscaler.face_task.between, upscaler.face_task.target
    for way, (stage, settings) in WAYS.items():
        side = sides[stage]
        draws = {"native": partial(digests, upscaler, side, settings, sources), **{
            name: partial(drawn, shown, side, settings, sources) for name, shown in pages.items()}}
        yield Row(way, partial(measure, draws, len(sources), rounds))


if __name__ == "__main__":
    run(main)
