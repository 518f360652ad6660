"""The base of all sessions: the memory of the sources, and proposals from decoder states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from superres.config.tables import RESIDUAL_SCALE
from superres.nn.heads import PredictionHeads, RecurrentHeads
from superres.nn.image_priors import ordinal_term, scores_around
from superres.nn.model import EncoderDecoder, Memory
from superres.sessions import Sampler, StepOutput


@dataclass
class StepState:
    """The state that proposals are computed from; `at` returns one without the axis W."""

    hidden: Tensor  # decoder outputs [B, W, D]
    position: Tensor  # target positions [B, W]
    neighbours: Tensor | None  # neighbour features [B, W, N]

    def at(self, index: Tensor) -> StepState:
        """Return the state at one column of each row, `index` [B]."""
        (rows, width), place = self.position.shape, index
        if rows > 1:
            place = torch.add(index, torch.arange(rows, device=index.device), alpha=width)
        neighbours = (None if self.neighbours is None
                      else self.neighbours.flatten(0, 1).index_select(0, place))
        hidden = self.hidden.flatten(0, 1).index_select(0, place)
        return StepState(hidden, self.position.flatten().index_select(0, place), neighbours)


class ProposingSession:
    """The base of all sessions, for the sources of `memory` and steps of `width`."""

    def __init__(self, model: EncoderDecoder, memory: Memory, width: int) -> None:
        self.model, self.config, self.heads = model, model.config, model.heads
        self.width, self.batch = width, len(memory.states)
        self.shape = self.config.target_shape
        self.estimate, self.residual_sum = memory.estimate, memory.residual_sum
        # [1, T, D], [B, T, D]
        self.position_table, self.head_table = model.signal.unsqueeze(0), memory.head_table
        self.conditioned = memory.position_table is not None or memory.conditioning is not None
        if memory.position_table is not None:
            self.position_table = memory.position_table  # [B, T, D]
        elif memory.conditioning is not None:
            self.position_table = self.position_table + memory.conditioning  # [B, T, D]
        rows = torch.arange(self.batch, device=memory.states.device).unsqueeze(1)
        # Start of each row's own position table; None if all rows share one table.
        self.row_start = (rows * self.config.target_length if self.conditioned and self.batch > 1
                          else None)
        if (memory.conditioning is not None and self.heads is not None and self.heads.conditioning
            is not None):
            self.head_table = self.heads.conditioning(memory.conditioning)
        self.source, self.longest = self._source_of(memory), memory.longest
        self.ahead = torch.arange(self.config.prediction_heads, device=memory.states.device)

    def _source_of(self, memory: Memory) -> tuple[Tensor, ...]:
        """Return what recurrent heads read of the sources: keys, values and mask; nothing for other
        heads."""
        if not isinstance(self.heads, RecurrentHeads):
            return ()
        return *self.heads.attention.keys_and_values(memory.states), memory.hidden(
            memory.states.dtype)

    def _keys(self) -> tuple[Tensor, ...]:
        """Return the keys, values and mask that recurrent heads attend to."""
        return self.source

    def row_state(self, cache: bool = True) -> list[Tensor]:
        tables = [self.position_table if self.conditioned else None, self.head_table, self.estimate,
                  self.residual_sum, self.longest]
        return [table for table in (*tables, *self.source) if table is not None]

    def copy_rows(self, rows: Tensor, other: ProposingSession, chosen: Tensor,
                  cache: bool = True) -> None:
        for mine, theirs in zip(self.row_state(cache), other.row_state(cache), strict=True):
            mine.index_copy_(0, rows, theirs.index_select(0, chosen))

    def look_up(self, table: Tensor, target: Tensor) -> Tensor:
        """Return the entries [B, N, D] of a position table [B or 1, T, D] for targets [B, N]."""
        place = target if self.row_start is None else target + self.row_start
        return table.flatten(0, 1).index_select(0, place.flatten()).view(*target.shape, -1)

    def propose(self, output: StepOutput, index: Tensor, first: Tensor, offsets: Tensor,
                sampler: Sampler) -> Tensor:
        count, here = len(offsets), output.state.at(index)
        if isinstance(self.heads, RecurrentHeads):
            return self._recur(self.heads, here.hidden, first, offsets, sampler)
        if not isinstance(self.heads, PredictionHeads):
            raise ValueError("a model of one prediction head makes no proposals")
        # p1's target, then the heads' targets.
        target = (here.position.unsqueeze(1) + self.ahead[: count + 1]).clamp_(
            max=self.config.target_length - 1)
        vectors = None if self.head_table is None else self.look_up(self.head_table, target[:, 1:])
        states = self.heads(here.hidden, 1, count, vectors)  # [B, count, D]
        projected = self.model.project(states)
        if not self.config.ordinal_output or self.estimate is None:
            return sampler(projected, offsets)
        estimate = self.estimate.gather(1, target)
        return self._around(self.heads, here, states, projected, estimate, first, offsets, sampler)

    def _around(
        self, heads: PredictionHeads, here: StepState, states: Tensor, projected: Tensor,
        estimate: Tensor, first: Tensor, offsets: Tensor, sampler: Sampler,
    ) -> Tensor:
        """Propose intensities from the heads' states [B, N, D] and outputs `projected` around
        `estimate` [B, 1 + N]."""
        count, weights = len(offsets), None
        mu, slope = ordinal_term(projected, estimate[:, 1:])  # [B, N]
        if here.neighbours is not None:
            deviation, weights = heads.linear_part(states, here.neighbours, here.position, 1)
            mu = torch.add(mu, deviation, alpha=RESIDUAL_SCALE)
        if weights is not None:
            # The weights multiply deviations from the estimates; the tokens' part is added as they
            # are chosen.
            weights = weights[..., :count]
            mu = torch.baddbmm(mu.unsqueeze(2), weights, estimate[:, :count].unsqueeze(2),
                               alpha=-1).squeeze(2)
        if not self.config.free_scores and sampler.additive(offsets) == (None, None):
            chosen, centre = nearest(mu, weights, first, self.config.vocabulary - 1, sampler.limit)
            sampler.observe(centre, slope, chosen)
            return chosen
        if weights is None:
            return sampler(scores_around(mu, slope, projected, self.config), offsets)
        tokens = [first.unsqueeze(1)]
        for head in range(count):
            # A head reads the tokens of the heads before it, so the heads choose in order.
            mu = torch.addcmul(mu, weights[:, :, head], tokens[head].to(mu.dtype))
            own = slice(head, head + 1)
            scores = scores_around(mu[:, own], slope[:, own], projected[:, own], self.config)
            tokens.append(sampler(scores, offsets[own]))
        return torch.cat(tokens[1:], dim=1)

    def _recur(
        self, heads: RecurrentHeads, state: Tensor, first: Tensor, offsets: Tensor,
        sampler: Sampler,
    ) -> Tensor:
        """Propose with recurrent heads from decoder outputs `state` [B, D]; otherwise as
        `propose`."""
        key, value, mask = self._keys()
        state, tokens = state.unsqueeze(1), [first.unsqueeze(1)]  # [B, 1, D]
        for head in range(len(offsets)):
            token = self.model.target_embedding(tokens[head], self.ahead[:1])
            state = heads.advance(state, token, (key, value), mask)
            scores = self.model.project(heads.norm(state))  # [B, 1, V]
            tokens.append(sampler(scores, offsets[head : head + 1]))
            sampler.observe_scores(scores, tokens[-1])
        return torch.cat(tokens[1:], dim=1)


def nearest(
    mu: Tensor, weights: Tensor | None, first: Tensor, largest: int,
    limit: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the tokens nearest to the heads' centres, which have the largest scores if all scores
    are ordinal.

    `mu` [B, N] are the centres without the terms of earlier tokens: of `weights` [B, N, N], those
    of each head on the tokens from p1's token `first` [B] on. `most` is the largest token; `limit`
    moves the tokens [B, 1] of each head into their limits, in order. Returns the tokens, int64 [B,
    N], and the centres with all terms [B, N].
    """
    below = mu - 0.5  # at equal distance the lower token wins, as in argmax
    if weights is None and limit is None:
        return below.ceil_().nan_to_num_().clamp_(0, largest).long(), mu  # NaN is no token
    tokens = [first.unsqueeze(1).to(mu.dtype)]
    for head in range(mu.shape[1]):
        if weights is not None:
            below.addcmul_(weights[:, :, head], tokens[head])
        token = below[:, head : head + 1].ceil().nan_to_num_()
        tokens.append(token.clamp_(0, largest) if limit is None else limit(token))
    return torch.cat(tokens[1:], dim=1).long(), below + 0.5
