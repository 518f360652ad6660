"""The cached decoding step in torch: the function of `EncoderDecoder.forward` at W new positions per row.

A step of a small model is a chain of tiny operations, whose dispatch costs as much as their arithmetic. The step
therefore uses few operations:

- Weights are stored [in, out], so that `addmm` also adds the residual.
- A norm's affine part and the softmax scale are fused into the next weight.
- Values that depend on the position alone come from tables; position signal and conditioning are one table per source.
- Prediction heads run at one position per row.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from superres.interfaces import StepOutput
from superres.nn.attention import Attention
from superres.nn.cache import KeyValueCache
from superres.nn.engines.fused_weights import FusedLayer, FusedNeighbourhood, FusedWeights
from superres.nn.engines.proposing import ProposingSession, StepState
from superres.nn.heads import PredictionHeads
from superres.nn.image_priors import RESIDUAL_SCALE
from superres.nn.model import Memory

PARTS = ("input", "attention", "feed-forward", "scores")
"""Parts of a step that are timed separately."""


class LayerStep:
    """One decoder layer of the step."""

    def __init__(self, fused: FusedLayer, memory: Memory, batch: int, width: int, fused_attention: bool) -> None:
        """Prepare for `batch` rows and steps of `width`; project `memory` if the layer has cross-attention.

        With `fused_attention`, torch's fused kernel, which pays on a GPU, replaces three operations.
        """
        self.fused, self.batch, self.width, self.fused_attention = fused, batch, width, fused_attention
        self.cross: CrossStep | None = None
        if fused.cross_attention is not None:
            self.cross = CrossStep(fused, fused.cross_attention, memory, self)

    def attend(self, x: Tensor, cache: KeyValueCache, layer: int, index: Tensor, mask: Tensor) -> Tensor:
        """Map states [B * W, D] by the attention sub-layers; `index` is from `cache.locate`, `mask` from `shaped`."""
        width = x.shape[1]
        projected = self.fused.projection(self._before(x))
        key, value = cache.write(layer, projected[:, width:], index)
        attended = self.attention(projected[:, :width], key, value, mask)
        x = self._after(self.fused.output.add_to(x, attended), 0)
        return x if self.cross is None else self.cross(x)

    def shaped(self, mask: Tensor) -> Tensor:
        """Return a mask [B or 1, W or 1, R] in the shape that `attention` takes."""
        if self.fused_attention:
            return mask.unsqueeze(1)
        return mask.repeat_interleave(self.fused.heads, dim=0) if len(mask) > 1 else mask

    def feed_forward(self, x: Tensor) -> Tensor:
        """Map states [B * W, D] by the feed-forward sub-layer."""
        return self._after(self.fused.contract.add_to(x, self.fused.expand(self._before(x)).relu_()), 1)

    def _before(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[1:]) if self.fused.pre else x

    def _after(self, x: Tensor, sublayer: int) -> Tensor:
        if self.fused.pre:
            return x
        result: Tensor = self.fused.norms[sublayer](x)
        return result

    def attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Return the attention output [B * W, D].

        Args:
            query: [B * W, D], scaled.
            key: [B * H, D / H, R].
            value: [B * H, R, D / H].
            mask: from `shaped`, added to the scores.
        """
        if self.fused_attention:
            batch, width, heads = self.batch, self.width, self.fused.heads
            query = query.view(batch, width, heads, -1).transpose(1, 2)
            keys, values = (part.view(batch, heads, *part.shape[1:]) for part in (key, value))
            out = F.scaled_dot_product_attention(query, keys.transpose(2, 3), values, mask, scale=1.0)
            return out.transpose(1, 2).reshape(batch * width, -1)
        weights = torch.baddbmm(mask, self.split(query), key).softmax(-1)
        return self.merge(torch.bmm(weights, value))

    def split(self, x: Tensor) -> Tensor:
        """Reshape [B * W, D] to [B * H, W, D / H]."""
        batch, width, heads = self.batch, self.width, self.fused.heads
        if width == 1:
            return x.reshape(batch * heads, 1, -1)
        return x.reshape(batch, width, heads, -1).transpose(1, 2).reshape(batch * heads, width, -1)

    def merge(self, x: Tensor) -> Tensor:
        """Reshape [B * H, W, D / H] to [B * W, D]."""
        batch, width = self.batch, self.width
        if width == 1:
            return x.view(batch, -1)
        return x.view(batch, self.fused.heads, width, -1).transpose(1, 2).reshape(batch * width, -1)


