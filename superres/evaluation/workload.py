"""What a benchmark measures: inputs and variants of decoding, and the least work of a step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from superres.config import BeamConfig, DecodeConfig, ModelConfig
from superres.decoding.trace import RowTrace
from superres.errors import InvalidInputError
from superres.tasks import translation

if TYPE_CHECKING:
    from superres.nn.model import EncoderDecoder
    from superres.pipeline.pipeline import Pipeline
    from superres.pipeline.translator import Translator
    from superres.pipeline.upscaler import Upscaler

Variant = DecodeConfig | BeamConfig
Report = dict[str, Any]
Run = tuple[float, int, int, list[RowTrace]]
"""Result of decoding a batch: wall-clock seconds, generated tokens, model calls and, except for
beams, traces."""

BLOCK_SIZES = (1, 2, 4, 6, 8, 10, 16, 24)
"""Block sizes to measure, up to the number of prediction heads."""
FLOAT_BYTES = 4
SIZES = {"native": (2, 4), "native-int8": (1, 1), "triton-bf16": (2, 2)}
"""Bytes of a weight, and of a key's, a value's or an input's number, by engine; FLOAT_BYTES
otherwise."""


@dataclass(frozen=True)
class Workload:
    """Inputs and variants of decoding (by name, including "greedy") for a benchmark.

    `unit` is the name of one row of a batch, "image" or "sentence". `decode` decodes a batch of a
    given size with one variant, and `source` returns the source tokens [B, S] of such a batch.
    Steps are timed at the decoder position `position`, in the middle of a target.
    """

    pipeline: Pipeline
    unit: str
    variants: dict[str, Variant]
    decode: Callable[[Variant, int], Run]
    source: Callable[[int], Tensor]
    position: int


def block_sizes(heads: int) -> tuple[int, ...]:
    """Return the block sizes to measure for a network with `heads` prediction heads."""
    return tuple(k for k in BLOCK_SIZES if k <= heads)


def _variants(heads: int, criteria: dict[str, DecodeConfig]) -> dict[str, Variant]:
    """Return greedy decoding, and each criterion at every block size above 1 and at adaptive block
    sizes."""
    found: dict[str, Variant] = {"greedy": DecodeConfig(1)}
    sizes = block_sizes(heads)[1:]
    for name, options in criteria.items() if sizes else ():
        found |= {f"{name}, k = {k}": dataclasses.replace(options, block_size=k) for k in sizes}
        found[f"{name}, adaptive"] = dataclasses.replace(options, adaptive=True)
    return found


def image_workload(upscaler: Upscaler, sources: np.ndarray) -> Workload:
    """Return the workload of upscaling: greedy, exact blocks, and blocks within epsilon 2.

    `sources`, uint8 [N, source, source, 3], are repeated for batches of more than N images.
    """
    variants = _variants(upscaler.model_config.prediction_heads, {
        "exact": DecodeConfig(), "epsilon 2": DecodeConfig(accept="distance", epsilon=2)})

    def chosen(batch: int) -> np.ndarray:
        return sources[np.arange(batch) % len(sources)]

    def decode(variant: Variant, batch: int) -> Run:
        if isinstance(variant, BeamConfig):
            raise TypeError("beam search does not support images")
        made = upscaler(chosen(batch), variant)
        tokens, calls = (sum(trace.tokens for trace in made.traces),
                         max(trace.model_calls for trace in made.traces))
        return made.seconds, tokens, calls, made.traces

    return Workload(upscaler, "image", variants, decode,
                    lambda batch: upscaler.source_tokens(chosen(batch)),
                    upscaler.model_config.target_length // 2)


def text_workload(translator: Translator, lines: Sequence[str]) -> Workload:
    """Return the workload of translation: greedy, exact blocks, top-2 blocks and beam search.

    A batch takes the sentences of medium length from `lines`, and repeats sentences if there are
    too few.

    Raises:
        InvalidInputError: every line is empty or too long for the network.
    """
    variants = _variants(translator.model_config.prediction_heads, {
        "exact": DecodeConfig(), "top-2": DecodeConfig(accept="top-k", top_k=2)}) | {
            "beam 4": BeamConfig()}
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

    def decode(variant: Variant, batch: int) -> Run:
        made = translator(chosen(batch), variant, batch_size=batch)
        return made.seconds, sum(line.tokens for line in made), made.model_calls, made.traces

    def source(batch: int) -> Tensor:
        return torch.from_numpy(translation.pad(translator.codec.split(chosen(batch)))).to(
            translator.device)

    return Workload(translator, "sentence", variants, decode, source,
                    decode(DecodeConfig(1), 1)[1] // 2)


def step_weights(model: EncoderDecoder) -> int:
    """Return the number of weights that a step reads, without prediction heads and embeddings."""
    parts = model.decoder if model.neighbourhood is None else nn.ModuleList([model.decoder,
                                                                             model.neighbourhood])
    return sum(weight.numel() for weight in parts.parameters()) + model.project.weight.numel()


class StepWork(NamedTuple):
    """The minimum work of a step, without prediction heads and embeddings."""

    weights: int  # that a step reads
    cache: int  # numbers of keys and values that it reads per row
    weight_bytes: int
    number_bytes: int  # of a key's, a value's or an input's number


def step_work(pipeline: Pipeline, position: int) -> StepWork:
    """Return the minimum work of a step at a decoder position."""
    config, count = pipeline.model_config, step_weights(pipeline.model)
    return StepWork(count, config.decoder_layers * 2 * config.width * window(config, position),
                    *SIZES.get(pipeline.engine, (FLOAT_BYTES, FLOAT_BYTES)))


def window(config: ModelConfig, position: int) -> int:
    """Return the number of visible keys: all up to `position`, or from the previous attention block
    (section 6.2)."""
    if config.attention == "causal":
        return position + 1
    last = position // config.key_distance
    return min(last + 1, config.attention_block_length + last % config.attention_block_length + 1)
