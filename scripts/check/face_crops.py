"""Measure how well `--crop face` repeats CelebA's crops: fit the search's relation on half of them,
test on the others.

Each picture is CelebA's crop of a face. It is enlarged and put at a random place into a photo of
1200x900 pixels, one of scikit-image's pictures without a face, with a side of 12 % to 70 % of the
photo's height. So the right crop is known.

    python scripts/check/face_crops.py faces64/dev.npz
    python scripts/check/face_crops.py faces64/dev.npz --tilt 12
    python scripts/check/face_crops.py celeba/img_align_celeba --limit 1000 --output celeba
    python scripts/check/face_crops.py faces64/dev.npz --tilt 8 --drawn 48

DATA is an .npz of CelebA's crops of 64x64 pixels or more, or a folder of CelebA's aligned pictures.
The table has a line per tilt, so that further tilts can be measured into the same --output. With
--drawn, faces of photos are drawn by celeba-8to64, exactly, and compared with the truth in the
truth's frame.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from PIL import Image
from skimage import data as pictures

sys.path.append(str(Path(__file__).resolve().parents[1]))

import superres
from measurements import (
    Columns,
    Document,
    Limit,
    Output,
    Row,
    Table,
    Values,
    columns_table,
    run,
    values,
)
from superres.system.output import short_digest
from superres.system.progress import track
from superres.tasks.crops import UNCERTAIN, Crop, cos_sin
from superres.tasks.face_data import read_faces
from superres.tasks.face_finder import CROP_RISE, CROP_SIZE, KnownFaces, face_boxes, find_faces
from superres.tasks.faces import FaceTask, area_reduce
from superres.tasks.photos import choose_crops, largest

WIDTH, HEIGHT = 1200, 900
SIZES = 0.12, 0.7
BACKGROUNDS = ("coffee", "chelsea", "rocket", "brick", "grass", "gravel", "camera", "coins", "moon",
               "page", "hubble_deep_field", "immunohistochemistry", "retina")
NEAR = 0.25
"""Largest distance of a found face's centre from the right one, over the side of the right crop."""


