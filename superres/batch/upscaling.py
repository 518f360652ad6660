"""Upscale many images on one machine: the work of `superres upscale`.

Three threads run concurrently: one reads inputs, one decodes, and one writes outputs and the manifest. An invalid input
fails its own row only.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from superres.batch.commit import GROUP
from superres.batch.inputs import Input
from superres.batch.plan import BatchOptions
from superres.batch.reading import Reader, Wanted
from superres.batch.record import Output, Request, RunSettings, Summary
from superres.batch.run import BatchRun
from superres.config import DecodeConfig
from superres.errors import ScoresError
from superres.pipeline.options import resolve_options
from superres.system.progress import say

if TYPE_CHECKING:
    from superres.decoding.batching import Feed, Result
    from superres.pipeline.upscaler import Upscaler

AHEAD = 4
"""Images that are read ahead per image that is being decoded."""


class ReadQueue:
    """A bounded queue between the reading and the decoding thread.

    Attributes:
        seconds: processor seconds that `fill` took.
    """

    def __init__(self, most: int) -> None:
        """Hold at most `most` items."""
        self.most = most
        self._items: deque[Request] = deque()
        self._changed = threading.Condition()
        self._ended = self._closed = False
        self._error: BaseException | None = None
        self.seconds = 0.0

    def fill(self, items: Iterator[Request]) -> None:
        """Add all `items`, or the error that reading them raises; runs in a thread of its own."""
        error: BaseException | None = None
        try:
            for item in items:
                with self._changed:
                    self._changed.wait_for(lambda: len(self._items) < self.most or self._closed)
                    if self._closed:
                        break
                    self._items.append(item)
                    self._changed.notify_all()
        except BaseException as caught:
            error = caught
        with self._changed:
            self._ended, self._error, self.seconds = True, error, time.thread_time()
            self._changed.notify_all()

    def take(self, most: int, wait: bool) -> list[Request] | None:
        """See `superres.decoding.batching.Feed.take`."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._items or self._ended)
            if self._error is not None:
                raise self._error
            if not self._items and self._ended:
                return None
            taken = [self._items.popleft() for _ in range(min(most, len(self._items)))]
            self._changed.notify_all()
            return taken

    def put_back(self, items: Sequence[Request]) -> None:
        """Return `items` to the front of the queue."""
        with self._changed:
            self._items.extendleft(reversed(items))

    def close(self) -> None:
        """Make the reading thread end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def upscale_files(
    entries: Sequence[Input], upscaler: Upscaler, options: BatchOptions, decode: DecodeConfig, group: int = GROUP,
) -> Summary:
    """Upscale the inputs of `entries` and return the counts; every output has a row in the manifest.

    Outputs that are complete according to the manifest are not made again. A failure is one line on standard error. The
    progress bar is shown on a terminal only. `group` outputs are committed together.

    Raises:
        ConfigError: the checkpoint does not support `decode`.
        InvalidInputError: the manifest is damaged.
        OutputError: the output folder or the manifest cannot be written, another run is writing there, or outputs were
            made with other settings.
    """
    decode = resolve_options(decode, upscaler, options.samples)
    settings = RunSettings(f"{upscaler.name}@{upscaler.revision}", decode, options, upscaler.face_task)
    with BatchRun(entries, options, settings, group) as run:
        most = max(run.total, 1)
        rows = min(options.batch_size or upscaler.fitting_rows(decode), most)
        with read_ahead(run.wanted(), run, run.count, rows) as feed:
            Decoding(run, upscaler, feed, decode, rows).run_all()
        run.summary.reading = feed.seconds
    return run.summary


class Sink(Protocol):
    """Receives finished images and failures: a run, or an actor of one."""

    error: BaseException | None
    """The error after which no more results are accepted, or None."""

    settings: RunSettings
    """The settings of the run."""

    def put(self, result: Result[Request] | Output) -> None:
        """Receive a decoded image, or an output that cannot be made."""

    def cropped(self, line: str, more: int) -> None:
        """Receive the line about a photo, and the number of outputs that its further faces add."""

    def progress(self, under_way: float) -> None:
        """Receive the amount of work in progress, in images."""


@contextmanager
def read_ahead(
    wanted: Iterator[Wanted], sink: Sink, count: int, rows: int,
) -> Iterator[ReadQueue]:
    """Read inputs into a feed, in a thread of its own.

    Args:
        wanted: see `superres.batch.reading.Reader.read`.
        sink: receives the lines about photos, and the failed outputs of inputs that cannot be read.
        count: number of the outputs in the run's plan.
        rows: images that are decoded together.
    """
    feed = ReadQueue(AHEAD * rows)

    def requests() -> Iterator[Request]:
        for result in Reader(sink.settings, count, sink.cropped).read(wanted):
            if isinstance(result, Request):
                yield result
            else:
                sink.put(result)

    thread = threading.Thread(target=feed.fill, args=(requests(),), name="superres-reading", daemon=True)
    thread.start()
    try:
        yield feed
    finally:
        feed.close()
        thread.join()


@dataclass
class Decoding:
    """Decodes the items of a feed, and halves the number of images decoded together when memory runs out."""

    sink: Sink
    upscaler: Upscaler
    feed: ReadQueue
    decode: DecodeConfig
    rows: int

    def run_all(self) -> None:
        """Decode until the feed ends or the sink reports an error."""
        from superres.decoding.batching import ListFeed  # imports torch

        while True:
            lost, error = self._decode(self.feed, self.rows)
            if error is None:
                return
            if not lost:
                raise error
            if _is_out_of_memory(error) and len(lost) > 1:
                self.rows = (min(len(lost), self.rows) + 1) // 2
                say(f"out of memory with a batch of {len(lost)}; continuing with {self.rows} (--batch-size)")
                self.feed.put_back(lost)
                continue
            for item in lost:  # one by one, so that a faulty item does not fail the other items again
                _, error = self._decode(ListFeed([item]), 1)
                if error is not None:
                    reason = f"decoding failed: {str(error) or type(error).__name__}"
                    self.sink.put(self.sink.settings.failed(item.number, item.input, item.output, reason))

    def _decode(self, feed: Feed[Request], rows: int) -> tuple[list[Request], Exception | None]:
        """Decode a feed to its end; return the items lost to an error, and the error or None."""
        decoder = self.upscaler.refilled(feed, self.decode, rows)
        try:
            for finished in decoder.run():
                for one in finished:
                    self.sink.put(one)
                if self.sink.error is not None:
                    break
                self.sink.progress(decoder.tokens_under_way / self.upscaler.model_config.target_length)
        except (RuntimeError, MemoryError, ScoresError) as error:
            # The traceback would keep the failed session and its memory alive.
            return decoder.under_way, error.with_traceback(None)
        return [], None


def _is_out_of_memory(error: Exception) -> bool:
    message = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in message or "can't allocate memory" in message
