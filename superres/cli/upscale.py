"""The commands `superres upscale` and `superres manifest`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from superres.batch.run_options import (
    KEEP_ALPHA,
    LAYOUTS,
    LOCAL_ROWS,
    MOST_ROWS,
    ON_EXISTING,
    ROWS,
    SOURCES,
    SUFFIXES,
    BatchOptions,
    parse_batch_size,
    parse_shard,
)
from superres.cli import options as opt
from superres.config import DEFAULT_CASCADE, require
from superres.pipeline.resolved_options import FINISHES, KEEPS, as_option, check_samples, combined
from superres.system.paths import HERE
from superres.system.places import known_place, open_place
from superres.system.progress import say
from superres.system.signals import will_keep
from superres.system.terminal import echo
from superres.tasks.crops import CROPS, DEFAULT_CROP

# formats that pack pictures into shards
SHARDS = tuple(layout for layout in LAYOUTS if LAYOUTS[layout])
FEW = 20
"""Largest number of input files whose results are written to the current folder."""
Inputs = Annotated[list[str], Argument(metavar="INPUT", help="Images, folders of images, archives "
                                       "(.zip, .tar, .tar.gz, .npz, .parquet ...), and patterns "
                                       "such as 'photos/**/*.jpg'; paths or URLs (s3://, gs://, "
                                       "az://, hf://, https://; cloud extra).")]
InputList = Annotated[str | None, Option("--list", metavar="FILE", rich_help_panel=opt.FILES,
                                         help="Read more inputs from FILE, one per line; '-' reads "
                                         "standard input.")]
Allow = Annotated[list[str], Option("--allow", metavar="URL", rich_help_panel=opt.FILES,
                                    help="Let --list name inputs at this scheme and host, such as "
                                    "s3://faces; repeatable. Places of the other "
                                    "arguments are allowed.")]
Output = Annotated[str | None, Option("--output", "-o", metavar="DIR", help="Folder for the "
                                      "results, DIR/<name of the input>.png, or its URL. [default: "
                                      "the current folder, as <name>-superres.png, "
                                      f"for up to {FEW} files]")]
Format = Annotated[str, Option("--format", metavar=opt.choices([*SUFFIXES, *SHARDS]),
                               help="Format of the results; webdataset and parquet pack PNG "
                               "pictures into shards.")]
Rows = Annotated[int | None, Option(metavar="N", rich_help_panel=opt.FILES, help="Inputs per part "
                                    "of the run, which is finished as a whole, and per shard, 1 to "
                                    f"{MOST_ROWS}. [default: {LOCAL_ROWS} in a folder; {ROWS} at a "
                                    "URL or in shards]")]
Verify = Annotated[bool, Option("--verify", rich_help_panel=opt.FILES, help="Compare the SHA-256 "
                                "of results that exist with the manifest, not only their sizes.")]
Suffix = Annotated[str, Option(metavar="TEXT", rich_help_panel=opt.FILES, help="Text added to the "
                               "name of each result, before its file extension.")]
KeepTree = Annotated[bool, Option("--keep-tree", rich_help_panel=opt.FILES, help="Repeat the "
                                  "inputs' sub-folders in the output folder.")]
Alpha = Annotated[str, Option(metavar="keep|COLOUR", help="Keep transparency, or put COLOUR behind "
                              "it.")]
Images = Annotated[str, Option(metavar="N", rich_help_panel=opt.FILES, help="Images decoded "
                               "together, 1 or more; auto chooses a useful number that fits into "
                               "memory.")]
RayAddress = Annotated[str | None, Option(metavar="ADDRESS", rich_help_panel=opt.FILES,
                                          help="Decode on a Ray cluster (ray extra): its address, "
                                          "auto for a cluster that runs on this machine, or local "
                                          "to start one here.")]
Workers = Annotated[int | None, Option(metavar="N", rich_help_panel=opt.FILES, help="Ray actors, "
                                       "each with a copy of the model. [default: one per GPU, or "
                                       "one per two CPUs]")]
Size = Annotated[int | None, Option(metavar="PIXELS", help="Side of the results, for a checkpoint "
                                    "of several stages. [default: that of its last stage]")]
Start = Annotated[int | None, Option(metavar="PIXELS", help="Side to which inputs are reduced, for "
                                     "a checkpoint of several stages: that of a later stage's "
                                     "input keeps more of what a photo shows. [default: that of "
                                     "its first stage]")]
Samples = Annotated[int, Option(metavar="N", help="Pictures per input, named <name>-1.png and so "
                                "on if N is above 1; N above 1 needs a temperature above 0.")]
Keep = Annotated[str | None, Option(metavar=opt.choices(KEEPS), help="Draw all samples, and write "
                                    "only the one that the model finds likeliest, as <name>.png; "
                                    "the manifest has its number and bits/dim. Judging a sample "
                                    "takes about twice as long as drawing it. [default: all "
                                    "samples]")]
Finish = Annotated[str, Option(metavar=opt.choices(FINISHES), help="Make faces whole and crisp "
                               "after decoding: mean averages the exact pictures of the input and "
                               "of its mirrored copy, sharp three samples at temperature 0.7; both "
                               "then sharpen the result. It still reduces to exactly the input. "
                               "mean takes 1.5 times as long as none, sharp 2.2 times.")]
Recursive = Annotated[bool, Option("--recursive", rich_help_panel=opt.FILES, help="Include the "
                                   "sub-folders of input folders.")]
Source = Annotated[str, Option(metavar=opt.choices(SOURCES), help="lowres uses inputs that have "
                               "the size of the model's input; photo crops and reduces them; auto "
                               "decides by their size.")]
Crop = Annotated[str, Option(metavar=f"[{CROPS}]", help="Square of a photo to use: face makes one "
                             "output per face that is found, and takes the centre if there is "
                             "none; X,Y,SIZE are pixels from the top left corner, and TURN turns "
                             "the square clockwise by degrees. The model sees it reduced to its "
                             "input's few pixels.")]
OnExisting = Annotated[str, Option(metavar=opt.choices(ON_EXISTING), rich_help_panel=opt.FILES,
                                   show_default=False, help="What to do with an output that "
                                   "exists; error fails its input. [default: skip; "
                                   "error without --output]")]
Sheet = Annotated[bool, Option("--sheet", help="Make each result a sheet, <name>-sheet.png: the "
                               "input, its Lanczos enlargement and the result, side by side and "
                               "enlarged; and where one can rely on it, if superres calibrate has "
                               "found that for the checkpoint.")]
Shard = Annotated[str, Option(metavar="I/N", rich_help_panel=opt.FILES, help="Do only every N-th "
                              "part of the run, from part I on, I from 0 to N-1.")]
Manifest = Annotated[Path | None, Option(metavar="FILE", rich_help_panel=opt.FILES,
                                         help="Manifest, one JSON line per output; a later run "
                                         "continues from it. [default: DIR/manifest.jsonl; at a "
                                         "URL or in shards, one beside each part]")]
Manifests = Annotated[list[str], Argument(metavar="MANIFEST", help="Manifests in the order of "
                                          "their shards; or folders (URLs that end with /) with "
                                          "manifests of parts.")]
Merged = Annotated[str, Option(metavar="FILE", help="File for the merged manifest.")]

OneManifest = Annotated[str, Argument(metavar="MANIFEST", help="Manifest of a run, or merged from "
                                      "its shards; or the folder (URL that ends with /) with "
                                      "manifests of parts.")]

manifest_app = typer.Typer(help="Work with manifests of superres upscale.", rich_markup_mode=None)


def upscale(
    context: typer.Context, inputs: Inputs = [], output: Output = None,  # noqa: B006 -- typer wants a list
    checkpoint: opt.Checkpoint = DEFAULT_CASCADE, source: Source = "auto",
    crop: Crop = DEFAULT_CROP, size: Size = None, start: Start = None, samples: Samples = 1,
    keep: Keep = None, finish: Finish = FINISHES[0], sheet: Sheet = False,
    format_name: Format = "png", alpha: Alpha = "white",
    device: opt.Device = "auto", listed: InputList = None, recursive: Recursive = False,
    keep_tree: KeepTree = False, suffix: Suffix = "", on_existing: OnExisting = "skip",
    manifest: Manifest = None, batch_size: Images = "auto", shard: Shard = "0/1",
    ray: RayAddress = None, workers: Workers = None, engine: opt.Engine = "auto",
    rows: Rows = None, verify: Verify = False,
    allow: Allow = [],  # noqa: B006 -- typer wants a list
) -> None:
    """Upscale images of faces: one PNG file per input, or <name>-face1.png and so on if it shows
    several faces.

    If `superres tune` has saved default decoding settings for the checkpoint, decoding options that
    you do not give use them. The same command continues an interrupted run: outputs that the
    manifest records as complete are kept.

    Exit code 0: all inputs succeeded; 1: some failed, and the others are done; 2: wrong usage,
    nothing was decoded.
    """
    # The options, and what they may not be together.
    decode = opt.decode_config(context)
    if is_few := output is None and manifest is None:
        require_few(inputs, listed)
        suffix = suffix or "-superres"
        if not opt.is_given(context, "on_existing"):
            on_existing = "error"  # without a manifest, nothing says how an output was made
    is_shard = format_name in SHARDS
    options = BatchOptions(
        output or "", layout=format_name if is_shard else "files", rows=rows,
        batch_size=parse_batch_size(batch_size), samples=samples, keep=keep, source=source,
        recursive=recursive, on_existing=on_existing, shard=parse_shard(shard), manifest=manifest,
        format="png" if is_shard else format_name, suffix=suffix, keep_tree=keep_tree, alpha=alpha,
        crop=crop, sheet=sheet, verify=verify, finish=finish)
    check_given(context, inputs, listed, workers)
    check_place(context, output, options)
    check_samples(decode, samples, finish)
    # What is wrong with the inputs is said before the checkpoint is loaded.
    if is_few:
        from superres.batch.direct import list_few, upscale_few
        from superres.pictures.untrusted import READER

        entries = list_few(inputs, options)
        READER.start()  # which takes about as long as loading the checkpoint
    else:
        from superres.batch.cluster import Cluster
        from superres.batch.parts import Plan
        from superres.batch.run import upscale as upscale_all

        plan = Plan(options, inputs, listed, allowed_hosts(inputs, output, listed, allow))
    upscaler = opt.load_upscaler(checkpoint, device, engine, size, start)
    decode = combined(upscaler.default, opt.given_options(context, decode),
                      upscaler.model_config.prediction_heads, stages=upscaler.stages)
    # The work, and its summary.
    if is_few:
        will_keep("finished results are kept, and the same command with --on-existing skip makes "
                  "the others")
        counts = upscale_few(entries, options, upscaler, decode)
    else:
        again = "--on-existing redo" if on_existing == "overwrite" else "the same command"
        will_keep(f"finished results are kept, and {again} continues")
        cluster = None if ray is None else Cluster(ray, workers, checkpoint, device, engine)
        counts = upscale_all(plan, upscaler, decode, None if cluster is None else cluster.decode)
    repeated = counts.failed > len(counts.reasons)  # otherwise the line of each failure has said it
    for line in [*(counts.reason_lines() if repeated else []), counts.line()]:
        say(line)
    raise typer.Exit(counts.exit_code)


def check_place(context: typer.Context, output: str | None, options: BatchOptions) -> None:
    """Raise an error if the place of the outputs cannot be written, or an option has no effect
    there."""
    if output is None:
        require(options.layout == "files", f"--format {options.layout} needs a folder or a URL; "
                "give --output")
        if options.manifest is None:
            opt.refuse_ineffective(context, "without --output, where each of a few results is "
                                   "written by itself; leave it out, or give --output", "rows",
                                   "shard", "ray", "verify")
    else:
        open_place(output, writing=True).check_folder()
    if options.in_parts:
        opt.refuse_ineffective(context, "in a store or with shards, since each part has its "
                               "manifest beside it; leave it out", "manifest")


def allowed_hosts(inputs: Sequence[str], output: str | None, listed: str | None,
                  allow: Sequence[str]) -> frozenset[tuple[str, str]]:
    """Return the schemes and hosts that the command line names; a list from elsewhere must not name
    local paths."""
    hosts = {open_place(text).host for text in inputs}
    origin = open_place(listed or "").host
    for text in allow:
        require(open_place(text).host != HERE,
                f"--allow must be a URL such as s3://faces, not {text!r}")
    return frozenset({*hosts, origin, *(open_place(text).host for text in [*allow, output or ""]
                                        if open_place(text).host != HERE)})


def check_given(context: typer.Context, inputs: Sequence[str], listed: str | None,
                workers: int | None) -> None:
    """Raise ConfigError if there is no input, or an option has no effect beside the others."""
    require(bool(inputs) or listed is not None, "Missing argument 'INPUT...'; give images, "
            "folders, archives or --list")
    require(workers is None or workers >= 1, f"--workers must be at least 1, not {workers}")
    if context.params["ray"] is None:
        opt.refuse_ineffective(context, "without --ray, since one process decodes alone; leave it "
                               "out, or give --ray", "workers")
    if context.params["source"] == "lowres":
        opt.refuse_ineffective(context, "with --source lowres, which takes images of the model's "
                               "input size only; leave it out, or give --source auto", "crop")
    if context.params["sheet"] and context.params["alpha"] == KEEP_ALPHA:
        opt.refuse_ineffective(context, "with --sheet, which shows opaque pictures; leave it out",
                               "alpha")


def require_few(inputs: Sequence[str], listed: str | None) -> None:
    """Raise ConfigError unless all inputs are files, at most FEW, whose results may go to the
    current folder.

    A file that is missing among others is left to the run, which names it and continues.
    """
    found = {name: known_place(name).is_file() for name in inputs}
    missing = [name for name, is_file in found.items() if is_file is None]
    require(not missing or len(missing) < len(inputs), f"{', '.join(missing[:3])}: no such file; "
            "check the name")
    require(listed is None and len(inputs) <= FEW and False not in found.values(),
            f"folders, patterns, lists and more than {FEW} files need a folder for their results; "
            "give --output DIR")


@manifest_app.command(cls=opt.HelpfulCommand)
def merge(paths: Manifests, output: Merged) -> None:
    """Merge the manifests of all shards into one.

    The merged manifest has the manifests' rows one after another, one per output. If an output has
    several rows, a row with status ok is kept. Exit code 1: some outputs failed.
    """
    from superres.batch.rows import merge as merge_manifests

    counts = merge_manifests(paths, output)
    numbers = ", ".join(f"{counts[status]} {status}" for status in ("ok", "skipped", "failed"))
    say(f"{output}: {numbers}")
    raise typer.Exit(1 if counts["failed"] else 0)


@manifest_app.command(cls=opt.HelpfulCommand)
def summary(path: OneManifest) -> None:
    """Count the outputs of a manifest, with their speed, settings and reasons of failures.

    Exit code 1: some outputs failed.
    """
    from superres.batch.record import Summary
    from superres.batch.rows import latest_rows

    counts, made, usual = Summary(), Counter[str](), opt.DEFAULTS.to_dict()
    for row in latest_rows(path):
        counts.add(row)
        counts.seconds += row.seconds or 0.0
        if row.checkpoint is not None and row.status == "ok":
            changed = {name: value for name, value in (row.config or {}).items() if usual.get(name)
                       != value}
            changed |= {name: value for name in ("finish", "engine")
                        if (value := (row.options or {}).get(name))}
            made[" ".join([row.checkpoint,
                           *(as_option(name, str(value)) for name, value in changed.items())])] += 1
    for line in [counts.line(),
                 *(f"{count} by {settings}" for settings, count in made.most_common()),
                 *counts.reason_lines()]:
        echo(line)
    raise typer.Exit(counts.exit_code)
