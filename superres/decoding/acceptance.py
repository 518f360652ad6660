"""Acceptance criteria: which proposed tokens pass verification (sections 3 and 5 of the paper).

A criterion judges each token given the tokens before it in the block. The loop computes the longest
accepted prefix; it applies the minimum block, the end token and the target's end, and always
accepts the verifier's own token first. No criterion accepts a token of probability 0 (score -inf),
such as a token that a sampling filter excludes.

A `DrawCriterion` judges the proposals of speculative sampling, which were drawn at random, by the
distributions of proposer and verifier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, TypeAlias

from superres.config import CRITERION_NAMES, CRITERION_PLUGINS, DecodeConfig, Registry

if TYPE_CHECKING:  # the command line lists the criteria in its help, which must not wait for torch
    from torch import Tensor

Rule: TypeAlias = tuple[Literal["distance", "rank"], int]
"""A criterion as data. ("distance", e): |proposal - p1's choice| must be at most e grey levels, 0
for exact acceptance. ("rank", n): the proposal must be among the n tokens that p1 scores best."""


def possible(proposed: Tensor, scores: Tensor) -> Tensor:
    """Return whether proposals [B, N] have a positive probability under scores [B, N, V], bool [B,
    N]."""
    return ~scores.gather(-1, proposed.unsqueeze(-1)).squeeze(-1).isneginf()


class Criterion:
    """An acceptance criterion; one of your own derives from this class and defines `accept`."""

    # Names of the fields of `DecodeConfig` that the criterion reads
    settings: ClassVar[tuple[str, ...]] = ()
    rule: Rule | None = None
    """The criterion as data, for compiled iterations; None if it has no such form: `accept` is
    called instead."""

    def __init__(self, options: DecodeConfig) -> None:
        """Read the `settings` from `options`; raises ConfigError if the criterion does not support
        them."""

    def accept(self, proposed: Tensor, scores: Tensor, position: Tensor) -> Tensor:
        """Return whether each proposal of a block passes, bool [B, N]; False where its score is
        -inf.

        Column i of the tokens `proposed` [B, N] holds proposal i + 2. The result of a column may
        depend on the columns to its left, but not on those to its right. `scores` are p1's [B, N,
        V], divided by the temperature, with noise added. Results at a target `position` [B, N] past
        the end are ignored.
        """
        raise NotImplementedError(f"the criterion {type(self).__name__} does not define accept")


@dataclass
class Draws:
    """The drawn proposals 2..k of a block, and what judges them."""

    proposed: Tensor  # int64 [B, N]; column i was proposed at offset i + 1 from the block's start
    # p1's distributions at these positions, after temperature and filters, float64 [B, N, V]
    p: Tensor
    # the distributions that the proposals were drawn from, [B, N, V]; 1 at a proposal that was not
    # drawn, and all 0 where nothing was proposed, in the first step
    q: Tensor
    uniform: Tensor  # numbers in (0, 1), others in every step, [B, N]
    position: Tensor  # target positions of the proposals, [B, N]
    last: Tensor  # the largest number of proposals that each row may accept, [B, 1]

    def ratio(self) -> Tensor:
        """Return p / q of each proposal, [B, N]; 0 where nothing was proposed."""
        own = self.proposed.unsqueeze(-1)
        p, q = self.p.gather(-1, own).squeeze(-1), self.q.gather(-1, own).squeeze(-1)
        return (p / q).masked_fill(q == 0, 0.0)


class Verdict(NamedTuple):
    """What a `DrawCriterion` says of a block."""

    passed: Tensor  # bool [B, N]; the longest prefix that passes is accepted
    rest: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Maps p and q [B, 1, V] of the position after the accepted proposals, and their number [B], to
    weights [B, 1, V] that its token is drawn from: the column of the first rejected proposal. After
    the last proposal q is 0."""


class DrawCriterion(Criterion):
    """A criterion of speculative sampling; one of your own defines `judge`."""

    def judge(self, draws: Draws) -> Verdict:
        """Return which proposals pass, and what replaces the first one that does not."""
        raise NotImplementedError(f"the criterion {type(self).__name__} does not define judge")


class Exact(Criterion):
    """Accept a token that equals the verifier's choice (section 3)."""

    rule = ("distance", 0)

    def accept(self, proposed: Tensor, scores: Tensor, position: Tensor) -> Tensor:
        return proposed == scores.argmax(-1)


class Distance(Criterion):
    """Accept a token within epsilon grey levels of the verifier's choice (section 5.2)."""

    settings: ClassVar[tuple[str, ...]] = ("epsilon",)

    def __init__(self, options: DecodeConfig) -> None:
        self.epsilon = options.epsilon
        self.rule = ("distance", self.epsilon)

    def accept(self, proposed: Tensor, scores: Tensor, position: Tensor) -> Tensor:
        return ((proposed - scores.argmax(-1)).abs() <= self.epsilon) & possible(proposed, scores)


class TopK(Criterion):
    """Accept a token among the verifier's k best (section 5.1), including ties with the k-th
    best."""

    settings: ClassVar[tuple[str, ...]] = ("top_k",)

    def __init__(self, options: DecodeConfig) -> None:
        self.k = options.top_k
        self.rule = ("rank", self.k)

    def accept(self, proposed: Tensor, scores: Tensor, position: Tensor) -> Tensor:
        own = scores.gather(-1, proposed.unsqueeze(-1))  # [B, N, 1]
        worst = scores.topk(min(self.k, scores.shape[-1]), dim=-1).values[..., -1:]  # [B, N, 1]
        # If fewer than k tokens are possible, the k-th best score is -inf.
        return (own >= worst).squeeze(-1) & possible(proposed, scores)


CRITERIA: Registry[type[Criterion]] = Registry(
    CRITERION_NAMES, {"exact": Exact, "distance": Distance, "top-k": TopK}, CRITERION_PLUGINS,
    "Criterion", "criterion")
"""Acceptance criteria by name."""
