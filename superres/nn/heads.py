"""The multi-output layer after the decoder that makes the prediction heads (paper, Figure 3)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superres.config import ModelConfig
from superres.nn.image_aids import number_count


class PredictionHeads(nn.Module):
    """One hidden layer with residual and layer norm for each prediction head after the decoder; projections are shared.

    "per-head" is block-diagonal: each head has a hidden layer of its own. "dense" is the paper's: hidden size k *
    filter, fully connected to all k outputs. With identity p1, head 1 has no layer, so a frozen base keeps its scores.
    With aligned conditioning, a head also sees the vector of its own target: it is known before decoding starts.

    "sequential" is per-head, and a head also sees the tokens from p1's target up to its own, as deviations from their
    estimates: the true ones in training, those just proposed in decoding. So the proposals of a block fit together.
    """

    visible: Tensor

    def __init__(self, config: ModelConfig) -> None:
        """Build the layer for `config.prediction_heads` heads."""
        super().__init__()
        self.first = 1 if config.identity_p1 else 0
        self.count = config.prediction_heads - self.first
        width, size = config.width, config.head_filter_size
        self.dense = config.head_layer == "dense"
        self.expand = nn.Linear(width, self.count * size)
        if self.dense:
            self.contract = nn.Parameter(torch.empty(self.count * size, self.count * width))
        else:
            self.contract = nn.Parameter(torch.empty(self.count, size, width))
        self.bias = nn.Parameter(torch.zeros(self.count, width))
        self.norm = nn.LayerNorm(width)
        self.conditioning: nn.Linear | None = None
        if config.aligned_conditioning:
            self.conditioning = nn.Linear(width, width, bias=False)
            nn.init.zeros_(self.conditioning.weight)
        self.direct: nn.Parameter | None = None
        earlier = config.prediction_heads - 1 if config.head_layer == "sequential" else 0
        if config.numeric_neighbourhood:
            self.direct = nn.Parameter(torch.zeros(config.channels, self.count, number_count(config) + earlier))
        self.chain: nn.Parameter | None = None
        if earlier:
            self.chain = nn.Parameter(torch.zeros(self.count, earlier, size))
            visible = torch.arange(earlier) < torch.arange(self.first, self.count + self.first).unsqueeze(1)
            self.register_buffer("visible", visible, persistent=False)
        nn.init.normal_(self.contract, std=0.5 * self.contract.shape[-2] ** -0.5)

    def forward(
        self, hidden: Tensor, vectors: Tensor | None = None, count: int | None = None, earlier: Tensor | None = None
    ) -> Tensor:
        """Map decoder outputs to the states of the layer's heads.

        Args:
            hidden: [N, D].
            vectors: conditioning of each head's target after `self.conditioning`, [N, count, D]; None without it.
            count: only the layer's first `count` heads; all if None.
            earlier: deviations of the tokens from p1's target on, [N, K - 1], for all heads; None unless sequential.

        Returns:
            [N, count, D]; the first is head `first + 1` (1-based).
        """
        count = self.count if count is None else count
        if self.dense:
            states = (F.relu(self.expand(hidden)) @ self.contract).view(len(hidden), self.count, -1) + self.bias
            return self._finish(hidden, states[:, :count], vectors)
        size = self.contract.shape[1]
        inner = F.linear(hidden, self.expand.weight[: count * size], self.expand.bias[: count * size])
        if self.chain is not None and earlier is not None:
            seen = self.chain * self.visible.unsqueeze(-1)
            inner = inner + earlier @ seen.transpose(0, 1).flatten(1)
        grouped = F.relu(inner).view(len(hidden), count, size).transpose(0, 1)
        states = torch.baddbmm(self.bias[:count].unsqueeze(1), grouped, self.contract[:count]).transpose(0, 1)
        return self._finish(hidden, states, vectors)

    def _finish(self, hidden: Tensor, states: Tensor, vectors: Tensor | None) -> Tensor:
        """Add the residual [N, D] and the conditioning to states [N, heads, D] and normalise."""
        states = hidden.unsqueeze(1) + states
        result: Tensor = self.norm(states if vectors is None else states + vectors)
        return result

    def one(
        self, hidden: Tensor, head: int, vectors: Tensor | None = None, earlier: Tensor | None = None
    ) -> Tensor:
        """Map decoder outputs [N, D] to the state of one head (0-based, at least `first`), [N, D].

        `vectors` [N, D] is the conditioning of the head's target after `self.conditioning`; `earlier` [N, head] are the
        deviations of the tokens before that target, None unless sequential.
        """
        index = head - self.first
        vectors = None if vectors is None else vectors.unsqueeze(1)
        if self.dense:
            inner = F.relu(self.expand(hidden)) @ self.contract
            states = inner.view(len(hidden), self.count, -1)[:, index : index + 1] + self.bias[index]
            return self._finish(hidden, states, vectors)[:, 0]
        size = self.contract.shape[1]
        rows = slice(index * size, (index + 1) * size)
        inner = F.linear(hidden, self.expand.weight[rows], self.expand.bias[rows])
        if self.chain is not None and earlier is not None:
            inner = inner + earlier @ self.chain[index, :head]
        states = torch.addmm(self.bias[index], F.relu(inner), self.contract[index]).unsqueeze(1)
        return self._finish(hidden, states, vectors)[:, 0]

    def linear_weights(self) -> Tensor | None:
        """Return the weights of all heads on the numbers around p1's target, [channels, count, N (+ K - 1)], or None.

        The last K - 1 are those of the earlier tokens, 0 where a head may not see them.
        """
        if self.direct is None or self.chain is None:
            return self.direct
        numbers = self.direct.shape[-1] - self.visible.shape[-1]
        return self.direct * F.pad(self.visible, (numbers, 0), value=True)
