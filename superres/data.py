"""Batches of token pairs, in an order that depends only on the seed and the step, so that a resumed run sees the same images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
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

    def batch(self, step: int, part: int = 0, parts: int = 1) -> tuple[Tensor, Tensor]:
        """Return process `part`'s share of batch `step`: source tokens [B, S] and target tokens [B, T], int64.

        Each epoch is a fresh permutation; a batch that crosses the end of an epoch goes on in the next.
        """
        count = len(self.low)
        numbers = np.arange(step * self.batch_size, (step + 1) * self.batch_size)[part::parts]
        pairs = [self._pair(int(number) // count, int(number) % count) for number in numbers]
        low, high = (np.stack(images).reshape(len(pairs), -1) for images in zip(*pairs, strict=True))
        return torch.from_numpy(low).long(), torch.from_numpy(high).long()

    def _pair(self, epoch: int, place: int) -> tuple[np.ndarray, np.ndarray]:
        index = _permutation(self.seed, epoch, len(self.low))[place]
        low, high = self.low[index], self.high[index]
        mirrored = self.flip and np.random.default_rng((self.seed, epoch, place)).random() < 0.5
        return (low[:, ::-1], high[:, ::-1]) if mirrored else (low, high)


_permutations: dict[tuple[int, int, int], np.ndarray] = {}


def _permutation(seed: int, epoch: int, count: int) -> np.ndarray:
    """Return the order of `count` images in `epoch`, remembering the latest two epochs."""
    key = (seed, epoch, count)
    if key not in _permutations:
        while len(_permutations) > 1:
            _permutations.pop(next(iter(_permutations)))
        _permutations[key] = np.random.default_rng((seed, epoch)).permutation(count)
    return _permutations[key]
