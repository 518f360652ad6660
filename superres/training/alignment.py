"""Train the network that aligns faces (`superres.tasks.aligner`) on faces that are aligned already.

A window is cut around a random square near the right one, and the network learns how to correct it.
What lies beyond the training picture would betray the answer, so it is repeated, mirrored, or taken
from another picture. Windows far from the right square, and windows of pieces in a random order,
teach the network what is no face.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save
from torch import Tensor, nn
from torch.nn import functional

from superres.checkpoint import TRAINING
from superres.config import require_whole
from superres.system.output import check_folder, write_results
from superres.system.progress import track
from superres.system.torch_threads import TorchThreads
from superres.tasks.aligner import (
    CHANNELS,
    CONTRAST,
    DISC,
    HIDDEN,
    OUTPUTS,
    PLACES,
    RISE,
    SHARE,
    SIDE,
    UNITS,
    WEIGHTS,
    Aligner,
    moved,
    reduced_grey,
    windows,
)
from superres.tasks.face_data import read_faces
from superres.tasks.faces import FaceTask

TASK = FaceTask(8, 64)  # of the training faces
BATCH = 128
RATES = 2.5e-3, 1.5e-3  # peak learning rates of the cycles, each of which decays to 0
WARMUP, RECORD = 200, 100  # steps
NEAR, CLOSE = 1.1, 0.3  # largest offset of a square in UNITS, and that of the half that is close
NO_FACE = 0.3  # share of windows without a face
# an offset of this in one of x, y, log size and turn makes a window no face
FAR = np.array([0.3, 0.3, 0.45, 50.0])
TORN = 0.25  # share of the windows without a face that are pieces in a random order
SCRAMBLED = 0.5  # share of these and of those that have the spectrum of a face but random phases
CUT = 0.14  # largest share of a training picture's side that is cut off an edge
FACE_WEIGHT = 0.1  # of the loss of the logit, in that of the corrections
_GREY = np.array([299, 587, 114])


class Network(nn.Sequential):
    """The network of `superres.tasks.aligner.Aligner`: windows [N, 1, SIDE, SIDE] to corrections
    and a logit [N, 5]."""

    def __init__(self) -> None:
        convolutions = [nn.Conv2d(a, b, 3, 2, 1) for a, b in itertools.pairwise(CHANNELS)]
        side = SIDE >> len(convolutions)
        super().__init__(
            *(layer for one in convolutions for layer in (one, nn.ReLU())), nn.Flatten(),
            nn.Linear(side * side * CHANNELS[-1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUTPUTS))
        self.to(memory_format=torch.channels_last)


def grey_faces(faces: np.ndarray) -> Tensor:
    """Return faces, uint8 [N, S, S, 3], and their mirror images in grey, uint8 [2 N, S, S]."""
    grey = torch.from_numpy((faces.astype(np.int64) @ _GREY // 1000).astype(np.uint8))
    return torch.cat([grey, grey.flip(2)])


class Windows:
    """Random windows of aligned faces, uint8 [N, S, S], in batches; all random numbers come from
    `seed`."""

    def __init__(self, faces: Tensor, seed: int) -> None:
        self.faces, self.rng = faces, torch.Generator().manual_seed(seed)

    def batch(self, count: int = BATCH) -> tuple[Tensor, Tensor, Tensor]:
        """Return normalized windows [B, 1, SIDE, SIDE], the offsets [B, 4] in UNITS, and whether
        there is a face [B].

        Of windows without a face, the offsets mean nothing.
        """
        index = torch.randint(len(self.faces), (count,), generator=self.rng)
        is_face = self._random(count) >= NO_FACE
        near = self._uniform(count, 4) * torch.where(self._random(count, 1) < 0.5, NEAR,
                                                     NEAR * CLOSE)
        offsets = torch.where(is_face[:, None], near, self._far(count))
        picture = self._changed(self._cut(self.faces[index], self.faces[index.roll(1)], offsets))
        kind = self._random(count)
        kind = torch.where(is_face, 1, kind)[:, None, None]
        picture = torch.where(kind < TORN, self._torn(picture),
                              torch.where(kind < SCRAMBLED, self._scrambled(picture), picture))
        return normalized(picture)[:, None], offsets, is_face

    def _random(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.rng)

    def _uniform(self, *shape: int) -> Tensor:
        return self._random(*shape) * 2 - 1

    def _far(self, count: int) -> Tensor:
        """Return offsets [B, 4] in UNITS, at least one of which is FAR."""
        far, scale = (torch.tensor(FAR / UNITS, dtype=torch.float32),
                      torch.tensor([3.0, 3.0, 2.5, 3.6]))
        offsets = self._uniform(count, 4) * far * scale * (self._random(count, 4) < 0.7)
        which = functional.one_hot(torch.randint(4, (count,), generator=self.rng), 4).bool()
        least = torch.sign(offsets + 1e-9) * (far + self._random(count, 4) * far * (scale - 1))
        return torch.where(which, least, offsets)

    def _cut(self, faces: Tensor, others: Tensor, corrections: Tensor) -> Tensor:
        """Return the windows, in grey levels, of squares of which `corrections` lead to the right
        ones.

        Beyond the training picture, of which random edges are cut off, are these edges, a mirror
        image or another picture.
        """
        count = len(faces)
        units = torch.tensor(UNITS, dtype=torch.float32)
        x, y, log, turn = (corrections * units).T[:, :, None, None]
        size, cos, sin = (torch.exp(-log), torch.cos(torch.deg2rad(-turn)),
                          torch.sin(torch.deg2rad(-turn)))
        places = torch.tensor(PLACES, dtype=torch.float32)
        u, v = places * SHARE - x, places[:, None] * SHARE + RISE - y
        # -1..1 in the right square
        at = 2 * torch.stack([size * (cos * u - sin * v), size * (sin * u + cos * v)], 3)
        low, high = self._edges(count), self._edges(count)
        inside = torch.minimum(torch.maximum(at, low - 1), 1 - high)
        mode = self._random(count, 1, 1)
        mirrored = (2 * inside - at).clamp(-1, 1)
        taken = torch.where((mode < 0.3)[..., None], inside,
                            torch.where((mode < 0.55)[..., None], mirrored, at))
        window = _sampled(faces, taken, "border")
        return torch.where((mode >= 0.55) & (at != inside).any(3), self._around(others, at), window)

    def _edges(self, count: int) -> Tensor:
        return self._random(count, 1, 1, 2) ** 2 * 2 * CUT

    def _around(self, others: Tensor, at: Tensor) -> Tensor:
        """Return what surrounds a picture: a turned and enlarged part of another one, or hardly
        more than one grey."""
        count = len(others)
        angle, zoom, across, down, grey = (self._random(count, 1, 1) for _ in range(5))
        cos, sin, zoom = (torch.cos(2 * math.pi * angle), torch.sin(2 * math.pi * angle),
                          0.8 * zoom + 0.2)
        x, y = at.unbind(3)
        far = torch.stack([(cos * x - sin * y) * zoom + across - 0.5,
                           (sin * x + cos * y) * zoom + down - 0.5], 3)
        other = _sampled(others, far, "reflection")
        return torch.where(self._random(count, 1, 1) < 0.3, grey * 255 + other * 0.1, other)

    def _torn(self, windows: Tensor) -> Tensor:
        """Return windows whose pieces, 4x4 or 2x2, are in a random order."""
        pieces = 4 if self._random(1) < 0.7 else 2
        part = SIDE // pieces
        cells = windows.reshape(-1, pieces, part, pieces,
                                part).transpose(2, 3).reshape(-1, pieces**2, part, part)
        cells = cells[:, torch.randperm(pieces**2, generator=self.rng)]
        return cells.reshape(-1, pieces, pieces, part, part).transpose(2, 3).reshape(-1, SIDE, SIDE)

    def _scrambled(self, windows: Tensor) -> Tensor:
        """Return windows with the phases of noise: textures with the contrast and the sharpness of
        a face."""
        noise = torch.fft.rfft2(torch.randn(windows.shape, generator=self.rng))
        mean = windows.mean((1, 2), keepdim=True)
        scrambled = torch.fft.rfft2(windows - mean).abs() * noise / noise.abs().clamp(min=1e-6)
        textures: Tensor = torch.fft.irfft2(scrambled, s=windows.shape[1:]) + mean
        return textures

    def _changed(self, windows: Tensor) -> Tensor:
        """Return windows with another tone, sharpness and noise."""
        count = len(windows)
        tone = torch.exp(0.25 * torch.randn(count, 1, 1, generator=self.rng))
        windows = 255 * (windows.clamp(0, 255) / 255) ** tone
        soft = functional.avg_pool2d(windows[:, None], 3, 1, 1, count_include_pad=False)[:, 0]
        windows = windows + (windows - soft) * (self._random(count, 1, 1) * 1.8 - 0.9)
        noise = torch.randn(windows.shape, generator=self.rng)
        return windows + noise * (self._random(count, 1, 1) * 6)


def _sampled(faces: Tensor, at: Tensor, beyond: str) -> Tensor:
    """Return the values [B, SIDE, SIDE] of faces, uint8 [B, S, S], at places [B, SIDE, SIDE, 2] in
    -1..1."""
    return functional.grid_sample(faces[:, None].float(), at, padding_mode=beyond,
                                  align_corners=False)[:, 0]


def normalized(windows: Tensor) -> Tensor:
    """Return what `superres.tasks.aligner.normalized` does, but for rounding."""
    disc = torch.tensor(DISC, dtype=torch.float32)
    centred = (windows - (windows * disc).sum((1, 2), keepdim=True) / disc.sum()) * disc
    return centred / (centred.square().sum((1, 2), keepdim=True).div(disc.sum()).sqrt() + CONTRAST)


def loss_of(outputs: Tensor, corrections: Tensor, is_face: Tensor) -> Tensor:
    """Return the mean loss of outputs [B, 5]: of the corrections of faces, and of which windows are
    faces."""
    wrong = functional.smooth_l1_loss(outputs[is_face, :4], corrections[is_face], beta=0.1)
    unsure = functional.binary_cross_entropy_with_logits(outputs[:, 4], is_face.float())
    return wrong + FACE_WEIGHT * unsure


def train(faces: np.ndarray, steps: int, seed: int,
          report: Callable[[dict[str, float]], None]) -> Network:
    """Train a network on aligned faces, uint8 [N, S, S, 3]; `report` gets a record of every RECORD
    steps."""
    torch.manual_seed(seed)
    network, examples = Network(), Windows(grey_faces(faces), seed)
    optimizer, losses = torch.optim.AdamW(network.parameters(), weight_decay=1e-2), list[float]()
    for step in range(steps):
        cycle = step / steps * len(RATES)
        rate = (RATES[int(cycle)] * min(1, (step + 1) / WARMUP)
                * (1 + math.cos(math.pi * (cycle % 1))) / 2)
        for group in optimizer.param_groups:
            group["lr"] = rate
        windows, corrections, is_face = examples.batch()
        outputs = network(windows.contiguous(memory_format=torch.channels_last))
        loss = loss_of(outputs, corrections, is_face)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % RECORD == 0:
            report({"step": step + 1, "loss": sum(losses[-RECORD:]) / RECORD, "rate": rate})
    return network


@dataclass(frozen=True)
class Errors:
    """What is left after the alignment of squares around faces.

    Attributes:
        left: float64 [N, 4]: how far a square is off, in x and y over the side, log size, and
            degrees.
        doubt: float64 [N].
        symmetry: float64 [N]: correlation of the right window with its mirror image. Turned heads,
            side light and hair over the face make it small.
    """

    left: np.ndarray
    doubt: np.ndarray
    symmetry: np.ndarray

    def by_symmetry(self, parts: int = 3) -> list[tuple[str, np.ndarray]]:
        """Return names and standard deviations [4] of all faces, and of equal parts from the most
        symmetric on."""
        order = np.argsort(-self.symmetry, kind="stable")
        groups = [("all", order), *((f"{number} of {parts} by symmetry", rows)
                                    for number, rows in enumerate(np.array_split(order, parts), 1))]
        return [(name, np.sqrt(np.square(self.left[rows]).mean(0))) for name, rows in groups]


def measure(network: Aligner, faces: np.ndarray, seed: int) -> Errors:
    """Align two random squares around each face, uint8 [N, S, S, 3]; its edges are repeated.

    The squares are uniformly up to UNITS away from the right one.
    """
    rng, left, doubt, symmetry = np.random.default_rng(seed), [], [], []
    for face in track(faces, "aligning", "faces"):
        side = len(face)
        photo = np.pad(face, ((side // 2, side // 2), (side // 2, side // 2), (0, 0)), mode="edge")
        middle = side // 2 + side / 2
        right = np.array([middle, middle, side, 0])
        grey, scale = reduced_grey(photo, side)
        disc, = windows(grey, right[None] * (scale, scale, scale, 1))
        starts = moved(right[None].repeat(2, 0), rng.uniform(-1, 1, (2, 4)))
        found, unsure = network.align(photo, starts)
        left.append((found - right) / (side, side, 1, 1))
        left[-1][:, 2] = np.log(found[:, 2] / side)
        doubt.append(unsure)
        symmetry += [float((disc * disc[:, ::-1]).sum() / (disc * disc).sum())] * 2
    return Errors(np.concatenate(left), np.concatenate(doubt), np.array(symmetry))


def errors_table(errors: Errors) -> list[str]:
    """Return the lines of a table of errors: root mean squares, by symmetry of the face."""
    return [f"{name}: turn {row[3]:.2f} degrees, size {row[2]:.2%}, centre {row[0]:.2%} across and "
            f"{row[1]:.2%} down"
            for name, row in errors.by_symmetry()]


def train_aligner(data: Path, output: Path, dev: Path | None, steps: int, seed: int,
                  limit: int | None, report: Callable[[dict[str, float]], None]) -> list[str]:
    """Train an aligner on a data set of aligned faces, and write its weights and history to the
    folder `output`.

    Returns:
        The errors on `dev`, as lines.

    Raises:
        SuperresError: the data cannot be used, a number is out of range, or the folder cannot be
            written.
    """
    require_whole("--steps", steps)
    require_whole("--seed", seed, least=0)
    check_folder(output)
    faces = read_faces(data, TASK, "train", limit).hr
    known = None if dev is None else read_faces(dev, TASK, "valid").hr

    # the training, on one thread
    last = dict[str, float]()

    def record(found: dict[str, float]) -> None:
        last.update(found)
        report(found)

    with TorchThreads(1):
        arrays = arrays_of(train(faces, steps, seed, record))

    # the record, with the errors on other faces
    lines, row = list[str](), {"stage": "aligner", "steps": steps, "loss": last.get("loss"),
                               "faces": len(faces), "seed": seed, "torch": torch.__version__}
    if known is not None:
        errors = measure(Aligner(arrays), known, seed)
        lines = errors_table(errors)
        row |= {"dev_faces": len(known), "dev_errors": {name: sizes.round(5).tolist()
                                                       for name, sizes in errors.by_symmetry()}}
    write_results(output, {WEIGHTS: save(arrays), TRAINING: json.dumps(row) + "\n"})
    return lines


def arrays_of(network: Network) -> dict[str, np.ndarray]:
    """Return the weights as `superres.tasks.aligner.Aligner` takes them: float16 matrices [inputs,
    outputs], biases."""
    arrays = dict[str, np.ndarray]()
    layers = [layer for layer in network if isinstance(layer, nn.Conv2d | nn.Linear)]
    for number, layer in enumerate(layers):
        weight, offset = (array.detach().numpy() for array in layer.parameters())
        if number == len(CHANNELS) - 1:  # torch flattens the channels first
            side = SIDE >> number
            weight = weight.reshape(HIDDEN, CHANNELS[-1], side, side)
        matrix = weight.transpose(2, 3, 1, 0).reshape(-1,
                                                      len(weight)) if weight.ndim == 4 else weight.T
        arrays[f"{number}.weight"], arrays[f"{number}.bias"] = (
            np.ascontiguousarray(matrix, np.float16), offset)
    return arrays
