"""Counter-based randomness: the keys of sequences, and the words that noise is made of.

Sampling is a deterministic function of seed, key and position. So a sample does not depend on the
block size, the batch or the order of images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from superres.config import is_whole
from superres.errors import InvalidInputError, shown
from superres.interfaces import Int64

WORD = 0xFFFFFFFF  # Mask of the lower 32 bits

# The constants of Philox4x32
MULTIPLIERS, WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)


def philox(counter: Sequence[Any], key: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """Return the four random words of each counter (Philox4x32-10, Salmon et al. 2011).

    The four words of `counter` and the two of `key` are of 32 bits: whole numbers, or arrays or
    tensors int64 of shapes that fit one another.
    """
    a, b, c, d = counter
    low, high = key
    for number in range(10):
        if number:
            low, high = low + WEYL[0] & WORD, high + WEYL[1] & WORD
        # int64 wraps around, but all 64 bits of a product are right.
        first, second = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, b, c, d = ((second >> 32 & WORD) ^ b ^ low, second & WORD,
                      (first >> 32 & WORD) ^ d ^ high, first & WORD)
    return a, b, c, d


def words(number: Any) -> tuple[Any, Any]:  # noqa: ANN401 -- as for `philox`
    """Return the lower and the upper 32 bits of whole numbers of 64 bits."""
    return number & WORD, number >> 32 & WORD


def noise_keys(keys: Iterable[Any] | None, count: int) -> Int64:
    """Return keys of sampling noise, int64 [count].

    `keys` are whole numbers in [0, 2**63), one for each of `count` sequences; 0, 1, 2, ... if None.
    Raises InvalidInputError if there is not one key per sequence, or a key is out of range or not a
    whole number.
    """
    if keys is None:
        return np.arange(count)
    try:  # an entry of an array or of a tensor is an array without axes
        given = [key.tolist() if getattr(key, "ndim", 1) == 0 else key for key in keys]
    except TypeError:
        raise InvalidInputError("keys must be a sequence, one key per input, not "
                                f"{keys!r}") from None
    if len(given) != count:
        raise InvalidInputError(f"there are {len(given)} keys for {count} inputs; give one per "
                                "input")
    for key in given:
        if not is_whole(key) or not 0 <= key < 2**63:
            raise InvalidInputError(f"keys must be whole numbers in [0, 2**63), not {shown(key)}")
    return np.array([int(key) for key in given], np.int64)


def part_keys(keys: Int64, parts: Int64) -> Int64:
    """Return the keys in [0, 2**63) of parts of sequences with `keys`, int64 [B] each.

    `parts` numbers each part in its sequence, int64 [B]; part 0 keeps the key of the sequence.
    """
    low, high, *_ = philox((*words(parts), *words(keys)), (1, 0))
    return np.where(parts == 0, keys, (high << 32 | low) & (2**63 - 1))
