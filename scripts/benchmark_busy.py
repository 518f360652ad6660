"""Measure how much slower decoding becomes beside other processes that keep processor cores busy.

    python scripts/benchmark_busy.py
    python scripts/benchmark_busy.py --rounds 10 --output busy.json

Each kind of work is timed in turns: alone, beside one busy process per two cores at priority 0, and beside as many at
priority 19. Then several decodes run at once: threads of this process, and processes of their own, each against its
share of the processor, which is the number of decodes that run at once over the number of cores, at least 1.

The bundled checkpoints are measured, on sources drawn at random: the time of a decode depends on them little.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from superres.config import DecodeConfig
from superres.errors import SuperresError
from superres.pipeline.translator import Translator
from superres.pipeline.upscaler import Upscaler
from superres.system.machine import machine
from superres.system.output import markdown_table, number_text, write_result

BUSY = "import os, sys; os.nice(int(sys.argv[1])); print(flush=True)\nwhile True: pass"
WORKER = """
import sys
sys.path[:0] = [{scripts!r}, {root!r}]
import benchmark_busy
work = benchmark_busy.workloads()[{name!r}]
work()
print(flush=True)
for _ in sys.stdin:
    print(benchmark_busy.seconds(work), flush=True)
"""
SENTENCES = ["A dog runs through the snow.", "Two men in hats talk in front of a shop.",
             "A girl reads a book on a bench.",
             "A boy in a red shirt plays football in the park with his friends."]


def workloads() -> dict[str, Callable[[], object]]:
    """Return the kinds of work by name: each decodes once."""
    upscaler, translator = Upscaler.load(), Translator.load()
    faces = np.random.default_rng(0).integers(0, 256, (8, 8, 8, 3), dtype=np.uint8)
    one = faces[:1]
    near = DecodeConfig(accept="distance", epsilon=2)
    return {
        "greedy": lambda: upscaler(one, DecodeConfig(block_size=1)),
        "exact": lambda: upscaler(one, DecodeConfig()),
        "epsilon 2": lambda: upscaler(one, near),
        "sampling": lambda: upscaler(one, DecodeConfig(temperature=0.9)),
        "8 faces, epsilon 2": lambda: upscaler(faces, near),
        "4 sentences, one by one": lambda: [translator([text], DecodeConfig(block_size=2)) for text in SENTENCES],
        "32 sentences": lambda: translator(SENTENCES * 8, DecodeConfig(block_size=2)),
    }


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@contextmanager
def started(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run Python code in a process, which is killed at the end."""
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def ask(process: subprocess.Popen[str]) -> None:
    """Wait until a process writes a line."""
    if process.stdout is None or not process.stdout.readline():
        raise SuperresError("a process ended before it had done its work; its message is above")


@contextmanager
def busy(priority: int | None) -> Iterator[None]:
    """Keep one core in two busy by processes of a priority (0 to 19, 19 the lowest); none where it is None."""
    count = 0 if priority is None else max(1, (os.cpu_count() or 1) // 2)
    with ExitStack() as stack:
        for process in [stack.enter_context(started(BUSY, str(priority))) for _ in range(count)]:
            ask(process)
        yield


def beside_busy(works: dict[str, Callable[[], object]], rounds: int) -> list[dict[str, Any]]:
    """Time each kind of work alone and beside busy processes, in turns; return its medians in seconds."""
    rows = []
    for name, work in works.items():
        work()
        taken: dict[int | None, list[float]] = {None: [], 0: [], 19: []}
        for _ in range(rounds):
            for priority, times in taken.items():
                with busy(priority):
                    times.append(seconds(work))
        idle, normal, low = (statistics.median(times) for times in taken.values())
        rows.append({"work": name, "idle": idle, "beside priority 0": normal, "beside priority 19": low,
                     "worst over idle": max(normal, low) / idle})
        print(f"{name}: {idle:.3f} s idle, {normal:.3f} and {low:.3f} s busy", file=sys.stderr)
    return rows


def at_once(work: Callable[[], object], count: int, rounds: int) -> float:
    """Return the median seconds of `count` decodes at once, in threads of this process, until the last is done."""
    with ThreadPoolExecutor(count) as pool:
        return statistics.median(seconds(lambda: list(pool.map(lambda _: work(), range(count)))) for _ in range(rounds))


def in_processes(name: str, count: int, rounds: int) -> float:
    """Return the median seconds of `count` decodes at once in processes of their own, until the last is done."""
    here = Path(__file__).resolve().parent
    code = WORKER.format(scripts=str(here), root=str(here.parent), name=name)
    with ExitStack() as stack:
        workers = [stack.enter_context(started(code)) for _ in range(count)]

        def together() -> None:
            for worker in workers:
                if worker.stdin is not None:
                    worker.stdin.write("\n")
                    worker.stdin.flush()
            for worker in workers:
                ask(worker)

        for worker in workers:
            ask(worker)
        return statistics.median(seconds(together) for _ in range(rounds))


def sharing(works: dict[str, Callable[[], object]], names: list[str], rounds: int) -> list[dict[str, Any]]:
    """Time four decodes at once, in threads and in processes, against their share of the processor."""
    rows, count = [], 4
    share = max(1.0, count / (os.cpu_count() or 1))
    for name in names:
        alone = statistics.median(seconds(works[name]) for _ in range(rounds))
        threads, processes = at_once(works[name], count, rounds), in_processes(name, count, rounds)
        rows.append({"work": name, "alone": alone, "threads": threads, "processes": processes, "share": share * alone})
        print(f"{name}: {alone:.3f} s alone, four at once {threads:.3f} and {processes:.3f} s", file=sys.stderr)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return rows of figures as Markdown, in seconds but for the ratios."""
    cells = [[value if isinstance(value, str) else number_text(value, 3) for value in row.values()] for row in rows]
    return markdown_table(list(rows[0]), cells)


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Times that each kind of work is timed, in turns.")] = 5,
    output: Annotated[Path | None, typer.Option(help="Write the figures to this file, too, as JSON.")] = None,
    only: Annotated[str, typer.Option(help="Measure the kinds of work whose name has this text.")] = "",
) -> None:
    """Print tables of seconds per decode: idle and busy, alone and several at once."""
    works = {name: work for name, work in workloads().items() if only in name}
    document = {"machine": machine(Upscaler.load().device), "busy": beside_busy(works, rounds)}
    print(table(document["busy"]))
    if shared := [name for name in ("greedy", "epsilon 2") if name in works]:
        document["at once"] = sharing(works, shared, rounds)
        print(table(document["at once"]))
    if output is not None:
        write_result(output, (json.dumps(document, indent=1) + "\n").encode())


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"benchmark_busy: {error}")
