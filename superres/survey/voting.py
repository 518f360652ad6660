"""The steps of a rater in a study: enrol, see a pair, vote. Every answer of the page is checked here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from superres.errors import InvalidInputError, SuperresError
from superres.survey import schema
from superres.survey.assignment import assign, available_pairs, generator, schedule
from superres.survey.pairs import display_png
from superres.survey.secrecy import TOKEN_LENGTH, digest, link_key, new_token, pseudonym, same_secret
from superres.survey.store import Store, utc_now
from superres.survey.study import PRACTICE, Study

LEFT, RIGHT, UNSURE = CHOICES = ("left", "right", "unsure")


class RefusedError(SuperresError):
    """A request of a rater's page is refused; nothing was stored.

    Attributes:
        status: HTTP status code of the answer.
        retry_after: seconds after which the request may be sent again; None if that is of no use.
    """

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


@dataclass(frozen=True)
class Trial:
    """A pair that a rater is to vote on.

    Attributes:
        token: names the trial in this rater's requests; void after one vote, or when the trial is opened again.
        position: 1 for the rater's first.
        total: trials that the rater will see.
        practice: whether the vote gets feedback and is not counted.
    """

    token: str
    position: int
    total: int
    practice: bool


@dataclass(frozen=True)
class Vote:
    """What the page reports.

    Attributes:
        choice: "left", "right" or "unsure".
        response_ms: milliseconds from the moment when both pictures were on the page, measured there. It is stored and
            exported as `page_ms`; reports and exclusions go by the server's clock.
        display_px: width of a picture on the page, in CSS pixels.
        pixel_ratio: device pixels a CSS pixel.
        viewport_width: of the window, in CSS pixels.
        viewport_height: of the window, in CSS pixels.
        input: "key" or "pointer".
    """

    choice: str
    response_ms: float
    display_px: float
    pixel_ratio: float
    viewport_width: int
    viewport_height: int
    input: str


def enrol(
    store: Store, study: Study, rater_id: str, consent_version: str, session: str = "", key: str = "",
) -> tuple[str, bool]:
    """Note a rater's consent and return (session, whether the rater has been here before).

    The session names the rater in all other requests; an earlier one of the same rater is void. A rater who has been
    here before is let in by the session of then, or by the key of the personal link: the id alone is no secret.

    Args:
        store: where the rater is stored.
        study: what the rater votes in.
        rater_id: the participant id.
        consent_version: of the text that the rater agreed to.
        session: that of an earlier enrolment, or one that the rater's page has drawn. The page sends it again when an
            answer was lost, and so gets into the enrolment that it began. Empty, or not 32 characters: one is made.
        key: of the rater's personal link, see `superres.survey.secrecy.link_key`; empty without one.

    Raises:
        RefusedError: the id cannot be used, the consent is to another text, the study has no pictures, the key is
            wrong, or the rater has been here before and shows neither session nor key.
        StoreError: the store cannot be written.
    """
    if not study.has_pictures:
        raise RefusedError(409, f"the study {study.name!r} was imported without its pictures; it takes no votes")
    if consent_version != study.settings.consent_version:
        raise RefusedError(409, "the consent text has changed; reload the page")
    try:
        name = pseudonym(study.salt, rater_id)
        if key and not same_secret(key, link_key(study.salt, rater_id)):
            raise RefusedError(403, "this link is not valid; open it exactly as it was sent to you")
    except InvalidInputError as error:
        raise RefusedError(422, str(error)) from None
    if len(session) != TOKEN_LENGTH:
        session = new_token()
    rater = schema.rater
    with store.writing() as connection:
        _take_turn(connection, study)
        known = connection.execute(select(rater.c.id, rater.c.session_hash).where(
            rater.c.study_id == study.id, rater.c.pseudonym == name)).one_or_none()
        if known is not None and known.session_hash == digest(session):
            return session, True
        if known is not None and not key:
            raise RefusedError(403, "this participant id has started already; continue in the same browser, or ask "
                                    "those who sent you for your personal link")
        if connection.scalar(select(rater.c.id).where(rater.c.session_hash == digest(session))) is not None:
            session = new_token()  # another rater's, as in a browser that several people share
        if known is None:
            connection.execute(insert(rater).values(
                study_id=study.id, pseudonym=name, consent_version=consent_version, consented=utc_now(),
                session_hash=digest(session)))
        else:
            connection.execute(update(rater).where(rater.c.id == known.id).values(session_hash=digest(session)))
    return session, known is not None


def next_trial(store: Store, study: Study, session: str) -> Trial | None:
    """Return the rater's next trial: the last pair again if it has no vote yet; None after the last trial.

    Raises:
        RefusedError: the session is unknown.
        StoreError: the store cannot be written.
    """
    token = new_token()
    trial = schema.trial
    with store.writing() as connection:
        _take_turn(connection, study)
        rater = _rater(connection, study, session)
        kinds = schedule(study.settings, available_pairs(connection, study), generator(study, rater.pseudonym, 0))
        done = connection.scalar(select(func.count()).select_from(trial.join(schema.vote))
                                 .where(trial.c.rater_id == rater.id)) or 0
        if done >= len(kinds):
            return None
        position = done + 1
        shown = connection.execute(select(trial).where(trial.c.rater_id == rater.id,
                                                       trial.c.position == position)).one_or_none()
        if shown is None:
            pair_id, kind, left = assign(connection, study, rater, position, kinds[done])
            connection.execute(insert(trial).values(
                rater_id=rater.id, pair_id=pair_id, position=position, kind=kind, left_side=left,
                token_hash=digest(token), issued=utc_now()))
        else:
            connection.execute(update(trial).where(trial.c.id == shown.id)
                               .values(token_hash=digest(token), issued=utc_now()))
    return Trial(token, position, len(kinds), kinds[done] == PRACTICE)


def shown_picture(store: Store, study: Study, token: str, side: str) -> bytes:
    """Return the PNG that stands on a side ("left" or "right") of the trial that `token` names.

    Raises:
        RefusedError: no such trial.
    """
    trial, pair, picture = schema.trial, schema.pair, schema.picture
    query = select(trial.c.left_side, pair.c.picture_a, pair.c.picture_b).join(pair, pair.c.id == trial.c.pair_id) \
        .where(trial.c.token_hash == digest(token), pair.c.study_id == study.id)
    with store.reading() as connection:
        row = connection.execute(query).one_or_none()
        if row is None:
            raise RefusedError(404, "no such picture; reload the page")
        key = row.picture_a if (row.left_side == "a") == (side == LEFT) else row.picture_b
        packed: bytes = connection.execute(select(picture.c.png).where(picture.c.id == key)).scalar_one()
    return display_png(packed, study.settings.scale, study.settings.interpolation)


def save_vote(store: Store, study: Study, session: str, token: str, vote: Vote) -> bool | None:
    """Store a vote on disk. Return whether a practice vote was right, None for other votes.

    Raises:
        RefusedError: the session or the token is unknown, the token is another rater's or has been used, or the choice
            or the window is not one that the study takes. Nothing was stored.
        StoreError: the store cannot be written.
    """
    _check(study, vote)
    trial, pair, rater = schema.trial, schema.pair, schema.rater
    query = select(trial, rater.c.session_hash, schema.vote.c.id.label("vote_id")) \
        .select_from(trial.join(rater).join(pair).outerjoin(schema.vote)) \
        .where(trial.c.token_hash == digest(token), pair.c.study_id == study.id)
    with store.writing() as connection:
        found = connection.execute(query).one_or_none()
        if found is None or found.session_hash != digest(session):
            raise RefusedError(403, "this pair is not open in this window; reload the page")
        if found.vote_id is not None:
            raise _used()
        try:
            connection.execute(insert(schema.vote).values(trial_id=found.id, voted=utc_now(), **vars(vote)))
        except IntegrityError:  # another process was faster
            raise _used() from None
    return None if found.kind != PRACTICE else (vote.choice == LEFT) == (found.left_side == "a") \
        and vote.choice != UNSURE


def _used() -> RefusedError:
    return RefusedError(409, "this pair has been voted on already; the first vote counts")


def _check(study: Study, vote: Vote) -> None:
    settings = study.settings
    if vote.choice not in CHOICES or (vote.choice == UNSURE and not settings.allow_unsure):
        raise RefusedError(422, f"the choice {vote.choice!r:.40} is not offered in this study")
    width, height = settings.minimum_viewport
    if vote.viewport_width < width or vote.viewport_height < height:
        raise RefusedError(422, f"the window must be at least {width} x {height} pixels")


def _take_turn(connection: Connection, study: Study) -> None:
    """Lock the assignment of pairs of this study; SQLite's transactions are serial without a lock."""
    connection.execute(select(schema.study.c.id).where(schema.study.c.id == study.id).with_for_update())


def _rater(connection: Connection, study: Study, session: str) -> Row[Any]:
    query = select(schema.rater).where(schema.rater.c.session_hash == digest(session),
                                       schema.rater.c.study_id == study.id)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise RefusedError(401, "this session is over or was opened elsewhere; continue there, or start again by your "
                                "personal link")
    return row
