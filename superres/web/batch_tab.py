"""The tab Batch, which upscales many files, and its endpoint `/upscale_batch`."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from html import escape
from typing import Any

import gradio as gr

from superres.config import FACES
from superres.web import controls, drawing
from superres.web.batches import MAX_FILES, Progress, manifest, upscale_batch
from superres.web.controls import Value
from superres.web.decoding import Decoder
from superres.web.files import MAX_FILE_BYTES, save_zip
from superres.web.photos import MAX_PIXELS

ZIP_NAME = "superres-batch.zip"
INTRODUCTION = f"""Many photos, or pictures of {{source}} pixels, become faces of {{target}}. A request may have
{MAX_FILES} files, zip files unpacked, of {MAX_FILE_BYTES // 10**6} MB and {MAX_PIXELS // 10**6} megapixels each. **The
detail is invented**: never use it to identify anyone."""
"""Text above the tab, with places for the sizes of input and output."""


def batch_tab(decoder: Decoder) -> None:
    """Lay out the tab."""
    heads, task = decoder.upscaler.model_config.prediction_heads, decoder.upscaler.face_task
    gr.Markdown(INTRODUCTION.format(source=task.source_size, target=task.target_size), elem_classes="sr-introduction")
    with gr.Row(elem_classes="sr-columns"):
        with gr.Column(scale=2, min_width=300):
            files = gr.File(file_count="multiple", type="filepath", elem_id="files", height=180,
                            label=f"Images or zip files (at most {MAX_FILES})")
            with gr.Accordion("Decoding settings", open=False):
                settings = controls.decoding_controls(decoder.upscaler.default, heads)
        with gr.Column(scale=3, min_width=300):
            (run,), stop = controls.buttons_of("-batch", "Upscale all")
            state = gr.HTML('<p class="sr-hint">Photos are cropped at their largest face, or to their central square '
                            "if no face is found. If a file cannot be read, the page names it and continues with the "
                            "others.</p>", elem_id="batch-state")
            archive = gr.File(label="Results and manifest, as a zip file", interactive=False, visible=False,
                              elem_id="archive")
            gallery = gr.HTML(elem_id="gallery")
    controls.decode_on([run.click], functools.partial(batch_for_page, decoder), [files, *settings], gallery,
                       [state, gallery, archive], stop)
    controls.note_changes(gallery, [files, *settings])
    endpoint(decoder, settings)


def batch_for_page(decoder: Decoder, uploads: Value, *settings: Value) -> Iterator[tuple[str, Any, Any]]:
    """Upscale uploads, and yield the progress, the gallery and the zip file for the page."""
    finished = -1
    yield '<p class="sr-hint">Reading the files ...</p>', "", gr.update(value=None, visible=False)
    paths = [controls.path_of(upload) for upload in uploads or []]
    options = controls.options_of(decoder.upscaler.default, settings)
    for progress in upscale_batch(decoder, paths, options):
        if len(progress.rows) == finished:
            yield state_html(progress), gr.skip(), gr.skip()
        else:
            finished = len(progress.rows)
            path = save(progress)
            yield state_html(progress), gallery_html(progress), gr.update(value=path, visible=path is not None)


def save(progress: Progress) -> str | None:
    """Write the finished results as a zip file, and return its path; None without results."""
    return save_zip(ZIP_NAME, progress.pictures, manifest(progress.rows)) if progress.pictures else None


def state_html(progress: Progress) -> str:
    """Return the progress of a batch, and the errors of failed files."""
    ready = len(progress.pictures)
    bad = "".join(f"<li>{escape(row.error or '')}</li>" for row in progress.failed)
    failures = f'<p>Not upscaled: {len(progress.failed)}</p><ul class="sr-bad">{bad}</ul>' if bad else ""
    value = progress.done + len(progress.failed)
    return (f'<label class="sr-progress">{ready} of {progress.total} ready '
            f'<progress max="{progress.total}" value="{value:.2f}"></progress></label>{failures}')


def gallery_html(progress: Progress) -> str:
    """Return the finished results side by side."""
    parts = [drawing.figure(image, name, f"Upscaled {name}") for name, image, _ in progress.pictures]
    return f'<div class="sr-result">{drawing.figures(parts, "Results")}</div>' if parts else ""


def endpoint(decoder: Decoder, settings: list[gr.components.Component]) -> None:
    """Add the endpoint `/upscale_batch`, which streams a zip file and the manifest's rows to programs."""

    def upscale_files(files: Value, *values: Value) -> Iterator[tuple[str | None, dict[str, Any]]]:
        options = controls.options_of(decoder.upscaler.default, values)
        finished = -1
        for progress in upscale_batch(decoder, [controls.path_of(file) for file in files or []], options):
            if len(progress.rows) > finished:
                finished = len(progress.rows)
                report = {"total": progress.total, "finished": finished, "rows": manifest(progress.rows)}
                yield save(progress), report

    with gr.Row(visible=False):
        files = gr.File(file_count="multiple", type="filepath", label="files")
        archive, report = gr.File(label="zip"), gr.JSON(label="report")
        handler = controls.named(upscale_files, *controls.offered(decoder.upscaler.default, FACES))
        gr.Button("upscale_batch").click(handler, [files, *settings], [archive, report], api_name="upscale_batch",
                                         **controls.QUEUED)
