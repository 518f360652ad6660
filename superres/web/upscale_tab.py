"""The Upscale tab, which shows the decoding of a picture block by block."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np

from superres.config import DEFAULT_CASCADE, FACES, DecodeConfig
from superres.decoding.trace import mean_accepted_block_size
from superres.pictures.read import MAX_PIXELS, Pixels, read_image
from superres.pipeline.resolved_options import as_option, resolve_options, unused_settings
from superres.pipeline.upscaled import Upscaled
from superres.pipeline.upscaler import Upscaler
from superres.tasks.faces import FaceTask, enlarge
from superres.web import controls, crops, drawing
from superres.web.content import HOW, LIMITS, TEMPERATURE, introduction
from superres.web.controls import Value
from superres.web.decoding import Deadline, VisitorDecoding
from superres.web.drawing import caption_of, is_complete, numbers_of
from superres.web.faces import sampled
from superres.web.files import MAX_FILE_BYTES, path_of
from superres.web.finishing import LATEST, finished_face, question_of
from superres.web.paint import answer, paint_box, pixels_of
from superres.web.race import race_html
from superres.web.upscale_endpoint import endpoint

LARGEST = f"A photo may have {MAX_FILE_BYTES // 10**6} MB and {MAX_PIXELS // 10**6} megapixels."
HINT = ('<p class="sr-hint"><b>Show the steps</b> draws the face above again, step by step; '
        '<b>Race</b> also draws it with one pixel value per step, and <b>Draw samples</b> makes a '
        "sheet of faces that have the same colours.</p>")


def upscale_tab(decoding: VisitorDecoding, examples: Sequence[Path]) -> None:
    """Lay out the tab with its examples, of which the first one is chosen initially."""
    heads, task = decoding.upscaler.model_config.prediction_heads, decoding.upscaler.face_task
    gr.Markdown("## {}\n\n{}".format(*introduction(task)), elem_classes="sr-introduction")
    painted, upload, chosen = paint_box(decoding, examples)
    first = example_of(decoding, examples[0])
    with gr.Row(elem_classes="sr-columns"):
        with gr.Column(scale=2, min_width=300):
            square, start = crops.crop_controls(upload, chosen, examples[0], task)
        with gr.Column(scale=3, min_width=300):
            (run, race, draw, other), bar = controls.buttons_of(
                decoding, "", "results", "Show the steps", "Race", "Draw samples", "Other samples")
            results = gr.HTML(HINT, elem_id="results", padding=False)
            gr.HTML("<superres-kept></superres-kept>", padding=False)
    proof = race_html(decoding, None if first is None else first.truth)
    gr.HTML(f'<div class="sr-proof">{proof}{HOW.read_text(encoding="utf-8")}</div>',
            elem_id="how", padding=False)
    with gr.Accordion("Lab: decoding settings", open=False):
        settings = controls.decoding_controls(decoding.upscaler.default, heads)
        samples = gr.Slider(4, controls.MAX_SAMPLES, 9, step=1, label="Samples on a sheet",
                            info=f"Drawn at temperature {TEMPERATURE} if the temperature above is "
                            "0.")
    gr.Markdown(f"{LIMITS} {LARGEST}", elem_classes="sr-introduction")
    seed = settings[list(controls.offered(decoding.upscaler.default, FACES)).index("seed")]
    for button, is_race in ((run, False), (race, True)):
        controls.decode_on([button.click], functools.partial(upscale_for_page, decoding, is_race),
                           [upload, square, start, painted, *settings], [results], bar)
    next_seed = other.click(lambda value: (controls.whole_number("seed", value) + 1) % 2**63, seed,
                            seed, **controls.INSTANT)
    controls.decode_on([draw.click, next_seed.then],
                       functools.partial(sheet_for_page, decoding),
                       [upload, square, start, painted, samples, *settings], [results], bar)
    controls.note_changes(bar, [upload, square, start, painted, samples, *settings])
    answer("finish", functools.partial(finished_face, decoding))
    endpoint(decoding, settings)


def example_of(decoding: VisitorDecoding, path: Path) -> crops.Subject | None:
    """Return the input of the decoding's warm-up, with the truth if it is from the picture `path`;
    None without one."""
    if decoding.example is None or decoding.example.sources is None:
        return None
    source, task = decoding.example.sources[0], decoding.upscaler.face_task
    found = crops.subjects(read_image(path), task)
    return next((subject for subject in found if np.array_equal(subject.source, source)),
                crops.Subject(source))


def upscale_for_page(
    decoding: VisitorDecoding, is_race: bool, upload: Value, square: Value, start: Value,
    painted: Value, *settings: Value,
) -> Iterator[str]:
    """Upscale, in a race also one pixel value per step, and yield the page's HTML: the live view,
    then the results."""
    options = resolve_options(controls.options_of(decoding.upscaler.default, settings),
                              decoding.upscaler)
    variants = {"": options}
    if is_race:
        variants = {"One pixel value per step": options.sequential(), "In blocks": options}
    deadline = decoding.deadline()
    subject = subject_of(decoding.upscaler.face_task, upload, square, start, painted, deadline)
    asks = question_of(subject.source, options, list(settings))
    yield from views_of(decoding, "race" if is_race else "upscale", subject, variants, deadline,
                        asks=asks)


def sheet_for_page(
    decoding: VisitorDecoding, upload: Value, square: Value, start: Value, painted: Value,
    samples: float, *settings: Value,
) -> Iterator[str]:
    """Draw samples, and yield the HTML of the page: the live view, and at the end the sheet."""
    options = sampled(controls.options_of(decoding.upscaler.default, settings))
    variants = {"": resolve_options(options, decoding.upscaler)}
    deadline, count = decoding.deadline(), controls.whole_number("samples", samples, 1,
                                                                controls.MAX_SAMPLES)
    subject = subject_of(decoding.upscaler.face_task, upload, square, start, painted, deadline)
    yield from views_of(decoding, "samples", subject, variants, deadline, count)


def views_of(
    decoding: VisitorDecoding, purpose: str, subject: crops.Subject,
    variants: dict[str, DecodeConfig], deadline: Deadline, count: int = 1,
    asks: dict[str, Any] = {},  # noqa: B006 -- not changed
) -> Iterator[str]:
    """Decode `count` pictures with each variant, and yield their live view, and at the end the
    results.

    `asks` is that of `question_of`, for a face that can be finished.
    """
    options = list(variants.values())[-1]
    LATEST.note("")  # nobody waits for the finished face of an earlier decode
    for frames in decoding.upscale(purpose, subject.source[None], variants, count, deadline,
                                  judged=True):
        shown = results_html(decoding.upscaler, subject, options, frames,
                             asks) if is_complete(frames) else (
                                 frames_html(frames))
        yield f'<div class="sr-result">{shown}</div>'


def subject_of(
    task: FaceTask, upload: Value, square: Value, start: Value, painted: Value, deadline: Deadline,
) -> crops.Subject:
    """Return the input of a decoding: painted pixels, or that from an upload."""
    if painted:
        return crops.Subject(pixels_of(painted, task))
    return crops.reduce_picture(path_of(upload), functools.partial(crops.chosen, square, start,
                                                                   task), task.source,
                                deadline=deadline)


def frames_html(frames: Mapping[str, Upscaled]) -> str:
    """Return the partly decoded pictures of all variants with statistics: one large, a race of two,
    or a sheet."""
    count = sum(len(result.images) for result in frames.values())
    size = "large" if count == 1 else "" if len(frames) > 1 else "small"
    parts = []
    for name, result in frames.items():
        for row in range(len(result.images)):
            counts = drawing.counts_of(result.stage_traces(row))
            number = f" {row + 1}" if len(result.traces) > 1 else ""
            caption = (f"{name or 'Decoding'}{number}{stage_under_way(result)}: "
                       f"{math.floor(100 * result.share[row])} %")
            below = "" if number else drawing.statistics([
                ("steps", f"{counts['iterations']:,}"),
                ("pixel values per step", f"{counts['mean_accepted_block_size']:.1f}"),
                ("seconds", f"{result.seconds:.2f}")])
            parts.append(drawing.figure(drawing.unfinished(result, row), caption, caption,
                                        drawing.DRAWN, drawing.block_overlay(result, row), below,
                                        size))
    note = f'<p class="sr-hint">{drawing.race_note(frames)}</p>' if len(frames) > 1 else ""
    return note + drawing.figures(parts, "Live decoding")


def results_html(
    upscaler: Upscaler, subject: crops.Subject, options: DecodeConfig,
    frames: Mapping[str, Upscaled],
    asks: dict[str, Any] = {},  # noqa: B006 -- not changed
) -> str:
    """Return the results of the last variant, whose settings are `options`: the picture, and its
    details folded."""
    result, stage = list(frames.values())[-1], upscaler.from_size(len(subject.source))
    count, pictures = len(result.traces), pictures_html(subject, result)
    whose = " The details below are of the face as the model drew it." if asks else ""
    steps = drawing.fold("Step through it", per_stage(result, faces_stepper))
    folds = {
        "Where one can rely on it": drawing.reliability(result, names_of(result)[0]),
        "Where blocks were accepted": per_stage(result, blocks_html),
        "The same on the command line": command_html(upscaler, subject, options, result)}
    viewer, sheet = viewer_html(stage, subject, options, result, asks)
    return (f'{viewer}<div class="sr-details">{frames_html(frames) if len(frames) > 1 else ""}'
            f'<p class="sr-hint">{summary_of(result)}{whose}</p>{sheet}{steps}'
            f"{pictures if count == 1 else drawing.fold('Side by side, with scores', pictures)}"
            f'{"".join(drawing.fold(name, content) for name, content in folds.items())}</div>')


def summary_of(result: Upscaled) -> str:
    """Return how long a decode took, its steps, and how many one pixel value per step would take,
    all stages together.

    It speaks of pictures: a photo may show no face.
    """
    count, traces = len(result.traces), [trace for one in result.stages for trace in one.traces]
    values, steps = (sum(getattr(trace, name) for trace in traces) for name in ("tokens",
                                                                                "iterations"))
    drawn, each = ("One picture", "") if count == 1 else (f"{count} pictures", " for each")
    return (f"{drawn} in {result.seconds:.2f} seconds: {steps / count:,.0f} steps{each} instead of "
            f"{values // count:,}, {mean_accepted_block_size(traces):.1f} pixel values per step.")


def compared(subject: crops.Subject, result: Upscaled) -> Iterator[tuple[str, Pixels,
                                                                         dict[str, Any] | None]]:
    """Yield pictures by name: the input, its enlargement, of one face its earlier stages, the
    results, the truth.

    The third value is the record for `drawing.figure`.
    """
    stages = earlier_pictures(result, 0) if len(result.images) == 1 else []
    faces = zip(names_of(result), result.images, strict=True)
    for pictures, record in ((baselines(subject, result), None), ([*stages, *faces], drawing.DRAWN),
                             (truth_of(subject), None)):
        for name, image in pictures:
            yield name, image, record


def baselines(subject: crops.Subject, result: Upscaled) -> list[tuple[str, Pixels]]:
    """Return the input by name, and an enlargement without a network, both of the result's size."""
    names = (f"Input, {size_of(subject.source)}", "nearest"), ("Lanczos", "lanczos")
    return [(name, enlarge(subject.source[None], method, result.images.shape[1])[0]) for name,
            method in names]


