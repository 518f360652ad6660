"""Finishing pictures after decoding: a mean of several, then an unsharp mask, within the sums of
the input's cells.

"mean" averages the exact pictures of the input and of the mirrored input, which is mirrored back;
"sharp" averages three samples at temperature 0.7. What the pictures agree on stays, and what each
invented alone fades. Where several networks draw, the mean is that of the pictures which the last
network enlarges; where one draws, that of its outputs. The unsharp mask brings back the contrast
that averages lose.

Both are projected onto the pictures whose cells have exactly the sums of the input's enlargement
(`superres.tasks.consistency.projected`), so a finished picture reduces to exactly its input. All
arithmetic is on whole numbers: the same drawn pictures give the same finished ones on every
machine.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, cast

import numpy as np

from superres.config import DecodeConfig
from superres.decoding.batching import Feed, Result, feed_of
from superres.pictures.read import Pixels
from superres.pipeline.cascade import Drawing, FinishedResult, PictureStream
from superres.pipeline.gathering import GatheringStream
from superres.pipeline.upscaled import Upscaled
from superres.tasks.consistency import Int64, projected
from superres.tasks.faces import FaceTask, image_key
from superres.tasks.photos import PhotoSources

DRAWN = {"mean": 2, "sharp": 3}
"""Number of pictures that are averaged, for each way of finishing."""
TEMPERATURE = 0.7  # of the samples that are averaged
GAUSS = (1, 18, 221, 991, 1634, 991, 221, 18, 1)
"""Gaussian weights of standard deviation 1 pixel, whose sum is 4096, a power of two."""

Combine = Callable[[Pixels, Pixels], Pixels]
"""Makes of pictures, uint8 [K, H, W, 3], with their source, uint8 [h, w, 3], one picture, uint8 [H,
W, 3]."""


class Stages(Protocol):
    """The networks that draw pictures, one after another: a
    `superres.pipeline.upscaler.Upscaler`."""

    @property
    def first(self) -> Stages | None:
        """The stages before the last one."""

    @property
    def face_task(self) -> FaceTask:
        """The sizes of the first stage's input and of the last stage's output."""

    @property
    def network_task(self) -> FaceTask:
        """The sizes of the last network's input and output."""

    @property
    def tokens_per_image(self) -> int:
        """Number of tokens that all stages decode for an image."""

    def options_of_first(self, options: DecodeConfig) -> DecodeConfig:
        """Return the settings of the stages before the last one."""

    def refilled(self, feed: Feed[Any], options: DecodeConfig | None, rows: int) -> PictureStream:
        """Return the stream of a feed."""

    def staged(
        self, feed: Feed[Any], options: DecodeConfig, rows: int,
        small: Callable[[Feed[Any]], PictureStream] | None,
    ) -> PictureStream:
        """Return the stream of a feed with another one, made by `small`, of the stages before the
        last one."""

    def upscaled(self, results: Sequence[Result[Any]], given: PhotoSources) -> Upscaled:
        """Return pictures as the networks drew them, one per input."""

    def record(self, options: DecodeConfig, finish: str) -> dict[str, Any]:
        """Return how pictures are made, as their files hold it."""


def drawing_options(options: DecodeConfig, finish: str) -> DecodeConfig:
    """Return the settings by which the pictures that are averaged are drawn, for those of the exact
    pictures."""
    return options if finish == "mean" else dataclasses.replace(options, temperature=TEMPERATURE)


def drawings_of(item: Any, finish: str) -> list[Drawing]:  # noqa: ANN401 -- of a feed
    """Return what is drawn for an item, a `superres.pipeline.upscaler.Face`, of which the mean is
    taken."""
    if finish == "mean":
        mirrored = np.ascontiguousarray(item.source[:, ::-1])
        return [Drawing(item, item.source, item.key), Drawing(item, mirrored, item.key, 2)]
    return [Drawing(item, item.source, image_key(item.source, number), number)
            for number in range(1, DRAWN[finish] + 1)]


def mean_of(pictures: Pixels, source: Pixels, finish: str) -> Pixels:
    """Return the mean of the pictures of `drawings_of`, uint8 [K, H, W, 3], projected onto the
    cells of the source."""
    values = pictures.astype(np.int64)
    if finish == "mean":
        values[1] = values[1, :, ::-1].copy()
    mean, = projected(values.sum(0)[None], len(values), source[None])
    return np.asarray(mean)


def sharpened(picture: Pixels, source: Pixels) -> Pixels:
    """Return a picture, uint8 [H, W, 3], under an unsharp mask of amount 1, projected onto the
    cells of the source."""
    values = picture.astype(np.int64)
    unit = sum(GAUSS) ** 2
    sharp, = projected((2 * unit * values - _blurred(_blurred(values, 0), 1))[None], unit,
                       source[None])
    return np.asarray(sharp)


def _blurred(values: Int64, axis: int) -> Int64:
    """Return sums [H, W, C] weighted by `GAUSS` along an axis, at whose ends the picture is
    reflected."""
    margin, size = len(GAUSS) // 2, values.shape[axis]
    around = [(margin, margin) if number == axis else (0, 0) for number in range(values.ndim)]
    padded = np.pad(values, around, "symmetric")
    return np.asarray(sum(weight * padded.take(range(place, place + size), axis) for place,
                          weight in enumerate(GAUSS)))