def photos(
    crops: np.ndarray, scenes: Sequence[Image.Image], seed: int, tilt: float,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield a photo per crop with the face at a random place, and its right crop: centre, side,
    degrees clockwise.

    The face is turned by `tilt` degrees to a random side.
    """
    for number, face in enumerate(track(crops, f"turned by {tilt:g} degrees", "photos")):
        rng = np.random.default_rng([seed, number])
        size = round(HEIGHT * float(np.exp(rng.uniform(*np.log(SIZES)))))
        left, top = int(rng.integers(WIDTH - size + 1)), int(rng.integers(HEIGHT - size + 1))
        photo = scenes[rng.integers(len(scenes))].copy()
        pasted = Image.fromarray(face).resize((size, size), Image.Resampling.BICUBIC)
        angle = tilt * (1 if rng.integers(2) else -1)
        inside = Image.new("L", pasted.size, 255).rotate(angle, Image.Resampling.BICUBIC)
        photo.paste(pasted.rotate(angle, Image.Resampling.BICUBIC), (left, top), inside)
        yield np.asarray(photo), np.array([left + size / 2, top + size / 2, size, -angle])


def nearest(found: np.ndarray, right: np.ndarray) -> int | None:
    """Return the number of the found square, [N, 3] with centres, that has the right place; None if
    there is none."""
    distances = np.abs(found[:, :2] - right[:2]).max(1, initial=0)
    return int(distances.argmin()) if len(found) and distances.min() <= NEAR * right[2] else None


def measure(crops: np.ndarray, scenes: Sequence[Image.Image], seed: int, tilt: float) -> Values:
    """Fit the relation on one half of the crops, and find the errors of the squares found on the
    other half.

    Returns:
        The size, rise and shift to the right of the fitted crop over the side of the face's window.
        The errors are the median and the 90th percentile: in degrees, and over the side of the
        right crop.
    """
    relations, errors, half = list[list[float]](), list[list[float]](), len(crops) // 2
    doubts, false = list[float](), list[float]()  # of the faces, and of the false alarms
    for photo, right in photos(crops[:half], scenes, seed, tilt):
        boxes = face_boxes(photo)
        centres = np.column_stack([boxes[:, :2] + boxes[:, 2:3] / 2, boxes[:, 2]])
        if (at := nearest(centres, right)) is not None:
            x, y, side = centres[at]
            relations.append([right[2] / side, (y - right[1]) / side, (right[0] - x) / side])
    for photo, right in photos(crops[half:], scenes, seed + 1, tilt):
        found = find_faces(photo)
        at = nearest(found, right)
        false += [float(square[4]) for number, square in enumerate(found) if number != at]
        if at is not None:
            doubts.append(float(found[at, 4]))
            errors.append([np.hypot(*(found[at, :2] - right[:2])), *(found[at, 2:4] - right[2:]),
                           right[2]])
    centre, size, turn, side = np.array(errors).reshape(-1, 4).T
    spreads = {"centre_share": centre / side, "size_share": abs(size) / side, "turn": abs(turn)}
    fitted = np.median(relations, 0).tolist() if relations else [None] * 3
    return {"tilt": tilt, "fit_photos": half, "fit_found": len(relations), "fit_size": fitted[0],
            "fit_rise": fitted[1], "fit_right": fitted[2], "photos": len(crops) - half,
            "found": len(errors), "false_alarms": len(false),
            "certain": sum(one < UNCERTAIN for one in doubts),
            "certain_false": sum(one < UNCERTAIN for one in false),
            "bias": np.mean(size / side).item() if errors else None,
            **{name: np.percentile(found, [50, 90]).tolist() for name,
               found in spreads.items() if errors}}


def drawn(crops: np.ndarray, scenes: Sequence[Image.Image], seed: int, tilt: float) -> Values:
    """Draw the largest face of each photo, and compare it with the right crop, uint8 [N, 64, 64,
    3], in its frame."""
    upscaler = superres.load("celeba-8to64")
    pictures, frames = list[np.ndarray](), list[tuple[Crop, np.ndarray]]()
    for photo, right in photos(crops, scenes, seed, tilt):
        crop = largest(choose_crops(photo, upscaler.face_task))
        pictures.append(upscaler.face_task.source_of(crop.take(photo)))
        frames.append((crop, right))
    images = upscaler(np.stack(pictures)).images
    directly = upscaler(np.stack([upscaler.face_task.source_of(face) for face in crops])).images
    return {"tilt": tilt, "drawn": len(crops), "psnr": float(np.mean([
        psnr(in_frame(image, *frame), face) for image, frame,
        face in zip(images, frames, crops, strict=True)])),
            "directly": float(np.mean([psnr(image, face) for image,
                                       face in zip(directly, crops, strict=True)]))}


def in_frame(image: np.ndarray, crop: Crop, right: np.ndarray) -> np.ndarray:
    """Return a picture of a crop as its part in the right square would be seen, with repeated
    edges."""
    side = len(image)
    scale, (cos, sin) = side / crop.size, cos_sin(-crop.turn)
    x, y = right[0] - crop.left - crop.size / 2, right[1] - crop.top - crop.size / 2
    centre = scale * (cos * x - sin * y) + side / 2, scale * (sin * x + cos * y) + side / 2
    large = np.asarray(Image.fromarray(image).resize((4 * side, 4 * side),
                                                     Image.Resampling.BICUBIC))
    size = round(4 * scale * right[2])
    square = Crop(round(4 * centre[0] - size / 2), round(4 * centre[1] - size / 2), size,
                  turn=right[3] - crop.turn)
    seen = square.take(large)  # few pixels, where a square much larger than the face was drawn
    if len(seen) >= side:
        return area_reduce(seen, side, side)
    return np.asarray(Image.fromarray(seen).resize((side, side), Image.Resampling.BICUBIC))


def psnr(image: np.ndarray, truth: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio of uint8 pictures in dB."""
    return float(10 * np.log10(255**2 / np.square(image.astype(float) - truth).mean()))


def spread(row: Values, name: str, digits: int, unit: float = 1) -> str | None:
    """Return the median and the 90th percentile of an error, times `unit`, as text."""
    return (" and ".join(f"{unit * error:.{digits}f}" for error in row[name]) if name in row
            else None)


FIT: Columns = {
    "turned by, degrees": ("tilt", 0), "photos": ("fit_photos", 0), "faces found": ("fit_found", 0),
    "size of the crop": ("fit_size", 3), "rise": ("fit_rise", 3), "to the right": ("fit_right", 3),
}
FOUND: Columns = {
    "turned by, degrees": ("tilt", 0), "photos": ("photos", 0), "faces found": ("found", 0),
    "certain faces": ("certain", 0), "false alarms": ("false_alarms", 0),
    "certain false alarms": ("certain_false", 0), "error of the turn, "
    "degrees": (lambda row: spread(row, "turn", 1), 0), "of the centre, of the model's 8 "
    "pixels": (lambda row: spread(row, "centre_share", 2, 8), 0), "of the size, of the model's 8 "
    "pixels": (lambda row: spread(row, "size_share", 2, 8), 0), "size, too large by": ("bias", 3),
}
DRAWN: Columns = {
    "turned by, degrees": ("tilt", 0), "faces": ("drawn", 0),
    "PSNR from the photo, dB": ("psnr", 2), "from the right crop": ("directly", 2),
}


def views(document: Document) -> dict[str, str]:
    """Return the fitted relation, the errors of the built-in one, and the false alarms without a
    face, by tilt."""
    tilts, empty = values(document, "tilt ").values(), values(document)["no face"]
    return {"fit": columns_table(tilts, FIT), "found": columns_table(tilts, FOUND),
            "drawn": columns_table(values(document, "drawn ").values(), DRAWN),
            "empty": f"{empty['photos']} photos without a face: {empty['false_alarms']} false "
            "alarms"}


def main(
    data: Annotated[Path, typer.Argument(help=".npz of crops, or folder of aligned pictures.")],
    output: Output = Path("face-crops"), limit: Limit = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the photos.")] = 0,
    tilt: Annotated[float, typer.Option(help="Degrees by which the faces are turned.")] = 0.0,
    faces: Annotated[int, typer.Option("--drawn", help="Number of faces to draw.")] = 0,
) -> None:
    """Fit the relation on half of the pictures, and measure the errors of the built-in one on the
    others."""
    crops = read_faces(data, FaceTask(8, 64), "valid", limit).hr
    without = (Image.fromarray(getattr(pictures, name)()).convert("RGB") for name in BACKGROUNDS)
    scenes = [picture.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC) for picture in without]
    table = Table("face_crops", output, {
        "images": len(crops), "data": short_digest(crops.tobytes()), "seed": seed,
        "built-in size": CROP_SIZE, "built-in rise": CROP_RISE, "search": KnownFaces().path.stem},
                  name="face-crops")
    table.measure([
        Row("no face", lambda: {"photos": len(scenes),
                                "false_alarms": sum(len(find_faces(np.asarray(scene)))
                                                    for scene in scenes)}),
        Row(f"tilt {tilt:g}", lambda: measure(crops, scenes, seed, tilt)),
        *([Row(f"drawn {tilt:g}", lambda: drawn(crops[-faces:], scenes, seed, tilt))] if faces
          else []),
    ])
    table.finish()


if __name__ == "__main__":
    run(main)
