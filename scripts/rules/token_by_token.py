"""Token-by-token verification: the acceptance of speculative sampling as it was first published.

Leviathan et al. 2023 (arXiv 2211.17192, algorithm 1) and Chen et al. 2023 (arXiv 2302.01318,
algorithm 2) accept a proposal x with probability min(1, p(x) / q(x)), each by itself, until one is
rejected; its position is drawn from norm(max(0, p - q)). Both prove that the samples have the
network's distribution. Block verification, which is built in, accepts at least as many tokens in
expectation.
"""

import superres
from rule import Rule
from superres.decoding.acceptance import DrawCriterion, Draws, Verdict
from superres.decoding.plain.sampling import residual


@superres.register_criterion("token-by-token")
class TokenByToken(DrawCriterion):
    """Accept every proposal by its own ratio."""

    def judge(self, draws: Draws) -> Verdict:
        return Verdict(draws.uniform < draws.ratio(), lambda p, q, index: residual(p, q, 1.0))


RULES = [Rule(
    "heads, token by token verification",
    "Leviathan et al. 2023, arXiv 2211.17192, algorithm 1; Chen et al. 2023, arXiv 2302.01318",
    "lossless", {"block_size": 10, "sampling": "speculative", "accept": "token-by-token"},
    needs="heads")]
