"""The command `superres plan`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from typer import Option

from superres.system.output import markdown_table
from superres.system.terminal import echo

Images = Annotated[float, Option(metavar="N", help="Images to upscale, such as 1e9.")]
Cores = Annotated[int, Option(metavar="N", help="Cores of all machines, each with an actor.")]
Rate = Annotated[float | None, Option(metavar="R", help="Images per second of one core of yours: 'superres manifest "
                                      "summary' of a small run says it. [default: as measured on a Zen 5]")]
Rows = Annotated[int | None, Option(metavar="N", help="Inputs per part. [default: the fastest]")]
Spread = Annotated[float, Option(metavar="S", help="Stragglers: standard deviation of the logarithm of a part's time, "
                                 "0 to 2.")]
Failures = Annotated[float, Option(metavar="F", help="Actors lost, per hour of an actor.")]
Packed = Annotated[bool, Option("--packed/--single-files", help="Write shards, or a file per picture.")]


def plan(
    images: Images, cores: Cores, rate: Rate = None, rows: Rows = None, spread: Spread = 0.15,
    failures: Failures = 0.01, packed: Packed = True,
) -> None:
    """Predict the hours and requests of a large run in parts, and find the best number of inputs per part.

    The measured figures come from one computer and a store on it; the rest is extrapolated from them.
    """
    from superres.batch.options import MOST_ROWS
    from superres.config import require_whole
    from superres.evaluation.capacity import MEASURED, Cluster, best, predict

    low, usual, high = MEASURED.rates if rate is None else (rate, rate, rate)
    cluster = Cluster(images, cores, usual, spread, failures, packed)
    chosen, others = best(cluster)
    if rows is not None:
        require_whole("--rows", rows, 1, MOST_ROWS)
        chosen = predict(cluster, rows)
    fastest, slowest = (predict(replace(cluster, rate=one), chosen.rows).hours for one in (high, low))
    spread_text = "" if low == high else f" ({readable(fastest)} to {readable(slowest)} by the measured rates)"
    echo(f"{images:,.0f} images on {cores:,} cores, {chosen.rows:,} inputs per part: {readable(chosen.hours)} hours"
         f"{spread_text}, {readable(chosen.hours * cores)} core-hours")
    echo("requests: " + ", ".join(f"{readable(number)} {kind}" for kind, number in chosen.requests.items()))
    echo(f"memory: {readable(MEASURED.actor_megabytes * cores / 1000)} GB for {cores:,} actors; traffic: "
         f"{readable(images * MEASURED.bytes_in / 1e9)} GB in, {readable(images * MEASURED.bytes_out / 1e9)} GB out")
    echo("")
    echo(markdown_table(["inputs per part", "hours", "requests"], [
        [f"{one.rows:,}", readable(one.hours), readable(sum(one.requests.values()))] for one in others]))
    echo("")
    echo(f"measured: {low:g} to {high:g} images per second of a core, {MEASURED.part_seconds:g} s per part, "
         f"{MEASURED.start_seconds:g} s to start, {MEASURED.actor_megabytes} MB per actor, bytes and requests"
         if rate is None else "measured: seconds per part and to start, memory, bytes and requests; given: the rate")
    echo(f"assumed: {failures:g} losses per hour of an actor, a spread of {spread:g}; extrapolated: more than two "
         "actors, and a store that is not on the same computer")



def readable(number: float) -> str:
    """Return a number with three digits, or as a whole number with commas from 100 on."""
    return f"{number:,.0f}" if 100 <= number < 1e15 else f"{number:.3g}"
