"""The commands `superres benchmark images` and `superres benchmark text`: how fast decoding is on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from superres.cli.options import (
    AsJson,
    Checkpoint,
    Device,
    Engine,
    decode_config,
    decoding_command,
    load_translator,
    load_upscaler,
    refuse_idle,
)
from superres.config import DEFAULT_CHECKPOINT, DEFAULT_TRANSLATOR, FACES, TRANSLATION, DecodeConfig, require
from superres.errors import ConfigError
from superres.system.terminal import echo, echo_json

if TYPE_CHECKING:
    from superres.evaluation.benchmark import Workload

Batches = Annotated[str | None, typer.Option(metavar="B,B,...", help="Batch sizes, rows decoded together, with commas "
                                             "between. "
                                             "[default: 1,8,64; with --proposers 1]", show_default=False)]
Repeats = Annotated[int, typer.Option(metavar="N", help="Rounds of measuring; the report holds their medians.")]
Busy = Annotated[bool, typer.Option("--busy", help="Measure even while other programs use the processor.")]
Folder = Annotated[Path | None, typer.Option("--output", metavar="DIR", help="Folder for benchmark.json, benchmark.md "
                                             "and two plots.", show_default=False)]
Data = Annotated[Path | None, typer.Option(metavar="PATH", help="A prepared .npz, a folder of images, or a CelebA "
                                           "root. [default: crops of scikit-image's astronaut]", show_default=False)]
Pairs = Annotated[Path | None, typer.Option("--data", metavar="PATH", help="Parallel text PATH.en and PATH.de, or a "
                                            "test set of sacrebleu's. [default: English sentences of our own]",
                                            show_default=False)]
Named = Annotated[str | None, typer.Option("--proposers", metavar="all|NAME,NAME...", help="Compare proposers instead: "
                                           "the time that the cost model predicts beside the measured one.",
                                           show_default=False)]
Hot = Annotated[float, typer.Option("--temperature", metavar="T", help="Temperature of sampling, above 0, with "
                                    "--proposers.")]
DEFAULT_BATCHES = "1,8,64"

NEEDED = ("block_size", "draft", "ngrams")
"""Decoding settings that the comparison of proposers reads."""

SENTENCE_ROUNDS = 8
"""With --proposers, sentences are so short that each round takes so many batches."""

benchmark_app = typer.Typer(help="Measure how fast decoding is on this machine.", rich_markup_mode=None)


@decoding_command(benchmark_app, FACES, *NEEDED)
def images(
    context: typer.Context, data: Data = None, checkpoint: Checkpoint = DEFAULT_CHECKPOINT, batches: Batches = None,
    repeats: Repeats = 3, device: Device = "auto", engine: Engine = "auto", output: Folder = None, busy: Busy = False,
    as_json: AsJson = False, proposers: Named = None, temperature: Hot = 0.9,
) -> None:
    """Time upscaling: greedy, exact blocks and epsilon 2 by block size and batch, the step's parts, and its floor."""
    sizes = parse_batches(batches or ("1" if proposers else DEFAULT_BATCHES))
    refuse_idle_proposing(context, proposers)

    from superres.evaluation.benchmark import image_workload
    from superres.evaluation.examples import example_sources
    from superres.tasks.faces import read_faces

    upscaler = load_upscaler(checkpoint, device, engine)
    count = max(sizes) * (repeats if proposers else 1)
    work = image_workload(upscaler, example_sources(count) if data is None else read_faces(data, "valid", count).lr)
    if proposers is None:
        _measure(work, sizes, repeats, output, busy, as_json)
    else:
        base = decode_config(context)
        _compare(work, proposers, sizes, repeats, base, temperature, output, busy, as_json)


@decoding_command(benchmark_app, TRANSLATION, *NEEDED)
def text(
    context: typer.Context, data: Pairs = None, checkpoint: Checkpoint = DEFAULT_TRANSLATOR, batches: Batches = None,
    repeats: Repeats = 3, device: Device = "auto", engine: Engine = "auto", output: Folder = None, busy: Busy = False,
    as_json: AsJson = False, proposers: Named = None, temperature: Hot = 0.9,
) -> None:
    """Time translation: greedy, exact and top-2 blocks by block size and batch, beam search, the step and its floor."""
    sizes = parse_batches(batches or ("1" if proposers else DEFAULT_BATCHES))
    refuse_idle_proposing(context, proposers)

    from superres.evaluation.benchmark import text_workload
    from superres.evaluation.examples import SENTENCES
    from superres.tasks.translation import read_pairs

    translator = load_translator(checkpoint, device, engine=engine)
    lines = SENTENCES if data is None else read_pairs(data, translator.languages).source
    work = text_workload(translator, lines)
    if proposers is None:
        _measure(work, sizes, repeats, output, busy, as_json)
    else:
        base = decode_config(context)
        _compare(work, proposers, sizes, SENTENCE_ROUNDS * repeats, base, temperature, output, busy, as_json)


def refuse_idle_proposing(context: typer.Context, proposers: str | None) -> None:
    """Refuse options of the comparison of proposers where none is asked for, or not of the one that reads them.

    Raises:
        ConfigError: one was given.
    """
    if proposers is None:
        refuse_idle(context, "without --proposers; leave it out, or give --proposers all", "block_size", "temperature",
                    "draft", "ngrams")
    elif proposers != "all":
        named = [name.strip() for name in proposers.split(",")]
        for option, proposer in (("draft", "draft"), ("ngrams", "ngram")):
            if proposer not in named:
                refuse_idle(context, f"with --proposers {proposers}; leave it out, or name {proposer} there", option)


def _measure(
    work: Workload, batches: tuple[int, ...], repeats: int, output: Path | None, busy: bool, as_json: bool,
) -> None:
    """Run a benchmark and report it as asked."""
    from superres.evaluation.benchmark import benchmark_markdown, run_benchmark, write_benchmark
    from superres.system.machine import require_idle

    if not busy:
        require_idle()
    report = run_benchmark(work, batches, repeats)
    if output is not None:
        write_benchmark(report, output)
    echo_json(report) if as_json else echo(benchmark_markdown(report))


def _compare(
    work: Workload, proposers: str, batches: tuple[int, ...], count: int, base: DecodeConfig, temperature: float,
    output: Path | None, busy: bool, as_json: bool,
) -> None:
    """Compare proposers and report it as asked."""
    from superres.evaluation.benchmark_proposers import (
        compare_proposers,
        parse_proposers,
        proposers_markdown,
        write_proposers,
    )
    from superres.system.machine import require_idle

    require(len(batches) == 1, f"--proposers compares at one number of rows; give --batches 1, not {batches}")
    names = parse_proposers(proposers, work.pipeline)
    if not busy:
        require_idle()
    report = compare_proposers(work, names, batch=batches[0], count=count, temperature=temperature, base=base)
    if output is not None:
        write_proposers(report, output)
    echo_json(report) if as_json else echo(proposers_markdown(report))


def parse_batches(text: str) -> tuple[int, ...]:
    """Return the numbers of "1,8,64".

    Raises:
        ConfigError: one is not a positive whole number.
    """
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) >= 1 for part in parts):
        raise ConfigError(f"--batches takes positive whole numbers such as 1,8,64, not {text!r}")
    return tuple(int(part) for part in parts)
