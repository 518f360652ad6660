"""What a batch tells of itself: counts for people, and what decides an output for the manifest."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from superres.batch.manifest import Row
from superres.batch.plan import BatchOptions
from superres.batch.work import Item, encode
from superres.config import DecodeConfig

if TYPE_CHECKING:
    from superres.pipeline.upscaler import Drawn


@dataclass
class Summary:
    """Counts of a run; `tokens` and `iterations` are sums over the decoded images.

    Attributes:
        reasons: how many failed for each reason, the inputs' names left out of it.
        stopped: why the run ended early; None where it did not.
        seconds: wall clock of the run.
        reading: processor seconds that reading took, and `writing` that writing took.
    """

    done: int = 0
    skipped: int = 0
    failed: int = 0
    tokens: int = 0
    iterations: int = 0
    seconds: float = 0.0
    reading: float = 0.0
    writing: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)
    stopped: str | None = None

    @property
    def exit_code(self) -> int:
        """0 when every output is there, else 1."""
        return 1 if self.failed or self.stopped else 0

    @property
    def finished(self) -> int:
        """Outputs of which is known what became of them."""
        return self.done + self.skipped + self.failed

    @property
    def mean_accepted_block_size(self) -> float | None:
        """Generated tokens / decoding iterations over all images; None when nothing was decoded."""
        return self.tokens / self.iterations if self.iterations else None

    def add(self, row: Row) -> None:
        """Count `row`, which this run has made."""
        self.done += row.status == "ok"
        self.skipped += row.status == "skipped"
        self.failed += row.status == "failed"
        self.tokens += row.tokens or 0
        self.iterations += row.iterations or 0
        if row.status == "failed" and row.error:
            reason = row.error.replace(row.input, "").replace(row.output or row.input, "").strip(" :")
            # Sizes and the like differ from file to file: past some reasons, the rest are counted together.
            self.reasons[reason if len(self.reasons) < 20 or reason in self.reasons else "other reasons"] += 1

    def line(self) -> str:
        """Return the counts as one line for people."""
        counts = f"{self.done} done, {self.skipped} skipped, {self.failed} failed"
        if self.mean_accepted_block_size is None:
            return counts
        rate = self.done / max(self.seconds, 1e-9)
        return f"{counts}; {rate:.2f} images/s, mean accepted block size {self.mean_accepted_block_size:.2f}"

    def reason_lines(self) -> list[str]:
        """Return a line for each reason, the most frequent first, where there are several failures of one."""
        counts = self.reasons.most_common()
        return [f"{count} failed: {reason}" for reason, count in counts] if self.failed > len(counts) else []




@dataclass(frozen=True)
class Made:
    """A finished output: its number in the plan, the bytes of its file, and what its row tells of the decoding."""

    number: int
    data: bytes
    tokens: int
    iterations: int
    model_calls: int
    seconds: float


@dataclass
class Recipe:
    """What decides an output besides its input, as rows of the manifest and the outputs themselves tell it."""

    checkpoint: str
    decode: DecodeConfig
    options: BatchOptions

    def __post_init__(self) -> None:
        self.config, self.deciding = self.decode.to_dict(), self.options.deciding()
        # As JSON has it: a tuple comes back as a list.
        self.comparable = _as_json({"checkpoint": self.checkpoint, **self.config, **self.deciding})

    @property
    def record(self) -> dict[str, Any]:
        """What an output says of itself."""
        return {"checkpoint": self.checkpoint, "config": self.config}

    def differences(self, row: Row) -> list[str]:
        """Return in which settings a row differs, as people read them."""
        # A setting that is newer than the row had its default.
        config = {**_as_json(DecodeConfig().to_dict()), **row.config} if row.config else {}
        there = {"checkpoint": row.checkpoint, **config, **(row.options or {})}
        return [f"{name} {there.get(name)!r} there, {value!r} now" for name, value in self.comparable.items()
                if there.get(name) != value]

    def make(self, drawn: Drawn[Item]) -> Made:
        """Return the output of a picture."""
        trace = drawn.trace
        data = encode(drawn.item, drawn.image, self.record, self.options)
        return Made(drawn.item.number, data, trace.tokens, trace.iterations, trace.model_calls, drawn.seconds)


def _as_json(values: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
