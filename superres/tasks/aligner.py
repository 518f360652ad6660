"""Align faces as CelebA does: a small network moves a square around a face until eyes and mouth are
where CelebA's are.

CelebA's crops are alike: the eyes are at 36 % and 63 % of the width and 53 % of the height, with a
deviation of 1 % of the side. The network sees the grey disc inside a square and returns how to
move, resize and turn the square, and whether it is around a face at all; `superres train aligner`
trains it. All sums are sums of whole numbers that float64 holds exactly, so a photo has the same
squares on every processor.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from superres.errors import CheckpointError, first_line
from superres.pictures.read import Pixels
from superres.system.folders import bundled_folder
from superres.system.tensor_files import read_arrays

Floats = npt.NDArray[np.float64]
Grey = npt.NDArray[np.int64]

ALIGNER = "face-aligner"  # folder of the bundled weights
WEIGHTS = "model.safetensors"
SIDE = 48  # pixels of a side of the window
# side of the window, and how far its centre is below the crop's, over the side of the crop
SHARE, RISE = 0.84, 0.08
# of corrections: x and y over the side, log size, degrees clockwise
UNITS = np.array([0.1, 0.1, 0.15, 15.0])
# pixels of the side of a crop in the picture that windows are cut from, as in the training pictures
FACE_SIDE = 64
ROUNDS = 3  # of corrections; each begins where the last one ended
CHANNELS = 1, 20, 40, 64, 64  # of the windows and after each convolution, 3x3 with stride 2
HIDDEN = 64
OUTPUTS = 5  # the corrections of UNITS, and the logit of a face
# sides of the starts of a search, over a photo's shorter side
LARGEST, SMALLEST, NEXT_SIDE = 1.25, 0.25, 0.75
STEP = 0.25  # distance of neighbouring starts over their side
CHUNK = 256  # windows that are computed together, which bounds the memory
LIKELY = 0.0  # least logit of a face at a start that is followed
MOST_STARTS = 64  # of one side
# starts that end alike: in x and y over the side, log size, degrees
AGREEING, ALIKE = 2, (0.06, 0.06, 0.12, 6.0)
SUREST, UPRIGHT = 0.25, 20.0  # largest doubt, and turn in degrees, of a face from a search
DOUBTFUL = 6.3  # logit of a face
PLACES = (np.arange(SIDE) + 0.5) / SIDE - 0.5
DISC = np.hypot(*np.meshgrid(PLACES, PLACES)) < 0.5
SUBPIXELS = 256  # places of a sample between two pixels
INPUT_UNIT, WEIGHT_UNIT = 2.0**-8, 2.0**-12  # activations and weights are whole multiples
MOST_WEIGHT, MOST_CORRECTION = 2.0**10, 10.0  # the latter in UNITS
# grey levels, added to a window's deviation, so that flat windows are not stretched to noise
CONTRAST = 3.0


def windows(grey: Grey, boxes: Floats) -> Floats:
    """Return the normalized discs, float64 [N, SIDE, SIDE] in multiples of INPUT_UNIT, of boxes of
    a grey picture.

    `boxes`, float64 [N, 4], are centre x, centre y, side and degrees clockwise. `grey`, int64 [H,
    W], goes on beyond its edges with its outermost pixels.
    """
    x, y, side, turn = boxes.T[:, :, None, None]
    (cos, sin), u, v = _cos_sin(turn), PLACES * SHARE, PLACES[:, None] * SHARE + RISE
    columns, rows = (np.round((centre + side * along - 0.5) * SUBPIXELS).astype(np.int64).clip(
        0, SUBPIXELS * (n - 1))
                     for centre, along, n in ((x, cos * u - sin * v, grey.shape[1]),
                                              (y, sin * u + cos * v, len(grey))))
    (i, a), (j, b) = (np.divmod(at, SUBPIXELS) for at in (rows, columns))
    below, right = (np.minimum(at + 1, n - 1) for at, n in zip((i, j), grey.shape, strict=True))
    upper = grey[i, j] * (SUBPIXELS - b) + grey[i, right] * b
    lower = grey[below, j] * (SUBPIXELS - b) + grey[below, right] * b
    return normalized((upper * (SUBPIXELS - a) + lower * a) / SUBPIXELS**2)


def normalized(values: Floats) -> Floats:
    """Return discs, [N, SIDE, SIDE] in grey levels, without their mean and over their deviation."""
    whole = np.round(values * SUBPIXELS) * DISC
    # whole numbers
    centred = (whole - np.round(whole.sum((1, 2), keepdims=True) / DISC.sum())) * DISC
    deviation = (np.sqrt(np.square(centred).sum((1, 2), keepdims=True) / DISC.sum()) + CONTRAST
                 * SUBPIXELS)
    return np.asarray(np.round(centred / deviation / INPUT_UNIT) * INPUT_UNIT)


class Aligner:
    """The network: four convolutions and a hidden layer, 105,000 weights."""

    def __init__(self, arrays: Mapping[str, npt.NDArray[np.floating]]) -> None:
        """Take the weights "0.weight" and "0.bias" to "5.bias": matrices [inputs, outputs];
        CheckpointError if others.

        A convolution's inputs are its 3x3 places row by row, and each one's channels.
        """
        last = SIDE >> (len(CHANNELS) - 1)
        inputs = [9 * count for count in CHANNELS[:-1]] + [last * last * CHANNELS[-1], HIDDEN]
        shapes = list(zip(inputs, [*CHANNELS[1:], HIDDEN, OUTPUTS], strict=True))
        found = [(arrays.get(f"{number}.weight"), arrays.get(f"{number}.bias"))
                 for number in range(len(shapes))]
        if len(arrays) != 2 * len(shapes) or any(
            weight is None or bias is None or weight.shape != shape or bias.shape != shape[1:]
            or not all(one.dtype.kind == "f" and (abs(one) < MOST_WEIGHT).all()
                       for one in (weight, bias))
            for (weight, bias), shape in zip(found, shapes, strict=True)):
            raise CheckpointError(f"these are no weights of an aligner, matrices of {shapes}; "
                                  "train them with 'superres train aligner'")
        self.layers = [(np.round(weight.astype(np.float64) / WEIGHT_UNIT) * WEIGHT_UNIT,
                        np.round(bias.astype(np.float64) / WEIGHT_UNIT) * WEIGHT_UNIT)
                       for weight, bias in found if weight is not None and bias is not None]

    def outputs(self, discs: Floats) -> Floats:
        """Return the corrections, in UNITS, and the logit of a face, float64 [N, 5], of windows [N,
        SIDE, SIDE]."""
        x = discs[..., None]
        for weight, bias in self.layers[:-2]:
            count, side, _, channels = x.shape
            padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
            places = [padded[:, i : i + side : 2, j : j + side : 2] for i in range(3)
                      for j in range(3)]
            x = _active(np.concatenate(places, axis=3).reshape(-1, 9 * channels) @ weight + bias)
            x = x.reshape(count, side // 2, side // 2, -1)
        (hidden, bias), (last, offset) = self.layers[-2:]
        return np.asarray(_active(x.reshape(len(x), -1) @ hidden + bias) @ last + offset)

    def corrections(self, grey: Grey, boxes: Floats) -> tuple[Floats, Floats]:
        """Return the corrections of boxes [N, 4] of a picture (see `windows`), in UNITS [N, 4], and
        their doubt [N].

        Both come from the window and its mirror image.
        """
        discs = windows(grey, boxes)
        both = self.outputs(np.concatenate([discs, discs[:, :, ::-1]])).reshape(2, -1, OUTPUTS)
        both[1, :, [0, 3]] *= -1
        return (both[:, :, :4].mean(0).clip(-MOST_CORRECTION, MOST_CORRECTION),
                doubt_of(both[:, :, 4].mean(0)))

    def align(self, image: Pixels, boxes: Floats, rounds: int = ROUNDS) -> tuple[Floats, Floats]:
        """Return boxes of faces, float64 [N, 4], aligned from rough ones, and the doubt [N] in [0,
        1].

        `image` is uint8 [H, W, 3]; boxes are centre x, centre y and side in its pixels, and degrees
        clockwise.
        """
        found = [self._align(image, box, rounds) for box in boxes]
        return (np.array([box for box, _ in found], np.float64).reshape(-1, 4),
                np.array([doubt for _, doubt in found], np.float64))

    def search(self, image: Pixels) -> tuple[Floats, Floats]:
        """Return the boxes and doubts, as `align` does, of faces on which several starts all over a
        photo agree."""
        ends, doubts = list[Floats](), list[Floats]()
        for side in _sides(image):
            grey, scale = reduced_grey(image, side)
            starts = _starts(grey, side * scale)
            logits = np.concatenate([
                self.outputs(windows(grey, starts[first : first + CHUNK]))[:, 4]
                for first in range(0, len(starts), CHUNK)])
            likely = min(MOST_STARTS, int((logits > LIKELY).sum()))
            boxes = starts[np.argsort(-logits, kind="stable")][:likely]
            doubt = np.ones(len(boxes))
            for _ in range(ROUNDS if len(boxes) else 0):
                change, doubt = self.corrections(grey, boxes)
                boxes = moved(boxes, change)
            ends.append(boxes / (scale, scale, scale, 1))
            doubts.append(doubt)
        if not ends:
            return np.empty((0, 4)), np.empty(0)
        return _agreed(np.concatenate(ends), np.concatenate(doubts))

    def _align(self, image: Pixels, box: Floats, rounds: int) -> tuple[Floats, float]:
        grey, scale, corner = grey_around(image, box)
        at = (box - (*corner, 0, 0)) * (*scale, scale[0], 1)
        for _ in range(rounds):
            change, doubt = self.corrections(grey, at[None])
            at = moved(at[None], change)[0]
        return at / (*scale, scale[0], 1) + (*corner, 0, 0), float(doubt[0])

    @classmethod
    @functools.cache
    def bundled(cls) -> Aligner:
        """Return the bundled aligner; CheckpointError if its file is missing or damaged."""
        return cls.load(bundled_folder() / ALIGNER / WEIGHTS)

    @classmethod
    def load(cls, path: Path) -> Aligner:
        """Read weights; raise CheckpointError if the file is missing, damaged or of another
        network."""
        try:
            return cls(read_arrays(path))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read: {first_line(error)}; install superres "
                                  "again") from error
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from error


def doubt_of(logits: Floats) -> Floats:
    """Return the doubt in [0, 1] from logits [N] of a face: 0.5 at DOUBTFUL, which hardly a face is
    below."""
    return np.round(1 / (1 + np.exp(np.clip(logits - DOUBTFUL, -30, 30))), 6)


def _sides(image: Pixels) -> list[float]:
    """Return the sides of the starts of a search in a photo, from that of the largest face to the
    smallest."""
    shorter = min(image.shape[:2])
    largest, smallest = LARGEST * shorter, max(SMALLEST * shorter, FACE_SIDE / 2)
    return [largest * NEXT_SIDE**number for number in range(20) if largest * NEXT_SIDE**number
            >= smallest]


def _starts(grey: Grey, side: float) -> Floats:
    """Return upright boxes [N, 4] all over a picture."""
    across, down = (np.linspace(0, length, 2 * math.ceil(length / (2 * STEP * side)) + 1)
                    for length in (grey.shape[1], len(grey)))
    places = np.stack(np.meshgrid(across, down), 2).reshape(-1, 2)
    return np.column_stack([places, np.full(len(places), side), np.zeros(len(places))])


def _agreed(ends: Floats, doubts: Floats) -> tuple[Floats, Floats]:
    """Return one box, the surest, of each group of AGREEING starts that ended alike; groups that
    overlap are one."""
    found = list[tuple[Floats, float]]()
    order = np.argsort(doubts, kind="stable")
    ends, doubts = ends[order], doubts[order]
    while len(ends):
        best, doubt = ends[0], float(doubts[0])
        far = np.abs(ends - best) / (best[2], best[2], 1, 1)
        far[:, 2] = np.abs(np.log(ends[:, 2] / best[2]))
        alike = (far <= ALIKE).all(1)
        if alike.sum() >= AGREEING and doubt <= SUREST and abs(best[3]) <= UPRIGHT:
            found.append((best, doubt))
            alike |= (far[:, :2] < 0.5 * np.maximum(1, ends[:, 2:3] / best[2])).all(1)
        ends, doubts = ends[~alike], doubts[~alike]
    return (np.array([box for box, _ in found], np.float64).reshape(-1, 4),
            np.array([doubt for _, doubt in found], np.float64))


def reduced_grey(image: Pixels, side: float) -> tuple[Grey, float]:
    """Return a photo in grey, int64 [h, w], reduced so that `side` has about FACE_SIDE pixels, and
    the scale."""
    by = max(1.0, side / FACE_SIDE)
    grey = Image.fromarray(image).convert("L")
    small = grey.resize((max(round(grey.width / by), 1), max(round(grey.height / by), 1)),
                        Image.Resampling.BOX)
    return np.asarray(small, np.int64), small.width / grey.width


def grey_around(image: Pixels, box: Floats) -> tuple[Grey, tuple[float, float], tuple[int, int]]:
    """Return what is around a box of a photo in grey, int64 [h, w], its scale in x and y, and its
    left and top.

    It is reduced so that a face has about the pixels of those that the network knows.
    """
    x, y, side, _ = box.tolist()
    left, top = (min(max(round(at - side), 0), n - 1)
                 for at, n in ((x, image.shape[1]), (y, len(image))))
    part = image[top : max(round(y + side), top + 1), left : max(round(x + side), left + 1)]
    grey = Image.fromarray(part).convert("L")
    by = max(1.0, side / FACE_SIDE)
    small = grey.resize((max(round(grey.width / by), 1), max(round(grey.height / by), 1)),
                        Image.Resampling.BOX)
    return (np.asarray(small, np.int64), (small.width / grey.width, small.height / grey.height),
            (left, top))


def _cos_sin(turn: npt.NDArray[np.float64]) -> tuple[Floats, Floats]:
    """Return cosine and sine of degrees, rounded to digits on which all mathematical libraries
    agree."""
    angle = np.radians(turn)
    return np.asarray(np.cos(angle)).round(12), np.asarray(np.sin(angle)).round(12)


def moved(boxes: Floats, corrections: Floats) -> Floats:
    """Return boxes [N, 4] after corrections [N, 4] in UNITS, which are relative to each box's side
    and turn."""
    (x, y, side, turn), (right, down, log, angle) = boxes.T, (corrections * UNITS).T
    cos, sin = _cos_sin(turn)
    return np.column_stack([x + side * (cos * right - sin * down),
                            y + side * (sin * right + cos * down), side * np.round(np.exp(log), 12),
                            turn + angle])


def _active(values: Floats) -> Floats:
    """Return ReLU of values, rounded to INPUT_UNIT, so that the sums of the next layer are
    exact."""
    return np.asarray(np.round(values.clip(0) / INPUT_UNIT) * INPUT_UNIT)


def upright_errors(faces: Pixels) -> Floats:
    """Return how far CelebA's own crops, uint8 [N, S, S, 3], are from aligned: the size of the
    corrections, in UNITS.

    Turned heads, and hair or hands across faces, have the largest errors. float64 [N].
    """
    aligner, sizes = Aligner.bundled(), list[Floats]()
    for first in range(0, len(faces), CHUNK):
        discs = []
        for face in faces[first : first + CHUNK]:
            grey, scale = reduced_grey(face, len(face))
            middle = scale * len(face) / 2
            discs.append(windows(grey, np.array([[middle, middle, 2 * middle, 0.0]])))
        sizes.append(np.sqrt(np.square(aligner.outputs(np.concatenate(discs))[:, :4]).mean(1)))
    return np.concatenate(sizes) if sizes else np.empty(0)
