"""Make a study's pairs from finished pictures, and encode pictures for the browser.

A response must not reveal which method made a picture, except by its pixels. Each picture is
therefore enlarged and encoded as a PNG without metadata and without compression, so that all
responses have the same length.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from superres.config import require
from superres.errors import InvalidInputError
from superres.survey.study import (
    CAMERA,
    GOLD,
    MAIN,
    PRACTICE,
    QUESTION,
    TORN,
    Comparison,
    StudySettings,
)

Pixels = npt.NDArray[np.uint8]
"""A picture, uint8 [H, W, 3] (RGB)."""

SHUFFLED = "shuffled"
"""Obvious pairs of a picture beside that picture with its tiles in another order, which no camera
takes."""
RIGHT, WRONG = "right", "wrong"
"""Methods of gold and practice pairs, by the obvious answer."""

MAX_GOLD_PAIRS = 20
TILES = 4


@dataclass(frozen=True)
class Method:
    """The pictures of a method by the image's name, which is the same in every method, and their
    origin.

    `name` is unique in the study; `CAMERA` for photographs. `record` is serialisable as JSON: a
    folder, or a checkpoint and decoding settings.
    """

    name: str
    pictures: Mapping[str, Pixels]
    record: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pair:
    """The pictures a and b of one image, and their methods; or a single picture, which is a.

    `kind` is `MAIN`, `GOLD` or `PRACTICE`. Gold and practice pairs belong to no comparison; it has
    the name of their kind. Their correct answer is a, or for a single picture the judgement that
    its method names.
    """

    kind: str
    comparison: str
    image: str
    methods: tuple[str, ...]
    pictures: tuple[Pixels, ...]


ComparedMethods = tuple[Comparison, Method, Method | None]
"""A comparison and its methods; None if the pictures of one method are judged by themselves."""
ObviousPairs = Mapping[str, tuple[Pixels, Pixels]]
"""Pictures by image: the obvious answer to the study's question, and the other picture."""


def compare_methods(methods_a: Sequence[Method],
                    methods_b: Sequence[Method]) -> list[ComparedMethods]:
    """Pair the n-th methods of both lists; a list of one method is paired with every method of the
    other list.

    Photographs become method b, so that the preference for method a is its fool rate. Raise
    ConfigError if the lengths do not match, a method is paired with itself, or two methods share a
    name.
    """
    counts = len(methods_a), len(methods_b)
    require(min(counts) >= 1 and (counts[0] == counts[1] or 1 in counts),
            f"{counts[0]} --method-a and {counts[1]} --method-b do not pair off; give equally "
            "many, or one of either")
    records: dict[str, dict[str, Any]] = {}
    for method in (*methods_a, *methods_b):
        require(records.setdefault(method.name, method.record) == method.record,
                f"two different methods are named {method.name!r}; tell them apart with name=")
    found: dict[str, ComparedMethods] = {}
    for index in range(max(counts)):
        a, b = methods_a[index % counts[0]], methods_b[index % counts[1]]
        if a.name == CAMERA:
            a, b = b, a
        require(a.name != b.name, f"method {a.name!r} is compared with itself; give one of the two "
                "another name=")
        comparison = Comparison(f"{a.name} vs {b.name}", a.name, b.name)
        require(comparison.name not in found, f"the comparison {comparison.name!r} is given twice; "
                "leave one out")
        found[comparison.name] = (comparison, a, b)
    return list(found.values())


def judge_methods(methods: Sequence[Method]) -> list[ComparedMethods]:
    """Return the methods of a study of single pictures; raise ConfigError without methods, or if
    two share a name."""
    require(bool(methods), "there is no method to judge; give one or more")
    names = [method.name for method in methods]
    twice = next((name for name in names if names.count(name) > 1), None)
    require(twice is None, f"two methods are named {twice!r}; leave one out, or tell them apart "
            "with name=")
    return [(Comparison(method.name, method.name), method, None) for method in methods]


def same_size(methods: Mapping[str, Mapping[str, Pixels]], images: Sequence[str]) -> list[str]:
    """Return those of the `images` whose pictures have one size in all `methods`; pictures by
    method and image.

    Raise InvalidInputError if there is no such image.
    """
    shapes = {image: {name: pictures[image].shape for name, pictures in methods.items()}
              for image in images}
    found = [image for image, own in shapes.items() if len(set(own.values())) == 1]
    if not found:
        sizes = ", ".join(f"{shape[1]}x{shape[0]} in {name}"
                          for name, shape in shapes[images[0]].items())
        raise InvalidInputError(f"pictures differ in size, which would reveal methods: {images[0]} "
                                f"is {sizes}; resize them")
    return found


