"""SIMULATION: simulated raters vote with a known preference, as a test of the survey and its
intervals.

    python scripts/check/simulate_votes.py http STUDY --raters 30
    python scripts/check/simulate_votes.py coverage --studies 200 --raters 30 --votes 50 --images
    500 python scripts/check/simulate_votes.py coverage --studies 200 --raters 20 --votes 30
    --images 100 --http python scripts/check/simulate_votes.py watch --studies 1000
    python scripts/check/simulate_votes.py order --studies 1000

Each command is a module of `scripts/check/simulations`, whose `model.py` says how a simulated rater
votes.
"""

from __future__ import annotations

import sys

import typer

from simulations.coverage import coverage
from simulations.order import order
from simulations.over_http import vote_over_http
from simulations.watch import watch
from superres.errors import SuperresError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command(name="http")(vote_over_http)
for simulation in (coverage, watch, order):
    app.command()(simulation)


if __name__ == "__main__":
    try:
        app()
    except SuperresError as error:
        sys.exit(f"simulate_votes: {error}")
