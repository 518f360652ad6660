"""What a batch tells of itself: counts for people, and what decides an output for the manifest."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from superres.batch_plan import BatchOptions
from superres.batch_work import Item, encode
from superres.config import DecodeConfig, require
from superres.decoding.blockwise import check_options
from superres.manifest import Row
from superres.terminal import one_line

if TYPE_CHECKING:
    from superres.pipeline import Drawn, Upscaler


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


def resolve_options(decode: DecodeConfig, upscaler: Upscaler, samples: int = 1) -> DecodeConfig:
    """Return `decode` with the block size filled in, having checked it against the checkpoint.

    Raises:
        ConfigError: the block size does not fit the checkpoint, or greedy decoding is asked for several samples.
    """
    block_size = check_options(decode, upscaler.model_config.prediction_heads, upscaler.model_config.target_length)
    check_samples(decode, samples)
    return dataclasses.replace(decode, block_size=block_size)


def check_samples(decode: DecodeConfig, samples: int) -> None:
    """Raise ConfigError where several samples of an image would all be the same."""
    require(samples == 1 or decode.is_sampling, f"--samples {samples} at temperature 0 would draw the same picture "
            f"{samples} times; add --temperature 0.9 or leave --samples at 1")


class ProgressBar(tqdm):  # type: ignore[type-arg]  # generic for type checkers only
    """A progress bar with a lock of this process alone.

    tqdm's own lock is shared with forked processes: one that is killed while it holds the lock stops all the others.
    """

    @classmethod
    def renew_lock(cls) -> None:
        """Begin with a lock that nobody holds."""
        cls.set_lock(threading.RLock())


ProgressBar.renew_lock()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=ProgressBar.renew_lock)


def say(message: str) -> None:
    """Print `message` as one line on standard error, above a progress bar if there is one."""
    with suppress(OSError):  # what cannot be told is no reason to stop
        ProgressBar.write(f"superres: {one_line(message)}", file=sys.stderr)


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
