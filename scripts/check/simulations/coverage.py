"""`coverage`: simulate whole studies, and count how often each interval covers the known
preference.

The votes are drawn directly, or with --http sent to a server.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from scipy.special import expit

from simulations.model import ImageSd, Preference, Raters, RaterSd, Seed, mean_logit, random_study
from simulations.over_http import vote_in
from simulations.serving import serving
from superres.survey.report import study_report
from superres.survey.statistics import Interval, Votes, intervals
from superres.survey.store import Store
from superres.system.output import markdown_table, write_results
from superres.system.progress import track


def simulated_votes(
    rng: np.random.Generator, mean: float, raters: int, votes: int, images: int, rater_sd: float,
    image_sd: float,
) -> Votes:
    """Return the votes of a simulated study: each rater sees `votes` of the images."""
    rater_effects, image_effects = (rater_sd * rng.standard_normal(raters),
                                    image_sd * rng.standard_normal(images))
    seen = np.concatenate([rng.choice(images, votes, replace=False) for _ in range(raters)])
    own = np.repeat(np.arange(raters), votes)
    values = rng.random(len(own)) < expit(mean + rater_effects[own] + image_effects[seen])
    return Votes.of(values.astype(float).tolist(), [f"{n:06d}" for n in own],
                    [f"{n:06d}" for n in seen])


INTERVALS = {"two_way": "two-way clustered", "wilson": "Wilson, of independent votes"}
"""Names of the intervals in the table, by their names in the report."""


def drawn_studies(
    studies: int, mean: float, raters: int, votes: int, images: int, rater_sd: float,
    image_sd: float, seed: int,
) -> Iterator[dict[str, Interval | None]]:
    """Yield the intervals of `studies` studies whose votes are drawn directly."""
    for number in range(studies):
        rng = np.random.default_rng([seed, number])
        yield intervals(simulated_votes(rng, mean, raters, votes, images, rater_sd, image_sd))


def voted_studies(
    studies: int, mean: float, raters: int, votes: int, images: int, rater_sd: float,
    image_sd: float, seed: int,
) -> Iterator[dict[str, Interval | None]]:
    """Yield the intervals of the reports of `studies` studies in which simulated raters voted over
    HTTP."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder, "survey.db"), create=True)
        for number in range(studies):
            study = random_study(store, f"simulated-{number}", images, votes, seed)
            with serving(store, study) as address:
                vote_in(study.name, store, address, raters, mean, rater_sd, image_sd, seed + number)
            comparison = study_report(store, study)["result"]["comparisons"][0]
            if comparison["votes"] != raters * votes:
                raise RuntimeError(f"{study.name} has {comparison['votes']} votes, not "
                                   f"{raters * votes}")
            yield comparison["intervals"]
        store.close()


def coverage(
    studies: Annotated[int, typer.Option(min=1, help="Simulated studies.")] = 200,
    raters: Raters = 30, votes: Annotated[int, typer.Option(min=1, help="Votes per rater.")] = 50,
    images: Annotated[int, typer.Option(min=2, help="Images per study.")] = 500,
    preference: Preference = 56.8, rater_sd: RaterSd = 0.4, image_sd: ImageSd = 1.0, seed: Seed = 0,
    over_http: Annotated[bool, typer.Option("--http", help="Vote over HTTP, and read the "
                                            "reports.")] = False,
    output: Annotated[Path | None, typer.Option(help="Folder for coverage.json and "
                                                "coverage.md.")] = None,
) -> None:
    """Count how often each 90% interval covers the known preference."""
    if votes > images:
        sys.exit(f"simulate_votes: --votes {votes} per rater exceed --images {images}")
    truth = preference / 100
    mean = mean_logit(truth, float(np.hypot(rater_sd, image_sd)))
    design = mean, raters, votes, images, rater_sd, image_sd
    drawn = voted_studies(studies, *design, seed) if over_http else drawn_studies(studies, *design,
                                                                                  seed)
    found = [[own[kind] or (0.0, 1.0) for kind in INTERVALS] for own in track(drawn, "simulating",
                                                                              "studies", studies)]
    low, high = np.moveaxis(np.array(found), -1, 0)  # [studies, intervals]
    covered, widths = ((low <= truth) & (truth <= high)).mean(axis=0), (high - low).mean(axis=0)
    rows = [[name, f"{100 * share:.1f}", f"{100 * width:.1f}"]
            for name, share, width in zip(INTERVALS.values(), covered, widths, strict=True)]
    title = (f"SIMULATION: {studies} studies, {raters} raters x {votes} votes on {images} images, "
             f"preference {preference} %, standard deviations {rater_sd} (raters) and {image_sd} "
             "(images), nominal 90 %"
             + (", voted over HTTP" if over_http else ""))
    table = f"{title}\n\n{markdown_table(['interval', 'covers, %', 'mean width, points'], rows)}\n"
    print(table)
    if output is not None:
        document = {"simulation": title,
                    "rows": [dict(zip(("interval", "coverage", "width"), row, strict=True))
                             for row in rows]}
        write_results(output, {"coverage.json": document, "coverage.md": table})
