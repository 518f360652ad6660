"""Train the network that aligns faces (`superres.tasks.aligner`) on faces that are aligned already.

A window is cut around a random square near the right one, and the network learns how to correct it. What lies beyond
the training picture would betray the answer, so it is repeated, mirrored, or taken from another picture. Windows far
from the right square, and windows of pieces in a random order, teach the network what is no face.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from superres.tasks import aligner
from superres.tasks.aligner import CHANNELS, CONTRAST, DISC, HIDDEN, OUTPUTS, PLACES, RISE, SHARE, SIDE, UNITS

BATCH = 128
RATES = 2.5e-3, 1.5e-3  # peak learning rates of the cycles, each of which decays to 0
WARMUP = 200  # steps
NEAR, CLOSE = 1.1, 0.3  # largest offset of a square in UNITS, and that of the half that is close
NO_FACE = 0.25  # share of windows without a face
FAR = np.array([0.3, 0.3, 0.45, 50.0])  # an offset of this in one of x, y, log size and turn makes a window no face
TORN = 1 / 3  # share of the windows without a face that are pieces in a random order
CUT = 0.14  # largest share of a training picture's side that is cut off an edge
FACE_WEIGHT = 0.1  # of the loss of the logit, in that of the corrections
_GREY = np.array([299, 587, 114])


class Network(nn.Sequential):
    """The network of `superres.tasks.aligner.Aligner`: windows [N, 1, SIDE, SIDE] to corrections and a logit [N, 5]."""

    def __init__(self) -> None:
        convolutions = [nn.Conv2d(a, b, 3, 2, 1) for a, b in zip(CHANNELS, CHANNELS[1:], strict=False)]
        side = SIDE >> len(convolutions)
        super().__init__(
            *(layer for one in convolutions for layer in (one, nn.ReLU())), nn.Flatten(),
            nn.Linear(side * side * CHANNELS[-1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUTPUTS))
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def grey_faces(faces: np.ndarray) -> Tensor:
    """Return faces, uint8 [N, S, S, 3], and their mirror images in grey, uint8 [2 N, S, S]."""
    grey = torch.from_numpy((faces.astype(np.int64) @ _GREY // 1000).astype(np.uint8))
    return torch.cat([grey, grey.flip(2)])


class Windows:
    """Random windows of aligned faces, uint8 [N, S, S], in batches; all random numbers come from `seed`."""

    def __init__(self, faces: Tensor, seed: int) -> None:
        self.faces, self.rng = faces, torch.Generator().manual_seed(seed)

    def batch(self, count: int = BATCH) -> tuple[Tensor, Tensor, Tensor]:
        """Return normalized windows [B, 1, SIDE, SIDE], the offsets [B, 4] in UNITS, and whether there is a face [B].

        Of windows without a face, the offsets mean nothing.
        """
        index = torch.randint(len(self.faces), (count,), generator=self.rng)
        is_face = self._random(count) >= NO_FACE
        near = self._uniform(count, 4) * torch.where(self._random(count, 1) < 0.5, NEAR, NEAR * CLOSE)
        offsets = torch.where(is_face[:, None], near, self._far(count))
        picture = self._changed(self._cut(self.faces[index], self.faces[index.roll(1)], offsets))
        torn = ~is_face & (self._random(count) < TORN)
        picture = torch.where(torn[:, None, None], self._torn(picture), picture)
        return normalized(picture)[:, None], offsets, is_face

    def _random(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.rng)

    def _uniform(self, *shape: int) -> Tensor:
        return self._random(*shape) * 2 - 1

    def _far(self, count: int) -> Tensor:
        """Return offsets [B, 4] in UNITS, at least one of which is FAR."""
        far, scale = torch.tensor(FAR / UNITS, dtype=torch.float32), torch.tensor([3.0, 3.0, 2.5, 3.6])
        offsets = self._uniform(count, 4) * far * scale * (self._random(count, 4) < 0.7)
        which = functional.one_hot(torch.randint(4, (count,), generator=self.rng), 4).bool()
        least = torch.sign(offsets + 1e-9) * (far + self._random(count, 4) * far * (scale - 1))
        return torch.where(which, least, offsets)

    def _cut(self, faces: Tensor, others: Tensor, corrections: Tensor) -> Tensor:
        """Return the windows, in grey levels, of squares of which `corrections` lead to the right ones.

        Beyond the training picture, of which a random edge is cut off, is its edge, its mirror image or another picture.
        """
        count = len(faces)
        x, y, log, turn = (corrections * torch.tensor(UNITS, dtype=torch.float32)).T[:, :, None, None]
        size, cos, sin = torch.exp(-log), torch.cos(torch.deg2rad(-turn)), torch.sin(torch.deg2rad(-turn))
        places = torch.tensor(PLACES, dtype=torch.float32)
        u, v = places * SHARE - x, places[:, None] * SHARE + RISE - y
        at = 2 * torch.stack([size * (cos * u - sin * v), size * (sin * u + cos * v)], 3)  # -1..1 in the right square
        low, high = self._edges(count), self._edges(count)
        inside = torch.minimum(torch.maximum(at, low - 1), 1 - high)
        mode = self._random(count, 1, 1)
        mirrored = (2 * inside - at).clamp(-1, 1)
        taken = torch.where((mode < 0.3)[..., None], inside, torch.where((mode < 0.55)[..., None], mirrored, at))
        window = _sampled(faces, taken, "border")
        return torch.where((mode >= 0.55) & (at != inside).any(3), self._around(others, at), window)

    def _edges(self, count: int) -> Tensor:
        return self._random(count, 1, 1, 2) ** 2 * 2 * CUT

    def _around(self, others: Tensor, at: Tensor) -> Tensor:
        """Return what surrounds a picture: a turned and enlarged part of another one, or hardly more than one grey."""
        count = len(others)
        angle, zoom, across, down, grey = (self._random(count, 1, 1) for _ in range(5))
        cos, sin, zoom = torch.cos(2 * math.pi * angle), torch.sin(2 * math.pi * angle), 0.8 * zoom + 0.2
        x, y = at.unbind(3)
        far = torch.stack([(cos * x - sin * y) * zoom + across - 0.5, (sin * x + cos * y) * zoom + down - 0.5], 3)
        other = _sampled(others, far, "reflection")
        return torch.where(self._random(count, 1, 1) < 0.3, grey * 255 + other * 0.1, other)

    def _torn(self, windows: Tensor) -> Tensor:
        """Return windows whose pieces, 4x4 or 2x2, are in a random order."""
        pieces = 4 if self._random(1) < 0.7 else 2
        part = SIDE // pieces
        cells = windows.reshape(-1, pieces, part, pieces, part).transpose(2, 3).reshape(-1, pieces**2, part, part)
        cells = cells[:, torch.randperm(pieces**2, generator=self.rng)]
        return cells.reshape(-1, pieces, pieces, part, part).transpose(2, 3).reshape(-1, SIDE, SIDE)

    def _changed(self, windows: Tensor) -> Tensor:
        """Return windows with another tone, sharpness and noise."""
        count = len(windows)
        tone = torch.exp(0.25 * torch.randn(count, 1, 1, generator=self.rng))
        windows = 255 * (windows.clamp(0, 255) / 255) ** tone
        soft = functional.avg_pool2d(windows[:, None], 3, 1, 1, count_include_pad=False)[:, 0]
        windows = windows + (windows - soft) * (self._random(count, 1, 1) * 1.8 - 0.9)
        return windows + torch.randn(windows.shape, generator=self.rng) * (self._random(count, 1, 1) * 6)


def _sampled(faces: Tensor, at: Tensor, beyond: str) -> Tensor:
    """Return the values [B, SIDE, SIDE] of faces, uint8 [B, S, S], at places [B, SIDE, SIDE, 2] in -1..1."""
    return functional.grid_sample(faces[:, None].float(), at, padding_mode=beyond, align_corners=False)[:, 0]


def normalized(windows: Tensor) -> Tensor:
    """Return what `superres.tasks.aligner.normalized` does, but for rounding."""
    disc = torch.tensor(DISC, dtype=torch.float32)
    centred = (windows - (windows * disc).sum((1, 2), keepdim=True) / disc.sum()) * disc
    return centred / (centred.square().sum((1, 2), keepdim=True).div(disc.sum()).sqrt() + CONTRAST)


def loss_of(outputs: Tensor, corrections: Tensor, is_face: Tensor) -> Tensor:
    """Return the mean loss of outputs [B, 5]: of the corrections of faces, and of which windows are faces."""
    wrong = functional.smooth_l1_loss(outputs[is_face, :4], corrections[is_face], beta=0.1)
    unsure = functional.binary_cross_entropy_with_logits(outputs[:, 4], is_face.float())
    return wrong + FACE_WEIGHT * unsure


def train(faces: np.ndarray, seconds: float, seed: int, report: Callable[[dict[str, float]], None]) -> Network:
    """Train a network on aligned faces, uint8 [N, S, S, 3], for a time; `report` gets a record twice a minute."""
    torch.manual_seed(seed)
    network, examples = Network(), Windows(grey_faces(faces), seed)
    optimizer, began, step, losses = torch.optim.AdamW(network.parameters(), weight_decay=1e-2), time.monotonic(), 0, []
    said = began
    while (cycle := (time.monotonic() - began) / seconds * len(RATES)) < len(RATES):
        rate = RATES[int(cycle)] * min(1, (step + 1) / WARMUP) * (1 + math.cos(math.pi * (cycle % 1))) / 2
        for group in optimizer.param_groups:
            group["lr"] = rate
        windows, corrections, is_face = examples.batch()
        outputs = network(windows.contiguous(memory_format=torch.channels_last))
        loss = loss_of(outputs, corrections, is_face)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses, step = [*losses, loss.item()][-500:], step + 1
        if time.monotonic() - said > 30:
            said = time.monotonic()
            report({"s": said - began, "step": step, "loss": float(np.mean(losses)), "rate": rate})
    return network


def arrays_of(network: Network) -> dict[str, np.ndarray]:
    """Return the weights as `superres.tasks.aligner.Aligner` takes them: float16 matrices [inputs, outputs], biases."""
    arrays = dict[str, np.ndarray]()
    layers = [layer for layer in network if isinstance(layer, nn.Conv2d | nn.Linear)]
    for number, layer in enumerate(layers):
        weight = layer.weight.detach().numpy()
        if number == len(CHANNELS) - 1:  # torch flattens the channels first
            side = SIDE >> number
            weight = weight.reshape(HIDDEN, CHANNELS[-1], side, side)
        matrix = weight.transpose(2, 3, 1, 0).reshape(-1, len(weight)) if weight.ndim == 4 else weight.T
        arrays[f"{number}.weight"], arrays[f"{number}.bias"] = (
            np.ascontiguousarray(matrix, np.float16), layer.bias.detach().numpy().astype(np.float32))
    return arrays
