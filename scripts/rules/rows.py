"""What rules that decode several rows of a picture at once have in common: how far each row is, the
columns of a model call, and the trace."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from decodes import Decoded
from superres.config import DecodeConfig
from superres.decoding.plain.sampling import (
    LEAST_WEIGHT,
    Samplers,
    distribution,
    residual,
    scaled,
)
from superres.decoding.trace import RowTrace
from superres.nn.torch_model import StepModel


class Rows:
    """Pictures of which up to `most` rows are decoded at once, with one model call per step.

    Shapes: B pictures of H rows of C tokens, A <= `most` slots. The first incomplete row of a
    picture is its slot 0, the row below it slot 1 and so on. Decoder position r * C + j reads the
    token before token j of row r, and scores token j.
    """

    def __init__(self, model: StepModel, source: Tensor, options: DecodeConfig, keys: Tensor,
                 most: int) -> None:
        shape, batch = model.model.config.target_shape, len(source)
        self.height, self.width, self.most = shape[0], shape[1] * shape[2], min(most, shape[0])
        self.options, self.vocabulary = options, model.vocabulary
        self.session = model.session(source, self.most * self.width)
        self.samplers = Samplers(options, keys, model.vocabulary)
        # By the decoder position that reads them, [B, 1 + T + 1]; idle columns write to the last.
        self.tokens = source.new_zeros(batch, 2 + model.length)
        self.count = source.new_zeros(batch, self.height)  # decoded tokens of each row
        self.finished = torch.zeros_like(self.count[:, :1])  # rows whose last token was read
        place = torch.arange(model.length, device=source.device)
        self.row, self.column = place // self.width, place % self.width  # [T]
        self.accepted: list[Tensor] = []  # [B] of each step
        self.committed: list[Tensor] = []  # [B, N] of each step; -1 after its tokens

    @property
    def unfinished(self) -> bool:
        """Whether a picture has an incomplete row."""
        return bool((self.count < self.width).any())

    def front(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the rows of the slots, how many tokens they have, and how many the rows above them
        have; [B, A] each.

        The row above the picture is complete; rows below it have no tokens, nor has the row above
        them. Slots under rows without tokens are left out.
        """
        self.top = (self.count == self.width).sum(1, keepdim=True)
        row = self.top + torch.arange(self.most, device=self.top.device)
        padded = F.pad(F.pad(self.count, (1, 0), value=self.width), (0, self.most))
        above = padded.gather(1, row).masked_fill(row >= self.height, 0)
        used = int((above > 0).any(0).sum())
        return row[:, :used], padded.gather(1, row + 1)[:, :used], above[:, :used]

    def read(self, place: Tensor, stand_in: Tensor) -> Tensor:
        """Read the tokens before `place` [B, N], or the token `stand_in` [B, N] where it is not -1;
        return scores [B, N, V].

        A column sees the tokens that are decoded, and all earlier ones in its own row. When a row
        is complete, its last token is read once more, in its place. Columns at place -1 are idle:
        they repeat the first one, and are left out where all pictures have one.
        """
        idle, first = place < 0, self.top.clamp(max=self.height - 1) * self.width
        own = torch.where(idle[:, :1], first, place[:, :1])
        late = (self.top != self.finished) & (own != first)  # [B, 1]
        self.finished, skipped = self.top, int(not late.any())
        order = idle.int().argsort(dim=1, stable=True)[:, : int((~idle).sum(1).max())]
        stand_in = F.pad(stand_in.masked_fill(idle, -1).gather(1, order), (1, 0), value=-1)
        place = torch.cat([torch.where(late, first, own),
                           torch.where(idle, own, place).gather(1, order)], dim=1)
        stand_in, place = stand_in[:, skipped:], place[:, skipped:]
        tokens = torch.where(stand_in < 0, self.tokens.gather(1, place), stand_in)
        decoded = self.column <= self.count[:, self.row]  # [B, T]
        seen = decoded.unsqueeze(1) | (self.row == self.row[place].unsqueeze(2))  # [B, ., T]
        scores = self.session.read_at(tokens, place, seen)[0][:, 1 - skipped :]
        everywhere = scores.new_zeros(*idle.shape, scores.shape[2])
        return everywhere.scatter_(1, order.unsqueeze(2).expand_as(scores), scores)

    def latest(self, row: Tensor) -> Tensor:
        """Return the token that was decoded last in each `row` [B, A], in row 0 for those above."""
        row = row.clamp(0, self.height - 1)
        return self.tokens.gather(1, row * self.width + self.count.gather(1, row))

    def chances(self, scores: Tensor, place: Tensor) -> Tensor:
        """Return p1's distributions at targets `place`, float64 [B, N, V], after temperature and
        filters."""
        if self.samplers.noise is None:
            return F.one_hot(scores.argmax(-1), self.vocabulary).double()
        return distribution(scaled(scores, self.samplers.temperature(place), self.options))

    def uniform(self, place: Tensor) -> Tensor:
        """Return uniform numbers [B, N, 3] of target positions, others in each step; 0.5 when
        decoding greedily."""
        if self.samplers.noise is None:
            return torch.full((*place.shape, 3), 0.5, dtype=torch.float64, device=place.device)
        return self.samplers.uniform(place, place.new_full(place.shape[1:], len(self.accepted)))

    def commit(self, place: Tensor, tokens: Tensor, passed: Tensor) -> None:
        """Store tokens [B, N] of targets `place`, without those at -1, and count those that
        `passed`, the next ones of their rows."""
        self.tokens.scatter_(1, torch.where(place < 0, self.tokens.shape[1] - 1, place + 1), tokens)
        self.count.scatter_add_(1, self.row[place.clamp(min=0)], passed.long())
        order = (~passed).int().argsort(dim=1, stable=True)
        self.accepted.append(passed.sum(1))
        self.committed.append(tokens.masked_fill(~passed, -1).gather(1, order))

    def result(self) -> Decoded:
        """Return the pictures, and traces with an iteration for each model call of a picture."""
        widest = max(step.shape[1] for step in self.committed)
        committed = torch.stack([F.pad(step, (0, widest - step.shape[1]), value=-1)
                                 for step in self.committed], dim=1).cpu()
        traces = []
        for counts, tokens in zip(torch.stack(self.accepted, dim=1).cpu(), committed, strict=True):
            tokens, counts = tokens[counts > 0], counts[counts > 0]
            traces.append(RowTrace((counts.cumsum(0) - counts).tolist(), counts.tolist(),
                                   tokens.numpy()))
        return Decoded(self.tokens[:, 1:-1], traces)


def remainder(p: Tensor, q: Tensor) -> Tensor:
    """Return what a token of p is drawn from if one drawn from q was rejected, as weights."""
    rest = residual(p, q, 1.0)
    return rest.where(rest.amax(-1, keepdim=True) >= LEAST_WEIGHT, p)
