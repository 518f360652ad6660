"""Find faces in photos with scikit-image's frontal-face cascade, and frame them as CelebA frames
them.

The cascade tests square windows of many sizes. A face passes in many windows that overlap, a false
alarm in few, so the windows are grouped and small groups are dropped. The cascade knows upright
faces, so a photo in which it finds none is turned by a few degrees.
"""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from superres.pictures.read import Pixels
from superres.system.folders import bundled_folder
from superres.system.output import cache_folder, short_digest
from superres.tasks import aligner
from superres.tasks.crops import UNCERTAIN

Floats = npt.NDArray[np.float64]

# longest side in pixels of the picture that is searched; a larger photo is reduced to it
LONGEST = 480
SMALLEST = 24  # side of the cascade's smallest window in pixels, the size that it was trained at
SCALE = 1.1  # ratio of successive window sizes
# distance of neighbouring windows in pixels, for the smallest windows; it grows with the windows
STEP = 1.5
OVERLAP = 0.5  # smallest intersection over union of two windows of one face
COVERED = 0.3  # share of the smaller of two windows that shows no face beside the other's
LEAST_WINDOWS = 4  # smallest number of windows of a face
# smallest number of windows of a face, as a share of the number of the photo's clearest face
WEAKEST = 0.25
# smallest number of windows of a face in a drawn picture, times that it is enlarged, and its
# repeated edge, as a share of its side
DRAWN_WINDOWS, ENLARGED, EDGE = 5, 3, 0.25
MOST_FACES = 20  # largest number of faces; the clearest are kept
# degrees, anticlockwise, by which the photo is turned, until a face is found
TURNS = (0.0,), (-15.0, 15.0)
# further windows that a face in a turned photo needs, where false alarms are likelier
MORE_WINDOWS = 1
CROP_SIZE = 1.32  # side of CelebA's crop over the side of the face's window
# distance of the crop's centre above the window's centre, over the side of the window
CROP_RISE = 0.155

_LOCK = threading.Lock()


def find_faces(image: Pixels) -> Floats:
    """Return the squares around the faces of a photo, uint8 [H, W, 3], as CelebA frames them, from
    left to right.

    The result is float64 [N, 5]: centre from the left, centre from the top, and side, in pixels of
    the photo, degrees clockwise, and the doubt in [0, 1]. A square may reach beyond the photo's
    edges. Where the doubt is high, it is the upright square that the search gives.
    """
    rough = rough_squares(face_boxes(image))
    network = aligner.Aligner.bundled()
    squares, doubts = network.align(image, rough)
    uncertain = doubts >= UNCERTAIN
    squares[uncertain] = rough[uncertain] * (1, 1, 1, 0)
    if uncertain.all():  # the cascade has found nothing that is surely a face
        agreed = network.search(image)
        squares, doubts = agreed if len(agreed[0]) else (squares, doubts)
    found = np.column_stack([squares, doubts])
    return found[np.argsort(found[:, 0], kind="stable")]


def rough_squares(boxes: Floats) -> Floats:
    """Return CelebA's squares, [N, 4]: centre x and y, side, degrees clockwise, around faces as of
    `face_boxes`."""
    side, turn = boxes[:, 2], boxes[:, 4]
    upwards = np.column_stack([np.sin(np.radians(turn)), -np.cos(np.radians(turn))])
    rise = CROP_RISE * side[:, None] * upwards
    return np.column_stack([boxes[:, :2] + boxes[:, 2:3] / 2 + rise, CROP_SIZE * side, turn])


class KnownFaces:
    """The faces of photos that were searched before, in the user's cache.

    A search takes about a second, so a command that reads thousands of photos and is interrupted
    continues.
    """

    def __init__(self) -> None:
        """Read the cache of this release's search; a damaged line is ignored."""
        sources = (Path(__file__), Path(aligner.__file__), bundled_folder() / aligner.ALIGNER
                   / aligner.WEIGHTS)
        release = short_digest(b"".join(path.read_bytes() for path in sources))
        self.path = cache_folder() / f"faces-{release}.jsonl"
        self.found = dict[str, list[list[float]]]()
        with suppress(OSError):
            for line in self.path.read_text().splitlines():
                with suppress(ValueError, TypeError):
                    self.found |= {key: np.array(boxes, np.float64).reshape(-1, 5).tolist()
                                   for key, boxes in [json.loads(line)]}

    def search(self, image: Pixels) -> Floats:
        """Return `find_faces` of a photo, from the cache if it was searched before."""
        key = hashlib.sha256(repr(image.shape).encode() + image.tobytes()).hexdigest()
        if key not in self.found:
            self.found[key] = find_faces(image).tolist()
            with suppress(OSError):  # without a cache, the next command searches again
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a") as file:
                    file.write(json.dumps([key, self.found[key]]) + "\n")
        return np.array(self.found[key], np.float64).reshape(-1, 5)


