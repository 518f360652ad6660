"""SSD: heads draft to the right and below (Xiang et al. 2026, arXiv 2606.20543).

Heads on a frozen network draft the first row from left to right, and every further row at once: the
token below each token, all columns apart. A call of the network verifies the row: a draft passes
with probability min(1, p / q), each by itself, and a draw from max(0, p - q) replaces one that does
not; nothing is rolled back. This is done r times (0 to 2), and a last call commits the row. A
position's context may change after it was judged: quality near the network's at r = 2 is measured,
exactness not claimed. The samples are the network's once r is the tokens of a row.

The abstract was read itself, schedule and formulas in accounts that quote them. They don't say what
q is in the second round: here what the token was last drawn from, p of the first. Theirs draft one
or two rows; here it is one, in three steps, as a token is one channel of a pixel. Their head below
learns hidden states; here p1 reads the tokens to the left beside its state, so the head learns p1's
distributions (`scripts/train/below_heads.py`). The lossless rule is in `right_and_below.py`.
"""

from functools import partial

import torch
from torch import Tensor

from decodes import Decoded
from rule import Rule
from spatial_heads import Drawing, load_head
from superres.config import DecodeConfig
from superres.decoding.acceptance import Draws
from superres.decoding.plain import sampling
from superres.nn.torch_model import StepModel


def draft_right(drawing: Drawing, sampler: sampling.SpeculativeSampler,
                place: Tensor) -> tuple[Tensor, Tensor]:
    """Draw the token after the latest output by p1, and further ones by p2..pk; return them [B, N]
    and their distributions [B, N, V]."""
    scores, offsets = drawing.output.scores, torch.arange(1, place.shape[1])
    p = sampler.distribution(scores[:, -1:], slice(1))
    first = sampling.draw(p, sampler.noise[:, :1, sampling.PROPOSAL, None])
    if not len(offsets):
        return first, p
    column = torch.full_like(place[:, 0], scores.shape[1] - 1)
    rest = drawing.session.propose(drawing.output, column, first[:, 0], offsets, sampler)
    return torch.cat([first, rest], dim=1), torch.cat([p, sampler.q[:, :-1]], dim=1)


def corrected(tokens: Tensor, q: Tensor, p: Tensor, noise: Tensor) -> Tensor:
    """Return the tokens [B, N] that pass, drawn from q [B, N, V], and others for the rest."""
    ratio = Draws(tokens, p, q, noise, tokens, tokens).ratio()
    other = sampling.residual(p, q, 1.0) + 1e-9 * p  # p itself where q is p but for rounding
    return torch.where(noise[..., sampling.VERDICT] < ratio, tokens,
                       sampling.draw(other, noise[..., sampling.COMMITTED, None]))


@torch.inference_mode()
def decode(model: StepModel, source: Tensor, options: DecodeConfig, keys: Tensor,
           rounds: int) -> Decoded:
    """Decode sources [B, S], each row in `rounds` verifications and a call that commits it."""
    drawing, position = Drawing(load_head(model.model.config), model, source), 0
    samplers, row = sampling.Samplers(options, keys, model.vocabulary), drawing.head.distance
    while position < model.length:
        count = row if position >= row else min(model.prediction_heads, row - position)
        columns = torch.arange(count)
        place = (position + columns).expand(len(source), -1)
        sampler = samplers.at(place)
        tokens, q = (drawing.draft_row(sampler, place) if position >= row
                     else draft_right(drawing, sampler, place))
        for number in range(1, 1 + rounds):
            p = sampler.distribution(drawing.read(tokens, position).scores, slice(count))
            tokens = corrected(tokens, q, p, samplers.uniform(place, columns + number * row))
            q = p
        position = drawing.commit(tokens, position)
    return drawing.result()


RULES = [Rule(f"SSD, {rounds} round" + "s" * (rounds != 1), "Xiang et al. 2026, arXiv 2606.20543",
              "none", {"sampling": "speculative"}, partial(decode, rounds=rounds),
              "heads, a head below") for rounds in (0, 1, 2)]
