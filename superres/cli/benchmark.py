"""The commands `superres benchmark images` and `superres benchmark text`: the speed of decoding on
this machine."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from superres.cli import options as opt
from superres.config import DEFAULT_CHECKPOINT, DEFAULT_TRANSLATOR
from superres.errors import ConfigError
from superres.system.output import prepare_folder
from superres.system.terminal import echo, echo_json
from superres.tasks.face_paths import require_faces

if TYPE_CHECKING:
    from superres.evaluation.workload import Workload

Batches = Annotated[str | None, Option(metavar="B,B,...", help="Batch sizes (rows decoded "
                                       "together), separated by commas. [default: 1,8,64; on a GPU "
                                       "1,64,1024]")]
Minutes = Annotated[float | None, Option(min=0.1, metavar="M", help="Leave out what does not fit "
                                         "into about M minutes. [default: no limit; on a GPU 2.5]")]
Repeats = Annotated[int, Option(metavar="N", help="Rounds of measurement; the report holds their "
                                "medians.")]
Busy = Annotated[bool, Option("--busy", help="Measure even while other programs use the "
                              "processor.")]
Folder = Annotated[Path | None, Option(metavar="DIR", help="Folder for benchmark.json, "
                                       "benchmark.md and two plots.")]
Data = Annotated[Path | None, Option(metavar="PATH", help=f"{opt.FACE_DATA} [default: crops of "
                                     "scikit-image's astronaut]")]
Pairs = Annotated[Path | None, Option(metavar="PATH", help=f"{opt.TEXT_DATA} [default: English "
                                      "sentences of our own]")]
DEFAULT_BATCHES = {"cpu": (1, 8, 64), "cuda": (1, 64, 1024)}
DEFAULT_MINUTES = {"cpu": math.inf, "cuda": 2.5}
SOURCES = 128
"""Images to decode if no batch is given; a larger batch repeats them."""

benchmark_app = typer.Typer(help="Measure the speed of decoding on this machine.",
                            rich_markup_mode=None)


@benchmark_app.command(cls=opt.HelpfulCommand)
def images(
    data: Data = None, checkpoint: opt.Checkpoint = DEFAULT_CHECKPOINT, batches: Batches = None,
    repeats: Repeats = 3, minutes: Minutes = None, device: opt.Device = "auto",
    engine: opt.Engine = "auto", output: Folder = None, busy: Busy = False,
    as_json: opt.AsJson = False,
) -> None:
    """Measure the speed of upscaling.

    The report has greedy decoding, exact blocks and blocks with epsilon 2, by block size and batch
    size, and the parts of a decoding step.
    """
    if data is not None:
        require_faces(data)
    _measure(lambda count: image_work(checkpoint, device, engine, data, count), batches, repeats,
             minutes, output, busy, as_json)


@benchmark_app.command(cls=opt.HelpfulCommand)
def text(
    data: Pairs = None, checkpoint: opt.Checkpoint = DEFAULT_TRANSLATOR, batches: Batches = None,
    repeats: Repeats = 3, minutes: Minutes = None, device: opt.Device = "auto",
    engine: opt.Engine = "auto", output: Folder = None, busy: Busy = False,
    as_json: opt.AsJson = False,
) -> None:
    """Measure the speed of translation.

    The report has greedy decoding, exact blocks and top-2 blocks, by block size and batch size,
    beam search, and the parts of a decoding step.
    """
    if data is not None:
        opt.check_pairs(checkpoint, data)
    _measure(lambda _: text_work(checkpoint, device, engine, data), batches, repeats, minutes,
             output, busy, as_json)


def image_work(checkpoint: str, device: str, engine: str, data: Path | None,
               count: int) -> Workload:
    """Return `count` images to decode: the first of `data`, or crops of scikit-image's
    astronaut."""
    from superres.evaluation.examples import example_sources
    from superres.evaluation.workload import image_workload
    from superres.tasks.face_data import read_faces

    upscaler = opt.load_upscaler(checkpoint, device, engine)
    task = upscaler.face_task
    if data is None:
        return image_workload(upscaler, example_sources(count, task))
    return image_workload(upscaler, read_faces(data, task, "valid", count).lr)


def text_work(checkpoint: str, device: str, engine: str, data: Path | None) -> Workload:
    """Return sentences to decode: those of `data`, or sentences of our own."""
    from superres.evaluation.examples import SENTENCES
    from superres.evaluation.workload import text_workload
    from superres.tasks.translation import read_pairs

    translator = opt.load_translator(checkpoint, device, engine=engine)
    return text_workload(
        translator, SENTENCES if data is None else read_pairs(data, translator.languages).source
    )


def _measure(
    load: Callable[[int], Workload], batches: str | None, repeats: int, minutes: float | None,
    output: Path | None, busy: bool, as_json: bool,
) -> None:
    """Measure the workload that `load` returns for the largest batch, and print the report."""
    given = None if batches is None else parse_batches(batches)
    if output is not None:
        prepare_folder(output)
    work = load(SOURCES if given is None else max(given))
    kind = work.pipeline.device
    from superres.evaluation.benchmark import benchmark_markdown, run_benchmark, write_benchmark
    from superres.evaluation.timing import require_idle

    if not busy:
        require_idle()
    report = run_benchmark(work, given or DEFAULT_BATCHES[kind], repeats,
                           seconds=60 * (DEFAULT_MINUTES[kind] if minutes is None else minutes))
    if output is not None:
        write_benchmark(report, output)
    echo_json(report) if as_json else echo(benchmark_markdown(report))


def parse_batches(text: str) -> tuple[int, ...]:
    """Return the positive whole numbers in a list such as "1,8,64"; raise ConfigError for any other
    text."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) >= 1 for part in parts):
        raise ConfigError(f"--batches takes positive whole numbers such as 1,8,64, not {text!r}")
    return tuple(int(part) for part in parts)
