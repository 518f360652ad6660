"""Translation of text: load a checkpoint once, then call it on lines."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from itertools import count, groupby, repeat
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeAlias

import torch
from torch import Tensor

from superres.config import DEFAULT_TRANSLATOR, BeamConfig, DecodeConfig, require
from superres.decoding.batching import ListFeed, RefilledDecoder, Source
from superres.decoding.beam import BeamLoop, Beams, beam_search, beam_steps
from superres.decoding.decode import iterations
from superres.decoding.loop import BlockwiseLoop
from superres.decoding.noise import noise_keys, part_keys
from superres.decoding.trace import RowTrace
from superres.errors import CheckpointError, InvalidInputError
from superres.nn.engines.torch_model import SOURCE_MULTIPLE, StepModel
from superres.nn.model import EncoderDecoder
from superres.pipeline.base import Pipeline, at_intervals
from superres.pipeline.display import counted, texts_html
from superres.pipeline.options import choices_for
from superres.tasks import translation
from superres.tasks.shortlist import SHORTLIST, Shortlists

SHARES = 3
"""If several groups of segments are translated at once, every thread gets at least so many of them, so that all end at
about the same time."""

GREEDY_ROWS = 8
"""From so many segments in a batch on, compiled code for CPUs is fastest with one token per step: the arithmetic of
every further column takes longer than the steps that it saves (docs/results.md, "Speed of translation")."""

LONGEST_STREAM = 4
"""Batches in one of several streams that are decoded at once, at most: an interrupted translation waits for them."""


@dataclass(frozen=True)
class Translated:
    """Result of translating lines, possibly of an unfinished translation; a notebook shows the texts.

    Attributes:
        texts: translation of each line, "" for an empty line.
        traces: acceptance traces of each line's segments; empty after beam search.
        cut: whether the largest length (`ModelConfig.longest_target`), and not an end token, ended the line's
            translation.
        tokens: number of generated tokens of each line, including end tokens.
        parts: number of segments of each line; 0 for an empty line.
        model_calls: number of model calls for all lines; each call processes a batch.
        seconds: wall-clock seconds for all lines.
        is_complete: whether the translation is finished.
        unusual: whether each line is unlike the text that the network learned, as far as the checkpoint can tell.
    """

    texts: list[str]
    traces: list[list[RowTrace]]
    cut: list[bool]
    tokens: list[int]
    parts: list[int]
    model_calls: int
    seconds: float
    is_complete: bool = True
    unusual: list[bool] = field(default_factory=list)

    def _repr_html_(self) -> str:
        about = f"{counted(len(self.texts), 'line')}, {self.seconds:.2f} s, {counted(self.model_calls, 'model call')}"
        return texts_html(self.texts, about)


@dataclass(frozen=True)
class _Segment:
    """A line, or a part of a line that is too long.

    Attributes:
        number: number of the segment.
        line: number of its line.
        tokens: source tokens.
        key: key of its sampling noise.
        unusual: as in `Translated`.
    """

    number: int
    line: int
    tokens: list[int]
    key: int
    unusual: bool


@dataclass(frozen=True)
class _SegmentResult:
    """The result of translating a segment; attributes as in `Translated`."""

    text: str
    trace: RowTrace | None
    cut: bool
    tokens: int


_Progress: TypeAlias = tuple[dict[int, _SegmentResult], int]
"""The results of newly complete segments by number, and the number of new model calls."""


class Translator(Pipeline):
    """Translates lines of text with a checkpoint.

    Attributes:
        codec: converts text to tokens and back.
        languages: source and target language, such as ("en", "de").
        shortlists: what the checkpoint knows of its training text, or None.
    """

    task = translation.name
    bundled = DEFAULT_TRANSLATOR
    end_token = translation.END

    def __init__(
        self, model: EncoderDecoder, name: str, revision: str = "", device: str = "auto",
        default: DecodeConfig | None = None, engine: str = "auto", *, codec: translation.Codec,
        shortlists: Shortlists | None = None,
    ) -> None:
        """Make a pipeline for a network, its `codec` and the `shortlists` of its heads; see `Pipeline`.

        Raises:
            ConfigError: the device is not available, or does not support the engine.
            CheckpointError: the network is for another task, or its vocabulary differs from the codec's.
        """
        super().__init__(model, name, revision, device, default, engine)
        if codec.size != model.config.vocabulary:
            raise CheckpointError(f"checkpoint {name} has {model.config.vocabulary} tokens, its "
                                  f"{translation.VOCABULARY_FILE} {codec.size}; they do not belong together")
        source, target = model.config.languages
        self.codec, self.languages = codec, (source, target)
        self.proposers.files = {translation.VOCABULARY_FILE: codec.model}
        self.shortlists = shortlists
        if shortlists is not None:
            self.scoring.shortlists = shortlists.of

    @classmethod
    def _task_arguments(cls, folder: Path, model: EncoderDecoder) -> dict[str, Any]:
        if model.config.task != cls.task:
            return {"codec": None}  # the constructor raises the error
        path = folder / SHORTLIST
        return {"codec": translation.Codec.read(folder, model.config.source_length),
                "shortlists": Shortlists.read(path, model.config.vocabulary) if path.exists() else None}

    def __call__(
        self, lines: Sequence[str], options: DecodeConfig | BeamConfig | None = None, *,
        keys: Sequence[int] | None = None, batch_size: int = 64, width: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Translated:
        """Translate lines; lines of similar length are decoded together.

        An empty line stays empty. A line that is too long for the model is split between sentences, or otherwise
        between words, and its segments are translated separately.

        Args:
            lines: lines of text.
            options: settings of blockwise decoding or beam search. If None as for `Upscaler`, but compiled code decodes
                batches of `GREEDY_ROWS` or more segments with one token per step, if the default gives the same tokens.
            keys: key of each line's sampling noise, in [0, 2**63); the line's number if None. The segments of a line
                have different noise.
            batch_size: largest number of segments decoded together.
            width: step width of blockwise decoding; see `superres.decoding.decode.decode`.
            progress: called repeatedly with (finished segments, all segments).

        Raises:
            InvalidInputError: a word is too long for the model, or there is not one valid key per line.
            ConfigError: the checkpoint or text does not support `options`.
        """
        options, given = options or self.default_of_width(width), options
        self.check(options)
        require(batch_size >= 1, f"batch-size must be at least 1, not {batch_size}")
        started = time.perf_counter()
        segments = self._segments(lines, keys)
        many = min(len(segments), batch_size) >= GREEDY_ROWS
        if given is None and many and self.scoring.width_invariant and self.default.is_exact:
            options = self.default.sequential()
        results = dict[int, _SegmentResult]()
        calls = 0
        for done, steps in self._all_translated(segments, options, batch_size, width):
            results.update(done)
            calls += steps
            if done and progress is not None:
                progress(len(results), len(segments))
        ordered = [results[segment.number] for segment in segments]
        return _joined(lines, segments, ordered, calls, time.perf_counter() - started)

    def _all_translated(
        self, segments: list[_Segment], options: DecodeConfig | BeamConfig, rows: int, width: int | None,
    ) -> Iterator[_Progress]:
        """Translate segments, several groups of them at the same time on an engine that gains by it."""
        # A block size that is learned from one decode to the next serves one decode at a time.
        at_once = 1 if isinstance(options, DecodeConfig) and options.adaptive else math.ceil(len(segments) / rows)
        models = self.scoring.side_by_side(at_once)
        groups = _groups(segments, options, rows, len(models))
        if len(models) == 1:
            for group in groups:
                yield from self._translated(models[0], group, options, rows, width)
            return
        free = SimpleQueue[StepModel]()
        for model in models:
            free.put(model)

        def translate(group: list[_Segment]) -> list[_Progress]:
            model = free.get()
            try:
                return list(self._translated(model, group, options, rows, width))
            finally:
                free.put(model)

        with ThreadPoolExecutor(len(models)) as pool:
            try:
                for done in as_completed([pool.submit(translate, group) for group in groups]):
                    yield from done.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _translated(
        self, model: StepModel, segments: list[_Segment], options: DecodeConfig | BeamConfig, rows: int,
        width: int | None,
    ) -> Iterator[_Progress]:
        """Translate segments with `model`.

        In blockwise decoding, a complete row takes the next segment. Beam search yields all results at its end.
        """
        if isinstance(options, BeamConfig):
            source, padding = self._source(segments)
            found = beam_search(model, source, options, padding=padding)
            yield self._results(segments, found.tokens, found.lengths, [None] * len(segments)), found.model_calls
            return
        longest = max(len(segment.tokens) for segment in segments)
        decoder = RefilledDecoder(
            model, ListFeed(segments[::-1]), partial(self._source, length=longest), options, rows, group=rows,
            width=width, proposer=self.proposers.get(options),
            adaptive=lambda source, padding: self.block_sizes.get(options, source, padding))
        calls = 0
        for finished in decoder.run():
            done = dict[int, _SegmentResult]()
            if finished:
                tokens, traces = torch.stack([one.tokens for one in finished]), [one.trace for one in finished]
                lengths = torch.tensor([trace.tokens for trace in traces])
                done = self._results([one.item for one in finished], tokens, lengths, traces)
            yield done, decoder.model_calls - calls
            calls = decoder.model_calls

    def stream(
        self, lines: Sequence[str], options: DecodeConfig | BeamConfig | None = None, *,
        keys: Sequence[int] | None = None, interval: float = 0.125,
    ) -> Iterator[Translated]:
        """Translate lines in one batch, and yield intermediate results; closing the iterator stops the translation.

        Args:
            lines: as for a call.
            options: as for a call.
            keys: as for a call.
            interval: smallest number of seconds of decoding between two results; 0 yields after every step.

        Yields:
            Intermediate results (in beam search, the best hypotheses so far), and last the complete result. `seconds`
            excludes the time that the caller takes between two results.

        Raises:
            InvalidInputError: a word is too long for the model, or there is not one valid key per line.
            ConfigError: the checkpoint or text does not support `options`.
        """
        options = options or self.default
        self.check(options)
        segments = self._segments(lines, keys)
        if not segments:
            yield _joined(lines, [], [], 0, 0.0)
            return
        for loop, seconds in at_intervals(self._loops(segments, options), interval):
            result = loop.result()
            traces = [None] * len(segments) if isinstance(result, Beams) else result.traces
            results = self._results(segments, result.tokens, result.lengths, traces)
            yield _joined(lines, segments, list(results.values()), result.model_calls, seconds, loop.done())

    def check(self, options: DecodeConfig | BeamConfig) -> None:
        """Check that the checkpoint and text support `options`.

        Raises:
            ConfigError: they do not.
        """
        if isinstance(options, BeamConfig):
            return
        self.block_size(options)
        criteria = choices_for("accept", translation.name)
        require(options.accept in criteria, f"{options.accept} compares grey levels, but text has none; "
                f"choose one of {', '.join(criteria)}")
        require(len(options.temperatures) == 1, "text has no colour channels; give one temperature")

    def check_lines(self, lines: Sequence[str]) -> None:
        """Check that the model can read all lines.

        Raises:
            InvalidInputError: a word is too long for the model.
        """
        for _ in self._parts(lines):
            pass

    def _parts(self, lines: Sequence[str]) -> Iterator[list[str]]:
        """Yield the segments of each line as text."""
        for number, line in enumerate(lines, 1):
            try:
                yield self.codec.segments(line)
            except InvalidInputError as error:
                raise InvalidInputError(f"line {number}: {error}") from error

    def _segments(self, lines: Sequence[str], keys: Sequence[int] | None) -> list[_Segment]:
        """Split lines into segments, none for an empty line; `keys` as for a call."""
        keyed = noise_keys(keys, len(lines), torch.device("cpu"))
        segments = list[_Segment]()
        for number, parts in enumerate(self._parts(lines)):
            own = [int(keyed[number])]  # as of part 0
            if len(parts) > 1:
                own = part_keys(keyed[number].expand(len(parts)), torch.arange(len(parts))).tolist()
            tokens = self.codec.split(parts)
            unusual = [self.shortlists is not None and self.shortlists.is_unusual(row) for row in tokens]
            segments += map(_Segment, count(len(segments)), repeat(number), tokens, own, unusual)
        return segments

    def _source(self, segments: Sequence[_Segment], length: int = 0) -> Source:
        """Return source tokens [N, S] and padding of N segments, S at least `length`."""
        source = torch.from_numpy(translation.pad([segment.tokens for segment in segments], length)).to(self.device)
        padding = source == translation.PADDING
        return source, padding if bool(padding.any()) else None

    def _loops(
        self, segments: Sequence[_Segment], options: DecodeConfig | BeamConfig,
    ) -> Iterator[BlockwiseLoop | BeamLoop]:
        """Decode one batch of segments, and yield the loop repeatedly, last when all rows are complete."""
        source, padding = self._source(segments)
        if isinstance(options, BeamConfig):
            return beam_steps(self.scoring, source, options, padding=padding)
        return iterations(
            self.scoring, source, options, padding=padding, keys=[segment.key for segment in segments],
            proposer=self.proposers.get(options), adaptive=self.block_sizes.get(options, source, padding))

    def _results(
        self, segments: Sequence[_Segment], tokens: Tensor, lengths: Tensor, traces: Sequence[RowTrace | None],
    ) -> dict[int, _SegmentResult]:
        """Return the results of N segments by number; `tokens` are [N, T], of which `lengths` [N] are valid."""
        longest = torch.tensor([self.model_config.longest_target(len(segment.tokens)) for segment in segments])
        full = (lengths.cpu() == longest) & (tokens != translation.END).all(1).cpu()
        results = map(_SegmentResult, self.codec.decode(tokens.cpu().numpy()), traces, full.tolist(), lengths.tolist())
        return {segment.number: one for segment, one in zip(segments, results, strict=True)}


def _groups(
    segments: Sequence[_Segment], options: DecodeConfig | BeamConfig, batch_size: int, at_once: int,
) -> list[list[_Segment]]:
    """Split segments by length into batches, or into longer streams whose sources engines pad to the same length.

    If several streams are decoded at once, they are short, and the longest segments come first.
    """
    ordered = sorted(segments, key=lambda segment: len(segment.tokens))
    if isinstance(options, BeamConfig) or len(ordered) <= batch_size:
        return _parts_of(ordered, batch_size)
    padded = groupby(ordered, key=lambda segment: math.ceil(len(segment.tokens) / SOURCE_MULTIPLE))
    most = len(ordered)
    if at_once > 1:
        most = max(batch_size, min(LONGEST_STREAM * batch_size, math.ceil(len(ordered) / (SHARES * at_once))))
    return [part for _, stream in padded for part in _parts_of(list(stream), most)][::-1]


def _parts_of(segments: list[_Segment], size: int) -> list[list[_Segment]]:
    """Split segments into parts of `size`; the last one may be smaller."""
    return [segments[start : start + size] for start in range(0, len(segments), size)]


def _joined(
    lines: Sequence[str], segments: Sequence[_Segment], results: Sequence[_SegmentResult], calls: int, seconds: float,
    is_complete: bool = True,
) -> Translated:
    """Join the segments' results line by line."""
    by_line: list[list[_SegmentResult]] = [[] for _ in lines]
    unusual = [False] * len(lines)
    for segment, part in zip(segments, results, strict=True):
        by_line[segment.line].append(part)
        unusual[segment.line] |= segment.unusual
    return Translated(
        [" ".join(part.text for part in parts) for parts in by_line],
        [[part.trace for part in parts if part.trace is not None] for parts in by_line],
        [any(part.cut for part in parts) for parts in by_line],
        [sum(part.tokens for part in parts) for parts in by_line],
        [len(parts) for parts in by_line], calls, seconds, is_complete, unusual,
    )
