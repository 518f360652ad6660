"""Choose a rater's next pair and the sides of its pictures, balanced over raters and random by the
study's seed.

With three or more methods, a vote on two methods whose order is clear tells nothing new, and
neither does one more vote on two methods that are as good as equal. Each vote therefore goes to the
comparison with the largest mutual information between the vote and the order of its two methods
(Lindley 1956, Ann. Math. Stat. 27:986-1005), chosen greedily.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
from scipy import special, stats
from sqlalchemy import Connection, Row, and_, case, func, or_, select

from superres.survey import schema
from superres.survey.records import answer_of
from superres.survey.statistics import Floats, fit_davidson
from superres.survey.store import utc_now
from superres.survey.study import GOLD, MAIN, PRACTICE, REPEAT, Comparison, Study, StudySettings

REPEAT_GAP = 5
"""Minimum number of trials between a pair and its repeat, if the study is long enough."""

OPEN_MINUTES = 15
"""Minutes for which a pair on display counts as voted on, so that concurrent raters get different
pairs."""

PRECISION = 1.0
"""Precision of the prior on log strengths: before the first votes, all comparisons are equally
uncertain."""

NORMAL: Floats = stats.norm.ppf((np.arange(200) + 0.5) / 200)
"""Quantiles that stand for the normal distribution."""


def trial_rng(study: Study, pseudonym: str, position: int, *more: int) -> np.random.Generator:
    """Return the random generator of a trial; every call returns the same sequence."""
    return np.random.default_rng((study.settings.seed, int(pseudonym[:15], 16), position, *more))


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


def allocate(comparisons: Sequence[Comparison], votes: Floats, available: int,
             trials: int) -> list[int]:
    """Return the number of pairs of each of C comparisons that a rater sees.

    `votes` are those of earlier raters for a, for neither and for b, float64 [C, 3]. The numbers
    are at least 1, at most the pairs `available` in each comparison, and their sum is `trials`,
    which is at least C and at most all pairs.
    """
    names = sorted({name for c in comparisons for name in (c.method_a, c.method_b)})
    pairs = np.array([[names.index(c.method_a), names.index(c.method_b)] for c in comparisons])
    strengths, _, covariance = fit_davidson(votes[None], pairs, len(names), PRECISION)
    spread = covariance[0, :-1, :-1]
    differences = np.eye(len(names))[pairs[:, 0]] - np.eye(len(names))[pairs[:, 1]]  # [C, M]
    margins = differences @ strengths[0]
    counts = [0] * len(comparisons)
    for number in range(trials):
        variances = np.einsum("cm,mn,cn->c", differences, spread, differences)
        gains = _order_information(margins, variances)
        for index, count in enumerate(counts):
            if count >= available or (number < len(counts) and count):
                gains[index] = -1
        best = int(np.argmax(gains))
        counts[best] += 1
        weight = 0.25 / np.cosh(margins[best] / 2) ** 2  # Fisher information of a vote
        column = spread @ differences[best]
        spread = spread - np.outer(column, column) * weight / (1 + weight * variances[best])
    return counts


def _order_information(margins: Floats, variances: Floats) -> Floats:
    """Return the mutual information, in nats, between a vote and the sign of its normal margin in
    log strength, [C]."""
    def entropy(chances: Floats) -> Floats:
        return np.asarray(special.entr(chances) + special.entr(1 - chances))

    points = margins[:, None] + np.sqrt(variances)[:, None] * NORMAL  # [C, Q]
    votes = special.expit(points)
    conditional, chance = np.zeros(len(margins)), votes.mean(axis=1)
    for side in (points > 0, points <= 0):
        share = side.mean(axis=1)
        conditional += share * entropy((votes * side).mean(axis=1) / np.maximum(share, 1e-12))
    return entropy(chance) - conditional


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
    comparison = _planned_comparison(connection, study,
                                     rater) if kind == MAIN and study.is_adaptive else None
    chosen = _least_voted_pair(connection, study, rater.id, kind, rng, comparison)
    return chosen, "a" if study.settings.judge or rng.integers(2) else "b"


def _planned_comparison(connection: Connection, study: Study, rater: Row[Any]) -> str:
    """Return the comparison of the rater's next main pair.

    The plan depends only on votes from before the rater enrolled, never on the rater's own. So the
    mean of the rater's votes in each comparison is an unbiased estimate of its preference, however
    many votes the plan gives it.
    """
    pair, trial, vote = schema.pair, schema.trial, schema.vote
    names = [comparison.name for comparison in study.comparisons]
    votes = np.zeros((len(names), 3))
    query = select(pair.c.comparison, trial.c.left_side, vote.c.choice, func.count()).select_from(
        pair.join(trial, trial.c.pair_id == pair.c.id).join(vote, vote.c.trial_id == trial.c.id)
    ).where(pair.c.study_id == study.id, trial.c.kind == MAIN, vote.c.voted < rater.consented) \
        .group_by(pair.c.comparison, trial.c.left_side, vote.c.choice)
    for name, left, choice, count in connection.execute(query):
        votes[names.index(name), ("a", "", "b").index(answer_of(choice, left))] += count
    available = count_pairs(connection, study)[MAIN] // len(names)
    shares = allocate(study.comparisons, votes, available, study.settings.trials)
    rng = trial_rng(study, rater.pseudonym, 0, 1)
    rest = [number for number, share in enumerate(shares) for _ in range(share - 1)]
    # first each once, for raters who leave early
    order = [*rng.permutation(len(names)), *rng.permutation(rest)]
    shown = connection.scalar(select(func.count()).where(trial.c.rater_id == rater.id,
                                                         trial.c.kind == MAIN)) or 0
    return names[int(order[shown])]


def _least_voted_pair(
    connection: Connection, study: Study, rater_id: int, kind: str, rng: np.random.Generator,
    comparison: str | None,
) -> int:
    """Return the unseen pair with the fewest votes, of one comparison if it is given.

    Among pairs with equally many votes, those of the images that the rater has seen least often
    come first.
    """
    pair, trial, vote = schema.pair, schema.trial, schema.vote
    # The join starts from the study's pairs, so that other studies in the store do not slow it
    # down.
    counts = or_(vote.c.id.is_not(None), trial.c.issued > utc_now(-timedelta(minutes=OPEN_MINUTES)))
    wanted = [pair.c.study_id == study.id, pair.c.kind == kind]
    if comparison is not None:
        wanted.append(pair.c.comparison == comparison)
    query = select(pair.c.id, pair.c.image, func.count(case((counts, trial.c.id)))).select_from(
        pair.outerjoin(trial, and_(trial.c.pair_id == pair.c.id, trial.c.kind == kind))
        .outerjoin(vote, vote.c.trial_id == trial.c.id)
    ).where(*wanted).group_by(pair.c.id, pair.c.image).order_by(pair.c.id)
    seen = connection.execute(select(pair.c.id, pair.c.image).join(trial,
                                                                   trial.c.pair_id == pair.c.id)
                              .where(trial.c.rater_id == rater_id)).all()
    seen_pairs, seen_images = {row.id for row in seen}, [row.image for row in seen]
    ranked = [((votes, seen_images.count(image)), key) for key, image,
              votes in connection.execute(query)
              if key not in seen_pairs]
    if not ranked and comparison is not None:  # the clock was set back, and the plan changed
        return _least_voted_pair(connection, study, rater_id, kind, rng, None)
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