def earlier_pictures(result: Upscaled, row: int) -> list[tuple[str, Pixels]]:
    """Return the pictures by name that the stages before the last one drew of a face, of the
    result's size."""
    return [(name, enlarge(stage.images[row:row + 1], "nearest", result.images.shape[1])[0])
            for name, stage in list(stages_of(result))[:-1]]


def truth_of(subject: crops.Subject) -> list[tuple[str, Pixels]]:
    """Return the truth by name, if there is one."""
    return [] if subject.truth is None else [("Truth", subject.truth)]


def names_of(result: Upscaled) -> list[str]:
    """Return the names of the pictures of a result."""
    if len(result.images) == 1:
        return [f"superres, {size_of(result.images[0])}"]
    return [f"Sample {number}" for number in numbers_of(result)]


def size_of(image: Pixels) -> str:
    """Return the size of a picture [H, W, C] in captions."""
    return f"{image.shape[1]}x{image.shape[0]}"


def pictures_html(subject: crops.Subject, result: Upscaled) -> str:
    """Return the pictures of `compared` with their scores."""
    note = "" if subject.truth is None else (
        '<p class="sr-hint">dB (PSNR) and SSIM compare each picture with the truth; higher is '
        "closer.</p>")
    return drawing.figures([
        drawing.figure(image,
                       caption_of(name, image, None if image is subject.truth else subject.truth),
                       name, record)
        for name, image, record in compared(subject, result)], "Side by side", "compared") + note


