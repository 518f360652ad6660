"""Upscale many images on one machine: the work of `superres upscale`.

Three threads run concurrently: one reads inputs, one decodes, and one writes outputs and the manifest. An invalid input
fails its own row only.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from superres.batch.commit import GROUP
from superres.batch.inputs import Input
from superres.batch.plan import BatchOptions
from superres.batch.reading import Opened, open_wanted, read_requests
from superres.batch.record import Output, Request, RunSettings, Summary
from superres.batch.run import BatchRun
from superres.config import DecodeConfig
from superres.errors import ScoresError
from superres.pipeline.feed_queue import FeedQueue
from superres.pipeline.options import resolve_options
from superres.system.progress import say

if TYPE_CHECKING:
    from superres.decoding.batching import Feed, Result
    from superres.pipeline.upscaler import Upscaler

AHEAD = 4  # images that are read ahead per image that is being decoded


class Sink(Protocol):
    """Receives finished images and failures: a `superres.batch.run.BatchRun`, or an actor of one.

    `count` is the number of the outputs in the run's plan. After an `error`, no more results are accepted.
    """

    settings: RunSettings
    count: int
    error: BaseException | None

    def read(self, number: int) -> None:
        """Receive the number of an output before the output itself; called in the order of the inputs."""

    def put(self, result: Result[Request] | Output) -> None:
        """Receive a decoded image, or an output that cannot be made."""

    def cropped(self, line: str, more: int) -> None:
        """Receive the line about a photo, and the number of outputs that its further faces add."""

    def progress(self, under_way: float) -> None:
        """Receive the amount of work in progress, in images."""


def upscale_files(
    entries: Sequence[Input], upscaler: Upscaler, options: BatchOptions, decode: DecodeConfig, group: int = GROUP,
) -> Summary:
    """Upscale the inputs of `entries` and return the counts; every output has a row in the manifest.

    Outputs that are complete according to the manifest are not made again. A failure is one line on standard error. The
    progress bar is shown on a terminal only. `group` outputs are committed together. Raises ConfigError if the
    checkpoint does not support `decode`; InvalidInputError if the manifest is damaged; OutputError if the output folder
    or the manifest cannot be written, another run is writing there, or outputs were made with other settings.
    """
    decode = resolve_options(decode, upscaler, options.samples)
    settings = RunSettings(f"{upscaler.name}@{upscaler.revision}", decode, options, upscaler.face_task)
    with BatchRun(entries, options, settings, group) as run:
        rows = min(options.batch_size or upscaler.fitting_rows(decode), max(run.total, 1))
        decode_all(open_wanted(run.wanted()), run, upscaler, rows)
    return run.summary


def decode_all(opened: Iterator[Opened], sink: Sink, upscaler: Upscaler, rows: int) -> None:
    """Open inputs in a thread of its own, and decode them, `rows` images together."""
    feed = FeedQueue[Request](AHEAD * rows)

    def requests() -> Iterator[Request]:
        for result in read_requests(opened, sink.settings, sink.count, sink.cropped):
            sink.read(result.number)
            if isinstance(result, Request):
                yield result
            else:
                sink.put(result)

    thread = threading.Thread(target=feed.fill, args=(requests(),), name="superres-reading", daemon=True)
    thread.start()
    try:
        _decode_feed(feed, sink, upscaler, rows)
    finally:
        feed.close()
        thread.join()


def _decode_feed(feed: FeedQueue[Request], sink: Sink, upscaler: Upscaler, rows: int) -> None:
    """Decode until the feed ends or the sink reports an error; halve the rows when memory runs out."""
    from superres.decoding.batching import feed_of  # imports torch

    while True:
        lost, error = _decode(feed.take, sink, upscaler, rows)
        if error is None:
            return
        if not lost:
            raise error
        if _is_out_of_memory(error) and len(lost) > 1:
            rows = (min(len(lost), rows) + 1) // 2
            say(f"out of memory with a batch of {len(lost)}; continuing with {rows} (--batch-size)")
            feed.put_back(lost)
            continue
        for item in lost:  # one by one, so that a faulty item does not fail the other items again
            _, error = _decode(feed_of([item]), sink, upscaler, 1)
            if error is not None:
                reason = f"decoding failed: {str(error) or type(error).__name__}"
                sink.put(sink.settings.failed(item.number, item.input, item.output, reason))


def _decode(
    feed: Feed[Request], sink: Sink, upscaler: Upscaler, rows: int,
) -> tuple[list[Request], Exception | None]:
    """Decode a feed to its end; return the items lost to an error, and the error or None."""
    decoder = upscaler.refilled(feed, sink.settings.decode, rows)
    try:
        for finished in decoder.run():
            for one in finished:
                sink.put(one)
            if sink.error is not None:
                break
            sink.progress(decoder.tokens_under_way / upscaler.tokens_per_image)
    except (RuntimeError, MemoryError, ScoresError) as error:
        # The traceback would keep the failed session and its memory alive.
        return decoder.under_way, error.with_traceback(None)
    return [], None


def _is_out_of_memory(error: Exception) -> bool:
    message = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in message or "can't allocate memory" in message
