"""The command line `superres`: options, and one line for every error. The work is done by the modules below it.

A new command is a function with `@app.command()`, or `@decoding_command` where it has options of decoding settings. A
new group is a Typer of its own with `app.add_typer`. What is slow to import (torch) is imported inside the commands, so
that help and usage errors come at once.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, cast

import typer

from superres import __version__
from superres.batch.inputs import read_list
from superres.batch.plan import BatchOptions, parse_batch_size, parse_shard, plan
from superres.cli.benchmark import benchmark_app
from superres.cli.options import (
    DEFAULTS,
    INTERRUPTED,
    Alpha,
    AsJson,
    BatchSize,
    Checkpoint,
    Data,
    Device,
    Draws,
    Engine,
    Format,
    Greedy,
    Images,
    InputList,
    Inputs,
    KeepTree,
    Limit,
    Manifest,
    MaxBits,
    Metadata,
    MinPsnr,
    OnExisting,
    Output,
    RayAddress,
    Recursive,
    Samples,
    Save,
    Shard,
    Sheet,
    Source,
    Split,
    Suffix,
    Workers,
    decode_config,
    decoding_command,
    given_options,
    load_upscaler,
    refuse_idle,
    refuse_idle_split,
)
from superres.cli.survey import survey_app
from superres.cli.text import text, translate
from superres.cli.train import train_app
from superres.config import DEFAULT_CHECKPOINT, FACES, TRANSLATION, QualityBound, require
from superres.errors import SuperresError
from superres.pipeline.options import combined
from superres.system.terminal import PrintableFormatter, StandardOutputError, echo, echo_json, one_line, standard_output
from superres.tasks.faces import Split as SplitName

NOT_READ = 141
"""Exit code where nobody reads standard output any more, as shells have it."""

# The parser's own errors have no public base class, and live in click or in typer by typer's version.
USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
                  context_settings={"help_option_names": ["-h", "--help"]},
                  help="Upscale 8x8 faces to 32x32, and translate, by blockwise parallel decoding.")
evaluate_app = typer.Typer(help="Score a checkpoint.", rich_markup_mode=None)
manifest_app = typer.Typer(help="Work with manifests of superres upscale.", rich_markup_mode=None)
app.add_typer(evaluate_app, name="evaluate")
app.add_typer(train_app, name="train")
app.add_typer(benchmark_app, name="benchmark")
app.add_typer(survey_app, name="survey")
app.add_typer(manifest_app, name="manifest")
decoding_command(app, TRANSLATION)(translate)
decoding_command(evaluate_app, TRANSLATION)(text)


def print_version(asked: bool) -> None:
    """Print the version and end, where it is asked for."""
    if asked:
        echo(f"superres {__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")]


@app.callback()
def superres(version: Version = False) -> None:
    """Upscale 8x8 faces to 32x32, and translate, by blockwise parallel decoding."""


@decoding_command(app, FACES)
def upscale(
    context: typer.Context, output: Output, inputs: Inputs = [],  # noqa: B006 -- typer wants a list
    checkpoint: Checkpoint = DEFAULT_CHECKPOINT, source: Source = "auto", samples: Samples = 1,
    format_name: Format = "png", alpha: Alpha = "white", metadata: Metadata = "strip", device: Device = "auto",
    listed: InputList = None, recursive: Recursive = False, keep_tree: KeepTree = False, suffix: Suffix = "",
    on_existing: OnExisting = "skip", manifest: Manifest = None, batch_size: Images = "auto", shard: Shard = "0/1",
    ray: RayAddress = None, workers: Workers = None, engine: Engine = "auto",
) -> None:
    """Upscale images: each becomes a 32x32 PNG.

    A decoding option that is not given is the checkpoint's own default where `superres tune` saved one. The same
    command again continues a run that was interrupted: what the manifest says is whole is left as it is.

    Exit code 0: all succeeded; 1: some failed, the rest are done; 2: bad usage, nothing was decoded.
    """
    decode = decode_config(context)
    options = BatchOptions(
        output, parse_batch_size(batch_size), samples, source, recursive, on_existing, parse_shard(shard), manifest,
        format_name, suffix, keep_tree, alpha, metadata,
    )
    require(bool(inputs) or listed is not None, "Missing argument 'INPUT...'; give images, folders, archives or --list")
    require(workers is None or workers >= 1, f"--workers must be at least 1, not {workers}")
    if ray is None:
        refuse_idle(context, "without --ray, since one process decodes alone; leave it out, or give --ray", "workers")
    if format_name == "npz" and metadata == "keep":
        refuse_idle(context, "with --format npz, which holds none; leave it out, or give --format png", "metadata")

    from superres.batch.upscaling import upscale_files
    from superres.pipeline.options import check_samples
    from superres.system.progress import say

    check_samples(decode, samples)
    jobs = plan(inputs, options, read_list(listed) if listed is not None else [])
    upscaler = load_upscaler(checkpoint, device, engine)
    decode = combined(upscaler.default, given_options(context, decode), upscaler.model_config.prediction_heads)
    if ray is None:
        summary = upscale_files(jobs, upscaler, options, decode)
    else:
        from superres.batch.ray_cluster import Cluster, upscale_on_cluster

        cluster = Cluster(ray, workers, checkpoint, device, engine)
        summary = upscale_on_cluster(jobs, upscaler, options, decode, cluster)
    for line in [*summary.reason_lines(), summary.line()]:
        say(line)
    raise typer.Exit(summary.exit_code)


@manifest_app.callback()
def manifests() -> None:
    """Work with the manifests of superres upscale."""


@manifest_app.command()
def merge(
    paths: Annotated[list[Path], typer.Argument(metavar="MANIFEST...", help="In the order of their shards.")],
    output: Annotated[Path, typer.Option(metavar="FILE", help="Where the merged manifest goes.")],
) -> None:
    """Join the manifests of all shards into one, a row an output, in the order in which one run would have them.

    Of several rows for one output, one that is ok counts. Exit code 1: some outputs failed.
    """
    from superres.batch.manifest import merge as merge_manifests

    counts = merge_manifests(paths, output)
    numbers = ", ".join(f"{counts[status]} {status}" for status in ("ok", "skipped", "failed"))
    echo(f"superres: {output}: {numbers}", err=True)
    raise typer.Exit(1 if counts["failed"] else 0)


@evaluate_app.callback()
def evaluate() -> None:
    """Score a checkpoint."""


@decoding_command(evaluate_app, FACES)
def images(
    context: typer.Context, data: Data, checkpoint: Checkpoint = DEFAULT_CHECKPOINT, split: Split = "valid",
    limit: Limit = None, samples: Draws = 1, batch_size: BatchSize = 16, device: Device = "auto",
    greedy: Greedy = True, sheet: Sheet = None, as_json: AsJson = False, engine: Engine = "auto",
) -> None:
    """Score decoding next to nearest, bicubic and greedy on the same images: quality, bits/dim, block size, speed."""
    decode = decode_config(context)
    refuse_idle_split(context, data)

    from superres.batch.image_files import encode_png
    from superres.evaluation.pictures import contact_sheet, evaluate_images, report_table
    from superres.evaluation.sampling import evaluate_samples, samples_table
    from superres.pipeline.options import check_samples
    from superres.system.output import prepare_folder, write_result
    from superres.tasks.faces import read_faces
    from superres.tasks.pictures import Picture

    check_samples(decode, samples)
    pairs = read_faces(data, cast(SplitName, split), limit)
    upscaler = load_upscaler(checkpoint, device, engine)
    decode = combined(DEFAULTS, given_options(context, decode), upscaler.model_config.prediction_heads)
    if sheet is not None:
        prepare_folder(sheet.parent, "--sheet")
    report, pictures = evaluate_images(pairs, upscaler, decode, batch_size, greedy)
    if samples > 1:
        report["sampling"] = evaluate_samples(pairs, upscaler, decode, samples, batch_size, pictures["blockwise"])
    if sheet is not None:
        columns = {"input": pictures.pop("nearest"), **pictures, "truth": pairs.hr}
        record = {"checkpoint": report["checkpoint"]}
        write_result(sheet, encode_png(Picture(contact_sheet(columns)), record), "--sheet")
    report["device"] = device
    if as_json:
        echo_json(report)
    else:
        echo(report_table(report), err=True)
        if samples > 1:
            echo(samples_table(report["sampling"]), err=True)


@app.command()
def tune(
    context: typer.Context, data: Data, checkpoint: Checkpoint = DEFAULT_CHECKPOINT, split: Split = "valid",
    limit: Limit = 64,
    min_psnr_to_greedy: MinPsnr = None, max_bits_loss: MaxBits = None, batch_size: BatchSize = 16,
    device: Device = "auto", save: Save = True, as_json: AsJson = False, engine: Engine = "auto",
) -> None:
    """Find the fastest decoding settings within a bound on quality, and make them the checkpoint's default.

    They hold for this machine's kind of device (cpu or cuda), and are the fastest for batches of the same size.
    """
    bound = QualityBound(min_psnr_to_greedy, max_bits_loss)
    refuse_idle_split(context, data)

    from superres.checkpoint import find_checkpoint
    from superres.evaluation.comparison import label
    from superres.evaluation.tuning import save_default
    from superres.evaluation.tuning import tune as search
    from superres.system.output import prepare_folder
    from superres.tasks.faces import read_faces

    pairs = read_faces(data, cast(SplitName, split), limit)
    folder = find_checkpoint(checkpoint)
    if save:
        prepare_folder(folder, "--checkpoint, or give --no-save")
    upscaler = load_upscaler(checkpoint, device, engine)
    report, table, fastest = search(pairs, upscaler, bound, batch_size)
    if save:
        save_default(folder, upscaler.device.type, fastest)
    report["device"] = upscaler.device.type
    report["saved"] = str(folder) if save else None
    if as_json:
        echo_json(report)
    else:
        echo(table, err=True)
        outcome = f"saved as its default on {upscaler.device.type} in {folder}" if save else "not saved"
        echo(f"superres: fastest for {report['checkpoint']}: {label(fastest)}; {outcome}", err=True)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors of the user's making become one line on standard error.

    Args:
        arguments: words after the program's name; those of the process by default.
    """
    if logging.lastResort is not None:  # prints what libraries warn of
        logging.lastResort.setFormatter(PrintableFormatter())
    try:
        words = sys.argv[1:] if arguments is None else list(arguments)
        with standard_output():
            code = app(args=words, prog_name="superres", standalone_mode=False)
    except USAGE_ERROR as error:
        return _refuse(f"{str(error.format_message()).rstrip('.')}; see superres --help")  # type: ignore[attr-defined]
    except StandardOutputError as error:
        return NOT_READ if isinstance(error.__cause__, BrokenPipeError) else _refuse(str(error), 1)
    except SuperresError as error:
        return _refuse(str(error))
    except UnicodeEncodeError as error:
        if not re.search("[\ud800-\udfff]", error.object):
            raise
        place = error.object[max(0, error.start - 20):error.end + 20]
        return _refuse(f"{place!r} holds bytes that are not UTF-8; give text in UTF-8")
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:  # newer releases of typer turn the interrupt into this code themselves
        _refuse("interrupted; what is finished is kept")
    return code if isinstance(code, int) else 0


def _refuse(message: str, code: int = 2) -> int:
    echo(f"superres: {one_line(message)}", err=True)
    return code


def main() -> None:
    """Run the command line of this process and exit."""
    sys.exit(run())
