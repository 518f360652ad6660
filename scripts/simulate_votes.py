"""SIMULATION: simulated raters vote with a known preference, as a test of the survey and its intervals.

    python scripts/simulate_votes.py http STUDY --store survey.db --address http://127.0.0.1:8000/ --raters 30
    python scripts/simulate_votes.py coverage --studies 200 --raters 30 --votes 50 --images 500
    python scripts/simulate_votes.py coverage --studies 200 --raters 20 --votes 30 --images 100 --http
    python scripts/simulate_votes.py watch --studies 1000
    python scripts/simulate_votes.py order --studies 1000

A simulated rater prefers method a with probability sigmoid(mean + rater's effect + image's effect). The effects are
normal with the standard deviations --rater-sd and --image-sd on the logit scale. The mean is chosen so that the
preference over all raters and images is --preference.

`http` votes in a served study like browsers, and reads in the store which side shows method a. Never use it in a real
study. `coverage` simulates whole studies and counts how often each interval covers the known preference. Its votes are
drawn directly, or with --http sent to a server.

`watch` looks at each study after each rater, and stops when an interval excludes an even preference. `order` ranks six
methods with adaptive and with balanced choice of comparisons.
"""

from __future__ import annotations

import http.client
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
import uvicorn
from fastapi import FastAPI
from scipy import optimize, stats
from scipy.special import expit
from sqlalchemy import select
from tqdm import tqdm

from superres.errors import StoreError, SuperresError
from superres.survey import schema, statistics
from superres.survey.adaptive import allocate
from superres.survey.anytime import log_capital, settled_after
from superres.survey.client import RaterClient
from superres.survey.credentials import digest
from superres.survey.pairs import Method, compare_methods, make_pairs
from superres.survey.report import study_report
from superres.survey.server import survey_app
from superres.survey.statistics import Floats, Interval, Votes
from superres.survey.store import Store
from superres.survey.strength import fit
from superres.survey.study import MAIN, REPEAT, Comparison, Study, StudySettings
from superres.system.output import markdown_table, write_results

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

GOLD_ACCURACY = 0.97
MEDIAN_MS = 2500.0

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
        except (OSError, http.client.HTTPException, KeyError, ValueError, RuntimeError) as error:
            self.trouble = f"{type(error).__name__}: {error}"

    def _vote_through(self) -> None:
        remembered: dict[int, str] = {}
        enrolled = self.client.enrol(self.name)
        if enrolled.status != 200:
            raise RuntimeError(f"the enrolment failed with status {enrolled.status}")
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
            if answer.status != 200:
                raise RuntimeError(f"a simulated vote failed with status {answer.status}: {answer.body.decode()}")
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
            raise StoreError(f"the votes in {study} are incomplete: {rater.name} failed at {address} "
                             f"({rater.trouble}); is superres survey serve {study} running there?")
    return sum(rater.votes for rater in crowd)


@app.command(name="http")
def vote_over_http(
    study: str, store: Annotated[str, typer.Option(help="The store that the server uses.")],
    address: Annotated[str, typer.Option(help="URL of the voting page.")] = "http://127.0.0.1:8000/",
    raters: Raters = 30, preference: Preference = 56.8, rater_sd: RaterSd = 0.4, image_sd: ImageSd = 1.0,
    seed: Seed = 0,
) -> None:
    """Let simulated raters vote concurrently in a served study."""
    mean = mean_logit(preference / 100, rater_sd, image_sd)
    votes = vote_in(study, Store(store), address, raters, mean, rater_sd, image_sd, seed)
    print(f"SIMULATION: {votes} votes of {raters} simulated raters are in {study}; their preference is {preference} %")


