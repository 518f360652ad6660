"""Statistics of the training text of a checkpoint for text: likely translations of every token, and
its frequency.

Shortlists are the few target tokens that a translation may contain, for the prediction heads to
choose from. A head's product with the whole vocabulary takes most of its time. The lists are
lexical, as in Devlin (2017), "Sharp Models on Dull Hardware", section 3.3: the likeliest
translations of every source token, and the commonest tokens. p1 chooses from the whole vocabulary,
so shortlists change no output, only how many proposals are accepted.

A sentence of rarer tokens than nearly all training sentences is unlike the training text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from superres.errors import CheckpointError, plain
from superres.system.json_files import require_regular

Int64 = npt.NDArray[np.int64]

SHORTLIST = "shortlist.safetensors"  # in a checkpoint's folder
TOKENS = 384  # in the shortlist of a source; the engine multiplies 32 at a time
ROUNDS = 5  # of expectation maximisation; more change the lists little


@dataclass(frozen=True, eq=False)
class Shortlists:
    """The shortlists of all sources.

    Attributes:
        common: the commonest target tokens, int64 [M], M at most TOKENS.
        likely: the likeliest translations of every source token, the likeliest first, int64 [V, N];
            -1 past the last.
        bits: information of every source token, -log2 of its share of the training text, float [V].
        usual: mean information per token that 99 of 100 training sentences stay below.
        domain: what the training text is, such as "captions of photographs"; "" if it is not known.
    """

    common: Int64
    likely: Int64
    bits: npt.NDArray[np.float32]
    usual: float
    domain: str = ""

    @property
    def known(self) -> str:
        """What the network knows, as the reason why other text may be translated wrongly."""
        return (f"the model knows {self.domain} only" if self.domain else "the model learned other "
                "text")

    def is_unusual(self, source: Sequence[int]) -> bool:
        """Return whether a sentence's tokens are rarer than those of 99 of 100 training
        sentences."""
        return len(source) > 0 and float(self.bits[list(source)].mean()) > self.usual

    def of(self, source: Int64) -> Int64:
        """Return the shortlist of each source [B, S], int64 [B, TOKENS]; -1 past the last token of
        a list.

        A list has the common tokens, then the likeliest translations of all source tokens, then the
        second likeliest, until it is full.
        """
        lists = np.full((len(source), TOKENS), -1, np.int64)
        # where a token is in `ranked`; the last entry is for -1
        place = np.empty(len(self.likely) + 1, np.int64)
        for own, row in zip(lists, source, strict=True):
            ranked = np.concatenate([self.common, self.likely[np.unique(row)].T.ravel()])
            places = np.arange(len(ranked))
            # the last assignment holds, so a token's first place remains
            place[ranked[::-1]] = places[::-1]
            chosen = ranked[(place[ranked] == places) & (ranked >= 0)][:TOKENS]
            own[: len(chosen)] = chosen
        return lists

    def to_bytes(self) -> bytes:
        """Return the shortlists as a safetensors file."""
        from safetensors.numpy import save

        tensors = {"common": self.common.astype(np.int32), "likely": self.likely.astype(np.int32),
                   "bits": self.bits.astype(np.float32),
                   "usual": np.array([self.usual], np.float32)}
        return save(tensors, metadata={"domain": self.domain})

    @classmethod
    def read(cls, path: Path, vocabulary: int) -> Shortlists:
        """Read a file made by `to_bytes`; raise CheckpointError if it is damaged or for another
        vocabulary size V."""
        from safetensors import SafetensorError, safe_open

        remedy = "make them with 'superres train shortlist', or remove the file"
        try:
            require_regular(path)
            with safe_open(path, "np") as file:
                common, likely, bits, usual = (file.get_tensor(name)
                                               for name in ("common", "likely", "bits", "usual"))
                domain = (file.metadata() or {}).get("domain", "")
            # shapes and types, then values
            whole = (common.ndim == 1 and likely.ndim == 2 and 1 <= len(common) <= TOKENS
                     and len(likely) == vocabulary and common.dtype == likely.dtype == np.int32
                     and bits.shape == (vocabulary,) and usual.shape == (1,)
                     and bits.dtype == usual.dtype == np.float32
                     and 0 <= common.min() <= common.max() < vocabulary
                     and -1 <= likely.min(initial=-1) <= likely.max(initial=-1) < vocabulary
                     and bool(np.isfinite(bits).all() and usual >= 0))
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} does not hold shortlists ({plain(str(error))}); "
                                  f"{remedy}") from error
        if not whole:
            raise CheckpointError(f"{path} does not hold shortlists for {vocabulary} tokens; "
                                  f"{remedy}")
        return cls(common.astype(np.int64), likely.astype(np.int64), bits, float(usual[0]), domain)


def make_shortlists(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], vocabulary: int,
    common: int = 128, likely: int = 48, domain: str = "",
) -> Shortlists:
    """Learn shortlists from the tokens of sentences and of their translations with IBM's model 1
    (Brown et al. 1993).

    They hold up to `common` common tokens, and `likely` translations of each of the `vocabulary`
    source tokens.
    """
    # of all tokens of a sentence and its translation, and the target tokens' places
    pairs, places, start = [], [], 0
    for ours, theirs in zip(sources, targets, strict=True):
        pairs.append((np.asarray(ours, np.int64)[:, None] * vocabulary
                      + np.asarray(theirs, np.int64)).ravel())
        places.append(np.tile(np.arange(start, start + len(theirs)), len(ours)))
        start += len(theirs)
    place = np.concatenate(places)
    key, pair = np.unique(np.concatenate(pairs), return_inverse=True)
    source, target = np.divmod(key, vocabulary)
    p = np.ones(len(key))  # of a target token, given a source token
    for _ in range(ROUNDS):
        weight = p[pair]
        weight /= np.bincount(place, weight)[place]
        count = np.bincount(pair, weight, len(key))
        p = count / np.bincount(source, count, vocabulary)[source]
    frequency, known = (np.bincount(np.concatenate([np.asarray(row, np.int64) for row in rows]),
                                    minlength=vocabulary)
                        for rows in (targets, sources))
    frequent = np.argsort(-frequency, kind="stable")[:common]
    bits = -np.log2((known + 0.5) / (known + 0.5).sum())
    usual = float(np.percentile([bits[list(row)].mean() for row in sources], 99))
    return Shortlists(frequent[frequency[frequent] > 0],
                      _likeliest(source, target, p, vocabulary, likely), bits.astype(np.float32),
                      usual, domain)


def _likeliest(source: Int64, target: Int64, p: npt.NDArray[np.float64], vocabulary: int,
               count: int) -> Int64:
    """Return the `count` likeliest target tokens of every source token, int64 [V, count], from
    pairs in order."""
    order = np.lexsort((-p, source))
    rank = np.arange(len(order)) - np.searchsorted(source, np.arange(vocabulary))[source[order]]
    kept = rank < count
    likely = np.full((vocabulary, count), -1, np.int64)
    likely[source[order][kept], rank[kept]] = target[order][kept]
    return likely
