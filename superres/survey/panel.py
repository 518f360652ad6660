"""The submissions of a panel: leave out raters who gave up at Prolific, and name those whom the
study can approve."""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select

from superres.errors import InvalidInputError
from superres.survey import schema
from superres.survey.assignment import count_pairs, schedule, trial_rng
from superres.survey.credentials import pseudonym
from superres.survey.exclusions import RATER, exclude, excluded_raters, read_exclusions
from superres.survey.records import read_votes
from superres.survey.store import Store
from superres.survey.study import Study
from superres.system.json_files import MOST_BYTES, read_file

PARTICIPANT, STATUS = "participant id", "status"
"""Columns of Prolific's CSV, without regard to case."""
GIVEN_UP = ("RETURNED", "TIMED OUT")
WAITING = "AWAITING REVIEW"


@dataclass(frozen=True)
class Review:
    """What a list of submissions means for a study; participants are named by their ids at the
    panel.

    Attributes:
        left_out: raters who returned their submission or ran out of time, with a new or an earlier
            rule.
        approve: those who wait for a review, have voted on all pairs, and are not excluded.
        unfinished: those who wait for a review, but have not voted on all pairs.
        excluded: those who wait for a review and have voted on all pairs, but are excluded by a
            rule.
        unknown: number of participants who have not enrolled in the study.
    """

    left_out: list[str]
    approve: list[str]
    unfinished: list[str]
    excluded: list[str]
    unknown: int


def read_submissions(path: Path) -> dict[str, set[str]]:
    """Return the statuses of the submissions in Prolific's CSV, in capital letters, by participant
    id.

    Raises InvalidInputError if the file cannot be read, is not CSV, or lacks a column.
    """
    remedy = "export the submissions of the study from Prolific as CSV"
    try:
        text = read_file(path, MOST_BYTES).decode("utf-8-sig")
        header, *rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True)
                         if row]
    except OSError as error:
        raise InvalidInputError(f"cannot read {path}: {error.strerror}; {remedy}") from error
    except (csv.Error, ValueError) as error:
        raise InvalidInputError(f"{path} is not CSV with a header ({error}); {remedy}") from error
    names, found = ([name.strip().casefold().replace("_", " ") for name in header],
                    defaultdict[str, set[str]](set))
    for column in (PARTICIPANT, STATUS):
        if column not in names:
            raise InvalidInputError(f"{path} has no column {column.capitalize()!r}; {remedy}")
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise InvalidInputError(f"{path}: row {number} has {len(row)} values, not "
                                    f"{len(header)}; {remedy}")
        status = re.sub(r"[-_\s]+", " ", row[names.index(STATUS)]).strip().upper()
        found[row[names.index(PARTICIPANT)].strip()].add(status)
    return dict(found)


def review(store: Store, study: Study, path: Path, reason: str) -> Review:
    """Exclude the raters of a study who gave up at Prolific, by a rule each, and sort those who
    wait for a review.

    A participant who gave up has no submission of another status. Raters whom a rule names already
    get no second one. Raises InvalidInputError for a file that cannot be used, before any rule is
    recorded.
    """
    statuses = read_submissions(path)
    try:
        known = {participant: pseudonym(study.salt, participant) for participant in statuses}
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}") from error
    enrolled = _finished(store, study)
    raters = {participant: name for participant, name in known.items() if name in enrolled}
    left_out = [participant for participant in raters if statuses[participant] <= set(GIVEN_UP)]
    standing = {rule.rule for rule in read_exclusions(store, study) if not rule.revoked}
    for participant in left_out:
        if (rule := f"{RATER}{raters[participant]}") not in standing:
            exclude(store, study, rule, reason, called=participant)
    out = excluded_raters(read_votes(store, study), read_exclusions(store, study))
    waiting = [participant for participant in raters if WAITING in statuses[participant]]
    finished = [participant for participant in waiting if enrolled[raters[participant]]]
    return Review(left_out, [one for one in finished if raters[one] not in out],
                  [one for one in waiting if one not in finished],
                  [one for one in finished if raters[one] in out], len(known) - len(raters))


def _finished(store: Store, study: Study) -> dict[str, bool]:
    """Return whether each rater has voted on all pairs, by pseudonym; those who withdrew are left
    out."""
    rater, trial, vote = schema.rater, schema.trial, schema.vote
    query = select(rater.c.pseudonym, func.count(vote.c.id)).select_from(
        rater.outerjoin(trial, trial.c.rater_id == rater.c.id)
        .outerjoin(vote, vote.c.trial_id == trial.c.id)
    ).where(rater.c.study_id == study.id, rater.c.withdrawn.is_(None)).group_by(rater.c.pseudonym)
    with store.reading() as connection:
        available = count_pairs(connection, study)
        return {name: votes >= len(schedule(study.settings, available, trial_rng(study, name, 0)))
                for name, votes in connection.execute(query)}
