"""Confidence sequences: intervals of a preference that stay valid while the owner watches votes
come in.

An interval for a fixed number of votes covers less often than it says if the owner looks again and
again, and stops when the answer suits. A confidence sequence covers the preference at all times at
once. Each rater gives one value, the mean of the rater's votes, since the votes of a rater are
correlated. The pictures are those of the study. `values` are such means in the order in which they
became known, in [0, 1], float64 [n], and `level` is a confidence level.

Source: Waudby-Smith and Ramdas (2024), "Estimating means of bounded random variables by betting",
    JRSS B 86:1-27.
The library confseq has the method too, but is published as C++ source that needs Boost to install.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from superres.survey.records import Record, elapsed_ms, grouped
from superres.survey.statistics import LEVEL, Floats, Interval

TRUNCATION = 0.75
"""Largest share of the capital that a bet can lose, c in the source, which uses 1/2 and 3/4."""

EVEN = 0.5
MEANS = np.linspace(0, 1, 1001)
IDLE_MS = 3_600_000.0
"""A rater who does not vote for an hour has left."""

MAX_MORE_RATERS = 1000
FORECASTS = 200


def log_capital(values: Floats, means: Floats, level: float = LEVEL) -> Floats:
    """Return the logarithm of the hedged capital against each of m means after each value (source,
    theorem 3), [m, n].

    One gambler bets that the values are above the mean, another that they are below it; each starts
    with half of the capital. If the mean is right, the capital ever reaches 1 / (1 - level) with
    probability at most 1 - level. The bets are the predictable plug-in of the source: each depends
    on earlier values only.
    """
    counts = np.arange(1, len(values) + 1)
    running = (0.5 + np.cumsum(values)) / (counts + 1)
    variances = (0.25 + np.cumsum((values - running) ** 2)) / (counts + 1)
    variances = np.concatenate([[0.25], variances[:-1]])
    bets = np.sqrt(2 * math.log(2 / (1 - level)) / (variances * counts * np.log1p(counts)))
    gains = values - means[:, None]
    with np.errstate(divide="ignore"):
        above = np.minimum(bets, TRUNCATION / means[:, None])
        below = np.minimum(bets, TRUNCATION / (1 - means[:, None]))
    best: Floats = np.maximum(np.log1p(above * gains).cumsum(axis=1),
                              np.log1p(-below * gains).cumsum(axis=1))
    return best + math.log(0.5)


def anytime_interval(values: Floats, level: float = LEVEL) -> Interval:
    """Return the interval of the confidence sequence after all `values`, to the nearest 0.001
    outwards."""
    inside = np.flatnonzero(log_capital(values, MEANS, level)[:, -1] < -math.log(1 - level))
    if not len(inside):  # values that drift can contradict every mean
        return float(values.mean()), float(values.mean())
    return float(MEANS[max(inside[0] - 1, 0)]), float(MEANS[min(inside[-1] + 1, len(MEANS) - 1)])


def excludes_even(values: Floats, level: float = LEVEL) -> npt.NDArray[np.bool_]:
    """Return whether the confidence sequence excludes an even preference after each of the values,
    bool [n]."""
    return np.asarray(log_capital(values, np.array([EVEN]), level)[0] >= -math.log(1 - level))


def more_raters(values: Floats, rng: np.random.Generator, level: float = LEVEL) -> int | None:
    """Forecast how many more raters settle the preference: the median of simulations that draw them
    from `values`.

    The result is None if it is over `MAX_MORE_RATERS`.
    """
    needed = []
    for _ in range(FORECASTS):
        longer = np.concatenate([values, rng.choice(values, MAX_MORE_RATERS)])
        needed.append(np.append(excludes_even(longer, level)[len(values):], True).argmax() + 1)
    middle = math.ceil(float(np.median(needed)))
    return middle if middle <= MAX_MORE_RATERS else None


def share_to_unsettle(values: Floats, level: float = LEVEL) -> float:
    """Return the share of the votes for the leader that would have to go the other way to unsettle
    a settled result.

    The turned votes are spread evenly: every rater's preference for the leader shrinks by the same
    share.
    """
    towards = values if values.mean() > EVEN else 1 - values
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        shrunk = towards * (1 - middle)
        if excludes_even(shrunk, level)[-1] and shrunk.mean() > EVEN:
            low = middle
        else:
            high = middle
    return high


def rater_values(records: Sequence[Record], trials: int,
                 values: dict[str, float]) -> dict[str, Floats]:
    """Return the means of finished raters' votes by comparison, float64 [raters], in the order in
    which they finished.

    A rater has finished after `trials` main votes, or after an hour without a vote, by the times of
    the study's votes. Later votes do not change the value, so that the sequence only ever grows.
    `records` are main votes of a study, and `values` are the values of a vote by its chosen
    picture.
    """
    ordered = sorted(records, key=lambda record: (record["voted"], record["position"]))
    by_rater = grouped(ordered, "rater")
    ends: list[tuple[float, str, int]] = []  # when a rater finished, and after how many votes
    for rater, votes in by_rater.items():
        times = [elapsed_ms(ordered[0]["voted"], record["voted"])
                 for record in (*votes, ordered[-1])]
        for count, (time, after) in enumerate(itertools.pairwise(times), 1):
            if count == trials or after - time >= IDLE_MS:
                ends.append((time if count == trials else time + IDLE_MS, rater, count))
                break
    # One value per rater and comparison, the earliest first.
    found: dict[str, list[float]] = defaultdict(list)
    for _, rater, count in sorted(ends):
        for name, own in grouped(by_rater[rater][:count], "comparison").items():
            found[name].append(float(np.mean([values[record["chosen"]] for record in own])))
    return {name: np.array(numbers) for name, numbers in found.items()}
