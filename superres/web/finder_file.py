"""The file that the finder of faces of the static page (`site/finder.js`) reads: the cascade, the
weights of the aligner, and the numbers of both searches."""

from __future__ import annotations

import gzip
import json
import struct
from typing import Any
from xml.etree import ElementTree

import numpy as np

from superres.tasks import aligner, face_finder
from superres.tasks.crops import UNCERTAIN

EPS = 1e-5
"""What scikit-image's cascade lets a stage miss of its threshold."""
FINDER = ("LONGEST", "SMALLEST", "SCALE", "STEP", "OVERLAP", "LEAST_WINDOWS", "WEAKEST",
          "MOST_FACES", "TURNS", "MORE_WINDOWS", "CROP_SIZE", "CROP_RISE", "COVERED")
ALIGNER = ("SHARE", "RISE", "FACE_SIDE", "ROUNDS", "LARGEST", "SMALLEST", "NEXT_SIDE", "STEP",
           "LIKELY", "MOST_STARTS", "AGREEING", "ALIKE", "SUREST", "UPRIGHT", "DOUBTFUL",
           "SUBPIXELS", "MOST_CORRECTION", "CONTRAST")


def finder_file() -> bytes:
    """Return the file, compressed: the length of a JSON header, the header, and the weights.

    Weights are whole multiples of the aligner's unit: their low bytes, and then their high ones.
    """
    layers = aligner.Aligner.bundled().layers
    about = {
        "finder": {**_numbers(face_finder, FINDER), "uncertain": UNCERTAIN},
        "aligner": {**_numbers(aligner, ALIGNER), "disc_side": aligner.SIDE,
                    "units": aligner.UNITS.tolist(), "steps": round(1 / aligner.INPUT_UNIT),
                    "weight_steps": round(1 / aligner.WEIGHT_UNIT)},
        "cascade": _cascade(), "shapes": [weight.shape for weight, _ in layers]}
    weights = np.concatenate([part.ravel() for layer in layers for part in layer])
    whole = (weights / aligner.WEIGHT_UNIT).astype("<i2")
    text = json.dumps(about).encode()
    planes = whole.view(np.uint8).reshape(-1, 2).T.tobytes()
    return gzip.compress(struct.pack("<I", len(text)) + text + planes, 9, mtime=0)


def _numbers(module: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name.lower(): getattr(module, name) for name in names}


def _cascade() -> dict[str, Any]:
    """Return the cascade of the finder: features (x, y, width, height of a block), stages (first
    stump, number of stumps, threshold), and stumps (feature, two weights, eight words)."""
    tree = ElementTree.parse(face_finder.cascade_path())  # noqa: S314 -- a file of scikit-image
    stages, stumps = list[tuple[int, int, float]](), list[list[float]]()
    for stage in tree.findall(".//stages/_"):
        trees = stage.findall("weakClassifiers/_")
        stages.append((len(stumps), len(trees), float(stage.findtext("stageThreshold", ""))))
        for one in trees:
            _, _, feature, *words = map(int, one.findtext("internalNodes", "").split())
            leaves = map(float, one.findtext("leafValues", "").split())
            stumps.append([feature, *leaves, *words])
    features = [[int(value) for value in rect.text.split()]
                for rect in tree.iterfind(".//features/_/rect") if rect.text]
    return {"side": int(tree.findtext(".//height", "")), "eps": EPS, "features": features,
            "stages": stages, "stumps": stumps}