def simulated_votes(
    rng: np.random.Generator, mean: float, raters: int, votes: int, images: int, rater_sd: float, image_sd: float,
) -> Votes:
    """Return the votes of a simulated study: each rater sees `votes` of the images."""
    rater_effects, image_effects = rater_sd * rng.standard_normal(raters), image_sd * rng.standard_normal(images)
    seen = np.concatenate([rng.choice(images, votes, replace=False) for _ in range(raters)])
    own = np.repeat(np.arange(raters), votes)
    values = rng.random(len(own)) < expit(mean + rater_effects[own] + image_effects[seen])
    return Votes.of(values.astype(float).tolist(), [f"{n:06d}" for n in own], [f"{n:06d}" for n in seen])


INTERVALS = {
    "two_way": "two-way clustered", "pigeonhole": "two-way pigeonhole", "rater": "raters resampled",
    "image": "images resampled", "votes": "votes only (paper)", "wilson": "Wilson",
}
"""Names of the intervals in the table, by their names in the report."""


def intervals_of(votes: Votes, rng: np.random.Generator) -> dict[str, Interval]:
    """Return all intervals of a report."""
    both = statistics.two_way(votes)
    found = {
        "two_way": both.interval if both else (0.0, 1.0),
        "pigeonhole": statistics.pigeonhole_bootstrap(votes, rng),
        "rater": statistics.cluster_bootstrap(votes, votes.raters, rng),
        "image": statistics.cluster_bootstrap(votes, votes.images, rng),
        "votes": statistics.votes_bootstrap(votes, rng),
        "wilson": statistics.wilson(float(votes.values.sum()), len(votes)),
    }
    return {name: found[kind] for kind, name in INTERVALS.items()}


def drawn_studies(
    studies: int, mean: float, raters: int, votes: int, images: int, rater_sd: float, image_sd: float, seed: int,
) -> Iterator[dict[str, Interval]]:
    """Yield the intervals of `studies` studies whose votes are drawn directly."""
    for number in range(studies):
        rng = np.random.default_rng([seed, number])
        yield intervals_of(simulated_votes(rng, mean, raters, votes, images, rater_sd, image_sd), rng)


@contextmanager
def served(store: Store, studies: Sequence[Study]) -> Iterator[str]:
    """Serve the voting page of each study under its name on this machine; yield the address of the server."""
    server = FastAPI()
    for study in studies:
        server.mount(f"/{study.name}", survey_app(store, study))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        running = uvicorn.Server(uvicorn.Config(server, log_level="warning"))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            running.should_exit = True
            thread.join()


def voted_studies(
    studies: int, mean: float, raters: int, votes: int, images: int, rater_sd: float, image_sd: float, seed: int,
) -> Iterator[dict[str, Interval]]:
    """Yield the intervals of the reports of `studies` studies in which simulated raters voted over HTTP."""
    rng = np.random.default_rng(seed)
    settings = StudySettings(trials=votes, gold=0, repeats=0, practice=0, seed=seed, minimum_viewport=(100, 100))
    methods = [Method(name, {f"{n:04d}": rng.integers(0, 256, (8, 8, 3)).astype(np.uint8) for n in range(images)},
                      {"random": name}) for name in ("first", "second")]
    compared = compare_methods(methods[:1], methods[1:])
    pairs = make_pairs(compared, settings)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder, "survey.db"), create=True)
        made = [store.create_study(f"simulated-{number}", settings, [c for c, _, _ in compared],
                                   {method.name: method.record for method in methods}, pairs)[0]
                for number in range(studies)]
        with served(store, made) as address:
            for number, study in enumerate(made):
                vote_in(study.name, store, f"{address}/{study.name}/", raters, mean, rater_sd, image_sd, seed + number)
                comparison = study_report(store, study)["result"]["comparisons"][0]
                if comparison["votes"] != raters * votes:
                    raise RuntimeError(f"{study.name} has {comparison['votes']} votes, not {raters * votes}")
                yield {name: comparison["intervals"][kind] for kind, name in INTERVALS.items()}
        store.close()


