"""Two directions without loss: heads to the right draft a block's first tokens, one below others.

The heads are those of SSD (Xiang et al. 2026, arXiv 2606.20543; see `ssd.py`), the loop is that of
speculative sampling: a block is drafted in raster order, and block verification judges it. So the
samples are the network's whatever the heads say, which the paper gives up for rows drafted at once.
The right heads p2..pk read the latest state and end at k; the head below reads the state one row up
and the drafts to its left, at any offset. "below" drafts by the right heads in the first row alone.
Drafting by the head whose likeliest token is more probable keeps fewer tokens than the right heads
where there are some. Needs the decoder's outputs: the engine `plain`, without limits on the tokens.
"""

import torch
from torch import Tensor

from rule import Rule
from spatial_heads import IN_ORDER, Known, hidden_states, load_head
from superres import register_proposer
from superres.decoding.proposers.proposer import Context, Proposer, RowTensors, state_of
from superres.interfaces import Engine
from superres.sessions import Sampler


class InOrder(Sampler):
    """Draws proposals in order: by the scores of the right heads where there are some, or below."""

    def __init__(self, context: Context, known: Known, right: bool) -> None:
        self.context, self.known, self.right = context, known, right

    def __call__(self, scores: Tensor | None, offsets: Tensor) -> Tensor:
        known, drawn = self.known, []
        for column, offset in enumerate(offsets.split(1)):
            place = self.context.position.unsqueeze(1) + offset  # [B, 1]
            inside = place.clamp(max=known.hidden.shape[1] - 1)
            own = None if scores is None else scores[:, column : column + 1]  # [B, 1, V]
            if own is None or not self.right:
                below, first = known.scores(inside, IN_ORDER), inside < known.head.distance
                own = below if own is None else own.where(first.unsqueeze(-1), below)
            drawn.append(self.context.sampler(own, offset))
            known.tokens.scatter_(1, place, drawn[-1])
        return torch.cat(drawn, dim=1)


@register_proposer("right-and-below")
class RightAndBelow(Proposer):
    """Drafts of the right heads, and of the head below beyond them."""

    draws, block_size, right, training = True, 16, True, "a head below"

    def check(self, engine: Engine) -> None:
        self.head = load_head(engine.network.config)

    def new_state(self, source: Tensor, width: int, padding: Tensor | None,
                  copies: int) -> RowTensors:
        return RowTensors(hidden_states(len(source) * copies, self.head.config))

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        known = Known(self.head, context.session.session, context.tokens.clone(),
                      *state_of(context.session).tensors)
        known.note(context.output.state)
        known.tokens.scatter_(1, context.position.unsqueeze(1), context.first.unsqueeze(1))
        sampler, heads = InOrder(context, known, self.right), self.head.config.prediction_heads - 1
        tokens = context.session.propose(context.output, context.index, context.first,
                                         offsets[:heads], sampler)
        more = [sampler(None, offsets[heads:])] if len(offsets) > heads else []
        return torch.cat([tokens, *more], dim=1)


@register_proposer("below")
class Below(RightAndBelow):
    """Drafts of the head below, and of the right heads in the first row."""

    right = False


PAPER = "heads of Xiang et al. 2026, arXiv 2606.20543; verified as in Sun et al. 2025"
RULES = [Rule(name, PAPER, "lossless", {"proposer": proposer, "block_size": size,
                                        "sampling": "speculative"}, needs="heads, a head below",
              engine="plain")
         for name, proposer, size in (("right and below, 16", "right-and-below", 16),
                                      ("right and below, 24", "right-and-below", 24),
                                      ("below", "below", 16))]
