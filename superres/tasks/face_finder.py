"""Find faces in photos with scikit-image's frontal-face cascade, and frame them as CelebA frames them.

The cascade tests square windows of many sizes. A face passes in many windows that overlap, a false alarm in few, so the
windows are grouped and small groups are dropped. `scripts/check/face_crops.py` measures the constants.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from superres.tasks.pictures import Pixels

Floats = npt.NDArray[np.float64]

LONGEST = 480  # longest side in pixels of the picture that is searched; a larger photo is reduced to it
SMALLEST = 24  # side of the cascade's smallest window in pixels, the size that it was trained at
SCALE = 1.1  # ratio of successive window sizes
STEP = 1.5  # distance of neighbouring windows in pixels, for the smallest windows; it grows with the windows
OVERLAP = 0.5  # smallest intersection over union of two windows of one face
LEAST_WINDOWS = 4  # smallest number of windows of a face
WEAKEST = 0.25  # smallest number of windows of a face, as a part of that of the photo's clearest face
MOST_FACES = 20  # largest number of faces; the clearest are kept
CROP_SIZE = 1.32  # side of CelebA's crop over the side of the face's window
CROP_RISE = 0.155  # distance of the crop's centre above the window's centre, over the side of the window

_LOCK = threading.Lock()


def find_faces(image: Pixels) -> Floats:
    """Return the squares around the faces of a photo, uint8 [H, W, 3], as CelebA frames them, from left to right.

    The result is float64 [N, 3]: centre from the left, centre from the top, and side, in pixels of the photo. A square
    may reach beyond the photo's edges.
    """
    boxes = face_boxes(image)
    boxes = boxes[np.argsort(boxes[:, 0], kind="stable")]
    centre = boxes[:, :2] + boxes[:, 2:] / 2
    return np.column_stack([centre[:, 0], centre[:, 1] - CROP_RISE * boxes[:, 2], CROP_SIZE * boxes[:, 2]])


def face_boxes(image: Pixels) -> Floats:
    """Return the mean window of each face, the clearest first: float64 [N, 3], left, top and side in pixels."""
    height, width = image.shape[:2]
    scale = max(1.0, max(height, width) / LONGEST)
    if min(height, width) / scale < SMALLEST:
        return np.empty((0, 3))
    reduced = Image.fromarray(image)
    if scale > 1:
        reduced = reduced.resize((round(width / scale), round(height / scale)), Image.Resampling.BOX, reducing_gap=2.0)
    groups = _grouped(_windows(np.asarray(reduced)))
    strong = groups[:, 3] >= max(LEAST_WINDOWS, WEAKEST * groups[:, 3].max(initial=0))
    return np.asarray(groups[strong][:MOST_FACES, :3] * scale)


def _windows(image: Pixels) -> Floats:
    """Return the windows that the cascade takes for a face, float64 [N, 3], in an order that does not vary."""
    largest = min(image.shape[:2])
    with _LOCK:
        # Single windows, since the order in which the cascade's threads find them decides how it would group them.
        found = _cascade().detect_multi_scale(
            img=image, scale_factor=SCALE, step_ratio=STEP, min_size=(SMALLEST, SMALLEST), max_size=(largest, largest),
            min_neighbor_number=1, intersection_score_threshold=2.0)
    return np.array(sorted((one["c"], one["r"], one["width"]) for one in found), np.float64).reshape(-1, 3)


@functools.cache
def _cascade() -> Any:  # noqa: ANN401 -- scikit-image has no types
    from skimage import data, feature

    file: str = data.lbp_frontal_face_cascade_filename()  # type: ignore[no-untyped-call]
    return feature.Cascade(file)


def _grouped(windows: Floats) -> Floats:
    """Return the mean and the size of each group of overlapping windows, float64 [N, 4], the largest group first."""
    groups = []
    while len(windows):
        shared = _intersections(windows, windows)
        areas = windows[:, 2] ** 2
        near = shared >= OVERLAP * (areas[:, None] + areas - shared)
        best = near[near.sum(1).argmax()]
        mean = windows[best].mean(0)
        groups.append([*mean, best.sum()])
        # A smaller window inside the face (an eye), or a larger one around it, is not another face.
        covered = _intersections(windows, mean[None])[:, 0] > 0.3 * np.minimum(areas, mean[2] ** 2)
        windows = windows[~(best | covered)]
    return np.array(groups, np.float64).reshape(-1, 4)


def _intersections(ours: Floats, theirs: Floats) -> Floats:
    """Return the areas [N, M] that squares [N, 3] share with squares [M, 3]."""
    ends = np.minimum((ours[:, :2] + ours[:, 2:])[:, None], theirs[:, :2] + theirs[:, 2:])
    return np.asarray((ends - np.maximum(ours[:, None, :2], theirs[:, :2])).clip(0).prod(2))
