"""A rater's way through a study: balance, sides, kinds of trials, one vote a trial, and nobody
else's."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from sqlalchemy import func, select

from superres.survey import schema
from superres.survey.assignment import schedule
from superres.survey.credentials import link_key, new_token, pseudonym
from superres.survey.exclusions import quality
from superres.survey.records import read_votes
from superres.survey.store import Store
from superres.survey.study import GOLD, MAIN, PRACTICE, REPEAT, StudySettings
from superres.survey.voting import RefusedError, next_trial, shown_picture
from tests.survey.helpers import PLAIN, add_study, enter, vote_on, vote_through


def refused(status, message):
    return pytest.raises(RefusedError, match=message, check=lambda error: error.status == status)


@pytest.mark.parametrize(("trials", "repeats", "gold", "practice"),
                         [(20, 5, 4, 3), (1, 1, 3, 0), (2, 2, 0, 0), (5, 5, 5, 1)])
def test_practice_comes_first_and_repeats_late_after_what_they_repeat(trials, repeats, gold,
                                                                      practice):
    settings = StudySettings(trials=trials, gold=gold, repeats=repeats, practice=practice)
    orders = [schedule(settings, {MAIN: 100, GOLD: 8, PRACTICE: 3}, np.random.default_rng(seed))
              for seed in range(20)]
    for kinds in orders:
        assert Counter(kinds) == Counter({MAIN: trials, GOLD: gold, REPEAT: repeats,
                                          PRACTICE: practice})
        assert kinds[:practice] == [PRACTICE] * practice
        assert REPEAT not in kinds[practice:practice + (trials + gold) // 2]
        for place, kind in enumerate(kinds):
            assert kind != REPEAT or kinds[:place].count(MAIN) > kinds[:place].count(REPEAT)
    assert len(set(map(tuple, orders))) > (15 if trials == 20 else 0)


def test_a_rater_sees_each_pair_once_and_repeats_with_the_sides_swapped(sqlite):
    study, _ = add_study(sqlite, count=12, trials=12, gold=2, repeats=4, practice=2)
    assert vote_through(sqlite, study) == 20
    votes = read_votes(sqlite, study)
    assert Counter(record["kind"] for record in votes) == {MAIN: 12, GOLD: 2, REPEAT: 4,
                                                           PRACTICE: 2}
    first = {record["pair"]: record for record in votes if record["kind"] == MAIN}
    repeats = {record["pair"]: record for record in votes if record["kind"] == REPEAT}
    assert (len(first), len(repeats)) == (12, 4)
    for pair, repeat in repeats.items():
        assert {first[pair]["left"], repeat["left"]} == {"a", "b"}
        assert first[pair]["position"] < repeat["position"]


def test_pairs_get_equally_many_votes_and_new_images_come_first(sqlite):
    study, _ = add_study(sqlite, methods=("a", "b", "c"), count=8, trials=6, **PLAIN)
    for number in range(8):
        vote_through(sqlite, study, f"rater{number}")
    votes = read_votes(sqlite, study)
    counts = Counter(record["pair"] for record in votes)
    assert (len(counts), set(counts.values())) == (16, {3})
    # at the first rater's votes, no unseen pair has more votes than another
    first = pseudonym(study.salt, "rater0")
    assert len({record["image"] for record in votes if record["rater"] == first}) == 6


def test_sides_are_random_and_recorded(sqlite):
    study, _ = add_study(sqlite, count=40, trials=40, **PLAIN)
    vote_through(sqlite, study)
    votes = read_votes(sqlite, study)
    assert 10 <= sum(record["left"] == "a" for record in votes) <= 30
    for record in votes:
        assert record["chosen"] == record["left"]
        assert record["chosen_method"] == record[f"method_{record['left']}"]


def test_a_pair_that_someone_is_looking_at_is_not_given_to_another(sqlite):
    study, _ = add_study(sqlite, count=6, **PLAIN)
    for number in range(6):
        next_trial(sqlite, study, enter(sqlite, study, f"rater{number}")[0])
    with sqlite.reading() as connection:
        assert len(set(connection.scalars(select(schema.trial.c.pair_id)))) == 6


def test_a_study_with_fewer_pairs_than_trials_ends_with_its_pairs(sqlite):
    study, _ = add_study(sqlite, count=3, trials=50, gold=4, repeats=4, practice=4)
    assert vote_through(sqlite, study) == 3 + 3 + 3 + 3


def test_practice_is_told_what_was_right_and_nothing_else_is(sqlite):
    study, _ = add_study(sqlite, practice=2, trials=1, gold=1, repeats=0)
    session, _ = enter(sqlite, study)
    verdicts = []
    while (trial := next_trial(sqlite, study, session)) is not None:
        verdicts.append(vote_on(sqlite, study, session, trial["token"]))
    assert verdicts == [record["chosen"] == "a" if record["kind"] == PRACTICE else None
                        for record in read_votes(sqlite, study)]


def test_a_closed_tab_resumes_with_the_same_pair_and_voids_the_old_token(sqlite):
    study, _ = add_study(sqlite)
    session, _ = enter(sqlite, study)
    first = next_trial(sqlite, study, session)
    again, resumed = enter(sqlite, study, "  me ", key=link_key(study.salt, "me"))
    assert resumed
    with refused(401, "opened elsewhere"):
        next_trial(sqlite, study, session)
    trial = next_trial(sqlite, study, again)
    assert (trial["position"], trial["total"]) == (first["position"], first["total"]) == (1, 9)
    with refused(403, "not open in this window"):
        vote_on(sqlite, study, again, first["token"])
    with refused(404, "no such picture"):
        shown_picture(sqlite, study, first["token"], "left")
    vote_on(sqlite, study, again, trial["token"])
    assert next_trial(sqlite, study, again)["position"] == 2
    assert len(read_votes(sqlite, study)) == 1


def test_the_session_of_an_enrolment_whose_answer_was_lost_resumes_it(sqlite):
    study, _ = add_study(sqlite)
    drawn = new_token()
    assert enter(sqlite, study, session=drawn) == (drawn, False)
    token = next_trial(sqlite, study, drawn)["token"]
    assert enter(sqlite, study, session=drawn) == (drawn, True)
    vote_on(sqlite, study, drawn, token)
    theirs, _ = enter(sqlite, study, "them", session=drawn)  # a browser that two people share
    assert theirs != drawn
    assert (next_trial(sqlite, study, drawn)["position"],
            next_trial(sqlite, study, theirs)["position"]) == (2, 1)


def test_the_response_time_is_the_servers_whatever_the_page_reports(sqlite, monkeypatch):
    study, _ = add_study(sqlite, practice=0)
    session, _ = enter(sqlite, study)
    clock = iter(["10:00:00.000", "10:00:02.500",  # shown, and voted on
                  # shown, shown again after a break, and voted on
                  "10:00:03.000", "11:30:00.000", "11:30:00.400",
                  "12:00:00.000", "11:59:00.000"])  # the clock was set back
    monkeypatch.setattr("superres.survey.voting.utc_now", lambda: f"2026-01-02T{next(clock)}Z")
    for openings in (1, 2, 1):
        for _ in range(openings):
            token = next_trial(sqlite, study, session)["token"]
        again = Store(sqlite.location)  # as after a restart of the server
        vote_on(again, study, session, token, response_ms=60_000.0)
        again.close()
    votes = read_votes(sqlite, study)
    assert [record["response_ms"] for record in votes] == [2500, 400, 0]
    assert {record["page_ms"] for record in votes} == {60_000}
    assert quality(votes)[votes[0]["rater"]]["median-ms"] == 400


def test_nobody_votes_for_another_or_in_another_study(sqlite):
    study, _ = add_study(sqlite)
    other, _ = add_study(sqlite, "other")
    (mine, _), (theirs, _), (elsewhere, _) = (enter(sqlite, study), enter(sqlite, study, "them"),
                                              enter(sqlite, other))
    token = next_trial(sqlite, study, mine)["token"]
    for session in (theirs, elsewhere, "", token, "x" * 32):
        with refused(403, "not open in this window"):
            vote_on(sqlite, study, session, token)
    with refused(403, "not open in this window"):
        vote_on(sqlite, other, elsewhere, token)
    with refused(404, "no such picture"):
        shown_picture(sqlite, other, token, "left")
    with refused(401, "start again"):
        next_trial(sqlite, study, elsewhere)
    assert read_votes(sqlite, study) == read_votes(sqlite, other) == []


def test_a_participant_id_alone_takes_over_no_session(sqlite):
    study, _ = add_study(sqlite)
    other, _ = add_study(sqlite, "other")
    session, _ = enter(sqlite, study)
    trial = next_trial(sqlite, study, session)
    for proof in ({}, {"session": "x" * 32}, {"session": enter(sqlite, study, "them")[0]},
                  {"session": session[:-1]}):
        with refused(403, "has started already; continue in the same browser, or ask"):
            enter(sqlite, study, **proof)
    for key in ("0" * 32, pseudonym(study.salt, "me"), link_key(study.salt, "them"),
                link_key(other.salt, "me")):
        for rater in ("me", "new"):
            with refused(403, "this link is not valid"):
                enter(sqlite, study, rater, key=key)
    vote_on(sqlite, study, session, trial["token"])  # the session is still the rater's


@pytest.mark.parametrize(("settings", "changes", "message"), [
    ({}, {"choice": "unsure"}, "the choice 'unsure' is not offered"),
    ({}, {"choice": "good"}, "the choice 'good' is not offered"),
    ({"judge": True}, {"choice": "left"}, "the choice 'left' is not offered"),
    ({"judge": True}, {"choice": "unsure"}, "the choice 'unsure' is not offered"),
    ({}, {"viewport_width": 239}, "the window must be at least 240 x 240 pixels"),
    ({}, {"viewport_height": 100}, "the window must be at least 240 x 240 pixels"),
])
def test_votes_that_the_study_does_not_take_are_refused(sqlite, settings, changes, message):
    study, _ = add_study(sqlite, **settings)
    session, _ = enter(sqlite, study)
    token = next_trial(sqlite, study, session)["token"]
    with refused(422, message):
        vote_on(sqlite, study, session, token, **changes)
    assert read_votes(sqlite, study) == []


@pytest.mark.parametrize("rater", ["", "   ", "x" * 101, "a\nb", "a\x00b"])
def test_ids_that_are_none_are_refused(sqlite, rater):
    study, _ = add_study(sqlite)
    with refused(422, "a participant id must be 1 to 100 printable characters"):
        enter(sqlite, study, rater)


def test_raters_are_stored_under_a_salted_pseudonym(sqlite):
    studies = [add_study(sqlite, name)[0] for name in ("study", "other")]
    for study in studies:
        enter(sqlite, study, "prolific-4711")
    with sqlite.reading() as connection:
        names = connection.scalars(select(schema.rater.c.pseudonym)).all()
        assert connection.scalar(select(func.count()).select_from(schema.rater)) == 2
    assert names == [pseudonym(study.salt, "prolific-4711") for study in studies]
    assert len(set(names)) == 2
    for path in sqlite.location, f"{sqlite.location}-wal":
        with open(path, "rb") as file:
            assert b"prolific-4711" not in file.read()
