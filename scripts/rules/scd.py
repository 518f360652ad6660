"""SCD: speculative coupled decoding (So et al. 2026, arXiv 2510.24211, section 4).

SJD draws every token of the window anew in each step, so nearly all change, and with them what the
tokens after them are scored on. SCD couples the draws of two steps, so that most stay; each keeps
its distribution, the stale one of the last step, which is q. The paper claims the network's
distribution:
- maximal coupling keeps a token x with probability min(1, p(x) / q(x)), and otherwise draws from
  norm(max(0, p - q)): acceptance itself, applied after the rejected token as well;
- Gumbel coupling takes argmax(log p + g), with the same Gumbel noise g at a position in each step.

Token-by-token verification alone keeps these draws independent of where a block ended, which block
verification makes depend on all of them.

The authors' code for Lumina-mGPT and Janus-Pro continues with the older q for a token that maximal
coupling keeps, which is not lossless; their code for Cosmos has the q of the paper. New tokens at
the window's end are those of "SJD, left sampled" here, random there.
"""

from torch import Tensor

import superres
from rule import Rule
from sjd import LeftSampled
from superres.decoding.plain.sampling import PROPOSAL, draw, residual
from superres.decoding.proposers.proposer import Context


@superres.register_proposer("scd-maximal")
class MaximalCoupling(LeftSampled):
    """Stale tokens, kept as a step accepts them."""

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        tokens, sampler, old = super().propose(context, offsets), context.sampler, context.draws
        if old is None or old.q.shape[1] == 0:
            return tokens
        column = context.index.unsqueeze(1) + offsets  # [B, N]
        proposed, at = column < old.q.shape[1], column.clamp(max=old.q.shape[1] - 1)
        kept = (old.uniform < old.ratio()).gather(1, at)
        q, new_q = at_columns(old.q, at), sampler.q[:, offsets - 1]  # [B, N, V]
        redrawn = draw(residual(new_q, q, 1.0), sampler.noise[:, offsets, PROPOSAL].unsqueeze(-1))
        coupled = old.proposed.gather(1, at).where(kept, redrawn)
        return sampler.put(coupled.where(proposed, tokens), new_q, offsets)


@superres.register_proposer("scd-gumbel")
class GumbelCoupling(LeftSampled):
    """Stale tokens, drawn with the noise of their positions."""

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        super().propose(context, offsets)
        q = context.sampler.q[:, offsets - 1]
        return context.sampler.put((q.log() + context.sampler.gumbel(offsets)).argmax(-1), q,
                                   offsets)


def at_columns(values: Tensor, column: Tensor) -> Tensor:
    """Return values [B, N, V] at `column` [B, M]."""
    return values.gather(1, column.unsqueeze(-1).expand(-1, -1, values.shape[-1]))


RULES = [Rule(f"SCD, {name} coupling", "So et al. 2026, arXiv 2510.24211, section 4", "lossless",
              {"proposer": f"scd-{name.lower()}", "accept": "token-by-token",
               "sampling": "speculative", "block_size": 10}) for name in ("maximal", "Gumbel")]
