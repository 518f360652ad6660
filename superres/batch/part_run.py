"""Upscale in parts, from any place to any place: runs into object stores and into shards.

Three threads run concurrently, as in `superres.batch.upscaling`: one reads, one decodes, and one writes. The rows of a
batch belong to several parts at a time, so the batch stays full. A part is written when all its pictures are there.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

from superres.batch.archives import Content
from superres.batch.inputs import Input, refusal
from superres.batch.manifest import Row
from superres.batch.opening import open_inputs, read_archive
from superres.batch.parts import Job, Part, archive_prefix, done_parts, planned_parts, read_part
from superres.batch.plan import BatchOptions
from superres.batch.reading import Opened
from superres.batch.record import Output, Request, RunSettings, Summary
from superres.batch.shard_files import writer_for
from superres.batch.upscaling import decode_all
from superres.config import DecodeConfig
from superres.errors import InvalidInputError, OutputError, PlaceError, SuperresError
from superres.pipeline.options import resolve_options
from superres.system.folders import Inventory
from superres.system.output import scratch_folder
from superres.system.places import move_to, public
from superres.system.progress import Progress, say

if TYPE_CHECKING:
    from superres.decoding.batching import Result
    from superres.pipeline.upscaler import Upscaler

COUNT = 1 << 40
"""Stands for the number of planned outputs, which is unknown: output n of face f has the number n + f * COUNT."""
QUEUE = 256  # finished outputs that may wait for the writing thread before decoding blocks


def upscale_parts(
    job: Job, upscaler: Upscaler, options: BatchOptions, decode: DecodeConfig, redo: bool = False,
) -> Summary:
    """Upscale the parts of `options.shard` that are not done, and return the counts of these.

    Raises ConfigError if the checkpoint does not support `decode`; InvalidInputError and OutputError as
    `superres.batch.parts.planned_parts`. If a place does not answer, the run stops and its summary says why.
    """
    started = time.perf_counter()
    decode = resolve_options(decode, upscaler, options.samples)
    settings = RunSettings(f"{upscaler.name}@{upscaler.revision}", decode, options, upscaler.face_task)
    wanted, count = wanted_parts(job, options, settings, redo)
    rows = min(options.batch_size or upscaler.fitting_rows(decode), max(count, 1))
    with PartRun(job, settings, len(wanted)) as run:
        try:
            decode_all(run.opened(wanted), run, upscaler, rows)
        except (PlaceError, OutputError) as error:
            run.error = run.error or error
    run.summary.seconds = time.perf_counter() - started
    return run.summary


def wanted_parts(job: Job, options: BatchOptions, settings: RunSettings, redo: bool) -> tuple[list[int], int]:
    """Return the parts of the shard that are not done, and the most outputs that they may have together."""
    parts, count = planned_parts(job, options, settings, redo)
    index, shards = options.shard
    done = done_parts(job, parts)
    wanted = [part for part in range(index, parts, shards) if not done[part]]
    if len(wanted) < len(range(index, parts, shards)):
        say(f"{public(job.output)}: {len(range(index, parts, shards)) - len(wanted)} of "
            f"{len(range(index, parts, shards))} parts are done")
    return wanted, (count if count > parts else 1 << 30) * options.samples


def open_part(
    job: Job, part: Part, options: BatchOptions, first: int, inventory: Inventory | None = None,
) -> Iterator[Opened]:
    """Open the inputs of a part, whose outputs are numbered from `first` on.

    An input whose output has the name of an earlier one's fails. `inventory` prints what an archive has that is no
    input. Raises PlaceError if a place does not answer.
    """
    names: dict[str, str] = {}
    for entry, content in _contents(job, part, inventory or Inventory()):
        if isinstance(content, PlaceError):
            raise content
        if entry.error is not None:
            content = InvalidInputError(entry.error)
        elif (owner := names.setdefault(entry.name, entry.input)) != entry.input:
            content = InvalidInputError(f"{entry.input} would be written to the same output as {owner}; rename it")
        yield first, entry, [1] if entry.error is not None else list(range(1, options.samples + 1)), content
        first += options.samples


def _contents(job: Job, part: Part, inventory: Inventory) -> Iterator[tuple[Input, Content | SuperresError]]:
    if part.archive is None:
        return open_inputs(_checked(job, part.entries))
    if not job.is_allowed(part.archive):
        return open_inputs(_checked(job, [Input(part.archive, "")]))
    return read_archive(part.archive, archive_prefix(part.archive) if job.layout == "files" else "", inventory)


def _checked(job: Job, entries: Iterable[Input]) -> Iterator[Input]:
    """Replace inputs at places that the command line does not name: the plan could have been changed."""
    for entry in entries:
        is_allowed = entry.error is not None or job.is_allowed(entry.input)
        yield entry if is_allowed else Input(public(entry.input), "", error=refusal(entry.input))


class PartFile:
    """Writes the outputs of a part, which it gets in the order of the inputs, and last its manifest."""

    def __init__(self, job: Job, part: int) -> None:
        """Open the files of the part in a temporary folder."""
        self.job, self.part, self.summary, self.failures = job, part, Summary(), list[str]()
        self.stack = ExitStack()
        folder = self.stack.enter_context(scratch_folder())
        self.writer = writer_for(job.layout, job.output, job.shard(part))(str(folder))
        self.lines = open(f"{folder}/manifest", "wb")  # noqa: SIM115 -- closed by `close`

    def add(self, output: Output) -> None:
        """Add an output to the shard, and its row to the manifest."""
        row = output.row
        if output.data is not None:
            name = self.writer.named(row.output.removeprefix(f"{self.job.output.rstrip('/')}/"))
            if self.job.layout != "files":
                row = dataclasses.replace(row, output=f"{self.job.shard(self.part)}/{name}")
            self.writer.add(row, name, output.data)
        self.lines.write(row.line())
        self.summary.add(row)
        if row.error is not None:
            self.failures.append(row.error if row.input in row.error else f"{row.input}: {row.error}")

    def finish(self) -> None:
        """Write the shard and then the manifest; raises as `superres.system.places.write_place`."""
        self.writer.finish()
        self.lines.close()
        move_to(self.lines.name, self.job.manifest(self.part))

    def close(self) -> None:
        """Remove what is not finished."""
        self.writer.close()
        self.lines.close()
        self.stack.close()


class _OpenPart:
    """A part that is being read or decoded: its file, and the outputs that wait for earlier ones."""

    def __init__(self, file: PartFile) -> None:
        self.file, self.is_read = file, False
        self.expected: dict[int, int] = {}  # outputs per input, in the order of the inputs
        self.waiting: dict[int, list[Output]] = {}

    def write(self) -> bool:
        """Add the outputs whose turn it is to the file; return whether the part is complete."""
        while self.expected:
            first = next(iter(self.expected))
            may_grow = not self.is_read and len(self.expected) == 1
            if may_grow or len(self.waiting.get(first, ())) < self.expected[first]:
                return False
            for output in sorted(self.waiting.pop(first), key=lambda output: output.number):
                self.file.add(output)
            del self.expected[first]
        return self.is_read


class PartRun:
    """Receives the outputs of a run and writes its parts, in a thread of its own. A context manager.

    It is a `superres.batch.upscaling.Sink`. Attributes:
        summary: counts of the parts that are written.
        error: the error after which nothing more is written, or None.
    """

    count = COUNT

    def __init__(self, job: Job, settings: RunSettings, parts: int) -> None:
        """Prepare to write `parts` parts."""
        self.job, self.settings, self.parts = job, settings, parts
        self.summary = Summary()
        self.error: BaseException | None = None
        self._photos = 0
        self._queue: queue.Queue[Any] = queue.Queue(QUEUE)
        self._open: dict[int, _OpenPart] = {}
        self._part_of: dict[int, int] = {}

    def __enter__(self) -> PartRun:
        """Start the writing thread."""
        self._progress = Progress("upscaling", self.parts, "parts").__enter__()
        self._writer = threading.Thread(target=self._write, name="superres-writing", daemon=True)
        self._writer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        """Write the complete parts and give up the others."""
        self._queue.put(None)
        self._writer.join()
        self._progress.__exit__(None, None, None)
        for part in self._open.values():
            part.file.close()
        if isinstance(self.error, (PlaceError, OutputError)):
            self.summary.stopped = str(self.error)
            say(f"{self.error}; stopped; finished parts are kept, and the same command resumes the run")
        elif self.error is not None and kind is None:
            raise self.error

    def opened(self, parts: Iterable[int]) -> Iterator[Opened]:
        """Open the inputs of parts in their order."""
        first, samples, inventory = 0, self.settings.options.samples, Inventory()
        for number in parts:
            self._queue.put(("begin", number))
            for opened in open_part(self.job, read_part(self.job, number), self.settings.options, first, inventory):
                first = opened[0] + samples
                yield opened
            self._queue.put(("end", number))
            if self.error is not None:
                return
        inventory.finish()

    def read(self, number: int) -> None:
        """See `superres.batch.upscaling.Sink`."""
        self._queue.put(("read", number))

    def put(self, result: Result[Request] | Output) -> None:
        """See `superres.batch.upscaling.Sink`."""
        self._queue.put(("made", result))

    def cropped(self, line: str, more: int) -> None:
        """See `superres.batch.upscaling.Sink`; the manifests have every crop."""

    def progress(self, under_way: float) -> None:
        """See `superres.batch.upscaling.Sink`; parts are counted."""

    def _write(self) -> None:
        """Handle what the other threads tell, until None arrives; the body of the writing thread."""
        while (told := self._queue.get()) is not None:
            try:
                if self.error is None:
                    self._handle(*told)
            except BaseException as error:  # the other threads continue, and check `error`
                self.error = error

    def _handle(self, what: str, value: Any) -> None:  # noqa: ANN401 -- a number, a result or an output
        if what == "begin":
            self._current = self._open[value] = _OpenPart(PartFile(self.job, value))
            self._number = value
        elif what == "read":
            planned = self._planned(value)
            self._part_of[planned] = self._number
            self._current.expected[planned] = self._current.expected.get(planned, 0) + 1
        elif what == "end":
            self._open[value].is_read = True
            self._advance(value)
        else:
            output = value if isinstance(value, Output) else self.settings.output(value)
            planned = self._planned(output.number)
            part = self._part_of[planned]
            self._open[part].waiting.setdefault(planned, []).append(output)
            self._advance(part)

    def _planned(self, number: int) -> int:
        """Return the number of the input among those of the run."""
        return number % COUNT // self.settings.options.samples

    def _advance(self, number: int) -> None:
        """Write what can be written of a part, and finish it if that is all."""
        part = self._open[number]
        if not part.write():
            return
        part.file.finish()
        part.file.close()
        del self._open[number]
        self._part_of = {planned: own for planned, own in self._part_of.items() if own != number}
        self.summary.include(part.file.summary)
        for line in part.file.failures:
            say(line)
        self._progress.update()


def report_of(rows: Iterable[Row]) -> tuple[Summary, list[str]]:
    """Return the counts and the failures of rows."""
    summary, failures = Summary(), list[str]()
    for row in rows:
        summary.add(row)
        if row.error is not None:
            failures.append(row.error if row.input in row.error else f"{row.input}: {row.error}")
    return summary, failures
