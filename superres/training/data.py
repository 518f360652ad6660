"""Batches of token pairs, in an order determined by seed and step, so that a resumed run sees the
same examples.

All kinds of batches have the same members: `batch_size`, the (mean) number of examples per batch
over all processes; `unit`, the name of the examples in the plural; `digest()`, which tells runs on
other examples apart; and `batch(step, part, parts)`, the share of process `part` of `parts` in a
batch.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from superres.config import require
from superres.system.machine import free_bytes
from superres.tasks.faces import random_squares
from superres.training.picture_operations import (
    CHANGE_UNIT,
    LARGEST_CHANGE,
    changed_pairs,
    reduce_squares,
    turned,
    turns_of,
)

CPU = torch.device("cpu")
AUGMENTED_SHARE = 0.5
"""Share of the inputs that conditioning augmentation changes."""
LARGEST_TURN = 4.0
"""Largest angle of a turned picture, in degrees to either side."""
LARGEST_SCALE = 1.05
"""Largest scale of a turned picture; the smallest is its inverse."""


class TokenBatch(NamedTuple):
    """Images or sentences as tokens, int64 [B, S] and [B, T].

    The first `true_count` targets are true, and a model decoded the others; None: all are true.
    `padding`, bool [B, S], is True at padding of a source. `lengths`, int64 [B], has the number of
    tokens of each target without its padding. Both are None without padding.
    """

    source: Tensor
    target: Tensor
    true_count: int | None = None
    padding: Tensor | None = None
    lengths: Tensor | None = None

    def to(self, device: torch.device) -> TokenBatch:
        """Return the batch on `device`; a GPU goes on computing meanwhile."""
        padding, lengths = (part if part is None else part.to(device, non_blocking=True)
                            for part in (self.padding, self.lengths))
        source, target = (part.to(device, non_blocking=True) for part in (self.source, self.target))
        return TokenBatch(source, target, self.true_count, padding, lengths)


@dataclass(frozen=True)
class Changes:
    """How images are changed, so that no epoch repeats another.

    With `drawn` or `input_noise`, half of the inputs look as if an earlier stage of a cascade had
    drawn them (conditioning augmentation: Ho et al. 2022, "Cascaded Diffusion Models for High
    Fidelity Image Generation", section 3): they lie between the true input and one of the pictures
    `drawn`, and have noise.

    Attributes:
        flip: mirror half of the images.
        large: larger pictures of the same images, uint8 [N, S, S, 3].
        crop_share: share of random crops (`random_squares`), in [0, 1].
        crops: pictures to cut them from, uint8 [M, S, S, 3], instead of `large`.
        turned_share: share of images, in [0, 1], that are turned by up to LARGEST_TURN degrees and
            scaled by up to LARGEST_SCALE. Both pictures of a pair are reduced from the turned
            larger picture; without one, the target is turned, which loses a little of its finest
            detail.
        drawn: arrays, uint8 [M, h, w, C], of the pictures that were drawn for the first M images.
        input_noise: the noise's largest standard deviation in grey levels.
    """

    flip: bool = True
    large: np.ndarray | None = None
    crop_share: float = 0.0
    crops: np.ndarray | None = None
    turned_share: float = 0.0
    drawn: Sequence[np.ndarray] = ()
    input_noise: float = 0.0


MIRRORED, AS_THEY_ARE = Changes(), Changes(flip=False)


class ImageBatches:
    """Random batches of pairs of images as tokens; the images are kept as uint8 on the device that
    gets the batches.

    Every random number is drawn on the CPU, and every operation on the device is exact: seed and
    step determine a batch on every device.
    """

    unit = "images"

    def __init__(
        self, low: np.ndarray, high: np.ndarray, batch_size: int, seed: int,
        changes: Changes = MIRRORED, doubled: np.ndarray | None = None,
        device: torch.device = CPU,
    ) -> None:
        """Copy the images, uint8 [N, h, w, C] and [N, H, W, C], to `device`; on the CPU they are
        not copied.

        An epoch has the images `doubled`, numbers int64 [D], twice.

        Raises:
            ConfigError: the images do not fit into the memory of a GPU.
        """
        large, crops, drawn = changes.large, changes.crops, changes.drawn
        arrays = [array for array in (low, high, large, crops, *drawn, doubled)
                  if array is not None]
        if device.type == "cuda":
            needed, free = sum(array.nbytes for array in arrays), free_bytes(device)
            require(needed <= free, f"the images take {needed / 1e9:,.1f} GB, and "
                    f"{free / 1e9:,.1f} GB of the GPU's memory are free; choose fewer with "
                    "--limit, or --device cpu")

        # how the batches are drawn, and the pictures that they are of
        self.batch_size, self.seed, self.device = batch_size, seed, device
        self.changes = replace(changes, large=None, crops=None, drawn=())  # these are copied
        self.examples = np.concatenate([np.arange(len(low)),
                                        *([] if doubled is None else [doubled])])
        self.content = digest_of(np.ascontiguousarray(array) for array in arrays)
        self.low, self.high = self._put(low), self._put(high)
        self.large = self.high if large is None else self._put(large)
        self.crops = (self._put(crops) if crops is not None else None if large is None
                      else self.large)
        # The longest first: those that have a picture of an image are then the first ones.
        self.drawn = [self._put(array) for array in sorted(drawn, key=len, reverse=True)]

    def digest(self) -> str:
        """Return a digest of the images."""
        return self.content

    def batch(self, step: int, part: int = 0, parts: int = 1) -> TokenBatch:
        """Return process `part`'s share of batch `step`.

        Each epoch is a new permutation; a batch that reaches the end of an epoch continues in the
        next one.

        Raises:
            ConfigError: the batch cannot be divided equally, so the mean of the shares' gradients
                would be wrong.
        """
        require(self.batch_size % parts == 0, f"{self.batch_size} images a batch cannot be shared "
                f"equally among {parts} processes; choose a multiple with --batch-size")
        # Every process draws the numbers of the whole batch, and uses those of its share.
        share, rng = slice(part, None, parts), np.random.default_rng((self.seed, step, 2))
        index = self._indices(step)[share]
        mirrored = (rng.random(self.batch_size) < (0.5 if self.changes.flip else 0.0))[share]
        crop_share = 0.0 if self.crops is None else self.changes.crop_share
        cropped, turns = rng.random(self.batch_size) < crop_share, self._turns(step)[:, share]

        # pairs of which some are cut anew, and some are turned
        rows = self._put(index)
        low, high = self.low[rows], self.high[rows]
        if self.crops is not None and cropped.any():
            squares = random_squares(self.crops.shape[1], self.batch_size, rng)[:, share]
            self._cut(low, high, self.crops, np.flatnonzero(cropped[share]),
                      index % len(self.crops), squares, turns)
        whole = np.array([[self.large.shape[1]], [0], [0]]).repeat(len(index), axis=1)
        self._cut(low, high, self.large, np.flatnonzero(_is_turned(turns) & ~cropped[share]), index,
                  whole, turns)

        # inputs that look drawn, and pairs that are mirrored
        if self.drawn or self.changes.input_noise:
            changed = ~cropped & (rng.random(self.batch_size) < AUGMENTED_SHARE)
            self._change(low, high, index, changed, share, rng, turns)
        flip = self._put(mirrored).view(-1, 1, 1, 1)
        low, high = (torch.where(flip, images.flip(2), images) for images in (low, high))
        return TokenBatch(low.flatten(1).long(), high.flatten(1).long(), len(index))

    def _put(self, array: np.ndarray) -> Tensor:
        """Return an array as a tensor on the device; a GPU goes on computing meanwhile."""
        own = torch.from_numpy(np.require(array, requirements=["C", "W"]))
        return own.to(self.device, non_blocking=True)

    def _indices(self, step: int) -> np.ndarray:
        """Return the numbers of the images of batch `step`, int64 [batch_size]."""
        count = len(self.examples)
        epochs, places = np.divmod(np.arange(step * self.batch_size, (step + 1) * self.batch_size),
                                   count)
        chosen = np.concatenate([_permutation(self.seed, epoch, count)[places[epochs == epoch]]
                                 for epoch in range(epochs[0], epochs[-1] + 1)])
        return np.asarray(self.examples[chosen])

    def _turns(self, step: int) -> np.ndarray:
        """Return the turns of batch `step`, float64 [2, batch_size], for `turned`; (1, 0) leaves an
        image as it is."""
        rng = np.random.default_rng((self.seed, step, 3))
        is_turned = rng.random(self.batch_size) < self.changes.turned_share
        angle, scale = rng.uniform(-1, 1, (2, self.batch_size)) * is_turned
        return turns_of(LARGEST_TURN * angle, LARGEST_SCALE**scale)

    def _cut(
        self, low: Tensor, high: Tensor, pictures: Tensor, rows: np.ndarray, index: np.ndarray,
        squares: np.ndarray, turns: np.ndarray,
    ) -> None:
        """Replace the rows `rows` of a batch by squares of the pictures `index`, which are turned
        first.

        `squares`, int64 [3, batch], are sides and places; `turns` is float64 [2, batch].
        """
        if not len(rows):
            return
        chosen, moved = pictures[self._put(index[rows])], np.flatnonzero(_is_turned(turns[:, rows]))
        if len(moved):
            change = turned(chosen[self._put(moved)], self._put(turns[:, rows[moved]]))
            chosen[self._put(moved)] = change.round_().clamp_(0, 255).to(torch.uint8)
        side, top, left = self._put(squares[:, rows])
        for images in (low, high):
            images[self._put(rows)] = reduce_squares(chosen, side, top, left, images.shape[1])

    def _change(
        self, low: Tensor, high: Tensor, index: np.ndarray, changed: np.ndarray, share: slice,
        rng: np.random.Generator, turns: np.ndarray,
    ) -> None:
        """Let the inputs `changed`, bool [batch_size], look drawn; `low`, `high` and `index` are a
        share's."""
        levels = self.changes.input_noise * rng.random(self.batch_size) / CHANGE_UNIT
        weights, which = (np.rint(rng.random(self.batch_size) / CHANGE_UNIT),
                          rng.random(self.batch_size))
        noise = np.zeros((self.batch_size, *low.shape[1:]), np.float32)
        if self.changes.input_noise:
            noise[changed] = rng.standard_normal((int(changed.sum()), *low.shape[1:]), np.float32)
            noise *= levels.astype(np.float32).reshape(-1, 1, 1, 1)
        rows = np.flatnonzero(changed[share])
        if not len(rows):
            return
        largest = LARGEST_CHANGE / CHANGE_UNIT
        # [R, h, w, C]
        change = self._put(np.rint(noise[share][rows]).clip(-largest, largest)).double()
        # [R, arrays]
        known = np.array([len(array) for array in self.drawn], np.int64) > index[rows, None]
        chosen = np.floor(which[share][rows] * known.sum(1)).astype(np.int64)
        for number, array in enumerate(self.drawn):
            ours = np.flatnonzero(known[:, number] & (chosen == number))
            here, place = self._put(ours), self._put(index[rows[ours]])
            weight = self._put(weights[share][rows[ours]]).view(-1, 1, 1, 1)
            drawn = array[place].double() - self.low[place].double()
            change[here] += weight * turned(drawn, self._put(turns[:, rows[ours]])).round_()
        there = self._put(rows)
        low[there], high[there] = changed_pairs(high[there], change)


class FaceBatches(Protocol):
    """Batches of images."""

    batch_size: int
    unit: str

    def digest(self) -> str:
        """Return a digest of the images."""

    def batch(self, step: int, part: int = 0, parts: int = 1) -> TokenBatch:
        """Return process `part`'s share of batch `step`."""


class DistilBatches:
    """Batches of true images (first half) and images that a model decoded itself (second half).

    Own images should not be mirrored, since the model would not decode the mirror image.
    """

    def __init__(self, true: FaceBatches, own: FaceBatches) -> None:
        self.true, self.own = true, own
        self.batch_size, self.unit = true.batch_size + own.batch_size, true.unit

    def digest(self) -> str:
        """Return a digest of both kinds of images."""
        return f"{self.true.digest()}+{self.own.digest()}"

    def batch(self, step: int, part: int = 0, parts: int = 1) -> TokenBatch:
        true, own = self.true.batch(step, part, parts), self.own.batch(step, part, parts)
        return TokenBatch(torch.cat([true.source, own.source]),
                          torch.cat([true.target, own.target]), true.true_count)


@dataclass
class TextBatches:
    """Batches of sentence pairs of similar length, with a similar number of target tokens per
    batch.

    An epoch is a new permutation, sorted by length and cut into batches, which follow in random
    order. `sources` and `targets` have the tokens of each sentence, END last. `batch_size` is the
    mean number of pairs per batch.
    """

    sources: Sequence[np.ndarray]
    targets: Sequence[np.ndarray]
    batch_size: int
    seed: int
    padding: int = 0
    unit: str = "pairs"
    cuts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._lengths = np.array([(len(target), len(source)) for source, target
                                  in zip(self.sources, self.targets, strict=True)])  # [N, 2]
        budget = self.batch_size * self._lengths[:, 0].mean()
        self.cuts = [0]
        # The sorted target lengths, and so the cuts, are the same in every epoch.
        for place, length in enumerate(np.sort(self._lengths[:, 0])):
            if place > self.cuts[-1] and (place + 1 - self.cuts[-1]) * length > budget:
                self.cuts.append(place)
        self.cuts.append(len(self._lengths))

    def digest(self) -> str:
        """Return a digest of the sentences."""
        return digest_of(np.asarray(row, np.int64) for side in (self.sources, self.targets)
                         for row in side)

    def batch(self, step: int, part: int = 0, parts: int = 1) -> TokenBatch:
        """Return process `part`'s share of batch `step`, at least one pair."""
        epoch, place = divmod(step, len(self.cuts) - 1)
        shuffled = _permutation(self.seed, epoch, len(self._lengths))
        lengths = self._lengths[shuffled]
        order = shuffled[np.lexsort((lengths[:, 1], lengths[:, 0]))]
        turns = np.random.default_rng((self.seed, epoch, 1)).permutation(len(self.cuts) - 1)
        number = int(turns[place])
        rows = order[self.cuts[number] : self.cuts[number + 1]]
        rows = rows[part::parts] if len(rows) > part else rows[:1]
        (source, source_lengths), (target, target_lengths) = (
            self._padded([sentences[row] for row in rows])
            for sentences in (self.sources, self.targets))
        hidden = torch.arange(source.shape[1]) >= source_lengths.unsqueeze(1)
        return TokenBatch(source, target, None, hidden, target_lengths)

    def _padded(self, rows: list[np.ndarray]) -> tuple[Tensor, Tensor]:
        """Return `rows` padded to the longest [B, N], and their lengths [B]."""
        tensors = [torch.from_numpy(row).long() for row in rows]
        padded = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True,
                                                 padding_value=self.padding)
        return padded, torch.tensor([len(row) for row in rows])


Batches = FaceBatches | TextBatches


def _is_turned(turns: np.ndarray) -> np.ndarray:
    """Return which of the turns, float64 [2, N], change a picture, bool [N]."""
    return np.asarray((turns != [[1.0], [0.0]]).any(0))


def digest_of(arrays: Iterable[np.ndarray]) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of arrays, with their shapes."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(str(array.shape).encode())
        found.update(array.data)
    return found.hexdigest()[:12]


# of true and own images, each of the epoch that ends in a batch and of the next one
@functools.lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, count: int) -> np.ndarray:
    """Return the order of `count` examples in `epoch`."""
    return np.random.default_rng((seed, epoch)).permutation(count)
