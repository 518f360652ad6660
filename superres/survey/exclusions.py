"""Exclude raters by recorded rules, which are applied to every report. Votes are never deleted."""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean as mean
from statistics import median
from typing import Any

from sqlalchemy import func, insert, select

from superres.config import require
from superres.errors import ConfigError
from superres.survey import schema
from superres.survey.records import Record, repeated_votes
from superres.survey.store import Store, utc_now
from superres.survey.study import GOLD, MAIN, PRACTICE, Study

MEASURES: dict[str, str] = {
    "gold": "share of gold pairs answered correctly",
    "repeats": "share of repeats with the same choice as the first time",
    "median-ms": "median response time in milliseconds",
    "same-side": "share of main votes on the side that the rater chose more often",
    "votes": "number of main votes",
}
"""Measures of rater quality, by their names in exclusion rules."""

COMPARE = {"<": operator.lt, ">": operator.gt}
RULE = re.compile(rf"({'|'.join(MEASURES)})\s*([<>])\s*(\d+\.?\d*|\.\d+)", re.ASCII)


@dataclass(frozen=True)
class Exclusion:
    """A recorded exclusion rule.

    Attributes:
        number: number of the record in the study, from 1.
        rule: a measure compared with a number ("gold<0.8"), or "rater=PSEUDONYM".
        reason: the owner's reason.
        recorded: time of the record, UTC, ISO 8601.
        revoked: whether a later record revokes the rule.
    """

    number: int
    rule: str
    reason: str
    recorded: str
    revoked: bool = False


def check_rule(rule: str) -> str:
    """Return `rule` without blanks.

    Raises:
        ConfigError: `rule` is not an exclusion rule.
    """
    text = re.sub(r"\s", "", rule)
    valid = re.fullmatch(r"rater=[0-9a-f]{32}", text) or RULE.fullmatch(text)
    require(bool(valid), f"a rule is one of {', '.join(MEASURES)}, then < or >, then a number (gold<0.8), or "
                         f"rater=PSEUDONYM; not {rule!r}")
    return text


def quality(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Return each rater's quality measures by the names in `MEASURES`; None if a rater has no votes for a measure.

    "gold_votes" and "repeat_votes" are the numbers of votes behind the measures of those names.
    """
    by_rater: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_rater[record["rater"]].append(record)
    return {rater: _measures(votes) for rater, votes in sorted(by_rater.items())}


def _measures(votes: list[Record]) -> dict[str, Any]:
    main = [vote for vote in votes if vote["kind"] == MAIN]
    gold = [vote["chosen"] == "a" for vote in votes if vote["kind"] == GOLD]
    repeats = [first["chosen"] == again["chosen"] for first, again in repeated_votes(votes)]
    sides = [vote["choice"] == "left" for vote in main if vote["choice"] != "unsure"]
    times = [vote["response_ms"] for vote in votes if vote["kind"] != PRACTICE]
    return {
        "gold": mean(gold) if gold else None,
        "repeats": mean(repeats) if repeats else None,
        "median-ms": float(median(times)) if times else None,
        "same-side": max(mean(sides), 1 - mean(sides)) if sides else None,
        "votes": len(main), "gold_votes": len(gold), "repeat_votes": len(repeats),
    }


def excluded_raters(records: Sequence[Record], exclusions: Sequence[Exclusion]) -> dict[str, int]:
    """Return the number of the first rule that excludes a rater, by the pseudonym of each excluded rater."""
    found: dict[str, int] = {}
    measured = quality(records)
    for exclusion in exclusions:
        if exclusion.revoked:
            continue
        for rater, measures in measured.items():
            if _applies(exclusion.rule, rater, measures):
                found.setdefault(rater, exclusion.number)
    return found


def _applies(rule: str, rater: str, measures: dict[str, Any]) -> bool:
    if rule.startswith("rater="):
        return rule == f"rater={rater}"
    match = RULE.fullmatch(rule)
    value = measures[match[1]] if match else None
    return match is not None and value is not None and bool(COMPARE[match[2]](value, float(match[3])))


def exclude(store: Store, study: Study, rule: str, reason: str) -> Exclusion:
    """Record a rule.

    Raises:
        ConfigError: `rule` is not an exclusion rule.
        StoreError: the store cannot be written.
    """
    return _record(store, study, check_rule(rule), reason, None)


def revoke(store: Store, study: Study, number: int, reason: str) -> Exclusion:
    """Revoke the rule `number`; the rule and its revocation both stay on record.

    Raises:
        ConfigError: there is no such rule, or it is already revoked.
        StoreError: the store cannot be written.
    """
    active = {exclusion.number: exclusion for exclusion in read_exclusions(store, study) if not exclusion.revoked}
    if number not in active:
        raise ConfigError(f"no active exclusion {number}; active are: {', '.join(map(str, active)) or 'none'}")
    return _record(store, study, active[number].rule, reason, number)


def _record(store: Store, study: Study, rule: str, reason: str, revokes: int | None) -> Exclusion:
    table = schema.exclusion
    with store.writing() as connection:
        number = 1 + (connection.scalar(select(func.max(table.c.number)).where(table.c.study_id == study.id)) or 0)
        recorded = utc_now()
        connection.execute(insert(table).values(study_id=study.id, number=number, rule=rule, reason=reason,
                                                recorded=recorded, revokes=revokes))
    return Exclusion(number, rule, reason, recorded, revokes is not None)


def read_exclusions(store: Store, study: Study) -> list[Exclusion]:
    """Return all rules of a study in the order of their records, including revoked rules.

    Raises:
        StoreError: the store cannot be read.
    """
    table = schema.exclusion
    with store.reading() as connection:
        rows = connection.execute(select(table).where(table.c.study_id == study.id).order_by(table.c.number)).all()
    revoked = {row.revokes for row in rows}
    return [Exclusion(row.number, row.rule, row.reason, row.recorded, row.number in revoked)
            for row in rows if row.revokes is None]
