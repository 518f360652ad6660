"""Exclusion of raters: recorded rules that are applied whenever votes are reported. No vote is ever deleted."""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from sqlalchemy import func, insert, select

from superres.config import require
from superres.errors import ConfigError
from superres.survey import schema
from superres.survey.records import Record, counts_towards_quality, repeated_votes
from superres.survey.store import Store, utc_now
from superres.survey.study import GOLD, MAIN, Study

MEASURES: dict[str, str] = {
    "gold": "share of gold pairs answered right",
    "repeats": "share of repeats with the same choice as before",
    "median-ms": "median response time in milliseconds",
    "same-side": "share of main votes on the side that the rater chose more often",
    "votes": "number of main votes",
}
"""Measures that an exclusion rule can compare, by their names in rules."""

COMPARE = {"<": operator.lt, ">": operator.gt}
RULE = re.compile(rf"({'|'.join(MEASURES)})\s*([<>])\s*([0-9.]+)")


@dataclass(frozen=True)
class Exclusion:
    """A recorded step.

    Attributes:
        number: in the study, from 1.
        rule: a measure compared with a number ("gold<0.8"), or "rater=PSEUDONYM".
        reason: the owner's words.
        recorded: UTC, ISO 8601.
        revoked: whether a later step takes it back.
    """

    number: int
    rule: str
    reason: str
    recorded: str
    revoked: bool = False


def check_rule(rule: str) -> str:
    """Return `rule` without blanks.

    Raises:
        ConfigError: it is not a rule.
    """
    text = re.sub(r"\s", "", rule)
    match = RULE.fullmatch(text)
    valid = re.fullmatch(r"rater=[0-9a-f]{32}", text) or (match and re.fullmatch(r"\d+(\.\d*)?|\.\d+", match[3]))
    require(bool(valid), f"a rule is one of {', '.join(MEASURES)}, then < or >, then a number (gold<0.8), or "
                         f"rater=PSEUDONYM; not {rule!r}")
    return text


def quality(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Return the quality measures of each rater: those in `MEASURES`, None where a rater has no such votes."""
    by_rater: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_rater[record["rater"]].append(record)
    return {rater: _measures(votes) for rater, votes in sorted(by_rater.items())}


def _measures(votes: list[Record]) -> dict[str, Any]:
    main = [vote for vote in votes if vote["kind"] == MAIN]
    gold = [vote["chosen"] == "a" for vote in votes if vote["kind"] == GOLD]
    repeats = [first["chosen"] == again["chosen"] for first, again in repeated_votes(votes)]
    sides = [vote["choice"] == "left" for vote in main if vote["choice"] != "unsure"]
    times = [vote["response_ms"] for vote in votes if counts_towards_quality(vote)]
    left = sum(sides) / len(sides) if sides else None
    return {
        "gold": sum(gold) / len(gold) if gold else None,
        "repeats": sum(repeats) / len(repeats) if repeats else None,
        "median-ms": float(median(times)) if times else None,
        "same-side": None if left is None else max(left, 1 - left),
        "votes": len(main),
    }


def excluded_raters(records: Sequence[Record], exclusions: Sequence[Exclusion]) -> dict[str, int]:
    """Return the excluded raters, and the number of the first rule that sets each aside."""
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
        ConfigError: it is not a rule.
        StoreError: the store cannot be written.
    """
    return _record(store, study, check_rule(rule), reason, None)


def revoke(store: Store, study: Study, number: int, reason: str) -> Exclusion:
    """Record that the rule `number` no longer holds; both steps stay on record.

    Raises:
        ConfigError: there is no such rule, or it is revoked already.
        StoreError: the store cannot be written.
    """
    standing = {exclusion.number: exclusion for exclusion in read_exclusions(store, study) if not exclusion.revoked}
    if number not in standing:
        raise ConfigError(f"no standing exclusion {number}; there are: {', '.join(map(str, standing)) or 'none'}")
    return _record(store, study, standing[number].rule, reason, number)


def _record(store: Store, study: Study, rule: str, reason: str, revokes: int | None) -> Exclusion:
    table = schema.exclusion
    with store.writing() as connection:
        number = 1 + (connection.scalar(select(func.max(table.c.number)).where(table.c.study_id == study.id)) or 0)
        recorded = utc_now()
        connection.execute(insert(table).values(study_id=study.id, number=number, rule=rule, reason=reason,
                                                recorded=recorded, revokes=revokes))
    return Exclusion(number, rule, reason, recorded, revokes is not None)


def read_exclusions(store: Store, study: Study) -> list[Exclusion]:
    """Return the rules of a study in the order in which they were recorded, the revoked ones marked.

    Raises:
        StoreError: the store cannot be read.
    """
    table = schema.exclusion
    with store.reading() as connection:
        rows = connection.execute(select(table).where(table.c.study_id == study.id).order_by(table.c.number)).all()
    gone = {row.revokes for row in rows}
    return [Exclusion(row.number, row.rule, row.reason, row.recorded, row.number in gone)
            for row in rows if row.revokes is None]
