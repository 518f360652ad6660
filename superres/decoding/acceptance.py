"""Acceptance criteria: which proposed tokens pass verification (sections 3 and 5 of the paper).

A criterion judges each token by itself. The loop in `superres.decoding.blockwise` owns the longest prefix, the minimum block, the
end token and clipping, and it always commits the verifier's own token first.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from superres.config import DecodeConfig


class Criterion(Protocol):
    """Judges proposed tokens against the verifier's scores."""

    def accept(self, proposed: Tensor, scores: Tensor) -> Tensor:
        """Return bool [B, N] for proposals [B, N] under p1's scores [B, N, V] (divided by the temperature, with noise added)."""
        ...


class Exact:
    """Accept what the verifier itself would have chosen (section 3)."""

    def __init__(self, options: DecodeConfig) -> None:
        """Take no setting from `options`."""

    def accept(self, proposed: Tensor, scores: Tensor) -> Tensor:
        """See `Criterion.accept`."""
        return proposed == scores.argmax(-1)


class Distance:
    """Accept a token at most epsilon away from the verifier's choice (section 5.2); intensities in grey levels."""

    def __init__(self, options: DecodeConfig) -> None:
        """Take `options.epsilon`."""
        self.epsilon = options.epsilon

    def accept(self, proposed: Tensor, scores: Tensor) -> Tensor:
        """See `Criterion.accept`."""
        return (proposed - scores.argmax(-1)).abs() <= self.epsilon


class TopK:
    """Accept a token that is among the verifier's k best (section 5.1); ties with the k-th are accepted."""

    def __init__(self, options: DecodeConfig) -> None:
        """Take `options.top_k`."""
        self.k = options.top_k

    def accept(self, proposed: Tensor, scores: Tensor) -> Tensor:
        """See `Criterion.accept`."""
        own = scores.gather(-1, proposed.unsqueeze(-1))
        worst = scores.topk(min(self.k, scores.shape[-1]), dim=-1).values[..., -1:]
        return (own >= worst).squeeze(-1)


CRITERIA: dict[str, type[Exact] | type[Distance] | type[TopK]] = {"exact": Exact, "distance": Distance, "top-k": TopK}
"""Acceptance criteria by the name that users give."""
