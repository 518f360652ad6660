"""Decode training data with models: own images (self-distillation), or a teacher's translations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from superres.config import BeamConfig, DecodeConfig, require
from superres.pipeline.translator import Translator
from superres.pipeline.upscaler import Upscaler
from superres.system.output import prepare_folder, short_digest, write_result
from superres.tasks.face_data import FacePairs, read_faces, write_npz
from superres.tasks.faces import image_key
from superres.tasks.translation import TextPairs, read_lines

Stop = Callable[[], bool]
Report = Callable[[dict[str, float]], None]

CHUNK = 512
"""Sentences per saved part of a translation."""


def decode_own_faces(
    upscaler: Upscaler, pairs: FacePairs, output: Path, decode: DecodeConfig, batch_size: int, stop: Stop,
    report: Report,
) -> bool:
    """Let a model decode the inputs of training faces, as targets for its own prediction heads (self-distillation).

    Args:
        upscaler: the model.
        pairs: training faces, of which only the inputs are used.
        output: folder for `faces.npz`; batches that an earlier call saved there are not decoded again.
        decode: settings of the decoding; exact acceptance gives p1's own greedy images.
        batch_size: images decoded together.
        stop: called after every batch; decoding ends if it returns true.
        report: called with the number of images done.

    Returns:
        Whether all images are decoded; then `output / "faces.npz"` holds them.

    Raises:
        ConfigError: `output` holds images of another model, other data or other settings.
        OutputError: the folder cannot be written.
    """
    _check_settings(output, {
        "checkpoint": f"{upscaler.name}@{upscaler.revision}", "data": short_digest(pairs.lr.tobytes()),
        "decode": decode.to_dict(), "batch_size": batch_size})
    if (output / "faces.npz").exists():
        return True

    def write(rows: slice, part: Path) -> None:
        sources, ids = pairs.lr[rows], pairs.ids[rows]
        keys = [image_key(source, 1) for source in sources]
        write_npz(FacePairs(upscaler(sources, decode, keys=keys).images, sources, ids), part)

    parts = [output / f"part-{start:08d}.npz" for start in range(0, len(pairs), batch_size)]
    if not _write_parts(parts, len(pairs), batch_size, write, stop, lambda done: report({"images": done})):
        return False
    decoded = [read_faces(part, upscaler.face_task).hr for part in parts]
    write_npz(FacePairs(np.concatenate(decoded), pairs.lr, pairs.ids), output / "faces.npz")
    for part in parts:
        part.unlink()
    return True


def _write_parts(
    parts: list[Path], count: int, size: int, write: Callable[[slice, Path], None], stop: Stop,
    report: Callable[[int], None],
) -> bool:
    """Write the missing parts of `size` rows each; return False if `stop()` became true before the last part."""
    for number, part in enumerate(parts):
        if stop():
            return False
        end = min((number + 1) * size, count)
        if not part.exists():
            write(slice(number * size, end), part)
        report(end)
    return True


def _check_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Write `settings` into `folder`, or check that an earlier call wrote the same settings."""
    prepare_folder(folder)
    path = folder / "settings.json"
    text = json.dumps(settings, indent=1) + "\n"
    if not path.exists():
        write_result(path, text.encode())
    require(path.read_text() == text, f"{folder} was started with other settings (see settings.json there); "
            "repeat those or choose a new folder")


def translate_pairs(
    translator: Translator, pairs: TextPairs, output: Path, search: BeamConfig | DecodeConfig, batch_size: int,
    stop: Stop, report: Report, chunk: int = CHUNK,
) -> bool:
    """Let a model translate the sources of training text.

    Args:
        translator: a teacher (sequence-level distillation), or a model that translates back.
        pairs: training text, of which only the sources are used.
        output: folder for `pairs.<language>`, a parallel text of the sources and their translations; parts that an
            earlier call saved there are not translated again.
        search: settings of beam search, or of decoding.
        batch_size: sentences translated together.
        stop: called before every chunk; translation ends if it returns true.
        report: called with the number of pairs done.
        chunk: sentences translated between two calls of `stop`.

    Returns:
        Whether all sources are translated; then `output / "pairs"` can be read as a parallel text.

    Raises:
        ConfigError: `output` holds the translations of another teacher, other data or other settings.
        InvalidInputError: a line holds a word that is too long for the teacher.
        OutputError: the folder cannot be written.
    """
    _check_settings(output, {
        "checkpoint": f"{translator.name}@{translator.revision}",
        "data": short_digest("\n".join(pairs.source).encode()), "search": search.to_dict(), "batch_size": batch_size})
    files = [output / f"pairs.{language}" for language in translator.languages]
    if files[1].exists():
        return True

    def write(rows: slice, part: Path) -> None:
        lines = pairs.source[rows]
        found = translator(lines, search, batch_size=batch_size, keys=range(rows.start, rows.start + len(lines)))
        write_result(part, _text(found.texts))

    parts = [output / f"part-{start:08d}.txt" for start in range(0, len(pairs), chunk)]
    if not _write_parts(parts, len(pairs), chunk, write, stop, lambda done: report({"pairs": done})):
        return False
    write_result(files[0], _text(pairs.source))
    write_result(files[1], b"".join(part.read_bytes() for part in parts))
    for part in parts:
        part.unlink()
    return len(read_lines(files[1])) == len(pairs)


def _text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
