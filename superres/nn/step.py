"""The cached decoding step in few operations: the same function as `EncoderDecoder.forward`, at W new positions a row.

A step of a small model is a chain of tiny operations whose dispatch costs as much as their arithmetic. So weights lie
[in, out] for `addmm` with the residual folded in, the norm's affine part and the softmax scale are folded into the
next weight, position signal and conditioning are summed into one table a source, and prediction heads run at one
position a row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superres.config import ModelConfig
from superres.nn.attention import Attention, split_heads
from superres.nn.cache import KeyValueCache
from superres.nn.heads import PredictionHeads
from superres.nn.image_aids import (
    RESIDUAL_SCALE,
    NumericNeighbourhood,
    extrapolate,
    ordinal_scores,
    ordinal_term,
    scores_around,
)
from superres.nn.layers import DecoderLayer, TiedProjection
from superres.nn.model import EncoderDecoder, Memory
from superres.scoring import Choose, Peers, StepOutput, Tree

if TYPE_CHECKING:
    from superres.nn.branches import TreeSession

PLACES = 16
"""Source places that cross-attention is rounded up to a multiple of."""

PARTS = ("input", "attention", "feed-forward", "scores")
"""Parts of a step whose time is told apart."""


@dataclass
class Affine:
    """x @ weight + bias, the weight stored [in, out]."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to [N, in]."""
        return torch.addmm(self.bias, x, self.weight)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return residual + x @ weight + bias."""
        return torch.addmm(residual, x, self.weight).add_(self.bias)


def fold(linears: Sequence[nn.Linear | TiedProjection], norm: nn.LayerNorm | None = None, scale: float = 1.0) -> Affine:
    """Join linear layers of one input side by side.

    Args:
        linears: layers in the order of their outputs.
        norm: a layer norm before them whose affine part is folded in.
        scale: factor on the first layer's output.
    """
    weights: list[Tensor] = [linear.weight.t() for linear in linears]
    biases: list[Tensor] = [linear.bias for linear in linears]
    weights[0], biases[0] = weights[0] * scale, biases[0] * scale
    weight, bias = torch.cat(weights, dim=1), torch.cat(biases)
    if norm is not None:
        weight, bias = norm.weight.unsqueeze(1) * weight, bias + norm.bias @ weight
    return Affine(weight.detach().contiguous(), bias.detach().contiguous())


class LayerStep:
    """One decoder layer of the step."""

    def __init__(self, layer: DecoderLayer, memory: Memory, batch: int, width: int) -> None:
        """Fold the weights of `layer` and project the keys and values of `memory` where it has cross-attention."""
        self.batch, self.width, self.heads = batch, width, layer.attention.heads
        self.pre = layer.attention_residual.pre
        self.norms = [layer.attention_residual.norm, layer.feed_forward_residual.norm]
        attention, feed_forward = layer.attention, layer.feed_forward
        attention_norm, feed_norm = self.norms if self.pre else (None, None)
        scale = (attention.query.in_features // self.heads) ** -0.5
        self.projection = fold([attention.query, attention.key_value], attention_norm, scale)
        self.output = fold([attention.output])
        self.expand = fold([feed_forward[0]], feed_norm)  # type: ignore[list-item]
        self.contract = fold([feed_forward[2]])  # type: ignore[list-item]
        self.cross: CrossStep | None = None
        if layer.cross_attention is not None and layer.cross_residual is not None:
            self.cross = CrossStep(layer.cross_attention, layer.cross_residual.norm, memory, self.pre, scale)

    def attend(self, x: Tensor, cache: KeyValueCache, layer: int, index: Tensor, mask: Tensor) -> Tensor:
        """Map states [B * W, D] by the attention sub-layers; `index` and `mask` come from `cache.locate`."""
        width = x.shape[1]
        projected = self.projection(self._before(x))
        key, value = cache.write(layer, projected[:, width:], index)
        query = self._split(projected[:, :width])
        weights = torch.baddbmm(mask, query, key.transpose(1, 2)).softmax(-1)
        x = self._after(self.output.add_to(x, self._merge(torch.bmm(weights, value))), 0)
        return x if self.cross is None else self.cross(x, self._split, self._merge)

    def feed_forward(self, x: Tensor) -> Tensor:
        """Map states [B * W, D] by the feed-forward sub-layer."""
        return self._after(self.contract.add_to(x, self.expand(self._before(x)).relu_()), 1)

    def _before(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[1:]) if self.pre else x

    def _after(self, x: Tensor, sublayer: int) -> Tensor:
        if self.pre:
            return x
        result: Tensor = self.norms[sublayer](x)
        return result

    def _split(self, x: Tensor) -> Tensor:
        """[B * W, D] to [B * H, W, D / H]."""
        shaped = x.reshape(self.batch, self.width, self.heads, -1).transpose(1, 2)
        return shaped.reshape(self.batch * self.heads, self.width, -1)

    def _merge(self, x: Tensor) -> Tensor:
        """[B * H, W, D / H] to [B * W, D]."""
        return x.view(self.batch, self.heads, self.width, -1).transpose(1, 2).reshape(self.batch * self.width, -1)


class CrossStep:
    """Cross-attention of one decoder layer, its keys and values projected once."""

    def __init__(self, attention: Attention, norm: nn.LayerNorm, memory: Memory, pre: bool, scale: float) -> None:
        """Fold weights and project `memory`."""
        self.norm, self.pre = norm, pre
        self.query = fold([attention.query], norm if pre else None, scale)
        self.output = fold([attention.output])
        key, value = attention.key_value(memory.states).chunk(2, dim=-1)
        # Hidden places round the source up: MKL's products of 5 to 11 columns have bits that depend on the row, and a
        # token must score the same in every column of a step.
        spare = -memory.states.shape[1] % PLACES
        key, value = (F.pad(part, (0, 0, 0, spare)) for part in (key, value))
        self.key = split_heads(key, attention.heads).flatten(0, 1).transpose(1, 2).contiguous()
        self.value = split_heads(value, attention.heads).flatten(0, 1).contiguous()
        mask = memory.states.new_zeros(1, 1, memory.states.shape[1])
        if memory.mask is not None:
            mask = memory.mask.to(memory.states.dtype).squeeze(1).repeat_interleave(attention.heads, dim=0)
        self.mask = F.pad(mask, (0, spare), value=float("-inf"))

    def __call__(self, x: Tensor, split: Callable[[Tensor], Tensor], merge: Callable[[Tensor], Tensor]) -> Tensor:
        """Map states [B * W, D]."""
        normed = F.layer_norm(x, x.shape[1:]) if self.pre else x
        weights = torch.baddbmm(self.mask, split(self.query(normed)), self.key).softmax(-1)
        x = self.output.add_to(x, merge(torch.bmm(weights, self.value)))
        result: Tensor = x if self.pre else self.norm(x)
        return result


@dataclass
class StepState:
    """What proposals are computed from: hidden [B, W, D], positions [B, W] and neighbours [B, W, N] or None.

    Where a row's one accepted column is picked, without the W.
    """

    hidden: Tensor
    position: Tensor
    neighbours: Tensor | None

    def at(self, index: Tensor) -> StepState:
        """Return what there is at one column of each row, `index` [B]."""
        rows = torch.arange(len(index), device=index.device)
        neighbours = None if self.neighbours is None else self.neighbours[rows, index]
        return StepState(self.hidden[rows, index], self.position[rows, index], neighbours)


class ProposingSession:
    """What the sessions of all engines share: the memory of their sources, and proposals from states of the decoder."""

    def __init__(self, model: EncoderDecoder, memory: Memory, width: int) -> None:
        """Prepare for the sources of `memory` and steps of `width`."""
        self.config: ModelConfig = model.config
        self.width, self.batch = width, len(memory.states)
        self.heads: PredictionHeads | None = model.heads
        self.shape = self.config.target_shape
        self.estimate, self.budget = memory.estimate, memory.budget
        self.project = fold([model.project])
        self.position_table = model.signal.unsqueeze(0)
        self.conditioned = memory.conditioning is not None
        if memory.conditioning is not None:
            self.position_table = self.position_table + memory.conditioning
        rows = torch.arange(self.batch, device=memory.states.device).unsqueeze(1)
        self.row_start = rows * (self.config.target_length if len(self.position_table) > 1 else 0)
        self.position_table = self.position_table.flatten(0, 1)
        self.head_table: Tensor | None = None
        if memory.conditioning is not None and self.heads is not None and self.heads.conditioning is not None:
            self.head_table = self.heads.conditioning(memory.conditioning).flatten(0, 1)

    def row_state(self) -> list[Tensor]:
        """Return views of all tensors that belong to single rows, each [B, ...], in an order that the class fixes."""
        tables = [self.position_table if self.conditioned else None, self.head_table]
        views = [table.view(self.batch, self.config.target_length, -1) for table in tables if table is not None]
        return views + [tensor for tensor in (self.estimate, self.budget) if tensor is not None]

    def adopt(self, rows: Tensor, other: ProposingSession, chosen: Tensor) -> None:
        """See `superres.scoring.Session.adopt`."""
        for mine, theirs in zip(self.row_state(), other.row_state(), strict=True):
            mine.index_copy_(0, rows, theirs.index_select(0, chosen))

    def propose(self, output: StepOutput, index: Tensor, first: Tensor, offsets: Tensor, choose: Choose) -> Tensor:
        """See `superres.scoring.Session.propose`."""
        if self.heads is None:
            raise ValueError("a model of one prediction head makes no proposals")
        here = output.state.at(index)
        states, target = self._head_states(self.heads, here, offsets)
        projected = self.project(states.flatten(0, 1)).view(*target.shape, -1)
        if not self.config.ordinal_output or self.estimate is None:
            return choose(projected, offsets)
        estimate = self.estimate.gather(1, target)
        mu, slope = ordinal_term(projected, estimate)
        weights = None
        if here.neighbours is not None:
            deviation, weights = self.heads.linear_part(states, here.neighbours, here.position, 1)
            mu = mu + deviation * RESIDUAL_SCALE
        if weights is None:
            return choose(scores_around(mu, slope, projected, self.config.vocabulary), offsets)
        known = torch.cat([self.estimate.gather(1, here.position.unsqueeze(1)), estimate], dim=1)
        tokens = [first.unsqueeze(1)]
        for head in range(len(offsets)):
            # A head chooses after those before it, whose tokens it reads.
            mu = torch.addcmul(mu, weights[:, :, head], tokens[head] - known[:, head : head + 1])
            own = slice(head, head + 1)
            scores = scores_around(mu[:, own], slope[:, own], projected[:, own], self.config.vocabulary)
            tokens.append(choose(scores, offsets[own]))
        return torch.cat(tokens[1:], dim=1)

    def _head_states(self, heads: PredictionHeads, here: StepState, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states [B, N, D] of heads p2..p(N+1) at one position a row, and their targets [B, N]."""
        count, skipped = len(offsets), 1 - heads.first
        own = F.pad(offsets, (skipped, 0))  # where p1 has a layer of its own, its offset 0 comes along
        target = (here.position.unsqueeze(1) + own).clamp(max=self.config.target_length - 1)
        vectors = self.head_table[self.row_start + target] if self.head_table is not None else None
        return heads(here.hidden, vectors, count + skipped)[:, skipped:], target[:, skipped:]


