"""The base of all sessions: the memory of the sources, and proposals from decoder states."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from superres.config import ModelConfig
from superres.interfaces import Choose, StepOutput
from superres.nn.engines.fused_weights import FusedRecurrence, FusedWeights
from superres.nn.model import Memory


@dataclass
class StepState:
    """The state that proposals are computed from; `at` returns one without the axis W.

    Attributes:
        hidden: decoder outputs [B, W, D].
        position: target positions [B, W].
        neighbours: neighbour features [B, W, N], or None.
    """

    hidden: Tensor
    position: Tensor
    neighbours: Tensor | None

    def at(self, index: Tensor) -> StepState:
        """Return the state at one column of each row, `index` [B]."""
        rows, width = self.position.shape
        place = index
        if rows > 1:
            place = torch.add(index, torch.arange(rows, device=index.device), alpha=width)
        neighbours = None if self.neighbours is None else self.neighbours.flatten(0, 1).index_select(0, place)
        hidden = self.hidden.flatten(0, 1).index_select(0, place)
        return StepState(hidden, self.position.flatten().index_select(0, place), neighbours)


class Recurrence:
    """The layer of recurrent heads, with the keys and values of the memory projected once per source."""

    def __init__(self, fused: FusedRecurrence, memory: Memory) -> None:
        """Project the keys and values of `memory`."""
        self.fused, self.batch = fused, len(memory.states)
        key, value = fused.attention.keys_and_values(memory.states)
        self.key = key.flatten(0, 1).transpose(1, 2).contiguous()
        self.value = value.flatten(0, 1).contiguous()
        self.mask = memory.hidden(key.dtype).repeat_interleave(fused.attention.heads, dim=0)

    def row_state(self) -> list[Tensor]:
        """See `ProposingSession.row_state`."""
        return [tensor.view(self.batch, -1, *tensor.shape[1:]) for tensor in (self.key, self.value, self.mask)]

    def advance(self, state: Tensor, token: Tensor) -> Tensor:
        """Return the state of the next head [B, D].

        Args:
            state: of the last head [B, D].
            token: embedding of the last head's token [B, D].
        """
        fused = self.fused
        read = torch.cat([F.layer_norm(state, state.shape[1:]), token], dim=1)
        state = fused.contract.add_to(state, fused.expand(read).relu_())
        query = fused.query(F.layer_norm(state, state.shape[1:])).view(len(self.key), 1, -1)
        weights = torch.baddbmm(self.mask, query, self.key).softmax(-1)
        return fused.output.add_to(state, torch.bmm(weights, self.value).view(state.shape))


class ProposingSession:
    """The base of all sessions."""

    def __init__(self, fused: FusedWeights, memory: Memory, width: int) -> None:
        """Prepare for the sources of `memory` and steps of `width`."""
        model = fused.model
        self.fused = fused
        self.config: ModelConfig = model.config
        self.width, self.batch = width, len(memory.states)
        self.heads = model.heads
        self.shape = self.config.target_shape
        self.estimate, self.residual_sum = memory.estimate, memory.residual_sum
        self.position_table = model.signal.unsqueeze(0)
        self.conditioned = memory.conditioning is not None
        if memory.conditioning is not None:
            self.position_table = self.position_table + memory.conditioning
        rows = torch.arange(self.batch, device=memory.states.device).unsqueeze(1)
        # Start of each row's own position table; None if all rows share one table.
        self.row_start = rows * self.config.target_length if self.conditioned and self.batch > 1 else None
        self.position_table = self.position_table.flatten(0, 1)
        self.head_table: Tensor | None = None
        if memory.conditioning is not None and self.heads is not None and self.heads.conditioning is not None:
            self.head_table = self.heads.conditioning(memory.conditioning).flatten(0, 1)
        self.recurrence = None if fused.recurrence is None else Recurrence(fused.recurrence, memory)
        self.ahead = torch.arange(self.config.prediction_heads, device=memory.states.device)

    def row_state(self) -> list[Tensor]:
        """Return views [B, ...] of all tensors that hold the state of rows, in a fixed order per class."""
        tables = [self.position_table if self.conditioned else None, self.head_table]
        views = [table.view(self.batch, self.config.target_length, -1) for table in tables if table is not None]
        views += [tensor for tensor in (self.estimate, self.residual_sum) if tensor is not None]
        return views if self.recurrence is None else [*views, *self.recurrence.row_state()]

    def adopt(self, rows: Tensor, other: ProposingSession, chosen: Tensor) -> None:
        """See `superres.interfaces.Session.adopt`."""
        for mine, theirs in zip(self.row_state(), other.row_state(), strict=True):
            mine.index_copy_(0, rows, theirs.index_select(0, chosen))

    def look_up(self, table: Tensor, target: Tensor) -> Tensor:
        """Return the entries [B * N, D] of a position table for targets [B, N]."""
        place = target if self.row_start is None else target + self.row_start
        return table.index_select(0, place.flatten())

    def propose(self, output: StepOutput, index: Tensor, first: Tensor, offsets: Tensor, choose: Choose) -> Tensor:
        """See `superres.interfaces.Session.propose`."""
        count, here = len(offsets), output.state.at(index)
        if self.recurrence is not None:
            return self._recur(self.recurrence, here.hidden, first, offsets, choose)
        heads = self.fused.heads
        if heads is None:
            raise ValueError("a model of one prediction head makes no proposals")
        # [B, 1 + count]: p1's target, then the heads' targets.
        target = (here.position.unsqueeze(1) + self.ahead[: count + 1]).clamp_(max=self.config.target_length - 1)
        vectors = None
        if self.head_table is not None:
            vectors = self.look_up(self.head_table, target[:, 1:]).view(self.batch, count, -1)
        states = heads.states(here.hidden, vectors, count)
        outputs = heads.outputs(states.flatten(0, 1)).view(self.batch, count, -1)
        projected = outputs[..., : self.config.outputs]
        if not self.config.ordinal_output or self.estimate is None:
            return choose(projected, offsets)
        known = self.estimate.gather(1, target)
        mu, weights = known[:, 1:] + projected[..., -2], None
        if here.neighbours is not None:
            features = here.neighbours
            weights = heads.weights(outputs[..., self.config.outputs :], here.position % self.config.channels)
            if heads.earlier:
                features = torch.cat([features, -known[:, :count]], dim=1)
            used = weights[..., : features.shape[1]]
            mu = torch.baddbmm(mu.unsqueeze(2), used, features.unsqueeze(2)).squeeze(2)
            weights = used[..., here.neighbours.shape[1] :] if heads.earlier else None
        if projected.shape[-1] == 2 and choose.additive(offsets) == (None, None):
            return nearest(mu, weights, first, self.config.vocabulary - 1)
        if weights is None:
            return choose(self.scores_around(mu, projected), offsets)
        tokens = [first.unsqueeze(1)]
        for head in range(count):
            # A head reads the tokens of the heads before it, so the heads choose in order.
            mu = torch.addcmul(mu, weights[:, :, head], tokens[head].to(mu.dtype))
            own = slice(head, head + 1)
            tokens.append(choose(self.scores_around(mu[:, own], projected[:, own]), offsets[own]))
        return torch.cat(tokens[1:], dim=1)

    def _recur(self, recurrence: Recurrence, state: Tensor, first: Tensor, offsets: Tensor, choose: Choose) -> Tensor:
        """Propose with recurrent heads from decoder outputs `state` [B, D]; other arguments as for `propose`."""
        tokens = [first.unsqueeze(1)]
        for head in range(len(offsets)):
            state = recurrence.advance(state, self.fused.token_table.index_select(0, tokens[head][:, 0]))
            scores = self.fused.project(recurrence.fused.norm(state))
            tokens.append(choose(scores.unsqueeze(1), offsets[head : head + 1]))
        return torch.cat(tokens[1:], dim=1)

    def scores_around(self, mu: Tensor, projected: Tensor) -> Tensor:
        """Return the scores [..., V] of intensities.

        Args:
            mu: centre [...] of the ordinal term, grey levels.
            projected: outputs of the fused projection [..., V + 2], or [..., 2] without free scores.
        """
        slope = projected[..., -1:].clamp(-7.0, 3.0).exp_().neg_()
        scores = (self.fused.values - mu.unsqueeze(-1)).abs_().mul_(slope)
        return scores.add_(projected[..., :-2]) if projected.shape[-1] > 2 else scores


def nearest(mu: Tensor, weights: Tensor | None, first: Tensor, most: int) -> Tensor:
    """Return the tokens [B, N] nearest to `mu` [B, N], which have the largest scores if all scores are ordinal.

    Args:
        mu: centres of the heads' ordinal terms, without the terms of earlier tokens.
        weights: weights of each head on the tokens from p1's on [B, N, N], or None.
        first: p1's token [B].
        most: the largest token.
    """
    below = mu - 0.5  # at equal distance the lower token wins, as in argmax
    if weights is None:
        return below.ceil_().clamp_(0, most).long()
    tokens = [first.unsqueeze(1).to(mu.dtype)]
    for head, weight in enumerate(weights.unbind(2)):
        below.addcmul_(weight, tokens[head])
        tokens.append(below[:, head : head + 1].ceil().clamp_(0, most))
    return torch.cat(tokens[1:], dim=1).long()
