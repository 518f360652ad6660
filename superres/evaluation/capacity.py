"""Predict a large run in parts: hours, core-hours, requests to the store, and which size of a part is best.

What is measured is in `MEASURED`: two machines' worth of cores in one computer, against a store on loopback. Everything
beyond that is extrapolated: many machines, a store far away, and the failures, which the caller assumes.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass

from superres.config import require

ROWS = (100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)
"""Sizes of parts that are compared."""
WAVES = 40  # parts per core that are simulated; the rest takes the mean time
HOPELESS = 8.0  # losses that are expected during a part, above which its time is no longer drawn
LIST_PAGE = 1000  # names in an answer of a store to a request for a listing


@dataclass(frozen=True)
class Measured:
    """Figures of runs of `scripts/check/bucket.py` with the default checkpoint and settings.

    Attributes:
        rates: images per second of a core with the default checkpoint: low, where the store and Ray's own processes
            share the cores; usual; and high.
        part_seconds: seconds that a part takes besides decoding: its plan, its shard and its manifest.
        start_seconds: seconds of a run besides its parts: Ray, the processes, torch, the model and the report.
        actor_megabytes: memory of an actor.
        bytes_in: bytes read per image, an input of the model's size, with the plan and the rows.
        bytes_out: bytes written per image, with its statistics and its row.
    """

    rates: tuple[float, float, float] = (2.1, 3.5, 4.3)
    part_seconds: float = 0.5
    start_seconds: float = 24.0
    actor_megabytes: int = 1500
    bytes_in: int = 1600
    bytes_out: int = 11_900


MEASURED = Measured()


@dataclass(frozen=True)
class Cluster:
    """What a run is planned for.

    Attributes:
        images: pictures.
        cores: cores, each with an actor.
        rate: images per second of a core.
        spread: standard deviation of the logarithm of a part's time: stragglers.
        failures: times that an actor is lost, per hour of an actor; its part begins again.
        packed: whether the results are shards, rather than a file per picture.
    """

    images: float
    cores: int
    rate: float
    spread: float = 0.15
    failures: float = 0.01
    packed: bool = True

    def __post_init__(self) -> None:
        require(self.images >= 1, f"--images must be at least 1, not {self.images:g}")
        require(1 <= self.cores <= 1_000_000, f"--cores must be 1 to 1,000,000, not {self.cores}")
        require(0 < self.rate < 1e6, f"--rate must be above 0, not {self.rate:g}")
        require(0 <= self.spread <= 2, f"--spread must be 0 to 2, not {self.spread:g}")
        require(0 <= self.failures <= 1000, f"--failures must be 0 to 1000 per hour, not {self.failures:g}")


@dataclass(frozen=True)
class Prediction:
    """A run with parts of `rows` inputs: its hours, and the requests that it sends to the store."""

    rows: int
    hours: float
    requests: dict[str, float]


def predict(cluster: Cluster, rows: int, measured: Measured = MEASURED, seed: int = 0) -> Prediction:
    """Simulate a run: each core takes the next part when it is free, slowly at times, and may be lost.

    The last `WAVES` parts of each core are simulated, and those before take the mean time; so stragglers at the end
    count, which are worst for large parts, as what a part costs besides decoding counts for small ones.
    """
    draw = random.Random(seed)  # noqa: S311 -- a simulation
    parts = math.ceil(cluster.images / rows)
    simulated = min(parts, WAVES * cluster.cores)
    free = [measured.start_seconds] * min(cluster.cores, simulated)
    heapq.heapify(free)
    end = 0.0
    for number in range(simulated):
        size = min(rows, cluster.images - number * rows)
        finished = heapq.heappop(free) + part_time(cluster, size, measured, draw)
        end = max(end, finished)
        heapq.heappush(free, finished)
    mean = expected_time(cluster, rows, measured)
    seconds = end + (parts - simulated) * mean / cluster.cores
    return Prediction(rows, seconds / 3600, requests_of(cluster, parts))


def part_time(cluster: Cluster, size: float, measured: Measured, draw: random.Random) -> float:
    """Return the seconds of one part, with the attempts that are lost."""
    taken, per_second = 0.0, cluster.failures / 3600
    slowness = math.exp(draw.gauss(0, cluster.spread) - cluster.spread**2 / 2)
    needed = measured.part_seconds + size / cluster.rate * slowness
    if per_second * needed > HOPELESS:
        return expected_time(cluster, math.ceil(size), measured)
    while per_second and (lost := draw.expovariate(per_second)) < needed:
        taken += lost + measured.start_seconds
    return taken + needed


def expected_time(cluster: Cluster, rows: int, measured: Measured) -> float:
    """Return the mean seconds of a part: without failures, its work; with them, also what is lost and begun again."""
    needed = measured.part_seconds + rows / cluster.rate
    per_second = cluster.failures / 3600
    if not per_second:
        return needed
    exponent = min(per_second * needed, 700.0)
    return math.expm1(exponent) * (1 / per_second + measured.start_seconds)


def requests_of(cluster: Cluster, parts: int) -> dict[str, float]:
    """Return the requests by kind: pictures one by one, and per part its plan twice, its shard and its manifest."""
    shards = parts if cluster.packed else cluster.images
    return {"GET": cluster.images + 2 * parts, "PUT": shards + 2 * parts,
            "LIST": cluster.images / LIST_PAGE + 2 * parts / LIST_PAGE}


def best(cluster: Cluster, measured: Measured = MEASURED) -> tuple[Prediction, list[Prediction]]:
    """Return the prediction of the fastest size of a part, and those of all sizes."""
    found = [predict(cluster, rows, measured) for rows in ROWS if rows <= max(cluster.images, ROWS[0])]
    return min(found, key=lambda one: one.hours), found
