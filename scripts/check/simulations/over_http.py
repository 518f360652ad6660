"""`http`: simulated raters vote in a served study like browsers, at the same time.

They read in the store which side shows method a. Never use this in a real study.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Annotated, Any

import httpx
import numpy as np
import typer
from scipy.special import expit
from sqlalchemy import select
from tqdm import tqdm

from simulations.client import RaterClient
from simulations.model import ImageSd, Preference, Raters, RaterSd, Seed, image_effect, mean_logit
from superres.errors import StoreError
from superres.survey import schema
from superres.survey.commands import DEFAULT_STORE, STORE_VARIABLE, command_line
from superres.survey.credentials import digest
from superres.survey.store import Store
from superres.survey.study import MAIN, REPEAT

GOLD_ACCURACY = 0.97
MEDIAN_MS = 2500.0


class SimulatedRater(threading.Thread):
    """A simulated rater."""

    def __init__(self, number: int, address: str, store: Store, prefers: Callable[[np.random.Generator, str], float],
                 seed: int) -> None:
        super().__init__()
        self.client, self.store, self.prefers = RaterClient(address), store, prefers
        self.name, self.rng, self.votes = f"simulated-{seed}-{number}", np.random.default_rng([seed, number]), 0
        self.trouble = ""

    def run(self) -> None:
        """Vote on all trials, or record the error in `trouble`."""
        try:
            self._vote_through()
        except (httpx.HTTPError, KeyError, ValueError, RuntimeError) as error:
            self.trouble = f"{type(error).__name__}: {error}"

    def _vote_through(self) -> None:
        remembered: dict[int, str] = {}
        enrolled = self.client.enrol(self.name)
        if enrolled.status_code != 200:
            raise RuntimeError(f"the enrolment failed with status {enrolled.status_code}")
        while not (trial := self.client.trial().json())["done"]:
            shown = self._look_up(trial["token"])
            if shown.kind in (MAIN, REPEAT):
                chance = self.prefers(self.rng, shown.image)
                chosen = "a" if self.rng.random() < chance else "b"
                if shown.kind == REPEAT and self.rng.random() < 0.8:
                    chosen = remembered[shown.pair_id]
                remembered[shown.pair_id] = chosen
            else:
                chosen = "a" if self.rng.random() < GOLD_ACCURACY else "b"
            side = "left" if chosen == shown.left_side else "right"
            answer = self.client.vote(trial["token"], side, float(MEDIAN_MS * np.exp(0.5 * self.rng.standard_normal())))
            if answer.status_code != 200:
                raise RuntimeError(f"a simulated vote failed with status {answer.status_code}: {answer.text}")
            self.votes += 1

    def _look_up(self, token: str) -> Any:  # noqa: ANN401 -- a row
        trial, pair = schema.trial, schema.pair
        query = select(trial.c.kind, trial.c.left_side, trial.c.pair_id, pair.c.image) \
            .join(pair, pair.c.id == trial.c.pair_id).where(trial.c.token_hash == digest(token))
        with self.store.reading() as connection:
            return connection.execute(query).one()


def vote_in(
    study: str, store: Store, address: str, raters: int, mean: float, rater_sd: float, image_sd: float, seed: int,
) -> int:
    """Let simulated raters vote concurrently in a served study; return the number of votes."""
    store.study(study)

    def made(number: int) -> SimulatedRater:
        own = rater_sd * float(np.random.default_rng([seed, number, 1]).standard_normal())
        return SimulatedRater(number, address, store, lambda _, image: float(
            expit(mean + own + image_effect(image, seed, image_sd))), seed)

    crowd = [made(number) for number in range(raters)]
    for rater in crowd:
        rater.start()
    for rater in tqdm(crowd, f"simulated raters of {study}", disable=None, leave=False):
        rater.join()
    for rater in crowd:
        if rater.trouble:
            server = command_line("serve", study, store=store.location)
            raise StoreError(f"the votes in {study} are incomplete: {rater.name} failed at {address} "
                             f"({rater.trouble}); start the study there with {server}")
    return sum(rater.votes for rater in crowd)


def vote_over_http(
    study: str,
    store: Annotated[str, typer.Option(envvar=STORE_VARIABLE, help="The store that the server uses.")] = DEFAULT_STORE,
    address: Annotated[str, typer.Option(help="URL of the voting page.")] = "http://127.0.0.1:8000/",
    raters: Raters = 30, preference: Preference = 56.8, rater_sd: RaterSd = 0.4, image_sd: ImageSd = 1.0,
    seed: Seed = 0,
) -> None:
    """Let simulated raters vote concurrently in a served study."""
    mean = mean_logit(preference / 100, rater_sd, image_sd)
    votes = vote_in(study, Store(store), address, raters, mean, rater_sd, image_sd, seed)
    print(f"SIMULATION: {votes} votes of {raters} simulated raters are in {study}; their preference is {preference} %")
