"""Beam search, one token a step, for models with an end token: what teachers of distillation translate with.

Hypotheses are ranked by log p / ((5 + length) / 6)**alpha (Wu et al. 2016, section 7, without coverage).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from superres.config import BeamConfig
from superres.errors import ConfigError
from superres.scoring import ScoringModel, Session


@dataclass
class Beams:
    """The best hypothesis of each row.

    Attributes:
        tokens: int64 [B, T]; past a row's end they are 0.
        lengths: tokens of each row [B], the end token counted.
        scores: log p over the length penalty [B].
        model_calls: of the batch; each scores all hypotheses of all rows.
    """

    tokens: Tensor
    lengths: Tensor
    scores: Tensor
    model_calls: int


def length_penalty(length: int, alpha: float) -> float:
    """Return ((5 + length) / 6)**alpha."""
    return float(((5 + length) / 6) ** alpha)


@dataclass
class Hypotheses:
    """N hypotheses of each row, the best first.

    Attributes:
        tokens: [B, N, T].
        scores: [B, N]; -inf where there is none yet.
        lengths: [B, N].
    """

    tokens: Tensor
    scores: Tensor
    lengths: Tensor

    @classmethod
    def none(cls, batch: int, size: int, length: int, like: Tensor) -> Hypotheses:
        """Return places for `size` hypotheses of at most `length` tokens, on the device of `like`."""
        tokens = torch.zeros(batch, size, length, dtype=torch.int64, device=like.device)
        scores = torch.full((batch, size), float("-inf"), device=like.device)
        return cls(tokens, scores, torch.zeros(batch, size, dtype=torch.int64, device=like.device))

    def best_with(self, other: Hypotheses) -> Hypotheses:
        """Return the best N of these N and the others."""
        scores, place = torch.cat([self.scores.to(other.scores), other.scores], 1).topk(self.scores.shape[1], 1)
        tokens = torch.cat([self.tokens, other.tokens], 1)
        lengths = torch.cat([self.lengths, other.lengths], 1).gather(1, place)
        return Hypotheses(_rows(tokens, place), scores, lengths)

    def where(self, rows: Tensor, other: Hypotheses) -> Hypotheses:
        """Return these in the rows that `rows` (bool [B]) marks, the others elsewhere."""
        rows = rows.unsqueeze(1)
        return Hypotheses(self.tokens.where(rows.unsqueeze(2), other.tokens),
                          self.scores.to(other.scores).where(rows, other.scores),
                          self.lengths.where(rows, other.lengths))


def _rows(tokens: Tensor, place: Tensor) -> Tensor:
    """Return the rows `place` [B, M] of `tokens` [B, N, T]."""
    return tokens.gather(1, place.unsqueeze(2).expand(-1, -1, tokens.shape[2]))


class BeamLoop:
    """The state of one search: living hypotheses, each a row of the session, and finished ones."""

    def __init__(self, model: ScoringModel, session: Session, options: BeamConfig, batch: int, like: Tensor) -> None:
        """Start with empty hypotheses; `session` has `options.size` rows for each of `batch` sources."""
        self.session, self.options, self.length = session, options, model.length
        self.end_token = -1 if model.end_token is None else model.end_token
        self.alive = Hypotheses.none(batch, options.size, model.length, like)
        # All start equal: but for one they must not count, or the beam would hold copies.
        self.alive.scores[:, 0] = 0
        self.finished = Hypotheses.none(batch, options.size, model.length, like)
        self.first_rows = torch.arange(batch, device=like.device).unsqueeze(1) * options.size
        self.last = torch.zeros(batch * options.size, 1, dtype=torch.int64, device=like.device)
        self.calls = 0

    def iterate(self) -> None:
        """Grow every living hypothesis by a token: one model call."""
        place = self.calls
        output = self.session.step(self.last, torch.full_like(self.last[:, 0], place))
        self.calls += 1
        grown, parent = self._grow(output.scores[:, 0], place)
        ended = torch.eq(grown.tokens[:, :, place], self.end_token)
        self._finish(grown, ended, place + 1)
        scores, kept = grown.scores.masked_fill(ended, float("-inf")).topk(self.options.size, 1)
        self.alive = Hypotheses(_rows(grown.tokens, kept), scores, grown.lengths.gather(1, kept))
        self.session.select((self.first_rows + parent.gather(1, kept)).flatten(), self.calls)
        self.last = self.alive.tokens[:, :, place].reshape(-1, 1)

    def _grow(self, scores: Tensor, place: int) -> tuple[Hypotheses, Tensor]:
        """Return the 2N best continuations [B, 2N] by log p, and the hypotheses [B, 2N] that they continue.

        2N, because N of them may end: N others then live on.
        """
        size, vocabulary = self.options.size, scores.shape[-1]
        total = scores.log_softmax(-1).view(-1, size, vocabulary) + self.alive.scores.unsqueeze(2).to(scores.dtype)
        best, index = total.flatten(1).topk(min(2 * size, size * vocabulary), 1)
        parent, token = index // vocabulary, index % vocabulary
        tokens = _rows(self.alive.tokens, parent)
        tokens[:, :, place] = token
        return Hypotheses(tokens, best, torch.full_like(parent, place + 1)), parent

    def _finish(self, grown: Hypotheses, ended: Tensor, length: int) -> None:
        """Keep the best of those that `ended` marks [B, 2N], except in rows whose search is over."""
        scores = grown.scores / length_penalty(length, self.options.length_penalty)
        new = Hypotheses(grown.tokens, scores.masked_fill(~ended, float("-inf")), grown.lengths)
        self.finished = self.finished.where(self.over(), self.finished.best_with(new))

    def over(self) -> Tensor:
        """Tell which rows [B] have as many finished hypotheses as the beam is wide."""
        return ~self.finished.scores.isneginf().any(1)

    def done(self) -> bool:
        """Tell whether every row is over, or the largest length is reached."""
        return self.calls >= self.length or bool(self.over().all())

    def result(self) -> Beams:
        """Return each row's best finished hypothesis, or the best living one where none has ended (yet, or in time)."""
        penalty = length_penalty(self.calls, self.options.length_penalty)
        alive = Hypotheses(self.alive.tokens, self.alive.scores / penalty, self.alive.lengths)
        best = alive.where(self.finished.scores[:, 0].isneginf(), self.finished)
        return Beams(best.tokens[:, 0], best.lengths[:, 0], best.scores[:, 0], self.calls)


@torch.inference_mode()
def beam_steps(
    model: ScoringModel, source: Tensor, options: BeamConfig, *, padding: Tensor | None = None,
) -> Iterator[BeamLoop]:
    """Search the best target of each source, and hand out the loop before every step, to be looked at.

    A row's search ends with as many finished hypotheses as the beam is wide. The loop is one and the same object, last
    handed out when every row is over; whoever stops asking has stopped the search.

    Args:
        model: the model, with an end token.
        source: source tokens [B, S].
        options: size of the beam, length penalty.
        padding: bool [B, S], True where a source is padding.

    Raises:
        ConfigError: the model has no end token.
    """
    if model.end_token is None:
        raise ConfigError("beam search needs a model with an end token; decode without --beam")
    session = model.session(source, 1, padding, copies=options.size)
    loop = BeamLoop(model, session, options, len(source), source)
    yield loop
    while not loop.done():
        loop.iterate()
        yield loop


def beam_search(
    model: ScoringModel, source: Tensor, options: BeamConfig, *, padding: Tensor | None = None,
) -> Beams:
    """Return the best hypotheses that `beam_steps`, which takes the same arguments, ends with."""
    return deque(beam_steps(model, source, options, padding=padding), maxlen=1).pop().result()
