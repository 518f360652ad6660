"""ZipAR: a row starts before the row above it is complete (He et al. 2025, arXiv 2412.04062).

A token may be drawn once `window` pixels of the row above are there from its own column on, so that
H rows of C pixels take window * (H - 1) + C steps instead of H * C. Where the last token above a
new row is missing, another one stands in for it, until it is drawn and read in its place. An
adaptive window makes a row's first token wait: when the row above has a pixel more, it is accepted
with probability min(1, p / q), p and q being its distributions after and before; else it is drawn
again, from norm(max(0, p - q)), and waits on.

The paper reports up to 91 % fewer steps and does not claim losslessness: a token is drawn without a
part of what the network reads before it. Here a pixel has three tokens. As in the authors' code for
LlamaGen, the token that stands in is the latest of the row two above; for the second row, which
their code starts when the first is complete, it is the latest of the first. Their code has no
adaptive window, and attends to zeros at missing tokens; here they are hidden.
"""

from functools import partial

import torch
from torch import Tensor

from decodes import Decoded
from rows import Rows, remainder
from rule import Rule
from superres.config import DecodeConfig
from superres.decoding.plain.sampling import draw
from superres.nn.torch_model import StepModel


class FirstTokens:
    """The first token [B, 1] of the row of each picture that is about to start, or -1."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.token = rows, torch.full_like(rows.tokens[:, :1], -1)
        self.q = rows.tokens.new_zeros(len(rows.tokens), 1, rows.vocabulary).double()

    def judge(self, place: Tensor, scores: Tensor, tokens: Tensor, starts: Tensor,
              complete: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens [B, A], of which at most one of a picture `starts` a row, and which are
        accepted."""
        slot, here = starts.int().argmax(1, keepdim=True), starts.any(1, keepdim=True)
        at = place.gather(1, slot).clamp(min=0)
        p = self.rows.chances(scores[torch.arange(len(at)).unsqueeze(1), slot], at)
        waiting, uniform = self.token.clamp(min=0).unsqueeze(2), self.rows.uniform(at)
        kept = uniform[..., 0] * self.q.gather(2, waiting)[..., 0] < p.gather(2, waiting)[..., 0]
        again = torch.where(kept, self.token, draw(remainder(p, self.q), uniform[..., 1:2]))
        token = torch.where(self.token < 0, tokens.gather(1, slot), again)
        passed = kept & (self.token >= 0) | complete.gather(1, slot)
        self.q = torch.where(here.unsqueeze(2), p, self.q)
        self.token = torch.where(here, token.masked_fill(passed, -1), self.token)
        return torch.where(starts, token, tokens), ~starts | passed


@torch.inference_mode()
def decode(model: StepModel, source: Tensor, options: DecodeConfig, keys: Tensor, window: int,
           adaptive: bool) -> Decoded:
    """Decode sources [B, S]; rows start when the row above has `window` pixels."""
    _, columns, channels = model.model.config.target_shape
    rows = Rows(model, source, options, keys, -(-columns // window))
    first = FirstTokens(rows)
    while rows.unfinished:
        row, count, above = rows.front()
        pixels = torch.where(above % channels == 0, above // channels, 0)
        starts = (count == 0) & (row > 0) & (pixels >= window)
        place = torch.where(starts | (above > 0) & ((count > 0) | (row == 0)),
                            row * rows.width + count, -1)
        complete = above == rows.width
        scores = rows.read(place, rows.latest(row - 2).masked_fill(~starts | complete, -1))
        tokens, passed = rows.samplers.at(place.clamp(min=0))(scores), place >= 0
        if adaptive:
            tokens, accepted = first.judge(place, scores, tokens, starts, complete)
            passed = passed & accepted
        rows.commit(place, tokens, passed)
    return rows.result()


PAPER = "He et al. 2025, arXiv 2412.04062"
RULES = [Rule(f"ZipAR, window {size}" + ", adaptive" * adaptive, PAPER, "none",
              decode=partial(decode, window=size, adaptive=adaptive))
         for size, adaptive in ((2, False), (4, False), (4, True), (8, False))]
