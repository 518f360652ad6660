"""Likelihoods of targets under teacher forcing, by a network in evaluation mode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from superres.nn.model import EncoderDecoder
from superres.system.machine import TorchThreads, usable_cores


def bits_per_dim(model: EncoderDecoder, source: Tensor, target: Tensor, batch_size: int = 8) -> Tensor:
    """Return p1's mean bits per token for each target, float64 [N], of tokens [N, S] and [N, T].

    `batch_size` is the number of images per batch on an accelerator. On a CPU, every thread takes one image at a time:
    its tensors fit the cache better than those of a batch, and no thread waits for one that another process delays.
    """
    device = next(model.parameters()).device

    def score(rows: slice) -> Tensor:
        part = target[rows].to(device)
        with torch.inference_mode():  # a setting of the thread
            scores = model.scores(model(source[rows].to(device), part))
            log_p = scores.log_softmax(-1).gather(-1, part.unsqueeze(-1)).squeeze(-1)  # [B, T]
            return (-log_p.double().mean(-1) / math.log(2)).cpu()

    if device.type != "cpu":
        return torch.cat([score(slice(first, first + batch_size)) for first in range(0, len(source), batch_size)])
    count = min(TorchThreads.limit(), usable_cores())
    with TorchThreads(1), ThreadPoolExecutor(count) as threads:
        return torch.cat(list(threads.map(score, (slice(first, first + 1) for first in range(len(source))))))


def bits_per_token(
    model: EncoderDecoder, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], padding: int,
    batch_size: int = 64,
) -> float:
    """Return p1's mean bits per token over targets of different lengths; the token `padding` fills up rows."""
    bits = tokens = 0.0
    with torch.inference_mode():
        for first in range(0, len(sources), batch_size):
            rows = slice(first, first + batch_size)
            source, target = (
                nn.utils.rnn.pad_sequence([torch.tensor(row) for row in part[rows]], True, padding)
                .to(model.signal.device) for part in (sources, targets))
            inside = target != padding
            log_p = model.scores(model(source, target, source == padding)).log_softmax(-1)  # [B, T, V]
            bits -= float(log_p.gather(-1, target.unsqueeze(-1)).squeeze(-1)[inside].double().sum()) / math.log(2)
            tokens += int(inside.sum())
    return bits / max(tokens, 1)
