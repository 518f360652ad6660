"""How simulated raters vote, and the studies and options that the simulations share.

A simulated rater prefers method a with probability sigmoid(mean + rater's effect + image's effect).
The effects are normal, and the mean is chosen so that the preference over all raters and images is
known.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer
from scipy import optimize
from scipy.special import expit

from superres.survey.pairs import Method, compare_methods, make_pairs
from superres.survey.statistics import Floats
from superres.survey.store import Store
from superres.survey.study import Study, StudySettings

Preference = Annotated[float, typer.Option(help="Known preference for method a, %.")]
RaterSd = Annotated[float, typer.Option(min=0, help="Standard deviation of the raters' effects, "
                                        "logits.")]
ImageSd = Annotated[float, typer.Option(min=0, help="Standard deviation of the images' effects, "
                                        "logits.")]
Raters = Annotated[int, typer.Option(min=2, help="Simulated raters.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")]


def mean_logit(preference: float, sd: float, effects: Floats | float = 0.0) -> float:
    """Return the mean logit that gives this preference (a share), averaged over normal effects and
    over `effects`."""
    points, weights = np.polynomial.hermite_e.hermegauss(60)

    def excess(mean: float) -> float:
        chances = (expit(mean + np.atleast_1d(effects)[:, None] + sd * points) @ weights
                   / weights.sum())
        return float(chances.mean()) - preference

    return float(optimize.brentq(excess, -20, 20))


def random_study(store: Store, name: str, images: int, trials: int, seed: int = 0) -> Study:
    """Store a study of two methods with random pictures, without practice, obvious or repeated
    pairs."""
    rng = np.random.default_rng(seed)
    methods = [Method(method,
                      {f"{n:04d}": rng.integers(0, 256, (8, 8, 3)).astype(np.uint8)
                       for n in range(images)}, {"random": method}) for method in ("first",
                                                                                   "second")]
    compared = compare_methods(methods[:1], methods[1:])
    settings = StudySettings(trials=trials, gold=0, repeats=0, practice=0, seed=seed,
                             minimum_viewport=(100, 100))
    return store.create_study(name, settings, [c for c, _, _ in compared],
                              {method.name: method.record for method in methods},
                              make_pairs(compared, settings))[0]
