"""Batches of token pairs, in an order that seed and step decide, so that a resumed run sees the same images."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from superres.config import require


class TokenBatch(NamedTuple):
    """Images as tokens.

    Attributes:
        source: tokens [B, S], int64.
        target: tokens [B, T], int64.
        true_count: the first so many targets are true pictures; the rest a model decoded itself.
    """

    source: Tensor
    target: Tensor
    true_count: int


class Batches(Protocol):
    """A reproducible sequence of batches."""

    batch_size: int
    """Images a batch over all processes."""

    def batch(self, step: int, part: int = 0, parts: int = 1) -> TokenBatch:
        """Return process `part`'s share of batch `step`."""
        ...


@dataclass
class ImageBatches:
    """Random batches of image pairs as tokens.

    Attributes:
        low: sources uint8 [N, h, w, C].
        high: targets uint8 [N, H, W, C].
        batch_size: images a batch over all processes.
        seed: key of order and mirroring.
        flip: mirror half of the images.
    """

    low: np.ndarray
    high: np.ndarray
    batch_size: int
    seed: int
    flip: bool = True

    def batch(self, step: int, part: int = 0, parts: int = 1) -> TokenBatch:
        """Return process `part`'s share of batch `step`.

        Each epoch is a fresh permutation; a batch that crosses the end of an epoch goes on in the next.

        Raises:
            ConfigError: the shares would not be equal, so that the mean of their gradients would not be the batch's.
        """
        require(self.batch_size % parts == 0, f"{self.batch_size} images a batch cannot be shared equally among "
                f"{parts} processes; choose a multiple with --batch-size")
        count = len(self.low)
        numbers = np.arange(step * self.batch_size, (step + 1) * self.batch_size)[part::parts]
        pairs = [self._pair(int(number) // count, int(number) % count) for number in numbers]
        low, high = (np.stack(images).reshape(len(pairs), -1) for images in zip(*pairs, strict=True))
        return TokenBatch(torch.from_numpy(low).long(), torch.from_numpy(high).long(), len(pairs))

    def _pair(self, epoch: int, place: int) -> tuple[np.ndarray, np.ndarray]:
        index = _permutation(self.seed, epoch, len(self.low))[place]
        low, high = self.low[index], self.high[index]
        mirrored = self.flip and np.random.default_rng((self.seed, epoch, place)).random() < 0.5
        return (low[:, ::-1], high[:, ::-1]) if mirrored else (low, high)


class DistilBatches:
    """Batches whose first half are true pictures and whose second half a model decoded itself."""

    def __init__(self, true: ImageBatches, own: ImageBatches) -> None:
        """Join two sequences of batches; mirrored, a picture is no longer what the model would decode."""
        self.true, self.own = true, dataclasses.replace(own, flip=False)
        self.batch_size = true.batch_size + own.batch_size

    def batch(self, step: int, part: int = 0, parts: int = 1) -> TokenBatch:
        """See `Batches.batch`."""
        true, own = self.true.batch(step, part, parts), self.own.batch(step, part, parts)
        return TokenBatch(torch.cat([true.source, own.source]), torch.cat([true.target, own.target]), true.true_count)


_permutations: dict[tuple[int, int, int], np.ndarray] = {}


def _permutation(seed: int, epoch: int, count: int) -> np.ndarray:
    """Return the order of `count` images in `epoch`, remembering the latest two epochs."""
    key = (seed, epoch, count)
    if key not in _permutations:
        while len(_permutations) > 1:
            _permutations.pop(next(iter(_permutations)))
        _permutations[key] = np.random.default_rng((seed, epoch)).permutation(count)
    return _permutations[key]
