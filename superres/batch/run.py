"""Upscale the inputs of a plan: the work of `superres upscale`.

Three threads run concurrently: one reads inputs, one decodes, and one writes outputs and manifests,
part by part. The rows of a batch may belong to several parts at a time, so the batch stays full. An
invalid input fails its own row only.
"""

from __future__ import annotations

import functools
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, Protocol

from superres.batch.decode import decoded
from superres.batch.feed_queue import FeedQueue
from superres.batch.folder_store import FolderStore
from superres.batch.inputs import Input
from superres.batch.opening import open_parts
from superres.batch.part_store import PartStore
from superres.batch.parts import Part, Plan
from superres.batch.reading import Opened, read_requests
from superres.batch.record import Output, Request, RunSettings, Summary, tell
from superres.batch.rows import Row
from superres.batch.write import PartWriter, Store
from superres.config import DecodeConfig
from superres.errors import OutputError, PlaceError
from superres.pipeline.resolved_options import resolve_options
from superres.system.progress import Progress, say

if TYPE_CHECKING:
    from superres.batch.decode import Made
    from superres.decoding.batching import Result
    from superres.pipeline.upscaler import Upscaler

AHEAD = 4  # images that are read ahead per image that is being decoded
PHOTO_LINES = 20  # number of photos whose crops are printed; the manifest records all of them
# number of messages that may wait for the writing thread before reading and decoding wait, ...
QUEUE = 256
# ... and of further ones per row of a batch: all rows of a batch may end at the same time
QUEUED = AHEAD + 3
P = ParamSpec("P")
TURNS = 1 << 32  # turn n of part p of a run is p * TURNS + n


class Sink(Protocol):
    """Receives what decoding makes: a `Run`, or a part's actor on a cluster. After an `error`,
    nothing is accepted."""

    settings: RunSettings
    error: BaseException | None

    def read(self, turn: int, count: int) -> None:
        """Receive the number of outputs that an input gives; called in the order of the inputs."""

    def put(self, made: Made) -> None:
        """Receive a decoded image, or an output that cannot be made."""

    def cropped(self, line: str) -> None:
        """Receive the line about a photo."""

    def progress(self, under_way: float) -> None:
        """Receive the amount of work in progress, in images."""


def upscale(
    plan: Plan, upscaler: Upscaler, decode: DecodeConfig,
    elsewhere: Callable[[Run], None] | None = None,
) -> Summary:
    """Upscale the inputs of a plan that are not done, and return the counts; every output has a row
    in a manifest.

    `elsewhere` does the parts of the run instead of this process
    (`superres.batch.cluster.decode_on_cluster`). A failure is one line on standard error. If a
    place does not answer or the disk is full, the run stops and its summary says why. Raises
    ConfigError if the checkpoint does not support `decode`; InvalidInputError if a manifest is
    damaged; OutputError if the place of the outputs cannot be written, another run is writing
    there, or outputs were made with other settings.
    """
    started, options = time.perf_counter(), plan.options
    decode = resolve_options(decode, upscaler, options.samples, options.finish)
    settings = RunSettings.of(upscaler, decode, options)
    if elsewhere is not None:
        settings = replace(settings, engine=None)
    rows = 1 if elsewhere is not None else min(options.batch_size or upscaler.fitting_rows(decode),
                                               plan.count * options.samples)
    kind = PartStore if options.in_parts else FolderStore
    with kind(plan, settings) as store, Run(plan, settings, store, rows) as run:
        if elsewhere is not None:
            elsewhere(run)
        else:
            try:
                decode_all(run.opened(), run, upscaler, rows)
            except (PlaceError, OutputError) as error:
                run.error = run.error or error
    run.summary.seconds = time.perf_counter() - started
    return run.summary


def decode_all(opened: Iterator[Opened], sink: Sink, upscaler: Upscaler, rows: int) -> None:
    """Open inputs in a thread of its own, and decode them, `rows` images together."""
    feed = FeedQueue[Request](AHEAD * rows)

    def requests() -> Iterator[Request]:
        for turn, made in read_requests(opened, sink.settings, sink.cropped):
            sink.read(turn, len(made))
            for one in made:
                if isinstance(one, Request):
                    yield one
                else:
                    sink.put(one)

    thread = threading.Thread(target=feed.fill, args=(requests(),), name="superres-reading",
                              daemon=True)
    thread.start()
    try:
        for made in decoded(feed.take, sink.settings, upscaler, rows, sink.progress):
            sink.put(made)
            if sink.error is not None:
                break
    finally:
        feed.close()
        thread.join()