class StepSession(ProposingSession):
    """A batch being decoded: `superres.scoring.Session` for `EncoderDecoder`. It serves one decode, in one thread."""

    layer_step = LayerStep

    def __init__(self, model: EncoderDecoder, memory: Memory, width: int, cache: KeyValueCache | None = None) -> None:
        """Prepare for the sources of `memory` and steps of `width`, with a `cache` of its own if None is given."""
        super().__init__(model, memory, width)
        self.neighbourhood = model.neighbourhood
        self.layers = [self.layer_step(layer, memory, self.batch, width) for layer in model.decoder]  # type: ignore[arg-type]
        self.final_norm = model.decoder_norm
        self.cache = cache or KeyValueCache(self.config, self.batch, width, memory.states)
        # A zero row for the start of the sequence comes last.
        table = model.target_embedding.table.weight * model.target_embedding.scale
        self.token_table = torch.cat([table, table.new_zeros(1, table.shape[1])])
        self.columns = torch.arange(width, device=memory.states.device)
        if self.neighbourhood is not None:
            # Entry T is the "absent" neighbour and stays 0; T + 1 is where positions outside the image are written.
            self.deviation = memory.states.new_zeros(self.batch, self.config.target_length + 2)

    def row_state(self) -> list[Tensor]:
        """See `ProposingSession.row_state`; the caches of all layers come along."""
        views = [*super().row_state(), self.cache.by_row()]
        if self.neighbourhood is not None:
            views.append(self.deviation)
        for cross in (layer.cross for layer in self.layers):
            if cross is not None:
                rows = (cross.key, cross.value) if len(cross.mask) == 1 else (cross.key, cross.value, cross.mask)
                views += [tensor.view(self.batch, -1, *tensor.shape[1:]) for tensor in rows]
        return views

    def step(self, tokens: Tensor, position: Tensor) -> StepOutput:
        """See `superres.scoring.Session.step`."""
        return self._step(tokens, position, lambda part: None)

    def _step(self, tokens: Tensor, position: Tensor, lap: Callable[[str], None]) -> StepOutput:
        """Do a step and call `lap` after each of its parts."""
        length = self.config.target_length
        place = position.unsqueeze(1) + self.columns
        inside = place.clamp(0, length - 1)
        x, neighbours = self._input(tokens, place, inside)
        index, mask = self.cache.locate(place)
        lap("input")
        for number, layer in enumerate(self.layers):
            x = layer.attend(x, self.cache, number, index, mask)
            lap("attention")
            x = layer.feed_forward(x)
            lap("feed-forward")
        hidden = self.final_norm(x)
        state = StepState(hidden.view(self.batch, self.width, -1), inside, neighbours)
        output = StepOutput(self._verify(hidden, state), state)
        lap("scores")
        return output

    def part_seconds(self, tokens: Tensor, position: Tensor, repeats: int) -> dict[str, float]:
        """Return the seconds of a step's parts (PARTS), means over `repeats` steps; arguments as for `step`."""
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
            self._step(tokens, position, lap)
        return seconds

    def resize(self, width: int) -> None:
        """See `superres.scoring.Session.resize`."""
        self.width, self.columns = width, torch.arange(width, device=self.columns.device)
        for layer in self.layers:
            layer.width = width
        # What a wider step left in a slot past this one's end counts as older than anything that is looked at.
        self.cache.width = width

    def select(self, rows: Tensor, length: int) -> None:
        """See `superres.scoring.Session.select`."""
        self.cache.select(rows, length)
        if self.neighbourhood is not None:
            self.deviation = self.deviation[rows]

    def _deviation(self, tokens: Tensor, position: Tensor) -> Tensor:
        """Return how far `tokens` at `position`, both [B, N], are from their estimates, in units of RESIDUAL_SCALE."""
        if self.estimate is None:
            raise ValueError("deviations need an estimate")
        return (tokens - self.estimate.gather(1, position)) / RESIDUAL_SCALE

    def _input(self, tokens: Tensor, place: Tensor, inside: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the decoder's input [B * W, D] and the neighbours' deviations [B, W, N]."""
        vocabulary, channels = self.config.vocabulary, self.config.channels
        before = place - 1
        row = tokens + before % channels * vocabulary
        row = torch.where(before >= 0, row, len(self.token_table) - 1)
        x = self.token_table[row.flatten()] + self.position_table[(self.row_start + inside).flatten()]
        if self.neighbourhood is None or self.estimate is None or self.budget is None:
            return x, None
        deviation = self._deviation(tokens, before.clamp(0, self.config.target_length - 1))
        neighbours = self._neighbours(self.neighbourhood, deviation, before, inside, self.budget)
        return x + self.neighbourhood(neighbours, inside).flatten(0, 1), neighbours

    def _neighbours(
        self, neighbourhood: NumericNeighbourhood, deviation: Tensor, before: Tensor, inside: Tensor, budget: Tensor,
    ) -> Tensor:
        """Return the numbers [B, W, N] of targets `inside`, after tokens at `before` that are `deviation` off."""
        self.deviation.scatter_(1, self._entry(before), deviation)
        return neighbourhood.gather(self.deviation, inside, budget)

    def _entry(self, position: Tensor) -> Tensor:
        """Return where the deviations of tokens at `position` belong."""
        valid = (position >= 0) & (position < self.config.target_length)
        return torch.where(valid, position, self.config.target_length + 1)

    def _verify(self, hidden: Tensor, state: StepState) -> Tensor:
        """Return p1's scores [B, W, V]."""
        layer = self.heads if self.heads is not None and self.heads.first == 0 else None
        if layer is not None:
            vectors = None
            if self.head_table is not None:
                vectors = self.head_table[(self.row_start + state.position).flatten()]
            hidden = layer.one(hidden, 0, vectors)
        projected = self.project(hidden).view(*state.position.shape, -1)
        if not self.config.ordinal_output or self.estimate is None:
            return projected
        centre = self.estimate.gather(1, state.position)
        if self.neighbourhood is None or state.neighbours is None:
            return ordinal_scores(projected, centre, self.config.vocabulary)
        if layer is None:
            deviation = extrapolate(self.neighbourhood.direct, state.neighbours, state.position)
        else:
            states = hidden.view(*state.position.shape, 1, -1)
            deviation = layer.linear_part(states, state.neighbours, state.position, 0)[0].squeeze(-1)
        return ordinal_scores(projected, centre + deviation * RESIDUAL_SCALE, self.config.vocabulary)


class StepModel:
    """`EncoderDecoder` as a `superres.scoring.ScoringModel`."""

    engine = "plain"

    def __init__(self, model: EncoderDecoder, end_token: int | None = None) -> None:
        """Wrap `model`, which must be in evaluation mode."""
        self.model = model
        self.vocabulary = model.config.vocabulary
        self.length = model.config.target_length
        self.prediction_heads = model.config.prediction_heads
        self.end_token = end_token
        self.peers: Peers | None = None
        self.held_bytes = sum(weight.numel() * weight.element_size() for weight in model.parameters())

    def session(self, source: Tensor, width: int, padding: Tensor | None = None, copies: int = 1) -> StepSession:
        """See `superres.scoring.ScoringModel.session`."""
        return StepSession(self.model, self.model.encode(source, padding).repeat(copies), width)

    def tree_session(self, source: Tensor, tree: Tree, kept: int, padding: Tensor | None = None) -> TreeSession:
        """See `superres.scoring.ScoringModel.tree_session`."""
        from superres.nn.branches import TreeSession  # which builds on this module

        return TreeSession(self.model, self.model.encode(source, padding), tree, kept)

    def uncached_scores(self, source: Tensor, target: Tensor, position: Tensor) -> Tensor:
        """See `superres.scoring.ScoringModel.uncached_scores`."""
        with torch.inference_mode():
            decoded = self.model(source, target)
            place = position.unsqueeze(1).clamp(max=self.length - 1)
            heads = range(self.prediction_heads)
            return torch.cat([self.model.head_scores(decoded, place, head) for head in heads], dim=1)