class FinishingStream(GatheringStream):
    """A `PictureStream` that yields what `combine` makes of the pictures of each item, of type
    `FinishedResult`."""

    def __init__(
        self, feed: Feed[Any], stream: Callable[[Feed[Drawing]], PictureStream], task: FaceTask,
        combine: Combine, finish: str | None = None,
    ) -> None:
        """Prepare; see `GatheringStream`.

        The pictures, at the target size of `task`, are those of `drawings_of` for `finish`, or one
        of the item itself.
        """
        self.task, self.combine, self.finish = task, combine, finish
        self.count = 1 if finish is None else DRAWN[finish]
        super().__init__(feed, stream)

    def drawings_of(self, item: Any) -> list[Drawing]:  # noqa: ANN401 -- of the feed
        return ([Drawing(item, item.source, item.key)] if self.finish is None
                else drawings_of(item, self.finish))

    def combined(self, results: Sequence[Result[Drawing]]) -> FinishedResult:
        item = results[0].item.item
        pictures = self.task.decode(np.stack([one.tokens for one in results]))
        tokens = self.combine(pictures, item.source).reshape(-1).astype(np.int64)
        return FinishedResult(item, tokens, results[0].trace, sum(one.seconds for one in results),
                              drawn=results)


class SizesStream:
    """A `PictureStream` of items of several sizes, each size in turns with a stream of its own."""

    def __init__(self, feed: Feed[Any], stream: Callable[[Feed[Any], int], PictureStream],
                 rows: int) -> None:
        """Prepare; nothing is taken from the feed yet.

        Args:
            feed: provides objects with the attributes of `superres.pipeline.upscaler.Face`.
            stream: makes the stream of a feed of inputs with a side, once per turn.
            rows: number of items of other sizes that end a turn as soon as they wait.
        """
        self.rows, self._given, self._make, self._more = rows, feed, stream, True
        self._waiting = deque[Any]()  # items for a later turn
        self._stream: PictureStream | None = None
        self._side = 0

    @property
    def under_way(self) -> list[Any]:
        return [*([] if self._stream is None else self._stream.under_way), *self._waiting]

    @property
    def tokens_under_way(self) -> int:
        return 0 if self._stream is None else self._stream.tokens_under_way

    def run(self) -> Iterator[list[Result[Any]]]:
        """See `PictureStream.run`."""
        while self._waiting or self._more:
            if not self._waiting:
                self._take(1, wait=True)
            if self._waiting:
                self._side = len(self._waiting[0].source)
                self._stream = self._make(self._next, self._side)
                yield from self._stream.run()

    def _take(self, limit: int, wait: bool) -> None:
        items = self._given(limit, wait) if self._more else None
        self._more = items is not None
        self._waiting.extend(items or ())

    def _next(self, limit: int, wait: bool) -> Sequence[Any] | None:
        """Provide items of the side of this turn; those of other sides wait for a turn of their
        own."""
        while True:
            if not any(len(item.source) == self._side for item in self._waiting):
                self._take(limit, wait)
            own = [item for item in self._waiting if len(item.source) == self._side]
            others = [item for item in self._waiting if len(item.source) != self._side]
            self._waiting = deque([*own[limit:], *others])
            if not own and (not self._more or len(others) >= self.rows):
                return None
            if own or not wait:
                return own[:limit]


def finishing_stream(
    upscaler: Stages, feed: Feed[Any], options: DecodeConfig, rows: int, finish: str,
) -> SizesStream:
    """Return the stream of `Upscaler.refilled` for a way of finishing other than "none"."""
    mean, task, first = partial(mean_of, finish=finish), upscaler.face_task, upscaler.first

    def averaged(inputs: Feed[Any]) -> PictureStream:
        assert first is not None  # noqa: S101 -- only a cascade calls this
        own = drawing_options(upscaler.options_of_first(options), finish)
        return FinishingStream(inputs, lambda drawn: first.refilled(drawn, own, rows),
                                first.face_task, mean, finish)

    def stream(inputs: Feed[Any], side: int) -> PictureStream:
        if first is not None and side != upscaler.network_task.source:
            return FinishingStream(
                inputs, lambda drawn: upscaler.staged(drawn, options, rows, averaged), task,
                lambda pictures, source: sharpened(pictures[0], source))
        own = drawing_options(options, finish)
        return FinishingStream(inputs, lambda drawn: upscaler.refilled(drawn, own, rows), task,
                                lambda pictures, source: sharpened(mean(pictures, source), source),
                                finish)

    return SizesStream(feed, stream, rows)


def finished(
    upscaler: Stages, given: PhotoSources, faces: Sequence[Any], options: DecodeConfig, finish: str,
    progress: Callable[[int, int], None] | None,
) -> Upscaled:
    """Return what a call of the upscaler with `finish` returns, for its inputs of one size, at
    least one."""
    stream = finishing_stream(upscaler, feed_of(faces), options, len(faces), finish)
    made, total, started = (dict[int, FinishedResult](), upscaler.tokens_per_image,
                            time.perf_counter())
    for done in stream.run():
        made.update((id(one.item), cast(FinishedResult, one)) for one in done)
        if progress is not None:
            progress((len(made) * total + stream.tokens_under_way) // len(faces), total)
    results, seconds = [made[id(face)] for face in faces], time.perf_counter() - started
    last = [one.drawn[0] for one in results]
    means = [one.earlier for one in last if one.earlier is not None]
    stage = upscaler.first if means and upscaler.first is not None else upscaler
    averaged = [stage.upscaled(of_number, given) for of_number in zip(
        *(cast(FinishedResult, one).drawn for one in means or results), strict=True)]
    tokens = [np.stack([one.tokens for one in some]) for some in (results, last)]
    images, drawn = map(upscaler.face_task.decode, tokens)
    return Upscaled(
        images, [one.trace for one in results], seconds, given.images, given.crops, given.inputs,
        given.notes, averaged[0] if means else None, upscaler.record(options, finish), drawn=drawn,
        averaged=averaged)