@app.command()
def coverage(
    studies: Annotated[int, typer.Option(min=1, help="Simulated studies.")] = 200, raters: Raters = 30,
    votes: Annotated[int, typer.Option(min=1, help="Votes per rater.")] = 50,
    images: Annotated[int, typer.Option(min=2, help="Images per study.")] = 500, preference: Preference = 56.8,
    rater_sd: RaterSd = 0.4, image_sd: ImageSd = 1.0, seed: Seed = 0,
    over_http: Annotated[bool, typer.Option("--http", help="Vote over HTTP, and read the reports.")] = False,
    output: Annotated[Path | None, typer.Option(help="Folder for coverage.json and coverage.md.")] = None,
) -> None:
    """Count how often each 90% interval covers the known preference."""
    if votes > images:
        sys.exit(f"simulate_votes: --votes {votes} per rater exceed --images {images}")
    truth = preference / 100
    mean = mean_logit(truth, rater_sd, image_sd)
    design = mean, raters, votes, images, rater_sd, image_sd
    drawn = voted_studies(studies, *design, seed) if over_http else drawn_studies(studies, *design, seed)
    hits: dict[str, list[bool]] = {name: [] for name in INTERVALS.values()}
    widths: dict[str, list[float]] = {name: [] for name in INTERVALS.values()}
    for intervals in tqdm(drawn, "simulated studies", studies, disable=None):
        for name, (low, high) in intervals.items():
            hits[name].append(low <= truth <= high)
            widths[name].append(100 * (high - low))
    rows = [[name, f"{100 * np.mean(hits[name]):.1f}", f"{np.mean(widths[name]):.1f}"] for name in hits]
    title = (f"SIMULATION: {studies} studies, {raters} raters x {votes} votes on {images} images, preference "
             f"{preference} %, standard deviations {rater_sd} (raters) and {image_sd} (images), nominal 90 %"
             + (", voted over HTTP" if over_http else ""))
    table = f"{title}\n\n{markdown_table(['interval', 'covers, %', 'mean width, points'], rows)}\n"
    print(table)
    if output is not None:
        document = {"simulation": title, "rows": [dict(zip(("interval", "coverage", "width"), row, strict=True))
                                                  for row in rows]}
        write_results(output, {"coverage.json": document, "coverage.md": table})


NAMES = {"anytime": "any-time interval", "t": "t interval of the raters' means",
         "wilson": "Wilson interval of the votes"}
"""Intervals that `watch` looks at after each rater."""

FIRST_LOOK = 5
"""Number of raters at the first look with intervals for a fixed number of votes."""


def watched_study(
    rng: np.random.Generator, preference: float, raters: int, votes: int, images: int, rater_sd: float, image_sd: float,
) -> Floats:
    """Return the means of the raters' votes in a study whose pictures have exactly this preference, float64 [raters].

    Each rater sees the images with the fewest votes, as the server assigns them.
    """
    effects = image_sd * rng.standard_normal(images)
    points, weights = np.polynomial.hermite_e.hermegauss(30)

    def excess(mean: float) -> float:
        chances = expit(mean + effects[:, None] + rater_sd * points) @ weights / weights.sum()
        return float(chances.mean()) - preference

    mean = float(optimize.brentq(excess, -20, 20))
    counts = np.zeros(images)
    values = np.empty(raters)
    for number in range(raters):
        seen = np.argsort(counts + 0.5 * rng.random(images))[:votes]
        counts[seen] += 1
        values[number] = (rng.random(votes) < expit(mean + rater_sd * rng.standard_normal() + effects[seen])).mean()
    return values


def first_claims(values: Floats, votes: int) -> dict[str, bool]:
    """Return, by the names in `NAMES`, whether an interval excluded 50% at any look."""
    counts = np.arange(1, len(values) + 1)
    means = values.cumsum() / counts
    spread = np.sqrt(np.maximum((values**2).cumsum() - counts * means**2, 1e-12) / np.maximum(counts - 1, 1) / counts)
    by_raters = np.abs(means - 0.5) > stats.t.ppf(0.95, np.maximum(counts - 1, 1)) * spread
    by_votes = [not low <= 0.5 <= high for low, high in (
        statistics.wilson(mean * count * votes, count * votes) for mean, count in zip(means, counts, strict=True))]
    return {"anytime": settled_after(values) is not None, "t": bool(by_raters[FIRST_LOOK - 1:].any()),
            "wilson": any(by_votes[FIRST_LOOK - 1:])}


