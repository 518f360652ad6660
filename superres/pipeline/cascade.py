"""Cascades: the network of an upscaler enlarges the pictures that another upscaler draws, in
turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from superres.checkpoint import Checkpoint
from superres.decoding.batching import Feed, Result, Stream
from superres.decoding.noise import part_keys
from superres.decoding.trace import RowTrace
from superres.pictures.read import Pixels
from superres.tasks.faces import FaceTask


def needed_stages(stages: Sequence[Checkpoint], size: int | None,
                  start: int | None) -> Sequence[Checkpoint]:
    """Return the stages of a cascade from the one with inputs of `start` pixels to the last with
    outputs of `size`, if given; all of them unless there are both."""
    networks = [stage.network for stage in stages]
    inputs, outputs = ([network.source_shape[0] for network in networks],
                       [network.target_shape[0] for network in networks])
    try:
        first = 0 if start is None else inputs.index(start)
        last = len(stages) if size is None else len(stages) - outputs[::-1].index(size)
    except ValueError:  # a cascade of all stages says which there are
        return stages
    return stages[first:last] or stages


class PictureStream(Protocol):
    """Decodes the pictures of a feed: a `superres.decoding.batching.Stream`, or one per stage."""

    @property
    def under_way(self) -> list[Any]:
        """The items taken from the feed that are not complete; they are lost if decoding fails."""

    @property
    def tokens_under_way(self) -> int:
        """Number of tokens decoded of the pictures that are not complete."""

    def run(self) -> Iterator[list[Result[Any]]]:
        """Decode until the feed ends, and yield the pictures completed since the last time,
        possibly none."""


@dataclass(frozen=True, eq=False)
class FinishedResult(Result[Any]):
    """A picture that was made of others, as they were `drawn`, with the trace of the first and the
    seconds of all."""

    drawn: Sequence[Result[Any]] = ()


def stage_traces(result: Result[Any]) -> list[RowTrace]:
    """Return the acceptance traces of all decodes that a picture needed: of a cascade, of its
    stages in their order."""
    if isinstance(result, FinishedResult):
        return [trace for one in result.drawn for trace in stage_traces(one)]
    return [*([] if result.earlier is None else stage_traces(result.earlier)), result.trace]


@dataclass(frozen=True, eq=False)
class Drawing:
    """One picture to draw of an item of a feed, from an input of its own: a
    `superres.pipeline.upscaler.Face`."""

    item: Any
    source: Pixels
    key: int
    number: int = 1  # among the pictures of the item
    earlier: Result[Any] | None = None  # of which `source` are the pixels; None if it was given


def stage_keys(keys: Sequence[int], stage: int) -> list[int]:
    """Return the keys of the noise of stage 1, 2, ..., which must not repeat that of another
    stage."""
    given = np.array(keys, np.int64)
    return [int(key) for key in part_keys(given, np.full_like(given, stage))]


class CascadeStream:
    """A `PictureStream` of two stages that decode in turns, each with all threads of the machine.

    Two stages at the same time would share the threads, and need different shares in the course of
    a batch. Whenever no picture waits for the last stage, the first stage draws the next ones. It
    may be a cascade itself.
    """

    def __init__(
        self, feed: Feed[Any], first: Callable[[Feed[Any]], PictureStream],
        last: Callable[[Feed[Drawing]], Stream[Drawing]], task: FaceTask, rows: int, stage: int = 1,
    ) -> None:
        """Prepare; nothing is taken from the feed yet.

        Args:
            feed: provides objects with the attributes of `superres.pipeline.upscaler.Face`. Those
                whose pictures have the size of the first stage's outputs go to the last stage at
                once.
            first: makes the stream of the first stage for a feed, once per turn.
            last: makes the stream of the last stage for a feed.
            task: the sizes of the first stage.
            rows: number of pictures that end a turn of the first stage as soon as they wait for the
                last stage.
            stage: the number of the last stage, which is more than 1 if the first one is a cascade.
        """
        self.task, self.rows, self.stage = task, rows, stage
        self._given, self._more = feed, True
        self._waiting = deque[Drawing]()  # what the last stage has not taken yet
        self._make_first = first
        self.first, self.last = first(self._small), last(self._large)

    @property
    def under_way(self) -> list[Any]:
        return [one.item for one in (*self.last.under_way, *self._waiting)] + self.first.under_way

    @property
    def tokens_under_way(self) -> int:
        drawn = [one.earlier.trace.tokens for one in (*self.last.under_way, *self._waiting)
                 if one.earlier is not None]
        return self.first.tokens_under_way + sum(drawn) + self.last.tokens_under_way

    def run(self) -> Iterator[list[Result[Any]]]:
        """See `PictureStream.run`."""
        last = self.last.run()
        while True:
            if self._more and not self._waiting:
                yield from self._turn()
            finished = next(last, None)
            if finished is None:
                return
            yield list(map(_of_item, finished))

    def so_far(self) -> list[Result[Any]]:
        """Return the pictures that are not complete as far as they are drawn, without those that
        are gathered of several."""
        first = self.first.so_far() if isinstance(self.first, Stream | CascadeStream) else []
        drawn = [one.earlier for one in self._waiting if one.earlier is not None]
        # the last stage has drawn nothing of these
        tokens = np.zeros(self.last.engine.length, np.int64)
        trace = RowTrace([], [], np.empty((0, 1), np.int64))
        return [*map(_of_item, self.last.so_far()),
                *(Result(one.item, tokens, trace, one.seconds, one) for one in (*drawn, *first))]

    def _turn(self) -> Iterator[list[Result[Any]]]:
        """Let the first stage draw pictures until enough of them wait for the last stage."""
        for finished in self.first.run():
            if finished:
                images = self.task.decode(np.stack([one.tokens for one in finished]))
                keys = stage_keys([one.item.key for one in finished], self.stage)
                self._waiting.extend(
                    Drawing(one.item, image, key, earlier=one)
                    for one, image, key in zip(finished, images, keys, strict=True))
            yield []
        self.first = self._make_first(self._small)

    def _small(self, limit: int, wait: bool) -> Sequence[Any] | None:
        """Provide pictures for the first stage's turn; pass those of the first stage's output size
        on."""
        while len(self._waiting) < self.rows:
            items = self._given(limit, wait)
            if items is None:
                self._more = False
                break
            small = [item for item in items if item.source.shape != self.task.target_shape]
            self._waiting.extend(Drawing(item, item.source, item.key) for item in items
                                 if item.source.shape == self.task.target_shape)
            if small or not wait:
                return small
        return None

    def _large(self, limit: int, wait: bool) -> Sequence[Drawing] | None:
        """Provide pictures for the last stage; one waits if the first stage can draw more."""
        if not self._waiting and not self._more:
            return None
        return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]


def _of_item(drawn: Result[Drawing]) -> Result[Any]:
    """Return a picture of the last stage as that of the item which it was drawn for, with the
    seconds of all stages."""
    earlier = drawn.item.earlier
    seconds = drawn.seconds + (0.0 if earlier is None else earlier.seconds)
    return replace(drawn, item=drawn.item.item, seconds=seconds, earlier=earlier)
