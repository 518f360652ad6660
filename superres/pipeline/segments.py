"""The segments of lines: sentences, or parts of those that are too long, from which translations
are joined."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from superres.config.tables import SOURCE_MULTIPLE
from superres.decoding.trace import RowTrace
from superres.pipeline.translated import Translated, Translation
from superres.tasks import translation
from superres.tasks.word_marks import repetition

SHARES = 3
"""If several groups of segments are translated at once, every thread gets at least so many of them,
so that all end at about the same time."""

LONGEST_STREAM = 4
"""Batches in one of several streams that are decoded at once, at most: an interrupted translation
waits for them."""


@dataclass(eq=False)
class Segment:
    """A sentence of a line, or a part of one that is too long: text, source tokens, translation as
    in `Translation`."""

    line: int
    original: str
    source: list[int]
    key: int
    unusual: str
    unfamiliar: list[str]
    text: str = ""
    trace: RowTrace | None = None
    truncated: bool = False
    tokens: int = 0

    def doubt(self, is_complete: bool) -> str:
        """Return why the translation, which may be incomplete, may be wrong; see
        `Translation.unusual`."""
        return self.unusual or (translation.length_doubt(self.original, self.text) if is_complete
                                else "")


def groups_of(
    segments: Sequence[Segment], batch_size: int, at_once: int, only_batches: bool = False,
) -> list[list[Segment]]:
    """Split segments by length into batches, or, unless `only_batches` are asked for, into longer
    streams whose sources engines pad to the same length.

    If several streams are decoded at once, they are short, and the longest segments come first.
    """
    ordered = sorted(segments, key=lambda segment: len(segment.source))
    if only_batches or len(ordered) <= batch_size:
        return _parts_of(ordered, batch_size)
    padded = groupby(ordered, key=lambda segment: math.ceil(len(segment.source) / SOURCE_MULTIPLE))
    most = len(ordered)
    if at_once > 1:
        most = max(batch_size,
                   min(LONGEST_STREAM * batch_size, math.ceil(len(ordered) / (SHARES * at_once))))
    return [part for _, stream in padded for part in _parts_of(list(stream), most)][::-1]


def _parts_of(segments: list[Segment], size: int) -> list[list[Segment]]:
    """Split segments into parts of `size`; the last one may be smaller."""
    return [segments[start : start + size] for start in range(0, len(segments), size)]


def joined(
    failed: Sequence[str], segments: Sequence[Segment], calls: int, seconds: float,
    is_complete: bool = True,
) -> Translated:
    """Join the translations of segments line by line; `failed` says why a line has none."""
    by_line: list[list[Segment]] = [[] for _ in failed]
    for segment in segments:
        by_line[segment.line].append(segment)
    return Translated([Translation(
        text=" ".join(part.text for part in parts),
        tokens=sum(part.tokens for part in parts),
        traces=[part.trace for part in parts if part.trace is not None],
        segments=len(parts),
        truncated=any(part.truncated for part in parts),
        unusual=next(filter(None, (part.doubt(is_complete) for part in parts)), ""),
        failed=reason,
        unfamiliar=tuple(dict.fromkeys(word for part in parts for word in part.unfamiliar)),
        repeats=next(filter(None, (repetition(part.original, part.text)
                                   for part in parts if is_complete)), ""),
    ) for parts, reason in zip(by_line, failed, strict=True)], calls, seconds, is_complete)
