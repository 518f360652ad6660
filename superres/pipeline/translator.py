"""Translation of text: load a checkpoint once, then call it on lines."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from superres.config import (
    DEFAULT_TRANSLATOR,
    BeamConfig,
    DecodeConfig,
    ModelConfig,
    require,
    require_whole,
)
from superres.decoding.batching import Result, Source, feed_of
from superres.decoding.noise import noise_keys, part_keys
from superres.errors import CheckpointError, InvalidInputError, shown, torch_needed
from superres.interfaces import Engine, Int64, Network
from superres.native.engine import NativeEngine
from superres.pipeline.pipeline import Pipeline, Steps, at_intervals, batch_steps, check_callable
from superres.pipeline.resolved_options import choices_for
from superres.pipeline.segments import Segment, groups_of, joined
from superres.pipeline.translated import Translated
from superres.tasks import translation, word_marks
from superres.tasks.shortlist import SHORTLIST, Shortlists

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from superres.config import DecodeOptions
    from superres.decoding.plain.beam import BeamLoop
    from superres.nn.model import EncoderDecoder

class Translator(Pipeline):
    """Translates lines of text with a checkpoint.

    `codec` converts text to tokens and back. `languages` are the source and the target language,
    such as ("en", "de"). `shortlists` hold what the checkpoint knows of its training text, or are
    None.
    """

    task = translation.name
    bundled = DEFAULT_TRANSLATOR
    end_token = translation.END

    def __init__(
        self, network: Network | EncoderDecoder, name: str, revision: str = "",
        device: str = "auto", default: DecodeConfig | None = None, engine: str = "auto", *,
        codec: translation.Codec, shortlists: Shortlists | None = None,
    ) -> None:
        """See `Pipeline`; CheckpointError is also raised if the network's vocabulary differs from
        the codec's."""
        super().__init__(network, name, revision, device, default, engine)
        if codec.size != network.config.vocabulary:
            raise CheckpointError(f"checkpoint {name} has {network.config.vocabulary} tokens, its "
                                  f"{translation.VOCABULARY_FILE} {codec.size}; they do not belong "
                                  "together")
        source, target = network.config.languages
        self.codec, self.languages = codec, (source, target)
        self.proposers.files = {translation.VOCABULARY_FILE: codec.model}
        self.shortlists = shortlists
        if shortlists is not None and isinstance(self.scoring, NativeEngine):
            self.scoring.shortlists = shortlists.of

    @classmethod
    def _task_arguments(cls, folder: Path, network: ModelConfig) -> dict[str, Any]:
        path = folder / SHORTLIST
        return {"codec": translation.Codec.read(folder, network.source_length),
                "shortlists": Shortlists.read(path, network.vocabulary) if path.exists()
                else None}

    def __call__(
        self, lines: Sequence[str], options: DecodeConfig | BeamConfig | None = None, *,
        batch_size: int = 64, progress: Callable[[int, int], None] | None = None,
        **settings: Unpack[DecodeOptions],
    ) -> Translated:
        """Translate lines; sentences of similar length are decoded together.

        An empty line stays empty. A line is split into its sentences, and a sentence that is too
        long for the model between words; these segments are translated separately.

        Args:
            lines: lines of text.
            options: settings of blockwise decoding or beam search; `default` if None.
            batch_size: largest number of segments decoded together.
            progress: called repeatedly with (finished segments, all segments).
            **settings: single settings such as `block_size=4` in place of `options`: see
                `Pipeline.options`.

        Raises:
            InvalidInputError: a word is too long for the model.
            ConfigError: the checkpoint or text does not support the settings.
        """
        return self.decode(lines, self.given(options, settings), batch_size=batch_size,
                           progress=progress)

    def decode(
        self, lines: Sequence[str], options: DecodeConfig | BeamConfig | None = None, *,
        keys: Sequence[int] | None = None, batch_size: int = 64, width: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Translated:
        """Translate lines as a call does, with noise and steps of the caller's.

        `keys` are those of the lines' sampling noise, in [0, 2**63); the line's number if None. The
        segments of a line have different noise. `width` is the step width of blockwise decoding:
        see `superres.decoding.batching.Stream`. Other arguments and errors are as for a call;
        raises InvalidInputError, too, if there is not one valid key per line.
        """
        require_lines(lines)
        [result] = self.in_portions(lines, max(len(lines), 1), options, keys=keys,
                                    batch_size=batch_size, width=width, progress=progress)
        return result

    def in_portions(
        self, lines: Sequence[str], size: int, options: DecodeConfig | BeamConfig | None = None, *,
        keys: Sequence[int] | None = None, batch_size: int = 64, width: int | None = None,
        progress: Callable[[int, int], None] | None = None, skip_failed: bool = False,
    ) -> Iterator[Translated]:
        """Translate `size` lines at a time, and yield their results in order; other arguments as
        for `decode`.

        All lines are cut into segments first, so an input that cannot be used is refused before the
        first result. With `skip_failed`, such a line stays empty, and `Translation.failed` says
        why.
        """
        require_lines(lines)
        options = self.default_of_width(width) if options is None else options
        self.check(options)
        require_whole("batch-size", batch_size)
        check_callable("progress", progress)
        started, keyed = time.perf_counter(), noise_keys(keys, len(lines))
        cut, failed = self._cut(lines, skip_failed)
        before, total = 0, sum(map(len, cut))
        for first in range(0, max(len(lines), 1), size):
            segments = self._segments(cut[first : first + size], keyed[first : first + size])
            done = calls = 0
            for finished, steps in self._all_translated(segments, options, batch_size, width):
                done, calls = done + finished, calls + steps
                if finished and progress is not None:
                    progress(before + done, total)
            before += done
            seconds = time.perf_counter() - started
            yield joined(failed[first : first + size], segments, calls, seconds)
            started = time.perf_counter()

    def _all_translated(
        self, segments: list[Segment], options: DecodeConfig | BeamConfig, rows: int,
        width: int | None,
    ) -> Iterator[tuple[int, int]]:
        """Translate segments, several groups of them at the same time on an engine that gains by
        it.

        Yields the number of segments that are newly complete, and the number of new model calls.
        """
        engines = self.scoring.side_by_side(math.ceil(len(segments) / rows))
        groups = groups_of(segments, rows, len(engines), isinstance(options, BeamConfig))
        if len(engines) == 1:
            for group in groups:
                yield from self._translated(engines[0], group, options, rows, width)
            return
        free = SimpleQueue[Engine]()
        for engine in engines:
            free.put(engine)

        def translate(group: list[Segment]) -> list[tuple[int, int]]:
            engine = free.get()
            try:
                return list(self._translated(engine, group, options, rows, width))
            finally:
                free.put(engine)

        with ThreadPoolExecutor(len(engines)) as pool:
            try:
                for done in as_completed([pool.submit(translate, group) for group in groups]):
                    yield from done.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _translated(
        self, engine: Engine, segments: list[Segment], options: DecodeConfig | BeamConfig,
        rows: int, width: int | None,
    ) -> Iterator[tuple[int, int]]:
        """Translate segments with `engine`: in beam search as one batch, otherwise a complete row
        takes the next one."""
        if isinstance(options, BeamConfig):
            *_, loop = self._beam_steps(engine, segments, options)
            yield len(segments), self._record_beams(segments, loop)
            return
        longest = max(len(segment.source) for segment in segments)
        stream = self._stream(engine, feed_of(segments[::-1]),
                              partial(self._source, length=longest), options, rows, group=rows,
                              width=width)
        calls = 0
        for finished in stream.run():
            self._record_blocks(finished)
            yield len(finished), stream.model_calls - calls
            calls = stream.model_calls

    def stream(
        self, lines: Sequence[str], options: DecodeConfig | BeamConfig | None = None, *,
        interval: float = 0.125, **settings: Unpack[DecodeOptions],
    ) -> Iterator[Translated]:
        """Translate lines in one batch, and yield intermediate results; closing the iterator stops
        the translation.

        Arguments and errors are as for a call. There are at least `interval` seconds of decoding
        between two results; 0 yields after every step.

        Yields:
            Intermediate results (in beam search, the best hypotheses so far), and last the complete
            result. `seconds` excludes the time that the caller takes between two results.
        """
        return self.decode_stream(lines, self.given(options, settings), interval=interval)

    def decode_stream(
        self, lines: Sequence[str], options: DecodeConfig | BeamConfig, *,
        keys: Sequence[int] | None = None, interval: float = 0.125,
    ) -> Iterator[Translated]:
        """Yield what `stream` does, with the `keys` of `decode`."""
        require_lines(lines)
        self.check(options)
        segments = self._segments(self._cut(lines)[0], noise_keys(keys, len(lines)))
        if not segments:
            yield joined([""] * len(lines), [], 0, 0.0)
            return
        for calls, seconds, is_complete in at_intervals(self._steps(segments, options), interval):
            yield joined([""] * len(lines), segments, calls, seconds, is_complete)

    def _steps(self, segments: list[Segment], options: DecodeConfig | BeamConfig) -> Steps[int]:
        """Translate a batch; reading a result records it in `segments`, and returns the number of
        model calls."""
        if isinstance(options, BeamConfig):
            for loop in self._beam_steps(self.scoring, segments, options):
                yield loop.done(), lambda: self._record_beams(segments, loop)  # noqa: B023 -- called at once
            return
        stream = self._stream(self.scoring, feed_of(segments), self._source, options,
                              len(segments), batch=True)
        for is_complete, results in batch_steps(stream):
            yield is_complete, lambda: self._record_blocks(results())  # noqa: B023 -- called at once

    def _beam_steps(self, engine: Engine, segments: list[Segment],
                    options: BeamConfig) -> Iterator[BeamLoop]:
        """Search the best translations of a batch: see `decoding.plain.beam.beam_steps`."""
        with torch_needed("beam search"):
            import torch

            from superres.decoding.plain.beam import beam_steps
        model = engine.on_torch()
        source, padding = self._source(segments)
        return beam_steps(
            model, torch.from_numpy(source).to(model.device), options,
            padding=None if padding is None else torch.from_numpy(padding).to(model.device))

    def check(self, options: DecodeConfig | BeamConfig) -> None:
        """Raise ConfigError unless the checkpoint and text support `options`."""
        if isinstance(options, BeamConfig):
            return
        self.block_size(options)
        criteria = choices_for("accept", translation.name)
        require(options.accept in criteria, f"{options.accept} compares grey levels, but text has "
                f"none; choose one of {', '.join(criteria)}")
        require(len(options.temperatures) == 1, "text has no colour channels; give one temperature")
        require(options.later_temperature is None, "text is decoded in one stage; leave out "
                "later_temperature")

    def _cut(
        self, lines: Sequence[str], skip_failed: bool = False,
    ) -> tuple[list[list[str]], list[str]]:
        """Return the segments of each line as text, none for an empty line, and why it cannot be
        cut, "" if it can."""
        cut, failed = list[list[str]](), [""] * len(lines)
        for number, line in enumerate(lines, 1):
            try:
                cut.append(self.codec.segments(line))
            except InvalidInputError as error:
                if not skip_failed:
                    raise InvalidInputError(f"line {number}: {error}") from error
                cut.append([])
                failed[number - 1] = str(error)
        return cut, failed

    def _segments(self, cut: list[list[str]], keys: Int64) -> list[Segment]:
        """Return the segments of lines that are `cut`, whose noise has the `keys`, int64
        [lines]."""
        segments = list[Segment]()
        for number, (texts, key) in enumerate(zip(cut, keys, strict=True)):
            own = [int(key)] * len(texts)  # as of part 0
            if len(texts) > 1:
                own = part_keys(np.full(len(texts), key), np.arange(len(texts))).tolist()
            for text, source, one in zip(texts, self.codec.split(texts), own, strict=True):
                unusual = self.codec.doubt(text)
                unfamiliar = [] if unusual else word_marks.unfamiliar(self.codec, source)
                if (not unusual and self.shortlists is not None
                    and self.shortlists.is_unusual(source)):
                    unusual = self.shortlists.known
                segments.append(Segment(number, text, source, one, unusual, unfamiliar))
        return segments

    def _source(self, segments: Sequence[Segment], length: int = 0) -> Source:
        """Return source tokens [N, S] and padding of N segments, S at least `length`."""
        source = translation.pad([segment.source for segment in segments], length)
        padding = source == translation.PADDING
        return source, padding if padding.any() else None

    def _record(self, segments: Sequence[Segment], tokens: Int64, lengths: Int64) -> None:
        """Record translations: tokens [N, T], of which `lengths` [N] are valid."""
        longest = [self.model_config.longest_target(len(segment.source)) for segment in segments]
        full = (lengths == longest) & (tokens != translation.END).all(1)
        texts = self.codec.decode(tokens)
        for segment, *translated in zip(segments, texts, full.tolist(), lengths.tolist(),
                                        strict=True):
            segment.text, segment.truncated, segment.tokens = translated

    def _record_blocks(self, results: Sequence[Result[Segment]]) -> int:
        """Record the results of blockwise decoding, and return the number of model calls of the
        slowest."""
        if results:
            for one in results:
                one.item.trace = one.trace
            self._record([one.item for one in results], np.stack([one.tokens for one in results]),
                         np.array([one.trace.tokens for one in results]))
        return max((one.trace.model_calls for one in results), default=0)

    def _record_beams(self, segments: list[Segment], loop: BeamLoop) -> int:
        """Record the best hypotheses of a beam search so far, and return the number of its model
        calls."""
        found = loop.result()
        self._record(segments, found.tokens.cpu().numpy(), found.lengths.cpu().numpy())
        return found.model_calls


def require_lines(lines: object) -> None:
    """Raise InvalidInputError unless `lines` are a list of texts; a single text is none."""
    if isinstance(lines, str) or not isinstance(lines, Sequence) or not all(isinstance(one, str)
                                                                            for one in lines):
        raise InvalidInputError("lines must be a list of texts such as ['A dog runs.'], not "
                                f"{shown(lines)}")
