"""Scores of whole targets under teacher forcing."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from superres.nn.model import EncoderDecoder


def bits_per_dim(model: EncoderDecoder, source: Tensor, target: Tensor, batch_size: int = 8) -> Tensor:
    """Return the bits a token that p1 needs for each target.

    Args:
        model: the network in evaluation mode.
        source: tokens [N, S].
        target: tokens [N, T].
        batch_size: images at a time.

    Returns:
        float64 [N].
    """
    device = next(model.parameters()).device
    values = []
    for first in range(0, len(source), batch_size):
        part = target[first : first + batch_size].to(device)
        decoded = model(source[first : first + batch_size].to(device), part)
        log_p = model.scores(decoded).log_softmax(-1).gather(-1, part.unsqueeze(-1)).squeeze(-1)
        values.append(-log_p.double().mean(-1) / math.log(2))
    return torch.cat(values).cpu()
