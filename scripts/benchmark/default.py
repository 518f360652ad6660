"""Compare the default with one token per step, by engine, task and batch size: it should never be slower.

    python scripts/benchmark/default.py --faces dev.npz --text test_2017_flickr --output default
    python scripts/benchmark/default.py --faces dev.npz --text test_2017_flickr --output default --rounds 5

Both decode the same inputs in turns on one thread. The seconds are the process's CPU time, which other work on the
machine hardly changes; the least of the rounds counts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer

sys.path.append(str(Path(__file__).resolve().parents[1]))

from measurements import (
    Columns,
    Document,
    Faces,
    Output,
    Page,
    Row,
    Table,
    Text,
    Values,
    columns_table,
    in_turns,
    run,
    values,
)
from superres.config import DEFAULT_CHECKPOINT, DEFAULT_TRANSLATOR, DecodeConfig
from superres.pipeline.translator import Translator
from superres.pipeline.upscaler import Upscaler
from superres.system.machine import Timer
from superres.tasks.face_data import read_faces
from superres.tasks.translation import read_pairs

ENGINES = ("native", "native-int8")
BATCHES = {"faces": (1, 8, 32, 64), "captions": (1, 8, 32, 160)}
NOISE = 1.05
"""Largest ratio of two equal times on a shared machine."""


def measure(decode: Callable[[DecodeConfig | None], object], count: int, rounds: int) -> Values:
    """Return the milliseconds of CPU time per input of `decode`, which decodes `count` inputs in a given way."""
    ways = {"greedy": partial(decode, DecodeConfig(block_size=1)), "default": partial(decode, None)}
    least = {name: 1000 * min(taken) / count for name, taken in in_turns(
        ways, rounds, Timer(torch.device("cpu"), clock=time.process_time)).items()}
    return {**least, "ratio": least["default"] / least["greedy"]}


def views(document: Document) -> dict[str, str]:
    """Return the milliseconds per input of both ways, and the ratio."""
    columns: Columns = {"engine, task, batch": ("case", 0), "one token per step (ms)": ("greedy", 1),
                        "default (ms)": ("default", 1), "ratio": ("ratio", 2)}
    rows = [{"case": name, **found} for name, found in values(document).items()]
    return {"default": columns_table(rows, columns)}


def main(
    faces: Faces, text: Text, output: Output, page: Page = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of timings of each way.")] = 3,
) -> None:
    """Write a table of CPU time per input, greedily and by the default."""
    table = Table("default", output, {"rounds": rounds, "threads": 1})
    torch.set_num_threads(1)
    lines = read_pairs(text, ("en", "de"), BATCHES["captions"][-1]).source
    for engine in ENGINES:
        upscaler = Upscaler.load(DEFAULT_CHECKPOINT, "cpu", engine)
        translator = Translator.load(DEFAULT_TRANSLATOR, "cpu", engine)
        pictures = read_faces(faces, upscaler.face_task, "valid", BATCHES["faces"][-1]).lr
        for task, sizes in BATCHES.items():
            pipeline, inputs = (upscaler, pictures) if task == "faces" else (translator, lines)
            for size in sizes:
                settings = {"weights": pipeline.revision, "code": pipeline.scoring.code}
                table.measure([Row(f"`{engine}`, {task}, {size}", partial(
                    measure, partial(pipeline, inputs[:size]), size, rounds), settings)])
    worst = max(values(table.document).items(), key=lambda found: found[1]["ratio"])
    table.finish(page)
    print(f"slowest: {worst[0]}, {worst[1]['ratio']:.2f}" + (", beyond noise" if worst[1]["ratio"] > NOISE else ""))


if __name__ == "__main__":
    run(main)
