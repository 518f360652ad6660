"""Upscale many uploads, also inside zip files: read them one by one, decode them in groups, report a row per file."""

from __future__ import annotations

import dataclasses
import shutil
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
from superres.web.files import NamedPicture, Workspace
from superres.web.photos import file_name, reduce_upload, take
from superres.web.views import record_of

MAX_FILES = 100
"""Largest number of files in a batch, including files inside zip files."""
MAX_ENTRIES = 10 * MAX_FILES
"""Largest number of entries in a zip file, including folders and metadata."""
GROUP_SIZE = 8
"""Images decoded together."""
_ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")
_UNPACKING_ERRORS = (zipfile.BadZipFile, zlib.error, OSError, RuntimeError, NotImplementedError, ValueError, EOFError)


@dataclass(frozen=True)
class Limits:
    """Limits on the size of a batch.

    Attributes:
        member_bytes: largest unpacked size of a file inside a zip file.
        all_member_bytes: largest unpacked size of all files inside zip files.
        pixels: largest number of pixels before the last picture of a batch; reading them takes about half a minute.
    """

    member_bytes: int = 10_000_000
    all_member_bytes: int = 200_000_000
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


@dataclass(frozen=True, eq=False)
class _Item:
    """A file that is ready to decode: its name, the name of its output, and its source, uint8 [source, source, 3]."""

    name: str
    output: str
    source: Pixels


def upscale_batch(
    decoder: Decoder, workspace: Workspace, uploads: Sequence[str], options: DecodeConfig,
    limits: Limits = Limits(),
) -> Iterator[Progress]:
    """Upscale uploads, and yield the updated progress after every change; a bad file gives a row with its error.

    Args:
        decoder: decodes the batch.
        workspace: folder for the unpacked files of zip files.
        uploads: paths of the uploads.
        options: decoding settings.
        limits: limits on the size of the batch.

    Raises:
        InvalidInputError: there is no file, or there are too many files.
        ConfigError: the settings do not fit the checkpoint.
        StoppedError: the server is stopping.
    """
    options = resolve_options(options, decoder.upscaler)
    deadline = decoder.deadline()
    files = find_files(uploads)
    progress = Progress(len(files))
    waiting: list[_Item] = []
    budget = _Budget(limits, limits.all_member_bytes, limits.pixels)
    for number, file in enumerate(files):
        taken = {item.output for item in waiting}
        try:
            decoder.check_time(deadline)
        except StoppedError as error:
            if decoder.is_closing:
                raise
            progress.rows += [_failed(late.name, str(error), taken) for late in files[number:]]
            break
        read = _read(file, workspace, budget, taken, decoder.upscaler.face_task)
        if isinstance(read, Row):
            progress.rows.append(read)
        else:
            waiting.append(read)
        yield progress
    for start in range(0, len(waiting), GROUP_SIZE):
        group = waiting[start:start + GROUP_SIZE]
        try:
            yield from _decode(decoder, group, options, deadline, progress)
        except StoppedError as error:
            if decoder.is_closing:
                raise
            progress.rows += [Row(item.name, item.output, "failed", str(error)) for item in waiting[start:]]
            break
    yield progress


@dataclass(frozen=True)
class _File:
    """A file of a batch.

    Attributes:
        upload: path of the upload.
        member: the file's entry if the upload is a zip file; None otherwise.
    """

    upload: Path
    member: zipfile.ZipInfo | None = None

    @property
    def name(self) -> str:
        """Name of the file without folders."""
        return file_name(self.upload.name if self.member is None else self.member.filename)


@dataclass
class _Budget:
    """Remaining bytes from zip files and remaining pixels of a batch; negative once a limit is exceeded."""

    limits: Limits
    member_bytes: int
    pixels: int


def find_files(uploads: Sequence[str]) -> list[_File]:
    """Return the files of the uploads and of their zip files.

    Raises:
        InvalidInputError: there is no file, there are more than MAX_FILES, or a zip file is damaged.
    """
    files: list[_File] = []
    for upload in map(Path, uploads):
        files += [_File(upload, member) for member in _members(upload)] if _is_zip(upload) else [_File(upload)]
        if len(files) > MAX_FILES:
            raise InvalidInputError(f"{len(files)} files are too many at once; upload at most {MAX_FILES}, or use the "
                                    "command superres upscale")
    if not files:
        raise InvalidInputError("there is no file yet; upload images, or a zip file of images")
    return files


