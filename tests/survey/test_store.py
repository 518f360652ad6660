"""The store: one file or a database server, facts that only grow, and one clear line for every
trouble."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import select, text

from superres.cli.main import run
from superres.errors import ConfigError, OutputError, StoreError
from superres.survey import schema
from superres.survey.credentials import pseudonym
from superres.survey.exclusions import exclude, read_exclusions
from superres.survey.records import read_votes
from superres.survey.store import Store
from superres.survey.voting import RefusedError, next_trial
from superres.survey.withdrawal import withdraw, withdrawals
from tests.survey.helpers import (
    PLAIN,
    RaterClient,
    add_study,
    enter,
    serving,
    vote_on,
    vote_through,
)


def test_every_vote_is_on_disk_when_it_is_stored(sqlite):
    study, _ = add_study(sqlite)
    vote_through(sqlite, study)
    with sqlite.reading() as connection:
        found = [connection.scalar(text(f"PRAGMA {name}"))
                 for name in ("synchronous", "foreign_keys", "journal_mode")]
    assert found == [2, 1, "wal"]
    again = Store(sqlite.location)
    assert read_votes(again, again.study("study")) == read_votes(sqlite, study)


def test_a_study_and_its_votes_are_read_as_they_were_stored(store):
    study, token = add_study(store, allow_unsure=True, minimum_viewport=(700, 500), practice=0,
                             id_params=("who",), panel_params=("SESSION_ID",))
    again = store.study("study")
    assert again == study
    assert (again.settings.minimum_viewport, again.settings.id_params) == ((700, 500), ("who",))
    assert store.is_owner(study, token)
    assert not store.is_owner(study, token + "x")
    new = store.new_owner_token(study)
    assert store.is_owner(study, new)
    assert not store.is_owner(study, token)
    # A vote, as the page reports it, and once.
    sent = {"choice": "unsure", "response_ms": 1234.5, "display_px": 256.0, "pixel_ratio": 1.5,
            "viewport_width": 1024, "viewport_height": 768, "input": "pointer"}
    session, _ = enter(store, study, panel={"SESSION_ID": "5f", "STUDY_ID": "not asked for"})
    opened = next_trial(store, study, session)["token"]
    assert vote_on(store, study, session, opened, **sent) is None
    with pytest.raises(RefusedError, match="voted on already; the first vote counts"):
        vote_on(store, study, session, opened, "left")
    (record,) = read_votes(store, study)
    assert {**record, "response_ms": record["page_ms"]} == {
        **record, **sent, "chosen": "", "chosen_method": "", "panel": '{"SESSION_ID": "5f"}'}
    assert record["consent_version"] == study.settings.consent_version
    assert record["consented"] <= record["issued"] <= record["voted"]


def test_names_are_unique_and_printable_and_listed_if_a_study_is_unknown(store):
    add_study(store)
    with pytest.raises(ConfigError, match="there is a study 'study'"):
        add_study(store)
    for name in ("", "  ", "a\nb", "x" * 201, "../evil"):
        with pytest.raises(ConfigError, match=r"a study.s name (must be 1 to 200 characters|has "
                           r"201 characters)"):
            add_study(store, name)
    add_study(store, "second")
    with pytest.raises(StoreError, match=r"no study 'third' in .*; it holds: study, second"):
        store.study("third")


def test_the_database_itself_refuses_to_change_votes_and_exclusions(store):
    study, _ = add_study(store)
    vote_through(store, study)
    exclude(store, study, "votes<1", "test")
    before = read_votes(store, study), read_exclusions(store, study)
    for statement in ("UPDATE survey_vote SET choice = 'left'", "DELETE FROM survey_vote",
                      "UPDATE survey_exclusion SET rule = 'x'", "DELETE FROM survey_exclusion"):
        with pytest.raises(StoreError, match="only ever added"), store.writing() as connection:
            connection.execute(text(statement))
    assert (read_votes(store, study), read_exclusions(store, study)) == before


def change(store, **values):
    """Change the row of a store's studies."""
    with store.writing() as connection:
        connection.execute(schema.study.update().values(values))


@pytest.mark.parametrize(("column", "value"), [
    ("settings", "{"), ("settings", "[1]"), ("settings", '{"trials": -1}'),
    ("methods", "[" * 100_000), ("comparisons", "[1]"), ("comparisons", '[{"evil": 1}]')])
def test_a_damaged_study_is_one_line(sqlite, column, value):
    add_study(sqlite)
    change(sqlite, **{column: value})
    with pytest.raises(StoreError, match=r"\A[^\n]*the study 'study' in .* is damaged \(.*\); "
                       r"restore it from a"):
        sqlite.study("study")


@pytest.mark.parametrize(("methods", "adaptive", "lines"),
                         [("ab", True, 0), ("abc", False, 0), ("abc", True, 1)])
