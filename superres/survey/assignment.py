"""Choose a rater's next pair and the sides of its pictures, balanced over raters and random by the
study's seed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
from sqlalchemy import Connection, Row, and_, case, func, or_, select

from superres.survey import schema
from superres.survey.store import utc_now
from superres.survey.study import GOLD, MAIN, PRACTICE, REPEAT, Study, StudySettings

REPEAT_GAP = 5
"""Minimum number of trials between a pair and its repeat, if the study is long enough."""

OPEN_MINUTES = 15
"""Minutes for which a pair on display counts as voted on, so that concurrent raters get different
pairs."""


def trial_rng(study: Study, pseudonym: str, position: int) -> np.random.Generator:
    """Return the random generator of a trial; every call returns the same sequence."""
    return np.random.default_rng((study.settings.seed, int(pseudonym[:15], 16), position))


def schedule(settings: StudySettings, available: dict[str, int],
             rng: np.random.Generator) -> list[str]:
    """Return the kinds of a rater's trials in order, given the number of pairs `available` in the
    study by kind.

    Practice trials come first. Gold trials are spread over the main trials, repeats over their
    second half.
    """
    main = min(settings.trials, available.get(MAIN, 0))
    mixed = [MAIN] * main + [GOLD] * min(settings.gold, available.get(GOLD, 0))
    order = [mixed[i] for i in rng.permutation(len(mixed))]
    for _ in range(min(settings.repeats, main)):
        earliest = max(len(order) // 2, order.index(MAIN)) + 1
        order.insert(int(rng.integers(earliest, len(order) + 1)), REPEAT)
    result = [PRACTICE] * min(settings.practice, available.get(PRACTICE, 0))
    waiting = unrepeated = 0
    for kind in order:  # a repeat with no unrepeated main trial before it is delayed
        if kind == REPEAT:
            waiting += 1
        else:
            result.append(kind)
            unrepeated += kind == MAIN
        ready = min(waiting, unrepeated)
        result.extend([REPEAT] * ready)
        waiting, unrepeated = waiting - ready, unrepeated - ready
    return result


def count_pairs(connection: Connection, study: Study) -> dict[str, int]:
    """Return the number of the study's pairs by kind."""
    kind = schema.pair.c.kind
    query = select(kind, func.count()).where(schema.pair.c.study_id == study.id).group_by(kind)
    return {name: count for name, count in connection.execute(query)}


def assign(connection: Connection, study: Study, rater: Row[Any], position: int,
           kind: str) -> tuple[int, str]:
    """Return the id of a pair for a rater's trial, and the picture on the left ("a" or "b"; a
    single one is "a").

    The rater must not have seen all pairs of `kind`.
    """
    rng = trial_rng(study, rater.pseudonym, position)
    if kind == REPEAT:
        chosen, left = _repeat(connection, rater, position, rng)
        return chosen, "a" if study.settings.judge else left
    chosen = _least_voted_pair(connection, study, rater.id, kind, rng)
    return chosen, "a" if study.settings.judge or rng.integers(2) else "b"


def _least_voted_pair(connection: Connection, study: Study, rater_id: int, kind: str,
                      rng: np.random.Generator) -> int:
    """Return the unseen pair with the fewest votes.

    Among pairs with equally many votes, those of the images that the rater has seen least often
    come first.
    """
    pair, trial, vote = schema.pair, schema.trial, schema.vote
    # The join starts from the study's pairs, so that other studies in the store do not slow it
    # down.
    counts = or_(vote.c.id.is_not(None), trial.c.issued > utc_now(-timedelta(minutes=OPEN_MINUTES)))
    query = select(pair.c.id, pair.c.image, func.count(case((counts, trial.c.id)))).select_from(
        pair.outerjoin(trial, and_(trial.c.pair_id == pair.c.id, trial.c.kind == kind))
        .outerjoin(vote, vote.c.trial_id == trial.c.id)
    ).where(pair.c.study_id == study.id, pair.c.kind == kind) \
        .group_by(pair.c.id, pair.c.image).order_by(pair.c.id)
    seen = connection.execute(
        select(pair.c.id, pair.c.image).join(trial, trial.c.pair_id == pair.c.id)
        .where(trial.c.rater_id == rater_id)).all()
    seen_pairs, seen_images = {row.id for row in seen}, [row.image for row in seen]
    ranked = [((votes, seen_images.count(image)), key)
              for key, image, votes in connection.execute(query) if key not in seen_pairs]
    best = min(rank for rank, _ in ranked)
    tied = [int(key) for rank, key in ranked if rank == best]
    return tied[rng.integers(len(tied))]


def _repeat(connection: Connection, rater: Row[Any], position: int,
            rng: np.random.Generator) -> tuple[int, str]:
    """Return one of the rater's main pairs with the sides swapped: not yet repeated, and not too
    recent if possible."""
    trial = schema.trial
    shown = connection.execute(select(trial).where(trial.c.rater_id == rater.id).order_by(
        trial.c.position)).all()
    repeated = {row.pair_id for row in shown if row.kind == REPEAT}
    left = [row for row in shown if row.kind == MAIN and row.pair_id not in repeated]
    pool = [row for row in left if row.position < position - REPEAT_GAP] or left
    first = pool[int(rng.integers(len(pool)))]
    return first.pair_id, "b" if first.left_side == "a" else "a"
