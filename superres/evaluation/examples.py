"""Examples: free photographs of people, crops of scikit-image's astronaut, and descriptions of
everyday scenes."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from superres.pictures.read import Pixels, read_image
from superres.tasks.faces import FaceTask

SENTENCES = (
    "A man in a blue shirt is standing on a ladder and cleaning a window.",
    "Two young girls are playing with a ball in the park.",
    "A brown dog runs through the snow with a stick in its mouth.",
    "People are sitting at tables outside a small restaurant.",
    "A woman wearing a red hat is taking a photo of the sea.",
    "Three children jump into a swimming pool on a sunny day.",
    "An old man is reading a newspaper on a bench.",
    "A group of cyclists rides along a country road.",
    "A boy in a green jacket is climbing a tall tree.",
    "Several workers are repairing the street in front of a house.",
    "A girl is painting a picture of a horse.",
    "Two men are talking to each other next to a white car.",
    "A band is playing music on a stage in front of many people.",
    "A small child is eating ice cream at the beach.",
    "The chef is cutting vegetables in the kitchen.",
    "A woman and her dog are walking across a bridge.",
)


def astronaut() -> Pixels:
    """Return scikit-image's photograph of the astronaut, uint8 [512, 512, 3]; the package's own
    function imports scipy."""
    with as_file(files("skimage") / "data" / "astronaut.png") as path:
        return read_image(path)


def photographs(folder: Path) -> dict[str, Pixels]:
    """Return photographs of people by name, uint8 [H, W, 3]: scikit-image's astronaut, then the
    .jpg in `folder`.

    `scripts/photos/README.md` has the rule by which they are chosen, and their licences.
    """
    found = sorted(folder.glob("*.jpg"))
    return {"astronaut": astronaut(), **{path.stem: read_image(path) for path in found}}


def example_sources(count: int, task: FaceTask) -> Pixels:
    """Return inputs, uint8 [count, source, source, 3]: crops around the astronaut's face at 16
    vertical offsets."""
    picture = astronaut()
    crops = [picture[16 + 2 * number % 32 : 186 + 2 * number % 32, 140:310]
             for number in range(count)]
    return np.stack([task.source_of(crop) for crop in crops])
