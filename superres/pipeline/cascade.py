"""Cascades: the network of an upscaler enlarges the pictures that another upscaler draws, in two threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from superres.decoding.batching import Feed, RefilledDecoder, Result
from superres.decoding.noise import part_keys
from superres.decoding.trace import RowTrace
from superres.pipeline.feed_queue import FeedQueue
from superres.tasks.faces import FaceTask


class StreamDecoder(Protocol):
    """Decodes the pictures of a feed: a `superres.decoding.batching.RefilledDecoder`, or one per stage."""

    @property
    def under_way(self) -> list[Any]:
        """The items taken from the feed that are not complete; they are lost if decoding fails."""

    @property
    def tokens_under_way(self) -> int:
        """Number of tokens decoded of the pictures that are not complete."""

    def run(self) -> Iterator[list[Result[Any]]]:
        """Decode until the feed ends, and yield the pictures completed since the last time, possibly none."""


@dataclass(frozen=True, eq=False)
class StageResult(Result[Any]):
    """A complete picture of a cascade, whose `seconds` are those of all stages."""

    earlier: Result[Any] | None = None  # the picture that it enlarges; None if the input itself has its size


def stage_traces(result: Result[Any]) -> list[RowTrace]:
    """Return the acceptance traces of the stages that drew a picture, in their order."""
    earlier = result.earlier if isinstance(result, StageResult) else None
    return [*([] if earlier is None else stage_traces(earlier)), result.trace]


@dataclass(frozen=True, eq=False)
class Enlarging:
    """A picture for the last stage: its pixels, the key of its noise, the item it belongs to, and the earlier stage."""

    source: np.ndarray
    key: int
    item: Any
    earlier: Result[Any] | None


def next_keys(keys: Sequence[int]) -> list[int]:
    """Return the keys of the next stage's noise, which must not repeat that of the stage before."""
    given = torch.tensor(keys, dtype=torch.int64)
    return [int(key) for key in part_keys(given, torch.ones_like(given))]


class CascadeDecoder:
    """A `StreamDecoder` of two stages; the first one decodes in a thread of its own, ahead of the last one."""

    def __init__(
        self, feed: Feed[Any], first: Callable[[Feed[Any]], StreamDecoder],
        last: Callable[[Feed[Enlarging]], RefilledDecoder[Enlarging]], task: FaceTask, rows: int,
    ) -> None:
        """Prepare; nothing is taken from the feed yet.

        Args:
            feed: provides objects with the attributes of `superres.pipeline.upscaler.Face`. Those whose pictures have
                the size of the first stage's outputs go to the last stage at once.
            first: makes the decoder of the first stage for a feed.
            last: makes the decoder of the last stage for a feed.
            task: the sizes of the first stage.
            rows: largest number of pictures that wait for the last stage.
        """
        self.task = task
        self._given, self._queue = feed, FeedQueue[Enlarging](rows)
        self._between = dict[int, Enlarging]()  # what the last stage has not taken yet
        self.first, self.last = first(self._small), last(self._large)

    @property
    def under_way(self) -> list[Any]:
        """See `StreamDecoder.under_way`; the first stage must have ended."""
        return [one.item for one in (*self.last.under_way, *self._between.values())] + self.first.under_way

    @property
    def tokens_under_way(self) -> int:
        """See `StreamDecoder.tokens_under_way`."""
        drawn = [one.earlier.trace.tokens for one in (*self.last.under_way, *list(self._between.values()))
                 if one.earlier is not None]
        return self.first.tokens_under_way + sum(drawn) + self.last.tokens_under_way

    def run(self) -> Iterator[list[Result[Any]]]:
        """See `StreamDecoder.run`; the results are of type `StageResult`."""
        thread = threading.Thread(target=self._queue.fill, args=(self._drawn(),), name="first stage", daemon=True)
        thread.start()
        try:
            for finished in self.last.run():
                yield [StageResult(one.item.item, one.tokens, one.trace, one.seconds + (
                    0.0 if one.item.earlier is None else one.item.earlier.seconds), one.item.earlier)
                    for one in finished]
        finally:
            self._queue.close()
            thread.join()

    def _small(self, limit: int, wait: bool) -> Sequence[Any] | None:
        """Provide pictures for the first stage; pass those of the first stage's output size on."""
        while (items := self._given(limit, wait)) is not None:
            small = [item for item in items if item.source.shape == self.task.source_shape]
            large = [Enlarging(item.source, item.key, item, None) for item in items
                     if item.source.shape != self.task.source_shape]
            self._between.update((id(one), one) for one in large)
            if not all(self._queue.put(one) for one in large):
                return None
            if small or not wait:
                return small
        return None

    def _drawn(self) -> Iterator[Enlarging]:
        """Decode the first stage, and yield its pictures."""
        for finished in self.first.run():
            if finished:
                images = self.task.decode(torch.stack([one.tokens for one in finished]).numpy())
                keys = next_keys([one.item.key for one in finished])
                drawn = [Enlarging(*one) for one in zip(
                    images, keys, [one.item for one in finished], finished, strict=True)]
                self._between.update((id(one), one) for one in drawn)
                yield from drawn

    def _large(self, limit: int, wait: bool) -> Sequence[Enlarging] | None:
        """Provide pictures for the last stage."""
        taken = self._queue.take(limit, wait)
        for one in taken or ():
            del self._between[id(one)]
        return taken
