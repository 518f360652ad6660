"""Cascades: the network of an upscaler enlarges the pictures that another upscaler draws, in
turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from superres.decoding.batching import Feed, RefilledDecoder, Result
from superres.decoding.noise import part_keys
from superres.decoding.trace import RowTrace
from superres.tasks.faces import FaceTask


class StreamDecoder(Protocol):
    """Decodes the pictures of a feed: a `superres.decoding.batching.RefilledDecoder`, or one per
    stage."""

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
class StageResult(Result[Any]):
    """A complete picture of a cascade, whose `seconds` are those of all stages."""

    # the picture that it enlarges; None if the input itself has its size
    earlier: Result[Any] | None = None


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
    earlier = result.earlier if isinstance(result, StageResult) else None
    return [*([] if earlier is None else stage_traces(earlier)), result.trace]


@dataclass(frozen=True, eq=False)
class Enlarging:
    """A picture for the last stage: its pixels, the key of its noise, the item it belongs to, and
    the earlier stage."""

    source: np.ndarray
    key: int
    item: Any
    earlier: Result[Any] | None


def stage_keys(keys: Sequence[int], stage: int) -> list[int]:
    """Return the keys of the noise of stage 1, 2, ..., which must not repeat that of another
    stage."""
    given = torch.tensor(keys, dtype=torch.int64)
    return [int(key) for key in part_keys(given, torch.full_like(given, stage))]


class CascadeDecoder:
    """A `StreamDecoder` of two stages that decode in turns, each with all threads of the machine.

    Two stages at the same time would share the threads, and need different shares in the course of
    a batch. Whenever no picture waits for the last stage, the first stage draws the next ones. It
    may be a cascade itself.
    """

    def __init__(
        self, feed: Feed[Any], first: Callable[[Feed[Any]], StreamDecoder],
        last: Callable[[Feed[Enlarging]], RefilledDecoder[Enlarging]], task: FaceTask, rows: int,
        stage: int = 1,
    ) -> None:
        """Prepare; nothing is taken from the feed yet.

        Args:
            feed: provides objects with the attributes of `superres.pipeline.upscaler.Face`. Those
                whose pictures have the size of the first stage's outputs go to the last stage at
                once.
            first: makes the decoder of the first stage for a feed, once per turn.
            last: makes the decoder of the last stage for a feed.
            task: the sizes of the first stage.
            rows: number of pictures that end a turn of the first stage as soon as they wait for the
                last stage.
            stage: the number of the last stage, which is more than 1 if the first one is a cascade.
        """
        self.task, self.rows, self.stage = task, rows, stage
        self._given, self._more = feed, True
        self._waiting = deque[Enlarging]()  # what the last stage has not taken yet
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
        """See `StreamDecoder.run`; the results are of type `StageResult`."""
        last = self.last.run()
        while True:
            if self._more and not self._waiting:
                yield from self._turn()
            finished = next(last, None)
            if finished is None:
                return
            yield [StageResult(one.item.item, one.tokens, one.trace, one.seconds + (
                0.0 if one.item.earlier is None else one.item.earlier.seconds), one.item.earlier)
                   for one in finished]

    def _turn(self) -> Iterator[list[Result[Any]]]:
        """Let the first stage draw pictures until enough of them wait for the last stage."""
        for finished in self.first.run():
            if finished:
                images = self.task.decode(torch.stack([one.tokens for one in finished]).numpy())
                keys = stage_keys([one.item.key for one in finished], self.stage)
                self._waiting.extend(Enlarging(*one) for one in zip(
                    images, keys, [one.item for one in finished], finished, strict=True))
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
            self._waiting.extend(Enlarging(item.source, item.key, item, None) for item in items
                                 if item.source.shape == self.task.target_shape)
            if small or not wait:
                return small
        return None

    def _large(self, limit: int, wait: bool) -> Sequence[Enlarging] | None:
        """Provide pictures for the last stage; one waits if the first stage can draw more."""
        if not self._waiting and not self._more:
            return None
        return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
