"""What results have in common: files written in one move, numbers, tables and plots. Nothing here is slow to import."""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from superres.errors import OutputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path`, which holds all of it or is left as it was, even if the process is killed.

    Raises:
        OSError: the file cannot be written; no temporary file is left.
    """
    temporary = path.parent / f".superres-{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_result(path: Path, data: bytes, option: str = "--output") -> None:
    """Write `data` to `path` in one move; `option` is what the user can change if this fails.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        write_atomically(path, data)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; choose another {option}") from error


def prepare_folder(folder: Path, option: str = "--output") -> None:
    """Make `folder` and try it with a small file, so that a run does not decode what it cannot keep.

    Args:
        folder: the folder to write to later.
        option: what the user can change if this fails.

    Raises:
        OutputError: the folder cannot be made or written to.
    """
    probe = folder / f".superres-{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(bytes(4096))
        finally:
            with suppress(OSError):
                probe.unlink()
    except OSError as error:
        reason = "there is a file of that name" if folder.is_file() else error.strerror
        raise OutputError(f"cannot write to the folder {folder}: {reason}; choose another with {option}") from error


def number_text(value: float | None, digits: int) -> str:
    """Return `value` with `digits` decimals, or "-" for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose columns but the first are aligned to the right."""
    ruler = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ruler, *rows))


def figure_png(figure: Figure) -> bytes:
    """Return a plot as the bytes of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    return buffer.getvalue()
