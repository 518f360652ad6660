"""Measure decoding by every variant of the compiled code that this processor runs, in turns.

    python scripts/benchmark/variants.py --data dev.npz --output variants
    python scripts/benchmark/variants.py --data dev.npz --output variants --beside ../superres-0.1

Every variant decodes in a process of its own; --variants x86-64-v3,x86-64-v4 measures those only. With --beside, a
checkout of another release decodes in the same turns, with the variant that it chooses. The table has seconds per
image, one image at a time, the shortest of several rounds. In brackets are the speed-up over one token per step, or
over the sequential sample, and microseconds per decoding iteration.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

sys.path.append(str(Path(__file__).resolve().parents[1]))

from measurements import ROOT, Busy, Checkpoint, Document, Output, Row, Table, Values, run, values
from superres.config import require
from superres.native.build import FORCED_VARIANT, candidates, forced_variant, processor
from superres.system.machine import require_idle
from superres.system.output import markdown_table

ENGINES = "native", "native-int8"
WAYS = {
    "one token per step": {"block_size": 1}, "default": {}, "exact, k = 4": {"block_size": 4},
    "exact, k = 10": {"block_size": 10}, "epsilon 2": {"accept": "distance", "epsilon": 2},
    "sequential sample": {"temperature": 0.9, "block_size": 1}, "sample": {"temperature": 0.9},
    "speculative sample": {"temperature": 0.9, "sampling": "speculative"},
}
"""Decoding options by name, as a user gives them."""
WORKER = """
import json, sys, time
import numpy as np
import superres
upscalers = {{name: superres.load({checkpoint!r}, engine=name) for name in {engines!r}}}
images = np.load({data!r})["lr"][:{limit}]
for line in sys.stdin:
    engine, given = json.loads(line)
    upscaler = upscalers[engine]
    options, started, iterations = upscaler.options(**given), time.perf_counter(), 0
    for image in images:
        iterations += upscaler(image[None], options).traces[0].iterations
    seconds = time.perf_counter() - started
    print(json.dumps([seconds / len(images), seconds / iterations]), flush=True)
"""
"""A process that decodes the images with the engine and the options of each line of its input. It uses the public
functions only, so that other releases understand it."""


@contextmanager
def worker(code: str, checkout: Path, variant: str | None) -> Iterator[subprocess.Popen[str]]:
    """Start the process that decodes with the release in `checkout`, and end it after the block."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), **({FORCED_VARIANT: variant} if variant else {})}
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          env=environment, cwd=checkout) as process:
        try:
            yield process
        finally:
            process.kill()


def answer(process: subprocess.Popen[str], engine: str, given: dict[str, Any]) -> tuple[float, float]:
    """Return seconds per image and seconds per iteration, measured by a worker."""
    line = ""
    if process.stdin is not None and process.stdout is not None:
        process.stdin.write(json.dumps([engine, given]) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    require(bool(line), "a process that decodes ended too early; its message is above")
    seconds, per_iteration = json.loads(line)
    return seconds, per_iteration


def measure(workers: dict[str, subprocess.Popen[str]], engine: str, given: dict[str, Any], rounds: int) -> Values:
    """Return the shortest seconds per image and per iteration of each worker, measured in turns."""
    for process in workers.values():
        answer(process, engine, given)  # the first decode measures the costs of block sizes, once per machine
    found = [{one: answer(process, engine, given) for one, process in workers.items()} for _ in range(rounds)]
    return {one: [min(times[one][part] for times in found) for part in (0, 1)] for one in workers}


def views(document: Document) -> dict[str, str]:
    """Return seconds per image, and the speed-up over one token per step of the same kind."""
    lines, found = [], values(document)
    for name, times in found.items():
        engine, way = name.split(", ", 1)
        base = found[f"{engine}, {'sequential sample' if 'sample' in way else 'one token per step'}"]
        lines.append([engine, way, *(
            f"{seconds:.4f} ({base[one][0] / seconds:.2f}, {1e6 * iteration:.0f})"
            for one, (seconds, iteration) in times.items())])
    return {"seconds": markdown_table(["engine", "decoding", *next(iter(found.values()))], lines)}


def main(
    data: Annotated[Path, typer.Option(help="Prepared .npz of faces.")], output: Output,
    checkpoint: Checkpoint = "celeba-8to32",
    limit: Annotated[int, typer.Option(min=1, help="Images per measurement.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each; the shortest counts.")] = 5,
    beside: Annotated[Path | None, typer.Option(help="Checkout of another release to measure in turns.")] = None,
    variants: Annotated[str, typer.Option(help="Names of variants, separated by commas, or all.")] = "all",
    busy: Busy = False,
) -> None:
    """Write the times of all variants."""
    if not busy:
        require_idle()
    code = WORKER.format(checkpoint=checkpoint, engines=ENGINES, data=str(data.resolve()), limit=limit)
    here = [variant.name for variant in candidates(forced_variant(), processor())]
    chosen = here if variants == "all" else variants.split(",")
    for name in chosen:
        require(name in here, f"variant {name} does not run here; those that do: {', '.join(here)}")
    table = Table("variants", output, {"checkpoint": checkpoint, "images": limit, "rounds": rounds,
                                       "variants": chosen, "beside": None if beside is None else beside.name})
    with ExitStack() as stack:
        workers = {name: stack.enter_context(worker(code, ROOT, name)) for name in chosen}
        if beside is not None:
            workers[beside.name] = stack.enter_context(worker(code, beside.resolve(), None))
        table.measure(Row(f"{engine}, {name}", partial(measure, workers, engine, given, rounds), {"options": given})
                      for engine in ENGINES for name, given in WAYS.items())
    table.finish()


if __name__ == "__main__":
    run(main)
