"""Time other decoders with a network of the same size: transformers' `generate`, and decoding without a cache."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from superres.config import DecodeConfig, ModelConfig
from superres.errors import ConfigError
from superres.nn.model import EncoderDecoder
from superres.pipeline.upscaler import Upscaler
from superres.system.machine import Timer

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel

SIZES: dict[str, dict[str, Any]] = {
    "S": {},
    "M": {"width": 256, "decoder_layers": 6, "filter_size": 1024, "attention_heads": 8},
}
"""Settings that differ from the measured checkpoint, which is S, by the name of the network's size."""

FORCED = 5
"""Minimum block of a network with random weights, about the block size that a trained network with 6 heads accepts."""

HEADS = 6
NEW_TOKENS = 512
UNCACHED_CALLS = 5

Row = dict[str, Any]


def random_upscaler(config: ModelConfig, size: str, engine: str) -> Upscaler:
    """Return an upscaler with random weights and `HEADS` heads, of the size named in `SIZES` relative to `config`."""
    torch.manual_seed(0)
    model = EncoderDecoder(dataclasses.replace(config, prediction_heads=HEADS, **SIZES[size]))
    return Upscaler(model, f"random {size}", engine=engine, device="cpu")


def gpt2(config: ModelConfig, layers: int | None = None) -> GPT2LMHeadModel:
    """Return transformers' GPT-2 with random weights and the layers, widths and vocabulary of our decoder.

    Raises:
        ConfigError: transformers is not installed.
    """
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError as error:
        raise ConfigError("peers need transformers; install it with: pip install 'superres[peers]'") from error
    torch.manual_seed(0)
    same = GPT2Config(
        vocab_size=config.vocabulary, n_positions=config.target_length, n_embd=config.width,
        n_layer=layers or config.decoder_layers, n_head=config.attention_heads, n_inner=config.filter_size,
        bos_token_id=0, eos_token_id=None, pad_token_id=0)
    return GPT2LMHeadModel(same).eval()


def generation_cost(config: ModelConfig, timer: Timer, assisted: bool) -> Row:
    """Time transformers' greedy generation with a cache: a whole target, or `NEW_TOKENS` tokens if assisted.

    The assistant is a GPT-2 with one layer. Both networks have random weights, so the time shows the overhead of
    assisted generation, but not the acceptance rate of a trained assistant.
    """
    model = gpt2(config).to(timer.device)
    extra = {"assistant_model": gpt2(config, 1).to(timer.device)} if assisted else {}
    count = NEW_TOKENS if assisted else config.target_length - 1
    start = torch.zeros(1, 1, dtype=torch.int64, device=timer.device)

    def generate(new: int) -> torch.Tensor:
        made: torch.Tensor = model.generate(
            start, attention_mask=torch.ones_like(start), max_new_tokens=new, do_sample=False, use_cache=True, **extra)
        return made

    with torch.inference_mode():
        generate(32)
        seconds = timer.once(lambda: generate(count))
    name = "transformers generate, assisted by one layer" if assisted else "transformers generate, greedy with cache"
    return {"way": name, "tokens": count, "seconds": seconds, "tokens_per_second": count / seconds}


def uncached_cost(upscaler: Upscaler, source: np.ndarray, iterations: int) -> Row:
    """Time decoding that computes the whole prefix in every model call, like the implementation of the paper.

    Args:
        upscaler: the network.
        source: uint8 [1, source, source, 3].
        iterations: model calls per image, of which `UNCACHED_CALLS` are timed.
    """
    scoring, timer = upscaler.scoring, Timer(upscaler.device, UNCACHED_CALLS, 1)
    tokens = upscaler.source_tokens(source)
    target = torch.zeros(1, scoring.length, dtype=torch.int64, device=upscaler.device)
    middle = torch.tensor([scoring.length // 2], device=upscaler.device)
    seconds = timer.median(lambda: scoring.uncached_scores(tokens, target, middle))
    return {"way": f"no cache, {iterations} model calls ({UNCACHED_CALLS} timed)", "tokens": scoring.length,
            "seconds": seconds * iterations, "tokens_per_second": scoring.length / (seconds * iterations)}


def our_cost(upscaler: Upscaler, source: np.ndarray, name: str, options: DecodeConfig, repeats: int) -> Row:
    """Time one variant of our decoding on one image."""
    runs = [upscaler(source, options) for _ in range(repeats + 1)][1:]
    seconds = statistics.median(run.seconds for run in runs)
    trace = runs[0].traces[0]
    return {"way": f"{upscaler.engine}: {name}", "tokens": trace.tokens, "seconds": seconds,
            "tokens_per_second": trace.tokens / seconds, "iterations": trace.iterations}


def compare_with_peers(
    upscalers: dict[str, Upscaler], source: np.ndarray, blockwise: DecodeConfig, repeats: int = 3,
    report: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """Time our engines, greedy and blockwise, and the peers, on one image.

    Args:
        upscalers: upscalers of the same network, by the name of their engine.
        source: uint8 [1, source, source, 3].
        blockwise: settings of blockwise decoding.
        repeats: number of timings of our variants; the peers, which take seconds to minutes, are timed once.
        report: called with the name of the next measurement.

    Returns:
        One row per variant with `tokens_per_second` and `over_generate`, the ratio to transformers' greedy generation.
    """
    first = next(iter(upscalers.values()))
    timer = Timer(first.device)
    rows = []
    for assisted in (False, True):
        report("transformers")
        rows.append(generation_cost(first.model_config, timer, assisted))
    for upscaler in upscalers.values():
        report(upscaler.engine)
        rows += [our_cost(upscaler, source, name, options, repeats)
                 for name, options in (("greedy", DecodeConfig(1)), ("blockwise", blockwise))]
    report("no cache")
    rows.append(uncached_cost(first, source, rows[-1]["iterations"] + 1))
    for row in rows:
        row["over_generate"] = row["tokens_per_second"] / rows[0]["tokens_per_second"]
    return rows
