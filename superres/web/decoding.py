"""Decoding for visitors: on one thread, that can be watched, raced, stopped, and limited in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from superres.batch import image_key, resolve_options
from superres.errors import SuperresError
from superres.web.logs import log

if TYPE_CHECKING:
    from superres.config import DecodeConfig
    from superres.pipeline import Upscaled, Upscaler

Pixels = npt.NDArray[np.uint8]

FRAME_SECONDS = 0.15
"""Seconds of decoding between two frames."""


class StoppedError(SuperresError):
    """The decoding was given up: it took too long, or the server is about to stop."""


class Decoder:
    """Decodes for visitors, one request at a time.

    All steps run on one thread: the math library then keeps one set of workers, however many threads serve visitors.

    Attributes:
        upscaler: the checkpoint.
        time_limit: seconds that a request may take.
        is_busy: whether a request is being decoded.
    """

    def __init__(self, upscaler: Upscaler, time_limit: float = 120.0) -> None:
        """Make ready."""
        self.upscaler, self.time_limit = upscaler, time_limit
        self.is_busy = False
        self._closing = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="decoding")

    def warm_up(self) -> None:
        """Decode once, so that the first visitor does not wait for what happens only the first time."""
        shape = self.upscaler.model_config.source_shape
        for _ in self.watch("warm-up", np.full((1, *shape), 128, np.uint8), self.upscaler.default, 1):
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

    def _stream(self, sources: Pixels, options: DecodeConfig, samples: int) -> Iterator[Upscaled]:
        keys = [image_key(source, sample) for source in sources for sample in range(1, samples + 1)]
        return self.upscaler.stream(sources.repeat(samples, axis=0), options, keys=keys, interval=FRAME_SECONDS)

    def _run(
        self, purpose: str, streams: dict[str, Iterator[Upscaled]], deadline: float | None,
    ) -> Iterator[dict[str, Upscaled]]:
        """Yield the latest frames of all streams, whenever there is a new one of any."""
        started = time.monotonic()
        deadline = deadline or self.deadline()
        shown: dict[str, Upscaled] = {}
        outcome, self.is_busy = "stopped", True
        try:
            for lane, result in take_turns({lane: self._on_thread(stream) for lane, stream in streams.items()}):
                self._check_time(deadline)
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

    def _on_thread(self, stream: Iterator[Upscaled]) -> Iterator[Upscaled]:
        while (result := self._thread.submit(next, stream, None).result()) is not None:
            yield result

    def _check_time(self, deadline: float) -> None:
        if self.is_closing:
            raise StoppedError("the server is about to stop; try again in a minute")
        if time.monotonic() > deadline:
            raise StoppedError(f"this took longer than {self.time_limit:g} seconds and was stopped; ask for fewer "
                               "pictures, a larger block size or a looser acceptance")


def take_turns(streams: dict[str, Iterator[Upscaled]]) -> Iterator[tuple[str, Upscaled]]:
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


def _counts(results: Sequence[Upscaled]) -> dict[str, int]:
    """Return the sums over all images that the log tells."""
    traces = [trace for result in results for trace in result.traces]
    return {"images": len(traces), "tokens": sum(trace.tokens for trace in traces),
            "iterations": sum(trace.iterations for trace in traces)}
