"""Prediction heads that are steps of one recurrent layer, for text: see `RecurrentHeads`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superres.config import ModelConfig
from superres.nn.attention import Attention, attend, merge_heads, split_heads


class RecurrentHeads(nn.Module):
    """One layer for all heads p2..pk: a head sees the token chosen before its own, and the source.

    p1 is the base model's own output, and its state that of the decoder. The state of every further head is that of the
    head before, plus what a feed-forward layer makes of it and of that head's token, plus what attention to the memory
    then adds. The tokens are the true ones in training, those just proposed in decoding.

    The recurrence is that of Cheng et al. (2024), "Recurrent Drafter for Fast Speculative Decoding in Large Language
    Models", section 3.1. Attention to the memory is new here: what a translation says next stands in its source.
    """

    first = 1
    conditioning: nn.Linear | None = None
    """Recurrent heads know none: see `superres.nn.heads.PredictionHeads`."""

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
        """Weights that a proposal is computed with: all."""
        return float(sum(weight.numel() for weight in self.parameters()))

    def forward(self, hidden: Tensor, tokens: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map decoder outputs to the states of the first n heads p2..p(n+1).

        Args:
            hidden: [B, P, D].
            tokens: embeddings of the tokens from p1's on, each of which the next head sees, [B, P, n, D].
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
