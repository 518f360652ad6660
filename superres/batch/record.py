"""What a picture meets between its file and its output's file, the settings that both record, and a
run's summary.

An `Input` is listed. It gives a `Request` per face and sample. Decoding makes a `Result` of each,
which becomes an `Output` with its `Row` of the manifest.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from superres.batch.inputs import Input
from superres.batch.rows import Row
from superres.batch.run_options import BatchOptions
from superres.config import ENGINE_NUMBERS, DecodeConfig
from superres.pictures.read import Picture, Pixels
from superres.pictures.write import ENCODERS
from superres.system.places import public
from superres.system.progress import say
from superres.tasks.faces import FaceTask, image_key
from superres.tasks.sheets import Mask, face_sheet

EARLIER_ENGINE = "native"  # the default of the releases whose manifests name no engine
METADATA = "strip"  # of an input: earlier releases could also keep it, and their manifests say so

if TYPE_CHECKING:
    from superres.decoding.batching import Result
    from superres.decoding.trace import RowTrace
    from superres.pipeline.judging import JudgedResult
    from superres.pipeline.upscaler import Upscaler


@dataclass(frozen=True, eq=False)
class Request:
    """A sample (from 1) of an input, ready to be decoded: a `superres.pipeline.upscaler.Face`.

    Attributes:
        turn: number of the input among those of the run.
        index: number of the output among those of the input.
        sample: number of the sample; 1 where the likeliest of several is kept.
        picture: the reduced input, with the transparency of the output.
        crop: the square of the input as the manifest records it; None unless the input was cropped.
    """

    turn: int
    index: int
    sample: int
    entry: Input
    output: str
    picture: Picture
    crop: dict[str, Any] | None = None

    @property
    def source(self) -> Pixels:
        """Pixels of the reduced input, uint8 [source, source, 3]."""
        return self.picture.rgb

    @property
    def key(self) -> int:
        return image_key(self.source, self.sample)


@dataclass(frozen=True, eq=False)
class Output:
    """An output of a run; `data` is the content of the file, None unless it was made. For the
    numbers, see `Request`.

    The status "skipped" stands for a file that exists and is not made again.
    """

    row: Row
    data: bytes | None = None
    turn: int = 0
    index: int = 0


@dataclass
class Summary:
    """Counts of a run; `tokens` and `iterations` are sums over the decoded images.

    `reasons` are numbers of failures per reason, without the inputs' names; `first` has the first
    input that failed for a reason, and `stopped` says why the run ended early.
    """

    done: int = 0
    skipped: int = 0
    failed: int = 0
    tokens: int = 0
    iterations: int = 0
    seconds: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    stopped: str | None = None

    @property
    def exit_code(self) -> int:
        """0 if no output failed and the run was completed, else 1."""
        return 1 if self.failed or self.stopped else 0

    @property
    def finished(self) -> int:
        """Number of outputs with a result."""
        return self.done + self.skipped + self.failed

    def add(self, row: Row) -> None:
        """Count a row of this run."""
        self.done += row.status == "ok"
        self.skipped += row.status == "skipped"
        self.failed += row.status == "failed"
        self.tokens += row.tokens or 0
        self.iterations += row.iterations or 0
        if row.status == "failed" and row.error:
            reason = row.error.replace(row.input, "").replace(row.output or row.input,
                                                              "").strip(" :")
            # Details such as sizes differ between files, so all reasons after the first 20 are
            # counted together.
            reason = reason if len(self.reasons) < 20 or reason in self.reasons else "other reasons"
            self.reasons[reason] += 1
            self.first.setdefault(reason, row.input)

    def line(self) -> str:
        """Return the counts as one human-readable line."""
        counts = f"{self.done} done, {self.skipped} skipped, {self.failed} failed"
        if not self.iterations:
            return counts
        rate, size = self.done / max(self.seconds, 1e-9), self.tokens / self.iterations
        return f"{counts}; {rate:.2f} images/s, mean accepted block size {size:.2f}"

    def reason_lines(self) -> list[str]:
        """Return one line per reason, the most frequent first, with the first input that failed for
        it."""
        return [f"{count} failed: {reason} "
                f"({'first: ' if count > 1 else ''}{public(self.first[reason])})"
                for reason, count in self.reasons.most_common()]


@dataclass
class RunSettings:
    """The settings that determine an output besides its input; manifest rows and outputs record
    them.

    `checkpoint` is name@revision, `task` has the sizes of its network's input and output, and
    `engine` is None where other machines decode, each with its own. Raises ConfigError if the crop
    of the options is smaller than the network's input.
    """

    checkpoint: str
    decode: DecodeConfig
    options: BatchOptions
    task: FaceTask
    engine: str | None = None

    @classmethod
    def of(cls, upscaler: Upscaler, decode: DecodeConfig, options: BatchOptions) -> RunSettings:
        """Return the settings of a run with an upscaler."""
        return cls(f"{upscaler.name}@{upscaler.revision}", decode, options, upscaler.face_task,
                   upscaler.engine)

    def __post_init__(self) -> None:
        self.options.check_crop(self.task.source)
        self.config = self.decode.to_dict()
        self.content_options = {**self.options.content_options(), "start": self.task.source,
                                "engine": self.engine}

    def differences(self, row: Row) -> list[str]:
        """Return the settings in which a row differs, as text, without those on which its tokens do
        not depend.

        They are an adaptive block size of exact decoding, and the engine among those of one format.
        """
        there = {"checkpoint": row.checkpoint, "engine": EARLIER_ENGINE, "metadata": METADATA,
                 **(row.config or {}), **(row.options or {})}
        alike = {"adaptive"} if self.decode.is_exact else set[str]()
        if self.engine is None or _numbers(there["engine"]) == _numbers(self.engine):
            alike.add("engine")
        return [f"{name} {there.get(name)!r} there, {value!r} now"
                for name, value in self._comparable.items()
                if there.get(name) != value and name not in alike]

    @functools.cached_property
    def _comparable(self) -> dict[str, Any]:
        """The settings in the form of parsed JSON, which has lists instead of tuples."""
        now = {"checkpoint": self.checkpoint, **self.config, **self.content_options,
               "metadata": METADATA}
        return {name: list(value) if isinstance(value, tuple) else value
                for name, value in now.items()}

    def output(self, result: Result[Request]) -> Output:
        """Return the output of a decoded image."""
        from superres.pipeline.cascade import stage_traces  # imports numpy
        from superres.pipeline.judging import JudgedResult

        image = self.task.decode(result.tokens[None])[0]
        judged = result if isinstance(result, JudgedResult) else None
        return self.drawn(result.item, image, stage_traces(result), result.seconds, judged)

    def drawn(
        self, request: Request, image: Pixels, traces: Sequence[RowTrace], seconds: float,
        judged: JudgedResult | None = None,
    ) -> Output:
        """Return the output of an image, uint8 [target, target, 3], with the traces of all its
        decodes."""
        tokens, iterations, calls = (sum(getattr(trace, name) for trace in traces)
                                     for name in ("tokens", "iterations", "model_calls"))
        record: dict[str, Any] = {"checkpoint": self.checkpoint, "config": self.config}
        if (finish := self.content_options["finish"]) is not None:
            record["finish"] = finish
        if request.crop is not None:
            record["crop"] = request.crop
        sample = bits = reliable = None
        if judged is not None:
            sample, bits, reliable = judged.sample, judged.bits_per_dim, judged.reliable
        record["sample"] = request.sample if sample is None else sample
        data = encode(request, image, record, self.options, reliable)
        row = Row(request.entry.input, request.output, "ok", None, tokens, iterations, calls,
                  tokens / max(iterations, 1), seconds, **self._fields(request.entry),
                  sha256=hashlib.sha256(data).hexdigest(), crop=request.crop, sample=sample,
                  bits_per_dim=bits)
        return Output(row, data, request.turn, request.index)

    def failed(self, entry: Input, output: str, reason: str, turn: int = 0,
               index: int = 0) -> Output:
        """Return an output that cannot be made."""
        row = Row(entry.input, output, "failed", " ".join(reason.split()), **self._fields(entry))
        return Output(row, None, turn, index)

    def standing(self, entry: Input, output: str) -> Output | None:
        """Return what an output is whose file exists and is not to be replaced; None if it is to be
        made."""
        mode = self.options.on_existing
        if mode in ("redo", "overwrite") or not (os.path.isfile(output) or os.path.islink(output)):
            return None
        if mode == "error":
            return self.failed(entry, output, f"{output} exists already; use --on-existing skip or "
                               "overwrite")
        return Output(Row(entry.input, output, "skipped", version=entry.version,
                          options=self.content_options))

    def _fields(self, entry: Input) -> dict[str, Any]:
        """Return what the rows of an input have in common."""
        return {"checkpoint": self.checkpoint, "config": self.config, "seed": self.decode.seed,
                "options": self.content_options, "version": entry.version}


def tell(row: Row) -> None:
    """Print why an output was not made."""
    if row.error is not None:
        say(row.error if row.input in row.error else f"{row.input}: {row.error}")


def encode(
    request: Request, image: Pixels, record: dict[str, Any], options: BatchOptions,
    reliable: Mask | None = None,
) -> bytes:
    """Return the bytes of the file of a decoded image, uint8 [target, target, 3], or of a sheet
    with it."""
    picture = replace(request.picture, rgb=image)
    if options.sheet:
        picture = replace(picture, rgb=face_sheet(request.source, image, reliable), alpha=None)
    return ENCODERS[options.format](picture, record)


def _numbers(engine: str) -> str:
    return ENGINE_NUMBERS.get(engine, engine)