def fixed_plan(values: Floats, power: float = 0.8) -> int:
    """Return the smallest number of raters whose t interval excludes 50% in this share of studies.

    Args:
        values: means of the raters' votes in simulated studies, float64 [studies, raters].
        power: the share.
    """
    for raters in range(FIRST_LOOK, values.shape[1] + 1):
        part = values[:, :raters]
        half = stats.t.ppf(0.95, raters - 1) * part.std(axis=1, ddof=1) / np.sqrt(raters)
        if (np.abs(part.mean(axis=1) - 0.5) > half).mean() >= power:
            return raters
    sys.exit(f"simulate_votes: {values.shape[1]} raters do not reach a power of {power}; give more --raters")


@app.command()
def watch(
    studies: Annotated[int, typer.Option(min=1, help="Simulated studies per preference.")] = 1000, raters: Raters = 200,
    votes: Annotated[int, typer.Option(min=1, help="Votes per rater.")] = 20,
    images: Annotated[int, typer.Option(min=2, help="Images per study.")] = 100,
    smallest: Annotated[float, typer.Option(help="Preference for which the fixed plan has a power of 80 %.")] = 55,
    rater_sd: RaterSd = 0.4, image_sd: ImageSd = 1.0, seed: Seed = 0,
    output: Annotated[Path | None, typer.Option(help="Folder for watch.json and watch.md.")] = None,
) -> None:
    """Look after each rater, and stop at the first claim: count false claims at 50%, and votes saved elsewhere."""
    if votes > images:
        sys.exit(f"simulate_votes: --votes {votes} per rater exceed --images {images}")

    def simulate(preference: float) -> Floats:
        bar = tqdm(range(studies), f"preference {preference:g} %", disable=None, leave=False)
        return np.array([watched_study(np.random.default_rng([seed, number, round(10 * preference)]), preference / 100,
                                       raters, votes, images, rater_sd, image_sd) for number in bar])

    even = [first_claims(values, votes) for values in simulate(50)]
    false = [[NAMES[name], f"{100 * np.mean([found[name] for found in even]):.1f}"] for name in NAMES]
    planned = fixed_plan(simulate(smallest))
    rows = []
    for preference in sorted({smallest, 60, 65, 70}):
        values = simulate(preference)
        claims = [settled_after(own[:2 * planned]) for own in values]
        used = np.array([claim or 2 * planned for claim in claims])
        half = stats.t.ppf(0.95, planned - 1) * values[:, :planned].std(axis=1, ddof=1) / np.sqrt(planned)
        power = (np.abs(values[:, :planned].mean(axis=1) - 0.5) > half).mean()
        rows.append([f"{preference:g}", f"{100 * power:.1f}", str(planned * votes),
                     f"{100 * np.mean([claim is not None for claim in claims]):.1f}", f"{used.mean() * votes:.0f}",
                     f"{np.quantile(used, 0.9) * votes:.0f}", f"{100 * (1 - used.mean() / planned):+.0f}"])
    title = (f"SIMULATION: {studies} studies per preference, {votes} votes per rater on {images} images, standard "
             f"deviations {rater_sd} (raters) and {image_sd} (images), nominal 90 %")
    first = markdown_table(["interval", f"false claims within {raters} raters, %"], false)
    header = ["preference, %", "fixed: settled, %", "fixed: votes", "watched: settled, %", "watched: mean votes",
              "watched: 90 % use at most", "votes saved, %"]
    text = f"{title}\n\n{first}\n\n{markdown_table(header, rows)}\n"
    print(text)
    if output is not None:
        document = {"simulation": title, "false_claims": dict(false),
                    "rows": [dict(zip(header, row, strict=True)) for row in rows]}
        write_results(output, {"watch.json": document, "watch.md": text})


STRENGTHS = np.array([-1.5, -0.6, -0.3, 0.0, 0.3, 1.6])
"""Log strengths of the methods that `order` ranks."""