def _unpack(file: _File, member: zipfile.ZipInfo, folder: Path, budget: _Budget) -> Path:
    """Unpack a file of a zip file into `folder`, and return its path.

    Raises:
        InvalidInputError: the file cannot be unpacked, or is too large.
    """
    most = budget.limits.member_bytes
    try:
        with zipfile.ZipFile(file.upload) as archive, archive.open(member) as opened:
            content = opened.read(most + 1)
    except _UNPACKING_ERRORS as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        message = f"{file.name} cannot be unpacked ({reason}); pack it again without a password"
        raise InvalidInputError(message) from None
    budget.member_bytes -= len(content)
    if len(content) > most:
        raise InvalidInputError(f"{file.name} has over {most / 1e6:g} MB unpacked; reduce it first")
    path = folder / "member"  # not the name inside the zip file, which may contain folders
    path.write_bytes(content)
    return path


def _is_zip(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) in _ZIP_STARTS
    except (OSError, ValueError):
        return False  # deleted because of its age; reading it gives the error


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


def _read(file: _File, workspace: Workspace, budget: _Budget, taken: set[str], task: FaceTask) -> _Item | Row:
    """Read and reduce a file; return a row with the error if this fails."""
    if min(budget.pixels, budget.member_bytes) < 0:
        limits = budget.limits
        return _failed(file.name, f"{file.name} is too much for one batch; upload at most {limits.pixels / 1e6:g} "
                                  "megapixels at once, and in zip files at most "
                                  f"{limits.all_member_bytes / 1e6:g} MB", taken)
    folder = workspace.new_folder()
    try:
        path = file.upload if file.member is None else _unpack(file, file.member, folder, budget)
        source = reduce_upload(path, lambda image: _reduced(image, budget, task), task.source, file.name)
    except InvalidInputError as error:
        return _failed(file.name, str(error), taken)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return _Item(file.name, _output_name(file.name, taken), source)


def _reduced(image: Pixels, budget: _Budget, task: FaceTask) -> Pixels:
    budget.pixels -= image.shape[0] * image.shape[1]
    return take(image, task).source


def _failed(name: str, reason: str, taken: set[str]) -> Row:
    return Row(name, _output_name(name, taken), "failed", reason)


def _output_name(name: str, taken: set[str]) -> str:
    """Return the name of the output, with a number if another file has this name."""
    stem = "".join(letter if letter.isprintable() else "_" for letter in Path(name).stem)[:100]
    output, number = f"{stem}.png", 1
    while output in taken:
        number += 1
        output = f"{stem}-{number}.png"
    return output


def _decode(
    decoder: Decoder, group: Sequence[_Item], options: DecodeConfig, deadline: float, progress: Progress,
) -> Iterator[Progress]:
    """Decode a group into `progress`, and yield it after each frame."""
    before = progress.done
    checkpoint = f"{decoder.upscaler.name}@{decoder.upscaler.revision}"
    sources = np.stack([item.source for item in group])
    for frames in decoder.upscale("batch", sources, {"": options}, deadline=deadline):
        result = frames[""]
        progress.done = before + float(result.filled.mean()) * len(group)
        if result.is_complete:
            seconds = result.seconds / len(group)
            for item, image, trace in zip(group, result.images, result.traces, strict=True):
                progress.pictures.append((item.output, image, record_of(decoder.upscaler, options, 1)))
                progress.rows.append(Row(
                    item.name, item.output, "ok", None, trace.tokens, trace.iterations, trace.model_calls,
                    trace.mean_accepted_block_size, seconds, checkpoint, options.to_dict(), options.seed))
        yield progress


def manifest(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Return the rows as JSON objects, as `superres upscale --manifest` writes them."""
    return [dataclasses.asdict(row) for row in rows]
