"""What a network is computed with beside its weights: constants, position signals, index tables."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from superres.config.network import LONGEST, ModelConfig

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]

RESIDUAL_SCALE = 32.0
"""Grey levels per unit of the real numbers as which intensities enter or leave the network."""

INITIAL_SHARPNESS = -2.5
"""log(1 / s) of the ordinal term before training: s of about 12 grey levels."""

SHARPNESS = -7.0, 3.0
"""Bounds of log(1 / s) and of log d."""

SOURCE_MULTIPLE = 16
"""Sessions pad their sources to a multiple of this many positions, for two reasons.

MKL's products of 5 to 11 columns have results that depend on the row, but a token must get the same
score in every column of a step. The native step reads vectors of 16.
"""

NEIGHBOUR_PIXELS = [
    *((0, dx) for dx in range(-4, 1)), *((-1, dx) for dx in range(-4, 5)),
    *((-2, dx) for dx in range(-2, 3))]
"""Offsets (rows down, columns right) of the pixels whose intensities the numeric neighbourhood
reads."""


@functools.cache  # source and target often have the same
def sinusoid(count: int, width: int) -> Float32:
    """Return the sinusoidal signal [count, width] of positions 0, 1, ...: half sines, half cosines.

    The C library computes it in float64, and rounding hides its last bits: vectorised functions
    give every class of processors other ones. Rates and angles are products in float32.
    """
    step = np.float32(-math.log(10_000.0) / max(width // 2 - 1, 1))
    powers = (np.arange(width // 2).astype(np.float32) * step).tolist()
    rates = np.array([math.exp(power) for power in powers], np.float32)
    # [count, width / 2]
    angles = (np.arange(count)[:, None].astype(np.float32) * rates).tolist()
    return np.array([[function(angle) for function in (math.sin, math.cos) for angle in row]
                     for row in angles], np.float32)


def position_signal(shape: tuple[int, ...], width: int) -> Float32:
    """Return the position signal [prod(shape), width] of a raster.

    An image (rows, columns, channels) gets a 2-D signal over (row, column * channels + channel), as
    in the paper; text gets a 1-D signal.
    """
    if len(shape) == 1:
        return np.array(sinusoid(shape[0], width))
    rows, row_length = shape[0], math.prod(shape[1:])
    down, across = sinusoid(rows, width // 2), sinusoid(row_length, width // 2)
    return np.hstack([np.repeat(down, row_length, axis=0), np.tile(across, (rows, 1))])


def neighbour_table(shape: tuple[int, ...]) -> Int64:
    """Return the neighbours of each position of a target of (rows, columns, channels) [T, N].

    The neighbours are the earlier channels of the same pixel and all channels of NEIGHBOUR_PIXELS,
    the target's own channel first. T (one past the end) stands for "outside the image or not
    decoded yet".
    """
    columns, channels = shape[1:]
    position, row, column, channel = _places(shape)
    table = []
    for dy, dx in NEIGHBOUR_PIXELS:
        for turn in range(channels):
            y, x, c = row + dy, column + dx, (channel + turn) % channels
            neighbour = (y * columns + x) * channels + c
            valid = (y >= 0) & (x >= 0) & (x < columns) & (neighbour < position)
            table.append(np.where(valid, neighbour, len(position)))
    return np.stack(table, axis=1)


def cell_tables(config: ModelConfig) -> tuple[Int64, Int64]:
    """Return the source position that covers each target position [T], and the positions in its
    cell.

    These are all P target positions of the same cell and channel in raster order, [T, P].
    """
    columns, channels = config.target_shape[1:]
    height, width = config.enlargement
    _, row, column, channel = _places(config.target_shape)
    cell = (row // height * (columns // width) + column // width) * channels + channel
    first = (row // height * height * columns + column // width * width) * channels + channel
    inside = (np.arange(height)[:, None] * columns + np.arange(width)).ravel() * channels
    return cell, first[:, None] + inside


def _places(shape: tuple[int, ...]) -> tuple[Int64, Int64, Int64, Int64]:
    """Return the positions of an image's raster, and their rows, columns and channels, each [T]."""
    _, columns, channels = shape
    position = np.arange(math.prod(shape), dtype=np.int64)
    return (position, position // (columns * channels), position // channels % columns,
            position % channels)


def feature_count(config: ModelConfig) -> int:
    """Return N, the number of features that the numeric neighbourhood gives each target
    position."""
    return len(NEIGHBOUR_PIXELS) * config.channels + (math.prod(config.enlargement)
                                                      if config.cell_remainder else 0)


def longest_targets(source_tokens: Any, config: ModelConfig) -> Any:  # noqa: ANN401 -- see below
    """Return `ModelConfig.longest_target` of the numbers of tokens `source_tokens` [B], an integer
    array or tensor."""
    longest = source_tokens * LONGEST[0] + LONGEST[1]
    return longest - (longest - config.target_length) * (longest > config.target_length)


def slot_count(config: ModelConfig, width: int) -> int:
    """Return the number of cache slots that a layer needs for steps of `width` positions.

    Local attention: a query sees at most two attention blocks, and the whole step must fit beside
    them, since it may straddle a block boundary. Full causal attention needs a slot for every
    position.
    """
    width = -(-(width - 1) // config.key_distance) + 1  # keys of a step
    full = -(-config.target_length // config.key_distance) + width
    if config.attention == "causal":
        return full
    return min(full, 2 * config.attention_block_length + width - 1)