def test_a_study_that_asked_for_an_adaptive_order_says_so_and_goes_on(sqlite, capsys, methods,
                                                                      adaptive, lines):
    study, _ = add_study(sqlite, methods=methods)
    capsys.readouterr()
    change(sqlite, settings=json.dumps({**study.settings.to_dict(), "adaptive": adaptive}))
    opened = sqlite.study("study")
    told = capsys.readouterr().err.splitlines()
    assert [line.startswith("superres: the study 'study' asked for an adaptive order of pairs, and "
                            "gets the balanced one: ") for line in told] == [True] * lines
    assert opened == study
    assert vote_through(sqlite, opened) == 9


def test_a_study_that_was_imported_from_votes_is_refused_in_one_line(sqlite):
    add_study(sqlite)
    change(sqlite, has_pictures=False)
    with pytest.raises(StoreError, match=r"\A[^\n]* was imported from votes; studies have pictures "
                       "now: use the superres that imported it"):
        sqlite.study("study")


def test_another_schema_is_left_alone(sqlite):
    with sqlite.writing() as connection:
        connection.execute(schema.schema.update().values(version=schema.VERSION + 1))
    for create in (False, True):
        with pytest.raises(StoreError, match=r"has schema \d+, this program's is \d+; use"):
            Store(sqlite.location, create=create)


def test_files_that_are_no_store_are_refused_and_none_is_made_by_reading(tmp_path):
    with pytest.raises(StoreError, match=r"no survey store .*nowhere.db; make one with superres "
                       r"survey create"):
        Store(tmp_path / "nowhere.db")
    assert list(tmp_path.iterdir()) == []
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE things (name TEXT)")
    with pytest.raises(StoreError, match="holds no survey; run superres survey migrate"):
        Store(tmp_path / "other.db")
    (tmp_path / "survey.db").write_bytes(b"not a database, only some text\n" * 100)
    for create in (False, True):
        with pytest.raises(StoreError, match="is not an SQLite database; give another --store"):
            Store(tmp_path / "survey.db", create=create)


@pytest.mark.parametrize(("url", "message"), [
    ("://", "is not a database URL"),
    ("nodialect://x/y", "no driver for the store"),
    ("sqlite:///:memory:", "would lose its votes"),
    ("postgresql://nobody:secret@127.0.0.1:1/none", "cannot be used"),
    ("/nowhere/survey.db", "cannot be opened"),
])
def test_a_store_that_cannot_be_reached_is_one_line_without_its_password(url, message):
    with pytest.raises(StoreError, match=message) as caught:
        Store(url, create=True)
    assert "secret" not in str(caught.value)


def test_a_read_only_store_is_read_and_refuses_votes_in_one_line(sqlite):
    study, _ = add_study(sqlite)
    session, _ = enter(sqlite, study)
    token = next_trial(sqlite, study, session)["token"]
    frozen = Store(f"sqlite:///file:{sqlite.location}?mode=ro&uri=true")
    assert read_votes(frozen, frozen.study("study")) == []
    with pytest.raises(StoreError, match=r"\A[^\n]* is read-only; allow writing"):
        vote_on(frozen, study, session, token)
    assert read_votes(sqlite, study) == []


def test_a_full_disk_refuses_in_one_line_and_loses_nothing(sqlite):
    """A database that may not grow, for which SQLite reports the same error as for a full disk."""
    study, _ = add_study(sqlite, count=30, trials=30, gold=0, practice=0, repeats=30)

    def limit(pages):
        # a connection's own limit; this test uses one at a time
        with sqlite.reading() as connection:
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")

    def vote_on_the_rest(session):
        while (trial := next_trial(sqlite, study, session)) is not None:
            vote_on(sqlite, study, session, trial["token"])

    session, _ = enter(sqlite, study)
    limit(1)  # raised by SQLite to the present size
    with pytest.raises(StoreError, match=r"\A[^\n]* the disk is full; make room and try again"):
        vote_on_the_rest(session)
    votes = read_votes(sqlite, study)
    limit(10_000)
    vote_on_the_rest(session)
    assert read_votes(sqlite, study)[:len(votes)] == votes
    assert len(read_votes(sqlite, study)) == 60


