"""How simulated raters vote, and the options that the simulations share.

A simulated rater prefers method a with probability sigmoid(mean + rater's effect + image's effect). The effects are
normal, and the mean is chosen so that the preference over all raters and images is known.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer
from scipy import optimize
from scipy.special import expit

from superres.survey.credentials import digest

Preference = Annotated[float, typer.Option(help="Known preference for method a, %.")]
RaterSd = Annotated[float, typer.Option(min=0, help="Standard deviation of the raters' effects, logits.")]
ImageSd = Annotated[float, typer.Option(min=0, help="Standard deviation of the images' effects, logits.")]
Raters = Annotated[int, typer.Option(min=2, help="Simulated raters.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")]


def mean_logit(preference: float, rater_sd: float, image_sd: float) -> float:
    """Return the mean logit that gives this preference (a share), averaged over normal effects."""
    points, weights = np.polynomial.hermite_e.hermegauss(60)
    sd = float(np.hypot(rater_sd, image_sd))

    def excess(mean: float) -> float:
        return float(weights @ expit(mean + sd * points) / weights.sum()) - preference

    return float(optimize.brentq(excess, -20, 20))


def image_effect(image: str, seed: int, sd: float) -> float:
    """Return the effect of an image, which is equal for all raters."""
    return sd * float(np.random.default_rng([seed, int(digest(image)[:15], 16)]).standard_normal())