class _OpenPart:
    """A part that is being read or decoded, and the outputs that wait for earlier ones."""

    def __init__(self, part: Part, writer: PartWriter) -> None:
        self.part, self.writer, self.is_read = part, writer, False
        self.expected: dict[int, int] = {}  # outputs per input, in the order of the inputs
        self.waiting: dict[int, list[Output]] = {}
        for output in part.standing:
            self.waiting.setdefault(output.turn, []).append(output)

    def expect(self, turn: int, count: int) -> None:
        """Expect the outputs of the next input, besides those that stand."""
        self.expected[turn] = count + len(self.waiting.get(turn, ()))

    def write(self, in_order: bool = True) -> None:
        """Pass on the inputs whose outputs are there, as far as their order allows."""
        for turn, count in list(self.expected.items()):
            if len(self.waiting.get(turn, ())) == count:
                for output in sorted(self.waiting.pop(turn, ()),
                                     key=lambda one: (one.index, one.row.output)):
                    self.writer.add(output)
                del self.expected[turn]
            elif in_order:
                return


class Run:
    """A run: what is to be done, and a thread that writes what is done. A context manager, and a
    `Sink`.

    Attributes:
        summary: counts of what is written.
        error: the error after which nothing more is written, or None.
    """

    def __init__(self, plan: Plan, settings: RunSettings, store: Store, rows: int) -> None:
        """Prepare to write what batches of `rows` images give."""
        self.plan, self.settings, self.store = plan, settings, store
        self.summary = Summary()
        self.error: BaseException | None = None
        self._received, self._photos = 0, 0
        self._moving = threading.Lock()
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(QUEUE + QUEUED * rows)
        self._open: dict[int, _OpenPart] = {}

    def __enter__(self) -> Run:
        """Start the writing thread."""
        total = self.plan.shard_count * self.settings.options.per_input
        self._progress = Progress("upscaling", total, "images").__enter__()
        self._writer = threading.Thread(target=self._write, name="superres-writing", daemon=True)
        self._writer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write what is complete; a completed run also completes its place."""
        self._queue.put(None)
        self._writer.join()
        for part in self._open.values():
            with self._stopping():
                part.write(in_order=False)
            with self._stopping():
                self._report(part.writer.give_up())
        if self.error is None and kind is None:
            with self._stopping():
                self.store.finish()
        self._progress.__exit__(None, None, None)
        if isinstance(self.error, (PlaceError, OutputError)):
            self.summary.stopped = str(self.error)
            say(f"{self.error}; stopped; finished results are kept, and the same command resumes "
                "the run")
        elif self.error is not None and kind is None:
            raise self.error

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """Make an OutputError the run's error."""
        try:
            yield
        except OutputError as caught:
            self.error = self.error or caught

    def parts(self) -> Iterator[Part]:
        """Yield the parts with the inputs that are to be done; report the others."""
        numbers, options = itertools.count(), self.settings.options
        for planned in self.plan.parts():
            if self.error is not None:
                return
            # What is done already is told, ...
            counts = self.store.known.counts_of(planned.entries)
            for entry, count in zip(planned.entries, counts, strict=True):
                if count:
                    self._later(self._known, entry, count)
            left = tuple(entry for entry, count in zip(planned.entries, counts, strict=True)
                         if not count)
            if not left:
                continue
            # ... and of the rest, which samples are to be made and which outputs stand.
            turn, standing, samples = next(numbers) * TURNS, list[Output](), list[tuple[int, ...]]()
            for place, entry in enumerate(left):
                outputs = options.outputs(entry)
                found = [self.store.standing(entry, output) for output in outputs]
                samples.append(tuple(sample for sample, one in enumerate(found, 1) if one is None))
                standing += [replace(one, turn=turn + place, index=index)
                             for index, one in enumerate(found) if one is not None]
            yield self.store.number(replace(planned, entries=left, turn=turn,
                                            samples=tuple(samples), standing=tuple(standing)))

    def opened(self) -> Iterator[Opened]:
        """Open the inputs that are to be done."""
        current: Part | None = None
        for part, opened in open_parts(self.parts()):
            if opened is None:
                if current is not None:
                    self.end(current)
                self.begin(part)
                current = part
            elif opened[2]:
                yield opened
            else:
                self.read(opened[0], 0)
            if self.error is not None:
                return
        if current is not None:
            self.end(current)

    def begin(self, part: Part) -> None:
        """Begin a part, whose inputs are read next."""
        self._later(self._begun, part)

    def end(self, part: Part) -> None:
        """Say that all inputs of a part have been read."""
        self._later(self._ended, part)

    def read(self, turn: int, count: int) -> None:
        self._later(self._expected, turn, count)

    def put(self, made: Made) -> None:
        self._later(self._made, made)

    def written(self, rows: list[Row]) -> None:
        """Receive the rows of a part that another machine has written."""
        self._later(self._written, rows)

    def _later(self, method: Callable[P, None], *values: P.args, **named: P.kwargs) -> None:
        """Let the writing thread call a method; blocks while too many calls wait for it."""
        self._queue.put(functools.partial(method, *values, **named))

    def cropped(self, line: str) -> None:
        self._photos += 1
        if self._photos <= PHOTO_LINES:
            say(line)
        elif self._photos == PHOTO_LINES + 1:
            options = self.settings.options
            place = "the parts' manifests" if options.in_parts else options.manifest_path
            say(f"the crops of further photos are in {place}")

    def progress(self, under_way: float) -> None:
        with self._moving:
            self._progress.to(max(self._received + under_way, self._progress.done))

    def _write(self) -> None:
        """Make the calls of the other threads, until None arrives; the body of the writing
        thread."""
        while (call := self._queue.get()) is not None:
            try:
                if self.error is None:
                    call()
            except BaseException as error:  # the other threads continue, and check `error`
                self.error = error

    # The methods of the writing thread.

    def _known(self, entry: Input, count: int) -> None:
        """Count an input that is done."""
        failures = self.store.known.failures_of(entry)
        for row in failures:
            tell(row)
            self.summary.add(row)
        self.summary.skipped += count - len(failures)
        self._receive(count)

    def _begun(self, part: Part) -> None:
        self._open[part.turn // TURNS] = _OpenPart(part, self.store.writer(part))
        for output in part.standing:
            tell(output.row)

    def _expected(self, turn: int, count: int) -> None:
        """Expect the outputs of an input that has been read."""
        part = self._open[turn // TURNS]
        part.expect(turn, count)
        self._receive(len(part.waiting.get(turn, ())))
        with self._moving:
            more = part.expected[turn] - self.settings.options.per_input
            self._progress.total = (self._progress.total or 0) + more

    def _ended(self, part: Part) -> None:
        number = part.turn // TURNS
        self._open[number].is_read = True
        self._advance(number)

    def _made(self, made: Made) -> None:
        """Encode a decoded image, and write what can be written of its part."""
        output = made if isinstance(made, Output) else self._output(made)
        tell(output.row)
        number = output.turn // TURNS
        self._open[number].waiting.setdefault(output.turn, []).append(output)
        self._receive(1)
        self._advance(number)

    def _written(self, rows: list[Row]) -> None:
        for row in rows:
            tell(row)
        self._receive(len(rows))
        self._report(rows)

    def _output(self, result: Result[Request]) -> Output:
        """Return the output of a decoded image; whether that of one of several faces stands is
        known only now."""
        request = result.item
        if request.crop is not None and request.crop["face"]:
            standing = self.store.standing(request.entry, request.output)
            if standing is not None:
                return replace(standing, turn=request.turn, index=request.index)
        return self.settings.output(result)

    def _advance(self, number: int) -> None:
        """Write what can be written of a part, and finish it if that is all."""
        part = self._open[number]
        part.write()
        if part.is_read and not part.expected:
            self._report(part.writer.finish())
            del self._open[number]

    def _receive(self, count: int) -> None:
        self._received += count
        self.progress(0.0)

    def _report(self, rows: list[Row]) -> None:
        for row in rows:
            self.summary.add(row)