class CrossStep:
    """Cross-attention of one decoder layer, whose keys and values are projected once per source."""

    def __init__(self, fused: FusedLayer, attention: Attention, memory: Memory, layer: LayerStep) -> None:
        """Project the keys and values of `memory`; attention is computed by `layer`."""
        self.fused, self.layer = fused, layer
        dtype = fused.cross_query.weight.dtype
        key, value = attention.keys_and_values(memory.states)
        self.key = key.flatten(0, 1).transpose(1, 2).to(dtype).contiguous()
        self.value = value.flatten(0, 1).to(dtype).contiguous()
        mask = memory.hidden(dtype)
        # The same form for any number of rows, since rows may be copied from another session.
        self.mask = mask.unsqueeze(1) if layer.fused_attention else mask.repeat_interleave(fused.heads, dim=0)

    def __call__(self, x: Tensor) -> Tensor:
        """Map states [B * W, D]."""
        normed = F.layer_norm(x, x.shape[1:]) if self.fused.pre else x
        attended = self.layer.attention(self.fused.cross_query(normed), self.key, self.value, self.mask)
        x = self.fused.cross_output.add_to(x, attended)
        result: Tensor = x if self.fused.pre or self.fused.cross_norm is None else self.fused.cross_norm(x)
        return result


class StepSession(ProposingSession):
    """A batch being decoded: `superres.interfaces.Session` for `EncoderDecoder`. For one decode at a time."""

    layer_step = LayerStep

    def __init__(self, fused: FusedWeights, memory: Memory, width: int, fused_attention: bool = False) -> None:
        """Allocate the cache for the sources of `memory` and steps of `width`; `fused_attention` as in `LayerStep`."""
        super().__init__(fused, memory, width)
        self.layers = [self.layer_step(layer, memory, self.batch, width, fused_attention) for layer in fused.layers]
        self.final_norm = fused.model.decoder_norm
        self.cache = self._make_cache(memory.states.to(fused.dtype), fused_attention)
        self.widest = torch.arange(width, device=memory.states.device)
        self.columns = self.widest
        self.neighbourhood = fused.neighbourhood
        if self.neighbourhood is not None and memory.estimate is not None and memory.residual_sum is not None:
            self._allocate_features(self.neighbourhood, memory.estimate, memory.residual_sum)

    def _make_cache(self, like: Tensor, fused_attention: bool) -> KeyValueCache:
        """Allocate a cache with dtype and device of `like`."""
        # The fused kernel requires masks whose rows are aligned.
        return KeyValueCache(self.config, self.batch, self.width, like, 16 if fused_attention else 1)

    def _allocate_features(self, near: FusedNeighbourhood, estimate: Tensor, residual_sum: Tensor) -> None:
        """Allocate the buffer that the neighbour features are gathered from: see `FusedNeighbourhood`."""
        self.position_table = self.position_table + near.second.bias
        # Minus the estimate of the token read at each decoder position, in units of RESIDUAL_SCALE.
        self.expected = F.pad(estimate / -RESIDUAL_SCALE, (1, self.width))  # [B, 1 + T + W]
        self.deviation = F.pad(-residual_sum, (1, 1 + self.config.target_length + self.width))
        self.read = self.deviation[:, 1 + residual_sum.shape[1] :]  # deviations by the decoder position of the token

    def row_state(self) -> list[Tensor]:
        """See `ProposingSession.row_state`; adds the caches of all layers."""
        views = [*super().row_state(), self.cache.by_row()]
        if self.neighbourhood is not None:
            views += [self.expected, self.deviation]
        for cross in (layer.cross for layer in self.layers):
            if cross is not None:
                rows = (cross.key, cross.value, cross.mask)
                views += [tensor.view(self.batch, -1, *tensor.shape[1:]) for tensor in rows]
        return views

    def step(self, tokens: Tensor, position: Tensor) -> StepOutput:
        """See `superres.interfaces.Session.step`."""
        scores, hidden, inside, neighbours = self.compute(tokens, position)
        return StepOutput(scores, StepState(hidden, inside, neighbours))

    def compute(
        self, tokens: Tensor, position: Tensor, lap: Callable[[str], None] = lambda part: None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Do a step and call `lap` after each of its parts.

        Args:
            tokens: [B, W].
            position: decoder position of the first column [B].
            lap: takes the name of the part that has ended.

        Returns:
            Scores [B, W, V], and the fields of a `StepState`.
        """
        place = position.unsqueeze(1) + self.columns  # [B, W]
        inside = place.clamp(0, self.config.target_length - 1)  # [B, W]
        offset, reach, channel = self.fused.position_attributes.index_select(0, inside.flatten()).unbind(1)
        x, neighbours = self._input(tokens, place, inside, offset, channel)
        index, mask = self.cache.locate(place, reach.view(place.shape))
        mask = self.layers[0].shaped(mask)
        lap("input")
        for number, layer in enumerate(self.layers):
            x = layer.attend(x, self.cache, number, index, mask)
            lap("attention")
            x = layer.feed_forward(x)
            lap("feed-forward")
        hidden = self.final_norm(x)
        if neighbours is not None:
            neighbours = neighbours.view(*place.shape, -1)
        scores = self._verify(hidden, inside, neighbours, channel)
        lap("scores")
        return scores, hidden.view(*place.shape, -1), inside, neighbours

    def part_seconds(self, tokens: Tensor, position: Tensor, repeats: int) -> dict[str, float]:
        """Return the mean seconds of each part of a step (PARTS) over `repeats` steps; arguments as for `step`."""
        seconds = dict.fromkeys(PARTS, 0.0)
        last = time.perf_counter()

        def lap(part: str) -> None:
            nonlocal last
            if tokens.is_cuda:
                torch.cuda.synchronize()
            now = time.perf_counter()
            seconds[part] += (now - last) / repeats
            last = now

        for _ in range(repeats):
            self.compute(tokens, position, lap)
        return seconds

    def resize(self, width: int) -> None:
        """See `superres.interfaces.Session.resize`."""
        self.width, self.columns = width, self.widest[:width]
        for layer in self.layers:
            layer.width = width
        # Slots past the end of a narrower step hold values of wider steps, which lie beyond the reach of any query.
        self.cache.width = width

    def select(self, rows: Tensor, length: int) -> None:
        """See `superres.interfaces.Session.select`."""
        self.cache.select(rows, length)
        if self.neighbourhood is not None:
            self.deviation.copy_(self.deviation[rows])

    def _input(
        self, tokens: Tensor, place: Tensor, inside: Tensor, offset: Tensor, channel: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the decoder's input [B * W, D] and the neighbour features [B * W, N] or None."""
        table = self.fused.token_table
        row = torch.add(tokens.flatten(), offset).clamp_(max=len(table) - 1)
        x = table.index_select(0, row).add_(self.look_up(self.position_table, inside))
        near = self.neighbourhood
        if near is None:
            return x, None
        features = self._features(near, tokens, place, inside)
        inner = torch.addmm(near.channel_bias.index_select(0, channel), features, near.first).relu_()
        return x.addmm_(inner, near.second.weight), features

    def _features(self, near: FusedNeighbourhood, tokens: Tensor, place: Tensor, inside: Tensor) -> Tensor:
        """Store the deviations of `tokens` read at `place`; return the neighbour features [B * W, N] of `inside`."""
        self.read.scatter_(1, place, self._deviation(tokens, place))
        return near.features(self.deviation, inside)

    def _deviation(self, tokens: Tensor, place: Tensor) -> Tensor:
        """Return token minus estimate [B, N] for `tokens` read at `place`, in units of RESIDUAL_SCALE."""
        return torch.add(self.expected.gather(1, place), tokens, alpha=1 / RESIDUAL_SCALE)

    def _verify(self, hidden: Tensor, inside: Tensor, neighbours: Tensor | None, channel: Tensor) -> Tensor:
        """Return p1's scores [B, W, V] from hidden states [B * W, D]."""
        layer = self.heads if isinstance(self.heads, PredictionHeads) and self.heads.first == 0 else None
        if layer is not None:
            vectors = None if self.head_table is None else self.look_up(self.head_table, inside)
            hidden = layer.one(hidden, 0, vectors)
        projected = self.fused.project(hidden).view(*inside.shape, -1)
        if not self.config.ordinal_output or self.estimate is None:
            return projected
        mu = self.estimate.gather(1, inside).add_(projected[..., -2])
        if self.neighbourhood is not None and neighbours is not None:
            if layer is None:
                deviation = torch.mm(neighbours.flatten(0, 1), self.neighbourhood.direct)
                mu = mu + deviation.gather(1, channel.unsqueeze(1)).view(mu.shape)
            else:
                states = hidden.view(*inside.shape, 1, -1)
                deviation = layer.linear_part(states, neighbours, inside, 0)[0].squeeze(-1)
                mu = torch.add(mu, deviation, alpha=RESIDUAL_SCALE)
        return self.scores_around(mu, projected)
