"""A decode as WebAssembly has it in memory: the structures of cpp/abi.h with short addresses, and
all they read.

An image is data and, behind them, memory that decodes write before they read it. Only the data are
in a file. Addresses count from the image's first byte; whoever loads it adds its place to all of
them.
"""

from __future__ import annotations

import ctypes
import struct
from bisect import bisect_right
from collections.abc import Iterator
from ctypes import Array, Structure, addressof, c_void_p, sizeof
from typing import Any

import numpy as np

ALIGNMENT = 64
_ADDRESS = 4


def size_and_alignment(kind: Any) -> tuple[int, int]:  # noqa: ANN401 - a type of ctypes
    """Return the size in WebAssembly of a type of ctypes, and what its addresses are multiples
    of."""
    if _is_pointer(kind):
        return _ADDRESS, _ADDRESS
    if issubclass(kind, Array):
        size, alignment = size_and_alignment(kind._type_)
        return size * kind._length_, alignment
    if issubclass(kind, Structure):
        fields = list(_fields(kind))
        alignment = max(size_and_alignment(field)[1] for _, field, _ in fields)
        size = fields[-1][2] + size_and_alignment(fields[-1][1])[0]
        return size + -size % alignment, alignment
    return sizeof(kind), sizeof(kind)


def offset_of(kind: type[Structure], path: str) -> int:
    """Return the place of a field of a structure in WebAssembly; "size.width" is a field of a
    field."""
    name, _, rest = path.partition(".")
    field, place = next((field, place) for own, field, place in _fields(kind) if own == name)
    return place + (offset_of(field, rest) if rest else 0)


def _fields(kind: type[Structure]) -> Iterator[tuple[str, Any, int]]:
    """Yield the name, the type and the place in WebAssembly of each field of a structure."""
    place = 0
    for name, field in kind._fields_:  # type: ignore[misc]
        size, alignment = size_and_alignment(field)
        place += -place % alignment
        yield name, field, place
        place += size


def _is_pointer(kind: Any) -> bool:  # noqa: ANN401 - a type of ctypes
    return kind is c_void_p or issubclass(kind, ctypes._Pointer)


class MemoryImage:
    """An image, to which structures are added with all that they point to.

    Places are distances from the first byte. Where the data end is not known before all is added,
    so that the place of memory behind them is -1 minus its distance from there; at the end, `place`
    converts it. `links` are the places of all addresses in the data.
    """

    def __init__(self, data: Any, blank: Any) -> None:  # noqa: ANN401 - whatever holds arrays
        """Begin an image of structures that point to the arrays in `data`, of numpy and of ctypes,
        and to the arrays in `blank`.

        What is in `blank` is not saved, even if it is in `data`. Both are lists and dictionaries,
        also nested. Arrays within another one keep their places there.
        """
        self.data, self.links, self._blank = bytearray(), list[int](), 0
        # Memory of this process by its address: its size, the type of an array's elements, and
        # whether it is data.
        self._memory: dict[int, tuple[int, Any, bool]] = {}
        for is_data, owner in ((True, data), (False, blank)):
            for address, size, kind in _memory_of(owner):
                if address not in self._memory or size >= self._memory[address][0]:
                    self._memory[address] = size, kind, is_data
        # Arrays within another one are left out.
        self._addresses, end = list[int](), 0
        for address in sorted(self._memory):
            if address >= end:
                self._addresses.append(address)
                end = address + self._memory[address][0]
        self._placed: dict[int, int] = {}  # by the address in this process

    def add(self, structure: Structure) -> int:
        """Add a structure, and return its place."""
        return self._structures(addressof(structure), type(structure))

    def reserve(self, size: int) -> int:
        """Reserve `size` bytes behind the data, and return their place."""
        place, self._blank = self._blank, self._blank + size + -size % ALIGNMENT
        return -1 - place

    def place(self, of: int) -> int:
        """Return the distance of a place from the image's first byte, once all is added."""
        return of if of >= 0 else len(self.data) + -len(self.data) % ALIGNMENT - 1 - of

    def finished(self) -> tuple[bytes, int]:
        """Return the data, in which all addresses are places, and the size of the image in
        memory."""
        for link in self.links:
            (to,) = struct.unpack_from("<i", self.data, link)
            struct.pack_into("<I", self.data, link, self.place(to))
        return bytes(self.data).ljust(self.place(-1), b"\0"), self.place(-1 - self._blank)

    def _reserve_data(self, size: int) -> int:
        self.data += bytes(-len(self.data) % ALIGNMENT)
        place = len(self.data)
        self.data += bytes(size)
        return place

    def at(self, address: int) -> int:
        """Return the place of an address in this process, in the memory of an array."""
        start = self._addresses[bisect_right(self._addresses, address) - 1]
        size, _, is_data = self._memory[start]
        if not start <= address < start + size:
            raise ValueError(f"nothing is known of the memory at {address:#x}")
        if start not in self._placed:
            self._placed[start] = self._reserve_data(size) if is_data else self.reserve(size)
            if is_data:
                place = self._placed[start]
                self.data[place : place + size] = ctypes.string_at(start, size)
        place = self._placed[start]
        return place + address - start if place >= 0 else place - (address - start)

    def _structures(self, address: int, kind: type[Structure]) -> int:
        """Place a structure, or the array that begins with it, and return its place."""
        if address not in self._placed:
            memory, size = self._memory.get(address), size_and_alignment(kind)[0]
            count = memory[0] // sizeof(kind) if memory is not None and memory[1] is kind else 1
            self._placed[address] = place = self._reserve_data(size * count)
            for number in range(count):
                self._copy(address + number * sizeof(kind), kind, place + number * size)
        return self._placed[address]

    def _copy(self, address: int, kind: Any, place: int) -> None:  # noqa: ANN401 - a type of ctypes
        """Copy a value to its place, and all that it points to."""
        if _is_pointer(kind):
            target = ctypes.c_uint64.from_address(address).value
            if target:
                to = self.at(target) if kind is c_void_p else self._structures(target, kind._type_)
                struct.pack_into("<i", self.data, place, to)
                self.links.append(place)
        elif issubclass(kind, Structure):
            for name, field, offset in _fields(kind):
                self._copy(address + getattr(kind, name).offset, field, place + offset)
        elif issubclass(kind, Array):
            size = size_and_alignment(kind._type_)[0]
            for number in range(kind._length_):
                self._copy(address + number * sizeof(kind._type_), kind._type_,
                           place + number * size)
        else:
            self.data[place : place + sizeof(kind)] = ctypes.string_at(address, sizeof(kind))


def _memory_of(owner: Any) -> Iterator[tuple[int, int, Any]]:  # noqa: ANN401 - whatever holds arrays
    """Yield the address, the size and the type of structures of the memory that the arrays in
    `owner` take."""
    if isinstance(owner, np.ndarray) and owner.size:
        yield owner.ctypes.data, owner.nbytes, None
    elif isinstance(owner, Array):
        yield addressof(owner), sizeof(owner), owner._type_
    elif isinstance(owner, dict | list | tuple):
        for part in owner.values() if isinstance(owner, dict) else owner:
            yield from _memory_of(part)
