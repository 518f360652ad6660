"""Counts of n-grams: the most frequent next token in training data, stored in a small file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from superres.config import require, require_whole
from superres.errors import CheckpointError, ConfigError, plain
from superres.system.tensor_files import read_arrays

if TYPE_CHECKING:
    from torch import Tensor

MAX_ORDER = 63  # Largest order of n-grams

Int64 = npt.NDArray[np.int64]
NumbersT = TypeVar("NumbersT", "Int64", "Tensor")


@dataclass(frozen=True, eq=False)
class NgramTable:
    """The most frequent next token of every context that is frequent enough.

    A context is 0..n-1 tokens; it has a distinct number, so that one table holds contexts of all
    lengths. Raises ConfigError if a value is below 1, or there are more contexts than an int64 can
    number.
    """

    order: int  # n, the largest number of tokens of an n-gram
    vocabulary: int  # V
    # number of channels, which are counted separately: 3 for intensities of pixels, 1 for text
    channels: int
    # numbers of the contexts, int64 [N], in ascending order; contexts of no token come first
    keys: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    # the most frequent next token of each context, int64 [N]
    tokens: Int64 = field(default_factory=lambda: np.empty(0, np.int64))

    def __post_init__(self) -> None:
        require_whole("the order of n-grams", self.order)
        for name in ("vocabulary", "channels"):
            require_whole(name, getattr(self, name))
        # Checked first, so that the power below stays small.
        message = (f"n-grams of order {self.order} over {self.vocabulary} tokens do not fit 64-bit "
                   "numbers; use a smaller --order")
        require(self.order <= MAX_ORDER, message)
        require(self.order * self.channels * self.vocabulary ** (self.order - 1) < 2**63, message)

    def number(self, channel: NumbersT, before: Sequence[NumbersT]) -> NumbersT:
        """Return the numbers of contexts, given the next token's channel and the tokens before it,
        nearest first."""
        context = channel * 0
        for token in before:
            context = context * self.vocabulary + token
        per_length: int = self.vocabulary ** (self.order - 1)
        return (len(before) * self.channels + channel) * per_length + context

    def truncated(self, order: int) -> NgramTable:
        """Return the n-grams of at most `order` tokens; raises ConfigError if `order` is below 1.

        With 1, every proposal is the most frequent token (unigrams); with 2, it depends on the
        token before (bigrams).
        """
        require_whole("the order of n-grams", order)
        base, context = np.divmod(self.keys, self.vocabulary ** (self.order - 1))
        order = min(order, self.order)
        kept = base < order * self.channels
        return NgramTable(order, self.vocabulary, self.channels,
                          base[kept] * self.vocabulary ** (order - 1) + context[kept],
                          self.tokens[kept])

    def to_bytes(self) -> bytes:
        """Return the table as a safetensors file."""
        from safetensors.numpy import save

        settings = np.array([self.order, self.vocabulary, self.channels])
        return save({"keys": self.keys, "tokens": self.tokens.astype(np.int32),
                     "settings": settings})

    @classmethod
    def read(cls, path: Path) -> NgramTable:
        """Read a file written from `to_bytes`; raises CheckpointError if it is missing, damaged or
        another file."""
        try:
            arrays = read_arrays(path)
            settings, keys, tokens = arrays["settings"], arrays["keys"], arrays["tokens"]
            order, vocabulary, channels = settings.tolist()
            table = cls(order, vocabulary, channels, keys, tokens.astype(np.int64))
            whole = (keys.dtype == np.int64 and tokens.dtype == np.int32 and keys.shape
                     == tokens.shape
                     and keys.ndim == 1 and len(keys) >= 1 and bool((keys[1:] > keys[:-1]).all())
                     and 0 <= tokens.min() <= tokens.max() < table.vocabulary)
        except FileNotFoundError as error:
            raise CheckpointError(f"no n-grams at {path}; count them with 'superres train "
                                  "ngrams'") from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError,
                ConfigError) as error:
            raise CheckpointError(f"{path} is not a table of n-grams ({plain(str(error))}); count "
                                  "them with 'superres train ngrams'") from error
        if not whole:
            raise CheckpointError(f"{path} contains inconsistent n-grams; count them again with "
                                  "'superres train ngrams'")
        return table


def count_ngrams(rows: Iterable[Int64], table: NgramTable, least: int = 2,
                 limit: int = 200_000) -> NgramTable:
    """Return a table of the n-grams of training targets, rows int64 [T], with the settings of an
    empty `table`.

    Contexts that occur at least `least` times are kept, the `limit` most frequent ones, and all
    contexts of no token.
    """
    targets = [np.asarray(row, np.int64) for row in rows]
    found = [_likeliest(*_contexts(targets, table, length)) for length in range(table.order)]
    keys, tokens, counts = (np.concatenate(parts) for parts in zip(*found, strict=True))
    bare = np.arange(len(keys)) < len(found[0][0])
    kept = np.flatnonzero((counts >= least) & ~bare)
    kept = kept[np.argsort(-counts[kept], kind="stable")[:limit]]
    # Sorted indexes give sorted keys: longer contexts have higher numbers, and each length is
    # sorted already.
    kept = np.sort(np.concatenate([np.flatnonzero(bare), kept]))
    return replace(table, keys=keys[kept], tokens=tokens[kept])


def _contexts(targets: Sequence[Int64], table: NgramTable, length: int) -> tuple[Int64, Int64]:
    """Return the numbers of all contexts of `length` tokens, and their next tokens, int64 [M]
    each."""
    contexts = [table.number(np.arange(length, len(row)) % table.channels,
                             [row[length - 1 - back : len(row) - 1 - back]
                              for back in range(length)])
                for row in targets]
    return np.concatenate(contexts), np.concatenate([row[length:] for row in targets])


def _likeliest(contexts: Int64, following: Int64) -> tuple[Int64, Int64, Int64]:
    """Return the distinct contexts in ascending order, their most frequent (then smallest) next
    tokens, and counts."""
    pairs, counts = np.unique(np.stack([contexts, following]), axis=1, return_counts=True)
    best = np.lexsort((pairs[1], -counts, pairs[0]))
    keys, first = np.unique(pairs[0][best], return_index=True)
    starts = np.unique(pairs[0], return_index=True)[1]
    return keys, pairs[1][best][first], np.add.reduceat(counts, starts)