def stage_under_way(result: Upscaled) -> str:
    """Return which stage of a cascade is decoding, as part of a caption."""
    number = next((number for number, stage in enumerate(result.stages, 1)
                   if not stage.is_complete), 0)
    return (f", stage {number} of {len(result.stages)}" if number and result.earlier is not None
            else "")


def stages_of(result: Upscaled) -> Iterator[tuple[str, Upscaled]]:
    """Yield the name and the result of each stage."""
    for number, stage in enumerate(result.stages, 1):
        yield f"Stage {number} of {len(result.stages)}, {size_of(stage.images[0])}", stage


def per_stage(result: Upscaled, draw: Callable[[Upscaled], str]) -> str:
    """Return what `draw` makes of each stage, with a heading if there are several."""
    if result.earlier is None:
        return draw(result)
    return "".join(f"<h3>{name}</h3>{draw(stage)}" for name, stage in stages_of(result))


def viewer_html(
    upscaler: Upscaler, subject: crops.Subject, options: DecodeConfig, result: Upscaled,
    asks: dict[str, Any] = {},  # noqa: B006 -- not changed
) -> tuple[str, str]:
    """Return the element that compares a picture with others at a divider, and of several samples
    their mean, and a map of how much they differ."""
    faces, sheet = [], ""
    for row, (number, name, image) in enumerate(zip(numbers_of(result), names_of(result),
                                                    result.images, strict=True)):
        own = [*earlier_pictures(result, row), *drawing.veiled_picture(result, row)]
        faces.append({"name": name, "note": note_of(subject, result, row),
                      "made": made_by(options, number), "file": f"face-{number}.png",
                      "before": uris(own, drawing.DRAWN),
                      "uri": drawing.data_uri(image, drawing.record_of(upscaler, options, number))})
    before = uris([*baselines(subject, result), *truth_of(subject)], None)
    if len(faces) > 1:
        mean, spread, highest = drawing.mean_and_difference(result.images)
        before.append({"name": f"Mean of {len(faces)}", "uri": drawing.data_uri(mean)})
        sheet = drawing.figures([
            drawing.figure(mean, caption_of(f"Mean of {len(faces)}", mean, subject.truth),
                           "Mean of the samples"),
            drawing.figure(spread, "How much they differ (standard deviation)",
                           "Map of the differences",
                           below=drawing.legend("0", f"{highest:.0f} grey levels"))],
                                "Mean and differences")
    data = json.dumps({"before": before, "faces": faces, **asks}, separators=(",", ":"))
    return f'<superres-viewer data-view="{escape(data)}"></superres-viewer>', sheet


