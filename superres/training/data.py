"""Batches of token pairs, in an order determined by seed and step, so that a resumed run sees the same examples.

All kinds of batches have the same members: `batch_size`, the (mean) number of examples per batch over all processes;
`unit`, the name of the examples in the plural; `digest()`, which tells runs on other examples apart; and
`batch(step, part, parts)`, the share of process `part` of `parts` in a batch.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from superres.config import require
from superres.tasks.faces import FaceTask, area_reduce

AUGMENTED_SHARE = 0.5
"""Share of the inputs that conditioning augmentation changes."""


class TokenBatch(NamedTuple):
    """Images or sentences as tokens, int64 [B, S] and [B, T].

    The first `true_count` targets are true, and a model decoded the others; None: all are true. `padding`, bool [B, S],
    is True at padding of a source. `lengths`, int64 [B], has the number of tokens of each target without its padding.
    Both are None without padding.
    """

    source: Tensor
    target: Tensor
    true_count: int | None = None
    padding: Tensor | None = None
    lengths: Tensor | None = None

    def to(self, device: torch.device) -> TokenBatch:
        """Return the batch on `device`."""
        padding, lengths = (part if part is None else part.to(device) for part in (self.padding, self.lengths))
        return TokenBatch(self.source.to(device), self.target.to(device), self.true_count, padding, lengths)


@dataclass
class ImageBatches:
    """Random batches of pairs of images, uint8 [N, h, w, C] and [N, H, W, C], as tokens.

    `flip` mirrors half of the images. `crop_share`, in [0, 1], is the share of random crops (`FaceTask.random_crop`) of
    the pictures `large`, uint8 [M, S, S, 3].

    With `drawn` or `input_noise`, half of the inputs look as if an earlier stage of a cascade had drawn them
    (conditioning augmentation: Ho et al. 2022, "Cascaded Diffusion Models for High Fidelity Image Generation", section
    3): they lie between the true input and one of the pictures `drawn`, and have noise. An array of `drawn`, uint8
    [M, h, w, C], has the pictures that were drawn for the first M images. `input_noise` is the noise's largest standard
    deviation in grey levels.
    """

    low: np.ndarray
    high: np.ndarray
    batch_size: int
    seed: int
    flip: bool = True
    large: np.ndarray | None = None
    crop_share: float = 0.0
    drawn: Sequence[np.ndarray] = ()
    input_noise: float = 0.0
    unit: str = "images"

    def batch(self, step: int, part: int = 0, parts: int = 1) -> TokenBatch:
        """Return process `part`'s share of batch `step`.

        Each epoch is a new permutation; a batch that reaches the end of an epoch continues in the next one.

        Raises:
            ConfigError: the batch cannot be divided equally, so the mean of the shares' gradients would be wrong.
        """
        require(self.batch_size % parts == 0, f"{self.batch_size} images a batch cannot be shared equally among "
                f"{parts} processes; choose a multiple with --batch-size")
        count = len(self.low)
        numbers = np.arange(step * self.batch_size, (step + 1) * self.batch_size)[part::parts]
        pairs = [self._pair(int(number) // count, int(number) % count) for number in numbers]
        low, high = (np.stack(images).reshape(len(pairs), -1) for images in zip(*pairs, strict=True))
        return TokenBatch(torch.from_numpy(low).long(), torch.from_numpy(high).long(), len(pairs))

    def digest(self) -> str:
        """Return a digest of the images."""
        arrays = [array for array in (self.low, self.high, self.large, *self.drawn) if array is not None]
        return digest_of(np.ascontiguousarray(array) for array in arrays)

    def _pair(self, epoch: int, place: int) -> tuple[np.ndarray, np.ndarray]:
        index = _permutation(self.seed, epoch, len(self.low))[place]
        low, high = self.low[index], self.high[index]
        rng = np.random.default_rng((self.seed, epoch, place))
        mirrored = self.flip and rng.random() < 0.5
        if self.large is not None and rng.random() < self.crop_share:
            high, low = FaceTask(len(low), len(high)).random_crop(self.large[index % len(self.large)], rng)
        elif (self.drawn or self.input_noise) and rng.random() < AUGMENTED_SHARE:
            low, high = self._augmented(low, high, index, rng)
        return (low[:, ::-1], high[:, ::-1]) if mirrored else (low, high)

    def _augmented(
        self, low: np.ndarray, high: np.ndarray, index: int, rng: np.random.Generator,
    ) -> tuple[np.ndarray, np.ndarray]:
        change = rng.normal(0, self.input_noise * rng.random(), low.shape)
        pictures = [array[index] for array in self.drawn if index < len(array)]
        if pictures:
            change += rng.random() * (pictures[rng.integers(len(pictures))] - low.astype(float))
        return changed_pair(high, change)


def changed_pair(high: np.ndarray, change: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Change an image, uint8 [H, W, C], by float64 [h, w, C], enlarged; return it reduced to [h, w, C], and itself.

    The finest detail of the image, which its reduction lacks, remains. The enlargement is smooth, since the edges of
    cells would be new detail.
    """
    wide = functional.interpolate(
        torch.from_numpy(change).permute(2, 0, 1).unsqueeze(0), high.shape[:2], mode="bicubic", align_corners=False)
    changed = high + wide[0].permute(1, 2, 0).numpy()  # [H, W, C]
    changed = np.clip(np.rint(changed), 0, 255).astype(np.uint8)
    return area_reduce(changed, *change.shape[:2], is_reduced=True), changed


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
        return TokenBatch(torch.cat([true.source, own.source]), torch.cat([true.target, own.target]), true.true_count)


