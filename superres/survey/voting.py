"""Enrol raters, choose their trials and store their votes. Every value that the page sends is
checked here."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection, func, select, update
from sqlalchemy.exc import IntegrityError

from superres.errors import InvalidInputError, SuperresError
from superres.survey import schema
from superres.survey.assignment import assign, count_pairs, schedule, trial_rng
from superres.survey.credentials import (
    TOKEN_LENGTH,
    digest,
    link_key,
    new_token,
    pseudonym,
    require_filled,
)
from superres.survey.pairs import display_png
from superres.survey.records import answer_of, correct_answer
from superres.survey.store import Store, add_row, utc_now
from superres.survey.study import MAX_PARAMS, PRACTICE, Study, StudySettings

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)
"""Body of a request: unknown fields and values of another type are refused."""

MAX_RESPONSE_MS = 7 * 24 * 3_600_000.0


class RefusedError(SuperresError):
    """A request of a rater's page was refused with an HTTP `status`, and nothing was stored.

    `retry_after` is the number of seconds after which the page may repeat the request; None if that
    cannot succeed.
    """

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


PanelText = Annotated[str, Field(max_length=200)]


class Enrolment(BaseModel):
    """A rater's agreement to a version of the consent text; `key` is the key of a personal link.

    `panel` has parameters of the page's URL that name the rater's submission at a panel.
    """

    model_config = STRICT
    rater: str = Field(max_length=200)
    consent: str = Field(max_length=64)
    key: str = Field("", max_length=64)
    panel: Annotated[dict[PanelText, PanelText], Field(max_length=MAX_PARAMS)] = {}


class Vote(BaseModel):
    """A choice in the trial of a token, as the page reports it.

    `response_ms` is the time from the display of both pictures to the choice, measured by the page
    and exported as `page_ms`; reports and exclusions use the server's clock instead. `display_px`
    is the width of a picture on the page, and the viewport is the size of the window, all in CSS
    pixels; `pixel_ratio` is device pixels per CSS pixel.
    """

    model_config = STRICT
    token: str = Field(min_length=TOKEN_LENGTH, max_length=TOKEN_LENGTH)
    choice: Literal["left", "right", "unsure", "torn", "unequal", "good"]
    response_ms: float = Field(ge=0, le=MAX_RESPONSE_MS)
    display_px: float = Field(gt=0, le=10_000)
    pixel_ratio: float = Field(gt=0, le=64)
    viewport_width: int = Field(ge=1, le=100_000)
    viewport_height: int = Field(ge=1, le=100_000)
    input: Literal["key", "pointer"]


def enrol(store: Store, study: Study, enrolment: Enrolment,
          session: str = "") -> tuple[str, bool]:
    """Record a rater's consent and return (session token, whether the rater had enrolled before).

    The session token identifies the rater in all other requests and replaces the rater's earlier
    one. A rater who returns must present the earlier session token or the key of the personal
    link, since the id is not a secret. `session` may also be a token that the page generated, so
    that it can repeat a request whose response was lost. A value that is not 32 characters long is
    replaced. Values of the study's `panel_params` are stored with a new rater; others are dropped.
    Raise RefusedError if the id is not valid, a value is a placeholder, the consent is to another
    text, the key is wrong, or a returning rater presents neither session token nor key.
    """
    if enrolment.consent != study.settings.consent_version:
        raise RefusedError(409, "the consent text has changed; reload the page")
    name, kept = _identified(study, enrolment)
    if len(session) != TOKEN_LENGTH:
        session = new_token()
    # A rater who is known continues by the session or the link, and by nothing else.
    rater = schema.rater
    with store.writing() as connection:
        _lock_study(connection, study)
        known = connection.execute(select(rater.c.id, rater.c.session_hash).where(
            rater.c.study_id == study.id, rater.c.pseudonym == name)).one_or_none()
        if known and known.session_hash == digest(session):
            return session, True
        if known and not enrolment.key:
            raise RefusedError(403, "this participant id has started already; continue in the same "
                               "browser, or ask those who sent you for your personal link")
        if connection.scalar(select(rater.c.id).where(rater.c.session_hash == digest(session))):
            session = new_token()  # the token belongs to another rater who used the same browser
        if known is None:
            add_row(connection, rater, study_id=study.id, pseudonym=name,
                    consent_version=enrolment.consent, consented=utc_now(),
                    session_hash=digest(session), panel=kept)
        else:
            connection.execute(
                update(rater).where(rater.c.id == known.id).values(session_hash=digest(session)))
    return session, known is not None


def _identified(study: Study, enrolment: Enrolment) -> tuple[str, str | None]:
    """Return the pseudonym of who enrols, and the values of a panel that are kept, as JSON.

    A personal link is checked.
    """
    kept = {one: value for one, value in enrolment.panel.items()
            if one in study.settings.panel_params}
    check_link(study.settings, kept)
    try:
        name, key = (of(study.salt, enrolment.rater) for of in (pseudonym, link_key))
    except InvalidInputError as error:
        raise RefusedError(422, str(error)) from None
    if enrolment.key and not hmac.compare_digest(enrolment.key.encode(), key.encode()):
        raise RefusedError(403, "this link is not valid; open it exactly as it was sent to you")
    return name, json.dumps(kept) if kept else None


def check_link(settings: StudySettings, values: Mapping[str, str]) -> None:
    """Raise RefusedError if a panel did not fill in a parameter of its link."""
    try:
        for name in (*settings.id_params, *settings.panel_params):
            require_filled(f"the value of {name}", values.get(name, ""))
    except InvalidInputError as error:
        raise RefusedError(422, str(error)) from None


def next_trial(store: Store, study: Study, session: str) -> dict[str, Any] | None:
    """Return the rater's next trial, or None after the last one. A trial without a vote is returned
    again.

    The trial has a "token", which identifies it in this rater's requests and is void after a vote
    or when the trial is reopened; its "position" (from 1) of the "total"; and whether it is
    "practice", which gives feedback and is not counted. Raise RefusedError if the session is
    unknown.
    """
    token = new_token()
    trial = schema.trial
    with store.writing() as connection:
        _lock_study(connection, study)
        rater = connection.execute(select(schema.rater).where(
            schema.rater.c.session_hash == digest(session),
            schema.rater.c.study_id == study.id)).one_or_none()
        if rater is None:
            raise RefusedError(401, "this session is over or was opened elsewhere; continue there, "
                               "or start again by your personal link")
        # Where the rater is: after the last vote, whatever was shown since.
        kinds = schedule(study.settings, count_pairs(connection, study),
                         trial_rng(study, rater.pseudonym, 0))
        done = connection.scalar(select(func.count()).select_from(trial.join(schema.vote))
                                 .where(trial.c.rater_id == rater.id)) or 0
        if done >= len(kinds):
            return None
        # A new trial, or the one that waits for its vote under a new token.
        position, kind = done + 1, kinds[done]
        display = {"token_hash": digest(token), "issued": utc_now()}
        shown = connection.execute(select(trial).where(
            trial.c.rater_id == rater.id, trial.c.position == position)).one_or_none()
        if shown is None:
            pair_id, left = assign(connection, study, rater, position, kind)
            add_row(connection, trial, rater_id=rater.id, pair_id=pair_id, position=position,
                    kind=kind, left_side=left, **display)
        else:
            connection.execute(update(trial).where(trial.c.id == shown.id).values(**display))
    return {"token": token, "position": position, "total": len(kinds), "practice": kind == PRACTICE}


def shown_picture(store: Store, study: Study, token: str, side: str) -> bytes:
    """Return the PNG on a side ("left" or "right") of the trial with this token; raise RefusedError
    without one.

    A single picture is on the left.
    """
    trial, pair, picture = schema.trial, schema.pair, schema.picture
    query = select(trial.c.left_side, pair.c.picture_a, pair.c.picture_b) \
        .join(pair, pair.c.id == trial.c.pair_id) \
        .where(trial.c.token_hash == digest(token), pair.c.study_id == study.id)
    with store.reading() as connection:
        row = connection.execute(query).one_or_none()
        key = (None if row is None else row.picture_a if answer_of(side, row.left_side) == "a"
               else row.picture_b)
        if key is None:
            raise RefusedError(404, "no such picture; reload the page")
        packed: bytes = connection.scalars(
            select(picture.c.png).where(picture.c.id == key)).one()
    return display_png(packed, study.settings.scale, study.settings.interpolation)


def save_vote(store: Store, study: Study, session: str, vote: Vote) -> bool | None:
    """Store a vote on disk. Return whether a practice vote was correct, None for other votes.

    Raise RefusedError if the session or token is unknown, the token is another rater's, the trial
    already has a vote, or the study does not accept the choice or the size of the window. Nothing
    was stored.
    """
    if vote.choice not in study.settings.choices:
        raise RefusedError(422, f"the choice {vote.choice!r} is not offered in this study")
    width, height = study.settings.minimum_viewport
    if vote.viewport_width < width or vote.viewport_height < height:
        raise RefusedError(422, f"the window must be at least {width} x {height} pixels")
    # The trial must be the rater's own, which its token and the session's say together.
    trial, pair, rater, picture = schema.trial, schema.pair, schema.rater, schema.picture
    query = select(trial, rater.c.session_hash, picture.c.method).select_from(
        trial.join(rater).join(pair).join(picture, picture.c.id == pair.c.picture_a)
    ).where(trial.c.token_hash == digest(vote.token), pair.c.study_id == study.id)
    with store.writing() as connection:
        found = connection.execute(query).one_or_none()
        if found is None or found.session_hash != digest(session):
            raise RefusedError(403, "this pair is not open in this window; reload the page")
        try:
            add_row(connection, schema.vote, trial_id=found.id, voted=utc_now(),
                    **vote.model_dump(exclude={"token"}))
        except IntegrityError:  # a trial has at most one vote
            raise RefusedError(409, "this pair has been voted on already; the first vote "
                               "counts") from None
    right = answer_of(vote.choice, found.left_side) == correct_answer(found.method)
    return right if found.kind == PRACTICE else None


def _lock_study(connection: Connection, study: Study) -> None:
    """Lock the row of the study, so that assignments are serial. SQLite's write transactions are
    serial anyway."""
    connection.execute(
        select(schema.study.c.id).where(schema.study.c.id == study.id).with_for_update())
