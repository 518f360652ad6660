"""The commands `superres benchmark images` and `superres benchmark text`: how fast decoding is on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from superres.cli_options import DEFAULTS, AsJson, Checkpoint, Data, Device, Engine, load_translator, load_upscaler
from superres.config import DEFAULT_CHECKPOINT, DEFAULT_TRANSLATOR
from superres.errors import ConfigError

if TYPE_CHECKING:
    from superres.benchmark import Workload

Batches = Annotated[str, typer.Option(metavar="B,B,...", help="Rows decoded together, several numbers.")]
Repeats = Annotated[int, typer.Option(metavar="N", help="Rounds, of which medians are taken.")]
Busy = Annotated[bool, typer.Option("--busy", help="Measure even if something else uses the processor.")]
Folder = Annotated[Path | None, typer.Option("--output", metavar="DIR", help="Folder for benchmark.json, benchmark.md "
                                             "and two plots.", show_default=False)]
Pairs = Annotated[Path, typer.Option("--data", metavar="PATH", help="Parallel text PATH.en and PATH.de, or a test set "
                                     "of sacrebleu's.")]

benchmark_app = typer.Typer(help="Measure how fast decoding is on this machine.", rich_markup_mode=None)


@benchmark_app.command()
def images(
    data: Data, checkpoint: Checkpoint = DEFAULT_CHECKPOINT, batches: Batches = "1,8,64", repeats: Repeats = 3,
    device: Device = "auto", engine: Engine = "auto", output: Folder = None, busy: Busy = False,
    as_json: AsJson = False,
) -> None:
    """Time upscaling: greedy, exact blocks and epsilon 2 by block size and batch, the step's parts, and its floor."""
    sizes = parse_batches(batches)

    from superres.benchmark import image_workload
    from superres.tasks.faces import read_faces

    upscaler = load_upscaler(checkpoint, device, DEFAULTS, engine)
    sources = read_faces(data, "valid", max(sizes)).lr
    _measure(image_workload(upscaler, sources), sizes, repeats, output, busy, as_json)


@benchmark_app.command()
def text(
    data: Pairs, checkpoint: Checkpoint = DEFAULT_TRANSLATOR, batches: Batches = "1,8,64", repeats: Repeats = 3,
    device: Device = "auto", engine: Engine = "auto", output: Folder = None, busy: Busy = False,
    as_json: AsJson = False,
) -> None:
    """Time translation: greedy, exact and top-2 blocks by block size and batch, beam search, the step and its floor."""
    sizes = parse_batches(batches)

    from superres.benchmark import text_workload
    from superres.tasks.translation import read_pairs

    translator = load_translator(checkpoint, device, DEFAULTS, engine=engine)
    pairs = read_pairs(data, translator.languages)
    _measure(text_workload(translator, pairs.source), sizes, repeats, output, busy, as_json)


def _measure(
    work: Workload, batches: tuple[int, ...], repeats: int, output: Path | None, busy: bool, as_json: bool,
) -> None:
    """Run a benchmark and report it as asked."""
    from superres.benchmark import benchmark_markdown, run_benchmark, write_benchmark
    from superres.machine import require_quiet

    if not busy:
        require_quiet()
    report = run_benchmark(work, batches, repeats)
    if output is not None:
        write_benchmark(report, output)
    typer.echo(json.dumps(report) if as_json else benchmark_markdown(report))


def parse_batches(text: str) -> tuple[int, ...]:
    """Return the numbers of "1,8,64".

    Raises:
        ConfigError: one is not a positive whole number.
    """
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) >= 1 for part in parts):
        raise ConfigError(f"--batches takes positive whole numbers such as 1,8,64, not {text!r}")
    return tuple(int(part) for part in parts)
