"""`watch`: look at each study after each rater, and stop when an interval excludes an even
preference."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from scipy import stats
from scipy.special import expit
from statsmodels.stats.proportion import proportion_confint

from simulations.model import ImageSd, Raters, RaterSd, Seed, mean_logit
from superres.survey.anytime import excludes_even
from superres.survey.statistics import Floats
from superres.system.output import markdown_table, write_results
from superres.system.progress import track

NAMES = {"anytime": "any-time interval", "t": "t interval of the raters' means",
         "wilson": "Wilson interval of the votes"}
"""Intervals that `watch` looks at after each rater."""

FIRST_LOOK = 5
"""Number of raters at the first look with intervals for a fixed number of votes."""


def watched_study(
    rng: np.random.Generator, preference: float, raters: int, votes: int, images: int,
    rater_sd: float, image_sd: float,
) -> Floats:
    """Return the means of the raters' votes in a study whose pictures have exactly this preference,
    float64 [raters].

    Each rater sees the images with the fewest votes, as the server assigns them.
    """
    effects = image_sd * rng.standard_normal(images)
    mean = mean_logit(preference, rater_sd, effects)
    counts = np.zeros(images)
    values = np.empty(raters)
    for number in range(raters):
        seen = np.argsort(counts + 0.5 * rng.random(images))[:votes]
        counts[seen] += 1
        values[number] = (rng.random(votes) < expit(mean + rater_sd * rng.standard_normal()
                                                    + effects[seen])).mean()
    return values


def first_claims(values: Floats, votes: int) -> dict[str, bool]:
    """Return, by the names in `NAMES`, whether an interval excluded 50% at any look."""
    counts = np.arange(1, len(values) + 1)
    means = values.cumsum() / counts
    spread = np.sqrt(np.maximum((values**2).cumsum() - counts * means**2, 1e-12)
                     / np.maximum(counts - 1, 1) / counts)
    by_raters = np.abs(means - 0.5) > stats.t.ppf(0.95, np.maximum(counts - 1, 1)) * spread
    low, high = proportion_confint(means * counts * votes, counts * votes, 0.1, method="wilson")
    by_votes = (low > 0.5) | (high < 0.5)
    return {"anytime": bool(excludes_even(values).any()),
            "t": bool(by_raters[FIRST_LOOK - 1:].any()),
            "wilson": bool(by_votes[FIRST_LOOK - 1:].any())}


def fixed_plan(values: Floats, power: float = 0.8) -> int:
    """Return the smallest number of raters whose t interval excludes 50% in a share `power` of
    simulated studies.

    `values` has the means of the raters' votes, float64 [studies, raters].
    """
    for raters in range(FIRST_LOOK, values.shape[1] + 1):
        part = values[:, :raters]
        half = stats.t.ppf(0.95, raters - 1) * part.std(axis=1, ddof=1) / np.sqrt(raters)
        if (np.abs(part.mean(axis=1) - 0.5) > half).mean() >= power:
            return raters
    sys.exit(f"simulate_votes: {values.shape[1]} raters do not reach a power of {power}; give more "
             "--raters")


def watch(
    studies: Annotated[int, typer.Option(min=1, help="Simulated studies per preference.")] = 1000,
    raters: Raters = 200, votes: Annotated[int, typer.Option(min=1, help="Votes per rater.")] = 20,
    images: Annotated[int, typer.Option(min=2, help="Images per study.")] = 100,
    smallest: Annotated[float, typer.Option(help="Preference for which the fixed plan has a power "
                                            "of 80 %.")] = 55,
    rater_sd: RaterSd = 0.4, image_sd: ImageSd = 1.0, seed: Seed = 0,
    output: Annotated[Path | None, typer.Option(help="Folder for watch.json and watch.md.")] = None,
) -> None:
    """Look after each rater, and stop at the first claim: count false claims at 50%, and votes
    saved elsewhere."""
    if votes > images:
        sys.exit(f"simulate_votes: --votes {votes} per rater exceed --images {images}")

    def simulate(preference: float) -> Floats:
        bar = track(range(studies), f"preference {preference:g} %", "studies")
        return np.array(
            [watched_study(np.random.default_rng([seed, number, round(10 * preference)]),
                           preference / 100, raters, votes, images, rater_sd, image_sd)
             for number in bar])

    even = [first_claims(values, votes) for values in simulate(50)]
    false = [[NAMES[name], f"{100 * np.mean([found[name] for found in even]):.1f}"]
             for name in NAMES]
    planned = fixed_plan(simulate(smallest))
    rows = []
    for preference in sorted({smallest, 60, 65, 70}):
        values = simulate(preference)
        settled = np.array([excludes_even(own[:2 * planned]) for own in values])
        used = np.where(settled.any(axis=1), settled.argmax(axis=1) + 1, 2 * planned)
        half = stats.t.ppf(0.95, planned - 1) * values[:, :planned].std(axis=1,
                                                                        ddof=1) / np.sqrt(planned)
        power = (np.abs(values[:, :planned].mean(axis=1) - 0.5) > half).mean()
        rows.append([f"{preference:g}", f"{100 * power:.1f}", str(planned * votes),
                     f"{100 * settled.any(axis=1).mean():.1f}", f"{used.mean() * votes:.0f}",
                     f"{np.quantile(used, 0.9) * votes:.0f}",
                     f"{100 * (1 - used.mean() / planned):+.0f}"])
    title = (f"SIMULATION: {studies} studies per preference, {votes} votes per rater on {images} "
             f"images, standard deviations {rater_sd} (raters) and {image_sd} (images), nominal 90 "
             "%")
    first = markdown_table(["interval", f"false claims within {raters} raters, %"], false)
    header = ["preference, %", "fixed: settled, %", "fixed: votes", "watched: settled, %",
              "watched: mean votes", "watched: 90 % use at most", "votes saved, %"]
    text = f"{title}\n\n{first}\n\n{markdown_table(header, rows)}\n"
    print(text)
    if output is not None:
        document = {"simulation": title, "false_claims": dict(false),
                    "rows": [dict(zip(header, row, strict=True)) for row in rows]}
        write_results(output, {"watch.json": document, "watch.md": text})
