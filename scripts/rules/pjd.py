"""Parallel Jacobi Decoding: drafts in several rows at once (Liao et al. 2026, arXiv 2606.05703).

A row becomes active when the row above has `context` tokens. A step scores up to `window` columns
of every active row: its next token and drafts of those after it, in lower rows no more than the row
above is ahead. A column sees what is decided and the drafts of its own row, no other row's (the
row-causal mask). From left to right, a draft x is accepted with probability min(1, p(x) / q(x)),
where q is the distribution that it was drawn from in an earlier step. After them, the top row
gets a token from norm(max(0, p - q)), or from p if no draft was rejected; lower rows get none. The
others are drawn from p as the next step's drafts. A draft without a distribution is a random token,
with q = 1.

The paper claims 4.8 to 6.4 times the speed with "competitive" pictures, not losslessness: rows see
less than the network reads, and a lower row draws a rejected token from p again, not from the
residual. The authors' code also keeps a draft behind a rejected one if its p / q is above 0.5, with
the old q. So does this. Here, the mask also hides drafts from the network's inputs of neighbours,
at most six rows are active, and where the last token above a row is missing, the latest one of
the row above stands in for it, as the paper does for LlamaGen.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from decodes import Decoded
from rows import Rows, remainder
from rule import Rule
from superres.config import DecodeConfig
from superres.decoding.plain.sampling import draw
from superres.nn.torch_model import StepModel

MOST, REUSED = 6, 0.5


@torch.inference_mode()
def decode(model: StepModel, source: Tensor, options: DecodeConfig, keys: Tensor, context: int,
           window: int) -> Decoded:
    """Decode sources [B, S]; W is `window`, and N is A * W."""
    rows = Rows(model, source, options, keys, MOST)
    columns, targets = torch.arange(window), torch.arange(model.length).expand(len(source), -1)
    rows.tokens[:, 1:-1] = (rows.uniform(targets)[..., 2] * model.vocabulary).long()
    # Of the drafts, by r % A * W + j % W for token j of row r
    qs = torch.zeros(len(source), rows.most * window, model.vocabulary, dtype=torch.float64)
    drawn = torch.zeros(len(source), model.length + 1, dtype=torch.bool)
    while rows.unfinished:
        row, count, above = rows.front()
        ahead = torch.where(row == rows.top, rows.width, above) - count
        size = ahead.clamp(max=window).masked_fill(above < min(context, rows.width), 0).unsqueeze(2)
        token, active = count.unsqueeze(2) + columns, columns < size  # [B, A, W]
        place = (row.unsqueeze(2) * rows.width + token).masked_fill(~active, -1).flatten(1)
        early = (token == 0) & (row > rows.top).unsqueeze(2)
        stand_in = rows.latest(row - 1).unsqueeze(2).masked_fill(~early, -1).flatten(1)
        p = rows.chances(rows.read(place, stand_in), place.clamp(min=0))  # [B, N, V]
        draft, uniform = rows.tokens.gather(1, place + 1), rows.uniform(place.clamp(min=0))
        cell = (row.unsqueeze(2) % rows.most * window + token % window).view(*draft.shape, 1)
        q = qs.gather(1, cell.expand_as(p))
        fresh = ~drawn.gather(1, place % drawn.shape[1]) & (place >= 0)
        q[fresh] = F.one_hot(draft[fresh], model.vocabulary).double()
        px, qx = (chance.gather(2, draft.unsqueeze(2)).view_as(token) for chance in (p, q))
        judged = columns < size - 1
        passed = (judged & (uniform[..., 0].view_as(px) * qx < px)).int().cumprod(2).bool()
        end = passed.sum(2, keepdim=True)
        last = active & (columns == end) & (row == rows.top).unsqueeze(2)
        kept = passed | judged & (columns > end) & (px > REUSED * qx)
        weights = torch.where((last & judged).view(*draft.shape, 1), remainder(p, q), p)
        new = torch.where(kept.flatten(1), draft, draw(weights, uniform[..., 1:2]))
        rows.commit(place, new, (passed | last).flatten(1))
        qs.scatter_(1, cell.expand_as(p), torch.where((active & ~kept).view(cell.shape), p, q))
        drawn.scatter_(1, place % drawn.shape[1], True)
    return rows.result()


PAPER = "Liao et al. 2026, arXiv 2606.05703"
RULES = [Rule(f"PJD, context {context // 3}", PAPER, "none",
              decode=partial(decode, context=context, window=8)) for context in (6, 24)]
