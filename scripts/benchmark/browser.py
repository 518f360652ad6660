"""Time the engine in a browser beside the compiled engine in int8: the same faces, in turns, on one thread each.

    python scripts/benchmark/browser.py --data dev.npz --output browser

Headless Chromium draws with both modules of WebAssembly. A digest that differs from the compiled engine's ends the run.
The times are medians over rounds and faces, from the call to the last picture; `load` is that of the engine from this
machine's disk, with its check of the module and the transformation of the weights.
"""

from __future__ import annotations

import functools
import http.server
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shutil import which
from typing import Annotated, Any

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
from superres.config import DEFAULT_CASCADE, DecodeConfig, require
from superres.native.build import chosen
from superres.pipeline.browser_export import MODULES, write_engine
from superres.pipeline.upscaler import Upscaler
from superres.system.machine import require_idle
from superres.system.output import short_digest
from superres.tasks.face_data import read_faces
from superres.tasks.pictures import Pixels

WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "first stage, epsilon 2": (0, {"accept": "distance"}), "all stages, epsilon 2": (-1, {"accept": "distance"}),
    "all stages, exact, blocks of 4": (-1, {"block_size": 4}),
    "all stages, one token per step": (-1, {"block_size": 1}),
}
"""Last stage and settings of the pictures by name; without a block size, it is that of all heads."""
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


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder, and yield its address."""
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *words: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    (folder / "empty.html").write_text("<!doctype html><title>engine</title>")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/empty.html"
    server.shutdown()


def drawn(page: Any, size: int, settings: Values, sources: Pixels) -> list[str]:  # noqa: ANN401 -- of playwright
    """Draw pictures in the browser, and return their digests."""
    names = {"block_size": "blockSize"}
    way = {"size": size, **{names.get(name, name): value for name, value in settings.items()}}
    return [page.evaluate(DRAW, {"cells": source.flatten().tolist(), "way": way}) for source in sources]


def digests(upscaler: Upscaler, size: int, settings: Values, sources: Pixels) -> list[str]:
    """Draw pictures one by one with the compiled engine, and return their digests."""
    own = upscaler.at_size(size)
    options = DecodeConfig(consistent=True, **{"block_size": own.model_config.prediction_heads, **settings})
    return [short_digest(own(source[None], options).images[0].tobytes()) for source in sources]


def measure(draws: dict[str, Callable[[], list[str]]], count: int, rounds: int) -> Values:
    """Check that all variants draw the same pictures, and return the seconds per picture of each, in turns."""
    found = {name: draw() for name, draw in draws.items()}
    first = next(iter(found.values()))
    require(all(one == first for one in found.values()), f"the pictures differ: {found}")
    return {name: seconds / count for name, seconds in medians(in_turns(draws, rounds)).items()}


def views(document: Document) -> dict[str, str]:
    """Return the seconds per picture of each variant, and how many times as long WebAssembly takes."""
    rows = [{"way": way, **found, "ratio": found["wasm32-relaxed"] / found["native"]}
            for way, found in values(document).items() if way != "load"]
    columns: Columns = {
        "seconds per picture": ("way", 0), "compiled for this processor": ("native", 2),
        "WebAssembly, relaxed SIMD": ("wasm32-relaxed", 2), "WebAssembly, SIMD": ("wasm32", 2),
        "relaxed over compiled": ("ratio", 1)}
    return {"seconds": columns_table(rows, columns)}


def main(
    data: Faces, output: Output, page: Page = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of faces.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of measurement.")] = 3, busy: Busy = False,
) -> None:
    """Write a table of seconds per picture, and of the seconds until the engine is loaded."""
    from playwright.sync_api import sync_playwright

    if not busy:
        require_idle()
    upscaler = Upscaler.load(DEFAULT_CASCADE, "cpu", "native-int8")
    for stage in (upscaler, upscaler.first, upscaler.last):
        stage.scoring.threads = 1  # type: ignore[union-attr]
    sources = read_faces(data, upscaler.face_task, "valid", limit).lr
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        size = write_engine(Path(folder), upscaler)
        chromium = playwright.chromium.launch(
            executable_path=which("chromium") or which("google-chrome"), args=["--no-sandbox"])
        table = Table("browser", output, {"faces": len(sources), "rounds": rounds, "bytes": size,
                                          "native": chosen().variant.name, "browser": chromium.version})
        with served(Path(folder)) as address:
            pages, load = {name: chromium.new_page() for name in MODULES}, dict[str, float]()
            for name, shown in pages.items():
                shown.goto(address)
                load[name] = shown.evaluate(LOAD, name)
            rows = [Row("load", lambda: load)]
            sides = *upscaler.face_task.between, upscaler.face_task.target
            for way, (stage, settings) in WAYS.items():
                side = sides[stage]
                draws = {"native": partial(digests, upscaler, side, settings, sources), **{
                    name: partial(drawn, shown, side, settings, sources) for name, shown in pages.items()}}
                rows.append(Row(way, partial(measure, draws, len(sources), rounds)))
            table.measure(rows)
        chromium.close()
    table.finish(page)


if __name__ == "__main__":
    run(main)
