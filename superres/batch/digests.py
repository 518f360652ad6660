"""Digests of texts, by which any number of inputs, outputs and rows is remembered in little
memory."""

from __future__ import annotations

import array
import hashlib
from typing import Any

import numpy as np

Numbers = np.ndarray[Any, Any]


def digest_of(*texts: str | None) -> int:
    """Return a 64-bit digest of texts."""
    text = "\0".join(text or "" for text in texts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def ends(values: Numbers) -> Numbers:
    """Return where a run of equal values ends, bool [N]."""
    return np.append(values[1:] != values[:-1], True)[: len(values)]


class Digests:
    """An index of texts in the order in which they were added: 8 bytes each, three times as many
    once it is asked."""

    def __init__(self) -> None:
        self._values = array.array("Q")
        self._sorted: tuple[Numbers, Numbers] | None = None

    def add(self, *texts: str | None) -> None:
        """Add the digest of texts."""
        self.append(digest_of(*texts))

    def append(self, digest: int) -> None:
        """Add a digest."""
        self._values.append(digest)
        self._sorted = None

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, place: int) -> int:
        return self._values[place]

    def values(self) -> Numbers:
        """Return all digests, uint64 [N]."""
        return np.array(self._values, np.uint64)

    def places(self, digests: Numbers) -> Numbers:
        """Return where each of `digests`, uint64 [M], was added last, int64 [M]; -1 if it was
        not."""
        if self._sorted is None:
            values = self.values()
            order = np.argsort(values, kind="stable")
            is_last = ends(values[order])
            self._sorted = values[order][is_last], order[is_last]
        known, order = self._sorted
        if not len(known):
            return np.full(len(digests), -1)
        at = np.searchsorted(known, digests).clip(max=len(known) - 1)
        return np.where(known[at] == digests, order[at], -1)

    def has(self, *texts: str | None) -> bool:
        """Return whether texts were added."""
        return bool(self.places(np.array([digest_of(*texts)], np.uint64))[0] >= 0)

    def repeated(self) -> set[int]:
        """Return the digests that were added several times."""
        values, counts = np.unique(self.values(), return_counts=True)
        return set(values[counts > 1].tolist())

    def shared(self, others: Digests) -> set[int]:
        """Return the digests that were added to `others`, too."""
        return set(np.intersect1d(self.values(), others.values()).tolist())
