"""Measure decoding by every variant of the compiled code that this processor runs, in turns.

    python scripts/benchmark/variants.py --data dev.npz --output variants
    python scripts/benchmark/variants.py --data dev.npz --output variants --beside ../superres-0.1

Every variant decodes in a process of its own; --variants x86-64-v3,x86-64-v4 measures those only. With --beside, a
checkout of another release decodes in the same turns, with the variant that it chooses. The output has variants.json
and variants.md: seconds per image, one image at a time, the shortest of several rounds, and microseconds per decoding
iteration.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from superres.config import require
from superres.errors import SuperresError
from superres.native.build import FORCED_VARIANT, candidates, forced_variant, processor
from superres.system.machine import cpu_name, require_idle
from superres.system.output import markdown_table, prepare_folder, write_results
from superres.system.training_lock import training_paused

ROOT = Path(__file__).resolve().parents[2]
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


def measure(workers: dict[str, subprocess.Popen[str]], rounds: int) -> list[dict[str, Any]]:
    """Return a row per engine and way of decoding: the shortest seconds of each worker, measured in turns."""
    rows = []
    for engine in ENGINES:
        for name, given in WAYS.items():
            for process in workers.values():
                answer(process, engine, given)  # the first decode measures the costs of block sizes, once per machine
            found = [{one: answer(process, engine, given) for one, process in workers.items()} for _ in range(rounds)]
            least = {one: [min(times[one][part] for times in found) for part in (0, 1)] for one in workers}
            rows.append({"engine": engine, "decoding": name,
                         "seconds": {one: times[0] for one, times in least.items()},
                         "iteration": {one: times[1] for one, times in least.items()}})
            print(f"{engine}, {name}: " + ", ".join(f"{one} {times[0]:.4f} s" for one, times in least.items()),
                  file=sys.stderr)
    return rows


def table(rows: list[dict[str, Any]], names: list[str]) -> str:
    """Return the rows as Markdown: seconds per image, and the speed-up over one token per step of the same kind."""
    lines, slow = [], {(row["engine"], row["decoding"]): row["seconds"] for row in rows}
    for row in rows:
        kind = "sequential sample" if "sample" in row["decoding"] else "one token per step"
        base = slow[row["engine"], kind]
        lines.append([row["engine"], row["decoding"], *(
            f"{row['seconds'][name]:.4f} ({base[name] / row['seconds'][name]:.2f}, {1e6 * row['iteration'][name]:.0f})"
            for name in names)])
    return markdown_table(["engine", "decoding", *names], lines) + (
        "\n\nSeconds per image; in brackets the speed-up over one token per step, or over the sequential sample, and "
        "microseconds per iteration.\n")


@training_paused()
def main(
    data: Annotated[Path, typer.Option(help="Prepared .npz of faces.")],
    output: Annotated[Path, typer.Option(help="Folder for variants.json and variants.md.")],
    checkpoint: Annotated[str, typer.Option(help="Checkpoint name, folder or hub id.")] = "celeba-8to32",
    limit: Annotated[int, typer.Option(min=1, help="Images per measurement.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each; the shortest counts.")] = 5,
    beside: Annotated[Path | None, typer.Option(help="Checkout of another release to measure in turns.")] = None,
    variants: Annotated[str, typer.Option(help="Names of variants, separated by commas, or all.")] = "all",
    busy: Annotated[bool, typer.Option("--busy", help="Measure even if other processes use the processor.")] = False,
) -> None:
    """Write the times of all variants."""
    if not busy:
        require_idle()
    prepare_folder(output)
    code = WORKER.format(checkpoint=checkpoint, engines=ENGINES, data=str(data.resolve()), limit=limit)
    here = [variant.name for variant in candidates(forced_variant(), processor())]
    chosen = here if variants == "all" else variants.split(",")
    for name in chosen:
        require(name in here, f"variant {name} does not run here; those that do: {', '.join(here)}")
    with ExitStack() as stack:
        workers = {name: stack.enter_context(worker(code, ROOT, name)) for name in chosen}
        if beside is not None:
            workers[beside.name] = stack.enter_context(worker(code, beside.resolve(), None))
        rows = measure(workers, rounds)
        text = table(rows, list(workers))
    write_results(output, {"variants.json": {"processor": cpu_name(), "rows": rows}, "variants.md": text})
    print(text)


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"variants: {error}")
