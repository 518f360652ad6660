"""Memory that Python and the compiled code share: numpy arrays from a multiple of 64 bytes on.

numpy's own memory begins anywhere; a step that reads it takes up to a sixth longer.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
"""What addresses of arrays are multiples of, in bytes."""

AnyArray: TypeAlias = npt.NDArray[Any]


def empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> AnyArray:
    """Return an aligned array of undefined values."""
    return _within(np.empty, shape, np.dtype(dtype))


def zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> AnyArray:
    """Return an aligned array of zeros, which takes memory only where it is used."""
    return _within(np.zeros, shape, np.dtype(dtype))


def _within(allocate: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> AnyArray:  # noqa: ANN401 - np.empty or np.zeros
    size = math.prod(shape) * dtype.itemsize
    memory = allocate(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    array: AnyArray = memory[start : start + size].view(dtype).reshape(shape)
    return array


def aligned(array: AnyArray, dtype: npt.DTypeLike) -> AnyArray:
    """Return `array` itself if it is aligned, contiguous and of a type; otherwise a copy that
    is."""
    if (array.dtype == dtype and array.flags.c_contiguous
            and array.ctypes.data % ALIGNMENT == 0):
        return array
    copy = empty(array.shape, dtype)
    copy[...] = array
    return copy


def address(array: AnyArray | None, dtype: npt.DTypeLike, *shape: int) -> int | None:
    """Return the address of an array, for C++; None, which is null there, for None and for an array
    without elements.

    Raises ValueError if the array is not contiguous, or not of the given type and shape.
    """
    if array is None:
        return None
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        order = "" if array.flags.c_contiguous else ", which is not contiguous"
        raise ValueError(f"the native step wants contiguous {np.dtype(dtype)} {list(shape)}, not "
                         f"{array.dtype} {list(array.shape)}{order}")
    return array.ctypes.data if array.size else None
