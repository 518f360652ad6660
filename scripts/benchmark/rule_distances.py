"""How far a rule's samples are from those of the network alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from rule_draws import Drawing, Drawn
from superres.config import DecodeConfig
from superres.decoding.plain.sampling import distribution, scaled
from superres.evaluation.intervals import Entries, Estimate, with_interval
from superres.evaluation.perceptual import LEAST_SIDE, Scores, st_lpips
from superres.pictures.read import Pixels
from superres.tasks.faces import area_reduce
from superres.testing import Tokens, chi_square, prefix_probabilities

LEVEL = 1e-3
"""A test of a rule fails below this p: 1 of 1,000 tests of right rules does."""
LOSSLESS, DIFFERS, NOT_FOUND = OUTCOMES = "lossless", "not lossless", "no difference found"
"""What is found of a rule. Tests can only fail to find a difference: a rule is called lossless if
it claims so, too, and its distribution was tested."""


class Beginning(NamedTuple):
    """The first `length` tokens of face number `face`, sampled by `settings` that leave few."""

    face: int
    length: int
    settings: Mapping[str, Any]


BEGINNINGS = (
    Beginning(0, 8, {"temperature": 1.0, "nucleus": 1.0, "sample_top_k": 2}),
    Beginning(1, 3, {"temperature": 1.0, "nucleus": 1.0, "sample_top_k": 6}),
    Beginning(2, 8, {"temperature": 0.7, "nucleus": 1.0, "sample_top_k": 2}),
)
"""At most 256 sequences of each, whose probabilities are enumerated."""


def known_probabilities(drawing: Drawing, options: DecodeConfig, face: int,
                        length: int) -> dict[Tokens, float]:
    """Return p1's probability of every sequence of the first `length` tokens of a face, after
    temperature and filters."""
    model = drawing.upscaler.scoring.on_torch()
    source = torch.from_numpy(drawing.source[face : face + 1])
    temperature = torch.full((1, 1, 1), float(options.temperatures[0]), dtype=torch.float64)

    def p1(prefixes: list[Tokens]) -> np.ndarray:
        read = torch.tensor([[0, *prefix] for prefix in prefixes])  # [N, d + 1]
        session = model.session(source.expand(len(read), -1), read.shape[1])
        scores = session.step(read, torch.zeros_like(read[:, 0])).scores[:, -1:]
        return np.asarray(distribution(scaled(scores, temperature, options))[:, 0])

    with torch.inference_mode():
        return prefix_probabilities(p1, length)


def chi_squares(drawing: Drawing, options: DecodeConfig, samples: int) -> list[float]:
    """Return p of a chi-square test of each of the `BEGINNINGS`.

    A block is no longer than the beginning, so that rejections are inside of it.
    """
    found = []
    for face, length, settings in BEGINNINGS[: len(drawing.source)]:
        size = min(drawing.upscaler.block_size(options), length)
        here = dataclasses.replace(options, **settings, block_size=size)
        drawn = drawing.beginnings(here, face, length, samples)
        test = chi_square(drawn, known_probabilities(drawing, here, face, length))
        found += [test.p] * (test.degrees > 0 or test.p == 0)  # else all sequences are too rare
    return found


@dataclass
class Reference:
    """The pictures that the network alone draws, with which those of rules are compared."""

    drawing: Drawing
    drawn: Drawn

    @cached_property
    def pictures(self) -> Pixels:
        """The pictures, uint8 [N, H, W, 3]."""
        return self.drawing.pictures(self.drawn)

    @cached_property
    def bits(self) -> Scores:
        """Bits/dim of each picture under p1, [N]."""
        return bits_of(self.drawing, self.pictures)

    @cached_property
    def st_lpips(self) -> Scores | None:
        """ST-LPIPS of each picture to the truth, [N]; None without its package."""
        return st_lpips_of(self.drawing, self.pictures)

    def distances(self, drawn: Drawn) -> Entries:
        """Return the distances of what a rule has drawn, with intervals of differences of the same
        faces."""
        pictures = self.drawing.pictures(drawn)
        bits = bits_of(self.drawing, pictures)
        perceptual = st_lpips_of(self.drawing, pictures)
        entries = (above("bits", bits, self.bits) | with_interval("bits_per_dim", bits)
                   | consistency(pictures, self.drawing.pairs.lr)
                   | {"equal_pictures": float((drawn.tokens == self.drawn.tokens).all(1).mean())})
        if perceptual is not None and self.st_lpips is not None:
            entries |= (above("st_lpips", perceptual, self.st_lpips)
                        | with_interval("st_lpips", perceptual))
        return entries


def above(name: str, scores: Scores, reference: Scores) -> Entries:
    """Return the entries of the mean difference of scores of the same faces, and p of Student's
    test that it is 0."""
    from scipy import stats  # slow to import

    difference = scores - reference
    p = float(stats.ttest_1samp(difference, 0).pvalue) if np.ptp(difference) else 1.0
    return Estimate.mean(difference).entries(f"{name}_above") | {f"{name}_p": p}


def bits_of(drawing: Drawing, pictures: Pixels) -> Scores:
    """Return the bits/dim of pictures under p1, [N]; batches side by side."""
    lr, upscaler = drawing.pairs.lr, drawing.upscaler
    batches = np.array_split(np.arange(len(pictures)), max(len(pictures) // 8, 1))
    return np.concatenate(drawing.side_by_side(
        lambda rows: upscaler.bits_per_dim(lr[rows], pictures[rows]), batches))


def st_lpips_of(drawing: Drawing, pictures: Pixels) -> Scores | None:
    """Return the ST-LPIPS of pictures to the true ones, [N]; None without its package, or for
    smaller pictures than it takes."""
    score = st_lpips() if pictures.shape[1] >= LEAST_SIDE else None
    return None if score is None else score(pictures, drawing.pairs.hr[: len(pictures)])


def consistency(pictures: Pixels, sources: Pixels) -> Entries:
    """Return the share of pictures that reduce to exactly their input, and the mean difference of
    the others from it in grey levels."""
    reduced = area_reduce(pictures, *sources.shape[1:3], is_reduced=True)
    off = np.abs(reduced.astype(np.float64) - sources[: len(pictures)]).mean((1, 2, 3))
    return with_interval("consistent", (off == 0).astype(np.float64)) | with_interval("off", off)


def outcome_of(found: Mapping[str, Any]) -> str:
    """Return what the tests of a rule's values say of its samples, one of `OUTCOMES`."""
    tests: Sequence[float] = [*found["chi_square"], found["bits_p"], found.get("st_lpips_p", 1.0)]
    if min(tests) < LEVEL:
        return DIFFERS
    return LOSSLESS if found["claims"] == LOSSLESS and found["chi_square"] else NOT_FOUND
