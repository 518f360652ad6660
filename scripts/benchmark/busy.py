"""Measure how much other processes that keep processor cores busy slow down decoding.

    python scripts/benchmark/busy.py
    python scripts/benchmark/busy.py --rounds 10 --output busy.json

Each workload is timed alternately on an idle machine and beside busy processes, one per two cores, at priority 0 and at
priority 19. Then four decodes run concurrently, in threads of this process and in separate processes. Their time is
compared with the fair share: the time of one decode times the number of concurrent decodes per core, at least 1.

The bundled checkpoints decode random sources, on which the time of a decode hardly depends.
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
from superres.evaluation.examples import SENTENCES
from superres.pipeline.translator import Translator
from superres.pipeline.upscaler import Upscaler
from superres.system.machine import machine
from superres.system.output import markdown_table, number_text, write_result

BUSY = "import os, sys; os.nice(int(sys.argv[1])); print(flush=True)\nwhile True: pass"
WORKER = """
import sys
sys.path[:0] = [{scripts!r}, {root!r}]
import busy
work = busy.workloads()[{name!r}]
work()
print(flush=True)
for _ in sys.stdin:
    print(busy.seconds(work), flush=True)
"""


def workloads() -> dict[str, Callable[[], object]]:
    """Return functions that decode once, by the name of the workload."""
    upscaler, translator = Upscaler.load(), Translator.load()
    faces = np.random.default_rng(0).integers(0, 256, (8, *upscaler.face_task.source_shape), dtype=np.uint8)
    one, lines, epsilon_2 = faces[:1], list(SENTENCES), DecodeConfig(accept="distance", epsilon=2)
    return {
        "greedy": lambda: upscaler(one, DecodeConfig(block_size=1)),
        "exact": lambda: upscaler(one, DecodeConfig()),
        "epsilon 2": lambda: upscaler(one, epsilon_2),
        "sampling": lambda: upscaler(one, DecodeConfig(temperature=0.9)),
        "8 faces, epsilon 2": lambda: upscaler(faces, epsilon_2),
        "4 sentences, one by one": lambda: [translator([text], DecodeConfig(block_size=2)) for text in lines[:4]],
        "32 sentences": lambda: translator(lines * 2, DecodeConfig(block_size=2)),
    }


def seconds(work: Callable[[], object]) -> float:
    """Return the duration of a call in seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@contextmanager
def started(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run Python code in a process, which is killed at the end of the block."""
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def await_line(process: subprocess.Popen[str]) -> None:
    """Wait until a process writes a line."""
    if process.stdout is None or not process.stdout.readline():
        raise SuperresError("a process ended too early; its message is above")


@contextmanager
def busy(priority: int | None) -> Iterator[None]:
    """Keep half of the cores busy by processes of a priority from 0 to 19 (the lowest); no processes for None."""
    count = 0 if priority is None else max(1, (os.cpu_count() or 1) // 2)
    with ExitStack() as stack:
        for process in [stack.enter_context(started(BUSY, str(priority))) for _ in range(count)]:
            await_line(process)
        yield


def beside_busy(works: dict[str, Callable[[], object]], rounds: int) -> list[dict[str, Any]]:
    """Time each workload alternately on an idle machine and beside busy processes; return the medians in seconds."""
    rows = []
    for name, work in works.items():
        work()
        timings: dict[int | None, list[float]] = {None: [], 0: [], 19: []}
        for _ in range(rounds):
            for priority, times in timings.items():
                with busy(priority):
                    times.append(seconds(work))
        idle, normal, low = (statistics.median(times) for times in timings.values())
        rows.append({"work": name, "idle": idle, "beside priority 0": normal, "beside priority 19": low,
                     "worst over idle": max(normal, low) / idle})
        print(f"{name}: {idle:.3f} s idle, {normal:.3f} and {low:.3f} s busy", file=sys.stderr)
    return rows


def in_processes(name: str, count: int, rounds: int) -> float:
    """Return the median duration in seconds of `count` concurrent decodes in separate processes."""
    here = Path(__file__).resolve().parent
    code = WORKER.format(scripts=str(here), root=str(here.parents[1]), name=name)
    with ExitStack() as stack:
        workers = [stack.enter_context(started(code)) for _ in range(count)]

        def together() -> None:
            for worker in workers:
                if worker.stdin is not None:
                    worker.stdin.write("\n")
                    worker.stdin.flush()
            for worker in workers:
                await_line(worker)

        for worker in workers:
            await_line(worker)
        return statistics.median(seconds(together) for _ in range(rounds))


def sharing(works: dict[str, Callable[[], object]], names: list[str], rounds: int) -> list[dict[str, Any]]:
    """Time four concurrent decodes in threads and in processes, and return their fair share beside it, in seconds."""
    rows, count = [], 4
    share = max(1.0, count / (os.cpu_count() or 1))
    for name in names:
        work = works[name]
        alone = statistics.median(seconds(work) for _ in range(rounds))
        with ThreadPoolExecutor(count) as pool:
            threads = statistics.median(seconds(
                lambda work=work, pool=pool: list(pool.map(lambda _: work(), range(count)))) for _ in range(rounds))
        processes = in_processes(name, count, rounds)
        rows.append({"work": name, "alone": alone, "threads": threads, "processes": processes, "share": share * alone})
        print(f"{name}: {alone:.3f} s alone, four at once {threads:.3f} and {processes:.3f} s", file=sys.stderr)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return rows of measurements as a Markdown table."""
    cells = [[value if isinstance(value, str) else number_text(value, 3) for value in row.values()] for row in rows]
    return markdown_table(list(rows[0]), cells)


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Number of timings of each workload.")] = 5,
    output: Annotated[Path | None, typer.Option(help="Also write the measurements to this file, as JSON.")] = None,
    only: Annotated[str, typer.Option(help="Measure only workloads whose name contains this text.")] = "",
) -> None:
    """Print tables of seconds per decode: on an idle and a busy machine, alone and concurrently."""
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
        sys.exit(f"busy: {error}")
