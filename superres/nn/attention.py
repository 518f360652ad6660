"""Multi-head attention and the functions that weigh values: over whole sequences here, over a cache
in `engines`.

Attention is written as separate products, since on a CPU the backward pass of torch's fused kernel
dominates a training step. Training on a GPU uses the fused kernel (`fused_attend`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

AttentionFunction: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Maps query [B, H, T, size], key [B, H, S, size] and value [B, H, S, size] to [B, H, T, size]."""
MaskedAttention: TypeAlias = Callable[..., Tensor]
"""Computes `attend`."""


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return softmax(query key^T / sqrt(size) + mask) value, for queries [..., Q, size] and keys
    [..., N, size].

    `mask` is broadcastable to [..., Q, N]: 0 where visible, -inf where hidden. Every query needs a
    visible key.
    """
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)  # [..., Q, N]
    if mask is not None:
        scores = scores + mask.to(scores.dtype)
    return torch.matmul(scores.softmax(-1), value)  # [..., Q, size]


def fused_attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute `attend` by torch's fused kernel, which does not store the scores.

    Queries may be those of local attention, [B, H, blocks, L, size], with a mask [blocks, L, N].
    """
    mask = None if mask is None else mask.to(query.dtype)
    if query.dim() == 4 or mask is None:
        return F.scaled_dot_product_attention(query, key, value, mask)
    together = mask.repeat(query.shape[1], 1, 1).unsqueeze(0)  # [1, H * blocks, L, N]
    found = F.scaled_dot_product_attention(query.flatten(1, 2), key.flatten(1, 2),
                                           value.flatten(1, 2), together)
    return found.reshape(query.shape)


def hidden_mask(visible: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Turn a boolean mask (True is visible) into one to add to scores."""
    return torch.zeros(visible.shape, dtype=dtype,
                       device=visible.device).masked_fill_(~visible, float("-inf"))


def local_visible(query: Tensor, key: Tensor, block_length: int) -> Tensor:
    """Return which keys a query sees in blocked local 1-D attention, from broadcastable absolute
    positions.

    A query sees the keys of its own attention block up to its own position, and all keys of the
    previous block. A negative key position is an empty slot and never visible.
    """
    return (key >= 0) & (key <= query) & (key >= (query // block_length - 1) * block_length)


def reach(query: Tensor, block_length: int) -> Tensor:
    """Return how many keys back queries at positions `query` see under `local_visible`."""
    return query - ((query // block_length - 1) * block_length).clamp(min=0)


def local_attention(
    query: Tensor, key: Tensor, value: Tensor, block_length: int, distance: int = 1,
    function: MaskedAttention = attend,
) -> Tensor:
    """Compute blocked local 1-D attention (Tensor2Tensor's "masked local attention 1d") over whole
    [B, H, T, size].

    Keys and values are those of the positions 0, d, 2 d ..., [B, H, ceil(T / d), size], where d is
    `distance`. They are numbered 0, 1, 2 ... for `local_visible`, and a query has the number of the
    latest key. `function` computes the attention of the blocks.
    """
    # positions that a block of keys covers
    length, covered = query.shape[2], block_length * distance
    query = F.pad(query, (0, 0, 0, -length % covered))
    blocks = query.shape[2] // covered
    key, value = (F.pad(x, (0, 0, 0, blocks * block_length - x.shape[2])) for x in (key, value))
    # [B, H, blocks, L, size], where L is `block_length`; keys and values then hold the previous
    # block and the own one.
    query, key, value = (x.view(*x.shape[:2], blocks, -1, x.shape[3]) for x in (query, key, value))
    key, value = (torch.cat([F.pad(x[:, :, :-1], (0, 0, 0, 0, 1, 0)), x], dim=3)
                  for x in (key, value))
    position = torch.arange(blocks * block_length, device=query.device).view(blocks, block_length)
    # [blocks, 2 * L]
    key_position = position[:, :1] + torch.arange(-block_length, block_length, device=query.device)
    position = position.repeat_interleave(distance, 1)  # [blocks, L * d]
    # [blocks, L * d, 2 * L]
    visible = local_visible(position[:, :, None], key_position[:, None, :], block_length)
    # [B, H, blocks, L * d, size]
    out = function(query, key, value, hidden_mask(visible, query.dtype))
    return out.flatten(2, 3)[:, :, :length]


def causal_attention(query: Tensor, key: Tensor, value: Tensor,
                     function: MaskedAttention = attend) -> Tensor:
    """Compute full causal attention over whole sequences [B, H, T, size] by `function`."""
    position = torch.arange(query.shape[2], device=query.device)
    return function(query, key, value, hidden_mask(position[:, None] >= position, query.dtype))


class Attention(nn.Module):
    """Multi-head attention with separate query and joint key-value projections (self- or
    cross-attention)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)

    def keys_and_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values [B, H, S, size] of `source` [B, S, D]."""
        key, value = self.key_value(source).chunk(2, dim=-1)
        return self._split(key), self._split(value)

    def _split(self, x: Tensor) -> Tensor:
        """Reshape [B, T, D] to [B, H, T, size]."""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor, keys_and_values: tuple[Tensor, Tensor],
                function: AttentionFunction) -> Tensor:
        """Map `x` [B, T, D] to [B, T, D] by attention to keys and values [B, H, S, size], computed
        by `function`."""
        attended = function(self._split(self.query(x)), *keys_and_values)  # [B, H, T, size]
        result: Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return result
