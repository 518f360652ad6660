"""Draw the free photographs of people as the model draws them, and what the alignment of their
crops changes.

    python scripts/draw_photographs.py

The first picture, README's, has each photograph's face as the model's input, the enlargement,
pictures of the model, a picture that the last stage draws alone, and the photograph. The second
shows each face in the upright square that the search for faces gives, and in the aligned one.
Whatever fails is shown failing.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from PIL import Image

from demo import PHOTOS
from measurements import run
from superres import Upscaler
from superres.config import DEFAULT_CASCADE
from superres.evaluation.examples import photographs
from superres.pictures.mark import marked
from superres.pictures.read import Pixels
from superres.system.output import write_result
from superres.tasks.crops import Crop
from superres.tasks.face_finder import face_boxes, rough_squares
from superres.tasks.faces import FaceTask
from superres.tasks.photos import choose_crops, largest
from superres.tasks.sheets import contact_sheet

ROOT = Path(__file__).parent.parent
SCALE, CAPTION = 3, 26  # sides of a pixel, and height of the captions
NAMES = {"astronaut": "Eileen\nCollins", "Grace-Hopper": "Grace\nHopper"}


def upright(photo: Pixels) -> Crop:
    """Return the upright square around the clearest face that the search gives, before the
    alignment."""
    x, y, side, _ = rough_squares(face_boxes(photo))[0].tolist()
    size = round(side)
    return Crop(round(x - size / 2), round(y - size / 2), size, "face")


def drawn(upscaler: Upscaler, source: Pixels, finish: str = "none") -> Pixels:
    """Return the exact picture of an input, uint8 [source, source, 3]."""
    return upscaler(source[None], finish=finish).images[0]


def pictures(upscaler: Upscaler, photos: dict[str, Pixels]) -> Pixels:
    """Return README's picture, a row per photograph."""
    task, last = upscaler.face_task, upscaler.from_size(upscaler.face_task.between[-1])
    rows = list[dict[str, Pixels]]()
    for photo in photos.values():
        square = largest(choose_crops(photo, task)).take(photo)
        source, larger = task.source_of(square), last.face_task.source_of(square)
        rows.append({f"input, {task.source_size}": enlarged(task, source, "nearest"),
                     "Lanczos": enlarged(task, source, "lanczos"),
                     "superres, exact": drawn(upscaler, source),
                     "finished": drawn(upscaler, source, "mean"), "from "
                     f"{last.face_task.source_size}": drawn(last, larger),
                     "the photo": task.target_of(square)})
    return sheet(rows, photos)


def alignment(upscaler: Upscaler, photos: dict[str, Pixels]) -> Pixels:
    """Return the picture of crops before and after the alignment, a row per photograph."""
    task, rows = upscaler.face_task, list[dict[str, Pixels]]()
    for photo in photos.values():
        row = dict[str, Pixels]()
        for name, crop in (("upright", upright(photo)),
                           ("aligned", largest(choose_crops(photo, task)))):
            square = crop.take(photo)
            source = task.source_of(square)
            row |= {name: task.target_of(square), f"{name}, "
                    f"{task.source_size}": enlarged(task, source, "nearest"),
                    f"{name}, exact": drawn(upscaler, source)}
        rows.append(row)
    return sheet(rows, photos)


def enlarged(task: FaceTask, source: Pixels, method: str) -> Pixels:
    """Return an input, uint8 [source, source, 3], at the output's size."""
    return task.enlarge(source[None], method)[0]


def sheet(rows: list[dict[str, Pixels]], photos: dict[str, Pixels]) -> Pixels:
    """Return a sheet of pictures by name, a row per photograph."""
    return contact_sheet({name: np.stack([row[name] for row in rows]) for name in rows[0]}, SCALE,
                         CAPTION, [NAMES.get(name, name) for name in photos])


def main(
    photographs_file: Annotated[Path, typer.Option("--output", help="README's picture.")] = (
        ROOT / ".github/pictures/photographs.webp"),
    crops_file: Annotated[Path, typer.Option("--crops", help="Picture of the crops.")] = (
        ROOT / "docs/pictures/crop-face.webp"),
) -> None:
    """Draw both pictures."""
    upscaler = Upscaler.load(DEFAULT_CASCADE, "cpu")
    photos = photographs(PHOTOS)
    for file, draw in ((photographs_file, pictures), (crops_file, alignment)):
        content = io.BytesIO()
        mark = marked({"checkpoint": upscaler.name})
        Image.fromarray(draw(upscaler, photos)).save(content, "WEBP", lossless=True, method=6,
                                                     xmp=mark)
        write_result(file, content.getvalue())


if __name__ == "__main__":
    run(main)