def test_two_processes_worth_of_writers_take_turns(store):
    study, _ = add_study(store, count=8, trials=8, **PLAIN)
    second = Store(store.address)
    threads = [threading.Thread(target=vote_through, args=(kept, study, f"rater{n}"))
               for n, kept in enumerate([store, second] * 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    votes = read_votes(store, study)
    assert len(votes) == 6 * 8
    assert len({(vote["rater"], vote["pair"]) for vote in votes}) == 6 * 8
    second.close()


def traces(store, study, rater):
    """Return what the store has of a rater and nobody else, as bytes."""
    one, trial, vote = schema.rater, schema.trial, schema.vote
    query = select(one.c.pseudonym, one.c.session_hash, one.c.panel, one.c.consented,
                   trial.c.token_hash, trial.c.issued, vote.c.voted) \
        .select_from(one.join(trial).join(vote)) \
        .where(one.c.pseudonym == pseudonym(study.salt, rater))
    with store.reading() as connection:
        rows = connection.execute(query).all()
    assert len(rows) == 20
    return {str(value).encode() for row in rows for value in row}


def bytes_on_disc(store):
    """Return the content of all files that a store has."""
    if "postgresql" not in str(store.address):
        return b"".join(path.read_bytes() for path in Path(store.location).parent.iterdir())
    with psycopg.connect(str(store.address), autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        folder, number = connection.execute(
            "SELECT current_setting('data_directory'), oid FROM pg_database "
            "WHERE datname = current_database()").fetchone()
    return b"".join(path.read_bytes() for path in Path(folder, "base", str(number)).iterdir())


def test_a_withdrawal_erases_the_bytes_on_the_disc_while_the_survey_is_served(store):
    study, _ = add_study(store, count=20, trials=20, **PLAIN, panel_params=("SESSION_ID",))
    raters = ("stays", "leaves", "stays too")
    with serving(store, study) as address:
        clients = [RaterClient(address) for _ in raters]
        for client, rater in zip(clients, raters, strict=True):
            client.enrol(rater, panel={"SESSION_ID": f"of {rater}"}).raise_for_status()
        for _ in range(20):
            for client in clients:
                client.vote(client.trial().json()["token"], "left").raise_for_status()
        votes = read_votes(store, study)
        kept, gone = traces(store, study, "stays"), traces(store, study, "leaves")
        gone -= kept | traces(store, study, "stays too")
        assert len(gone) > 50
        before = bytes_on_disc(store)
        assert all(trace in before for trace in gone)
        # By another process, as the command does.
        second, name = Store(store.address), pseudonym(study.salt, "leaves")
        found = withdraw(second, study, name)
        assert (found.votes, withdrawals(second, study)) == (20, [found])
        after = bytes_on_disc(store)
        assert [trace for trace in gone if trace in after] == []
        assert all(trace in after for trace in kept)
        assert clients[1].trial().status_code == 401  # the session of who left
        assert clients[0].trial().json()["done"]
        for client in clients:
            client.close()
    second.close()
    assert read_votes(store, study) == [vote for vote in votes if vote["rater"] != name]
    # No other vote can be deleted, none twice, and who left may come back as a new rater.
    with pytest.raises(StoreError, match="only ever added"), store.writing() as connection:
        connection.execute(text("DELETE FROM survey_vote"))
    with pytest.raises(ConfigError, match="has no rater"):
        withdraw(store, study, name)
    assert vote_through(store, study, "leaves") == 20


def test_a_withdrawal_that_cannot_clean_the_files_says_what_remains_to_do(sqlite):
    study, _ = add_study(sqlite)
    vote_through(sqlite, study)
    impatient = Store(f"sqlite:///{sqlite.location}?timeout=0")
    with sqlite.reading() as connection:
        # an older state, which the log has to keep
        connection.execute(text("SELECT * FROM survey_vote")).all()
        with pytest.raises(StoreError, match=r"9 votes are erased from the study, but not yet from "
                           "the files: the store .* is read by another process; stop that one; "
                           "then run superres survey migrate "):
            withdraw(impatient, study, pseudonym(study.salt, "me"))
    assert read_votes(sqlite, study) == []
    log = Path(f"{sqlite.location}-wal")
    assert log.stat().st_size > 0
    assert run(["survey", "migrate", "--store", sqlite.location]) == 0
    assert log.stat().st_size == 0
    impatient.close()


def test_a_backup_is_a_store_of_one_moment_while_the_survey_is_served(sqlite, tmp_path):
    study, _ = add_study(sqlite, count=30, trials=30, **PLAIN)
    voting = threading.Thread(target=vote_through, args=(sqlite, study))
    voting.start()
    copies = []
    while voting.is_alive() or not copies:
        copies.append(tmp_path / f"copy{len(copies)}.db")
        assert run(["survey", "backup", str(copies[-1]), "--store", sqlite.location]) == 0
    voting.join()
    votes = read_votes(sqlite, study)
    assert sorted(tmp_path.iterdir()) == sorted(copies)
    for path in copies:
        copy = Store(path)
        found = read_votes(copy, copy.study("study"))
        assert [record["position"] for record in found] == list(range(1, len(found) + 1))
        assert all(record in votes for record in found if record["position"] < len(found))
        with copy.reading() as connection:
            assert connection.scalar(text("PRAGMA integrity_check")) == "ok"
        copy.close()
    restored = Store(copies[-1])
    again = restored.study("study")
    vote_through(restored, again, "another")  # a copy can be served and voted on
    assert len(read_votes(restored, again)) >= 30
    restored.close()


def test_a_backup_that_cannot_be_written_is_one_line_and_leaves_nothing(store, tmp_path):
    (tmp_path / "file").write_text("x")
    if "postgresql" in str(store.address):
        with pytest.raises(ConfigError, match=r"pg_dump -Fc -t 'survey_\*' -f FILE "
                           r"postgresql://\w+@127"):
            store.backup(tmp_path / "copy.db")
    else:
        for path, message in (("file", "file exists already; choose another"),
                              ("file/x", "cannot write to the fold")):
            with pytest.raises((ConfigError, OutputError), match=message):
                store.backup(tmp_path / path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
