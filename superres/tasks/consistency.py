"""Consistency with the low-resolution input: limits on intensities under which every picture
reduces to its input.

A source cell is the box of target pixels that one source pixel covers, for example 4x4. A target
reduces to the means of its cells, rounded to the nearest intensity, halves upwards: `area_reduce`
of `superres.tasks.faces` with `is_reduced`, and Pillow's `Image.reduce`. So a cell of P intensities
whose sum is in [P v - P / 2, P v + P / 2 - 1] reduces to intensity v exactly; for an odd P, P / 2
is rounded down in the first, and up in the second bound. Every cell and colour has limits of its
own.

Let S be the sum of the intensities decoded so far in the cell, and r the number of intensities that
follow the next one. The next intensity x is allowed if S + x + [0, 255 r] meets [low, high], the
sums that reduce to v:

    low - S - 255 r <= x <= high - S  and  0 <= x <= 255.

An allowed intensity exists at every position, whatever was chosen before. By induction, low - S <=
255 (r + 1) and S <= high hold before every choice:

- At first S = 0 and r + 1 = P: low <= P v <= 255 P and 0 <= P v <= high, for every v in 0..255.
- An allowed x keeps both: low - (S + x) <= 255 r by the lower limit, and S + x <= high by the upper
  limit.

So each lower limit is at most each upper limit: low - S - 255 r <= 255 and high - S >= 0 by the
induction, and low <= high. After the last choice, r + 1 = 0, so low <= S <= high: the cell reduces
to v. No input is an exception.

In a cascade, the source was itself enlarged from a coarser source. A target that reduces to its
source need not reduce to the coarser one directly, because its intensities are then rounded once
instead of twice. So the n cells of a coarse cell, with sources v_1..v_n, share what is left of the
coarse cell's own sums [low, high]: the sum of cell i is at least P v_i + (low - P sum(v)) / n,
rounded up, and at most P v_i + (high - P sum(v)) / n, rounded down. The sum P v_i itself is always
allowed, since the coarser source was reduced to by v, and so low <= P sum(v) <= high.

A picture that no decoder drew is projected: `projected` returns the nearest one whose cells have
the sums P v exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CellLimits:
    """Limits on the sums of target tokens, as data for the decoder: see
    `superres.decoding.limits.Limits`.

    Attributes:
        group: source position of the cell and colour that each target position belongs to, int64
            [T].
        earlier: earlier target positions of the same group, int64 [T, P - 1]; -1 where there are
            fewer.
        low: smallest sum of a group whose source token is v, int64 [V].
        high: largest sum of a group whose source token is v, int64 [V].
        coarse: coarse cell and colour that each source position belongs to, int64 [S]; None outside
            a cascade.
    """

    group: Int64
    earlier: Int64
    low: Int64
    high: Int64
    coarse: Int64 | None = None


def cell_limits(
    source: tuple[int, ...], target: tuple[int, ...], intensities: int = 256,
    first: tuple[int, ...] | None = None,
) -> CellLimits:
    """Return the limits under which every target reduces to its source.

    Args:
        source: (rows, columns, channels) of the source.
        target: (rows, columns, channels) of the target; rows and columns are multiples of the
            source's.
        intensities: V, the number of intensities.
        first: (rows, columns, channels) of the coarser source that the source was enlarged from, in
            a cascade; targets then reduce to the coarser source directly, too.
    """
    group = _cells(source, target)
    size = len(group) // math.prod(source)
    members = np.argsort(group, kind="stable").reshape(-1, size)[group]  # [T, P], in raster order
    earlier = np.where(members < np.arange(len(group))[:, None], members, -1)[:, :-1]
    low = np.arange(intensities) * size - size // 2
    return CellLimits(group, earlier.astype(np.int64), low, low + size - 1,
                      None if first is None else _cells(first, source))


def _cells(small: tuple[int, ...], large: tuple[int, ...]) -> Int64:
    """Return the position in a picture of the shape `small` of the cell of each position of the
    shape `large`."""
    row, column, channel = np.unravel_index(np.arange(math.prod(large)), large)
    cells = row * small[0] // large[0], column * small[1] // large[1], channel
    return np.ravel_multi_index(cells, small).astype(np.int64)


def projected(values: Int64, unit: int, sources: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return the pictures nearest to `values` whose cells have exactly the sums of their sources'
    enlargements.

    All values of a cell and colour move by the same amount, within 0..255 (the Euclidean
    projection); of the values that this leaves between two intensities, those with the largest
    rests are rounded up. All arithmetic is on whole numbers, so the result is the same on every
    machine.

    Args:
        values: int64 [N, H, W, C], in units of 1 / `unit` of an intensity; |values| and 255 `unit`
            are below 2**44.
        unit: positive number of units per intensity.
        sources: uint8 [N, h, w, C]; H and W are multiples of h and w.
    """
    count, rows, columns, channels = sources.shape
    tall, wide = values.shape[1] // rows, values.shape[2] // columns
    cells = values.reshape(count, rows, tall, columns, wide, channels).transpose(0, 1, 3, 5, 2, 4)
    cells = cells.reshape(count, rows, columns, channels, tall * wide)
    sums, most = sources.astype(np.int64) * tall * wide, 255 * unit
    # The largest shift with which the sum of the clipped values is at most that of the cell, by
    # bisection.
    low = np.broadcast_to(-most - np.abs(cells).max(-1), sums.shape)
    high = most + np.abs(cells).max(-1)
    while (low < high).any():
        middle = low + (high - low + 1) // 2
        fits = (cells + middle[..., None]).clip(0, most).sum(-1) <= sums * unit
        low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
    whole, rest = np.divmod((cells + low[..., None]).clip(0, most), unit)
    places = np.where(whole == 255, unit, -rest).argsort(-1, kind="stable")
    order = places.argsort(-1, kind="stable")
    whole += order < (sums - whole.sum(-1))[..., None]
    pictures = whole.reshape(count, rows, columns, channels, tall, wide).transpose(0, 1, 4, 2, 5, 3)
    return np.asarray(pictures.reshape(values.shape), np.uint8)