def made_by(options: DecodeConfig, number: int) -> str:
    """Return in a few words how the picture of a sample was made, for example "sample 3 of seed 1"
    or "epsilon 2"."""
    parts = [f"sample {number} of seed {options.seed}"] if options.is_sampling else []
    if options.sampling != "coupled":
        parts.append(options.sampling)
    elif options.block_size != 1 and not options.is_exact:
        rules = {"distance": f"epsilon {options.epsilon}", "top-k": f"top {options.top_k}"}
        parts.append(rules.get(options.accept, options.accept))
        parts += [f"blocks of at least {options.min_block}"] if options.min_block > 1 else []
    return ", ".join(parts) or "exact"


def note_of(subject: crops.Subject, result: Upscaled, row: int) -> str:
    """Return what is known of a picture: its scores if there is a truth, and of several samples its
    bits/dim."""
    scored = caption_of("", result.images[row], subject.truth)
    bits = f"{result.bits_per_dim[row]:.3f} bits per pixel value" if result.samples else ""
    return "; ".join(filter(None, (scored, bits)))


def uris(pictures: Iterable[tuple[str, Pixels]], record: dict[str, Any] | None) -> list[dict[str,
                                                                                             str]]:
    """Return named pictures for the page's scripts; see `drawing.data_uri` for `record`."""
    return [{"name": name, "uri": drawing.data_uri(image, record)} for name, image in pictures]


