"""What the server's page and the static page both show: their words, examples, and the data of the
paint box."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from superres.evaluation.examples import photographs
from superres.pictures.files import IMAGE_SUFFIXES
from superres.pictures.read import Pixels, read_image
from superres.tasks.faces import FaceTask
from superres.web import drawing

TITLE = "superres: faces, block by block"
HEADLINE = "Paint {count} pixels: a face appears in fewer steps"
INTRODUCTION = ("Usually a model draws one pixel value per step. Here it draws several: <b>fewer "
                "steps, and the same picture, bit for bit</b>. The detail is invented: "
                "<strong>never use it to identify anyone</strong>.")
HOW = Path(__file__).with_name("static") / "how.html"
"""Three small pictures that explain pixel values and steps."""
LIMITS = """The astronaut and Grace Hopper are photographs of real people, whom the model never saw.
What it draws of them is somebody else, and it smears an eye of the astronaut. A model drew the
other examples, which were chosen among many because their faces are clear: most inputs are harder.

The model was trained on CelebA's faces, mostly light-skinned, young and frontal; results for other
faces are worse."""
DRAWN = {"black-hair": 6, "brown-hair": 2, "shaved-head": 8, "boy": 9, "grey-curls": 10,
         "red-hair": 11, "cropped-hair": 5, "short-hair": 12, "grey-hair": 13, "long-dark-hair": 14,
         "blond-child": 15, "blond-hair": 4}
"""The drawn examples, people whom a model drew: what each shows, and the number of its file.

The first one is on the page before a visitor does anything: the engine of bytes draws it and its
other people clearly.
"""
NAMES = tuple(f"{name}-drawn" for name in DRAWN)
OTHERS = 4
TEMPERATURE = 0.7
"""Temperature of samples where the settings are greedy; the higher it is, the more faces are
torn."""
ICON_SIZE = 48  # longest side of an example's icon, in pixels
FACE_WIDTHS = (64, 96, 128, 256, 320, 640)  # largest widths of faces, in pixels of the screen


def introduction(task: FaceTask) -> tuple[str, str]:
    """Return the headline and what follows it, as HTML."""
    return HEADLINE.format(count=task.source**2), INTRODUCTION


def examples_of(folder: Path, task: FaceTask) -> dict[str, Pixels]:
    """Return the examples by name, uint8 [H, W, 3]: drawn faces that are large enough, and
    photographs.

    `folder` has their files in scripts/faces and scripts/photos.
    """
    faces = {name: read_image(folder / "scripts" / "faces" / f"face-{number}.png")
             for name, number in zip(NAMES, DRAWN.values(), strict=True)}
    return {**{name: face for name, face in faces.items() if min(face.shape[:2]) >= task.source},
            **photographs(folder / "scripts" / "photos")}


def box_view(
    task: FaceTask, stages: int, examples: Mapping[str, Pixels], files: Sequence[str],
) -> dict[str, Any]:
    """Return the data of the paint box: its sizes, examples, and the kinds of `files` that it can
    save.

    A drawn example has its input's pixels, `cells`: its face can be edited and mixed with others.
    """
    return {"side": task.source, "target": task.target, "stages": stages, "others": OTHERS,
            "temperature": TEMPERATURE, "files": files, "suffixes": sorted(IMAGE_SUFFIXES),
            "examples": [{"name": label_of(name), "icon": icon_of(image), **(
                {"cells": text_of(task.to_source(image))} if name in NAMES else {})}
                for name, image in examples.items()]}


def text_of(source: Pixels) -> str:
    """Return the text of pixels in links; see `superres.web.paint.pixels_of`."""
    return base64.b64encode(source.tobytes(), b"-_").decode("ascii").rstrip("=")


def label_of(name: str) -> str:
    """Return the label of an example's button: "Short hair (drawn)" for short-hair-drawn."""
    words = name.replace("-drawn", " (drawn)").replace("-", " ")
    return words[0].upper() + words[1:]


def icon_of(image: Pixels) -> str:
    """Return an icon of an example as a data URI: a small copy of a photograph, and an input as it
    is."""
    if max(image.shape[:2]) <= ICON_SIZE:
        return drawing.data_uri(image, None)
    return drawing.jpeg_uri(Image.fromarray(image), ICON_SIZE)


def face_styles(side: int) -> str:
    """Return the styles of faces of `side` pixels, as wide as a whole multiple of it: --face-96 is
    up to 96 px."""
    widths = "".join(f" --face-{most}: {max(most // side, 1) * side}px;" for most in FACE_WIDTHS)
    return f":root {{ --face: {side}px;{widths} }}"
