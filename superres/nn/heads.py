"""The prediction heads after the decoder: one multi-output layer (Stern et al. 2018, Figure 3), or
a recurrent one."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superres.config import ModelConfig
from superres.config.tables import feature_count
from superres.nn.attention import Attention, attend
from superres.nn.image_priors import extrapolate, zeroed


class PredictionHeads(nn.Module):
    """The head layer: a hidden layer with residual and layer norm per prediction head; the
    projection is shared.

    The kinds of layer (`ModelConfig.head_layer`):

    - "dense" is the paper's layer: hidden size K * filter, fully connected to all K outputs.
    - "per-head" is block-diagonal: each head has its own hidden layer.
    - "sequential" is per-head; a head's linear weights on the neighbour features of p1's target
      depend on its state, and so do those of a linear term over the tokens from p1's target up to
      the head's own target, as deviations from their estimates. Training uses the true tokens,
      decoding the tokens just proposed. The proposals of a block are then consistent, and only this
      linear term is computed head by head.

    With identity p1, head 1 has no layer, so a frozen base model keeps its scores. With aligned
    conditioning, a head also reads the conditioning vector of its own target, which is known before
    decoding starts.
    """

    visible: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.first = 1 if config.identity_p1 else 0
        self.count = config.prediction_heads - self.first
        width, size = config.width, config.head_filter_size
        self.dense = config.head_layer == "dense"
        self.expand = nn.Linear(width, self.count * size)
        shape = (self.count * size, self.count * width) if self.dense else (self.count, size, width)
        self.contract = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.zeros(self.count, width))
        self.norm = nn.LayerNorm(width)
        self.conditioning = (zeroed(nn.Linear(width, width, bias=False))
                             if config.aligned_conditioning else None)
        features, earlier = feature_count(config), config.prediction_heads - 1
        self.direct = (nn.Parameter(torch.zeros(config.channels, self.count, features))
                       if config.numeric_neighbourhood else None)
        self.adapt: nn.Linear | None = None
        if config.head_layer == "sequential":
            self.adapt = zeroed(nn.Linear(width, features + earlier))
            visible = torch.arange(earlier) < torch.arange(
                self.first, self.count + self.first).unsqueeze(1)
            self.register_buffer("visible", visible, persistent=False)
        nn.init.normal_(self.contract, std=0.5 * self.contract.shape[-2] ** -0.5)

    @property
    def weights_per_head(self) -> float:
        """Mean number of weights that a proposal is computed with."""
        return sum(weight.numel() for weight in self.parameters()) / self.count

    @torch.no_grad()
    def take_heads(self, other: PredictionHeads) -> None:
        """Copy the first heads from a layer with another number of heads, of the same kind and
        sizes.

        They keep their scores, except in a dense layer with more heads, whose hidden units they
        shared. Further heads start as copies of the last one, except in a dense layer, where they
        keep their own weights.
        """
        for weight, given in zip(self.parameters(), other.parameters(), strict=True):
            shared = tuple(slice(min(sizes))
                           for sizes in zip(weight.shape, given.shape, strict=True))
            weight[shared] = given[shared]
        if other.count >= self.count:
            return
        if self.dense:  # the first heads read no hidden unit of the others
            size, width = other.contract.shape
            self.contract[size:, :width] = 0
            return
        size, count = self.contract.shape[1], other.count
        by_head = [self.expand.weight.view(self.count, size, -1),
                   self.expand.bias.view(self.count, size), self.contract, self.bias]
        for weights in [*by_head, *([] if self.direct is None else [self.direct.transpose(0, 1)])]:
            weights[count:] = weights[count - 1].clone()

    def forward(self, hidden: Tensor, head: int, count: int,
                vectors: Tensor | None = None) -> Tensor:
        """Map decoder outputs [N, D] to the states [N, count, D] of `count` heads from `head`
        (0-based) on.

        `vectors` [N, count, D] are `self.conditioning` of the vector of each head's target; None
        without conditioning.
        """
        width, size = hidden.shape[-1], self.expand.out_features // self.count
        first, end = head - self.first, head - self.first + count
        if self.dense:
            inner = F.relu(self.expand(hidden))  # [N, K * filter]
            states = (inner @ self.contract[:, first * width : end * width]).view(-1, count, width)
            states = states + self.bias[first:end]
        else:
            rows = slice(first * size, end * size)
            # [N, count * filter]
            inner = F.relu(F.linear(hidden, self.expand.weight[rows], self.expand.bias[rows]))
            grouped = inner.view(-1, count, size).transpose(0, 1)  # [count, N, filter]
            states = torch.baddbmm(
                self.bias[first:end].unsqueeze(1), grouped,
                self.contract[first:end]).transpose(0, 1)
        states = hidden.unsqueeze(1) + states
        result: Tensor = self.norm(states if vectors is None else states + vectors)
        return result

    def linear_part(
        self, states: Tensor, features: Tensor, position: Tensor, head: int
    ) -> tuple[Tensor, Tensor | None]:
        """Predict the deviations of the targets of n heads from `head` (0-based) on from their
        estimates, linearly.

        `states` are those of the n heads [..., n, D], `features` the neighbour features of p1's
        target [..., N], at `position` (broadcastable to [...]). Returns the contribution of the
        features [..., n], in units of RESIDUAL_SCALE; and, if the layer is sequential, the weights
        on the deviations of the K - 1 tokens from p1's target on [..., n, K - 1], 0 for tokens that
        a head does not see. Raises ValueError if the model has no numeric neighbourhood.
        """
        if self.direct is None:
            raise ValueError("a model without numeric_neighbourhood has no linear part")
        heads = slice(head - self.first, head - self.first + states.shape[-2])
        deviation = extrapolate(self.direct[:, heads], features, position)
        if self.adapt is None:
            return deviation, None
        weights = self.adapt(states).to(features.dtype)  # [..., n, N + K - 1]
        count = features.shape[-1]
        # An elementwise product and a sum, since autocast would run a matrix product in half
        # precision.
        deviation = deviation + (weights[..., :count] * features.unsqueeze(-2)).sum(-1)
        return deviation, weights[..., count:] * self.visible[heads]


class RecurrentHeads(nn.Module):
    """One layer shared by all heads p2..pk: a head reads the token before its own, and the source.

    p1 is the base model's own output, and the state of p1 is the decoder's output. The state of
    every further head is the sum of three terms: the state of the head before it; a feed-forward
    layer of that state and of that head's token; attention to the memory. Training uses the true
    tokens, decoding the tokens just proposed.

    The recurrence is that of Cheng et al. (2024), "Recurrent Drafter for Fast Speculative Decoding
    in Large Language Models", section 3.1. Attention to the memory is an addition for translation,
    whose next word depends on the source.
    """

    first = 1
    conditioning: nn.Linear | None = None  # `PredictionHeads` may have one

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, size, self.count = config.width, config.head_filter_size, config.prediction_heads - 1
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
        self, state: Tensor, token: Tensor, memory: tuple[Tensor, Tensor],
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return the state of the next head before its norm [B, P, D], from that of the last head
        and its token.

        `token` is the embedding [B, P, D]; `memory` are the encoder's keys and values, from
        `attention.keys_and_values`; `mask` is as `superres.nn.model.Memory.mask`.
        """
        state = (state
                 + self.contract(F.relu(self.read(token) + self.expand(self.state_norm(state)))))
        result: Tensor = state + self.attention(self.attention_norm(state), memory,
                                                partial(attend, mask=mask))
        return result

    def forward(self, hidden: Tensor, tokens: Tensor, memory: Tensor,
                mask: Tensor | None = None) -> Tensor:
        """Map decoder outputs [B, P, D] to the states [B, P, n, D] of the first n heads p2..p(n+1).

        `tokens` [B, P, n, D] are the embeddings of the tokens from p1's on, each read by the next
        head; `memory` [B, S, D] are the encoder states, and `mask` is as
        `superres.nn.model.Memory.mask`.
        """
        keys_and_values = self.attention.keys_and_values(memory)
        state, states = hidden, []
        for token in tokens.unbind(2):
            state = self.advance(state, token, keys_and_values, mask)
            states.append(self.norm(state))
        return torch.stack(states, dim=2)
