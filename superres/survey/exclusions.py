"""Exclude raters by recorded rules, which are applied to every report. Votes are never deleted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from sqlalchemy import func, select

from superres.config import require
from superres.survey import schema
from superres.survey.records import (
    Record,
    find_rater,
    gold_answers,
    grouped,
    left_choices,
    repeated_answers,
)
from superres.survey.store import Store, add_row, utc_now
from superres.survey.study import MAIN, PRACTICE, Study, check_text

MEASURES = ("gold", "repeats", "median-ms", "same-side", "votes")
"""Measures of rater quality, by their names in exclusion rules; see `quality`."""

RATER = "rater="
"""Start of a rule that names a rater by pseudonym."""

RULE = re.compile(rf"({'|'.join(MEASURES)})\s*([<>])\s*(\d+\.?\d*|\.\d+)", re.ASCII)


@dataclass(frozen=True)
class Exclusion:
    """A recorded rule: a measure compared with a number ("gold<0.8"), or "rater=PSEUDONYM".

    `number` counts the study's records from 1, `recorded` is a time (UTC, ISO 8601), and `revoked`
    says whether a later record revokes the rule.
    """

    number: int
    rule: str
    reason: str
    recorded: str
    revoked: bool = False


def check_rule(rule: str) -> str:
    """Return `rule` without blanks; raise ConfigError if it is not an exclusion rule."""
    text = re.sub(r"\s", "", rule)
    require(bool(re.fullmatch(rf"{RATER}[0-9a-f]{{32}}", text) or RULE.fullmatch(text)),
            f"a rule is one of {', '.join(MEASURES)}, then < or >, then a number (gold<0.8), or "
            f"rater=PSEUDONYM; not {rule!r}")
    return text


def quality(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Return each rater's quality measures by the names in `MEASURES`; None if a rater has no votes
    for a measure.

    They are the share of gold pairs answered correctly, the share of repeats with the same choice
    as the first time, the median response time, the share of main votes on the side that the rater
    chose more often, and the number of main votes. "gold_votes" and "repeat_votes" are the numbers
    of votes behind the measures of those names.
    """
    found = {}
    for rater, votes in sorted(grouped(records, "rater").items()):
        main = [vote for vote in votes if vote["kind"] == MAIN]
        gold, repeats, left = gold_answers(votes), repeated_answers(votes), left_choices(main)
        times = [vote["response_ms"] for vote in votes if vote["kind"] != PRACTICE]
        found[rater] = {
            "gold": fmean(gold) if gold else None, "repeats": fmean(repeats) if repeats else None,
            "median-ms": float(median(times)) if times else None,
            "same-side": max(fmean(left), 1 - fmean(left)) if left else None,
            "votes": len(main), "gold_votes": len(gold), "repeat_votes": len(repeats)}
    return found


def excluded_raters(records: Sequence[Record], exclusions: Sequence[Exclusion]) -> dict[str, int]:
    """Return the number of the first rule that excludes a rater, by the pseudonym of each excluded
    rater."""
    found: dict[str, int] = {}
    measured = quality(records)
    for exclusion in exclusions:
        for rater, measures in measured.items():
            if not exclusion.revoked and applies(exclusion.rule, rater, measures):
                found.setdefault(rater, exclusion.number)
    return found


def applies(rule: str, rater: str, measures: dict[str, Any]) -> bool:
    """Return whether a rule fits the rater with this pseudonym and these measures of `quality`."""
    match = RULE.fullmatch(rule)
    if match is None:
        return rule == f"{RATER}{rater}"
    value, bound = measures[match[1]], float(match[3])
    return value is not None and bool(value < bound if match[2] == "<" else value > bound)


def exclude(
    store: Store, study: Study, rule: str, reason: str, revokes: int | None = None,
    called: str | None = None,
) -> None:
    """Record a rule, or that it revokes the rule number `revokes`.

    Raise ConfigError if it is not an exclusion rule, or names a rater who is not in the study; the
    message then has the name by which the rater was `called`.
    """
    rule, table = check_rule(rule), schema.exclusion
    check_text("the reason", reason)
    with store.writing() as connection:
        if rule.startswith(RATER) and revokes is None:
            find_rater(connection, study, rule.removeprefix(RATER), called)
        last = connection.scalar(
            select(func.max(table.c.number)).where(table.c.study_id == study.id)) or 0
        add_row(connection, table, study_id=study.id, number=last + 1, rule=rule, reason=reason,
                recorded=utc_now(), revokes=revokes)


def revoke(store: Store, study: Study, number: int, reason: str) -> None:
    """Revoke an active rule, else raise ConfigError; the rule and its revocation both stay on
    record."""
    active = {exclusion.number: exclusion for exclusion in read_exclusions(store, study)
              if not exclusion.revoked}
    require(number in active, f"no active exclusion {number}; active are: "
            f"{', '.join(map(str, active)) or 'none'}")
    exclude(store, study, active[number].rule, reason, number)


def read_exclusions(store: Store, study: Study) -> list[Exclusion]:
    """Return all rules of a study in the order of their records, including revoked rules."""
    table = schema.exclusion
    with store.reading() as connection:
        rows = connection.execute(select(table).where(table.c.study_id == study.id).order_by(
            table.c.number)).all()
    revoked = {row.revokes for row in rows}
    return [Exclusion(row.number, row.rule, row.reason, row.recorded, row.number in revoked)
            for row in rows if row.revokes is None]
