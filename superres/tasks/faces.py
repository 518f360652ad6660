"""Faces: the sizes of a network's input and output, conversion between pictures and tokens,
reduction of photographs.

A token is one intensity in 0..255. A picture is the sequence of its intensities in raster order;
the red, green and blue of a pixel are consecutive. Photographs are reduced as in Tensor2Tensor's
Img2imgCeleba: crop, then exact area averaging with truncation. Pictures and tokens of another type,
    shape or range raise InvalidInputError.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
from PIL import Image

from superres.config import FACES, ModelConfig, is_whole, require
from superres.errors import InvalidInputError, shown
from superres.pictures.read import Pixels
from superres.tasks.consistency import CellLimits, cell_limits

Int64 = npt.NDArray[np.int64]

CHANNELS = 3
INTENSITIES = 256
ENLARGEMENTS = {"nearest": Image.Resampling.NEAREST, "bicubic": Image.Resampling.BICUBIC,
                "lanczos": Image.Resampling.LANCZOS}
SMALLEST_CROP = 0.8  # side of a random crop, over the side of the picture
CELEBA_ALIGNED = (218, 178)  # height and width of CelebA's aligned pictures


def area_reduce(images: Pixels, rows: int, columns: int, *, is_reduced: bool = False) -> Pixels:
    """Reduce uint8 [..., H, W, C] to [..., rows, columns, C] by exact averages of boxes of
    fractional size, truncated.

    Tensor2Tensor's Img2imgCeleba does so. Truncation lowers intensities by half a grey level on
    average. Pictures that are truncated averages themselves (`is_reduced`) have lost this half
    already, so their averages are rounded.
    """
    if images.dtype != np.uint8 or images.ndim < 3:
        raise InvalidInputError(f"area_reduce needs uint8 [..., H, W, C], not {_describe(images)}; "
                                "convert it first")
    height, width = images.shape[-3:-1]
    if not (1 <= rows <= height and 1 <= columns <= width):
        raise InvalidInputError(f"cannot reduce {height}x{width} to {rows}x{columns}; choose a "
                                "smaller size")
    total = _box_sums(_box_sums(images, rows, -3), columns, -2)
    half = height * width // 2 if is_reduced else 0
    return np.asarray((total + half) // (height * width), np.uint8)


def _describe(array: object) -> str:
    return f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else shown(array)


def _box_sums(values: npt.NDArray[Any], size: int, axis: int) -> Int64:
    """Sum `size` equal boxes along `axis`, in units of 1/`size` of an element, so that all sums are
    whole numbers."""
    length = values.shape[axis]
    edge, rest = np.divmod(np.arange(size + 1, dtype=np.int64) * length, size)
    # Sum box by box; np.add.reduceat would copy the whole picture to int64, over 1 GB for a large
    # photograph.
    boxes = np.split(values, edge[1:-1], axis=axis)
    whole = np.stack([box.sum(axis=axis, dtype=np.int64) for box in boxes], axis=axis)
    # An element that a box edge divides belongs to both boxes in proportion. The last edge has rest
    # 0.
    at_edge = np.take(values, np.minimum(edge, length - 1), axis=axis).astype(np.int64)
    before = at_edge * np.expand_dims(rest, tuple(range(1, -axis)))
    return cast(Int64, size * whole + np.diff(before, axis=axis))


def encode(images: Pixels) -> Int64:
    """Convert uint8 [N, h, w, 3] to tokens, int64 [N, h * w * 3] in 0..255, in raster order, R G
    B."""
    if not (isinstance(images, np.ndarray) and images.dtype == np.uint8 and images.ndim == 4
            and images.shape[3] == CHANNELS):
        raise InvalidInputError(f"images must be uint8 [N, h, w, 3], not {_describe(images)}; "
                                "convert to RGB")
    return images.reshape(len(images), int(np.prod(images.shape[1:]))).astype(np.int64)


def enlarge(images: Pixels, method: str, side: int) -> Pixels:
    """Enlarge uint8 [N, h, w, 3] to [N, side, side, 3] with a method of ENLARGEMENTS, for
    comparison."""
    enlarged = [np.asarray(Image.fromarray(image).resize((side, side), ENLARGEMENTS[method]))
                for image in images]
    return np.array(enlarged, np.uint8).reshape(-1, side, side, CHANNELS)


@dataclass(frozen=True)
class FaceTask:
    """Square faces at two sizes: those of a network's input and output.

    Attributes:
        source: side of the input in pixels.
        target: side of the output in pixels, a whole multiple of `source`; another value raises
            ConfigError.
        between: sides of the inputs of a cascade's later stages.
    """

    source: int
    target: int
    between: tuple[int, ...] = ()
    name: ClassVar[str] = FACES

    def __post_init__(self) -> None:
        sides = is_whole(self.source) and is_whole(self.target) and 1 <= self.source <= self.target
        require(sides and self.target % self.source == 0, "faces need a target side that is a "
                f"whole multiple of the source side, not {self.target} for {self.source}")

    @classmethod
    def of(cls, network: ModelConfig) -> FaceTask:
        """Return the task of a network; raise ConfigError unless it maps square RGB pictures to
        such."""
        shapes = network.source_shape, network.target_shape
        require(all(len(shape) == 3 and shape[0] == shape[1] and shape[2] == CHANNELS
                    for shape in shapes),
                "faces are square RGB pictures, but the network has source_shape "
                f"{list(shapes[0])} and target_shape {list(shapes[1])}; give [side, side, "
                f"{CHANNELS}]")
        return cls(network.source_shape[0], network.target_shape[0])

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Sides of the inputs of all stages."""
        return self.source, *self.between

    def from_size(self, side: int) -> FaceTask:
        """Return the sizes of the stages from the one whose inputs have `side` pixels; ConfigError
        if none has."""
        require(side in self.starts, f"pictures of {self.target_size} are drawn from inputs of "
                f"{' or '.join(map(str, self.starts))} pixels, not {shown(side)}; choose another "
                "--start or --checkpoint")
        return FaceTask(int(side), self.target,
                        tuple(other for other in self.between if other > side))

    @cached_property
    def source_shape(self) -> tuple[int, int, int]:
        """Shape of an input."""
        return self.source, self.source, CHANNELS

    @cached_property
    def target_shape(self) -> tuple[int, int, int]:
        """Shape of an output."""
        return self.target, self.target, CHANNELS

    @cached_property
    def source_size(self) -> str:
        """The input's size in messages, such as "6x6"."""
        return f"{self.source}x{self.source}"

    @cached_property
    def target_size(self) -> str:
        """The output's size in messages, such as "18x18"."""
        return f"{self.target}x{self.target}"

    @property
    def large(self) -> int:
        """Smallest side of a picture from which random crops are cut: no crop is smaller than a
        target."""
        return math.ceil(self.target / SMALLEST_CROP)

    def encode(self, images: Pixels) -> Int64:
        """Convert inputs, uint8 [N, source, source, 3], to tokens, int64 [N, S]: see `encode`."""
        tokens = encode(images)
        if images.shape[1:] != self.source_shape:
            raise InvalidInputError(f"sources are {_describe(images)}; give uint8 [N, "
                                    f"*{list(self.source_shape)}]")
        return tokens

    def decode(self, tokens: npt.ArrayLike) -> Pixels:
        """Convert tokens, whole numbers [N, T] in 0..255, to outputs, uint8 [N, target, target,
        3]."""
        array = np.asarray(tokens)
        length = math.prod(self.target_shape)
        if (not np.issubdtype(array.dtype, np.integer) or array.ndim != 2 or array.shape[1]
            != length):
            raise InvalidInputError(f"tokens must be whole numbers [N, {length}], not "
                                    f"{_describe(array)}; pass one row per face")
        if array.size and not 0 <= array.min() <= array.max() < INTENSITIES:
            raise InvalidInputError(f"tokens must be in 0..{INTENSITIES - 1}, not "
                                    f"{array.min()}..{array.max()}; decode them with their own "
                                    "task")
        return array.astype(np.uint8).reshape(-1, *self.target_shape)

    def limits(self, intensities: int = INTENSITIES, first: FaceTask | None = None) -> CellLimits:
        """Return the limits under which an output reduces to exactly its input, and to that of
        `first`, a cascade's.

        See `cell_limits`.
        """
        coarser = None if first is None else first.source_shape
        return cell_limits(self.source_shape, self.target_shape, intensities, coarser)

    def is_source(self, image: Pixels) -> bool:
        """Return whether a picture [H, W, C] has the input's size, or that of a later stage's
        input."""
        return image.shape[0] == image.shape[1] and len(image) in self.starts

    def to_source(self, image: Pixels) -> Pixels:
        """Return a picture, uint8 [H, W, 3], that has the input's size; raise InvalidInputError if
        it has another."""
        if not self.is_source(image):
            raise InvalidInputError(f"source 'lowres' needs images of {self.source_size}, not "
                                    f"{image.shape[1]}x{image.shape[0]}; use 'auto' or 'photo'")
        return image

    def source_of(self, square: Pixels) -> Pixels:
        """Return a square, uint8 [side, side, C], reduced to the input's size; `is_source` needs no
        reduction."""
        return square if self.is_source(square) else area_reduce(square, self.source, self.source)

    def target_of(self, square: Pixels) -> Pixels:
        """Return a square, uint8 [side, side, C], reduced to the output's size."""
        return area_reduce(square, self.target, self.target)

    def both_sizes(self, reduced: Pixels) -> tuple[Pixels, Pixels]:
        """Return truncated averages, uint8 [..., side, side, 3], reduced to the output's and to the
        input's size."""
        high, low = (area_reduce(reduced, side, side, is_reduced=True)
                     for side in (self.target, self.source))
        return high, low

    def enlarge(self, images: Pixels, method: str) -> Pixels:
        """Enlarge pictures, uint8 [N, h, w, 3], to the output's size: see `enlarge`."""
        return enlarge(images, method, self.target)

    def random_crop(self, picture: Pixels, rng: np.random.Generator) -> tuple[Pixels, Pixels]:
        """Cut a random square from a truncated average, uint8 [side, side, 3], and return it at
        `both_sizes`.

        The picture's side is at least `large`; the square is one of `random_squares`.
        """
        (side, top, left), = random_squares(len(picture), 1, rng).T.tolist()
        return self.both_sizes(picture[top : top + side, left : left + side])


def random_squares(whole: int, count: int, rng: np.random.Generator) -> Int64:
    """Return sides, tops and lefts, int64 [3, count], of random squares in a picture with the side
    `whole`.

    The side is uniform between SMALLEST_CROP and 1 of the picture's, and the place is uniform
    inside the picture, so the mean centre is the picture's centre.
    """
    side = rng.integers(math.ceil(SMALLEST_CROP * whole), whole, count, endpoint=True)
    return np.stack([side, *rng.integers(0, whole - side, (2, count), endpoint=True)])


def image_key(source: Pixels, sample: int) -> int:
    """Return the key, in [0, 2**63), of the sampling noise of an input, uint8 [h, w, 3], and its
    sample 1, 2, ...

    It depends on nothing else, so an output does not depend on the file's name, the order of the
    inputs, the batch or the shard.
    """
    digest = hashlib.sha256(np.ascontiguousarray(source).tobytes()
                            + sample.to_bytes(8, "big")).digest()
    return int.from_bytes(digest[:8], "big") >> 1
