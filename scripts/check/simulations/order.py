"""`order`: rank six methods with adaptive and with balanced choice of comparisons."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer
from scipy.special import expit

from simulations.model import Raters, RaterSd, Seed
from superres.survey.anytime import log_capital
from superres.survey.assignment import allocate
from superres.survey.statistics import Floats, fit_davidson
from superres.survey.study import Comparison
from superres.system.output import markdown_table
from superres.system.progress import track

STRENGTHS = np.array([-1.5, -0.6, -0.3, 0.0, 0.3, 1.6])
"""Log strengths of the methods that `order` ranks."""


def ranked_study(rng: np.random.Generator, adaptive: bool, raters: int, votes: int,
                 rater_sd: float) -> Floats:
    """Return the votes for the first method of each comparison by rater, and their number, float64
    [raters, C, 2]."""
    found = np.zeros((raters, len(ROUND_ROBIN), 2))
    for own in found:
        counts = found.sum(axis=0)
        table = np.stack([counts[:, 0], np.zeros(len(counts)), counts[:, 1] - counts[:, 0]], 1)
        shares = allocate(ROUND_ROBIN, table, votes, votes) if adaptive else \
            np.bincount(rng.permutation(np.arange(votes) % len(ROUND_ROBIN)), minlength=len(ROUND_ROBIN))
        tastes = STRENGTHS + rater_sd * rng.standard_normal(len(STRENGTHS))
        own[:, 1] = shares
        own[:, 0] = rng.binomial(np.asarray(shares),
                                 expit([tastes[a] - tastes[b] for a, b in PAIRS]))
    return found


PAIRS = [(a, b) for b in range(len(STRENGTHS)) for a in range(b + 1, len(STRENGTHS))]
ROUND_ROBIN = [Comparison(f"{a} vs {b}", str(a), str(b)) for a, b in PAIRS]


def order(
    studies: Annotated[int, typer.Option(min=1, help="Simulated studies.")] = 1000,
    raters: Raters = 40,
    votes: Annotated[int, typer.Option(min=len(PAIRS), help="Votes per rater.")] = 30,
    rater_sd: RaterSd = 0.4, seed: Seed = 0,
) -> None:
    """Rank six methods: how often the order is right, and whether the preferences are unbiased."""
    points, weights = np.polynomial.hermite_e.hermegauss(60)
    truth = np.array([expit(STRENGTHS[a] - STRENGTHS[b] + np.sqrt(2) * rater_sd * points)
                      @ weights / weights.sum()
                      for a, b in PAIRS])
    rows = []
    for adaptive in (False, True):
        drawn = np.array([ranked_study(np.random.default_rng([seed, number]), adaptive, raters,
                                       votes, rater_sd)
                          for number in track(range(studies), "simulating", "studies")])
        right = []
        for used in (raters // 4, raters // 2, raters):
            counts = drawn[:, :used].sum(axis=1)
            table = np.stack([counts[..., 0], 0 * counts[..., 0], counts[..., 1] - counts[..., 0]],
                             -1)
            fitted = fit_davidson(table, np.array(PAIRS), len(STRENGTHS))[0]
            right.append((np.argsort(fitted, axis=1) == np.arange(len(STRENGTHS))).all(
                axis=1).mean())
        shares = drawn[..., 0] / drawn[..., 1]  # [studies, raters, C]
        errors = shares.mean(axis=1) - truth
        excluded = [(log_capital(shares[study, :, c], truth[c:c + 1])[0] >= np.log(10)).any()
                    for study in range(studies) for c in range(len(PAIRS))]
        rows.append(["adaptive" if adaptive else "balanced",
                     *(f"{100 * share:.1f}" for share in right),
                     f"{100 * np.abs(errors.mean(axis=0)).max():.2f}",
                     f"{100 * (errors.std(axis=0) / np.sqrt(studies)).max():.2f}",
                     f"{100 * np.mean(excluded):.1f}"])
    looks = raters // 4, raters // 2, raters
    header = ["choice of pairs", *(f"order right after {used} raters, %" for used in looks),
              "largest bias of a preference, points", "its standard error", "any-time interval "
              "ever wrong, %"]
    print(f"SIMULATION: {studies} studies of {len(STRENGTHS)} methods in {len(PAIRS)} comparisons, "
          f"{votes} votes per rater, standard deviation {rater_sd} (raters), nominal 90 "
          f"%\n\n{markdown_table(header, rows)}\n")
