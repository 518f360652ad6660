"""Decode for visitors on one thread, with intermediate frames, a time limit, and a way to stop."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from superres.config import BeamConfig, DecodeConfig
from superres.decoding.drafting import Drafted
from superres.pictures.read import Pixels
from superres.pipeline.resolved_options import FINISHES, resolve_options
from superres.pipeline.translated import Translated
from superres.pipeline.upscaled import Upscaled
from superres.pipeline.upscaler import Upscaler
from superres.tasks.faces import image_key
from superres.web.turns import StoppedError, Turns, Visitor

if TYPE_CHECKING:
    from superres.pipeline.translator import Translator

Frame = TypeVar("Frame", Upscaled, Translated, Drafted)
FRAME_SECONDS = 0.15  # of decoding, between two frames


@dataclass
class Deadline:
    """The time, as of `time.monotonic()`, at which a request must end. Waiting for a turn postpones
    it."""

    time: float

    def left(self) -> float:
        """Return the seconds that are left."""
        return self.time - time.monotonic()


@dataclass(eq=False)
class VisitorDecoding:
    """Decodes for visitors, one request at a time in turns, of at most `time_limit` seconds each.

    A request can decode its input with several variants (settings by name). The variants take
    turns: the variant with the least decoding time runs next. So all variants have the same
        decoding time at every frame, and other load on
    the machine slows them equally. Closing the iterator of a request stops its decoding.

    All steps run on one thread, so the math library keeps one set of worker threads.
    """

    upscaler: Upscaler
    time_limit: float = 120.0
    translator: Translator | None = None
    frame_seconds: float = FRAME_SECONDS
    example: Upscaled | None = field(default=None, init=False)
    first: dict[str, Any] | None = field(default=None, init=False)
    is_busy: bool = field(default=False, init=False)
    is_closing: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._thread, self._turns = ThreadPoolExecutor(1, thread_name_prefix="decoding"), Turns(1)

    def warm_up(self, source: Pixels | None = None) -> Upscaled:
        """Draw a face, so that the first visitor does not wait for one-time preparations; return
        its result.

        That for `source`, uint8 [source, source, 3], becomes the attribute `example`, which
        the page shows first. Then `first` can have the faces of the box, see
        `superres.web.faces.first_view`.
        """
        given = np.full(self.upscaler.face_task.source_shape, 128,
                        np.uint8) if source is None else source
        (frames,) = deque(self.upscale("warm-up", given[None], {"": self.upscaler.default}), 1)
        self.example = None if source is None else frames[""]
        return frames[""]

    def close(self) -> None:
        """Stop the current decoding at its next frame with StoppedError, and refuse further
        requests."""
        self.is_closing = True
        self._turns.close()

    def before(self, visitor: Visitor) -> int | None:
        """Return how many requests of others are before that of a visitor who waits for a turn;
        None if none waits."""
        return self._turns.before(visitor)

    def deadline(self) -> Deadline:
        """Return the deadline of a request that starts now."""
        return Deadline(time.monotonic() + self.time_limit)

    def upscale(
        self, purpose: str, sources: Pixels, variants: Mapping[str, DecodeConfig], samples: int = 1,
        deadline: Deadline | None = None, *, judged: bool = False, finish: str = FINISHES[0],
    ) -> Iterator[dict[str, Upscaled]]:
        """Upscale images, uint8 [N, source, source, 3], by the stages from their size on.

        The samples of a source are neighbours in the frames.
        Yield the latest frame of every variant; the last frames are complete. The log names the
        purpose. If `judged`, the frames of the last variant are those of `judged_last`. With
        `finish`, there is one frame, of one sample.

        Raises:
            ConfigError: settings do not fit the checkpoint, or contradict each other.
            StoppedError: the deadline (by default `deadline()`) has passed, or the server is
                stopping.
        """
        if finish != FINISHES[0]:
            yield {name: self.finish(purpose, sources, options, finish, deadline) for name,
                   options in variants.items()}
            return
        keys = [image_key(source, sample) for source in sources for sample in range(1, samples + 1)]
        upscaler = self.upscaler.from_size(sources.shape[1])
        resolved = {name: resolve_options(options, upscaler, samples) for name,
                    options in variants.items()}
        streams = {
            name: upscaler.decode_stream(sources.repeat(samples, axis=0), options, keys=keys,
                                         interval=self.frame_seconds)
            for name, options in resolved.items()}
        yield from self._run(purpose, deadline, {
            name: judged_last(stream, samples) if judged and name == [*streams][-1] else stream
            for name, stream in streams.items()})

    def draw(
        self, purpose: str, source: Pixels, options: DecodeConfig, samples: Sequence[int] = (1,),
        size: int | None = None, check: Callable[[], None] = lambda: None,
    ) -> Upscaled:
        """Upscale an image, uint8 [source, source, 3], without frames, to `size` or by all stages;
        see `upscale`.

        `samples` are the numbers of the samples, from 1. `check` is called repeatedly, and raises
        if the result is no longer wanted.
        """
        upscaler = self.upscaler if size is None else self.upscaler.at_size(size)
        keys = [image_key(source, sample) for sample in samples]
        return self._whole(purpose, upscaler.decode, source[None].repeat(len(keys), axis=0),
                           options, check, keys=keys)

    def drafted(
        self, purpose: str, draft: Callable[[Callable[[], None]], Drafted],
    ) -> Drafted:
        """Return what `draft` returns in the request's turn; it calls its argument repeatedly,
        which raises StoppedError when the time is up."""
        limit = self.deadline()

        def whole() -> Iterator[Drafted]:
            yield draft(lambda: self.check_time(limit))

        (frames,) = self._run(purpose, limit, {"": whole()})
        return frames[""]

    def finish(
        self, purpose: str, sources: Pixels, options: DecodeConfig, finish: str,
        deadline: Deadline | None = None, check: Callable[[], None] = lambda: None,
    ) -> Upscaled:
        """Upscale images, uint8 [N, source, source, 3], and finish them, without frames; see `draw`
        and `upscale`."""
        upscaler = self.upscaler.from_size(sources.shape[1])
        options = resolve_options(options, upscaler, finish=finish)
        return self._whole(purpose, upscaler, sources, options, check, deadline, finish=finish)

    def _whole(
        self, purpose: str, upscale: Callable[..., Upscaled], sources: Pixels,
        options: DecodeConfig, check: Callable[[], None], deadline: Deadline | None = None,
        **more: Any,  # noqa: ANN401 -- arguments of the call
    ) -> Upscaled:
        """Call `upscale` in the request's turn; `check` is called repeatedly."""
        limit = deadline or self.deadline()

        def go_on(*_: int) -> None:
            self.check_time(limit)
            check()

        def whole() -> Iterator[Upscaled]:
            check()
            yield upscale(sources, options, progress=go_on, **more)

        (frames,) = self._run(purpose, limit, {"": whole()})
        return frames[""]

    def translate(
        self, purpose: str, lines: Sequence[str], variants: Mapping[str, DecodeConfig | BeamConfig],
    ) -> Iterator[dict[str, Translated]]:
        """Translate lines of text together, and yield the latest step of every variant; see
        `upscale`.

        Raises InvalidInputError, too, if a word is too long for the model.
        """
        assert self.translator is not None  # noqa: S101 -- without it, the page has no tab Translate
        yield from self._run(purpose, None, {
            name: self.translator.stream(lines, options, interval=0) for name,
            options in variants.items()})

    def _run(
        self, purpose: str, deadline: Deadline | None, streams: Mapping[str, Iterator[Frame]],
    ) -> Iterator[dict[str, Frame]]:
        """Wait for the request's turn, and yield its frames; the log has what became of it."""
        deadline = deadline or self.deadline()
        with self._turns.turn() as waited:
            deadline.time += waited
            yield from self._advance(purpose, deadline, streams)

    def _advance(
        self, purpose: str, deadline: Deadline, streams: Mapping[str, Iterator[Frame]],
    ) -> Iterator[dict[str, Frame]]:
        """Advance the stream with the least decoding time, and yield the latest frames of all
        streams."""
        started = time.monotonic()
        clocks, frames = dict.fromkeys(streams, 0.0), dict[str, Frame]()
        outcome, self.is_busy = "stopped", True
        try:
            while clocks:
                name = min(clocks, key=lambda name: clocks[name])
                frame = self._thread.submit(next, streams[name], None).result()
                if frame is None:
                    del clocks[name]
                    continue
                self.check_time(deadline)
                frames[name], clocks[name] = frame, frame.seconds
                if len(frames) == len(streams):
                    yield dict(frames)
            outcome = "done"
        except Exception as error:
            outcome = type(error).__name__
            raise
        finally:
            self.is_busy = False
            for stream in streams.values():
                self._thread.submit(stream.close)  # type: ignore[attr-defined]
            logging.getLogger(__name__).info("%s: %s in %.3f seconds", purpose, outcome,
                                             time.monotonic() - started)

    def check_time(self, deadline: Deadline) -> None:
        """Raise StoppedError if `deadline` has passed or the server is stopping."""
        if self.is_closing:
            raise StoppedError("the server is stopping; try again in a minute")
        if deadline.left() < 0:
            raise StoppedError(f"this took longer than {self.time_limit:g} seconds and was "
                               "stopped; reduce the input, or choose a larger block size or "
                               "another acceptance")


def judged_last(stream: Iterator[Upscaled], samples: int) -> Iterator[Upscaled]:
    """Yield the frames of a stream; the last one has its mask of reliable pixels, and the likeliest
    sample first."""
    for frame in stream:
        if frame.is_complete:
            if samples > 1:
                numbers = list(range(1, samples + 1)) * (len(frame.images) // samples)
                frame = dataclasses.replace(frame, samples=numbers).by_likelihood(samples)
            frame.reliable  # noqa: B018 -- judges the pictures in the thread that decodes
        yield frame
