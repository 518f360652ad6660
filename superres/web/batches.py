"""Upscale many uploads, also inside zip files: read them one by one, decode them in groups, report a row per file."""

from __future__ import annotations

import dataclasses
import io
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from superres.batch.manifest import Row
from superres.config import DecodeConfig
from superres.errors import InvalidInputError
from superres.pipeline.options import resolve_options
from superres.tasks.faces import FaceTask
from superres.tasks.pictures import Pixels
from superres.web.decoding import Decoder, StoppedError
from superres.web.files import NamedPicture
from superres.web.photos import file_name, reduce_picture, take
from superres.web.views import record_of

MAX_FILES = 100
"""Largest number of files in a batch, including files inside zip files."""
MAX_ENTRIES = 10 * MAX_FILES
"""Largest number of entries in a zip file, including folders and metadata."""
GROUP_SIZE = 8
"""Images decoded together."""
_UNPACKING_ERRORS = (zipfile.BadZipFile, zlib.error, OSError, RuntimeError, NotImplementedError, ValueError, EOFError)


@dataclass
class Budget:
    """What a batch may still read.

    Attributes:
        member_bytes: largest unpacked size of a file inside a zip file.
        bytes: bytes to unpack from zip files; negative after the file that exceeds them.
        pixels: pixels to read, which takes about half a minute; negative after the picture that exceeds them.
    """

    member_bytes: int = 10_000_000
    bytes: int = 200_000_000
    pixels: int = 600_000_000


@dataclass
class Progress:
    """The progress of a batch.

    Attributes:
        total: number of files.
        done: number of decoded images, with the decoded share of the current group.
        rows: one manifest row per file that is finished or has failed.
        pictures: the finished results.
    """

    total: int
    done: float = 0.0
    rows: list[Row] = field(default_factory=list)
    pictures: list[NamedPicture] = field(default_factory=list)

    @property
    def failed(self) -> list[Row]:
        """Rows of the files that could not be upscaled."""
        return [row for row in self.rows if row.status == "failed"]


@dataclass(frozen=True)
class File:
    """A file of a batch: its name without folders, that of its output, the upload, and its entry if that is a zip."""

    name: str
    output: str
    upload: Path
    member: zipfile.ZipInfo | None = None


def upscale_batch(
    decoder: Decoder, uploads: Sequence[str], options: DecodeConfig, budget: Budget | None = None,
) -> Iterator[Progress]:
    """Upscale uploads, and yield the updated progress after every change; a bad file gives a row with its error.

    Raises:
        InvalidInputError: there is no file, or there are too many files.
        ConfigError: the settings do not fit the checkpoint.
        StoppedError: the server is stopping.
    """
    options, budget = resolve_options(options, decoder.upscaler), budget or Budget()
    deadline, files = decoder.deadline(), find_files(uploads)
    progress, sources = Progress(len(files)), dict[File, Pixels]()
    try:
        for file in files:
            decoder.check_time(deadline)
            try:
                sources[file] = _read(file, budget, decoder.upscaler.face_task)
            except InvalidInputError as error:
                progress.rows.append(Row(file.name, file.output, "failed", str(error)))
            yield progress
        waiting = list(sources)
        for start in range(0, len(waiting), GROUP_SIZE):
            group = {file: sources[file] for file in waiting[start:start + GROUP_SIZE]}
            yield from _decode(decoder, group, options, deadline, progress)
    except StoppedError as error:
        if decoder.is_closing:
            raise
        finished = {row.output for row in progress.rows}
        progress.rows += [Row(file.name, file.output, "failed", str(error)) for file in files
                          if file.output not in finished]
    yield progress


def find_files(uploads: Sequence[str]) -> list[File]:
    """Return the files of the uploads and of their zip files, each with an output name of its own.

    Raises:
        InvalidInputError: there is no file, there are more than MAX_FILES, or a zip file is damaged.
    """
    files, taken = list[File](), set[str]()
    for upload in map(Path, uploads):
        for member in _members(upload) if zipfile.is_zipfile(upload) else [None]:
            name = file_name(upload.name if member is None else member.filename)
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
        raise InvalidInputError(f"{file_name(path.name)} is a damaged zip file; pack it again") from error
    if len(found) > MAX_ENTRIES:
        raise InvalidInputError(f"{file_name(path.name)} has {len(found)} entries, which are too many at once; upload "
                                f"at most {MAX_FILES} files, or use the command superres upscale")
    return [info for info in found if not info.is_dir() and not info.filename.startswith("__MACOSX/")]


def _output_name(name: str, taken: set[str]) -> str:
    """Return the name of the output, with a number if another file has this name."""
    stem = "".join(letter if letter.isprintable() else "_" for letter in Path(name).stem)[:100]
    output, number = f"{stem}.png", 1
    while output in taken:
        number += 1
        output = f"{stem}-{number}.png"
    return output


def _read(file: File, budget: Budget, task: FaceTask) -> Pixels:
    """Read and reduce a file to the network's input, uint8 [source, source, 3]."""
    if min(budget.pixels, budget.bytes) < 0:
        raise InvalidInputError(f"{file.name} is too much for one batch; upload it in another one")

    def reduced(image: Pixels) -> Pixels:
        budget.pixels -= image.shape[0] * image.shape[1]
        return take(image, task).source

    content = file.upload if file.member is None else _unpack(file, file.member, budget)
    return reduce_picture(content, reduced, task.source, file.name)


def _unpack(file: File, member: zipfile.ZipInfo, budget: Budget) -> io.BytesIO:
    """Return the content of a file inside a zip file, of at most `budget.member_bytes`."""
    most = budget.member_bytes
    try:
        with zipfile.ZipFile(file.upload) as archive, archive.open(member) as opened:
            content = opened.read(most + 1)
    except _UNPACKING_ERRORS as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        message = f"{file.name} cannot be unpacked ({reason}); pack it again without a password"
        raise InvalidInputError(message) from None
    budget.bytes -= len(content)
    if len(content) > most:
        raise InvalidInputError(f"{file.name} has over {most / 1e6:g} MB unpacked; reduce it first")
    return io.BytesIO(content)


def _decode(
    decoder: Decoder, group: dict[File, Pixels], options: DecodeConfig, deadline: float, progress: Progress,
) -> Iterator[Progress]:
    """Decode a group of sources into `progress`, and yield it after each frame."""
    before = progress.done
    checkpoint = f"{decoder.upscaler.name}@{decoder.upscaler.revision}"
    for frames in decoder.upscale("batch", np.stack(list(group.values())), {"": options}, deadline=deadline):
        result = frames[""]
        progress.done = before + float(result.filled.mean()) * len(group)
        if result.is_complete:
            seconds = result.seconds / len(group)
            for file, image, trace in zip(group, result.images, result.traces, strict=True):
                progress.pictures.append((file.output, image, record_of(decoder.upscaler, options, 1)))
                progress.rows.append(Row(
                    file.name, file.output, "ok", None, trace.tokens, trace.iterations, trace.model_calls,
                    trace.mean_accepted_block_size, seconds, checkpoint, options.to_dict(), options.seed))
        yield progress


def manifest(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Return the rows as JSON objects, as `superres upscale --manifest` writes them."""
    return [dataclasses.asdict(row) for row in rows]
