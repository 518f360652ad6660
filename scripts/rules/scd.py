"""SCD: speculative coupled decoding (So et al. 2026, arXiv 2510.24211, algorithm 3).

SJD draws every token of the window anew in each step, so nearly all change, and with them what the
tokens after them are scored on. SCD couples the draws of two steps, so that most stay; each keeps
its distribution, the stale one of the last step, which is q. The paper claims the network's
distribution:
- maximal coupling keeps a token x with probability min(1, p(x) / q(x)), and otherwise draws from
  norm(max(0, p - q)): acceptance itself, applied after the rejected token as well. SJD-PAC's
  adaptive continuation (Kang et al. 2026, arXiv 2603.18599, algorithm 1) is the same;
- Gumbel coupling takes argmax(log p + g), with the same Gumbel noise g at a position in each step.

Such draws need token-by-token verification: block verification ends a block by all of its tokens,
so those that stay would no longer have the distribution q.

The authors' code for Lumina-mGPT and Janus-Pro continues with the older q for a token that maximal
coupling keeps, which is not lossless; their code for Cosmos has the q of the paper. New tokens at
the window's end are those of "SJD, left sampled" here, and random there.
"""

from torch import Tensor

import superres
from rule import Rule
from sjd import LeftSampled
from superres.decoding.acceptance import Draws
from superres.decoding.plain.sampling import PROPOSAL, draw, residual
from superres.decoding.proposers.proposer import Context


@superres.register_proposer("scd-maximal")
class MaximalCoupling(LeftSampled):
    """Stale tokens, kept as a step accepts them."""

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        tokens, sampler = super().propose(context, offsets), context.sampler
        if context.draws is None:
            return tokens
        token, q, passed = previous(context.draws, context.index.unsqueeze(1) + offsets)
        p = sampler.q[:, offsets - 1]
        redrawn = draw(residual(p, q, 1.0), sampler.noise[:, offsets, PROPOSAL].unsqueeze(-1))
        return sampler.put(token.where(passed, redrawn), p, offsets)


@superres.register_proposer("scd-gumbel")
class GumbelCoupling(LeftSampled):
    """Stale tokens, drawn with the noise of their positions."""

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        super().propose(context, offsets)
        q = context.sampler.q[:, offsets - 1]
        return context.sampler.put((q.log() + context.sampler.gumbel(offsets)).argmax(-1), q,
                                   offsets)


def previous(draws: Draws, column: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the proposals of a step at `column` [B, N], their q [B, N, V], and whether each passes
    by its own ratio; q is 0 where there was no proposal."""
    at = column.clamp(max=draws.q.shape[1] - 1)
    exists = column == at
    q = draws.q.gather(1, at.unsqueeze(-1).expand(-1, -1, draws.q.shape[-1]))
    passed = (draws.uniform < draws.ratio()).gather(1, at) & exists
    return draws.proposed.gather(1, at), q * exists.unsqueeze(-1), passed


RULES = [Rule(f"SCD, {name} coupling", "So et al. 2026, arXiv 2510.24211, algorithm 3", "lossless",
              {"proposer": f"scd-{name.lower()}", "accept": "token-by-token",
               "sampling": "speculative", "block_size": 16}) for name in ("maximal", "Gumbel")]
