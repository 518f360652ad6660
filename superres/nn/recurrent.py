"""Prediction heads as steps of one recurrent layer, for text."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superres.config import ModelConfig
from superres.nn.attention import Attention, attend, merge_heads, split_heads


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
        attention = self.attention
        key, value = attention.keys_and_values(memory)
        state, states = hidden, []
        for read in self.read(tokens).unbind(2):
            state = state + self.contract(F.relu(read + self.expand(self.state_norm(state))))
            query = split_heads(attention.query(self.attention_norm(state)), attention.heads)
            state = state + attention.output(merge_heads(attend(query, key, value, mask)))
            states.append(self.norm(state))
        return torch.stack(states, dim=2)
