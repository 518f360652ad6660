"""Squares of pictures that become the model's inputs: where they are, how far they are turned, and
their pixels."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from superres.errors import ConfigError, InvalidInputError, shown

if TYPE_CHECKING:
    from superres.pictures.read import Pixels

FACE, CENTRE = "face", "centre"
CROPS = f"{FACE}|{CENTRE}|X,Y,SIZE[,TURN]"  # values of a crop setting
DEFAULT_CROP = FACE
UNCERTAIN = 0.5
"""Doubt from which a face is uncertain."""
# pixels of a side above which a square that is turned, or beyond the edges, is reduced before it is
# taken
ENOUGH = 512
DECIMALS = 6  # most of a turn
_CROP = re.compile(r" *(-?\d{1,9}) *, *(-?\d{1,9}) *, *(\d{1,9}) *"
                   rf"(?:, *(-?\d{{1,3}}(?:\.\d{{1,{DECIMALS}}})?) *)?", re.ASCII)


@dataclass(frozen=True)
class Crop:
    """A square of a picture, in pixels of the upright picture.

    A square may reach beyond the picture, which goes on there with its outermost pixels.

    Attributes:
        left: distance from the picture's left edge, of the square before it is turned; negative
            beyond the edge.
        top: distance from the picture's top edge, likewise.
        size: side of the square.
        kind: "face" around a face that was found, "centre", "aligned" for CelebA's crop of its
            aligned pictures, or "given" by the user.
        face: number of the face from left to right, from 1, if the picture has several faces;
            otherwise 0.
        faces: number of faces that were found; None if no faces were searched for.
        turn: degrees clockwise by which the square is turned about its centre, in [-180, 180].
        doubt: how likely the square is not aligned with a face, in [0, 1]; 0 for squares that were
            not searched.
    """

    left: int
    top: int
    size: int
    kind: str = CENTRE
    face: int = 0
    faces: int | None = None
    turn: float = 0.0
    doubt: float = 0.0

    @property
    def is_uncertain(self) -> bool:
        """Whether the square may hold no face, or one that is not aligned, although one was
        searched for."""
        return self.faces == 0 or self.doubt >= UNCERTAIN

    @property
    def setting(self) -> str:
        """The crop setting that gives the square, "X,Y,SIZE" or "X,Y,SIZE,TURN"."""
        return f"{self.left},{self.top},{self.size}" + (f",{self.degrees}" if self.turn else "")

    @property
    def degrees(self) -> str:
        """The turn in decimals, all that a setting has."""
        return f"{self.turn:.{DECIMALS}f}".rstrip("0").rstrip(".")

    def is_whole(self, height: int, width: int) -> bool:
        """Return whether the square is a whole picture of this size, as it is."""
        return (self.left, self.top, self.turn) == (0, 0, 0) and self.size == height == width

    def beyond(self, height: int, width: int) -> bool:
        """Return whether the square reaches beyond a picture of this size."""
        cos, sin = cos_sin(self.turn)
        centre = self.left + self.size / 2, self.top + self.size / 2
        reach = (abs(cos) + abs(sin)) * self.size / 2
        return any(at < reach or at + reach > side
                   for at, side in zip(centre, (width, height), strict=True))

    def check_inside(self, height: int, width: int) -> None:
        """Raise InvalidInputError unless the centre is in a picture of this size, and the side at
        most twice its."""
        x, y, most = self.left + self.size / 2, self.top + self.size / 2, 2 * max(height, width)
        if not (0 <= x <= width and 0 <= y <= height and self.size <= most):
            raise InvalidInputError(
                f"the crop {self.setting} has its centre at ({x:g}, {y:g}) and a side of "
                f"{self.size}, and the picture has {width}x{height} pixels; give a square whose "
                f"centre is in the picture and SIZE up to {most}")

    def take(self, image: Pixels) -> Pixels:
        """Return the square's pixels, [side, side, C], of `image` [H, W, C]: a view if it is
        upright and inside.

        A large square that is no view is reduced by a whole number, so its side is smaller than
        `size`.
        """
        height, width = image.shape[:2]
        if not self.turn and not self.beyond(height, width):
            return image[self.top : self.top + self.size, self.left : self.left + self.size]
        import numpy as np  # the settings above are in the command line's help
        from PIL import Image

        (cos, sin), factor = cos_sin(self.turn), max(1, self.size // ENOUGH)
        # bicubic samples take 2 pixels around
        reach = math.ceil((abs(cos) + abs(sin)) * self.size / 2) + 4 * factor
        x, y = self.left + self.size / 2, self.top + self.size / 2
        # The part of the picture that the square touches, reduced.
        left, top = max(math.floor(x) - reach, 0), max(math.floor(y) - reach, 0)
        part = image[top : max(math.ceil(y) + reach, 1), left : max(math.ceil(x) + reach, 1)]
        small = Image.fromarray(part[:, :, 0] if part.shape[2] == 1 else part).reduce(factor)
        x, y, side = (x - left) / factor, (y - top) / factor, self.size // factor
        # Its edges are repeated as far as the square reaches.
        margin = math.ceil(reach / factor) + 2
        columns, rows = (np.arange(math.floor(at) - margin, math.ceil(at) + margin)
                         for at in (x, y))
        pixels = np.asarray(small)
        wide = pixels[rows.clip(0, len(pixels) - 1)[:, None], columns.clip(0, pixels.shape[1] - 1)]
        x, y = x - columns[0], y - rows[0]
        scale = self.size / factor / side
        cos, sin = cos * scale, sin * scale
        matrix = cos, -sin, x - (cos - sin) * side / 2, sin, cos, y - (sin + cos) * side / 2
        taken = Image.fromarray(wide).transform((side, side), Image.Transform.AFFINE, matrix,
                                                Image.Resampling.BICUBIC)
        return np.asarray(taken).reshape(side, side, image.shape[2])


def cos_sin(turn: float) -> tuple[float, float]:
    """Return cosine and sine of degrees, rounded to digits on which all mathematical libraries
    agree."""
    return round(math.cos(math.radians(turn)), 12), round(math.sin(math.radians(turn)), 12)


def parse_crop(setting: str, least: int = 1) -> Crop | None:
    """Return the square of a setting "X,Y,SIZE" or "X,Y,SIZE,TURN", SIZE at least `least`; None for
    other CROPS."""
    if isinstance(setting, str) and setting in (FACE, CENTRE):
        return None
    found = _CROP.fullmatch(setting) if isinstance(setting, str) else None
    turn = float(found[4] or 0) + 0.0 if found else 0.0  # 0 for -0
    if found is None or not -180 <= turn <= 180:
        raise ConfigError("crop must be face, centre, X,Y,SIZE in pixels from the top left corner, "
                          "such as 400,250,800, or X,Y,SIZE,TURN with degrees clockwise, such as "
                          f"400,250,800,-7.5, not {shown(setting)}")
    left, top, size = (int(found[number]) for number in (1, 2, 3))
    if size < least:
        raise ConfigError(f"crop {setting} has a SIZE of {size}; the model needs at least {least} "
                          "pixels")
    return Crop(left, top, size, "given", turn=turn)
