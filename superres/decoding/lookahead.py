"""Lookahead decoding (Fu et al. 2024): n-grams from Jacobi iterations, verified several at a time, without training.

Every step reads two branches in one pass. The lookahead branch guesses a window of W future tokens at N - 1 stages of
a Jacobi iteration, and each guess of the last stage completes an n-gram, which goes to a pool. The verification branch
reads up to G n-grams of the pool that begin with the row's last token. The longest continuation that passes is kept.

It suits text, where a word asks for the same next words wherever it stands. It does not suit images: hardly ever do N
intensities in a row occur again, since each depends on where it stands, so that proposals seldom pass; and a step reads
(W + G)(N - 1) columns. Images decode as exactly as text, but slower than greedily.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from superres.config import DecodeConfig
from superres.decoding.acceptance import Criterion
from superres.decoding.blockwise import BlockwiseLoop
from superres.decoding.pool import NgramPool
from superres.decoding.proposal import Proposer
from superres.errors import ConfigError
from superres.scoring import ScoringModel, Session, StepOutput, Tree, TreeSession

CAPACITY = 2048
"""N-grams a row that the pool holds; a row of text makes fewer."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a step.

    Attributes:
        window: W, columns of the lookahead branch.
        ngram_size: N.
        candidates: G, n-grams verified in a step.
    """

    window: int
    ngram_size: int
    candidates: int

    @classmethod
    def of(cls, options: DecodeConfig, length: int) -> Shape:
        """Return the sizes that `options` ask for, for targets of `length` tokens.

        Raises:
            ConfigError: the window reaches further than a target is long.
        """
        shape = cls(options.window, options.ngram_size, options.candidates)
        reach = shape.window + shape.ngram_size - 2
        if reach > length:
            raise ConfigError(f"window {shape.window} and n-grams of {shape.ngram_size} look {reach} tokens ahead, further "
                              f"than the {length} of a target; choose smaller ones")
        return shape


class Layout:
    """Which column of a step stands for what.

    Stage s of column c of the window is a guess at the token s + c places after the row's last one; (0, 0) is that last
    token itself, the root. A guess sees stage 0 up to its own column, and its own column's stages before it. A
    candidate's tokens see the root and one another.

    Attributes:
        tree: the columns: the root; the candidates, one after another; the last stage; the other stages.
        paths: columns of the root and of each candidate, int64 [G, N].
        judges: columns whose scores judge the candidates' tokens, [G * (N - 1)].
        guesses: columns of the window's last stage, [W].
        filled: which cells of the window [N - 1, W], flattened, the columns after the candidates read.
    """

    def __init__(self, shape: Shape) -> None:
        """Lay out a step."""
        size, stages = shape.ngram_size, shape.ngram_size - 1
        parents = [-1]
        paths = []
        for _ in range(shape.candidates):
            first = len(parents)
            parents += [0, *range(first, first + stages - 1)]
            paths.append([0, *range(first, first + stages)])
        cells = [(stage, column) for stage in (stages - 1, *range(stages - 1)) for column in range(shape.window)]
        cells.remove((0, 0))
        column_of = {(0, 0): 0, **{cell: number for number, cell in enumerate(cells, len(parents))}}
        parents += [column_of[(stage - 1, column) if stage else (0, column - 1)] for stage, column in cells]
        self.paths = torch.tensor(paths)
        self.judges = self.paths[:, :-1].flatten()
        self.guesses = torch.tensor([column_of[stages - 1, column] for column in range(shape.window)])
        self.filled = torch.tensor([stage * shape.window + column for stage, column in cells], dtype=torch.int64)
        self.tree = Tree(parents, scored=1 + max(int(self.guesses.max()), int(self.paths.max())))
        self.size = size


class LookaheadLoop(BlockwiseLoop):
    """The state of one decode by Lookahead: besides that of any loop, each row's window and pool."""

    session: TreeSession

    def __init__(
        self, model: ScoringModel, session: Session, options: DecodeConfig, keys: Tensor, block_size: int,
        proposer: Proposer | None = None, criterion: Criterion | None = None, fitted: bool = False,
    ) -> None:
        """See `BlockwiseLoop`; `session` comes from `open_session`."""
        shape = self.shape = Shape.of(options, model.length)
        layout = Layout(shape)
        device, stages = keys.device, shape.ngram_size - 1
        self.paths, self.judges, self.guesses, self.filled = (
            index.to(device) for index in (layout.paths, layout.judges, layout.guesses, layout.filled))
        self.window = torch.zeros(len(keys), stages, shape.window, dtype=torch.int64, device=device)
        self.known = torch.zeros(len(keys), shape.candidates, dtype=torch.bool, device=device)
        self.pool = NgramPool(len(keys), shape.ngram_size, CAPACITY, device)
        super().__init__(model, session, options, keys, block_size, proposer, criterion, fitted)

    @classmethod
    def open_session(
        cls, model: ScoringModel, source: Tensor, options: DecodeConfig, width: int, padding: Tensor | None = None,
    ) -> Session:
        """See `BlockwiseLoop.open_session`; the width is that of the branches."""
        shape = Shape.of(options, model.length)
        return model.tree_session(source, Layout(shape).tree, shape.ngram_size, padding)

    def iterate(self) -> None:
        """See `BlockwiseLoop.iterate`."""
        start, size = self.position, self.shape.ngram_size
        output = self.session.step(self.proposals, start + 1)
        target = start.unsqueeze(1) + self.columns[:size]
        path, accepted = self._judge(output.scores, target)
        block = self.proposals.gather(1, path)
        accepted = self._stop_at_end_token(accepted, block)
        self.session.keep(path)
        self.tokens.scatter_(1, target.clamp(min=0) if self.starting else target, block)
        self.recorder.record(start, block, accepted)
        self.position = (start + accepted).clamp(min=0)
        self.starting = False
        index = path.gather(1, (accepted - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
        self.proposals = self._next(output, index, self.position - start)

    def restart(self, rows: Tensor, fresh: Session, chosen: Tensor, keys: Tensor) -> None:
        """See `BlockwiseLoop.restart`."""
        super().restart(rows, fresh, chosen, keys)
        self.window = self.window.index_fill(0, rows, 0)
        self.known = self.known.index_fill(0, rows, False)
        self.pool.clear(rows)

    def shrink(self, session: Session, kept: Tensor) -> None:
        """See `BlockwiseLoop.shrink`."""
        super().shrink(session, kept)
        self.window, self.known = self.window[kept], self.known[kept]
        self.pool.shrink(kept)

    def _judge(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the columns [B, N] of the best block and how many [B] of its tokens pass."""
        batch, (count, size) = len(scores), self.paths.shape
        proposed = self.proposals[:, self.paths[:, 1:]].flatten(0, 1)
        offsets = self.columns[1:size].repeat(count)
        adjusted = self.choice.adjust(scores[:, self.judges], offsets).view(batch * count, size - 1, -1)
        passed = self.criterion.accept(proposed, adjusted, target[:, 1:].repeat_interleave(count, 0))
        passed = passed.view(batch, count, -1) & self.known.unsqueeze(-1)
        lengths = 1 + passed.long().cumprod(2).sum(2)
        longest, best = lengths.max(1)
        room = (self.limit - self.position) * (self.position >= 0)
        return self.paths[best], torch.minimum(longest, room)

    def _predict(self, output: StepOutput, index: Tensor) -> Tensor:
        """See `BlockwiseLoop._predict`: after the first step, which has read the start of the sequence at the root."""
        self.session.keep(index.unsqueeze(1))
        return self._next(output, index, torch.ones_like(index))

    def _next(self, output: StepOutput, index: Tensor, moved: Tensor) -> Tensor:
        """Return the columns' next tokens [B, M].

        Args:
            output: of the step.
            index: column whose scores choose the next token, [B].
            moved: places that each row has moved on, [B].
        """
        self.choice = self._next_choice()
        scores = output.scores.gather(1, index.view(-1, 1, 1).expand(-1, 1, output.scores.shape[-1]))
        first = self.choice(scores, slice(1))
        self._advance(output.scores[:, self.guesses].argmax(-1), moved)
        self.window[:, 0, 0] = first[:, 0]
        candidates, self.known = self.pool.find(first[:, 0], self.shape.candidates)
        return torch.cat([first, candidates.flatten(1), self.window.flatten(1)[:, self.filled]], dim=1)

    def _advance(self, guessed: Tensor, moved: Tensor) -> None:
        """Collect the n-grams that `guessed` [B, W] completes, and move the window on by `moved` [B] places."""
        stages = torch.cat([self.window, guessed.unsqueeze(1)], dim=1)
        self.pool.add(stages.transpose(1, 2))
        # A guess stays where it stands in the sequence; past the last one, that one is repeated.
        column = self.columns[: self.shape.window] + moved.unsqueeze(1) - 1
        column = column.clamp(0, self.shape.window - 1).unsqueeze(1)
        self.window = stages[:, 1:].gather(2, column.expand_as(self.window))
