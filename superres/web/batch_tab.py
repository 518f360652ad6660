"""The Batch tab, which upscales many uploads, also inside zip files, and its endpoint `/upscale_batch`.

The files are read one by one and decoded in groups, and each file has a row in the manifest.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np

from superres.batch.rows import Row
from superres.config import FACES, DecodeConfig
from superres.errors import InvalidInputError
from superres.pipeline.options import resolve_options
from superres.tasks.faces import FaceTask
from superres.tasks.image_files import encode_png
from superres.tasks.pictures import MAX_PIXELS, Picture, Pixels
from superres.web import controls, drawing
from superres.web.controls import Value
from superres.web.decoding import Deadline, Decoder
from superres.web.files import MAX_FILE_BYTES, new_folder, path_of
from superres.web.photos import Subject, input_sizes, reduce_picture, start_control, subjects
from superres.web.turns import StoppedError

MAX_FILES = 100  # in a batch, including files inside zip files
MAX_ENTRIES = 10 * MAX_FILES  # in a zip file, including folders and metadata
MAX_MEMBER_BYTES = 10_000_000  # of a file inside a zip file, unpacked
MAX_BATCH_BYTES = 200_000_000  # unpacked from the zip files of a batch
MAX_BATCH_PIXELS = 600_000_000  # read for a batch, which takes about half a minute
GROUP_SIZE = 8  # images decoded together
_UNPACKING_ERRORS = (zipfile.BadZipFile, zlib.error, OSError, RuntimeError, NotImplementedError, ValueError, EOFError)
INTRODUCTION = f"""Many photos, or pictures of {{source}} pixels, become faces of {{target}}. A request may have
{MAX_FILES} files, zip files unpacked, of {MAX_FILE_BYTES // 10**6} MB and {MAX_PIXELS // 10**6} megapixels each. **The
detail is invented**: never use it to identify anyone."""


@dataclass(frozen=True)
class File:
    """A file of a batch: its name without folders, that of its output, the upload, and its entry if that is a zip."""

    name: str
    output: str
    upload: Path
    member: zipfile.ZipInfo | None = None


@dataclass(frozen=True, eq=False)
class Result:
    """An output to be decoded: a face of a file, its name, and its input."""

    file: File
    output: str
    subject: Subject


@dataclass(frozen=True, eq=False)
class Finished:
    """A finished output: its name, its input, its picture, uint8 [target, target, 3], and the picture's metadata."""

    output: str
    subject: Subject
    image: Pixels
    record: dict[str, Any]

    def html(self) -> str:
        """Return the crop of the photo, if it is large enough, the input and the result, side by side."""
        source, truth = self.subject.source, self.subject.truth
        crop = [] if truth is None else [drawing.figure(truth, "crop", f"Crop for {self.output}", None)]
        return drawing.figures([*crop, drawing.figure(source, "input", f"Input of {self.output}", None),
                                drawing.figure(self.image, self.output, f"Upscaled {self.output}")], self.output)


@dataclass
class Batch:
    """The progress of a batch.

    Attributes:
        total: number of outputs, as far as it is known: of one per file, and one per further face.
        bytes_left: bytes that may still be unpacked; negative after the file that exceeds them. So is `pixels_left`.
        done: number of decoded images, with the decoded share of the current group.
        rows: one manifest row per output that is finished or has failed.
        pictures: the finished results.
    """

    total: int
    bytes_left: int
    pixels_left: int
    done: float = 0.0
    rows: list[Row] = field(default_factory=list)
    pictures: list[Finished] = field(default_factory=list)

    def fail(self, file: File, reason: object, output: str | None = None) -> None:
        """Add the row of a file, or of one of its outputs, that cannot be upscaled."""
        self.rows.append(Row(file.name, output or file.output, "failed", str(reason)))

    def manifest(self) -> list[dict[str, Any]]:
        """Return the rows as JSON objects, as `superres upscale --manifest` writes them."""
        return [dataclasses.asdict(row) for row in self.rows]

    def save(self) -> str | None:
        """Write the finished results and the manifest as a zip file, and return its path; None without results."""
        if not self.pictures:
            return None
        path = new_folder() / "superres-batch.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for one in self.pictures:
                archive.writestr(one.output, encode_png(Picture(one.image), one.record))
            archive.writestr("manifest.jsonl", "".join(json.dumps(row) + "\n" for row in self.manifest()))
        return str(path)


def batch_tab(decoder: Decoder) -> None:
    """Lay out the tab."""
    heads, task = decoder.upscaler.model_config.prediction_heads, decoder.upscaler.face_task
    gr.Markdown(INTRODUCTION.format(source=input_sizes(task), target=task.target_size), elem_classes="sr-introduction")
    with gr.Row(elem_classes="sr-columns"):
        with gr.Column(scale=2, min_width=300):
            files = gr.File(file_count="multiple", type="filepath", elem_id="files", height=180,
                            label=f"Images or zip files (at most {MAX_FILES})")
            start = start_control(task, "start-batch", len(task.starts) > 1)
            with gr.Accordion("Decoding settings", open=False):
                settings = controls.decoding_controls(decoder.upscaler.default, heads)
        with gr.Column(scale=3, min_width=300):
            (run,), stop = controls.buttons_of("-batch", "Upscale all")
            state = gr.HTML('<p class="sr-hint">Every face that is found in a photo becomes a picture; if '
                            "there is none, its central square does. If a file cannot be read, the page names it and "
                            "continues with the others.</p>", elem_id="batch-state")
            archive = gr.File(label="Results and manifest, as a zip file", interactive=False,
                              visible=controls.visibility(False), elem_id="archive")
            gallery = gr.HTML(elem_id="gallery")
    controls.decode_on([run.click], functools.partial(batch_for_page, decoder), [files, start, *settings], gallery,
                       [state, gallery, archive], stop)
    controls.note_changes(gallery, [files, start, *settings])
    endpoint(decoder, settings)


def batch_for_page(decoder: Decoder, uploads: Value, start: Value, *settings: Value) -> Iterator[tuple[str, Any, Any]]:
    """Upscale uploads, and yield the progress, the gallery and the zip file for the page."""
    yield '<p class="sr-hint">Reading the files ...</p>', "", gr.update(value=None, visible=controls.visibility(False))
    finished, path = -1, None
    for batch in upscale_batch(decoder, uploads, start, settings):
        if len(batch.rows) == finished:
            # The file is sent again: the page may have lost it in a fast sequence of updates.
            yield state_html(batch), gr.skip(), gr.update(
                value=path, visible=controls.visibility(path is not None))
            continue
        finished, path = len(batch.rows), batch.save()
        parts = "".join(one.html() for one in batch.pictures)
        gallery = f'<div class="sr-result sr-gallery">{parts}</div>' if parts else ""
        yield state_html(batch), gallery, gr.update(
            value=path, visible=controls.visibility(path is not None))


def state_html(batch: Batch) -> str:
    """Return the progress of a batch, and the errors of failed files."""
    errors = [row.error or "" for row in batch.rows if row.status == "failed"]
    items = "".join(f"<li>{escape(error)}</li>" for error in errors)
    failures = f'<p>Not upscaled: {len(errors)}</p><ul class="sr-bad">{items}</ul>' if errors else ""
    failed = f", {len(errors)} not upscaled" if errors else ""
    return (f'<label class="sr-progress">{len(batch.pictures)} of {batch.total} ready{failed} <progress '
            f'max="{batch.total}" '
            f'value="{batch.done + len(errors):.2f}"></progress></label>{failures}')


def endpoint(decoder: Decoder, settings: list[gr.components.Component]) -> None:
    """Add the endpoint `/upscale_batch`, which streams a zip file and the manifest's rows to programs."""
    def upscale_files(files: Value, start: Value, *values: Value) -> Iterator[tuple[str | None, dict[str, Any]]]:
        finished = -1
        for batch in upscale_batch(decoder, files, start, values):
            if len(batch.rows) > finished:
                finished = len(batch.rows)
                yield batch.save(), {"total": batch.total, "finished": finished, "rows": batch.manifest()}

    with gr.Row(visible=False):
        files = gr.File(file_count="multiple", type="filepath", label="files")
        start = gr.Number(decoder.upscaler.face_task.source, label="start")
        archive, report = gr.File(label="zip"), gr.JSON(label="report")
        handler = controls.named(upscale_files, *controls.offered(decoder.upscaler.default, FACES))
        gr.Button("upscale_batch").click(handler, [files, start, *settings], [archive, report],
                                         api_name="upscale_batch", **controls.QUEUED)


def upscale_batch(decoder: Decoder, uploads: Value, start: Value, settings: Sequence[Value]) -> Iterator[Batch]:
    """Upscale a visitor's uploads, and yield the progress after every change; a bad file gives a row with its error.

    Photos are reduced to the side `start`, that of the input of one of the stages.

    Raises InvalidInputError without a file or for too many files, ConfigError if the settings do not fit the
    checkpoint, and StoppedError if the server is stopping.
    """
    options = resolve_options(controls.options_of(decoder.upscaler.default, settings), decoder.upscaler)
    task = decoder.upscaler.face_task.from_size(start)
    deadline, files = decoder.deadline(), find_files([path_of(upload) for upload in uploads or []])
    batch, results = Batch(len(files), MAX_BATCH_BYTES, MAX_BATCH_PIXELS), list[Result]()
    taken = {file.output for file in files}
    try:
        for file in files:
            decoder.check_time(deadline)
            try:
                results += _read(file, batch, task, taken, deadline)
            except InvalidInputError as error:
                batch.fail(file, error)
            yield batch
        for shape in dict.fromkeys(one.subject.source.shape for one in results):  # a cascade reads several sizes
            waiting = [one for one in results if one.subject.source.shape == shape]
            for start in range(0, len(waiting), GROUP_SIZE):
                yield from _decode(decoder, waiting[start:start + GROUP_SIZE], options, deadline, batch)
    except StoppedError as error:
        if decoder.is_closing:
            raise
        outputs = {one.output: one.file for one in results}
        read = set(outputs.values())
        outputs |= {file.output: file for file in files if file not in read}
        for output in outputs.keys() - {row.output for row in batch.rows}:
            batch.fail(outputs[output], error, output)
    yield batch


def find_files(uploads: Sequence[str]) -> list[File]:
    """Return the files of the uploads and of their zip files, each with an output name of its own."""
    files, taken = list[File](), set[str]()
    for upload in map(Path, uploads):
        for member in _members(upload) if zipfile.is_zipfile(upload) else [None]:
            # A path in a zip file may have slashes or backslashes.
            name = Path((upload.name if member is None else member.filename).replace("\\", "/")).name or "unnamed"
            files.append(File(name, _output_name(name, taken), upload, member))
            taken.add(files[-1].output)
        if len(files) > MAX_FILES:
            raise InvalidInputError(f"{len(files)} files are too many at once; upload at most {MAX_FILES}, or use the "
                                    "command superres upscale")
    if not files:
        raise InvalidInputError("there is no file yet; upload images, or a zip file of images")
    return files


def _members(path: Path) -> list[zipfile.ZipInfo]:
    """Return the files in a zip file, without the metadata that macOS adds."""
    try:
        with zipfile.ZipFile(path) as archive:
            found = archive.infolist()
    except _UNPACKING_ERRORS as error:
        raise InvalidInputError(f"{path.name} is a damaged zip file; pack it again") from error
    if len(found) > MAX_ENTRIES:
        raise InvalidInputError(f"{path.name} has {len(found)} entries, which are too many at once; upload at most "
                                f"{MAX_FILES} files, or use the command superres upscale")
    return [info for info in found if not info.is_dir() and not info.filename.startswith("__MACOSX/")]


def _output_name(name: str, taken: set[str], face: int = 0) -> str:
    """Return the name of the output of a face, 0 for the only one, with a number if another output has this name."""
    stem = "".join(letter if letter.isprintable() else "_" for letter in Path(name).stem)[:100]
    stem += f"-face{face}" if face else ""
    output, number = f"{stem}.png", 1
    while output in taken:
        number += 1
        output = f"{stem}-{number}.png"
    return output


def _read(file: File, batch: Batch, task: FaceTask, taken: set[str], deadline: Deadline) -> list[Result]:
    """Read a file, unpacked if it is in a zip file, and return its outputs to be decoded, whose names join `taken`."""
    if min(batch.pixels_left, batch.bytes_left) < 0:
        raise InvalidInputError(f"{file.name} is too much for one batch; upload it in another one")
    opened: Path | io.BytesIO = file.upload
    if file.member is not None:
        try:
            with zipfile.ZipFile(file.upload) as archive, archive.open(file.member) as packed:
                content = packed.read(MAX_MEMBER_BYTES + 1)
        except _UNPACKING_ERRORS as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            message = f"{file.name} cannot be unpacked ({reason}); pack it again without a password"
            raise InvalidInputError(message) from None
        batch.bytes_left -= len(content)
        if len(content) > MAX_MEMBER_BYTES:
            raise InvalidInputError(f"{file.name} has over {MAX_MEMBER_BYTES / 1e6:g} MB unpacked; reduce it first")
        opened = io.BytesIO(content)

    def reduced(image: Pixels) -> list[Subject]:
        batch.pixels_left -= image.shape[0] * image.shape[1]
        return subjects(image, task)

    results = []
    for subject in reduce_picture(opened, reduced, task.source, file.name, deadline):
        face = 0 if subject.crop is None else subject.crop.face
        results.append(Result(file, _output_name(file.name, taken, face) if face else file.output, subject))
        taken.add(results[-1].output)
    batch.total += len(results) - 1
    return results


def _decode(
    decoder: Decoder, group: Sequence[Result], options: DecodeConfig, deadline: Deadline, batch: Batch,
) -> Iterator[Batch]:
    """Decode a group of outputs into `batch`, and yield it after each frame."""
    sources = np.stack([one.subject.source for one in group])
    before, upscaler = batch.done, decoder.upscaler.from_size(sources.shape[1])
    for frames in decoder.upscale("batch", sources, {"": options}, deadline=deadline):
        result = frames[""]
        batch.done = before + float(result.share.mean()) * len(group)
        if result.is_complete:
            for row, (one, image) in enumerate(zip(group, result.images, strict=True)):
                counts, crop = drawing.counts_of(result.stage_traces(row)), one.subject.crop
                batch.pictures.append(Finished(one.output, one.subject, image,
                                               drawing.record_of(upscaler, options, 1)))
                batch.rows.append(Row(
                    one.file.name, one.output, "ok", None, **counts, seconds=result.seconds / len(group),
                    checkpoint=f"{upscaler.name}@{upscaler.revision}", config=options.to_dict(), seed=options.seed,
                    crop=None if crop is None else dataclasses.asdict(crop)))
        yield batch
