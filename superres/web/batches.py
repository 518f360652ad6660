"""Many uploads at once, some of them zip files: read one by one, decoded in groups, each file with a row of its own."""

from __future__ import annotations

import dataclasses
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from superres.batch_record import resolve_options
from superres.config import DecodeConfig
from superres.decoding.trace import RowTrace
from superres.errors import InvalidInputError
from superres.manifest import Row
from superres.web.decoding import Decoder, StoppedError
from superres.web.files import Picture, Workspace
from superres.web.photos import file_name, read_upload, take
from superres.web.views import record_of

Pixels = npt.NDArray[np.uint8]

MAX_FILES = 100
"""Files of a batch, those inside zip files counted."""
MAX_MEMBER_BYTES = 10_000_000
"""Unpacked size of a file inside a zip file."""
GROUP_SIZE = 8
"""Images decoded together."""
_ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")
_UNPACKING_ERRORS = (zipfile.BadZipFile, zlib.error, OSError, RuntimeError, NotImplementedError, ValueError, EOFError)


@dataclass
class Progress:
    """How far a batch is.

    Attributes:
        total: files.
        done: images decoded, a group being decoded counted by its share.
        rows: one a file that is finished or failed.
        pictures: the results so far.
    """

    total: int
    done: float = 0.0
    rows: list[Row] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)

    @property
    def failed(self) -> list[Row]:
        """The rows of the files that could not be upscaled."""
        return [row for row in self.rows if row.status == "failed"]


@dataclass(frozen=True, eq=False)
class _Waiting:
    """A file that was read: its name, the name of its output, and uint8 [8, 8, 3]."""

    name: str
    output: str
    source: Pixels


def upscale_batch(
    decoder: Decoder, workspace: Workspace, uploads: Sequence[str], options: DecodeConfig,
) -> Iterator[Progress]:
    """Upscale uploads and yield the same progress whenever it has changed; a bad file costs its own row only.

    Args:
        decoder: what decodes.
        workspace: where the contents of zip files are unpacked, one at a time.
        uploads: paths of the uploads.
        options: decoding settings.

    Raises:
        InvalidInputError: there is no file, or there are too many.
        ConfigError: the settings do not fit the checkpoint.
        StoppedError: the server is about to stop.
    """
    options = resolve_options(options, decoder.upscaler)
    deadline = decoder.deadline()
    progress = Progress(count_files(uploads))
    waiting: list[_Waiting] = []
    for name, content in unpack(uploads, workspace):
        read = _read(name, content, {item.output for item in waiting})
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


def count_files(uploads: Sequence[str]) -> int:
    """Return the number of files, those in zip files counted, before any is read.

    Raises:
        InvalidInputError: there is none, or there are more than MAX_FILES.
    """
    total = sum(len(_members(Path(upload))) if _is_zip(Path(upload)) else 1 for upload in uploads)
    if not total:
        raise InvalidInputError("there is no file yet; upload images, or a zip file of images")
    if total > MAX_FILES:
        raise InvalidInputError(f"{total} files are too many at once; upload at most {MAX_FILES}, or use the command "
                                "superres upscale")
    return total


def unpack(uploads: Sequence[str], workspace: Workspace) -> Iterator[tuple[str, Path | str]]:
    """Yield each file's name and either its path, which holds until the next is asked for, or what is wrong with it."""
    for upload in map(Path, uploads):
        if not _is_zip(upload):
            yield file_name(upload.name), upload
            continue
        for member in _members(upload):
            unpacked = workspace.new_folder() / "member"  # never the name from inside the zip file
            try:
                with zipfile.ZipFile(upload) as archive, archive.open(member) as file:
                    content = file.read(MAX_MEMBER_BYTES + 1)
                unpacked.write_bytes(content[:MAX_MEMBER_BYTES])
                too_large = len(content) > MAX_MEMBER_BYTES
                yield file_name(member.filename), _TOO_LARGE if too_large else unpacked
            except _UNPACKING_ERRORS as error:
                reason = " ".join(str(error).split()) or type(error).__name__
                yield file_name(member.filename), f"cannot be unpacked ({reason}); pack it again without a password"
            finally:
                unpacked.unlink(missing_ok=True)
                unpacked.parent.rmdir()


_TOO_LARGE = f"is over {MAX_MEMBER_BYTES // 1_000_000} MB once unpacked; reduce it first"


def _is_zip(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) in _ZIP_STARTS
    except FileNotFoundError:
        return False  # deleted as too old: its own row says so


def _members(path: Path) -> list[zipfile.ZipInfo]:
    """Return the files in a zip file but for the metadata that macOS adds."""
    try:
        with zipfile.ZipFile(path) as archive:
            found = archive.infolist()
    except _UNPACKING_ERRORS as error:
        raise InvalidInputError(f"{file_name(path.name)} is a damaged zip file; pack it again") from error
    return [info for info in found if not info.is_dir() and not info.filename.startswith("__MACOSX/")]


def _read(name: str, content: Path | str, taken: set[str]) -> _Waiting | Row:
    """Read and reduce a file, or return the row that tells why not."""
    output = _output_name(name, taken)
    try:
        if isinstance(content, str):
            raise InvalidInputError(f"{name} {content}")
        return _Waiting(name, output, take(read_upload(content, name)).source)
    except InvalidInputError as error:
        return Row(name, output, "failed", str(error))


def _output_name(name: str, taken: set[str]) -> str:
    """Return the name of the output, with a number where that of another file is the same."""
    stem = "".join(letter if letter.isprintable() else "_" for letter in Path(name).stem)[:100]
    output, number = f"{stem}.png", 1
    while output in taken:
        number += 1
        output = f"{stem}-{number}.png"
    return output


def _decode(
    decoder: Decoder, group: Sequence[_Waiting], options: DecodeConfig, deadline: float, progress: Progress,
) -> Iterator[Progress]:
    """Decode a group into `progress`, and yield it with each frame."""
    before = progress.done
    sources = np.stack([item.source for item in group])
    for result in decoder.watch("batch", sources, options, 1, deadline):
        progress.done = before + float(result.filled.mean()) * len(group)
        if result.is_complete:
            seconds = result.seconds / len(group)
            for item, image, trace in zip(group, result.images, result.traces, strict=True):
                progress.pictures.append((item.output, image, record_of(decoder.upscaler, options, 1)))
                progress.rows.append(_row(decoder, item, options, trace, seconds))
        yield progress


def _row(decoder: Decoder, item: _Waiting, options: DecodeConfig, trace: RowTrace, seconds: float) -> Row:
    upscaler = decoder.upscaler
    return Row(item.name, item.output, "ok", None, trace.tokens, trace.iterations, trace.model_calls,
               trace.mean_accepted_block_size, seconds, f"{upscaler.name}@{upscaler.revision}", options.to_dict(),
               options.seed)


def manifest(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Return the rows as JSON objects, as `superres upscale --manifest` writes them."""
    return [dataclasses.asdict(row) for row in rows]
