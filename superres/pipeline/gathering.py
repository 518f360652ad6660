"""Drawing several pictures of each item of a stream, of which one result is made."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from superres.decoding.batching import Feed, Result
from superres.pipeline.cascade import Drawing, PictureStream, stage_traces


class GatheringStream:
    """A `PictureStream` that draws `count` pictures of each item of a feed, and yields what
    `combined` makes of them.

    Both are objects with the attributes of `superres.pipeline.upscaler.Face`.
    """

    count: int

    def __init__(self, feed: Feed[Any], stream: Callable[[Feed[Drawing]], PictureStream]) -> None:
        """Prepare; nothing is taken from the feed yet. `stream` makes the stream of the
        pictures."""
        self._given = feed
        self._waiting = deque[Drawing]()  # what the stream has not taken yet
        # results by the identity of their item, until all are there
        self._drawn = dict[int, list[Result[Drawing]]]()
        self.stream = stream(self._drawings)

    def drawings_of(self, item: Any) -> list[Drawing]:  # noqa: ANN401 -- of the feed
        """Return the `count` pictures to draw of an item."""
        raise NotImplementedError

    def combined(self, results: Sequence[Result[Drawing]]) -> Result[Any]:
        """Return the result of an item, given those of its pictures in their order."""
        raise NotImplementedError

    @property
    def under_way(self) -> list[Any]:
        drawn = [results[0].item.item for results in self._drawn.values()]
        items = [*drawn, *(drawing.item for drawing in (*self.stream.under_way, *self._waiting))]
        return list({id(item): item for item in items}.values())

    @property
    def tokens_under_way(self) -> int:
        drawn = (trace.tokens for results in self._drawn.values() for one in results
                 for trace in stage_traces(one))
        return (self.stream.tokens_under_way + sum(drawn)) // self.count

    def run(self) -> Iterator[list[Result[Any]]]:
        """See `PictureStream.run`."""
        for finished in self.stream.run():
            for one in finished:
                self._drawn.setdefault(id(one.item.item), []).append(one)
            complete = [key for key, results in self._drawn.items() if len(results) == self.count]
            yield [self._taken(key) for key in complete]

    def _taken(self, key: int) -> Result[Any]:
        result = self.combined(sorted(self._drawn[key], key=lambda one: one.item.number))
        # only now, since an item whose pictures cannot be combined is still under way
        del self._drawn[key]
        return result

    def _drawings(self, limit: int, wait: bool) -> Sequence[Drawing] | None:
        """Provide pictures of the items of the feed."""
        if not self._waiting:
            items = self._given(max(limit // self.count, 1), wait)
            if items is None:
                return None
            self._waiting.extend(drawing for item in items for drawing in self.drawings_of(item))
        return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
