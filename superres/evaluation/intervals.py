"""95 % confidence intervals of means and of ratios of sums, over independent pictures or sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from superres.decoding.trace import RowTrace, mean_accepted_block_size
from superres.evaluation.perceptual import Scores


def half_width(scores: Scores) -> float | None:
    """Return half the width of Student's 95 % confidence interval of the mean of `scores`, float64 [N].

    None for a single score, or if one is not finite.
    """
    from scipy import stats  # slow to import

    if len(scores) < 2 or not np.isfinite(scores).all():
        return None
    return float(stats.t.ppf(0.975, len(scores) - 1) * stats.sem(scores))


def with_interval(name: str, scores: Scores) -> dict[str, float | None]:
    """Return the mean of `scores` under `name`, None if not finite, and its `half_width` under <name>_half_width."""
    mean = float(scores.mean())
    return {name: mean if math.isfinite(mean) else None, f"{name}_half_width": half_width(scores)}


def accepted_block_size(traces: Sequence[RowTrace]) -> dict[str, float | None]:
    """Return "mean_accepted_block_size" of decoded sequences, at least one, and its half width as `with_interval` does.

    The mean is a ratio of sums, tokens over iterations, so its interval is that of a ratio to first order (Cochran
    1977, "Sampling Techniques", section 6.4).
    """
    mean = mean_accepted_block_size(list(traces))
    tokens, iterations = (np.array([getattr(trace, name) for trace in traces], np.float64)
                          for name in ("tokens", "iterations"))
    half = half_width(tokens - mean * iterations)
    return {"mean_accepted_block_size": mean,
            "mean_accepted_block_size_half_width": None if half is None else half / max(iterations.mean(), 1e-9)}
