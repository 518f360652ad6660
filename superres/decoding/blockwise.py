"""Blockwise parallel decoding: verify, accept, commit and propose in one model call (Stern et al. 2018, section 4).

Whatever the proposer proposes, the first token of a block is p1's own choice. So exact acceptance gives the tokens of
greedy decoding, and every iteration commits at least one.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from superres.config import DecodeConfig
from superres.decoding.acceptance import Criterion, possible
from superres.decoding.confidence import BlockCosts, ConfidentBlockSize, HeadConfidence
from superres.decoding.proposers.base import Context, Proposer
from superres.decoding.sampling import CoupledSampler, Samplers
from superres.decoding.state import DecodeState, NanCheck
from superres.decoding.trace import trace_entry
from superres.interfaces import ScoringModel, Session, Sources, StepOutput


class PlainDecoder:
    """The algorithm on torch: a `superres.interfaces.Decoder`, and the rows of every other decoder.

    An iteration changes tensors in place and reads nothing back, so that it can be captured.

    Shape letters: B rows, W columns of a step, k block size, V vocabulary. `block_size` is k of the next proposals;
    that of the pending ones is in the state.
    """

    def __init__(
        self, model: ScoringModel, session: Session, options: DecodeConfig, criterion: Criterion, proposer: Proposer,
        samplers: Samplers, state: DecodeState, confident: ConfidentBlockSize | None = None,
    ) -> None:
        """Prepare to start the rows of `state`; the session is an empty one of these rows, by `open_session`.

        `confident` chooses the block size of every iteration; None leaves it to `block_size`.
        """
        self.session, self.confident = session, confident
        self.nan_check = NanCheck(len(state.position), session.width, state.position.device)
        self.criterion, self.proposer, self.samplers = criterion, proposer, samplers
        self.min_block, self.end_token, self.block_size = options.min_block, model.end_token, state.block_size
        self.state = state
        self._sampler = None if samplers.buffer is None else samplers.at(state.targets(self.block_size))
        self.head_confidence: HeadConfidence | None = None  # of the pending proposals
        self.block_costs: BlockCosts | None = None
        if confident is not None:
            self.head_confidence = HeadConfidence(self.sampler)
            self.block_costs = confident.block_costs(len(state.position), session.shape)

    @property
    def sampler(self) -> CoupledSampler:
        """Chooses tokens at the positions of the pending block; made when needed, since other decoders need none."""
        if self._sampler is None:
            self._sampler = self.samplers.at(self.state.targets(self.state.block_size))
        return self._sampler

    @sampler.setter
    def sampler(self, sampler: CoupledSampler) -> None:
        self._sampler = sampler

    def advance(self, count: int) -> Tensor:
        """See `superres.interfaces.Decoder.advance`; does one iteration."""
        state, size = self.state, self.state.block_size
        block, accepted = self.iterate(state)
        state.starting = False
        if self.confident is not None and self.head_confidence is not None and self.block_costs is not None:
            state.block_size = self.confident.choose(
                self.head_confidence, state.proposals, state.missing(), self.block_costs)
        return trace_entry(state.position - accepted, block[:, :size], accepted).unsqueeze(0)

    def iterate(self, state: DecodeState) -> tuple[Tensor, Tensor]:
        """Do one iteration, and return the block that it verified [B, W] and the number of accepted tokens [B]."""
        place = state.place + state.next_columns  # [B, W]: the target that each column of the step scores
        output = self.session.step(state.pending, place[:, 0])  # scores [B, W, V]: the only model call
        self.nan_check.note(output.scores)
        block, accepted = self.verify(state, output, place)  # [B, W], [B]: the longest prefix that passes
        accepted = self.stop_at_end_token(state, block, accepted)
        state.commit(block, place, accepted)
        self.propose(state, output, accepted)  # from the same call: predictions after the last accepted token
        return block, accepted

    def verify(self, state: DecodeState, output: StepOutput, place: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pending block [B, W], and the number of its tokens that p1 accepts [B] (sections 3 and 5)."""
        k, block = state.block_size, state.pending.clone()  # the next proposals overwrite `pending`
        if k == 1:  # nothing to verify
            return block, (state.limit - state.position).clamp_(max=1)
        scores, target = output.scores[:, : k - 1], place[:, : k - 1]  # of proposals 2..k: [B, k - 1, V], [B, k - 1]
        passed = self.sampler.accept(self.criterion, block[:, 1:k], scores, target)  # [B, k - 1]
        minimum: int | Tensor = min(self.min_block, k)
        if minimum > 1:  # tokens of probability 0, outside limits or filters, end the minimum block
            adjusted = self.sampler.adjust(scores[:, : minimum - 1], slice(1, minimum))  # [B, l - 1, V]
            required = possible(block[:, 1:minimum], adjusted)  # [B, l - 1]
            minimum = 1 + required.long().cumprod(1).sum(1)  # [B]
        return block, accepted_length(passed, minimum, state.missing())

    def stop_at_end_token(self, state: DecodeState, block: Tensor, accepted: Tensor) -> Tensor:
        """Cut the accepted part of `block` after its first end token, and end the rows that contain an end token."""
        if self.end_token is None:
            return accepted
        columns = state.columns[: block.shape[1]]
        ends = (block == self.end_token) & (columns < accepted.unsqueeze(1))  # [B, W]
        first = torch.where(ends, columns, block.shape[1]).amin(1)  # [B]
        accepted = torch.minimum(accepted, first + 1)
        torch.where(ends.any(1), state.position + accepted, state.limit, out=state.limit)
        return accepted

    def propose(self, state: DecodeState, output: StepOutput, accepted: Tensor) -> None:
        """Make the next proposals: p1's choice after the `accepted` [B] tokens, then those of the proposer."""
        index = (accepted - 1).clamp_(min=0)  # [B]: the column that scored the next token
        scores = output.scores[:, :1]  # [B, 1, V]
        if state.block_size > 1:
            scores = output.scores.gather(1, index.view(-1, 1, 1).expand(-1, 1, output.scores.shape[-1]))
        k = state.block_size = self.block_size
        before, self._sampler = self.sampler, self.samplers.at(state.targets(k))  # for proposing and for verifying
        parts = [self.sampler.first(scores, before, index)]  # [B, 1]
        if k > 1:
            first = parts[0][:, 0]
            if self.head_confidence is not None:
                self.head_confidence = HeadConfidence(self.sampler)
            context = Context(
                self.session, output, index, state.position, first, state.tokens, self.head_confidence or self.sampler)
            parts.append(self.sampler.propose(self.proposer, context, state.columns[1:k]))  # [B, k - 1]
        width = max(k, state.pending.shape[1])
        if k < width:  # the step is wider than the block
            parts.append(parts[0].expand(-1, width - k))
        torch.cat(parts, dim=1, out=state.proposals[:, :width])

    def start(self, rows: Tensor, longest: Tensor | None) -> None:
        """Begin new sequences in `rows` [R], of at most `longest` [B] tokens, T if None."""
        self.state.start(rows, longest)
        self.nan_check.clear(rows)
        if self._sampler is not None:
            self._sampler.clear(rows)

    def keep(self, rows: Tensor) -> None:
        """See `superres.interfaces.Decoder.keep`: `shrink` has done it."""

    def shrink(self, rows: Tensor, session: Session, samplers: Samplers) -> None:
        """Continue with `rows` [R] only; `session` and `samplers` are already reduced to them."""
        self.session, self.samplers = session, samplers
        self.state.keep(rows)
        self.nan_check.shrink(rows)
        if (costs := self.block_costs) is not None:
            self.block_costs = replace(costs, sizes=costs.sizes[rows], rate=costs.rate[rows])
        before, self._sampler = self._sampler, None
        if before is not None:
            self.sampler.inherit(before, rows)

    @classmethod
    def open_session(
        cls, model: ScoringModel, source: Sources, options: DecodeConfig, block_size: int, width: int | None = None,
        padding: Tensor | None = None,
    ) -> Session:
        """Make an empty session for blocks of `block_size` and steps of `width`, by default as wide.

        Raises ConfigError if the algorithm does not support a `width`.
        """
        return model.session(source, width or block_size, padding)


def accepted_length(passed: Tensor, minimum: int | Tensor, missing: Tensor) -> Tensor:
    """Return the number of accepted tokens of a block, int64 [B]: the first token, and the longest prefix that passed.

    `passed` says whether proposals 2..k pass, bool [B, k - 1]. At least `minimum` tokens are accepted (section 5.3), a
    number for all rows or for each row [B], but at most `missing` [B].
    """
    prefix = 1 + passed.long().cumprod(1).sum(1)  # [B]
    return torch.minimum(prefix.clamp(min=minimum), missing)
