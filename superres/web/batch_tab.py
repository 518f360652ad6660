"""The Batch tab, which upscales many uploads, also inside zip files, and its endpoint
`/upscale_batch`.

It lists, names and records files as `superres upscale` does (`superres.batch`). They are read one
by one and decoded in groups, in turns with other visitors, and each has a row in the manifest.
"""

from __future__ import annotations

import base64
import functools
import itertools
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

import gradio as gr
import numpy as np

from superres.batch.archives import DAMAGED, list_members
from superres.batch.inputs import Input, damage_of, display_path, input_of, member_input
from superres.batch.opening import open_members
from superres.batch.record import Output, Request, RunSettings
from superres.batch.rows import Row
from superres.batch.run_options import MANIFEST, BatchOptions
from superres.config import FACES, portable_name, without_case
from superres.config.names import MOST_NAME
from superres.errors import InvalidInputError, SuperresError
from superres.pictures.read import MAX_PIXELS, Picture, Pixels
from superres.pipeline.resolved_options import FINISHES, resolve_options
from superres.system.folders import MEMBER, Tally
from superres.web import controls, drawing
from superres.web.controls import Value
from superres.web.crops import Subject, input_sizes, reduce_picture, start_control, subjects
from superres.web.decoding import Deadline, Decoder
from superres.web.files import MAX_FILE_BYTES, NOT_UPLOADED, new_folder, path_of
from superres.web.turns import StoppedError

MAX_FILES = 100  # in a batch, including files inside zip files
GROUP_SIZE = 8  # images decoded together
INTRODUCTION = f"""Many photos, or pictures of {{source}} pixels, become faces of {{target}}. A request may have
{MAX_FILES} files, zip files unpacked, of {MAX_FILE_BYTES // 10**6} MB and {MAX_PIXELS // 10**6} megapixels each. **The
detail is invented**: never use it to identify anyone."""


class File(NamedTuple):
    """A file of a batch, the upload that is it or holds it, and the name of its output."""

    entry: Input
    upload: str
    output: str


Waiting: TypeAlias = tuple[Request, Subject]
"""An output to be decoded, and what it is drawn from."""


@dataclass(frozen=True, eq=False)
class Finished:
    """A finished output, its input, and its picture, uint8 [target, target, 3]."""

    output: Output
    subject: Subject
    image: Pixels

    def html(self) -> str:
        """Return the result, beside it the crop of the photo, if it is large enough, and the input,
        and its file."""
        source, truth, name = self.subject.source, self.subject.truth, self.output.row.output
        crop = [] if truth is None else [drawing.figure(truth, "crop", f"Crop for {name}", None)]
        inputs = "".join([*crop, drawing.figure(source, "input", f"Input of {name}", None)])
        uri = "data:image/png;base64," + base64.b64encode(self.output.data or b"").decode("ascii")
        link = f'<a class="sr-download" download="{escape(name)}" href="{uri}">Download PNG</a>'
        result = drawing.figure(self.image, name, f"Upscaled {name}", below=f"<br>{link}")
        return ('<div class="sr-finished" role="group" '
                f'aria-label="{escape(name)}">{result}<div>{inputs}</div></div>')


@dataclass
class Batch:
    """The progress of a batch.

    Attributes:
        settings: what the rows and the pictures record.
        total: number of outputs, as far as it is known: of one per file, and one per further face.
        notes: one line per zip file of which something is left out.
        done: number of decoded images, with the decoded share of the current group.
        rows: one manifest row per output that is finished or has failed.
        pictures: the finished results.
        is_waiting: whether the first group has not had its turn at decoding.
    """

    settings: RunSettings
    total: int
    notes: list[str]
    done: float = 0.0
    rows: list[Row] = field(default_factory=list)
    pictures: list[Finished] = field(default_factory=list)
    is_waiting: bool = True

    def fail(self, entry: Input, output: str, reason: object) -> None:
        """Add the row of an output that cannot be made."""
        self.rows.append(self.settings.failed(entry, output, str(reason)).row)

    def manifest(self) -> list[dict[str, Any]]:
        """Return the rows as JSON objects, as `superres upscale --manifest` writes them."""
        return [asdict(row) for row in self.rows]

    def save(self) -> str | None:
        """Write the finished results and the manifest as a zip file, and return its path; None
        without results."""
        if not self.pictures:
            return None
        path = new_folder() / "superres-batch.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for one in self.pictures:
                archive.writestr(one.output.row.output, one.output.data or b"")
            archive.writestr(MANIFEST, b"".join(row.line() for row in self.rows))
        return str(path)


