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
from superres.tasks.translation import TextPairs
from superres.training.stage import Report, Stop

CHUNK = 512
"""Sentences per saved part of a translation."""


def decode_own_faces(
    upscaler: Upscaler, pairs: FacePairs, output: Path, decode: DecodeConfig, batch_size: int,
    stop: Stop, report: Report,
) -> bool:
    """Decode the inputs of training faces, as targets for the model's own prediction heads
    (self-distillation).

    Exact acceptance gives p1's own greedy images. Batches that an earlier call saved in `output`
    are not decoded again. `stop()` is called before every batch, and ends the decoding if it is
    true; `report` gets the number of images done.

    Returns:
        Whether all images are decoded; then `output / "faces.npz"` holds them.

    Raises:
        ConfigError: `output` holds results of another model, other data or other settings.
        OutputError: the folder cannot be written.
    """
    result = output / "faces.npz"

    def write(rows: slice, part: Path) -> None:
        sources, ids = pairs.lr[rows], pairs.ids[rows]
        keys = [image_key(source, 1) for source in sources]
        write_npz(FacePairs(upscaler.decode(sources, decode, keys=keys).images, sources, ids), part)

    def join(parts: list[Path]) -> None:
        decoded = [read_faces(part, upscaler.face_task).hr for part in parts]
        write_npz(FacePairs(np.concatenate(decoded), pairs.lr, pairs.ids), result)

    _check_settings(output, {
        "checkpoint": f"{upscaler.name}@{upscaler.revision}",
        "data": short_digest(pairs.lr.tobytes()), "decode": decode.to_dict(),
        "batch_size": batch_size})
    return result.exists() or _in_parts(output, ".npz", len(pairs), batch_size, write, join, stop,
                                        lambda done: report({"images": done}))


def translate_pairs(
    translator: Translator, pairs: TextPairs, output: Path, search: BeamConfig | DecodeConfig,
    batch_size: int, stop: Stop, report: Report, chunk: int = CHUNK,
) -> bool:
    """Translate the sources of training text with a teacher, or with a model that translates back.

    Parts of `chunk` sentences are saved as the batches of `decode_own_faces` are.

    Returns:
        Whether all sources are translated; then `output / "pairs"` can be read as a parallel text.

    Raises:
        SuperresError: as for `decode_own_faces`, or a word is too long for the teacher.
    """
    sources, targets = (output / f"pairs.{language}" for language in translator.languages)

    def write(rows: slice, part: Path) -> None:
        lines = pairs.source[rows]
        found = translator.decode(lines, search, batch_size=batch_size,
                                  keys=range(rows.start, rows.start + len(lines)))
        write_result(part, _text(found.texts))

    def join(parts: list[Path]) -> None:
        write_result(sources, _text(pairs.source))
        write_result(targets, b"".join(part.read_bytes() for part in parts))

    _check_settings(output, {
        "checkpoint": f"{translator.name}@{translator.revision}",
        "data": short_digest("\n".join(pairs.source).encode()), "search": search.to_dict(),
        "batch_size": batch_size})
    return targets.exists() or _in_parts(output, ".txt", len(pairs), chunk, write, join, stop,
                                         lambda done: report({"pairs": done}))


def _in_parts(
    folder: Path, suffix: str, count: int, size: int, write: Callable[[slice, Path], None],
    join: Callable[[list[Path]], None], stop: Stop, report: Callable[[int], None],
) -> bool:
    """Write the missing parts of `size` rows each and join them; return False if `stop()` became
    true before."""
    parts = [folder / f"part-{start:08d}{suffix}" for start in range(0, count, size)]
    for number, part in enumerate(parts):
        if stop():
            return False
        end = min((number + 1) * size, count)
        if not part.exists():
            write(slice(number * size, end), part)
        report(end)
    join(parts)
    for part in parts:
        part.unlink()
    return True


def _check_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Write `settings` into `folder`, or check that an earlier call wrote the same settings."""
    prepare_folder(folder)
    path, text = folder / "settings.json", json.dumps(settings, indent=1) + "\n"
    if not path.exists():
        write_result(path, text.encode())
    require(path.read_text() == text, f"{folder} was started with other settings (see "
            "settings.json there); repeat those or choose a new folder")


def _text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
