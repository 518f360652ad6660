"""A model on torch whose tokens are limited: see `superres.decoding.limits`.

The limited model is p1 with the scores of all tokens outside the limits set to -inf. The limits of
a column depend on the tokens before it: the committed tokens and the proposals that the same step
reads. The heads' proposals are limited in the same way.
"""

from __future__ import annotations

import torch
from torch import Tensor

from superres.decoding.limits import Limits
from superres.decoding.proposers.proposer import RowTensors, StatefulSession, WrappedModel
from superres.sessions import Sampler, ScoringModel, Session, Sources, StepOutput, Tree, TreeSession


class LimitTensors:
    """Limits as tensors on a device; `columns` [T + 1, E] are those of `LimitedSession.record` that
    hold the tokens at `earlier`, 0 for none."""

    def __init__(self, limits: Limits, device: torch.device) -> None:
        self.limits = limits
        self.group, self.earlier = (torch.from_numpy(part).to(device)
                                    for part in (limits.group, limits.earlier))
        self.columns = torch.where(self.earlier < 0, 0, self.earlier + 2)
        self.tokens = torch.arange(limits.vocabulary, device=device)

    def bounds(self, source: Tensor) -> Tensor:
        """Return `Limits.bounds` of source tokens [B, S], int64 [B, 2, T + 1]."""
        return torch.from_numpy(self.limits.bounds(source.cpu().numpy())).to(source.device)

    def masked(self, scores: Tensor, bounds: Tensor) -> Tensor:
        """Return the scores [B, N, V], with -inf for tokens outside `bounds` [B, 2, N].

        After a proposal outside its own limits, no token may be left for the next one. The nearest
        token then keeps its score; such columns are never accepted.
        """
        low = bounds[:, 0].clamp(max=len(self.tokens) - 1).unsqueeze(-1)  # [B, N, 1]
        high = bounds[:, 1].clamp(min=0).unsqueeze(-1)
        return scores.masked_fill((self.tokens < low) | (self.tokens > high), float("-inf"))


class LimitedProposals(Sampler):
    """Chooses the tokens of a block after its first, at offsets 1..N in order, within limits."""

    def __init__(self, sampler: Sampler, limits: LimitTensors, bounds: Tensor,
                 same: Tensor) -> None:
        """Choose by `sampler` from limited scores.

        `bounds` are the limits given the tokens up to the block's first, float32 [B, 2, N]. `same`
        says whether two offsets belong to the same group, as float32 [B, N, N].
        """
        self.sampler, self.limits, self.bounds, self.same = sampler, limits, bounds, same
        self.chosen = 0

    def __call__(self, scores: Tensor, offsets: Tensor) -> Tensor:
        tokens = []
        for column in range(scores.shape[1]):
            here = slice(column, column + 1)
            own = self.limits.masked(scores[:, here],
                                     self.bounds[:, :, self.chosen : self.chosen + 1])
            tokens.append(self.sampler(own, offsets[here]))
            self._take(tokens[-1])
        return torch.cat(tokens, dim=1)

    def limit(self, tokens: Tensor) -> Tensor:
        """See `superres.sessions.Sampler.limit`."""
        low, high = self.bounds[:, :, self.chosen : self.chosen + 1].unbind(1)  # each [B, 1]
        tokens = tokens.clamp(low, high).clamp_(0, len(self.limits.tokens) - 1)
        self._take(tokens)
        return tokens

    def _take(self, tokens: Tensor) -> None:
        known = tokens.unsqueeze(1).to(self.bounds.dtype)  # [B, 1, 1]
        self.bounds.addcmul_(self.same[:, self.chosen].unsqueeze(1), known, value=-1)
        self.chosen += 1

    def additive(self, offsets: Tensor) -> tuple[Tensor | None, Tensor | None] | None:
        return self.sampler.additive(offsets)

    def observe(self, centre: Tensor, slope: Tensor, tokens: Tensor) -> None:
        self.sampler.observe(centre, slope, tokens)

    def observe_scores(self, scores: Tensor, tokens: Tensor) -> None:
        self.sampler.observe_scores(scores, tokens)


class LimitedSession(StatefulSession):
    """A session whose scores and proposals are limited: a `superres.sessions.Session`."""

    def __init__(self, session: Session, limits: LimitTensors, bounds: Tensor) -> None:
        """Limit an empty `session` of B rows with `bounds` [B, 2, T + 1]."""
        self.limits, self.bounds, self.length = limits, bounds, bounds.shape[2] - 1
        # [B, 2 + T + W]: tokens read so far; column p + 2 holds the token at position p, and column
        # 0 is 0. They are this session's cache, as keys and values are the network's: a session
        # does not see the decoder's rows.
        self.record = bounds.new_zeros(len(bounds), 2 + self.length + session.width)
        super().__init__(session, RowTensors(self.bounds, self.record))
        self.columns = torch.arange(session.width, device=bounds.device)

    def step(self, tokens: Tensor, position: Tensor) -> StepOutput:
        output = self.session.step(tokens, position)
        place = position.unsqueeze(1) + self.columns[: tokens.shape[1]]  # [B, W]
        self.record.scatter_(1, place + 1, tokens)
        scores = self.limits.masked(output.scores, self._bounds(place.clamp(max=self.length)))
        return StepOutput(scores, (output, place))

    def _bounds(self, target: Tensor, last: Tensor | None = None) -> Tensor:
        """Return the limits [B, 2, N] at targets [B, N], given the tokens recorded up to position
        `last`, or all."""
        columns = self.limits.columns[target]  # [B, N, E]
        if last is not None:
            columns = columns.masked_fill(columns > last + 2, 0)
        return self._less(self.record.gather(1, columns.flatten(1)).view(columns.shape).sum(-1),
                          target)

    def _less(self, sums: Tensor, target: Tensor) -> Tensor:
        """Return the limits [B, 2, N] at targets [B, N], given the sums [B, N] of the earlier
        tokens."""
        return self.bounds.gather(2, target.unsqueeze(1).expand(-1, 2, -1)) - sums.unsqueeze(1)

    def propose(self, output: StepOutput, index: Tensor, first: Tensor, offsets: Tensor,
                sampler: Sampler) -> Tensor:
        inner, place = output.state
        start = place.gather(1, index.unsqueeze(1))  # [B, 1]: position of the block's first token
        self.record.scatter_(1, start + 2, first.unsqueeze(1))
        target = (start + offsets).clamp(max=self.length)  # [B, N]
        group = self.limits.group[target]
        same = group.unsqueeze(1) == group.unsqueeze(2)  # [B, N, N]
        limited = LimitedProposals(
            sampler, self.limits, self._bounds(target, start.unsqueeze(2)).float(), same.float())
        return self.session.propose(inner, index, first, offsets, limited)


