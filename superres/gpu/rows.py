"""Sums and choices over the columns of a row, in a program of a kernel with ROWS rows of W columns:
M = ROWS * W."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def row_sum(x, ROWS: tl.constexpr, W: tl.constexpr):
    """The sum of x [M] in each row, [M]."""
    return repeated(tl.sum(tl.reshape(x, (ROWS, W)), 1), ROWS, W)


@triton.jit
def row_min(x, ROWS: tl.constexpr, W: tl.constexpr):
    """The least of x [M] in each row, [M]."""
    return repeated(tl.min(tl.reshape(x, (ROWS, W)), 1), ROWS, W)


@triton.jit
def shifted(x, BY: tl.constexpr, ROWS: tl.constexpr, W: tl.constexpr):
    """X [M] of the column BY further, in each row; 0 past the ends."""
    other = tl.arange(0, W)[None, :] == tl.arange(0, W)[:, None] + BY
    x = tl.where(other[None, :, :], tl.reshape(x, (ROWS, W))[:, None, :], 0)
    return tl.reshape(tl.sum(x, 2), (ROWS * W,))


@triton.jit
def of_row(x, column, number, ROWS: tl.constexpr, W: tl.constexpr):
    """X [M] of the column of a `number`, [ROWS]."""
    return tl.sum(tl.reshape(tl.where(column == number, x, 0), (ROWS, W)), 1)


@triton.jit
def leading(passed, column, most, ROWS: tl.constexpr, W: tl.constexpr):
    """1 and the number of columns from the second on that passed before the first that did not, at
    most `most`; [M]."""
    return row_min(tl.where((column > 0) & (column < most) & (passed == 0), column, most), ROWS, W)


@triton.jit
def repeated(x, ROWS: tl.constexpr, W: tl.constexpr):
    """X [ROWS] for each column, [M]."""
    return tl.reshape(tl.broadcast_to(x[:, None], (ROWS, W)), (ROWS * W,))
