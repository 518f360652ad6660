"""A model on torch that follows a script, for the loop around a network."""

from dataclasses import dataclass

import torch

from superres.config import general_costs
from superres.sessions import StepOutput


@dataclass
class ScriptedSession:
    """Session of a `ScriptedModel`; counts its calls."""

    model: "ScriptedModel"
    rows: torch.Tensor
    width: int
    calls: int = 0
    longest: torch.Tensor | None = None

    @property
    def shape(self):
        return (self.model.length,)

    def copy_rows(self, rows, other, chosen, cache=True):
        self.rows = self.rows.clone()
        self.rows[rows] = other.rows[chosen]

    def step(self, tokens, position):
        self.calls += 1
        place = position.unsqueeze(1) + torch.arange(self.width)
        return StepOutput(self.model.first_scores(self.rows, tokens, place), place)

    def resize(self, width):
        self.width = width

    def propose(self, output, index, first, offsets, choose):
        position = output.state.gather(1, index.unsqueeze(1)) + offsets
        return choose(self.model.proposal_scores(self.rows, position), offsets)


@dataclass
class ScriptedModel:
    """Follows a script: p1 scores token t of `truth` [N, T] best if it has read token t - 1.

    A source is the number of its row in `truth`. After a token that is not in the script, p1 wants
    `lost`. A head proposes the right token where `hits` [N, T] is true, else `miss`, or the value
    after the right one if that is None.
    """

    truth: torch.Tensor
    hits: torch.Tensor
    prediction_heads: int = 4
    end_token: int | None = None
    vocabulary: int = 10
    lost: int = 9
    miss: int | None = None
    own_threads = adaptive = False
    peers: None = None
    engine, device, costs = "scripted", torch.device("cpu"), general_costs(0.05)

    def decoder(self, plain):
        return None

    @property
    def length(self):
        return self.truth.shape[1]

    def encode(self, source, padding=None):
        return source

    def session(self, source, width, padding=None):
        return ScriptedSession(self, source[:, 0], width)

    def uncached_scores(self, source, target, position):
        last = target.gather(1, (position - 1).clamp(min=0).unsqueeze(1))
        first = self.first_scores(source[:, 0], last, position.unsqueeze(1))
        ahead = position.unsqueeze(1) + torch.arange(1, self.prediction_heads)
        return torch.cat([first, self.proposal_scores(source[:, 0], ahead)], dim=1)

    def first_scores(self, rows, tokens, place):
        inside = place.clamp(max=self.length - 1)
        before = self.truth[rows].gather(1, (inside - 1).clamp(min=0))
        right = (tokens == before) | (place == 0)
        return self._scores(torch.where(right, self.truth[rows].gather(1, inside), self.lost))

    def proposal_scores(self, rows, position):
        inside = position.clamp(max=self.length - 1)
        right = self.truth[rows].gather(1, inside)
        miss = (right + 1) % self.vocabulary if self.miss is None else torch.full_like(right,
                                                                                       self.miss)
        return self._scores(torch.where(self.hits[rows].gather(1, inside), right, miss))

    def _scores(self, tokens):
        """Score intensities by their distance from `tokens`."""
        return -(torch.arange(self.vocabulary) - tokens.unsqueeze(-1)).abs().double()