def ranked_study(rng: np.random.Generator, adaptive: bool, raters: int, votes: int, rater_sd: float) -> Floats:
    """Return the votes for the first method of each comparison by rater, and their number, float64 [raters, C, 2]."""
    found = np.zeros((raters, len(ROUND_ROBIN), 2))
    for own in found:
        counts = found.sum(axis=0)
        table = np.stack([counts[:, 0], np.zeros(len(counts)), counts[:, 1] - counts[:, 0]], 1)
        shares = allocate(ROUND_ROBIN, table, [votes] * len(ROUND_ROBIN), votes) if adaptive else \
            np.bincount(rng.permutation(np.arange(votes) % len(ROUND_ROBIN)), minlength=len(ROUND_ROBIN))
        tastes = STRENGTHS + rater_sd * rng.standard_normal(len(STRENGTHS))
        own[:, 1] = shares
        own[:, 0] = rng.binomial(np.asarray(shares), expit([tastes[a] - tastes[b] for a, b in PAIRS]))
    return found


PAIRS = [(a, b) for b in range(len(STRENGTHS)) for a in range(b + 1, len(STRENGTHS))]
ROUND_ROBIN = [Comparison(f"{a} vs {b}", str(a), str(b)) for a, b in PAIRS]


@app.command()
def order(
    studies: Annotated[int, typer.Option(min=1, help="Simulated studies.")] = 1000, raters: Raters = 40,
    votes: Annotated[int, typer.Option(min=len(PAIRS), help="Votes per rater.")] = 30,
    rater_sd: RaterSd = 0.4, seed: Seed = 0,
) -> None:
    """Rank six methods: how often the order is right, and whether the preferences are unbiased."""
    points, weights = np.polynomial.hermite_e.hermegauss(60)
    truth = np.array([expit(STRENGTHS[a] - STRENGTHS[b] + np.sqrt(2) * rater_sd * points) @ weights / weights.sum()
                      for a, b in PAIRS])
    rows = []
    for adaptive in (False, True):
        drawn = np.array([ranked_study(np.random.default_rng([seed, number]), adaptive, raters, votes, rater_sd)
                          for number in tqdm(range(studies), "studies", disable=None, leave=False)])
        right = []
        for used in (raters // 4, raters // 2, raters):
            counts = drawn[:, :used].sum(axis=1)
            table = np.stack([counts[..., 0], 0 * counts[..., 0], counts[..., 1] - counts[..., 0]], -1)
            fitted = fit(table, np.array(PAIRS), len(STRENGTHS))[0]
            right.append((np.argsort(fitted, axis=1) == np.arange(len(STRENGTHS))).all(axis=1).mean())
        shares = drawn[..., 0] / drawn[..., 1]  # [studies, raters, C]
        errors = shares.mean(axis=1) - truth
        excluded = [(log_capital(shares[study, :, c], truth[c:c + 1])[0] >= np.log(10)).any()
                    for study in range(studies) for c in range(len(PAIRS))]
        rows.append(["adaptive" if adaptive else "balanced", *(f"{100 * share:.1f}" for share in right),
                     f"{100 * np.abs(errors.mean(axis=0)).max():.2f}",
                     f"{100 * (errors.std(axis=0) / np.sqrt(studies)).max():.2f}", f"{100 * np.mean(excluded):.1f}"])
    looks = raters // 4, raters // 2, raters
    header = ["choice of pairs", *(f"order right after {used} raters, %" for used in looks),
              "largest bias of a preference, points", "its standard error", "any-time interval ever wrong, %"]
    print(f"SIMULATION: {studies} studies of {len(STRENGTHS)} methods in {len(PAIRS)} comparisons, {votes} votes per "
          f"rater, standard deviation {rater_sd} (raters), nominal 90 %\n\n{markdown_table(header, rows)}\n")


if __name__ == "__main__":
    try:
        app()
    except SuperresError as error:
        sys.exit(f"simulate_votes: {error}")
