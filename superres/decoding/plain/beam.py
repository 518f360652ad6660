"""Beam search, one token per step, for models with an end token; teachers of distillation translate
with it.

Every step keeps the N best continuations by log p. Continuations with an end token are finished and
leave the beam; all other continuations stay alive. Finished hypotheses are ranked by log p / ((5 +
length) / 6)**alpha (Wu et al. 2016, section 7, without coverage). A row's search ends when no live
hypothesis can reach the score of the best finished one. A beam of size 1 is greedy decoding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from superres.config import BeamConfig
from superres.decoding.plain.state import NanCheck
from superres.errors import ConfigError
from superres.sessions import ScoringModel, Session
from superres.system.precision import float32_products
from superres.system.torch_threads import TorchThreads


@dataclass
class Beams:
    """M hypotheses of each row; in a result, the best one without the axis M."""

    tokens: Tensor  # int64 [B, M, T]; past a hypothesis's end they are 0
    # log p, or log p divided by the length penalty, [B, M]; -inf where there is no hypothesis
    scores: Tensor
    lengths: Tensor  # number of tokens including the end token, int64 [B, M]
    # model calls of the batch for a result; each call scores all hypotheses of all rows
    model_calls: int = 0

    @classmethod
    def none(cls, batch: int, size: int, length: int, device: torch.device) -> Beams:
        """Return `size` empty hypotheses of at most `length` tokens per row."""
        tokens = torch.zeros(batch, size, length, dtype=torch.int64, device=device)
        scores = torch.full((batch, size), float("-inf"), device=device)
        return cls(tokens, scores, torch.zeros(batch, size, dtype=torch.int64, device=device))

    def best_with(self, other: Beams) -> Beams:
        """Return the best M of these M hypotheses and those of `other`."""
        scores, place = torch.cat([self.scores.to(other.scores), other.scores],
                                  1).topk(self.scores.shape[1], 1)
        tokens = torch.cat([self.tokens, other.tokens], 1)  # [B, M + N, T]
        lengths = torch.cat([self.lengths, other.lengths], 1).gather(1, place)  # [B, M]
        return Beams(_rows(tokens, place), scores, lengths)


def _rows(tokens: Tensor, place: Tensor) -> Tensor:
    """Return the hypotheses `place` [B, M] of `tokens` [B, N, T], as [B, M, T]."""
    return tokens.gather(1, place.unsqueeze(2).expand(-1, -1, tokens.shape[2]))


class BeamLoop:
    """The state of one search: the live hypotheses, one per row of the session, and each source's
    best finished one."""

    def __init__(self, model: ScoringModel, session: Session, options: BeamConfig,
                 source: Tensor) -> None:
        """Start with empty hypotheses; `session` has `options.size` rows for each row of `source`
        [B, S]."""
        self.session, self.options, self.length, batch = session, options, model.length, len(source)
        self.longest = torch.full_like(source[:, 0], model.length)  # [B]
        if session.longest is not None:
            self.longest = session.longest[:: options.size].clone()
        self.end_token = -1 if model.end_token is None else model.end_token
        self.alive = Beams.none(batch, options.size, model.length, source.device)
        # All hypotheses start equal, so only the first one counts; otherwise the beam would contain
        # duplicates.
        self.alive.scores[:, 0] = 0
        self.finished = Beams.none(batch, 1, model.length, source.device)
        self.first_rows = torch.arange(batch, device=source.device).unsqueeze(1) * options.size
        self.last = torch.zeros(batch * options.size, 1, dtype=torch.int64, device=source.device)
        self.calls = 0
        self.nan_check = NanCheck(len(self.last), 1, source.device)

    @float32_products()
    def iterate(self) -> None:
        """Extend every live hypothesis by one token, with one model call."""
        place = self.calls
        output = self.session.step(self.last, torch.full_like(self.last[:, 0], place))
        self.nan_check.note(output.scores)
        self.calls += 1
        grown, parent = self._grow(output.scores[:, 0], place)
        ended = torch.eq(grown.tokens[:, :, place], self.end_token)
        scores = self._normalised(grown.scores, self.calls).masked_fill(~ended, float("-inf"))
        # In a row whose search is over, no further finished hypothesis can be better than the best
        # one.
        self.finished = self.finished.best_with(Beams(grown.tokens, scores, grown.lengths))
        self.alive = Beams(grown.tokens, grown.scores.masked_fill(ended, float("-inf")),
                           grown.lengths)
        self._cut()
        self.session.select((self.first_rows + parent).flatten(), self.calls)
        self.last = self.alive.tokens[:, :, place].reshape(-1, 1)

    def _cut(self) -> None:
        """End the rows whose hypotheses have the largest length; without a finished one, the best
        live one counts."""
        cut = (self.calls >= self.longest).unsqueeze(1)  # [B, 1]
        first = Beams(self.alive.tokens[:, :1], self.alive.scores[:, :1], self.alive.lengths[:, :1])
        unfinished = cut & self.finished.scores.isneginf()
        scores = self._normalised(first.scores, self.calls).masked_fill(~unfinished, float("-inf"))
        self.finished = self.finished.best_with(Beams(first.tokens, scores, first.lengths))
        self.alive.scores.masked_fill_(cut, float("-inf"))

    def _grow(self, scores: Tensor, place: int) -> tuple[Beams, Tensor]:
        """Return the N best continuations by log p, and the hypotheses [B, N] that they
        continue."""
        size, vocabulary = self.options.size, scores.shape[-1]
        total = (scores.log_softmax(-1).view(-1, size, vocabulary)
                 + self.alive.scores.unsqueeze(2).to(scores.dtype))
        best, index = total.flatten(1).topk(size, 1)  # [B, N]
        parent, token = index // vocabulary, index % vocabulary
        tokens = _rows(self.alive.tokens, parent)
        tokens[:, :, place] = token
        return Beams(tokens, best, torch.full_like(parent, place + 1)), parent

    def _normalised(self, scores: Tensor, length: int) -> Tensor:
        """Return `scores` (log p) divided by the length penalty of `length` tokens."""
        return scores / float(((5 + length) / 6) ** self.options.length_penalty)

    def over(self) -> Tensor:
        """Return whether the search of each row is over, bool [B]: no live hypothesis can beat the
        best finished one.

        log p is at most 0 and only decreases, and the penalty grows with the length. So a live
        hypothesis can reach at most its log p divided by the penalty of the largest length.
        """
        reachable = self._normalised(self.alive.scores.amax(1), self.length)
        return ~self.finished.scores[:, 0].isneginf() & (reachable <= self.finished.scores[:, 0])

    def done(self) -> bool:
        """Return whether the search of every row is over, or the largest length is reached."""
        self.nan_check.check()
        return bool(self.over().all())

    def result(self) -> Beams:
        """Return each row's best finished hypothesis, or its best live one if none has finished."""
        ended = ~self.finished.scores[:, 0].isneginf()
        # If none has finished, the first live hypothesis is the best one.
        alive = self._normalised(self.alive.scores[:, 0], self.calls)
        return Beams(self.finished.tokens[:, 0].where(ended.unsqueeze(1), self.alive.tokens[:, 0]),
                     self.finished.scores[:, 0].to(alive).where(ended, alive),
                     self.finished.lengths[:, 0].where(ended, self.alive.lengths[:, 0]), self.calls)


@torch.inference_mode()
def beam_steps(
    model: ScoringModel, source: Tensor, options: BeamConfig, *, padding: Tensor | None = None,
) -> Iterator[BeamLoop]:
    """Search the best targets of sources [B, S], and yield the loop before every step.

    The loop is the same object each time, and is yielded a last time when the search is over.
    Closing the iterator stops the search. `padding` is bool [B, S], True where a source is padding.
    Raises ConfigError if the model has no end token, and ScoresError if its scores are not finite.
    """
    if model.end_token is None:
        raise ConfigError("beam search needs a model with an end token; decode without --beam")
    session = model.session(source, 1, padding, copies=options.size)
    loop = BeamLoop(model, session, options, source)
    yield loop
    threads = TorchThreads(1 if model.own_threads else None)
    while not loop.done():
        with threads:
            loop.iterate()
        yield loop


def beam_search(model: ScoringModel, source: Tensor, options: BeamConfig, *,
                padding: Tensor | None = None) -> Beams:
    """Return the best hypotheses; the arguments are described at `beam_steps`."""
    return deque(beam_steps(model, source, options, padding=padding), maxlen=1).pop().result()
