"""The card of a link preview: an input, the face that the model drew from it, and a line that says
what they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from superres.pictures.read import Pixels
from superres.pictures.write import DrawnImage
from superres.tasks.face_finder import shows_face

SIZE = (1200, 630)  # width and height in pixels that link previews ask for
# sides of the face and of other faces, and the distance between those, in pixels
FACE, OTHER, GAP = 384, 186, 12
MOST_OTHERS = 4
BACKGROUND, TEXT, QUIET, ACCENT = "#101418", "#f4f5f7", "#a9b1bd", "#ff9f43"
NOTE = {"note": "invented detail, not a likeness; never use it to identify anyone"}


def card(source: Pixels, face: Pixels, others: Sequence[Pixels] = (),
         link: str | None = None) -> DrawnImage:
    """Return a card of `SIZE`; its files have the mark that a model drew it.

    `source` is the input, uint8 [s, s, 3], and `face` what the model drew from it, uint8 [S, S, 3].
    `others` are up to four further faces for the same input, each as large as `face`, and `link` is
    an address below the pictures.
    """
    if len(others) > MOST_OTHERS:
        raise ValueError(f"a card has at most {MOST_OTHERS} other faces, not {len(others)}")
    image = Image.new("RGB", SIZE, BACKGROUND)
    draw, colours = ImageDraw.Draw(image), source.shape[0] * source.shape[1]
    people = 1 + len(others) if shows_face(face) else 0
    _line(draw, (SIZE[0] // 2, 62), headline(colours, people), 50, TEXT)
    side, arrow = (224, 88) if others else (FACE, 120)
    shown = [(Image.fromarray(source).resize((side, side), Image.Resampling.NEAREST), side),
             (Image.fromarray(face).resize((FACE, FACE), Image.Resampling.BICUBIC), FACE)]
    width = side + arrow + FACE + (2 * (OTHER + GAP) + GAP if others else 0)
    left, top = (SIZE[0] - width) // 2, 124
    middle = top + FACE // 2
    image.paste(shown[0][0], (left, middle - side // 2))
    _arrow(draw, left + side + arrow // 2, middle)
    image.paste(shown[1][0], (left + side + arrow, top))
    for number, other in enumerate(others):
        row, column = divmod(number, 2)
        place = (left + side + arrow + FACE + 2 * GAP + column * (OTHER + GAP),
                 top + row * (OTHER + GAP))
        image.paste(Image.fromarray(other).resize((OTHER, OTHER), Image.Resampling.BICUBIC), place)
    sizes = (f"{len(source)}x{len(source)} pixels", left + side // 2, middle + side // 2 + 26), (
        f"{len(face)}x{len(face)}, drawn by a model", left + side + arrow + FACE // 2,
        top + FACE + 26)
    for caption, x, y in sizes:
        _line(draw, (x, y), caption, 24, QUIET)
    _line(draw, (SIZE[0] // 2, 594), link or "superres: the detail is invented, not a likeness", 28,
          ACCENT)
    return DrawnImage.of(np.asarray(image), NOTE)


def headline(colours: int, people: int = 1) -> str:
    """Return what a card of an input of `colours` pixels says; without `people`, what was drawn is
    no face."""
    if not people:
        return f"{colours:,} colours in, and what a model makes of them"
    return f"{colours:,} colours in, {'people' if people > 1 else 'a person'} who never existed"


def _line(draw: ImageDraw.ImageDraw, middle: tuple[int, int], text: str, size: float,
          colour: str) -> None:
    """Write a centred line, smaller if it would be wider than the card."""
    most = SIZE[0] - 80
    width = draw.textlength(text, ImageFont.load_default(size))
    draw.text(middle, text, colour, ImageFont.load_default(size * min(1.0, most / max(width, 1))),
              anchor="mm")


def _arrow(draw: ImageDraw.ImageDraw, x: int, y: int) -> None:
    draw.line((x - 26, y, x + 16, y), ACCENT, 6)
    draw.polygon(((x + 12, y - 14), (x + 30, y), (x + 12, y + 14)), ACCENT)
