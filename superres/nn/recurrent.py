"""Prediction heads as steps of one recurrent layer, for text."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superres.config import ModelConfig
from superres.nn.attention import Attention, attend


class RecurrentHeads(nn.Module):
    """One layer shared by all heads p2..pk: a head reads the token before its own, and the source.

    p1 is the base model's own output, and the state of p1 is the decoder's output. The state of every further head is
    the sum of three terms: the state of the head before it; a feed-forward layer of that state and of that head's
    token; attention to the memory. Training uses the true tokens, decoding the tokens just proposed.

    The recurrence is that of Cheng et al. (2024), "Recurrent Drafter for Fast Speculative Decoding in Large Language
    Models", section 3.1. Attention to the memory is an addition for translation, whose next word depends on the source.
    """

    first = 1
    conditioning: nn.Linear | None = None
    """Always None; `superres.nn.heads.PredictionHeads` may have one."""

    def __init__(self, config: ModelConfig) -> None:
        """Build the layer for `config.prediction_heads` heads."""
        super().__init__()
        width, size = config.width, config.head_filter_size
        self.count = config.prediction_heads - 1
        self.state_norm = nn.LayerNorm(width)
        self.read = nn.Linear(width, size, bias=False)
        self.expand = nn.Linear(width, size)
        self.contract = nn.Linear(size, width)
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, config.attention_heads)
        self.norm = nn.LayerNorm(width)

    @property
    def weights_per_head(self) -> float:
        """Number of weights that a proposal is computed with, which is all of them."""
        return float(sum(weight.numel() for weight in self.parameters()))

    def advance(
        self, state: Tensor, token: Tensor, memory: tuple[Tensor, Tensor], mask: Tensor | None = None,
    ) -> Tensor:
        """Return the state of the next head before its norm [B, P, D].

        Args:
            state: of the last head, before its norm [B, P, D].
            token: embedding of the last head's token [B, P, D].
            memory: keys and values of the encoder states [B, H, S, D / H], from `attention.keys_and_values`.
            mask: as `superres.nn.model.Memory.mask`.
        """
        state = state + self.contract(F.relu(self.read(token) + self.expand(self.state_norm(state))))
        result: Tensor = state + self.attention(self.attention_norm(state), memory, partial(attend, mask=mask))
        return result

    def forward(self, hidden: Tensor, tokens: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map decoder outputs to the states of the first n heads p2..p(n+1).

        Args:
            hidden: [B, P, D].
            tokens: embeddings of the tokens from p1's on, each read by the next head [B, P, n, D].
            memory: encoder states [B, S, D].
            mask: as `superres.nn.model.Memory.mask`.

        Returns:
            [B, P, n, D].
        """
        keys_and_values = self.attention.keys_and_values(memory)
        state, states = hidden, []
        for token in tokens.unbind(2):
            state = self.advance(state, token, keys_and_values, mask)
            states.append(self.norm(state))
        return torch.stack(states, dim=2)
