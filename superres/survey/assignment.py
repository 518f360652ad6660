"""Choose a rater's next pair and the sides of its images: balanced, random by seed, and decided on the server."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import Connection, Row, and_, case, func, or_, select

from superres.survey import schema
from superres.survey.study import GOLD, MAIN, PRACTICE, REPEAT, Study, StudySettings

REPEAT_GAP = 5
"""Trials between a pair and its repeat, where the study is long enough."""

OPEN_MINUTES = 15
"""Minutes for which a shown pair counts as voted, so that concurrent raters get different pairs."""


class Assigned(NamedTuple):
    """A pair for a rater: its number in the store, the kind of trial, and which picture stands on the left."""

    pair_id: int
    kind: str
    left: str


def generator(study: Study, pseudonym: str, position: int) -> np.random.Generator:
    """Return the random numbers of one trial, which are the same in every call."""
    return np.random.default_rng((study.settings.seed, int(pseudonym[:15], 16), position))


def schedule(settings: StudySettings, available: dict[str, int], rng: np.random.Generator) -> list[str]:
    """Return the kinds of a rater's trials in order.

    Practice comes first; gold stands anywhere among the main trials, repeats in the second half.

    Args:
        settings: how many of each are wanted.
        available: pairs of the study by kind.
        rng: of the order.
    """
    main = min(settings.trials, available.get(MAIN, 0))
    gold = min(settings.gold, available.get(GOLD, 0))
    mixed = [MAIN] * main + [GOLD] * gold
    order = [mixed[i] for i in rng.permutation(len(mixed))]
    for _ in range(min(settings.repeats, main)):
        earliest = max(len(order) // 2, order.index(MAIN)) + 1
        order.insert(int(rng.integers(earliest, len(order) + 1)), REPEAT)
    return [PRACTICE] * min(settings.practice, available.get(PRACTICE, 0)) + _after_their_firsts(order)


def _after_their_firsts(order: list[str]) -> list[str]:
    """Put off each repeat for which there is no main trial left to repeat."""
    result: list[str] = []
    waiting = unrepeated = 0
    for kind in order:
        if kind == REPEAT:
            waiting += 1
        else:
            result.append(kind)
            unrepeated += kind == MAIN
        ready = min(waiting, unrepeated)
        result.extend([REPEAT] * ready)
        waiting, unrepeated = waiting - ready, unrepeated - ready
    return result


def available_pairs(connection: Connection, study: Study) -> dict[str, int]:
    """Return the number of the study's pairs by kind."""
    query = select(schema.pair.c.kind, func.count()).where(schema.pair.c.study_id == study.id) \
        .group_by(schema.pair.c.kind)
    return {kind: count for kind, count in connection.execute(query)}


def assign(connection: Connection, study: Study, rater: Row[Any], position: int, kind: str) -> Assigned:
    """Choose a rater's pair for the trial at `position` and the sides; the study must have a pair of the kind left."""
    rng = generator(study, rater.pseudonym, position)
    if kind == REPEAT:
        return _repeat(connection, rater, position, rng)
    chosen = _fewest_votes(connection, study, rater.id, kind, rng)
    return Assigned(chosen, kind, "a" if rng.integers(2) else "b")


def _fewest_votes(connection: Connection, study: Study, rater_id: int, kind: str, rng: np.random.Generator) -> int:
    """Return the pair with the fewest votes that the rater has not seen; among equals one whose image is new to him."""
    recently = datetime.now(timezone.utc) - timedelta(minutes=OPEN_MINUTES)
    cutoff = recently.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    pair, trial, vote = schema.pair, schema.trial, schema.vote
    # Joined from the study's own pairs: other studies of the store cost nothing.
    counts = or_(vote.c.id.is_not(None), trial.c.issued > cutoff)
    query = select(pair.c.id, pair.c.image, func.count(case((counts, trial.c.id)))).select_from(
        pair.outerjoin(trial, and_(trial.c.pair_id == pair.c.id, trial.c.kind == kind))
        .outerjoin(vote, vote.c.trial_id == trial.c.id)
    ).where(pair.c.study_id == study.id, pair.c.kind == kind).group_by(pair.c.id, pair.c.image).order_by(pair.c.id)
    seen = connection.execute(select(pair.c.id, pair.c.image).join(trial, trial.c.pair_id == pair.c.id)
                              .where(trial.c.rater_id == rater_id)).all()
    seen_pairs, seen_images = {row.id for row in seen}, [row.image for row in seen]
    ranked = [((votes, seen_images.count(image)), key) for key, image, votes in connection.execute(query)
              if key not in seen_pairs]
    best = min(rank for rank, _ in ranked)
    equals = [int(key) for rank, key in ranked if rank == best]
    return equals[rng.integers(len(equals))]


def _repeat(connection: Connection, rater: Row[Any], position: int, rng: np.random.Generator) -> Assigned:
    """Return one of the rater's own main pairs, not too recent and not repeated yet, with the sides swapped."""
    trial = schema.trial
    shown = connection.execute(select(trial).where(trial.c.rater_id == rater.id).order_by(trial.c.position)).all()
    repeated = {row.pair_id for row in shown if row.kind == REPEAT}
    left = [row for row in shown if row.kind == MAIN and row.pair_id not in repeated]
    pool = [row for row in left if row.position < position - REPEAT_GAP] or left
    first = pool[int(rng.integers(len(pool)))]
    return Assigned(first.pair_id, REPEAT, "b" if first.left_side == "a" else "a")
