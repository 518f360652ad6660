"""Acceptance criteria: which proposed tokens pass verification (sections 3 and 5 of the paper).

A criterion judges each token given the tokens before it in the block. The loop computes the longest accepted prefix; it
applies the minimum block, the end token and the target's end, and always accepts the verifier's own token first. No
criterion accepts a token of probability 0 (score -inf), such as a token that a sampling filter excludes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from superres.config import CRITERION_NAMES, DecodeConfig, Registry

if TYPE_CHECKING:  # the command line lists the criteria in its help, which must not wait for torch
    from torch import Tensor

    from superres.interfaces import Rule


class Criterion(Protocol):
    """Judges proposed tokens against the verifier's scores."""

    settings: ClassVar[tuple[str, ...]]
    """Names of the fields of `DecodeConfig` that the criterion reads."""
    rule: Rule | None
    """The criterion as data, for engines with native iterations; None if it has no such form."""

    def __init__(self, options: DecodeConfig) -> None:
        """Read the `settings` from `options`.

        Raises:
            ConfigError: the criterion does not support the settings.
        """
        ...

    def accept(self, proposed: Tensor, scores: Tensor, position: Tensor) -> Tensor:
        """Judge proposals 2..N+1 of a block.

        Args:
            proposed: tokens [B, N]; column i holds proposal i + 2.
            scores: p1's scores [B, N, V], divided by the temperature, with noise added.
            position: target positions [B, N] of the proposals; results past the end of a target are ignored.

        Returns:
            Whether each proposal passes, bool [B, N]; False where its score is -inf. The result of a column may depend
            on the columns to its left, but not on the columns to its right.
        """
        ...


def difference(proposed: Tensor, scores: Tensor) -> Tensor:
    """Return |proposal - verifier's choice| in grey levels [B, N], for proposals [B, N] and scores [B, N, V]."""
    return (proposed - scores.argmax(-1)).abs()


def possible(proposed: Tensor, scores: Tensor) -> Tensor:
    """Return whether proposals [B, N] have a positive probability under scores [B, N, V], bool [B, N]."""
    return ~scores.gather(-1, proposed.unsqueeze(-1)).squeeze(-1).isneginf()


class Exact:
    """Accept a token that equals the verifier's choice (section 3)."""

    settings: ClassVar[tuple[str, ...]] = ()
    rule: Rule | None = ("distance", 0)

    def __init__(self, options: DecodeConfig) -> None:
        """See `Criterion`."""

    def accept(self, proposed: Tensor, scores: Tensor, position: Tensor) -> Tensor:
        """See `Criterion.accept`."""
        return proposed == scores.argmax(-1)


class Distance:
    """Accept a token within epsilon grey levels of the verifier's choice (section 5.2)."""

    settings: ClassVar[tuple[str, ...]] = ("epsilon",)

    def __init__(self, options: DecodeConfig) -> None:
        """See `Criterion`."""
        self.epsilon = options.epsilon
        self.rule: Rule | None = ("distance", self.epsilon)

    def accept(self, proposed: Tensor, scores: Tensor, position: Tensor) -> Tensor:
        """See `Criterion.accept`."""
        return (difference(proposed, scores) <= self.epsilon) & possible(proposed, scores)


class TopK:
    """Accept a token among the verifier's k best (section 5.1), including ties with the k-th best."""

    settings: ClassVar[tuple[str, ...]] = ("top_k",)

    def __init__(self, options: DecodeConfig) -> None:
        """See `Criterion`."""
        self.k = options.top_k
        self.rule: Rule | None = ("rank", self.k)

    def accept(self, proposed: Tensor, scores: Tensor, position: Tensor) -> Tensor:
        """See `Criterion.accept`."""
        own = scores.gather(-1, proposed.unsqueeze(-1))  # [B, N, 1]
        worst = scores.topk(min(self.k, scores.shape[-1]), dim=-1).values[..., -1:]  # [B, N, 1]
        # If fewer than k tokens are possible, the k-th best score is -inf.
        return (own >= worst).squeeze(-1) & possible(proposed, scores)


CRITERIA: Registry[type[Criterion]] = Registry(CRITERION_NAMES, {"exact": Exact, "distance": Distance, "top-k": TopK})
"""Acceptance criteria by name."""
