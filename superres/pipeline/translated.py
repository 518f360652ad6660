"""The result of translating: a record per line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import overload

from superres.decoding.trace import RowTrace
from superres.pipeline.display import texts_html
from superres.system.output import counted


@dataclass(frozen=True)
class Translation:
    """The translation of a line, whose text `str` gives.

    Attributes:
        text: the translation, "" for an empty line.
        tokens: number of generated tokens, including end tokens.
        traces: acceptance traces of the line's segments; empty after beam search.
        segments: number of segments, the line's sentences or parts of them; 0 for an empty line.
        truncated: whether the largest length (`ModelConfig.longest_target`), and not an end token,
            ended the translation.
        unusual: why the translation may be wrong, as far as the checkpoint can tell: the line is
            unlike the text that the network learned, or its length is unlike that of its
            translation; "" if nothing speaks against it.
        failed: why the line was not translated; "" if it was.
        unfamiliar: words of the line that the model hardly knows; see
            `tasks.word_marks`.
        repeats: the first word or phrase that a complete translation repeats directly; "" if none.
    """

    text: str
    tokens: int = 0
    traces: list[RowTrace] = field(default_factory=list)
    segments: int = 1
    truncated: bool = False
    unusual: str = ""
    failed: str = ""
    unfamiliar: tuple[str, ...] = ()
    repeats: str = ""

    @property
    def steps(self) -> int:
        """Steps of blockwise decoding; 0 after beam search."""
        return sum(trace.iterations for trace in self.traces)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Translated:
    """Result of translating lines, a sequence of `Translation`s; a notebook shows the texts.

    Attributes:
        lines: the translation of each line, possibly of an unfinished one.
        model_calls: calls for all lines, of which each processes a batch.
        seconds: wall-clock seconds of all lines.
        is_complete: whether every line is translated to its end.
    """

    lines: list[Translation]
    model_calls: int
    seconds: float
    is_complete: bool = True

    def __len__(self) -> int:
        return len(self.lines)

    def __iter__(self) -> Iterator[Translation]:
        return iter(self.lines)

    @overload
    def __getitem__(self, number: int) -> Translation: ...
    @overload
    def __getitem__(self, number: slice) -> list[Translation]: ...
    def __getitem__(self, number: int | slice) -> Translation | list[Translation]:
        return self.lines[number]

    @property
    def texts(self) -> list[str]:
        """The texts of all lines."""
        return list(map(str, self.lines))

    @property
    def traces(self) -> list[RowTrace]:
        """The acceptance traces of all segments of all lines."""
        return [trace for line in self.lines for trace in line.traces]

    def _repr_html_(self) -> str:
        about = (f"{counted(len(self), 'line')}, {self.seconds:.2f} s, "
                 f"{counted(self.model_calls, 'model call')}")
        return texts_html(self.texts, about)
