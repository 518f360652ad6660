"""Withdrawal: erase what a study has of a rater, and keep only that someone withdrew, when, and
from how many votes."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import delete, func, select, update

from superres.errors import StoreError
from superres.survey import schema
from superres.survey.commands import command_line
from superres.survey.credentials import new_token
from superres.survey.records import find_rater
from superres.survey.store import Store, utc_now
from superres.survey.study import Study


@dataclass(frozen=True)
class Withdrawal:
    """A rater's withdrawal: its time (UTC, ISO 8601), and the number of votes that were erased."""

    recorded: str
    votes: int


def withdraw(store: Store, study: Study, pseudonym: str, called: str | None = None) -> Withdrawal:
    """Erase a rater's votes, trials, pseudonym, consent and session from the study and the store's
    files.

    The result is what is kept of them. The same participant id can then take part as a new rater.
    Rules of exclusion, exported files and copies of the store keep what they have. Processes that
    use the store may go on.

    Raises:
        ConfigError: the study has no rater of this pseudonym; the message has the name by which it
            was `called`.
        StoreError: nothing was erased; or the message says what was, and what remains to do.
    """
    rater, trial, vote = schema.rater, schema.trial, schema.vote
    with store.writing() as connection:
        key = find_rater(connection, study, pseudonym, called)
        trials = select(trial.c.id).where(trial.c.rater_id == key)
        count = connection.scalar(select(func.count()).select_from(vote).where(
            vote.c.trial_id.in_(trials))) or 0
        found = Withdrawal(utc_now(), count)
        # First, since votes of other raters cannot be deleted.
        connection.execute(update(rater).where(rater.c.id == key).values(
            pseudonym=f"withdrawn {new_token()}", consent_version="", consented="",
            session_hash=None, withdrawn=found.recorded, erased=found.votes, panel=None))
        connection.execute(delete(vote).where(vote.c.trial_id.in_(trials)))
        connection.execute(delete(trial).where(trial.c.rater_id == key))
    try:
        store.clean()
    except StoreError as error:
        raise StoreError(f"the rater's {found.votes} votes are erased from the study, but not yet "
                         f"from the files: {error}; then run "
                         f"{command_line('migrate', store=store.location)}") from error
    return found


def withdrawals(store: Store, study: Study) -> list[Withdrawal]:
    """Return the withdrawals from a study, the first one first."""
    rater = schema.rater
    query = select(rater.c.withdrawn, rater.c.erased).where(
        rater.c.study_id == study.id, rater.c.withdrawn.is_not(None)
    ).order_by(rater.c.withdrawn, rater.c.id)
    with store.reading() as connection:
        return [Withdrawal(row.withdrawn, row.erased) for row in connection.execute(query)]
