"""The command `superres tune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer import Option

from superres.cli import options as opt
from superres.cli.benchmark import Busy
from superres.cli.evaluate import Split, check_split, show
from superres.config import DEFAULT_CHECKPOINT, QualityBound, require
from superres.system.progress import say
from superres.system.terminal import echo
from superres.tasks.face_paths import Split as SplitName

if TYPE_CHECKING:
    from superres.pipeline.pipeline import Pipeline

Data = Annotated[Path | None, Option(metavar="PATH", help="Search the fastest settings, too, on a "
                                     "prepared .npz, a folder of images, a CelebA root, or "
                                     "parallel text PATH.en and PATH.de.")]
Limit = Annotated[int, Option(metavar="N", help="Search on the first N inputs only.")]
MinPsnr = Annotated[float | None, Option(metavar="DB", help="Bound: smallest PSNR to the greedy "
                                         "images, in dB (try 40).")]
MaxBits = Annotated[float | None, Option(metavar="BITS", help="Bound: largest increase in bits/dim "
                                         "under p1 over the greedy images.")]
Save = Annotated[Path | None, Option("--save", metavar="DIR", help="Write a copy of the checkpoint "
                                     "with the results, or update that copy. [default: the "
                                     "checkpoint itself]")]
NoSave = Annotated[bool, Option("--no-save", help="Only print the results.")]


def tune(
    context: typer.Context, data: Data = None, checkpoint: opt.Checkpoint = DEFAULT_CHECKPOINT,
    split: Split = "valid", limit: Limit = 64, min_psnr_to_greedy: MinPsnr = None,
    max_bits_loss: MaxBits = None, batch_size: opt.BatchSize = 16, device: opt.Device = "auto",
    save: Save = None, no_save: NoSave = False, busy: Busy = False, as_json: opt.AsJson = False,
    engine: opt.Engine = "auto",
) -> None:
    """Record what decoding costs on this class of processors, and find the fastest settings.

    The costs of a step by block size and batch size, for one engine, decide adaptive block sizes,
    as of the default. They are measured in less than a minute per stage, on an idle machine. With
    --data, the fastest settings within a quality bound become the checkpoint's default for this
    machine's kind of device (cpu or cuda), for the given batch size, and the coefficients of
    adaptive block sizes are fitted to the same images or sentences. For text, acceptance is exact,
    so there is no bound.
    """
    is_text = _checked(context)

    from superres.checkpoint import find_checkpoint
    from superres.evaluation.recording import costs_table, record_costs, stages_of
    from superres.evaluation.timing import require_idle
    from superres.evaluation.tuning import save_costs_of, tuned_folder

    folder = find_checkpoint(checkpoint)
    target = None if no_save else tuned_folder(folder, folder if save is None else save)
    if not busy:
        require_idle()
    pipeline: Pipeline = (opt.load_translator if is_text else opt.load_upscaler)(
        str(folder), device, engine=engine
    )
    records = {stage.name: record_costs(stage) for stage in stages_of(pipeline)}
    if target is not None:
        save_costs_of(pipeline.engine, pipeline.scoring.variant, target, [*records.values()])
    report: dict[str, Any] = {"engine": pipeline.engine, "variant": pipeline.scoring.variant,
                              "costs": {name: record.to_dict() for name, record in records.items()},
                              "device": pipeline.device,
                              "saved": None if target is None else str(target)}
    if not as_json:
        echo(costs_table(records), err=True)
    if data is not None:
        report |= _search(context, pipeline, is_text, target)
    if as_json:
        show(report, "", as_json)
    else:
        say(f"{pipeline.engine} on {report['variant']}: "
            f"{'not saved' if target is None else f'saved in {target}'}")


def _checked(context: typer.Context) -> bool:
    """Check the options, before anything is loaded, and return whether the checkpoint is for
    text."""
    given = context.params
    data, checkpoint = given["data"], given["checkpoint"]
    require(given["save"] is None or not given["no_save"], "--save DIR and --no-save contradict "
            "each other; give one")
    if data is None:
        opt.refuse_ineffective(context, "without --data, the images or sentences to search on; add "
                               "it, or leave it out", "split", "limit", "min_psnr_to_greedy",
                               "max_bits_loss", "batch_size")
        return _is_text(checkpoint)
    bounded = any(opt.is_given(context, name) for name in ("min_psnr_to_greedy", "max_bits_loss"))
    if not bounded and _is_text(checkpoint):
        opt.refuse_ineffective(context, "on text; leave it out", "split")
        opt.check_pairs(checkpoint, data)
        return True
    QualityBound(given["min_psnr_to_greedy"], given["max_bits_loss"])
    check_split(context, data)
    return False


def _is_text(checkpoint: str) -> bool:
    if checkpoint == DEFAULT_CHECKPOINT:  # saves torch's import
        return False

    from superres.pipeline.auto import checkpoint_task
    from superres.tasks import translation

    return checkpoint_task(checkpoint) == translation.name


def _search(
    context: typer.Context, pipeline: Any, is_text: bool, target: Path | None,  # noqa: ANN401
) -> dict[str, Any]:
    """Calibrate and search on the data, show what is the fastest, save it in `target`, if given,
    and return the report."""
    from superres.evaluation.calibration import calibrate_faces, calibrate_text, confidence_line
    from superres.evaluation.tuning import label, save_default, tune_faces, tune_text
    from superres.tasks.face_data import read_faces
    from superres.tasks.translation import read_pairs

    given = context.params
    if is_text:
        sentences = read_pairs(given["data"], pipeline.languages, given["limit"])
        confidence, calibration = calibrate_text(pipeline, sentences)
        report, table, fastest = tune_text(sentences, pipeline, given["batch_size"])
    else:
        bound = QualityBound(given["min_psnr_to_greedy"], given["max_bits_loss"])
        pairs = read_faces(given["data"], pipeline.face_task, cast(SplitName, given["split"]),
                           given["limit"])
        confidence, calibration = calibrate_faces(pipeline, pairs)
        report, table, fastest = tune_faces(pairs, pipeline, bound, given["batch_size"])
    if target is not None:
        save_default(target, pipeline.device, fastest, confidence)
    if not given["as_json"]:
        lines = [table, *([] if calibration is None else [confidence_line(calibration)]),
                 f"fastest for {report['checkpoint']}: {label(fastest)}"]
        echo("\n".join(lines), err=True)
    return {**report, "confidence": calibration}
