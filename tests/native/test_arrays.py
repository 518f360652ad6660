"""The memory that Python shares with the compiled code: aligned arrays, memories of sources, and
images of them."""

from __future__ import annotations

import ctypes
from dataclasses import fields, replace

import numpy as np
import pytest

from superres.native import abi, arrays
from superres.native.memory import NativeMemory
from superres.native.memory_image import MemoryImage

SHAPES = [(), (1,), (3, 5), (2, 0, 4), (7, 33)]
TYPES = [np.uint8, np.float32, np.int64, np.float64, bool]


def is_aligned(array):
    return array.flags.c_contiguous and array.ctypes.data % 64 == 0


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_arrays_are_aligned(shape, dtype):
    made = [make(shape, dtype) for make in (arrays.empty, arrays.zeros) for _ in range(9)]
    for array in made:
        assert is_aligned(array) or not array.size
        assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
        assert array.flags.writeable
    assert not any(array.any() for array in made[9:])


def test_a_copy_is_made_only_where_one_is_needed():
    array = arrays.zeros((4, 16), np.float32)
    array[...] = np.arange(64).reshape(4, 16)
    assert arrays.aligned(array, np.float32) is array
    assert arrays.aligned(array[1:], np.float32).base is array.base  # a row has 64 bytes
    for other in (array.T, array[:, 1:], array[:, ::2], array.ravel()[1:], array.astype(int)):
        copy = arrays.aligned(other, np.float32)
        assert is_aligned(copy)
        assert copy.dtype == np.float32
        assert not np.shares_memory(copy, array)
        assert np.array_equal(copy, other)


def test_nothing_has_the_address_null():
    assert arrays.address(None, np.float32, 3) is None
    for shape in ((0,), (2, 0, 3)):
        assert np.empty(shape).ctypes.data  # what C++ would take for an array
        for make in (arrays.empty, np.empty):
            assert arrays.address(make(shape, np.float32), np.float32, *shape) is None
    array = np.arange(6.0).reshape(2, 3)
    assert arrays.address(array, np.float64, 2, 3) == array.ctypes.data
    assert arrays.address(array[1:], np.float64, 1, 3) == array.ctypes.data + 24


@pytest.mark.parametrize(("array", "message"), [
    (np.zeros((2, 3)), r"wants contiguous float32 \[2, 3\], not float64 \[2, 3\]$"),
    (np.zeros((3, 2), np.float32), r"not float32 \[3, 2\]$"),
    (np.zeros((3, 2), np.float32).T, r"not float32 \[2, 3\], which is not contiguous$"),
    (np.zeros((0, 3)), r"not float64 \[0, 3\]$"),
], ids=["type", "shape", "order", "no elements"])
def test_other_arrays_have_no_address(array, message):
    with pytest.raises(ValueError, match=message):
        arrays.address(array, np.float32, 2, 3)


def memory_of(rows, seed, **changes):
    """Return a memory of random numbers with all parts."""
    drawn = np.random.default_rng(seed)
    shapes = {"states": (16, 4), "mask": (16,), "position_table": (5, 4), "head_table": (5, 4),
              "estimate": (5,), "residual_sum": (3,)}
    whole = {"longest": (), "tokens": (3,), "bounds": (2, 6)}
    made = NativeMemory(
        **{name: drawn.random((rows, *shape), np.float32) for name, shape in shapes.items()},
        **{name: drawn.integers(9, size=(rows, *shape)) for name, shape in whole.items()})
    return replace(made, **changes)


def parts(memory):
    return {field.name: getattr(memory, field.name) for field in fields(memory)
            if isinstance(getattr(memory, field.name), np.ndarray)}


def test_rows_of_a_memory_are_copies_of_all_parts():
    whole = memory_of(4, 0, estimate=None, draft=memory_of(4, 1))
    rows = np.array([2, 0, 2])
    chosen = whole[rows]
    assert len(chosen) == len(chosen.draft) == 3
    assert chosen.estimate is None
    for memory, own in ((whole, chosen), (whole.draft, chosen.draft)):
        assert parts(memory).keys() == parts(own).keys()
        for name, part in parts(own).items():
            assert is_aligned(part)
            assert np.array_equal(part, getattr(memory, name)[rows])
            assert not np.shares_memory(part, getattr(memory, name))
    with pytest.raises(IndexError):
        whole[np.array([4])]


def test_memories_are_joined_part_by_part():
    some = [memory_of(rows, rows, draft=memory_of(rows, 9 + rows)) for rows in (2, 1, 3)]
    joined = NativeMemory.joined(some)
    assert len(joined) == len(joined.draft) == 6
    for own, given in ((joined, some), (joined.draft, [one.draft for one in some])):
        for name, part in parts(own).items():
            assert is_aligned(part)
            assert np.array_equal(part, np.concatenate([getattr(one, name) for one in given]))
    assert NativeMemory.joined(some[:1]) is some[0]


def test_sources_without_padding_are_joined_with_padded_ones():
    some = [memory_of(2, 0, mask=None), memory_of(1, 1, tokens=None), memory_of(1, 2, mask=None)]
    for one in some:
        one.tokens = None
    mask = NativeMemory.joined(some).mask
    assert not mask[[0, 1, 3]].any()
    assert np.array_equal(mask[2], some[1].mask[0])
    assert some[0].mask is None
    assert NativeMemory.joined([some[0], some[2]]).mask is None


def test_parts_of_an_array_keep_their_places_in_an_image():
    whole = arrays.zeros((6, 4), np.int64)
    whole[...] = np.arange(24).reshape(6, 4)
    other = arrays.zeros((3,), np.float32)
    linear = abi.CLinear(1, 1, 0, whole[4].ctypes.data, whole.ctypes.data, other.ctypes.data)
    image = MemoryImage([whole[4], whole[:2], whole], [other])
    at = image.add(linear)
    weight, bias, blank = (image.at(place) for place in (linear.weight, linear.bias, linear.scale))
    assert weight - bias == whole[:4].nbytes
    data, size = image.finished()
    assert data[bias : bias + whole.nbytes] == whole.tobytes()
    assert len(data) <= image.place(blank) < size
    assert ctypes.c_uint32.from_buffer_copy(data, at + 24).value == weight
