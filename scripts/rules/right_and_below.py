"""Two directions without loss: each draft by the surer of a head to the right and the head below.

The heads are those of SSD (Xiang et al. 2026, arXiv 2606.20543; see `ssd.py`), the loop is that of
speculative sampling: a block is drafted in raster order, and block verification judges it. So the
samples are the network's whatever the heads say, which the paper gives up for rows drafted at once.
A draft at offset i is by p(i + 1), whose state is the latest one, or by the head below, whose state
is one row up, and which also reads the drafts to its left: the one whose likeliest token is more
probable. The right heads end at pk. "below" drafts by them in the first row only. Needs the outputs
of the decoder, which the engine `plain` gives without limits on the tokens.
"""

import torch
from torch import Tensor

from rule import Rule
from spatial_heads import IN_ORDER, Known, hidden_states, load_head
from superres import register_proposer
from superres.decoding.proposers.proposer import Context, Proposer, RowTensors, state_of
from superres.interfaces import Engine
from superres.sessions import Sampler


class Surer(Sampler):
    """Draws proposals in order, each from the scores of the right head or of the head below."""

    def __init__(self, context: Context, known: Known, right: bool) -> None:
        self.context, self.known, self.right = context, known, right

    def __call__(self, scores: Tensor | None, offsets: Tensor) -> Tensor:
        known, drawn = self.known, []
        for column, offset in enumerate(offsets.split(1)):
            place = self.context.position.unsqueeze(1) + offset  # [B, 1]
            inside = place.clamp(max=known.hidden.shape[1] - 1)
            chosen = known.scores(inside, IN_ORDER)  # [B, 1, V]
            if scores is not None:
                other = scores[:, column : column + 1]
                surer = self.right & (other.softmax(-1).amax(-1) > chosen.softmax(-1).amax(-1))
                by_right = surer | (inside < known.head.distance)
                chosen = torch.where(by_right.unsqueeze(-1), other, chosen)
            drawn.append(self.context.sampler(chosen, offset))
            known.tokens.scatter_(1, place, drawn[-1])
        return torch.cat(drawn, dim=1)


@register_proposer("right-and-below")
class RightAndBelow(Proposer):
    """Drafts of the surer of two directions."""

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
        sampler, heads = Surer(context, known, self.right), self.head.config.prediction_heads - 1
        tokens = context.session.propose(context.output, context.index, context.first,
                                         offsets[:heads], sampler)
        more = [sampler(None, offsets[heads:])] if len(offsets) > heads else []
        return torch.cat([tokens, *more], dim=1)


@register_proposer("below")
class Below(RightAndBelow):
    """Drafts of the head below, and of the right heads in the first row."""

    right = False


PAPER = "heads of Xiang et al. 2026, arXiv 2606.20543; verified as in Sun et al. 2025"
RULES = [Rule(name, PAPER, "lossless", {"proposer": name.replace(" ", "-"), "block_size": 16,
                                        "sampling": "speculative"}, needs="heads, a head below")
         for name in ("right and below", "below")]
