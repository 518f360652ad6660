"""The endpoint `/upscale`, by which programs upscale a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from superres.config import FACES
from superres.pictures.read import Picture
from superres.pictures.write import encode_png
from superres.pipeline.resolved_options import FINISHES, check_keep, resolve_options
from superres.pipeline.upscaled import Upscaled
from superres.tasks.crops import DEFAULT_CROP
from superres.tasks.faces import image_key
from superres.web import controls, crops, drawing
from superres.web.controls import Value
from superres.web.decoding import VisitorDecoding
from superres.web.files import new_folder, path_of


def endpoint(decoding: VisitorDecoding, settings: list[gr.components.Component]) -> None:
    """Add the endpoint `/upscale`, which streams pictures and a report to programs."""
    def upscale(
        image: Value, crop: str, start: float, samples: float, keep: str, finish: str,
        *values: Value,
    ) -> Iterator[tuple[list[str], dict[str, Any]]]:
        options = resolve_options(controls.options_of(decoding.upscaler.default, values),
                                  decoding.upscaler)
        task = decoding.upscaler.face_task.from_size(controls.whole_number("start", start))
        deadline = decoding.deadline()
        found = crops.reduce_picture(path_of(image),
                                     lambda pixels: crops.subjects(pixels, task, crop), task.source,
                                     deadline=deadline)
        subject = max(found, key=lambda one: 0 if one.crop is None else one.crop.size)
        squares = [one.crop.setting for one in found if one.crop is not None]
        upscaler = decoding.upscaler.from_size(len(subject.source))
        count = controls.whole_number("samples", samples, 1, controls.MAX_SAMPLES)
        check_keep(keep or None, count, finish)
        for frames in decoding.upscale("upscale", subject.source[None], {"": options}, count,
                                      deadline, judged=bool(keep), finish=finish):
            result = frames[""]
            if keep and result.is_complete:
                result = result.of_rows([0])
            yield (save_frame(result, lambda number: drawing.record_of(upscaler, options, number,
                                                                       finish)),
                   {**report_of(subject, result), "crops": squares})

    with gr.Row(visible=False):
        image = gr.Image(type="filepath", format="png", label="image")
        crop = gr.Textbox(DEFAULT_CROP, label="crop")
        start = gr.Number(decoding.upscaler.face_task.source, label="start")
        samples = gr.Number(1, label="samples")
        keep = gr.Textbox("", label="keep")
        finish = gr.Textbox(FINISHES[0], label="finish")
        files, report = gr.File(file_count="multiple", label="pictures"), gr.JSON(label="report")
        handler = controls.named(upscale, *controls.offered(decoding.upscaler.default, FACES))
        gr.Button("upscale").click(handler, [image, crop, start, samples, keep, finish, *settings],
                                   [files, report], api_name="upscale", **controls.QUEUED)


def save_frame(result: Upscaled, record_of: Callable[[int], dict[str, Any]]) -> list[str]:
    """Write the pictures of a frame, each with the record of its sample's number, and return their
    paths."""
    folder, paths = new_folder(), list[str]()
    for row, number in enumerate(drawing.numbers_of(result)):
        path, picture = folder / f"face-{number}.png", Picture(drawing.unfinished(result, row))
        path.write_bytes(encode_png(picture, record_of(number)))
        paths.append(str(path))
    return paths


def report_of(subject: crops.Subject, result: Upscaled) -> dict[str, Any]:
    """Return the report of a frame for programs, with one entry per sample."""
    samples = [{"sample": number, "key": image_key(subject.source, number),
                **drawing.counts_of(result.all_traces(row)),
                "stages": [drawing.counts_of([trace]) for trace in result.stage_traces(row)],
                **(drawing.scores(result.images[row], subject.truth) if result.is_complete else {}),
                **({"bits_per_dim": float(result.bits_per_dim[row])} if result.samples else {})}
               for row, number in enumerate(drawing.numbers_of(result))]
    return {"complete": result.is_complete, "seconds": result.seconds, "samples": samples}