def shows_face(drawn: Pixels) -> bool:
    """Return whether a small square drawn picture, uint8 [S, S, 3], shows an upright face.

    It is enlarged, with its edge repeated around it: the cascade's windows are larger than the
    face.
    """
    edge = round(EDGE * len(drawn))
    wide = Image.fromarray(np.pad(drawn, ((edge, edge), (edge, edge), (0, 0)), "edge"))
    side, step = ENLARGED * wide.width, 1 / ENLARGED
    enlarged = wide.transform((side, side), Image.Transform.AFFINE, (step, 0, 0, 0, step, 0),
                              Image.Resampling.BILINEAR)
    return bool((_grouped(_windows(np.asarray(enlarged)))[:, 3] >= DRAWN_WINDOWS).any())


def face_boxes(image: Pixels) -> Floats:
    """Return the mean window of each face, the clearest first: float64 [N, 5].

    They are left, top and side in pixels, of the window when it is upright, the number of windows,
    and the turn that the face was found at.
    """
    height, width = image.shape[:2]
    scale = max(1.0, max(height, width) / LONGEST)
    if min(height, width) / scale < SMALLEST:
        return np.empty((0, 5))
    reduced = Image.fromarray(image)
    if scale > 1:
        reduced = reduced.resize((round(width / scale), round(height / scale)),
                                 Image.Resampling.BOX, reducing_gap=2.0)
    searches = (np.concatenate([_turned_groups(reduced, turn) for turn in turns])
                for turns in TURNS)
    groups = next((found for found in searches if len(found)), np.empty((0, 5)))
    strong = groups[groups[:, 3] >= WEAKEST * groups[:, 3].max(initial=0)]
    left = strong[np.argsort(-strong[:, 3], kind="stable")]
    found = []
    while len(left):  # keep the clearest box of a face that was found at several turns
        found.append(left[0])
        left = left[~_covered(left, left[0])]
    faces = np.array(found, np.float64).reshape(-1, 5)[:MOST_FACES]
    return np.column_stack([faces[:, :3] * scale, faces[:, 3:]])


def _turned_groups(photo: Image.Image, turn: float) -> Floats:
    """Return the groups of windows of a photo that is turned by `turn` degrees, in its own pixels:
    float64 [N, 5].

    They are left, top, side and size of the group, as of `_grouped`, and `turn`.
    """
    turned = photo.rotate(turn, Image.Resampling.BILINEAR, expand=True) if turn else photo
    groups = _grouped(_windows(np.asarray(turned)))
    groups = groups[groups[:, 3] >= LEAST_WINDOWS + (MORE_WINDOWS if turn else 0)]
    half, angle = groups[:, 2:3] / 2, np.radians(turn)
    from_centre = groups[:, :2] + half - np.array(turned.size) / 2
    back = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    corner = from_centre @ back + np.array(photo.size) / 2 - half
    return np.column_stack([corner, groups[:, 2:], np.full(len(groups), turn)])


def _windows(image: Pixels) -> Floats:
    """Return the windows that the cascade takes for a face, float64 [N, 3], in an order that does
    not vary."""
    largest = min(image.shape[:2])
    with _LOCK:
        # Single windows, since the order in which the cascade's threads find them decides how it
        # would group them.
        found = _cascade().detect_multi_scale(
            img=image, scale_factor=SCALE, step_ratio=STEP, min_size=(SMALLEST, SMALLEST),
            max_size=(largest, largest), min_neighbor_number=1, intersection_score_threshold=2.0)
    return np.array(sorted((one["c"], one["r"], one["width"]) for one in found),
                    np.float64).reshape(-1, 3)


@functools.cache
def _cascade() -> Any:  # noqa: ANN401 -- scikit-image has no types
    from skimage import feature

    return feature.Cascade(cascade_path())


def cascade_path() -> str:
    """Return the path of scikit-image's cascade."""
    from skimage import data

    path: str = data.lbp_frontal_face_cascade_filename()  # type: ignore[no-untyped-call]
    return path


def _grouped(windows: Floats) -> Floats:
    """Return the mean and the size of each group of overlapping windows, float64 [N, 4], the
    largest group first."""
    groups = []
    while len(windows):
        shared = _intersections(windows, windows)
        areas = windows[:, 2] ** 2
        near = shared >= OVERLAP * (areas[:, None] + areas - shared)
        best = near[near.sum(1).argmax()]
        mean = windows[best].mean(0)
        groups.append([*mean, best.sum()])
        windows = windows[~(best | _covered(windows, mean))]
    return np.array(groups, np.float64).reshape(-1, 4)


def _covered(windows: Floats, face: Floats) -> npt.NDArray[np.bool_]:
    """Return which windows share much of a face's: a smaller one (an eye), or a larger one, is not
    another face."""
    shared = _intersections(windows[:, :3], face[None, :3])[:, 0]
    return np.asarray(shared > COVERED * np.minimum(windows[:, 2], face[2]) ** 2)


def _intersections(ours: Floats, theirs: Floats) -> Floats:
    """Return the areas [N, M] that squares [N, 3] share with squares [M, 3]."""
    ends = np.minimum((ours[:, :2] + ours[:, 2:])[:, None], theirs[:, :2] + theirs[:, 2:])
    return np.asarray((ends - np.maximum(ours[:, None, :2], theirs[:, :2])).clip(0).prod(2))
