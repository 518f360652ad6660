"""Reductions, enlargements and turns of batches of uint8 pictures, which give the same pictures on
every device.

Every sum is a whole number, or a whole multiple of a power of two, that float64 holds exactly. So
the order of a sum, which depends on the device, does not matter.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

CHANGE_UNIT = 2.0**-8
"""Changes of pictures are whole multiples of this, in grey levels."""
LARGEST_CHANGE = 1024
"""Largest change of a pixel in grey levels, so that enlarged changes have at most 53 bits."""
WEIGHT_UNIT = 2.0**-16
"""Weights of bicubic interpolation are rounded to whole multiples of this; those of enlargements by
2, 4 and 8 are."""
TURN_UNIT = 2.0**-12
"""Coefficients of a turn are whole multiples of this, so that cubes of fractions of a pixel have at
most 53 bits."""
SHARPNESS = -0.75
"""Parameter of the bicubic interpolation of a turn, as in torch's; smaller values keep less
detail."""


def box_weights(start: Tensor, side: Tensor, size: int, length: int) -> Tensor:
    """Return how much of each of `length` pixels lies in each of `size` equal boxes, in units of
    1/`size` pixel.

    The boxes divide the pixels `start` to `start` + `side`; both are int64 [B], the weights float64
    [B, size, length].
    """
    pixel = size * torch.arange(length, device=side.device)
    # [B, size + 1]
    steps = torch.arange(size + 1, device=side.device)
    edge = size * start.unsqueeze(1) + side.unsqueeze(1) * steps
    first, last = edge[:, :-1, None], edge[:, 1:, None]
    return (torch.minimum(last, pixel + size) - torch.maximum(first, pixel)).clamp_(min=0).double()


def reduce_squares(pictures: Tensor, side: Tensor, top: Tensor, left: Tensor, size: int) -> Tensor:
    """Cut a square from each picture, uint8 [B, H, W, C], and reduce it to [B, size, size, C] by
    area averages.

    The averages are rounded, as those of `superres.tasks.faces.area_reduce` with `is_reduced`.
    `side`, `top` and `left` of the squares are int64 [B], or [1] for all pictures.
    """
    rows, columns = (box_weights(start, side, size, length)
                     for start, length in ((top, pictures.shape[1]), (left, pictures.shape[2])))
    total, area = resized(pictures.double(), rows, columns), side.square().view(-1, 1, 1, 1)
    return ((total.long() + area // 2) // area).to(torch.uint8)


def resized(pictures: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the weighted sums [B, h, w, C] of pixels [B, H, W, C] by weights [h, H] and [w, W], or
    by B of each."""
    batch, height, width, channels = pictures.shape
    # [B, h, W, C]
    high = (rows @ pictures.reshape(batch, height, -1)).view(batch, -1, width, channels)
    wide = columns @ high.transpose(1, 2).reshape(batch, width, -1)  # [B, w, h * C]
    return wide.view(batch, wide.shape[1], -1, channels).transpose(1, 2)


@functools.lru_cache(maxsize=8)
def enlargement(source: int, target: int, device: torch.device) -> Tensor:
    """Return the weights, float64 [target, source], of the bicubic enlargement of a row of
    pixels."""
    every = torch.eye(source, dtype=torch.float64).view(1, source, source, 1)
    weights = functional.interpolate(every, (target, 1), mode="bicubic",
                                     align_corners=False)[0, :, :, 0].T
    return (torch.round(weights / WEIGHT_UNIT) * WEIGHT_UNIT).contiguous().to(device)


def changed_pairs(high: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
    """Change pictures, uint8 [B, H, W, C], by `change`, enlarged; return them reduced to [B, h, w,
    C], and themselves.

    `change`, float64 [B, h, w, C], is in units of CHANGE_UNIT, whole numbers of up to
    LARGEST_CHANGE grey levels. The finest detail of a picture, which its reduction lacks, remains.
    The enlargement is smooth, since the edges of cells would be new detail.
    """
    rows, columns = (enlargement(*sides, high.device)
                     for sides in zip(change.shape[1:3], high.shape[1:3], strict=True))
    changed = (high + resized(change, rows, columns) * CHANGE_UNIT).round_().clamp_(0, 255).to(
        torch.uint8)
    whole = torch.full((1,), high.shape[1], device=high.device)
    return reduce_squares(changed, whole, whole - whole, whole - whole, change.shape[1]), changed


def turns_of(degrees: np.ndarray, scale: np.ndarray | float = 1.0) -> np.ndarray:
    """Return the coefficients, float64 [2, B] in multiples of TURN_UNIT, that `turned` takes, of
    angles and scales."""
    angle = np.radians(degrees)
    return np.asarray(np.rint(np.stack([np.cos(angle), np.sin(angle)]) * scale / TURN_UNIT)
                      * TURN_UNIT)


def turned(pictures: Tensor, turns: Tensor) -> Tensor:
    """Turn and scale pictures, whole numbers [B, H, W, C] with H = W, about their centres; return
    float64.

    `turns`, float64 [2, B], are whole multiples (a, b) of TURN_UNIT: the place (x, y) of a result,
    from the centre, shows the place (a x - b y, b x + a y) of its picture. Beyond the edges, the
    pixels there are repeated. The bicubic interpolation loses a little of the finest detail, so
    turn a picture before it is reduced, where that is possible.
    """
    batch, side = pictures.shape[:2]
    across, along = turns.view(2, -1, 1, 1)
    centre = (side - 1) / 2
    x = torch.arange(side, device=pictures.device) - centre
    y = x.unsqueeze(1)
    rows, columns = (_taps(places + centre, side)
                     for places in (along * x + across * y, across * x - along * y))
    values, number = pictures.double(), torch.arange(batch, device=pictures.device).view(-1, 1, 1)
    total = torch.zeros_like(values)
    for (row, high), (column, wide) in itertools.product(rows, columns):
        total += values[number, row, column] * (high * wide).unsqueeze(-1)
    return total


def _taps(places: Tensor, side: int) -> list[tuple[Tensor, Tensor]]:
    """Return the four pixels of a row of `side` around each of `places`, and their weights in
    bicubic interpolation."""
    first = places.floor()
    found = []
    for offset in (-1, 0, 1, 2):
        far = (places - first - offset).abs()
        near = ((SHARPNESS + 2) * far - (SHARPNESS + 3)) * far.square() + 1
        weight = near if offset in (0, 1) else SHARPNESS * (((far - 5) * far + 8) * far - 4)
        found.append(((first + offset).long().clamp(0, side - 1), (weight / WEIGHT_UNIT).round()
                      * WEIGHT_UNIT))
    return found
