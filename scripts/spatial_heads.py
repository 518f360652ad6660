"""Heads that draft the token below: from the network's state one row above to the target's
distribution."""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decodes import Decoded
from superres.config import ModelConfig, require
from superres.config.tables import NEIGHBOUR_PIXELS, RESIDUAL_SCALE, feature_count
from superres.decoding.plain.sampling import PROPOSAL, SpeculativeSampler, draw
from superres.decoding.trace import RowTrace
from superres.nn.image_priors import ordinal_term, scores_around, zeroed
from superres.nn.model import take
from superres.nn.proposing import StepState
from superres.nn.torch_model import StepModel
from superres.nn.torch_step import StepSession
from superres.sessions import StepOutput
from superres.system.tensor_files import read_arrays

WEIGHTS = Path(__file__).parent / "rules" / "ssd.safetensors"
SIZE = 192
"""Hidden units."""

APART, IN_ORDER = 0, 1
"""What a head reads of the target's own row: nothing but the earlier channels of the same pixel, so
that all pixels of a row are drafted at once; or all tokens to the left, drafted one after
another."""


class BelowHead(nn.Module):
    """Scores a target from the decoder's output one row above, and from what is known of it.

    That is its place and conditioning vector, and the neighbour features of
    `superres.nn.image_priors.NumericNeighbourhood`. The output is the ordinal one of the network.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config, count = config, feature_count(config)
        self.first = nn.Linear(2 * config.width + count, SIZE)
        self.way = nn.Embedding(2, SIZE)  # of APART and IN_ORDER
        self.second = nn.Linear(SIZE, SIZE)
        self.last = zeroed(nn.Linear(SIZE, config.outputs + count))
        # linear in the features, by channel
        self.direct = nn.Parameter(torch.zeros(2, config.channels, count))
        pixels = [dy < 0 or dx == 0 for dy, dx in NEIGHBOUR_PIXELS for _ in range(config.channels)]
        above = torch.tensor(pixels + [False] * (count - len(pixels)))
        self.register_buffer("read", torch.stack([above, torch.ones_like(above)]), persistent=False)

    @property
    def distance(self) -> int:
        """Number of tokens from a token to the one below it."""
        return math.prod(self.config.target_shape[1:])

    def forward(self, above: Tensor, known: Tensor, features: Tensor, estimate: Tensor,
                place: Tensor, way: int) -> Tensor:
        """Return the scores [B, N, V] of targets `place` [B, N], drafted as `way` says.

        `above` are the decoder's outputs one row above, and `known` is the position table at the
        targets, both [B, N, D]; `features` are their neighbour features, and `estimate` is that of
        their intensities [B, N].
        """
        features = features * self.read[way]
        state = F.relu(self.first(torch.cat([above, known, features], -1)) + self.way.weight[way])
        state = state + F.relu(self.second(state))
        projected, weights = self.last(state).tensor_split((self.config.outputs,), dim=-1)
        weights = weights + self.direct[way][place % self.config.channels]
        centre = estimate + (weights * features).sum(-1) * RESIDUAL_SCALE
        return scores_around(*ordinal_term(projected, centre), projected, self.config)


def hidden_states(rows: int, config: ModelConfig) -> Tensor:
    """Return room for the decoder's outputs of `rows` rows, [rows, T, D]."""
    return torch.zeros(rows, config.target_length, config.width)


class Known:
    """What a head reads of the rows of `session`: tokens, drafts among them, and the decoder's
    outputs."""

    def __init__(self, head: BelowHead, session: StepSession, tokens: Tensor,
                 hidden: Tensor | None = None) -> None:
        """Read `tokens`, int64 [B, T or more], and `hidden` [B, T, D], as they are filled."""
        self.head, self.session, self.tokens = head, session, tokens
        self.hidden = hidden_states(len(tokens), head.config) if hidden is None else hidden

    def note(self, state: StepState) -> None:
        """Store the decoder's outputs of a step; ConfigError if the engine's steps return none."""
        require(isinstance(state, StepState), "the head below reads the decoder's outputs; give "
                "the engine plain, without limits on the tokens")
        self.hidden.scatter_(1, state.position.unsqueeze(-1).expand_as(state.hidden), state.hidden)

    def scores(self, place: Tensor, way: int) -> Tensor:
        """Return the head's scores [B, N, V] of targets `place` [B, N]."""
        own, near = self.session, self.session.neighbourhood
        deviation = (self.tokens[:, : own.config.target_length] - own.estimate) / RESIDUAL_SCALE
        features = near.features(near.buffer(deviation, own.residual_sum), place)
        above = take(self.hidden, (place - self.head.distance).clamp(min=0))
        return self.head(above, own.look_up(own.position_table, place), features,
                         own.estimate.gather(1, place), place, way)

    def draft_row(self, sampler: SpeculativeSampler, place: Tensor) -> tuple[Tensor, Tensor]:
        """Draw tokens at `place` [B, N] of whole pixels, all pixels at once and their channels in
        order; return them and their distributions [B, N, V]."""
        q = torch.zeros_like(sampler.q)
        for channel in range(step := self.head.config.channels):
            own = slice(channel, None, step)
            q[:, own] = sampler.distribution(self.scores(place[:, own], APART), own)
            chosen = draw(q[:, own], sampler.noise[:, own, PROPOSAL, None])
            self.tokens.scatter_(1, place[:, own], chosen)
        return self.tokens.gather(1, place), q


class Drawing(Known):
    """Pictures drawn outside the loop, by steps over any number of tokens up to a row."""

    def __init__(self, head: BelowHead, model: StepModel, source: Tensor) -> None:
        """Begin the pictures of sources [B, S]."""
        self.store = torch.zeros(len(source), model.length + head.distance + 2, dtype=torch.int64)
        super().__init__(head, model.session(source, head.distance + 1), self.store[:, 1:])
        self.calls: list[tuple[int, int]] = []  # position and number of tokens committed
        self.output = self._step(0, 1)

    def read(self, tokens: Tensor, position: int) -> StepOutput:
        """Verify `tokens` [B, N] from `position` on: score their targets."""
        self.calls.append((position, 0))
        self.tokens[:, position : position + tokens.shape[1]] = tokens
        return self._step(position, tokens.shape[1])

    def commit(self, tokens: Tensor, position: int) -> int:
        """Commit `tokens` [B, N] from `position` on; return the next position, which is scored."""
        count = tokens.shape[1]
        self.calls.append((position, count))
        self.tokens[:, position : position + count] = tokens
        self.output = self._step(position, count + 1)
        return position + count

    def _step(self, position: int, count: int) -> StepOutput:
        self.session.resize(count)
        output = self.session.step(self.store[:, position : position + count],
                                   torch.full((len(self.store),), position))
        self.note(output.state)
        return output

    def result(self) -> Decoded:
        """Return the pictures and their traces; a call that commits nothing is an iteration."""
        tokens = self.tokens[:, : self.head.config.target_length].clone()
        blocks = torch.full((len(tokens), len(self.calls), self.head.distance), -1)
        for number, (position, count) in enumerate(self.calls):
            blocks[:, number, :count] = tokens[:, position : position + count]
        positions, accepted = map(list, zip(*self.calls, strict=True))
        return Decoded(tokens, [RowTrace(positions, accepted, row.numpy()) for row in blocks])


def load_head(config: ModelConfig, path: Path = WEIGHTS) -> BelowHead:
    """Return the head for a network of `config` with the weights in `path`."""
    head = BelowHead(config).eval().requires_grad_(False)
    head.load_state_dict({name: torch.from_numpy(array).float()
                          for name, array in read_arrays(path).items()})
    return head
