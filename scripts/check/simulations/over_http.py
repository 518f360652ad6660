"""`http`: simulated raters vote in a served study like browsers, at the same time.

They read in the store which side shows method a. Never use this in a real study.
"""

from __future__ import annotations

import threading
from typing import Annotated, Any

import httpx
import numpy as np
import typer
from scipy.special import expit
from sqlalchemy import select

from simulations.client import RaterClient
from simulations.model import ImageSd, Preference, Raters, RaterSd, Seed, mean_logit
from superres.errors import StoreError
from superres.survey import schema
from superres.survey.commands import DEFAULT_STORE, STORE_VARIABLE, command_line
from superres.survey.credentials import digest
from superres.survey.store import Store
from superres.survey.study import MAIN, REPEAT
from superres.system.progress import track

GOLD_ACCURACY = 0.97
MEDIAN_MS = 2500.0


class SimulatedRater(threading.Thread):
    """A rater who prefers method a with the logit `mean`, plus an effect of each image, equal for
    all raters."""

    def __init__(self, number: int, address: str, store: Store, mean: float, image_sd: float,
                 seed: int) -> None:
        super().__init__(name=f"simulated-{seed}-{number}")
        self.client, self.store, self.mean, self.image_sd, self.seed = (RaterClient(address), store,
                                                                        mean, image_sd, seed)
        self.rng, self.votes, self.trouble = np.random.default_rng([seed, number]), 0, ""

    def run(self) -> None:
        """Vote on all trials, or record the error in `trouble`."""
        try:
            self._vote_through()
        except (httpx.HTTPError, KeyError, ValueError) as error:
            self.trouble = f"{type(error).__name__}: {error}"

    def _vote_through(self) -> None:
        remembered: dict[int, str] = {}
        self.client.enrol(self.name).raise_for_status()
        while not (trial := self.client.trial().json())["done"]:
            shown = self._look_up(trial["token"])
            chance = GOLD_ACCURACY
            if shown.kind in (MAIN, REPEAT):
                rng = np.random.default_rng([self.seed, int(digest(shown.image)[:15], 16)])
                chance = float(expit(self.mean + self.image_sd * float(rng.standard_normal())))
            chosen = "a" if self.rng.random() < chance else "b"
            if shown.kind == REPEAT and self.rng.random() < 0.8:
                chosen = remembered[shown.pair_id]
            remembered[shown.pair_id] = chosen
            side = "left" if chosen == shown.left_side else "right"
            milliseconds = float(MEDIAN_MS * np.exp(0.5 * self.rng.standard_normal()))
            self.client.vote(trial["token"], side, milliseconds).raise_for_status()
            self.votes += 1

    def _look_up(self, token: str) -> Any:  # noqa: ANN401 -- a row
        trial, pair = schema.trial, schema.pair
        query = select(trial.c.kind, trial.c.left_side, trial.c.pair_id, pair.c.image) \
            .join(pair, pair.c.id == trial.c.pair_id).where(trial.c.token_hash == digest(token))
        with self.store.reading() as connection:
            return connection.execute(query).one()


def vote_in(
    study: str, store: Store, address: str, raters: int, mean: float, rater_sd: float,
    image_sd: float, seed: int,
) -> int:
    """Let simulated raters vote concurrently in a served study; return the number of votes."""
    store.study(study)
    own = [rater_sd * float(np.random.default_rng([seed, n, 1]).standard_normal())
           for n in range(raters)]
    crowd = [SimulatedRater(n, address, store, mean + own[n], image_sd, seed)
             for n in range(raters)]
    for rater in crowd:
        rater.start()
    for rater in track(crowd, f"simulating raters of {study}", "raters"):
        rater.join()
    for rater in crowd:
        if rater.trouble:
            server = command_line("serve", study, store=store.location)
            raise StoreError(f"the votes in {study} are incomplete: {rater.name} failed at "
                             f"{address} ({rater.trouble}); start the study there with {server}")
    return sum(rater.votes for rater in crowd)


def vote_over_http(
    study: str,
    store: Annotated[str, typer.Option(envvar=STORE_VARIABLE, help="The store that the server "
                                       "uses.")] = DEFAULT_STORE,
    address: Annotated[str,
                       typer.Option(help="URL of the voting page.")] = "http://127.0.0.1:8000/",
    raters: Raters = 30, preference: Preference = 56.8, rater_sd: RaterSd = 0.4,
    image_sd: ImageSd = 1.0, seed: Seed = 0,
) -> None:
    """Let simulated raters vote concurrently in a served study."""
    mean = mean_logit(preference / 100, float(np.hypot(rater_sd, image_sd)))
    votes = vote_in(study, Store(store), address, raters, mean, rater_sd, image_sd, seed)
    print(f"SIMULATION: {votes} votes of {raters} simulated raters are in {study}; their "
          f"preference is {preference} %")
