"""Decoding for visitors: on one thread, that can be watched, raced, stopped, and limited in time."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from superres.errors import SuperresError
from superres.pipeline.options import resolve_options
from superres.pipeline.translator import Translated
from superres.pipeline.upscaler import Upscaled
from superres.tasks.faces import image_key
from superres.web.logs import log

if TYPE_CHECKING:
    from superres.config import BeamConfig, DecodeConfig
    from superres.pipeline.translator import Translator
    from superres.pipeline.upscaler import Upscaler

Pixels = npt.NDArray[np.uint8]
Frame = TypeVar("Frame", Upscaled, Translated)

FRAME_SECONDS = 0.15
"""Seconds of decoding between two frames."""


class StoppedError(SuperresError):
    """The decoding was given up: it took too long, or the server is about to stop."""


class Decoder:
    """Decodes for visitors, one request at a time.

    All steps run on one thread: the math library then keeps one set of workers, however many threads serve visitors.

    Attributes:
        upscaler: the checkpoint for faces.
        translator: the one for text, if there is one.
        time_limit: seconds that a request may take.
        is_busy: whether a request is being decoded.
    """

    def __init__(
        self, upscaler: Upscaler, time_limit: float = 120.0, translator: Translator | None = None,
        frame_seconds: float = FRAME_SECONDS,
    ) -> None:
        """Make ready."""
        self.upscaler, self.translator, self.time_limit = upscaler, translator, time_limit
        self.frame_seconds = frame_seconds
        self.is_busy = False
        self._closing = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="decoding")

    def warm_up(self) -> None:
        """Decode once, so that the first visitor does not wait for what happens only the first time."""
        shape = self.upscaler.model_config.source_shape
        for _ in self.watch("warm-up", np.full((1, *shape), 128, np.uint8), self.upscaler.default, 1):
            pass
        if self.translator is not None:
            for _ in self.translate("warm-up", ["a"], {"": self.translator.default}):
                pass

    def close(self) -> None:
        """End the current decoding at its next frame, with a message to whoever waits for it, and take no more."""
        self._closing.set()

    @property
    def is_closing(self) -> bool:
        """Whether `close` was called."""
        return self._closing.is_set()

    def deadline(self) -> float:
        """Return the `time.monotonic()` at which a request that begins now has to be done."""
        return time.monotonic() + self.time_limit

    def watch(
        self, purpose: str, sources: Pixels, options: DecodeConfig, samples: int, deadline: float | None = None,
    ) -> Iterator[Upscaled]:
        """Decode images and yield frames, the complete result last; closing the iterator stops the decoding.

        Args:
            purpose: what for, in the log.
            sources: uint8 [N, 8, 8, 3].
            options: decoding settings.
            samples: pictures drawn of each source, which follow one another in the frames.
            deadline: `time.monotonic()` when time is up, where the request began earlier.

        Raises:
            ConfigError: the settings do not fit the checkpoint, or contradict one another.
            StoppedError: the time is up, or the server is about to stop.
        """
        options = resolve_options(options, self.upscaler, samples)
        for shown in self._run(purpose, {"": self._stream(sources, options, samples)}, deadline):
            yield shown[""]

    def race(self, source: Pixels, lanes: dict[str, DecodeConfig]) -> Iterator[dict[str, Upscaled]]:
        """Decode one image in several ways on the same clock and yield frames of all.

        The lanes take turns, the one with the least decoding time behind it next. So at each frame all have had the
        same time, and what else the machine has to do slows them alike.

        Args:
            source: uint8 [8, 8, 3].
            lanes: decoding settings by name.

        Raises:
            ConfigError: settings do not fit the checkpoint.
            StoppedError: the time is up, or the server is about to stop.
        """
        resolved = {lane: resolve_options(options, self.upscaler) for lane, options in lanes.items()}
        streams = {lane: self._stream(source[None], options, 1) for lane, options in resolved.items()}
        yield from self._run("race", streams, None)

    def translate(
        self, purpose: str, lines: Sequence[str], lanes: dict[str, DecodeConfig | BeamConfig],
    ) -> Iterator[dict[str, Translated]]:
        """Translate lines in one or several ways, which take turns as in `race`, and yield every step of all.

        Args:
            purpose: what for, in the log.
            lines: text; all lines are decoded together.
            lanes: settings by name.

        Raises:
            ConfigError: settings do not fit the checkpoint, or text.
            InvalidInputError: a word is too long for the model.
            StoppedError: the time is up, or the server is about to stop.
        """
        if self.translator is None:
            raise ValueError("there is no checkpoint for translation")
        streams = {lane: self.translator.stream(lines, options, interval=0) for lane, options in lanes.items()}
        yield from self._run(purpose, streams, None)

    def _stream(self, sources: Pixels, options: DecodeConfig, samples: int) -> Iterator[Upscaled]:
        keys = [image_key(source, sample) for source in sources for sample in range(1, samples + 1)]
        return self.upscaler.stream(sources.repeat(samples, axis=0), options, keys=keys, interval=self.frame_seconds)

    def _run(
        self, purpose: str, streams: dict[str, Iterator[Frame]], deadline: float | None,
    ) -> Iterator[dict[str, Frame]]:
        """Yield the latest frames of all streams, whenever there is a new one of any."""
        started = time.monotonic()
        deadline = deadline or self.deadline()
        shown: dict[str, Frame] = {}
        outcome, self.is_busy = "stopped", True
        try:
            for lane, result in take_turns({lane: self._on_thread(stream) for lane, stream in streams.items()}):
                self.check_time(deadline)
                shown[lane] = result
                if len(shown) == len(streams):
                    yield dict(shown)
            outcome = "done"
        except Exception as error:
            outcome = type(error).__name__
            raise
        finally:
            self.is_busy = False
            for stream in streams.values():
                self._thread.submit(stream.close)  # type: ignore[attr-defined]
            log("decoding", purpose=purpose, outcome=outcome, seconds=round(time.monotonic() - started, 3),
                **_counts(list(shown.values())))

    def _on_thread(self, stream: Iterator[Frame]) -> Iterator[Frame]:
        while (result := self._thread.submit(next, stream, None).result()) is not None:
            yield result

    def check_time(self, deadline: float) -> None:
        """Raise StoppedError if `deadline` is past, or the server is about to stop."""
        if self.is_closing:
            raise StoppedError("the server is about to stop; try again in a minute")
        if time.monotonic() > deadline:
            raise StoppedError(f"this took longer than {self.time_limit:g} seconds and was stopped; ask for less, "
                               "a larger block size or a looser acceptance")


def take_turns(streams: dict[str, Iterator[Frame]]) -> Iterator[tuple[str, Frame]]:
    """Advance the stream with the smallest `seconds` each time, and yield its name and what it gave, till all end."""
    clocks = dict.fromkeys(streams, 0.0)
    while clocks:
        lane = min(clocks, key=lambda name: clocks[name])
        result = next(streams[lane], None)
        if result is None:
            del clocks[lane]
        else:
            clocks[lane] = result.seconds
            yield lane, result


def _counts(results: Sequence[Upscaled | Translated]) -> dict[str, int]:
    """Return the sums over all images or lines that the log tells."""
    counts: Counter[str] = Counter()
    for result in results:
        if isinstance(result, Upscaled):
            traces = result.traces
            counts.update(images=len(traces), tokens=sum(trace.tokens for trace in traces))
        else:
            traces = [trace for line in result.traces for trace in line]
            counts.update(lines=len(result.texts), tokens=sum(result.tokens))
        counts.update(iterations=sum(trace.iterations for trace in traces))
    return dict(counts)
