"""Decode the requests of a run, as long as anything of it can be decoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from superres.batch.record import Output, Request, RunSettings
from superres.errors import ScoresError
from superres.system.progress import say

if TYPE_CHECKING:
    from superres.decoding.batching import Feed, Result
    from superres.pipeline.upscaler import Upscaler

    Made: TypeAlias = Result[Request] | Output
    """A decoded picture, or an output that cannot be made."""


def decoded(
    feed: Feed[Request], settings: RunSettings, upscaler: Upscaler, rows: int,
    moved: Callable[[float], None],
) -> Iterator[Made]:
    """Decode a feed to its end, `rows` pictures together, and yield what is made of each; fewer
    rows when memory runs out.

    `moved` gets the amount of work in progress, in pictures, after every step.
    """
    from superres.decoding.batching import feed_of  # imports numpy

    while True:
        lost, error = yield from _decoded(feed, settings, upscaler, rows, moved)
        if error is None:
            return
        if not lost:
            raise error
        if _is_out_of_memory(error) and len(lost) > 1:
            rows = (min(len(lost), rows) + 1) // 2
            say(f"out of memory with a batch of {len(lost)}; continuing with {rows} (--batch-size)")
            feed = _before(feed, lost)
            continue
        for item in lost:  # one by one, so that a faulty item does not fail the other items again
            _, error = yield from _decoded(feed_of([item]), settings, upscaler, 1, moved)
            if error is not None:
                reason = f"decoding failed: {str(error) or type(error).__name__}"
                yield settings.failed(item.entry, item.output, reason, item.turn, item.index)


def _decoded(
    feed: Feed[Request], settings: RunSettings, upscaler: Upscaler, rows: int,
    moved: Callable[[float], None],
) -> Generator[Made, None, tuple[list[Request], Exception | None]]:
    """Decode a feed; return the items lost to an error, and the error or None."""
    options = settings.options
    is_judged = options.sheet and upscaler.reliability is not None  # of pictures as they are drawn
    decoder = upscaler.refilled(feed, settings.decode, rows,
                                options.samples if options.keep else 1, is_judged, options.finish)
    try:
        for finished in decoder.run():
            yield from finished
            moved(decoder.tokens_under_way / upscaler.tokens_per_image)
    except (RuntimeError, MemoryError, ScoresError) as error:
        # The traceback would keep the failed session and its memory alive.
        return decoder.under_way, error.with_traceback(None)
    return [], None


def _before(feed: Feed[Request], items: Sequence[Request]) -> Feed[Request]:
    """Return a feed of `items`, and then of `feed`."""
    waiting = deque(items)

    def take(limit: int, wait: bool) -> Sequence[Request] | None:
        taken = [waiting.popleft() for _ in range(min(limit, len(waiting)))]
        return taken or feed(limit, wait)

    return take


def _is_out_of_memory(error: Exception) -> bool:
    message = str(error).lower()
    return (isinstance(error, MemoryError) or "out of memory" in message or "can't allocate memory"
            in message)
