"""Read votes as flat records, for reports, exports and imports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, select

from superres.errors import ConfigError
from superres.survey import schema
from superres.survey.store import Store
from superres.survey.study import GOLD, JUDGEMENTS, MAIN, REPEAT, SIDES, UNSURE, Study

Record = dict[str, Any]

COLUMNS: dict[str, tuple[type, str]] = {
    "rater": (str, "pseudonym of the rater: HMAC-SHA-256 of the participant id, keyed by a secret "
              "of the study"),
    "position": (int, "number of the trial in the rater's sequence, from 1"),
    "kind": (str, "main (counted), gold (obvious pair), repeat (a main pair again, sides swapped) "
             "or practice"),
    "comparison": (str, "name of the comparison, or gold or practice; of the method, if pictures "
                   "are judged singly"),
    "pair": (int, "number of the pair in the study, from 0; a repeat has the number of its main "
             "trial"),
    "image": (str, "name of the image that both pictures show"),
    "method_a": (str, "method of picture a, or of the single picture; in gold and practice trials "
                 "the correct answer"),
    "method_b": (str, "method of picture b; camera is a photograph; or empty"),
    "sha256_a": (str, "SHA-256 of picture a's intensities (raster order, R G B)"),
    "sha256_b": (str, "SHA-256 of picture b's intensities, or empty"),
    "left": (str, "picture on the left: a or b; a single picture is a"),
    "choice": (str, "chosen side: left, right or unsure; or judgement: torn, unequal or good"),
    "chosen": (str, "chosen picture: a, b, or empty for unsure; or the judgement"),
    "chosen_method": (str, "method of the chosen picture, or empty"),
    "response_ms": (float, "milliseconds from the pair's last display to its vote, both by the "
                    "server's clock"),
    "page_ms": (float, "milliseconds from the display of both pictures to the choice, as the "
                "browser reports them"),
    "display_px": (float, "width of a picture on the page, CSS pixels"),
    "pixel_ratio": (float, "device pixels per CSS pixel"),
    "viewport_width": (int, "width of the window, CSS pixels"),
    "viewport_height": (int, "height of the window, CSS pixels"),
    "input": (str, "key or pointer"),
    "panel": (str, "the rater's study and submission at a panel, from the link (--panel-param), as "
              "JSON; or empty"),
    "consent_version": (str, "first 12 digits of the SHA-256 of the consent text that the rater "
                        "agreed to"),
    "consented": (str, "time at which the rater first agreed, UTC, ISO 8601"),
    "issued": (str, "time at which the pair was last shown, UTC, ISO 8601"),
    "voted": (str, "time at which the vote was stored, UTC, ISO 8601"),
    "excluded": (int, "1 if an exclusion rule of the study excludes the rater, else 0"),
}
"""Type and meaning of each column of an exported vote."""


def read_votes(store: Store, study: Study) -> list[Record]:
    """Return a record per vote of the study, by rater and position, with all keys of `COLUMNS` but
    `excluded`."""
    vote, trial, rater, pair = schema.vote, schema.trial, schema.rater, schema.pair
    a, b = schema.picture.alias("a"), schema.picture.alias("b")
    query = select(
        rater.c.pseudonym.label("rater"), trial.c.position, trial.c.kind, pair.c.comparison,
        pair.c.number.label("pair"), pair.c.image, a.c.method.label("method_a"),
        b.c.method.label("method_b"), a.c.sha256.label("sha256_a"), b.c.sha256.label("sha256_b"),
        trial.c.left_side.label("left"), vote.c.choice, vote.c.response_ms.label("page_ms"),
        vote.c.display_px, vote.c.pixel_ratio, vote.c.viewport_width, vote.c.viewport_height,
        vote.c.input, rater.c.panel, rater.c.consent_version, rater.c.consented, trial.c.issued,
        vote.c.voted,
    ).select_from(
        vote.join(trial, trial.c.id == vote.c.trial_id).join(rater, rater.c.id == trial.c.rater_id)
        .join(pair, pair.c.id == trial.c.pair_id)
        .join(a, a.c.id == pair.c.picture_a).outerjoin(b, b.c.id == pair.c.picture_b)
    ).where(pair.c.study_id == study.id)
    with store.reading() as connection:
        records = [dict(row) for row in connection.execute(query).mappings()]
    for record in records:
        record.update({name: record[name] or "" for name in ("panel", "method_b", "sha256_b")})
        record["response_ms"] = elapsed_ms(record["issued"], record["voted"])
        record["chosen"] = chosen = answer_of(record["choice"], record["left"])
        record["chosen_method"] = record.get(f"method_{chosen}", "")
    # Sorted here, since databases differ in their order of text.
    return sorted(records, key=lambda record: (record["rater"], record["position"]))


def grouped(records: Sequence[Record], column: str) -> dict[Any, list[Record]]:
    """Return the records by their values in a column, in the order of the records."""
    found: dict[Any, list[Record]] = defaultdict(list)
    for record in records:
        found[record[column]].append(record)
    return dict(found)


def find_rater(connection: Connection, study: Study, pseudonym: str,
               called: str | None = None) -> int:
    """Return the key of a rater in the table of raters.

    Raise ConfigError if the study has no rater of this pseudonym; the message has the name by which
    it was `called`.
    """
    rater = schema.rater
    key = connection.scalar(select(rater.c.id).where(
        rater.c.study_id == study.id, rater.c.pseudonym == pseudonym, rater.c.withdrawn.is_(None)))
    if key is None:
        raise ConfigError(f"the study {study.name!r} has no rater {called or pseudonym}; give a "
                          "pseudonym of its export, or a participant id by --rater-id")
    return int(key)


def elapsed_ms(issued: str, voted: str) -> float:
    """Return the milliseconds between two times in ISO 8601, else raise ValueError; 0 if the clock
    was set back."""
    start, end = (datetime.fromisoformat(text.replace("Z", "+00:00")) for text in (issued, voted))
    return max((end - start) / timedelta(milliseconds=1), 0.0)


def answer_of(choice: str, left: str) -> str:
    """Return the picture ("a" or "b") on the chosen side, given the picture on the left; "" if the
    rater was unsure.

    A judgement of a single picture is its own answer.
    """
    if choice in JUDGEMENTS:
        return choice
    if choice == UNSURE:
        return ""
    return left if choice == SIDES[0] else {"a": "b", "b": "a"}[left]


def correct_answer(method_a: str) -> str:
    """Return the correct answer of a gold or practice trial: picture a, or the judgement that is
    its method."""
    return method_a if method_a in JUDGEMENTS else "a"


def gold_answers(records: Sequence[Record]) -> list[bool]:
    """Return whether each vote on a gold pair is correct."""
    return [record["chosen"] == correct_answer(record["method_a"]) for record in records
            if record["kind"] == GOLD]


def repeated_answers(records: Sequence[Record]) -> list[bool]:
    """Return whether each vote on a repeat has the same answer as the rater's first vote on that
    pair."""
    first = {(record["rater"], record["pair"]): record["chosen"] for record in records
             if record["kind"] == MAIN}
    return [first[key] == record["chosen"] for record in records
            if record["kind"] == REPEAT and (key := (record["rater"], record["pair"])) in first]


def left_choices(records: Sequence[Record]) -> list[bool]:
    """Return whether each vote for a side is for the left one."""
    return [record["choice"] == SIDES[0] for record in records if record["choice"] in SIDES]