@dataclass
class TextBatches:
    """Batches of sentence pairs of similar length, with a similar number of target tokens per batch.

    An epoch is a new permutation, sorted by length and cut into batches, which follow in random order. `sources` and
    `targets` have the tokens of each sentence, END last. `batch_size` is the mean number of pairs per batch.
    """

    sources: Sequence[np.ndarray]
    targets: Sequence[np.ndarray]
    batch_size: int
    seed: int
    padding: int = 0
    unit: str = "pairs"
    cuts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._lengths = np.array([(len(t), len(s)) for s, t in zip(self.sources, self.targets, strict=True)])
        budget = self.batch_size * self._lengths[:, 0].mean()
        self.cuts = [0]
        # The sorted target lengths, and so the cuts, are the same in every epoch.
        for place, length in enumerate(np.sort(self._lengths[:, 0])):
            if place > self.cuts[-1] and (place + 1 - self.cuts[-1]) * length > budget:
                self.cuts.append(place)
        self.cuts.append(len(self._lengths))

    def digest(self) -> str:
        """Return a digest of the sentences."""
        return digest_of(np.asarray(row, np.int64) for side in (self.sources, self.targets) for row in side)

    def batch(self, step: int, part: int = 0, parts: int = 1) -> TokenBatch:
        """Return process `part`'s share of batch `step`, at least one pair."""
        epoch, place = divmod(step, len(self.cuts) - 1)
        shuffled = _permutation(self.seed, epoch, len(self._lengths))
        lengths = self._lengths[shuffled]
        order = shuffled[np.lexsort((lengths[:, 1], lengths[:, 0]))]
        number = int(np.random.default_rng((self.seed, epoch, 1)).permutation(len(self.cuts) - 1)[place])
        rows = order[self.cuts[number] : self.cuts[number + 1]]
        rows = rows[part::parts] if len(rows) > part else rows[:1]
        (source, source_lengths), (target, target_lengths) = (
            self._padded([sentences[row] for row in rows]) for sentences in (self.sources, self.targets))
        hidden = torch.arange(source.shape[1]) >= source_lengths.unsqueeze(1)
        return TokenBatch(source, target, None, hidden, target_lengths)

    def _padded(self, rows: list[np.ndarray]) -> tuple[Tensor, Tensor]:
        """Return `rows` padded to the longest [B, N], and their lengths [B]."""
        tensors = [torch.from_numpy(row).long() for row in rows]
        padded = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=self.padding)
        return padded, torch.tensor([len(row) for row in rows])


Batches = FaceBatches | TextBatches


def digest_of(arrays: Iterable[np.ndarray]) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of arrays, with their shapes."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(str(array.shape).encode())
        found.update(array.data)
    return found.hexdigest()[:12]


@functools.lru_cache(maxsize=2)  # a batch can contain the end of an epoch and the start of the next one
def _permutation(seed: int, epoch: int, count: int) -> np.ndarray:
    """Return the order of `count` examples in `epoch`."""
    return np.random.default_rng((seed, epoch)).permutation(count)