def batch_tab(decoder: Decoder) -> None:
    """Lay out the tab."""
    heads, task = decoder.upscaler.model_config.prediction_heads, decoder.upscaler.face_task
    gr.Markdown(INTRODUCTION.format(source=input_sizes(task), target=task.target_size),
                elem_classes="sr-introduction")
    with gr.Row(elem_classes="sr-columns"):
        with gr.Column(scale=2, min_width=300):
            files = gr.File(file_count="multiple", type="filepath", elem_id="files", height=180,
                            label=f"Images or zip files (at most {MAX_FILES})")
            start = start_control(task, "start-batch", len(task.starts) > 1)
            finish = gr.Dropdown(list(FINISHES), value=FINISHES[0], label="Finish", info="Make "
                                 "faces whole and crisp.", filterable=False)
            with gr.Accordion("Decoding settings", open=False):
                settings = controls.decoding_controls(decoder.upscaler.default, heads)
        with gr.Column(scale=3, min_width=300):
            (run,), bar = controls.buttons_of(decoder, "-batch", "batch", "Upscale all")
            state = gr.HTML('<p class="sr-hint">Every face that is found in a photo becomes a '
                            'picture; if ' "there is none, its central square does. If a file "
                            "cannot be read, the page names it and continues with the others.</p>",
                            elem_id="batch-state")
            with gr.Column(elem_id="batch"):
                archive = gr.File(label="Results and manifest, as a zip file", interactive=False,
                                  visible=controls.visibility(False), elem_id="archive")
                gallery = gr.HTML(elem_id="gallery")
    controls.decode_on([run.click], functools.partial(batch_for_page, decoder),
                       [files, start, finish, *settings], [gallery, archive, state], bar,
                       cleared=[state])
    controls.note_changes(bar, [files, start, finish, *settings])
    endpoint(decoder, settings)


def batch_for_page(
    decoder: Decoder, uploads: Value, start: Value, finish: Value, *settings: Value,
) -> Iterator[tuple[str, Any, Any]]:
    """Upscale uploads, and yield the gallery, the zip file and the progress for the page.

    The earlier gallery and its zip file stay until the first frame.
    """
    finished, path = -1, None
    for batch in upscale_batch(decoder, uploads, start, finish, settings):
        if batch.is_waiting:
            yield gr.skip(), gr.skip(), state_html(batch)
            continue
        gallery = gr.skip()
        if len(batch.rows) > finished:
            finished, path = len(batch.rows), batch.save()
            parts = "".join(one.html() for one in batch.pictures)
            gallery = f'<div class="sr-result sr-gallery">{parts}</div>' if parts else ""
        # The file is sent again each time: the page may have lost it in a fast sequence of updates.
        yield (gallery, gr.update(value=path, visible=controls.visibility(path is not None)),
               state_html(batch))


def state_html(batch: Batch) -> str:
    """Return the progress of a batch, and the errors of failed files."""
    errors = [row.error or "" for row in batch.rows if row.status == "failed"]
    items = "".join(f"<li>{escape(error)}</li>" for error in errors)
    notes = "".join(f'<p class="sr-hint">{escape(note)}</p>' for note in batch.notes)
    failures = (f'<p>Not upscaled: {len(errors)}</p><ul class="sr-bad">{items}</ul>' if errors
                else "")
    failed = f", {len(errors)} not upscaled" if errors else ""
    return (f'<label class="sr-progress">{len(batch.pictures)} of {batch.total} ready{failed} '
            f'<progress max="{batch.total}" '
            f'value="{batch.done + len(errors):.2f}"></progress></label>{failures}{notes}')


