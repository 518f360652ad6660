"""Blockwise parallel decoding: verify, accept, commit and propose in one model call (Stern et al.
2018, section 4).

Whatever the proposer proposes, the first token of a block is p1's own choice. So exact acceptance
gives the tokens of greedy decoding, and every iteration commits at least one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from superres.decoding.acceptance import possible
from superres.decoding.algorithm import Algorithm
from superres.decoding.confidence import BlockCosts, ConfidentBlockSize
from superres.decoding.plain.confidence import HeadConfidence
from superres.decoding.plain.sampling import CoupledSampler, Samplers
from superres.decoding.plain.state import DecodeState, NanCheck
from superres.decoding.proposers.proposer import Context
from superres.sessions import Sampler, ScoringModel, Session, Sources, StepOutput


class PlainDecoder:
    """The algorithm on torch: a `superres.sessions.TensorDecoder`, and the rows of the others.

    An iteration reads nothing back from the device.

    Shape letters: B rows, W columns of a step, k block size, V vocabulary. `block_size` is k of the
    next proposals; that of the pending ones is in the state.
    """

    def __init__(
        self, model: ScoringModel, algorithm: Algorithm, session: Session, keys: Tensor,
        block_size: int, confident: ConfidentBlockSize | None = None,
    ) -> None:
        """Prepare; the first iteration reads the start of every sequence and makes the first
        proposals.

        Args:
            model: the model, with the algorithm's limits and the state of its proposer.
            algorithm: the options, the proposer and the criterion.
            session: an empty session of the model, by `open_session`.
            keys: keys of the sampling noise, int64 [B].
            block_size: k, at most the session's width.
            confident: chooses the block size of every iteration; None leaves it to `block_size`.
        """
        options = algorithm.options
        self.criterion, self.proposer = algorithm.criterion, algorithm.proposer
        self.min_block, self.end_token = options.min_block, model.end_token
        self.session, self.confident, self.keys = session, confident, keys.clone()
        self.block_size = block_size
        # The filler must not be the end token, or a row would end where it starts.
        self.state = DecodeState(
            len(keys), model.length, session.width, block_size, int(model.end_token == 0),
            keys.device)
        self.state.start(torch.arange(len(keys), device=keys.device), self._longest())
        self.nan_check = NanCheck(len(keys), session.width, keys.device)
        self._make_samplers = partial(Samplers, options, vocabulary=model.vocabulary)
        self.samplers = self._make_samplers(self.keys)
        self._sampler: CoupledSampler | None = None
        self.head_confidence: HeadConfidence | None = None  # of the pending proposals
        self.block_costs: BlockCosts | None = None
        if confident is not None:
            self.head_confidence = HeadConfidence(self.sampler)
            self.block_costs = confident.block_costs(len(keys), session.shape)

    @property
    def sampler(self) -> CoupledSampler:
        """Chooses tokens at the positions of the pending block; made when needed, since other
        decoders need none."""
        if self._sampler is None:
            self._sampler = self.samplers.at(self.state.targets(self.state.block_size))
        return self._sampler

    @sampler.setter
    def sampler(self, sampler: CoupledSampler) -> None:
        self._sampler = sampler

    def advance(self, count: int) -> Tensor:
        """See `superres.sessions.TensorDecoder.advance`; does one iteration."""
        state, size = self.state, self.state.block_size
        block, accepted = self.iterate(state)
        state.starting = False
        if (self.confident is not None and self.head_confidence is not None and self.block_costs
            is not None):
            state.block_size = self.confident.choose(
                self.head_confidence.passed(self.confident), state.proposals.numpy(),
                state.missing().numpy(), self.block_costs)
        # int64 [1, B, 2 + k]: position (-1 at the start), accepted tokens, proposals
        return torch.cat([(state.position - accepted).unsqueeze(1), accepted.unsqueeze(1),
                          block[:, :size]], dim=1).unsqueeze(0)

    def iterate(self, state: DecodeState) -> tuple[Tensor, Tensor]:
        """Do one iteration; return the block that it verified [B, W], and how many tokens of it
        are accepted [B]."""
        # Verify: the only model call scores what follows each pending proposal.
        place = state.place + state.next_columns  # [B, W]: the target that each column scores
        output = self.session.step(state.pending, place[:, 0])  # scores [B, W, V]
        self.nan_check.note(output.scores)
        # Accept the longest prefix that passes.
        block, accepted = self.verify(state, output, place)
        accepted = self.stop_at_end_token(state, block, accepted)
        # Commit it.
        state.commit(block, place, accepted)
        # Propose, from the same call, what follows the last accepted token.
        self.propose(state, output, accepted)
        return block, accepted

    def verify(self, state: DecodeState, output: StepOutput,
               place: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pending block [B, W], and how many of its tokens p1 accepts [B]."""
        k, block = state.block_size, state.pending.clone()  # the next proposals overwrite `pending`
        if k == 1:  # the first token is p1's own choice
            return block, state.missing().clamp_(max=1)
        # of proposals 2..k: [B, k - 1, V], [B, k - 1]
        scores, target, missing = output.scores[:, : k - 1], place[:, : k - 1], state.missing()
        passed = self.sampler.accept(self.criterion, block[:, 1:k], scores, target, missing)
        return block, accepted_length(passed, self.minimum(block, scores), missing)

    def propose(self, state: DecodeState, output: StepOutput, accepted: Tensor) -> None:
        """Make the next block: p1's choice after the `accepted` [B] tokens, then proposals."""
        index = (accepted - 1).clamp_(min=0)  # [B]: the column that scored the next token
        scores = at_column(output.scores, index) if state.block_size > 1 else output.scores[:, :1]
        k = state.block_size = self.block_size
        # for proposing and for verifying
        before, self._sampler = self.sampler, self.samplers.at(state.targets(k))
        parts = [self.sampler.first(scores, before, index)]  # [B, 1]
        if k > 1:  # [B, k - 1]
            context = Context(self.session, output, index, state.position, parts[0][:, 0],
                              state.tokens, self.observed(self.sampler),
                              getattr(before, "draws", None))
            parts.append(self.sampler.propose(self.proposer, context, state.columns[1:k]))
        width = max(k, state.pending.shape[1])  # the step may be wider than the block
        parts.append(parts[0].expand(-1, width - k))
        torch.cat(parts, dim=1, out=state.proposals[:, :width])

    def minimum(self, block: Tensor, scores: Tensor) -> int | Tensor:
        """Return the least number of tokens to accept (section 5.3), of all rows or of each [B].

        Tokens of probability 0, outside limits or filters, end the minimum block. `scores` are
        those of proposals 2..k [B, k - 1, V].
        """
        least = min(self.min_block, 1 + scores.shape[1])
        if least == 1:
            return least
        adjusted = self.sampler.adjust(scores[:, : least - 1], slice(1, least))  # [B, l - 1, V]
        required = possible(block[:, 1:least], adjusted)  # [B, l - 1]
        return 1 + required.long().cumprod(1).sum(1)

    def observed(self, sampler: CoupledSampler) -> Sampler:
        """Return what proposes by `sampler`; it observes the heads' confidence if that chooses the
        block size."""
        if self.head_confidence is None:
            return sampler
        self.head_confidence = HeadConfidence(sampler)
        return self.head_confidence

    def stop_at_end_token(self, state: DecodeState, block: Tensor, accepted: Tensor) -> Tensor:
        """Cut the accepted part of `block` after its first end token, and end the rows that contain
        an end token."""
        if self.end_token is None:
            return accepted
        columns = state.columns[: block.shape[1]]
        ends = (block == self.end_token) & (columns < accepted.unsqueeze(1))  # [B, W]
        first = torch.where(ends, columns, block.shape[1]).amin(1)  # [B]
        accepted = torch.minimum(accepted, first + 1)
        torch.where(ends.any(1), state.position + accepted, state.limit, out=state.limit)
        return accepted

    def replace(self, rows: Tensor, fresh: Session, chosen: Tensor, keys: Tensor) -> None:
        """Begin the sequences in rows `chosen` int64 [R] of `fresh` in `rows` [R], each of which
        occurs once.

        `fresh` is an empty session made for the same width, and `keys` [R] are those of the
        sampling noise.
        """
        self.session.copy_rows(rows, fresh, chosen, cache=False)
        self.keys.index_copy_(0, rows, keys)
        self.samplers.rekey(self.keys)
        self.state.start(rows, self._longest())
        self.nan_check.clear(rows)
        if self._sampler is not None:
            self._sampler.clear(rows)

    def shrink(self, rows: Tensor, session: Session) -> None:
        session.copy_rows(torch.arange(len(rows), device=rows.device), self.session, rows)
        session.resize(self.session.width)
        self.session, self.keys = session, self.keys[rows]
        self.samplers = self._make_samplers(self.keys)
        self.state.shrink(rows)
        self.nan_check.shrink(rows)
        if (costs := self.block_costs) is not None:
            kept = rows.numpy()
            self.block_costs = replace(costs, sizes=costs.sizes[kept], rate=costs.rate[kept])
        before, self._sampler = self._sampler, None
        if before is not None:
            self.sampler.inherit(before, rows)

    def complete(self) -> Tensor:
        """Return whether each row is complete, bool [B]; raises ScoresError if scores are not
        finite."""
        self.nan_check.check()
        return self.state.position >= self.state.limit

    def results(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens int64 [R, T] of `rows` [R] so far, then 0, and the numbers of tokens
        [R]."""
        length = self.state.position[rows].clamp_(min=0)
        tokens = self.state.tokens[rows, : self.state.length]
        inside = torch.arange(self.state.length, device=rows.device) < length.unsqueeze(1)
        return tokens.mul_(inside), length

    def _longest(self) -> Tensor | None:
        """Return the largest number of tokens of each row [B]; None if that is T."""
        return None if self.end_token is None else self.session.longest

    @classmethod
    def open_session(cls, model: ScoringModel, algorithm: Algorithm, source: Sources,
                     block_size: int) -> Session:
        """Make an empty session for blocks of `block_size`; its steps are as wide, or of the
        algorithm's width.

        Raises ConfigError if the decoder does not support a width.
        """
        return model.session(source, algorithm.width or block_size)


def at_column(scores: Tensor, index: Tensor) -> Tensor:
    """Return the scores [B, 1, V] at column `index` [B] of scores [B, W, V]."""
    return scores.gather(1, index.view(-1, 1, 1).expand(-1, 1, scores.shape[-1]))


def accepted_length(passed: Tensor, minimum: int | Tensor, missing: Tensor) -> Tensor:
    """Return the number of accepted tokens of a block, int64 [B]: the first token, and the longest
    prefix that passed.

    `passed` says whether proposals 2..k pass, bool [B, k - 1]. At least `minimum` tokens are
    accepted (section 5.3), a number for all rows or for each row [B], but at most `missing` [B].
    """
    prefix = 1 + passed.long().cumprod(1).sum(1)  # [B]
    return torch.minimum(prefix.clamp(min=minimum), missing)
