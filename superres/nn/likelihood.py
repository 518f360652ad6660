"""Likelihoods of targets under teacher forcing, by a network in evaluation mode."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from superres.nn.model import EncoderDecoder
from superres.system.threads import most_threads
from superres.system.torch_threads import TorchThreads

Measure = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
"""Returns properties [B, ...] of targets [B, T] from p1's logarithms of probabilities [B, T, V]."""


def bits_per_dim(model: EncoderDecoder, source: Tensor, target: Tensor,
                 batch_size: int = 8) -> Tensor:
    """Return p1's mean bits per token for each target, float64 [N], of tokens [N, S] and [N, T].

    `batch_size` is the number of images per batch on an accelerator. On a CPU, every thread takes
    one image at a time: its tensors fit the cache better than those of a batch, and no thread waits
    for one that another process delays.
    """
    (bits,) = _measured(model, source, target, batch_size,
                        lambda log_p, tokens: (_bits(log_p, tokens),))
    return bits


def bits_and_variance(
    model: EncoderDecoder, source: Tensor, target: Tensor, batch_size: int = 8,
) -> tuple[Tensor, Tensor]:
    """Return `bits_per_dim`, and the variance of p1's distribution of each token, whose value is a
    number, [N, T]."""
    bits, variance = _measured(model, source, target, batch_size,
                               lambda log_p, tokens: (_bits(log_p, tokens), _variance(log_p)))
    return bits, variance


def _bits(log_p: Tensor, target: Tensor) -> Tensor:
    own = log_p.gather(-1, target.unsqueeze(-1)).squeeze(-1)  # [B, T]
    return -own.double().mean(-1) / math.log(2)


def _variance(log_p: Tensor) -> Tensor:
    p = log_p.exp()
    value = torch.arange(p.shape[-1], device=p.device, dtype=p.dtype)
    mean = p @ value
    return (p @ value.square() - mean.square()).clamp(min=0)  # [B, T]


def _measured(
    model: EncoderDecoder, source: Tensor, target: Tensor, batch_size: int, measure: Measure,
) -> tuple[Tensor, ...]:
    """Return the properties of all targets, on the CPU; arguments as for `bits_per_dim`."""
    device = next(model.parameters()).device

    def score(rows: slice) -> tuple[Tensor, ...]:
        part = target[rows].to(device)
        with torch.inference_mode():  # a setting of the thread
            scores = model.scores(model(source[rows].to(device), part))
            return tuple(value.cpu() for value in measure(scores.log_softmax(-1), part))

    if device.type != "cpu":
        parts = [score(slice(first, first + batch_size))
                 for first in range(0, len(source), batch_size)]
    else:
        count = min(torch.get_num_threads(), most_threads())
        with TorchThreads(1), ThreadPoolExecutor(count) as threads:
            parts = list(threads.map(score,
                                     (slice(first, first + 1) for first in range(len(source)))))
    return tuple(map(torch.cat, zip(*parts, strict=True)))


def bits_per_token(
    model: EncoderDecoder, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]],
    padding: int, batch_size: int = 64,
) -> float:
    """Return p1's mean bits per token over targets of different lengths; the token `padding` fills
    up rows."""
    bits = tokens = 0.0
    with torch.inference_mode():
        for first in range(0, len(sources), batch_size):
            rows = slice(first, first + batch_size)
            source, target = (
                nn.utils.rnn.pad_sequence([torch.tensor(row) for row in part[rows]], True, padding)
                .to(model.signal.device) for part in (sources, targets))
            inside = target != padding
            # [B, T, V]
            log_p = model.scores(model(source, target, source == padding)).log_softmax(-1)
            bits -= float(
                log_p.gather(-1, target.unsqueeze(-1)).squeeze(-1)[inside].double().sum()
            ) / math.log(2)
            tokens += int(inside.sum())
    return bits / max(tokens, 1)