def endpoint(decoder: Decoder, settings: list[gr.components.Component]) -> None:
    """Add the endpoint `/upscale_batch`, which streams a zip file and the manifest's rows to
    programs."""
    def upscale_files(
        files: Value, start: Value, finish: Value, *values: Value,
    ) -> Iterator[tuple[str | None, dict[str, Any]]]:
        finished = -1
        for batch in upscale_batch(decoder, files, start, finish, values):
            if len(batch.rows) > finished:
                finished = len(batch.rows)
                yield batch.save(), {"total": batch.total, "finished": finished,
                                     "rows": batch.manifest()}

    with gr.Row(visible=False):
        files = gr.File(file_count="multiple", type="filepath", label="files")
        start = gr.Number(decoder.upscaler.face_task.source, label="start")
        finish = gr.Textbox(FINISHES[0], label="finish")
        archive, report = gr.File(label="zip"), gr.JSON(label="report")
        handler = controls.named(upscale_files, *controls.offered(decoder.upscaler.default, FACES))
        gr.Button("upscale_batch").click(handler, [files, start, finish, *settings],
                                         [archive, report], api_name="upscale_batch",
                                         **controls.QUEUED)


def upscale_batch(
    decoder: Decoder, uploads: Value, start: Value, finish: Value, settings: Sequence[Value],
) -> Iterator[Batch]:
    """Upscale a visitor's uploads, and yield the progress after every change; a bad file gives a
    row with its error.

    Photos are reduced to the side `start`, that of the input of one of the stages.

    Raises InvalidInputError without a file or for too many files, ConfigError if the settings do
    not fit the checkpoint, and StoppedError if the server is stopping.
    """
    how = BatchOptions("", finish=finish)
    options = resolve_options(controls.options_of(decoder.upscaler.default, settings),
                              decoder.upscaler, finish=finish)
    deadline, taken, notes = decoder.deadline(), set[str](), list[str]()
    files = find_files([path_of(upload) for upload in uploads or []], taken, notes)
    upscaler = decoder.upscaler.from_size(decoder.upscaler.face_task.from_size(start).source)
    batch = Batch(RunSettings.of(upscaler, options, how), len(files), notes)
    left, waiting = dict(enumerate(files)), list[Waiting]()
    try:
        for (turn, file), content in zip(enumerate(files), open_files(files), strict=True):
            decoder.check_time(deadline)
            try:
                waiting += _read(file, turn, content, batch, taken, deadline)
            except InvalidInputError as error:
                batch.fail(file.entry, file.output, error)
            del left[turn]
            yield batch
        # a cascade reads several sizes
        for shape in dict.fromkeys(subject.source.shape for _, subject in waiting):
            group = [one for one in waiting if one[1].source.shape == shape]
            for first in range(0, len(group), GROUP_SIZE):
                yield from _decode(decoder, group[first:first + GROUP_SIZE], deadline, batch)
    except StoppedError as error:
        if decoder.is_closing:
            raise
        made = {row.output for row in batch.rows}
        for entry, output in [*((request.entry, request.output) for request, _ in waiting),
                              *((file.entry, file.output) for file in left.values())]:
            if output not in made:
                batch.fail(entry, output, error)
    batch.is_waiting = False
    yield batch


def find_files(uploads: Sequence[str], taken: set[str], notes: list[str]) -> list[File]:
    """Return the files of the uploads and of their zip files, whose outputs' names join `taken`.

    What is left out of a zip file becomes a line of `notes`.
    """
    files = list[File]()
    for upload in uploads:
        for entry in _entries(upload, notes):
            files.append(File(entry, upload, unique_name(entry.name or Path(entry.input).stem,
                                                         taken)))
        if len(files) > MAX_FILES:
            raise InvalidInputError(f"{len(files)} files are too many at once; upload at most "
                                    f"{MAX_FILES}, or use the command superres upscale")
    if not files:
        raise InvalidInputError(f"{'; '.join(notes) or 'there is no file yet'}; upload images, or "
                                "a zip file of images")
    return files