def choose_images(images: Sequence[str], count: int, seed: int) -> list[str]:
    """Return a sorted random sample of `count` images, determined by `seed` and the names of the
    images.

    Raise ConfigError if `count` is not in 1..len(images).
    """
    require(1 <= count <= len(images), f"--pairs {count} asked for, but there are {len(images)} "
            f"images; give a number from 1 to {len(images)}")
    ordered = sorted(images)
    chosen = np.random.default_rng(seed).choice(len(ordered), count, replace=False)
    return sorted(ordered[i] for i in chosen)


def make_pairs(
    compared: Sequence[ComparedMethods], settings: StudySettings,
    obvious: ObviousPairs | str | None = None,
) -> list[Pair]:
    """Return the pairs of a study: one per comparison and image, then the practice and gold pairs.

    Args:
        compared: the comparisons.
        settings: the numbers of practice and gold pairs, and the seed.
        obvious: practice and gold pairs; or `SHUFFLED`, which makes them of photographs if a
            comparison has some, else of pictures of the first comparison's last method. None is
            `SHUFFLED` for the default question, and no pairs for others. A study of single pictures
            has the shuffled picture only, which is torn.

    Raises:
        ConfigError: single pictures are to be judged beside pairs with obvious answers.
        InvalidInputError: methods have different images, pictures differ in size, or a picture to
            be shuffled has tiles of one colour.
    """
    methods = {method.name: method.pictures for _, *own in compared for method in own if method}
    images = sorted(set[str]().union(*methods.values()))
    if (any(len(pictures) < len(images) for pictures in methods.values())
        or same_size(methods, images) != images):
        raise InvalidInputError(f"{', '.join(methods)} must have pictures of the same images, with "
                                "the same sizes; add the missing pictures and resize the others")
    pairs = [Pair(MAIN, comparison.name, image, tuple(method.name for method in own if method),
                  tuple(method.pictures[image] for method in own if method))
             for comparison, *own in compared for image in images]
    if obvious is None and settings.question != QUESTION:
        return pairs
    require(not settings.judge or obvious == SHUFFLED, "judged pictures take no pairs with an "
            f"obvious answer; give --obvious {SHUFFLED}, whose pictures are torn, or none")
    source = methods.get(CAMERA, methods[compared[0][0].method_b or compared[0][0].method_a])
    given = obvious if isinstance(obvious, Mapping) else None
    return pairs + _obvious_pairs(settings, source, given)


def _obvious_pairs(settings: StudySettings, source: Mapping[str, Pixels],
                   given: ObviousPairs | None) -> list[Pair]:
    """Return the practice and gold pairs: those that are `given`, or of pictures of `source`."""
    rng, pairs = np.random.default_rng((settings.seed, 1)), []
    names = sorted(source if given is None else given)
    cycle = itertools.cycle([names[i] for i in rng.permutation(len(names))])
    for kind, count in ((PRACTICE, settings.practice),
                        (GOLD, min(MAX_GOLD_PAIRS, 2 * settings.gold))):
        for image in itertools.islice(cycle, min(count, len(names))):
            pictures = ((source[image], shuffle_tiles(source[image], rng)) if given is None
                        else given[image])
            pairs.append(Pair(kind, kind, image, (TORN,), pictures[1:]) if settings.judge else
                         Pair(kind, kind, image, (RIGHT, WRONG), pictures))
    return pairs


def shuffle_tiles(pixels: Pixels, rng: np.random.Generator) -> Pixels:
    """Return a picture with its 4 x 4 tiles in a random order.

    Raise InvalidInputError if the picture is smaller than 4 x 4, or 20 random orders do not change
    it.
    """
    rows, columns = pixels.shape[0] // TILES, pixels.shape[1] // TILES
    corners = [(r * rows, c * columns) for r in range(TILES) for c in range(TILES)]
    for _ in range(20):
        result: Pixels = pixels.copy()
        for (top, left), place in zip(corners, rng.permutation(len(corners)), strict=True):
            y, x = corners[place]
            result[top:top + rows, left:left + columns] = pixels[y:y + rows, x:x + columns]
        if not np.array_equal(result, pixels):
            return result
    raise InvalidInputError("a picture of one colour (or under 4x4) makes no obvious pair; leave "
                            "it out, set --gold 0 --practice 0, or give --obvious FOLDER")


def encode_png(pixels: Pixels) -> bytes:
    """Encode a picture as the PNG that the store holds."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def display_png(packed: bytes, scale: int, interpolation: str) -> bytes:
    """Return the PNG for the browser: a stored picture enlarged by the integer `scale`, without
    metadata.

    The PNG is not compressed, so its length and the time to encode it depend only on its width and
    height.
    """
    with Image.open(io.BytesIO(packed), formats=["PNG"]) as image:
        size = image.width * scale, image.height * scale
        enlarged = image.convert("RGB").resize(size, Image.Resampling[interpolation.upper()])
    buffer = io.BytesIO()
    enlarged.save(buffer, "PNG", compress_level=0)
    return buffer.getvalue()