def faces_stepper(result: Upscaled) -> str:
    """Return the element that steps through finished pictures."""
    # pixels that are not decoded show the picture of the stage before, or the input
    if result.earlier is not None:
        below, seconds = (list(map(drawing.data_uri, result.earlier.images)),
                          result.seconds - result.earlier.seconds)
    else:
        inputs = [] if result.sources is None else [drawing.data_uri(source, None)
                                                    for source in result.sources]
        below, seconds = inputs or [""] * len(result.traces), result.seconds
    return drawing.stepper("face", [
        {"name": f"Sample {number}", "seconds": seconds, "below": uri,
         "parts": [{"accepted": trace.accepted, "proposed": drawing.proposals(trace)}]}
        for number, trace, uri in zip(numbers_of(result), result.traces, below, strict=True)],
        side=result.images.shape[2])


def blocks_html(result: Upscaled) -> str:
    """Return the heat map of the first picture, and the histogram over all pictures, of one
    stage."""
    block_size = max(trace.proposed.shape[1] for trace in result.traces)
    if block_size == 1:
        return '<p class="sr-hint">Every step accepted one pixel value.</p>'
    heat = drawing.figure(
        drawing.heat_map(result.images[0], result.traces[0], block_size),
        "Pixel values accepted in the step of each pixel", "Heat map over the face: pixel values "
        "accepted per step", below=drawing.legend("1", str(block_size)))
    return drawing.figures([heat, drawing.histogram(result.traces, block_size)], "Pixel values "
                           "accepted per step")


def command_html(upscaler: Upscaler, subject: crops.Subject, options: DecodeConfig,
                 result: Upscaled) -> str:
    """Return the command that gives the same pictures."""
    default = upscaler.default
    stages = upscaler.from_size(len(subject.source)).stages
    unused = list(unused_settings(options, upscaler.block_size(options), stages=stages))
    if options.block_size == upscaler.block_size(default):
        unused.append("block_size")
    parts = ["superres upscale face.png --output faces"]
    if upscaler.name != DEFAULT_CASCADE:
        parts.append(f"--checkpoint {upscaler.name}")
    if len(subject.source) != upscaler.face_task.source:
        parts.append(f"--start {len(subject.source)}")
    if subject.crop is not None:
        parts.append(f"--crop {subject.crop.setting}")
    if len(result.images) > 1:
        parts.append(f"--samples {len(result.images)}")
    for name in controls.offered(default, FACES):
        value = getattr(options, name)
        if value != getattr(default, name) and name not in unused:
            parts.append(as_option(name, ",".join(map(str, value)) if isinstance(value, tuple)
                                   else str(value)))
    return f'<pre class="sr-trace" tabindex="0">{escape(" ".join(parts))}</pre>'