def unwrapped(session: object) -> tuple[object, LimitTensors | None, Tensor | None]:
    """Return the session inside those that add the state of a proposer or limits, with its limits
    and bounds."""
    limits, bounds = None, None
    while isinstance(session, StatefulSession):
        if isinstance(session, LimitedSession):
            limits, bounds = session.limits, session.bounds
        session = session.session
    return session, limits, bounds


class LimitedTreeSession(LimitedSession):
    """A session over a tree whose scores are limited: a `superres.sessions.TreeSession`.

    The limits of a column depend on the tokens of its ancestors, and on the recorded tokens before
    the tree.
    """

    session: TreeSession

    def __init__(self, session: TreeSession, limits: LimitTensors, bounds: Tensor) -> None:
        super().__init__(session, limits, bounds)
        self.tree = session.tree
        self.ancestors, self.columns = (torch.from_numpy(part).to(bounds.device)
                                        for part in (self.tree.ancestors, self.tree.depth))

    def step(self, tokens: Tensor, position: Tensor) -> StepOutput:
        output = self.session.step(tokens, position)
        self.tokens, self.start = tokens, position.unsqueeze(1) - self.tree.root
        # [B, N]: targets of the scored columns
        place = position.unsqueeze(1) + self.columns[: self.tree.scored]
        target = place.clamp(0, self.length)
        earlier = self.limits.earlier[target]  # [B, N, E]
        # The column that reads the token before a target is the target's own; its parent reads the
        # token before that.
        back = target.unsqueeze(-1) - 1 - earlier
        nearest = back.clamp(0, self.ancestors.shape[1] - 1)
        column = self.ancestors[: self.tree.scored].expand(len(tokens), -1, -1).gather(2, nearest)
        inside = (earlier >= 0) & (back == nearest) & (column >= 0)
        both = torch.cat([self.record, tokens], dim=1)
        columns = torch.where(inside, self.record.shape[1] + column, self.limits.columns[target])
        sums = both.gather(1, columns.flatten(1)).view(columns.shape).sum(-1)
        return StepOutput(self.limits.masked(output.scores, self._less(sums, target)),
                          (output, place))

    def commit(self, columns: Tensor) -> None:
        self.session.commit(columns)
        place = self.start + torch.arange(columns.shape[1], device=columns.device)
        self.record.scatter_(1, place.clamp(min=0) + 1, self.tokens.gather(1, columns))


class LimitedModel(WrappedModel):
    """A model limited to tokens within a task's limits; the sources are those of the model, and
    their bounds."""

    def __init__(self, model: ScoringModel, limits: Limits) -> None:
        """Limit `model`, whose source tokens determine the sums of the groups."""
        super().__init__(model)
        self.limits = LimitTensors(limits, model.device)

    def encode(self, source: Sources, padding: Tensor | None = None) -> Sources:
        if isinstance(source, tuple):
            return source
        return self.model.encode(source, padding), self.limits.bounds(source)

    def session(self, source: Sources, width: int, padding: Tensor | None = None,
                copies: int = 1) -> LimitedSession:
        encoded, bounds = self.encode(source, padding)
        session = self.model.session(encoded, width, padding, copies)
        return LimitedSession(session, self.limits, bounds.repeat_interleave(copies, 0))

    def tree_session(self, source: Sources, tree: Tree, kept: int,
                     padding: Tensor | None = None) -> TreeSession:
        encoded, bounds = self.encode(source, padding)
        return LimitedTreeSession(self.model.tree_session(encoded, tree, kept), self.limits, bounds)

    def uncached_scores(self, source: Tensor, target: Tensor, position: Tensor) -> Tensor:
        scores = self.model.uncached_scores(source, target, position)  # [B, K, V]
        # [B, K]
        place = position.unsqueeze(1) + torch.arange(scores.shape[1], device=target.device)
        place = place.clamp(max=self.length)
        earlier = self.limits.earlier[place]  # [B, K, E]
        tokens = target.gather(1, earlier.clamp(min=0).flatten(1)).view(earlier.shape)
        sums = (tokens * (earlier >= 0)).sum(-1)
        bounds = (self.limits.bounds(source).gather(2, place.unsqueeze(1).expand(-1, 2, -1))
                  - sums.unsqueeze(1))
        return self.limits.masked(scores, bounds)
