"""The commands `superres evaluate images`, `superres evaluate text` and `superres calibrate`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer import Option

from superres.cli import options as opt
from superres.cli.translate import Languages, Sentences
from superres.config import (
    COVERAGE,
    DECODING,
    DEFAULT_CASCADE,
    DEFAULT_CHECKPOINT,
    DEFAULT_TRANSLATOR,
    FACES,
    LARGEST_ERROR,
    TRANSLATION,
    BeamConfig,
    Reliability,
    require_choice,
)
from superres.pipeline.resolved_options import SETTINGS, combined
from superres.system.progress import say
from superres.system.terminal import echo, echo_json
from superres.tasks.face_paths import SPLITS, is_celeba, require_faces
from superres.tasks.face_paths import Split as SplitName

if TYPE_CHECKING:
    from superres.pictures.read import Pixels

BEAM = BeamConfig()

Data = Annotated[Path, Option(metavar="PATH", help=opt.FACE_DATA)]
Pairs = Annotated[Path, Option(metavar="PATH", help=opt.TEXT_DATA)]
Split = Annotated[str, Option(metavar=opt.choices(SPLITS), help="Part of a CelebA root.")]
Limit = Annotated[int | None, Option(metavar="N", help="Score the first N inputs only. [default: "
                                     "all]")]
Samples = Annotated[int, Option(min=1, metavar="N", help="Samples per input; samples of the same "
                                "input are scored together.")]
Greedy = Annotated[bool, Option("--greedy/--no-greedy", help="Compare with greedy decoding, block "
                                "size 1.")]
LikelihoodOnly = Annotated[bool, Option("--likelihood-only", help="Score bits/dim and bytes per "
                                        "picture alone; decode nothing.")]
SamePerson = Annotated[bool, Option("--same-person", help="Score the share of pictures that a face "
                                    "recogniser takes for the person of the true picture, and for "
                                    "strangers (recognition extra).")]
Sheet = Annotated[Path | None, Option(metavar="FILE.png", help="Draw a contact sheet of the first "
                                      "images.")]
Beam = Annotated[int, Option(metavar="N", rich_help_panel=DECODING, help="Compare with beam search "
                             "of N hypotheses per sentence; 0 leaves it out.")]
Tolerance = Annotated[float, Option(metavar="LEVELS", help="Largest difference from the truth of a "
                                    "pixel that is right, in grey levels, as the mean over the "
                                    "colours.")]
Coverage = Annotated[float, Option(metavar="P", help="Share of the reliable pixels that are right, "
                                   "between 0 and 1.")]
SaveMask = Annotated[bool, Option("--save/--no-save", help="Save the result in the checkpoint's "
                                  "config.json.")]

evaluate_app = typer.Typer(help="Score a checkpoint.", rich_markup_mode=None)


@opt.decoding_command(evaluate_app, FACES)
def images(
    context: typer.Context, data: Data, checkpoint: opt.Checkpoint = DEFAULT_CHECKPOINT,
    split: Split = "valid", limit: Limit = None, samples: Samples = 1,
    batch_size: opt.BatchSize = 16, device: opt.Device = "auto", greedy: Greedy = True,
    same_person: SamePerson = False, likelihood_only: LikelihoodOnly = False, sheet: Sheet = None,
    as_json: opt.AsJson = False, engine: opt.Engine = "auto",
) -> None:
    """Score upscaling: quality, bits/dim, block size, speed.

    The report compares blockwise decoding with nearest-neighbour, bicubic and Lanczos enlargement
    and with greedy decoding.
    """
    decode = opt.decode_config(context)
    check_split(context, data)
    if likelihood_only:
        report_likelihood(context)
        return

    from superres.evaluation.images import evaluate_images, report_table
    from superres.evaluation.picture_scores import GREEDY
    from superres.evaluation.sample_scores import evaluate_samples, samples_table
    from superres.pipeline.resolved_options import check_samples
    from superres.system.output import prepare_folder
    from superres.tasks.face_data import read_faces

    check_samples(decode, samples)
    if sheet is not None:
        prepare_folder(sheet.parent, "--sheet")
    upscaler = opt.load_upscaler(checkpoint, device, engine)
    pairs = read_faces(data, upscaler.face_task, cast(SplitName, split), limit)
    network = upscaler.model_config
    default = dataclasses.replace(opt.DEFAULTS, consistent=network.consistent,
                                  nucleus=network.nucleus)
    decode = combined(default, opt.given_options(context, decode), network.prediction_heads,
                      stages=upscaler.stages)
    report, pictures = evaluate_images(pairs, upscaler, decode, batch_size, greedy, same_person)
    if samples > 1:
        report["sampling"] = evaluate_samples(pairs, upscaler, decode, samples, batch_size,
                                              pictures.get(GREEDY))
    if sheet is not None:
        columns = {"input": pictures.pop("nearest"), **pictures, "truth": pairs.hr}
        write_sheet(sheet, columns, {"checkpoint": report["checkpoint"]})
    tables = [report_table(report)] + ([samples_table(report["sampling"])] if samples > 1 else [])
    show({**report, "device": device}, "\n".join(tables), as_json)


def write_sheet(path: Path, columns: dict[str, Pixels], record: dict[str, str]) -> None:
    """Write a contact sheet of pictures, uint8 [N, H, W, 3] by the name of their column."""
    from superres.pictures.read import Picture
    from superres.pictures.write import encode_png
    from superres.system.output import write_result
    from superres.tasks.sheets import contact_sheet

    write_result(path, encode_png(Picture(contact_sheet(columns)), record), "--sheet")


def report_likelihood(context: typer.Context) -> None:
    """Run `superres evaluate images --likelihood-only`, which refuses options for decoding."""
    from superres.evaluation.images import bytes_text, evaluate_likelihood, likelihood_text
    from superres.tasks.face_data import read_faces

    given = context.params
    opt.refuse_ineffective(context, "with --likelihood-only, which decodes nothing; leave it out",
                           "samples", "greedy", "same_person", "sheet", "engine",
                           *(name for name in SETTINGS if name in given))
    # The engine computes decoding steps only, and `plain` needs no compiler.
    upscaler = opt.load_upscaler(given["checkpoint"], given["device"], "plain")
    pairs = read_faces(given["data"], upscaler.face_task, given["split"], given["limit"])
    report = {**evaluate_likelihood(pairs, upscaler, given["batch_size"]),
              "device": given["device"]}
    show(report, f"{report['images']} images, {report['checkpoint']}, batches of "
         f"{report['batch_size']}\n{likelihood_text(report)}\n{bytes_text(report)}",
         given["as_json"])


@opt.decoding_command(evaluate_app, TRANSLATION)
def text(
    context: typer.Context, data: Pairs, checkpoint: opt.Checkpoint = DEFAULT_TRANSLATOR,
    limit: Limit = None, greedy: Greedy = True, beam: Beam = BEAM.size,
    length_penalty: opt.LengthPenalty = BEAM.length_penalty, batch_size: Sentences = 1,
    device: opt.Device = "auto", languages: Languages = None, as_json: opt.AsJson = False,
    engine: opt.Engine = "auto",
) -> None:
    """Score translation: BLEU, chrF, block size, speed.

    The report compares blockwise decoding with greedy decoding and beam search.
    """
    decode = opt.decode_config(context)
    if not beam:
        opt.refuse_ineffective(context, "with --beam 0; leave it out, or give --beam 4",
                               "length_penalty")
    search = BeamConfig(beam, length_penalty) if beam else None

    from superres.evaluation.text import evaluate_text, report_lines
    from superres.tasks.translation import read_pairs

    opt.check_pairs(checkpoint, data)
    translator = opt.load_translator(checkpoint, device, languages, engine)
    decode = combined(opt.DEFAULTS, opt.given_options(context, decode),
                      translator.model_config.prediction_heads)
    pairs = read_pairs(data, translator.languages, limit)
    report = evaluate_text(pairs, translator, decode, batch_size, greedy, search)
    show({**report, "device": translator.device}, report_lines(report), as_json)


def calibrate(
    context: typer.Context, data: Data, checkpoint: opt.Checkpoint = DEFAULT_CASCADE,
    split: Split = "valid", limit: Limit = None, tolerance: Tolerance = LARGEST_ERROR,
    coverage: Coverage = COVERAGE, device: opt.Device = "auto", save: SaveMask = True,
    as_json: opt.AsJson = False, engine: opt.Engine = "auto",
) -> None:
    """Find the pixels of a face on which one can rely, by faces whose truth is known.

    They are those of which p1 is sure enough that most of them are close to the truth (conformal
    prediction). With the result saved in the checkpoint, sheets and the web demo show them. Faces
    must be others than those of the training, at least 36 for a coverage of 0.9.
    """
    check_split(context, data)
    Reliability(0.0, tolerance, coverage)  # refuses values out of range

    from superres.checkpoint import RELIABILITY, find_checkpoint, save_entries
    from superres.evaluation.reliability import calibrate_mask, mask_text
    from superres.system.output import prepare_folder
    from superres.tasks.face_data import read_faces

    folder = find_checkpoint(checkpoint)
    if save:
        prepare_folder(folder, "--checkpoint, or give --no-save")
    upscaler = opt.load_upscaler(checkpoint, device, engine)
    pairs = read_faces(data, upscaler.face_task, cast(SplitName, split), limit)
    found, report = calibrate_mask(upscaler, pairs, tolerance, coverage)
    if save:
        save_entries(folder, {RELIABILITY: found.to_dict()})
    saved = str(folder) if save else None
    show({**report, "device": upscaler.device, "saved": saved}, mask_text(report), as_json)
    if not as_json:
        say("not saved" if saved is None else f"saved in {folder}")


def show(report: dict[str, Any], text: str, as_json: bool) -> None:
    """Print a report as JSON on standard output, or its text on standard error."""
    echo_json(report) if as_json else echo(text, err=True)


def check_split(context: typer.Context, data: Path) -> None:
    """Raise an error if there is no data, or the option --split has an unknown name or was given
    without effect."""
    require_choice("--split", context.params["split"], SPLITS)
    require_faces(data)
    if not is_celeba(data):
        opt.refuse_ineffective(context, f"on {data}, which is not a CelebA root and has no splits; "
                               "leave it out", "split")