def _entries(upload: str, notes: list[str]) -> Iterator[Input]:
    """Yield an upload as an input, or those of a zip file; their names and errors never have the
    server's paths."""
    label = Path(upload).name
    if not label.lower().endswith(".zip"):
        yield input_of(label, label, keep_tree=False)
        return
    tally = Tally(label, MEMBER)
    try:
        for number, name in list_members(upload, label, tally):
            yield member_input(label, label, name, number, keep_tree=False)
    except FileNotFoundError:
        yield Input(label, "", error=f"{label} {NOT_UPLOADED}")
    except DAMAGED as error:
        yield Input(label, "", error=damage_of(label, error))
    notes += [tally.line()] if tally.left_out else []


def open_files(files: Sequence[File]) -> Iterator[Any]:
    """Yield the content of each file, or the error why it cannot be read."""
    for (upload, archive), group in itertools.groupby(
        files, key=lambda file: (file.upload, file.entry.archive)
    ):
        entries = (file.entry for file in group)
        if archive is not None:
            yield from (content for _, content in open_members(archive, upload, entries,
                                                               MAX_FILE_BYTES))
        else:
            yield from (upload if entry.error is None else InvalidInputError(entry.error)
                        for entry in entries)


def unique_name(stem: str, taken: set[str]) -> str:
    """Return the name of an output that any system can unpack, without folders, and with a number
    if it is taken.

    It joins the names `taken`, in which case and the composition of accents do not count.
    """
    letters = stem.replace("\\", "/").rpartition("/")[2]
    printable = "".join(letter if letter.isprintable() else "_" for letter in letters)
    stem = portable_name(printable.encode()[:MOST_NAME].decode(errors="ignore"))
    for output in itertools.chain([f"{stem}.png"],
                                  (f"{stem}-{number}.png" for number in itertools.count(2))):
        if without_case(output) not in taken:
            break
    taken.add(without_case(output))
    return output


def _read(
    file: File, turn: int, content: str | IO[bytes] | SuperresError, batch: Batch, taken: set[str],
    deadline: Deadline,
) -> list[Waiting]:
    """Read a file, and return its outputs to be decoded, whose names join `taken`."""
    if isinstance(content, SuperresError):
        raise content
    entry, task, found = file.entry, batch.settings.task, list[Waiting]()
    for subject in reduce_picture(content, lambda image: subjects(image, task), task.source,
                                  display_path(entry.input, entry.archive), deadline):
        face = 0 if subject.crop is None else subject.crop.face
        output = unique_name(f"{entry.name}-face{face}", taken) if face else file.output
        crop = None if subject.crop is None else asdict(subject.crop)
        found.append((Request(turn, len(found), 1, entry, output, Picture(subject.source), crop),
                      subject))
    batch.total += len(found) - 1
    return found


def _decode(decoder: Decoder, group: Sequence[Waiting], deadline: Deadline,
            batch: Batch) -> Iterator[Batch]:
    """Decode a group of outputs into `batch`, and yield it after each frame."""
    sources, before = np.stack([subject.source for _, subject in group]), batch.done
    for frames in decoder.upscale("batch", sources, {"": batch.settings.decode}, deadline=deadline,
                                  finish=batch.settings.options.finish):
        result, batch.is_waiting = frames[""], False
        batch.done = before + float(result.share.mean()) * len(group)
        if result.is_complete:
            for row, ((request, subject), image) in enumerate(zip(group, result.images,
                                                                  strict=True)):
                output = batch.settings.drawn(request, image, result.all_traces(row),
                                              result.seconds / len(group))
                batch.pictures.append(Finished(output, subject, image))
                batch.rows.append(output.row)
        yield batch
