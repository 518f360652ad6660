"""What a benchmark measures: inputs, and ways to decode them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from superres.config import BeamConfig, DecodeConfig
from superres.decoding.trace import RowTrace
from superres.errors import InvalidInputError
from superres.evaluation.drawing import Way
from superres.interfaces import Int64
from superres.tasks import translation

if TYPE_CHECKING:
    from superres.pipeline.pipeline import Pipeline
    from superres.pipeline.translator import Translator
    from superres.pipeline.upscaler import Upscaler

Report = dict[str, Any]
Run = tuple[float, int, int, list[RowTrace]]
"""Result of decoding a batch: wall-clock seconds, generated tokens, model calls and, except for
beams, traces."""

BLOCK_SIZES = (1, 2, 4, 6, 8, 10, 16, 24)
"""Block sizes to measure, up to the number of prediction heads."""


@dataclass(frozen=True)
class Workload:
    """Inputs and ways to decode (by name, including "greedy") for a benchmark.

    `unit` is the name of one row of a batch, "image" or "sentence". `decode` decodes a batch of a
    given size in one way, and `source` returns the source tokens [B, S] of such a batch.
    Steps are timed at the decoder position `position`, in the middle of a target.
    """

    pipeline: Pipeline
    unit: str
    ways: dict[str, Way]
    decode: Callable[[Way, int], Run]
    source: Callable[[int], Int64]
    position: int


def block_sizes(heads: int) -> tuple[int, ...]:
    """Return the block sizes to measure for a network with `heads` prediction heads."""
    return tuple(k for k in BLOCK_SIZES if k <= heads)


def _ways(heads: int, criteria: dict[str, DecodeConfig]) -> dict[str, Way]:
    """Return greedy decoding, and each criterion at every block size above 1 and at adaptive block
    sizes."""
    found: dict[str, Way] = {"greedy": DecodeConfig(1)}
    sizes = block_sizes(heads)[1:]
    for name, options in criteria.items() if sizes else ():
        found |= {f"{name}, k = {k}": dataclasses.replace(options, block_size=k) for k in sizes}
        found[f"{name}, adaptive"] = dataclasses.replace(options, adaptive=True)
    return found


def image_workload(upscaler: Upscaler, sources: np.ndarray) -> Workload:
    """Return the workload of upscaling: greedy, exact blocks, and blocks within epsilon 2.

    `sources`, uint8 [N, source, source, 3], are repeated for batches of more than N images.
    """
    ways = _ways(upscaler.model_config.prediction_heads, {
        "exact": DecodeConfig(), "epsilon 2": DecodeConfig(accept="distance", epsilon=2)})

    def chosen(batch: int) -> np.ndarray:
        return sources[np.arange(batch) % len(sources)]

    def decode(way: Way, batch: int) -> Run:
        if isinstance(way, BeamConfig):
            raise TypeError("beam search does not support images")
        made = upscaler(chosen(batch), way)
        return (made.seconds, sum(trace.tokens for trace in made.traces),
                max(trace.model_calls for trace in made.traces), made.traces)

    return Workload(upscaler, "image", ways, decode,
                    lambda batch: upscaler.source_tokens(chosen(batch)),
                    upscaler.model_config.target_length // 2)


def text_workload(translator: Translator, lines: Sequence[str]) -> Workload:
    """Return the workload of translation: greedy, exact blocks, top-2 blocks and beam search.

    A batch takes the sentences of medium length from `lines`, and repeats sentences if there are
    too few.

    Raises:
        InvalidInputError: every line is empty or too long for the network.
    """
    ways = _ways(translator.model_config.prediction_heads, {
        "exact": DecodeConfig(), "top-2": DecodeConfig(accept="top-k", top_k=2)}) | {
            "beam 4": BeamConfig()}

    # the lines that fit, by length
    longest = translator.model_config.source_length
    fitting = zip(lines, translator.codec.split(lines), strict=True)
    ordered = sorted((line for line, row in fitting if line.strip() and len(row) <= longest),
                     key=len)
    if not ordered:
        raise InvalidInputError(f"there is no line of 1 to {longest} tokens to translate; give "
                                "other text")

    def chosen(batch: int) -> list[str]:
        first = max(0, (len(ordered) - batch) // 2)
        return [ordered[(first + number) % len(ordered)] for number in range(batch)]

    def decode(way: Way, batch: int) -> Run:
        made = translator(chosen(batch), way, batch_size=batch)
        return made.seconds, sum(line.tokens for line in made), made.model_calls, made.traces

    def source(batch: int) -> Int64:
        return translation.pad(translator.codec.split(chosen(batch)))

    return Workload(translator, "sentence", ways, decode, source,
                    decode(DecodeConfig(1), 1)[1] // 2)
