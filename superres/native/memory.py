"""What the compiled encoder knows of sources, for sessions to begin in rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from superres.interfaces import Bool, Float32, Int64
from superres.native import arrays


@dataclass(eq=False)
class NativeMemory:
    """Encoded sources, one row per source: a `superres.interfaces.Encoded`. Parts that a network
    lacks are None.

    Attributes:
        states: of the encoder [B, P, D]; P is S rounded up to a multiple of SOURCE_MULTIPLE.
        mask: added to cross-attention scores [B, P]; None if no position is hidden.
        position_table: position signal plus conditioning [B, T, D].
        head_table: the head layer's conditioning vectors [B, T, D].
        estimate: intensities expected before decoding [B, T], in grey levels.
        residual_sum: sums of the deviations in each cell [B, S], in units of RESIDUAL_SCALE.
        longest: largest number of target tokens of a text that ends [B]; None for images.
        tokens: the sources themselves [B, S], for shortlists and lookup.
        bounds: of the tokens, by the limits of a decode [B, 2, T + 1].
        draft: the same sources in the memory of a draft model.
    """

    states: Float32
    mask: Float32 | None = None
    position_table: Float32 | None = None
    head_table: Float32 | None = None
    estimate: Float32 | None = None
    residual_sum: Float32 | None = None
    longest: Int64 | None = None
    tokens: Int64 | None = None
    bounds: Int64 | None = None
    draft: NativeMemory | None = None

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, rows: Int64) -> NativeMemory:
        """Return a copy of the rows `rows` [R]; a row may occur several times."""
        return NativeMemory(**{name: _rows_of(part, rows) for name, part in self._parts()})

    def _parts(self) -> list[tuple[str, Any]]:
        return [(field.name, getattr(self, field.name)) for field in fields(self)]

    @staticmethod
    def joined(parts: Sequence[NativeMemory]) -> NativeMemory:
        """Return the rows of all parts, one part after another.

        The parts are of one network, and of sources of one length.
        """
        if len(parts) == 1:
            return parts[0]
        if any(part.mask is not None for part in parts):
            parts = [part if part.mask is not None else part._unhidden() for part in parts]
        return NativeMemory(**{name: _joined([getattr(part, name) for part in parts])
                               for name, _ in parts[0]._parts()})

    def _unhidden(self) -> NativeMemory:
        """Return the same memory with a mask that hides nothing."""
        return NativeMemory(**{**dict(self._parts()),
                               "mask": arrays.zeros(self.states.shape[:2], np.float32)})


def hidden_after(lengths: Int64, positions: int) -> Float32:
    """Return the mask [B, positions] that hides what is past the `lengths` [B] of sources."""
    shown: Bool = np.arange(positions) < lengths[:, None]
    return arrays.aligned(np.where(shown, 0.0, -np.inf), np.float32)


def _rows_of(part: Any, rows: Int64) -> Any:  # noqa: ANN401 - a field of `NativeMemory`
    if part is None or isinstance(part, NativeMemory):
        return None if part is None else part[rows]
    chosen = arrays.empty((len(rows), *part.shape[1:]), part.dtype)
    for place, row in enumerate(rows):  # without a copy between
        chosen[place] = part[row]
    return chosen


def _joined(parts: list[Any]) -> Any:  # noqa: ANN401 - a field of `NativeMemory`
    first = parts[0]
    if first is None or isinstance(first, NativeMemory):
        return None if first is None else NativeMemory.joined(parts)
    whole = arrays.empty((sum(map(len, parts)), *first.shape[1:]), first.dtype)
    return np.concatenate(parts, out=whole)
