"""Lookahead decoding (Fu et al. 2024): n-grams from Jacobi iterations, verified several at a time, without training.

Every step reads two branches in one pass. The lookahead branch guesses a window of W future tokens at N - 1 stages of
a Jacobi iteration, and each guess of the last stage completes an n-gram, which goes to a pool. The verification branch
reads up to G n-grams of the pool that begin with the row's last token. The longest continuation that passes is kept.

It suits text, where a word asks for the same next words wherever it stands, and machines to which the columns of a
step, (W + G)(N - 1) of them, cost little more than one. It does not suit images: what follows an intensity depends on
where it stands, so that only smooth areas repeat themselves, in short n-grams, and trained heads get further with a few
columns. Images decode as exactly as text; their attention windows hold for every column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from superres.config import DecodeConfig, require
from superres.decoding.acceptance import Criterion
from superres.decoding.blockwise import BlockwiseDecoding
from superres.decoding.proposers.base import Proposer
from superres.decoding.proposers.lookahead.pool import NgramPool
from superres.decoding.proposers.lookahead.sampling import verify_candidates
from superres.decoding.sampling import COMMITTED, VERDICT, Chooser
from superres.decoding.state import DecodeState
from superres.interfaces import Peers, ScoringModel, Session, Sources, StepOutput, Tree, TreeSession


def share(count: int, rank: int = 0, processes: int = 1) -> range:
    """Return which of `count` things process number `rank` of several takes, in shares as equal as can be."""
    return range(count * rank // processes, count * (rank + 1) // processes)


@dataclass(frozen=True)
class Outcome:
    """What a step tells of each row.

    Attributes:
        block: the best block: the root's token and those of a candidate, [B, N].
        accepted: how many of them pass, [B].
        first: the token after these, [B].
        guessed: the guesses that the window's last stage made, [B, W].
    """

    block: Tensor
    accepted: Tensor
    first: Tensor
    guessed: Tensor


class Layout:
    """Which column of a step stands for what.

    Stage s of column c of the window is a guess at the token s + c places after the row's last one; (0, 0) is that last
    token itself, the root. A guess sees stage 0 up to its own column, and its own column's stages before it. A
    candidate's tokens see the root and one another. (Figure 2b of the paper.)

    Attributes:
        tree: the columns: tokens that are read again, the root, the candidates one after another, the last stage, and
            the other stages.
        paths: columns of the root and of each candidate, int64 [G, N].
        guesses: columns of the window's last stage, [W].
        cells: stage and column in the window of what each column of the step after the candidates reads, [2, ...].
    """

    def __init__(self, ngram_size: int, columns: Sequence[int], candidates: int, again: int = 0) -> None:
        """Lay out a step.

        Args:
            ngram_size: N.
            columns: those of the window whose guesses are wanted, in ascending order.
            candidates: how many are verified.
            again: tokens before the root that are read again.
        """
        last = ngram_size - 2
        parents, paths = [*range(-1, again)], []
        for _ in range(candidates):
            path = [again, *range(len(parents), len(parents) + ngram_size - 1)]
            parents += path[:-1]
            paths.append(path)
        stages = [(stage, column) for stage in range(1, last + 1) for column in columns]
        trunk = [(0, column) for column in range(1, columns[-1] + 1)]
        cells = sorted(trunk + stages, key=lambda cell: cell[0] != last)  # the others are only seen
        number = {(0, 0): again, **{cell: column for column, cell in enumerate(cells, len(parents))}}
        parents += [number[(stage - 1, column) if stage else (0, column - 1)] for stage, column in cells]
        self.paths = torch.tensor(paths)
        self.guesses = torch.tensor([number[last, column] for column in columns])
        self.cells = torch.tensor(cells, dtype=torch.int64).view(-1, 2).t()
        self.tree = Tree(parents, again, 1 + int(torch.cat([self.guesses, self.paths.flatten()]).max()))

    @classmethod
    def of(cls, options: DecodeConfig, ngram_size: int, peers: Peers | None) -> Layout:
        """Return the layout that `options` ask for, this process's share if it is one of several.

        Raises:
            ConfigError: there is not a branch for every process, or they cannot sample so.
        """
        window, candidates = options.window, options.candidates
        if peers is None:
            return cls(ngram_size, range(window), candidates)
        rank, count = peers.rank, peers.count
        require(count <= min(window, candidates), f"{count} processes need a window and candidates of at least as "
                                                  f"many, not {window} and {candidates}; start fewer")
        require(options.sampling == "coupled", f"{options.sampling} sampling tries candidates in turn, as {count} "
                                               "processes side by side cannot; sample coupled")
        return cls(ngram_size, share(window, rank, count), len(share(candidates, rank, count)), ngram_size - 1)


class LookaheadDecoding(BlockwiseDecoding):
    """Blockwise decoding whose step reads a tree: each row has a window and a pool of n-grams besides.

    Where several processes decode the batch together (`ScoringModel.peers`), all hold the same state, and each reads
    and judges its share of a step.
    """

    session: TreeSession
    told: Outcome

    def __init__(
        self, model: ScoringModel, session: Session, options: DecodeConfig, criterion: Criterion, proposer: Proposer,
        chooser: Chooser, state: DecodeState, observe: Callable[[Tensor], None] = lambda scores: None,
    ) -> None:
        """See `BlockwiseDecoding`."""
        super().__init__(model, session, options, criterion, proposer, chooser, state, observe)
        batch, device, self.size, self.peers = len(state.position), state.position.device, self.block_size, model.peers
        layout, self.count = Layout.of(options, self.size, model.peers), options.candidates
        self.paths, self.guesses, cells = (x.to(device) for x in (layout.paths, layout.guesses, layout.cells))
        self.stages, self.cells = cells
        self.places = torch.arange(self.size + 1, device=device)
        self.own = range(self.count) if self.peers is None else share(self.count, self.peers.rank, self.peers.count)
        self.window = torch.zeros(batch, self.size - 1, options.window, dtype=torch.int64, device=device)
        self.known = torch.zeros(batch, len(self.own), dtype=torch.bool, device=device)
        self.pool = (getattr(proposer, "pool", None) or NgramPool)(batch, self.size, device)

    @classmethod
    def open_session(
        cls, model: ScoringModel, source: Sources, options: DecodeConfig, block_size: int, width: int | None = None,
        padding: Tensor | None = None,
    ) -> Session:
        """See `BlockwiseDecoding.open_session`; also raised where several processes cannot share the candidates."""
        require(width is None, f"a step of lookahead is as wide as its branches; leave out the width {width}")
        return model.tree_session(source, Layout.of(options, block_size, model.peers).tree, block_size, padding)

    def verify(self, state: DecodeState, output: StepOutput, place: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best block [B, N] of all candidates, and how many of its tokens are accepted [B]."""
        self.told = self._read(state, output)
        return self.told.block, torch.minimum(self.told.accepted, state.room())

    def propose(self, state: DecodeState, output: StepOutput, accepted: Tensor) -> None:
        """See `BlockwiseDecoding.propose`."""
        torch.cat(self._next(state, self.told, accepted), dim=1, out=state.pending)

    def start(self, rows: Tensor) -> None:
        """See `BlockwiseDecoding.start`."""
        super().start(rows)
        self.window = self.window.index_fill(0, rows, 0)
        self.known = self.known.index_fill(0, rows, False)
        self.pool.clear(rows)

    def keep(self, rows: Tensor, session: Session, chooser: Chooser, state: DecodeState) -> None:
        """See `BlockwiseDecoding.keep`."""
        super().keep(rows, session, chooser, state)
        self.window, self.known = self.window[rows], self.known[rows]
        self.pool.shrink(rows)

    def _read(self, state: DecodeState, output: StepOutput) -> Outcome:
        """Return what a step tells, its roots at the rows' positions, and keep its best paths."""
        best, accepted, first = self._judge(state, output.scores)
        path = self.paths[best]
        told = Outcome(state.proposals.gather(1, path), accepted, first, output.scores[:, self.guesses].argmax(-1))
        if self.peers is None:
            self.session.keep(path)
            return told
        self.session.keep(self.places[:-1].expand_as(path))
        return self._agree(told, self.peers)

    def _judge(self, state: DecodeState, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return each row's best candidate, how many tokens of its block pass, and the token after these, all [B]."""
        batch, (count, size) = len(scores), self.paths.shape
        proposed = state.proposals[:, self.paths[:, 1:]]
        target = state.place + self.places[1:]
        if self.chooser.uniforms is not None:
            return self._draw(scores, proposed, target)
        choice = self.chooser.at(target)
        offsets = self.places[: size - 1].repeat(count)
        adjusted = choice.adjust(scores[:, self.paths[:, :-1].flatten()], offsets).view(batch * count, size - 1, -1)
        verdicts = self.criterion.accept(proposed.flatten(0, 1), adjusted, target[:, :-1].repeat_interleave(count, 0))
        passed = verdicts.view(batch, count, -1) & self.known.unsqueeze(-1)
        accepted, best = (1 + passed.long().cumprod(2).sum(2)).max(1)
        path = self.paths[best].unsqueeze(-1).expand(-1, -1, scores.shape[-1])
        chosen = choice(scores.gather(1, path))
        return best, accepted, chosen.gather(1, accepted.unsqueeze(1) - 1).squeeze(1)

    def _draw(self, scores: Tensor, proposed: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Do the same by speculative sampling, for candidates [B, G, N - 1] and target positions [B, N]."""
        rows, sampler = torch.arange(len(scores), device=scores.device), self.chooser.sampler
        temperature = sampler.temperature(target)

        def distribution(candidate: Tensor, place: int) -> Tensor:
            own = scores[rows, self.paths[candidate, place]].unsqueeze(1)
            return sampler(own, temperature[:, place : place + 1]).softmax(-1).squeeze(1)

        uniform = self.chooser.uniform(target)
        verdict, committed = uniform[:, :-1, VERDICT], uniform[..., COMMITTED]
        best, passed, first = verify_candidates(distribution, proposed, self.known, verdict, committed)
        return best, 1 + passed, first

    def _agree(self, told: Outcome, peers: Peers) -> Outcome:
        """Return the best block of all processes, what belongs to it, and the guesses of all of them."""
        width, size = self.window.shape[2], self.size
        numbers = torch.stack([told.accepted, told.first], dim=1)
        padding = width - told.guessed.shape[1]
        parts = peers.gather(torch.cat([numbers, told.block, F.pad(told.guessed, (0, padding))], dim=1))
        # The first of several that are as good, as one process would take it: candidates are shared in order.
        best = parts[:, :, 0].max(0).indices
        chosen = parts[best, torch.arange(len(best), device=best.device)]
        guessed = torch.cat([
            part[:, 2 + size :][:, : len(share(width, rank, peers.count))] for rank, part in enumerate(parts)], dim=1)
        return Outcome(chosen[:, 2 : 2 + size], chosen[:, 0], chosen[:, 1], guessed)

    def _next(self, state: DecodeState, told: Outcome, moved: Tensor) -> list[Tensor]:
        """Collect n-grams, move the window on, and return what the columns read next, [B, M] in parts.

        Args:
            state: the rows, moved on already.
            told: by the step.
            moved: places that each row has moved on, [B].
        """
        stages = torch.cat([self.window, told.guessed.unsqueeze(1)], dim=1)
        self.pool.add(stages.transpose(1, 2))
        # A guess stays where it stands in the sequence; past the last one, that one is repeated.
        width = stages.shape[2]
        column = (torch.arange(width, device=moved.device) + moved.unsqueeze(1) - 1).clamp(0, width - 1).unsqueeze(1)
        self.window = stages[:, 1:].gather(2, column.expand_as(self.window))
        self.window[:, 0, 0] = told.first
        candidates, known = self.pool.find(told.first, self.count)
        own = slice(self.own.start, self.own.stop)
        self.known = known[:, own]
        parts = [told.first.unsqueeze(1), candidates[:, own].flatten(1), self.window[:, self.stages, self.cells]]
        if self.peers is not None:
            again = (state.place - self.size + self.places[1:-1]).clamp(min=0)
            parts.insert(0, state.tokens.gather(1, again))
        return parts
