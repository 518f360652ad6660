"""The commands `superres benchmark images` and `superres benchmark text`: the speed of decoding on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from superres.cli import options as opt
from superres.config import DEFAULT_CHECKPOINT, DEFAULT_TRANSLATOR, FACES, TRANSLATION, require
from superres.errors import ConfigError
from superres.system.idle import training_paused
from superres.system.terminal import echo, echo_json

if TYPE_CHECKING:
    from superres.evaluation.benchmark import Workload

Batches = Annotated[str | None, Option(metavar="B,B,...", help="Batch sizes (rows decoded together), separated by "
                                       "commas. [default: 1,8,64; with --proposers 1]")]
Repeats = Annotated[int, Option(metavar="N", help="Rounds of measurement; the report holds their medians.")]
Busy = Annotated[bool, Option("--busy", help="Measure even while other programs use the processor.")]
Folder = Annotated[Path | None, Option(metavar="DIR", help="Folder for benchmark.json, benchmark.md and two plots.")]
Data = Annotated[Path | None, Option(metavar="PATH", help="A prepared .npz, a folder of images, or a CelebA root. "
                                     "[default: crops of scikit-image's astronaut]")]
Pairs = Annotated[Path | None, Option(metavar="PATH", help="Parallel text PATH.en and PATH.de, or the name of a test "
                                      "set of sacrebleu. [default: English sentences of our own]")]
Proposers = Annotated[str | None, Option(metavar="all|NAME,NAME...", help="Compare proposers instead: the time that "
                                         "the cost model predicts beside the measured time.")]
Temperature = Annotated[float, Option(metavar="T", help="Temperature of sampling with --proposers, above 0.")]

COMPARISON_SETTINGS = ("block_size", "draft", "ngrams")
"""Decoding settings that the comparison of proposers uses."""

BATCHES_PER_ROUND = 8
"""Batches of sentences that --proposers decodes per round, because decoding one sentence takes little time."""

benchmark_app = typer.Typer(help="Measure the speed of decoding on this machine.", rich_markup_mode=None)


@opt.decoding_command(benchmark_app, FACES, *COMPARISON_SETTINGS)
def images(
    context: typer.Context, data: Data = None, checkpoint: opt.Checkpoint = DEFAULT_CHECKPOINT, batches: Batches = None,
    repeats: Repeats = 3, device: opt.Device = "auto", engine: opt.Engine = "auto", output: Folder = None,
    busy: Busy = False, as_json: opt.AsJson = False, proposers: Proposers = None, temperature: Temperature = 0.9,
) -> None:
    """Measure the speed of upscaling.

    The report has greedy decoding, exact blocks and blocks with epsilon 2, by block size and batch size. It also has
    the parts of a decoding step, and the least time that a step can take on this machine.
    """
    sizes = batch_sizes(context)

    from superres.evaluation.benchmark import image_workload
    from superres.evaluation.examples import example_sources
    from superres.tasks.face_data import read_faces

    upscaler = opt.load_upscaler(checkpoint, device, engine)
    count = max(sizes) * (repeats if proposers else 1)
    task = upscaler.face_task
    sources = example_sources(count, task) if data is None else read_faces(data, task, "valid", count).lr
    _measure(context, image_workload(upscaler, sources), sizes, repeats)


@opt.decoding_command(benchmark_app, TRANSLATION, *COMPARISON_SETTINGS)
def text(
    context: typer.Context, data: Pairs = None, checkpoint: opt.Checkpoint = DEFAULT_TRANSLATOR,
    batches: Batches = None, repeats: Repeats = 3, device: opt.Device = "auto", engine: opt.Engine = "auto",
    output: Folder = None, busy: Busy = False, as_json: opt.AsJson = False, proposers: Proposers = None,
    temperature: Temperature = 0.9,
) -> None:
    """Measure the speed of translation.

    The report has greedy decoding, exact blocks and top-2 blocks, by block size and batch size, and beam search. It
    also has the parts of a decoding step, and the least time that a step can take on this machine.
    """
    sizes = batch_sizes(context)

    from superres.evaluation.benchmark import text_workload
    from superres.evaluation.examples import SENTENCES
    from superres.tasks.translation import read_pairs

    translator = opt.load_translator(checkpoint, device, engine=engine)
    lines = SENTENCES if data is None else read_pairs(data, translator.languages).source
    _measure(context, text_workload(translator, lines), sizes, BATCHES_PER_ROUND * repeats)


def batch_sizes(context: typer.Context) -> tuple[int, ...]:
    """Return the batch sizes of a command, having checked that its options have an effect.

    Raises:
        ConfigError: --batches is not a list of positive numbers, or an option has no effect.
    """
    proposers = context.params["proposers"]
    sizes = parse_batches(context.params["batches"] or ("1" if proposers else "1,8,64"))
    if proposers is None:
        opt.refuse_ineffective(context, "without --proposers; leave it out, or give --proposers all",
                               *COMPARISON_SETTINGS, "temperature")
    elif proposers != "all":
        names = [name.strip() for name in proposers.split(",")]
        for option, proposer in (("draft", "draft"), ("ngrams", "ngram")):
            if proposer not in names:
                opt.refuse_ineffective(context, f"with --proposers {proposers}; leave it out, or name {proposer} there",
                                       option)
    return sizes


@training_paused()
def _measure(context: typer.Context, work: Workload, sizes: tuple[int, ...], count: int) -> None:
    """Run the benchmark, or with --proposers the comparison on `count` batches, and report as the options ask."""
    from superres.evaluation import benchmark, benchmark_proposers
    from superres.system.machine import require_idle

    values = context.params
    names = []
    if values["proposers"] is not None:
        require(len(sizes) == 1, f"--proposers compares at one batch size; give --batches 1, not {sizes}")
        names = benchmark_proposers.parse_proposers(values["proposers"])
    if not values["busy"]:
        require_idle()
    if names:
        write, markdown = benchmark_proposers.write_proposers, benchmark_proposers.proposers_markdown
        report = benchmark_proposers.compare_proposers(
            work, names, batch=sizes[0], count=count, temperature=values["temperature"],
            base=opt.decode_config(context))
    else:
        write, markdown = benchmark.write_benchmark, benchmark.benchmark_markdown
        report = benchmark.run_benchmark(work, sizes, values["repeats"])
    if values["output"] is not None:
        write(report, values["output"])
    echo_json(report) if values["as_json"] else echo(markdown(report))


def parse_batches(text: str) -> tuple[int, ...]:
    """Return the numbers in a list such as "1,8,64".

    Raises:
        ConfigError: a part is not a positive whole number.
    """
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) >= 1 for part in parts):
        raise ConfigError(f"--batches takes positive whole numbers such as 1,8,64, not {text!r}")
    return tuple(int(part) for part in parts)
