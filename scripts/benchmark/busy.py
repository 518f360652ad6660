"""Measure how much other processes that keep processor cores busy slow down decoding.

    python scripts/benchmark/busy.py --output busy
    python scripts/benchmark/busy.py --output busy --only greedy --rounds 1

Each workload is timed alternately on an idle machine and beside busy processes, one per two cores,
at priority 0 and at priority 19. Then four decodes run concurrently, in threads of this process and
in separate processes. Their time is compared with the fair share: the time of one decode times the
number of concurrent decodes per core, at least 1.

The bundled checkpoints decode random sources, on which the time of a decode hardly depends.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

sys.path.append(str(Path(__file__).resolve().parents[1]))

from measurements import Columns, Document, Output, Row, Table, Values, columns_table, run, values
from superres.config import DecodeConfig
from superres.errors import SuperresError
from superres.evaluation.examples import SENTENCES
from superres.pipeline.translator import Translator
from superres.pipeline.upscaler import Upscaler
from superres.system.machine import Timer

CLOCK = Timer(torch.device("cpu"))
AT_ONCE = 4
"""Decodes that run concurrently."""
BUSY = "import os, sys; os.nice(int(sys.argv[1])); print(flush=True)\nwhile True: pass"
WORKER = """
import sys
sys.path[:0] = [{scripts!r}, {root!r}]
import busy
work = busy.workloads()[{name!r}]
work()
print(flush=True)
for _ in sys.stdin:
    print(busy.CLOCK.once(work), flush=True)
"""


def workloads() -> dict[str, Callable[[], object]]:
    """Return functions that decode once, by the name of the workload."""
    upscaler, translator = Upscaler.load(), Translator.load()
    faces = np.random.default_rng(0).integers(0, 256, (8, *upscaler.face_task.source_shape),
                                              dtype=np.uint8)
    one, lines, epsilon_2 = faces[:1], list(SENTENCES), DecodeConfig(accept="distance", epsilon=2)
    return {
        "greedy": lambda: upscaler(one, DecodeConfig(block_size=1)),
        "exact": lambda: upscaler(one, DecodeConfig()),
        "epsilon 2": lambda: upscaler(one, epsilon_2),
        "sampling": lambda: upscaler(one, DecodeConfig(temperature=0.9)),
        "8 faces, epsilon 2": lambda: upscaler(faces, epsilon_2),
        "4 sentences, one by one": lambda: [translator([text], DecodeConfig(block_size=2))
                                            for text in lines[:4]],
        "32 sentences": lambda: translator(lines * 2, DecodeConfig(block_size=2)),
    }


@contextmanager
def started(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run Python code in a process, which is killed at the end of the block."""
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as process:
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
    """Keep half of the cores busy by processes of a priority from 0 to 19 (the lowest); no
    processes for None."""
    count = 0 if priority is None else max(1, (os.cpu_count() or 1) // 2)
    with ExitStack() as stack:
        for process in [stack.enter_context(started(BUSY, str(priority))) for _ in range(count)]:
            await_line(process)
        yield


def beside_busy(work: Callable[[], object], rounds: int) -> Values:
    """Time a workload on an idle machine and beside busy processes, in turns; return the medians in
    seconds."""
    work()
    timings: dict[int | None, list[float]] = {None: [], 0: [], 19: []}
    for _ in range(rounds):
        for priority, times in timings.items():
            with busy(priority):
                times.append(CLOCK.once(work))
    idle, normal, low = (statistics.median(times) for times in timings.values())
    return {"idle": idle, "priority 0": normal, "priority 19": low,
            "worst": max(normal, low) / idle}


def in_processes(name: str, rounds: int) -> float:
    """Return the median duration in seconds of concurrent decodes in separate processes."""
    here = Path(__file__).resolve().parent
    code = WORKER.format(scripts=str(here), root=str(here.parents[1]), name=name)
    with ExitStack() as stack:
        workers = [stack.enter_context(started(code)) for _ in range(AT_ONCE)]

        def together() -> None:
            for worker in workers:
                if worker.stdin is not None:
                    worker.stdin.write("\n")
                    worker.stdin.flush()
            for worker in workers:
                await_line(worker)

        for worker in workers:
            await_line(worker)
        return statistics.median(CLOCK.once(together) for _ in range(rounds))


def sharing(name: str, work: Callable[[], object], rounds: int) -> Values:
    """Time concurrent decodes in threads and in processes, and return their fair share beside it,
    in seconds."""
    alone = statistics.median(CLOCK.once(work) for _ in range(rounds))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        threads = statistics.median(CLOCK.once(
            lambda: list(pool.map(lambda _: work(), range(AT_ONCE)))) for _ in range(rounds))
    return {"alone": alone, "threads": threads, "processes": in_processes(name, rounds),
            "share": max(1.0, AT_ONCE / (os.cpu_count() or 1)) * alone}


def views(document: Document) -> dict[str, str]:
    """Return seconds per decode on an idle and a busy machine, and of concurrent decodes."""
    headings = {"busy": ("idle", "priority 0", "priority 19", "worst"),
                "at once": ("alone", "threads", "processes",
                            "share")}
    columns: dict[str, Columns] = {kind: {"decoding": ("work", 0),
                                          **{name: (name, 3) for name in names}}
                                   for kind, names in headings.items()}
    return {kind.replace(" ", "-"): columns_table(
        ({"work": name, **found} for name, found in values(document, f"{kind}: ").items()),
        columns[kind])
            for kind in headings}


def main(
    output: Output = Path("busy"),
    rounds: Annotated[int, typer.Option(min=1, help="Number of timings of each workload.")] = 5,
    only: Annotated[str, typer.Option(help="Measure only workloads whose name contains this "
                                      "text.")] = "",
) -> None:
    """Write tables of seconds per decode: on an idle and a busy machine, alone and concurrently."""
    works = {name: work for name, work in workloads().items() if only in name}
    table = Table("busy", output, {"rounds": rounds})
    table.measure(Row(f"busy: {name}", partial(beside_busy, work, rounds)) for name,
                  work in works.items())
    table.measure(Row(f"at once: {name}", partial(sharing, name, works[name], rounds))
                  for name in ("greedy", "epsilon 2") if name in works)
    table.finish()


if __name__ == "__main__":
    run(main)
