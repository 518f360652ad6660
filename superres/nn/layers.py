"""Token embedding, feed-forward layers, and the layer of encoder and decoder."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superres.config import ModelConfig
from superres.nn.attention import (
    Attention,
    AttentionFunction,
    MaskedAttention,
    attend,
    causal_attention,
    fused_attend,
    local_attention,
)


class TokenEmbedding(nn.Module):
    """A table of V rows for each colour channel, stored as one table and scaled by sqrt(width)."""

    def __init__(self, vocabulary: int, channels: int, width: int) -> None:
        super().__init__()
        self.vocabulary, self.channels, self.scale = vocabulary, channels, math.sqrt(width)
        self.table = nn.Embedding(vocabulary * channels, width)
        nn.init.normal_(self.table.weight, std=width**-0.5)

    def forward(self, tokens: Tensor, position: Tensor) -> Tensor:
        """Embed `tokens` [..., T] at raster positions `position` (broadcastable to them) as [...,
        T, width]."""
        result: Tensor = (self.table(tokens + position % self.channels * self.vocabulary)
                          * self.scale)
        return result

    def read(self, tokens: Tensor, position: Tensor) -> Tensor:
        """Embed the tokens [..., T] read at decoder positions: position p reads token p - 1,
        position 0 reads zeros."""
        result: Tensor = self(tokens, position - 1) * (position > 0).unsqueeze(-1)
        return result


class TiedProjection(nn.Module):
    """Scores tokens by the rows of their embedding table, which stays the embedding's own
    weight."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self._table = [table]  # in a list, so that the weight is not registered twice
        self.bias = nn.Parameter(torch.zeros(table.num_embeddings))

    @property
    def weight(self) -> Tensor:
        """[V, D]."""
        return self._table[0].weight

    def forward(self, x: Tensor) -> Tensor:
        """Map states [..., D] to scores [..., V]."""
        return F.linear(x, self.weight, self.bias)


class Residual(nn.Module):
    """Residual and norm around a sub-layer: "pre" is x + f(norm(x)); "post" is norm(x + f(x)), as
    published ("dan")."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply `sublayer` ([B, T, D] to the same shape) to `x` with residual and norm."""
        result: Tensor = x + self.dropout(sublayer(self.norm(x) if self.pre else x))
        if not self.pre:
            result = self.norm(result)
        return result


class Layer(nn.Module):
    """Self-attention, cross-attention to the memory if `cross_attention`, and a feed-forward
    layer."""

    def __init__(self, config: ModelConfig, cross_attention: bool = False) -> None:
        super().__init__()
        width, heads = config.width, config.attention_heads
        self.masked: MaskedAttention = attend
        self.function: Callable[..., Tensor] = causal_attention
        if config.attention == "local_1d":
            self.function = partial(
                local_attention, block_length=config.attention_block_length,
                distance=config.key_distance)
        self.key_distance = config.key_distance
        self.attention = Attention(width, heads)
        self.attention_residual = Residual(config)
        self.cross_attention = Attention(width, heads) if cross_attention else None
        self.cross_residual = Residual(config) if cross_attention else None
        self.feed_forward = nn.Sequential(
            nn.Linear(width, config.filter_size), nn.ReLU(), nn.Linear(config.filter_size, width))
        self.feed_forward_residual = Residual(config)

    def fuse_attention(self) -> None:
        """Compute attention by torch's fused kernel."""
        self.masked = fused_attend

    def keys_and_values(self, memory: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the keys and values [B, H, S, size] of `memory` [B, S, D]; None without
        cross-attention."""
        return None if self.cross_attention is None else self.cross_attention.keys_and_values(
            memory)

    def attend(
        self, x: Tensor, function: AttentionFunction, source: tuple[Tensor, Tensor] | None,
        mask: Tensor | None = None, key_distance: int = 1,
    ) -> Tensor:
        """Map states [B, T, D] by the attention sub-layers, with self-attention computed by
        `function`.

        The states 0, `key_distance`, 2 `key_distance` ... have keys and values. `source` is from
        `keys_and_values`; `mask` [B, 1, 1, S] is added to the scores of cross-attention.
        """
        attention, cross = self.attention, self.cross_attention
        x = self.attention_residual(x, lambda y: attention(
            y, attention.keys_and_values(y[:, ::key_distance]), function))
        if cross is not None and self.cross_residual is not None and source is not None:
            x = self.cross_residual(x, lambda y: cross(y, source, partial(self.masked, mask=mask)))
        return x

    def transform(self, x: Tensor) -> Tensor:
        """Map states [B, T, D] by the feed-forward sub-layer."""
        result: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return result

    def forward(self, x: Tensor, memory: Tensor | None, mask: Tensor | None = None) -> Tensor:
        """Map states `x` [B, T, D] of whole targets given `memory` [B, S, D]; `mask` [B, 1, 1, S]
        hides its padding.

        Without memory, `x` [B, S, D] are whole sources: every position sees all that `mask` does
        not hide.
        """
        if memory is None:
            return self.transform(self.attend(x, partial(self.masked, mask=mask), None))
        own = partial(self.function, function=self.masked)
        return self.transform(self.attend(x, own, self.keys_and_values(memory), mask,
                                          self.key_distance))
