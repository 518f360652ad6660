"""Faces: the sizes of a network's input and output, conversion between pictures and tokens, reduction of photographs.

A token is one intensity in 0..255. A picture is the sequence of its intensities in raster order; the red, green and
blue of a pixel are consecutive. Photographs are reduced as in Tensor2Tensor's Img2imgCeleba: crop, then exact area
averaging with truncation.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np
import numpy.typing as npt
from PIL import Image

from superres.config import FACES, ModelConfig, is_whole, require
from superres.errors import InvalidInputError
from superres.tasks.consistency import CellLimits, cell_limits
from superres.tasks.pictures import Pixels
from superres.tasks.pictures import read_image as read_image  # for users

Int64 = npt.NDArray[np.int64]
Source = Literal["auto", "lowres", "photo"]

CHANNELS = 3
INTENSITIES = 256
SOURCES: tuple[str, ...] = get_args(Source)
ENLARGEMENTS = {"nearest": Image.Resampling.NEAREST, "bicubic": Image.Resampling.BICUBIC}
SMALLEST_CROP = 0.8
"""Smallest side of a random crop, over the side of the picture."""
CELEBA_ALIGNED = (218, 178)
"""Height and width of CelebA's aligned pictures."""


def area_reduce(images: Pixels, rows: int, columns: int, *, is_reduced: bool = False) -> Pixels:
    """Average boxes of fractional size exactly and truncate, as Tensor2Tensor's Img2imgCeleba does.

    Truncation lowers intensities by half a grey level on average. Pictures that were reduced before have lost this
    half already, so their averages are rounded.

    Args:
        images: uint8 [..., H, W, C]; H is at least `rows`, and W is at least `columns`.
        rows: number of rows of the result, at least 1.
        columns: number of columns of the result, at least 1.
        is_reduced: whether `images` are truncated averages themselves.

    Returns:
        uint8 [..., rows, columns, C].

    Raises:
        InvalidInputError: the images are not uint8, or the result would be larger.
    """
    if images.dtype != np.uint8 or images.ndim < 3:
        raise InvalidInputError(f"area_reduce needs uint8 [..., H, W, C], not {_describe(images)}; convert it first")
    height, width = images.shape[-3:-1]
    if not (1 <= rows <= height and 1 <= columns <= width):
        raise InvalidInputError(f"cannot reduce {height}x{width} to {rows}x{columns}; choose a smaller size")
    total = _box_sums(_box_sums(images, rows, -3), columns, -2)
    half = height * width // 2 if is_reduced else 0
    return np.asarray((total + half) // (height * width), np.uint8)


def _describe(array: npt.NDArray[Any]) -> str:
    return f"{array.dtype} {list(array.shape)}"


def _box_sums(values: npt.NDArray[Any], size: int, axis: int) -> Int64:
    """Sum `size` equal boxes along `axis`, in units of 1/`size` of an element, so that all sums are whole numbers."""
    length = values.shape[axis]
    edge, rest = np.divmod(np.arange(size + 1, dtype=np.int64) * length, size)
    # Sum box by box; np.add.reduceat would copy the whole picture to int64, over 1 GB for a large photograph.
    boxes = np.split(values, edge[1:-1], axis=axis)
    whole = np.stack([box.sum(axis=axis, dtype=np.int64) for box in boxes], axis=axis)
    # An element that a box edge divides belongs to both boxes in proportion. The last edge has rest 0.
    at_edge = np.take(values, np.minimum(edge, length - 1), axis=axis).astype(np.int64)
    before = at_edge * np.expand_dims(rest, tuple(range(1, -axis)))
    return cast(Int64, size * whole + np.diff(before, axis=axis))


def crop_celeba(image: Pixels) -> Pixels:
    """Crop Img2imgCeleba's 138x138 face from an aligned CelebA picture, uint8 [218, 178, 3].

    Raises:
        InvalidInputError: the picture has another shape.
    """
    if image.shape != (*CELEBA_ALIGNED, 3):
        raise InvalidInputError(f"the CelebA crop needs [218, 178, 3], not {list(image.shape)}; use aligned pictures")
    return image[40:178, 20:158]


def crop_square(image: Pixels) -> Pixels:
    """Crop a square from uint8 [H, W, 3]: the CelebA crop if it is 178 wide and 218 high, otherwise the centre."""
    height, width = image.shape[:2]
    if (height, width) == CELEBA_ALIGNED:
        return crop_celeba(image)
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return image[top : top + side, left : left + side]


def encode(images: Pixels) -> Int64:
    """Convert uint8 [N, h, w, 3] to tokens, int64 [N, h * w * 3] in 0..255, in raster order, R G B.

    Raises:
        InvalidInputError: `images` has another type or shape.
    """
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != CHANNELS:
        raise InvalidInputError(f"images must be uint8 [N, h, w, 3], not {_describe(images)}; convert to RGB")
    return images.reshape(len(images), int(np.prod(images.shape[1:]))).astype(np.int64)


def enlarge(images: Pixels, method: str, side: int) -> Pixels:
    """Enlarge uint8 [N, h, w, 3] to [N, side, side, 3] with Pillow's "nearest" or "bicubic", for comparison.

    Raises:
        InvalidInputError: the method is unknown.
    """
    if method not in ENLARGEMENTS:
        raise InvalidInputError(f"unknown enlargement {method!r}; known: {', '.join(ENLARGEMENTS)}")
    enlarged = [np.asarray(Image.fromarray(image).resize((side, side), ENLARGEMENTS[method])) for image in images]
    return np.array(enlarged, np.uint8).reshape(-1, side, side, CHANNELS)


@dataclass(frozen=True)
class FaceTask:
    """Square faces at two sizes: those of a network's input and output.

    Attributes:
        source: side of the input in pixels.
        target: side of the output in pixels, a whole multiple of `source`.

    Raises:
        ConfigError: a side is not a positive whole number, or `target` is not a multiple of `source`.
    """

    source: int
    target: int
    name: ClassVar[str] = FACES

    def __post_init__(self) -> None:
        sides = is_whole(self.source) and is_whole(self.target) and 1 <= self.source <= self.target
        require(sides and self.target % self.source == 0,
                f"faces need a target side that is a whole multiple of the source side, not {self.target} for "
                f"{self.source}")

    @classmethod
    def of(cls, network: ModelConfig) -> FaceTask:
        """Return the task of a network.

        Raises:
            ConfigError: the network's shapes are not those of square RGB pictures.
        """
        shapes = network.source_shape, network.target_shape
        require(all(len(shape) == 3 and shape[0] == shape[1] and shape[2] == CHANNELS for shape in shapes),
                f"faces are square RGB pictures, but the network has source_shape {list(shapes[0])} and target_shape "
                f"{list(shapes[1])}; give [side, side, {CHANNELS}]")
        return cls(network.source_shape[0], network.target_shape[0])

    @property
    def source_shape(self) -> tuple[int, int, int]:
        """Shape of an input."""
        return self.source, self.source, CHANNELS

    @property
    def target_shape(self) -> tuple[int, int, int]:
        """Shape of an output."""
        return self.target, self.target, CHANNELS

    @property
    def source_size(self) -> str:
        """The input's size as words write it, such as "6x6"."""
        return f"{self.source}x{self.source}"

    @property
    def target_size(self) -> str:
        """The output's size as words write it, such as "18x18"."""
        return f"{self.target}x{self.target}"

    @property
    def large(self) -> int:
        """Smallest side of a picture from which random crops are cut: no crop is smaller than a target."""
        return math.ceil(self.target / SMALLEST_CROP)

    def encode(self, images: Pixels) -> Int64:
        """Convert inputs, uint8 [N, source, source, 3], to tokens, int64 [N, S]: see `encode`.

        Raises:
            InvalidInputError: `images` has another type or shape.
        """
        if images.dtype != np.uint8 or images.shape[1:] != self.source_shape:
            raise InvalidInputError(f"sources are {images.dtype} {images.shape}; give uint8 (N, *{self.source_shape})")
        return encode(images)

    def decode(self, tokens: npt.ArrayLike) -> Pixels:
        """Convert tokens, whole numbers [N, T] in 0..255, to outputs, uint8 [N, target, target, 3].

        Raises:
            InvalidInputError: `tokens` has another type or shape, or a token is out of range.
        """
        array = np.asarray(tokens)
        length = math.prod(self.target_shape)
        if not np.issubdtype(array.dtype, np.integer) or array.ndim != 2 or array.shape[1] != length:
            raise InvalidInputError(f"tokens must be whole numbers [N, {length}], not {_describe(array)}; pass one row "
                                    "per face")
        low, high = (array.min(), array.max()) if array.size else (0, 0)
        if low < 0 or high >= INTENSITIES:
            raise InvalidInputError(f"tokens must be in 0..{INTENSITIES - 1}, not {low}..{high}; decode them with "
                                    "their own task")
        return array.astype(np.uint8).reshape(-1, *self.target_shape)

    def limits(self, intensities: int = INTENSITIES) -> CellLimits:
        """Return the limits under which an output reduces to exactly its input."""
        return cell_limits(self.source_shape, self.target_shape, intensities)

    def to_source(self, image: Pixels, source: Source = "auto") -> Pixels:
        """Make the network's input from a picture.

        Args:
            image: uint8 [H, W, 3], at least as large as the input.
            source: "auto" leaves a picture of the input's size unchanged and reduces larger ones; "lowres" requires the
                input's size; "photo" crops and reduces.

        Returns:
            uint8 [source, source, 3].

        Raises:
            InvalidInputError: `source` is unknown, the picture is too small, or `source` is "lowres" and the picture
                has another size.
        """
        if source not in SOURCES:
            raise InvalidInputError(f"unknown source {source!r}; known: {', '.join(SOURCES)}")
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != CHANNELS:
            raise InvalidInputError(f"an image must be uint8 [H, W, 3], not {_describe(image)}; convert it to RGB")
        height, width = image.shape[:2]
        if source == "lowres" and not self.is_source(image):
            raise InvalidInputError(f"source 'lowres' needs images of {self.source_size}, not {width}x{height}; use "
                                    "'auto' or 'photo'")
        if min(height, width) < self.source:
            raise InvalidInputError(f"an image must be at least {self.source_size}, not {width}x{height}; use a larger "
                                    "one")
        return self.source_of(crop_square(image))

    def is_source(self, image: Pixels) -> bool:
        """Return whether a picture [H, W, C] has the input's size, and so is an input as it is."""
        return image.shape[:2] == self.source_shape[:2]

    def source_of(self, square: Pixels) -> Pixels:
        """Return a square, uint8 [side, side, C], reduced to the input's size."""
        return area_reduce(square, self.source, self.source)

    def target_of(self, square: Pixels) -> Pixels:
        """Return a square, uint8 [side, side, C], reduced to the output's size."""
        return area_reduce(square, self.target, self.target)

    def both_sizes(self, reduced: Pixels) -> tuple[Pixels, Pixels]:
        """Return truncated averages, uint8 [..., side, side, 3], reduced to the output's and to the input's size."""
        high, low = (area_reduce(reduced, side, side, is_reduced=True) for side in (self.target, self.source))
        return high, low

    def enlarge(self, images: Pixels, method: str) -> Pixels:
        """Enlarge pictures, uint8 [N, h, w, 3], to the output's size: see `enlarge`."""
        return enlarge(images, method, self.target)

    def random_crop(self, picture: Pixels, rng: np.random.Generator) -> tuple[Pixels, Pixels]:
        """Cut a random square from a reduced picture and reduce it to both sizes.

        The side is uniform between SMALLEST_CROP and 1 of the picture's side. The place is uniform inside the picture,
        so the mean centre is the picture's centre.

        Args:
            picture: uint8 [side, side, 3], a truncated average of a crop, with a side of at least `large`.
            rng: random numbers.

        Returns:
            uint8 [target, target, 3] and [source, source, 3], both averaged from the same square.
        """
        whole = len(picture)
        side = int(rng.integers(math.ceil(SMALLEST_CROP * whole), whole, endpoint=True))
        top, left = rng.integers(0, whole - side, 2, endpoint=True)
        return self.both_sizes(picture[top : top + side, left : left + side])


def image_key(source: Pixels, sample: int) -> int:
    """Return the key of an image's sampling noise, in [0, 2**63).

    The key depends on the pixels and the number of the sample only. So an output does not depend on the file's name,
    the order of the inputs, the batch or the shard.

    Args:
        source: uint8 [source, source, 3].
        sample: number of the sample, from 1.
    """
    digest = hashlib.sha256(np.ascontiguousarray(source).tobytes() + sample.to_bytes(8, "big")).digest()
    return int.from_bytes(digest[:8], "big") >> 1
