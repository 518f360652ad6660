"""Measure how well `--crop face` repeats CelebA's crop: fit the relation on half of the pictures, test on the others.

Each picture is CelebA's crop of a face. It is enlarged and put at a random place into a photo of 1200x900 pixels, one
of scikit-image's pictures without a face, with a side of 12 % to 70 % of the photo's height. So the right crop is
known.

    python scripts/check/face_crops.py faces64/dev.npz
    python scripts/check/face_crops.py faces64/dev.npz --tilt 12
    python scripts/check/face_crops.py celeba/img_align_celeba --limit 1000

DATA is an .npz with CelebA's crops as uint8 [N, S, S, 3] in `hr` (64x64 or larger are best), or a folder of CelebA's
aligned pictures.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image
from skimage import data

from superres.system.progress import track
from superres.tasks.face_finder import CROP_RISE, CROP_SIZE, face_boxes, find_faces
from superres.tasks.faces import FaceTask
from superres.tasks.photos import choose_crops
from superres.tasks.pictures import read_image

WIDTH, HEIGHT = 1200, 900
SIZES = 0.12, 0.7
BACKGROUNDS = ("coffee", "chelsea", "rocket", "brick", "grass", "gravel", "camera", "coins", "moon", "page",
               "hubble_deep_field", "immunohistochemistry", "retina")
NEAR = 0.25
"""Largest distance of a found face's centre from the right one, over the side of the right crop."""


def read_crops(path: Path, limit: int) -> list[np.ndarray]:
    """Return CelebA's crops, each uint8 [S, S, 3]."""
    if path.is_dir():
        images = map(read_image, sorted(path.glob("*.jpg"))[:limit])
        return [choose_crops(image, FaceTask(1, 1), "centre")[0].take(image) for image in images]
    with np.load(path) as archive:
        return list(archive["hr"][:limit])


def photo_with(
    face: np.ndarray, rng: np.random.Generator, scenes: list[Image.Image], tilt: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return a photo with the face at a random place, and its right crop: centre from the left and the top, side.

    The face is turned by `tilt` degrees to a random side.
    """
    size = round(HEIGHT * float(np.exp(rng.uniform(*np.log(SIZES)))))
    left, top = int(rng.integers(WIDTH - size + 1)), int(rng.integers(HEIGHT - size + 1))
    photo = scenes[rng.integers(len(scenes))].copy()
    pasted = Image.fromarray(face).resize((size, size), Image.Resampling.BICUBIC)
    angle = tilt * (1 if rng.integers(2) else -1)
    inside = Image.new("L", pasted.size, 255).rotate(angle, Image.Resampling.BICUBIC)
    photo.paste(pasted.rotate(angle, Image.Resampling.BICUBIC), (left, top), inside)
    return np.asarray(photo), np.array([left + size / 2, top + size / 2, size])


def nearest(found: np.ndarray, right: np.ndarray) -> int | None:
    """Return the number of the found square, [N, 3] with centres, that has the right place; None if there is none."""
    distances = np.abs(found[:, :2] - right[:2]).max(1, initial=0)
    return int(distances.argmin()) if len(found) and distances.min() <= NEAR * right[2] else None


def fit(crops: list[np.ndarray], scenes: list[Image.Image], seed: int, tilt: float) -> tuple[int, np.ndarray]:
    """Return in how many photos the face is found, and the crop's right, down and size over the window's side."""
    relations = []
    for number, crop in enumerate(track(crops, "fitting", "photos")):
        photo, right = photo_with(crop, np.random.default_rng([seed, number]), scenes, tilt)
        boxes = face_boxes(photo)
        centres = np.column_stack([boxes[:, :2] + boxes[:, 2:3] / 2, boxes[:, 2]])
        if (at := nearest(centres, right)) is not None:
            relations.append([*(right[:2] - centres[at, :2]) / centres[at, 2], right[2] / centres[at, 2]])
    return len(relations), np.median(np.array(relations).reshape(-1, 3), 0)


def test(crops: list[np.ndarray], scenes: list[Image.Image], seed: int, tilt: float) -> tuple[np.ndarray, int]:
    """Return the errors of the found crops, [N, 3]: centre in pixels, side in pixels, right side; and false alarms."""
    errors, false = [], 0
    for number, crop in enumerate(track(crops, "testing", "photos")):
        photo, right = photo_with(crop, np.random.default_rng([seed, number]), scenes, tilt)
        found = find_faces(photo)
        at = nearest(found, right)
        false += len(found) - (at is not None)
        if at is not None:
            errors.append([np.hypot(*(found[at, :2] - right[:2])), found[at, 2] - right[2], right[2]])
    return np.array(errors).reshape(-1, 3), false


def main() -> None:
    """Print the fitted relation, and the errors of the built-in one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help=".npz of crops, or folder of aligned pictures")
    parser.add_argument("--limit", type=int, default=1000, help="pictures, half to fit and half to test")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tilt", type=float, default=0.0, help="degrees by which the faces are turned")
    args = parser.parse_args()
    crops = read_crops(args.data, args.limit)
    pictures = (Image.fromarray(getattr(data, name)()).convert("RGB") for name in BACKGROUNDS)
    scenes = [picture.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC) for picture in pictures]
    half = len(crops) // 2
    count, (right, down, size) = fit(crops[:half], scenes, args.seed, args.tilt)
    print(f"fit on {half} pictures, {count} found: crop size {size:.3f}, rise {-down:.3f}, to the right {right:.3f} "
          f"of the window's side (built in: {CROP_SIZE}, {CROP_RISE}, 0)")
    errors, false = test(crops[half:], scenes, args.seed + 1, args.tilt)
    tested = len(crops) - half
    centre, side, true = errors.T
    print(f"test on {tested} others: found in {len(errors)} ({len(errors) / tested:.1%}), {false} false alarms")
    for name, error in (("centre", centre), ("size", np.abs(side))):
        pixels, share = np.percentile(error, [50, 90]), np.percentile(error / true, [50, 90])
        print(f"{name} error: median {pixels[0]:.1f} and 90th percentile {pixels[1]:.1f} pixels of the photo, "
              f"{share[0]:.1%} and {share[1]:.1%} of the crop, {share[0] * 8:.2f} and {share[1] * 8:.2f} of the "
              "model's 8 pixels")
    print(f"size error on average: {np.mean(side / true):+.1%}")
    empty = sum(len(find_faces(np.asarray(scene))) for scene in scenes)
    print(f"{len(scenes)} photos without a face: {empty} false alarms")


if __name__ == "__main__":
    main()
