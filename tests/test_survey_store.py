"""The store: one file or a database server, facts that only grow, and one clear line for every trouble."""

from __future__ import annotations

import sqlite3
import threading

import pytest
from sqlalchemy import insert, text
from survey_tools import add_study, ballot, vote_through

from superres.errors import ConfigError, StoreError
from superres.survey import schema
from superres.survey.records import read_votes
from superres.survey.store import Store
from superres.survey.voting import enrol, next_trial, save_vote


def test_the_file_is_in_wal_mode_and_survives_closing(tmp_path):
    store = Store(tmp_path / "survey.db", create=True)
    study, _ = add_study(store)
    vote_through(store, study, "me", lambda *_: "left")
    before = read_votes(store, study)
    with store.reading() as connection:
        assert connection.scalar(text("PRAGMA synchronous")) == 2
        assert connection.scalar(text("PRAGMA foreign_keys")) == 1
    store.close()
    with sqlite3.connect(tmp_path / "survey.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    again = Store(tmp_path / "survey.db")
    assert read_votes(again, again.study("study")) == before
    assert len(before) == 9


def test_a_study_is_read_as_it_was_stored(store):
    study, token = add_study(store, allow_unsure=True, minimum_viewport=(700, 500), id_params=("who",))
    again = store.study("study")
    assert again == study
    assert again.settings.minimum_viewport == (700, 500)
    assert again.methods == {"k6": {"config": "k6"}, "greedy": {"config": "greedy"}}
    assert [comparison.name for comparison in again.comparisons] == ["k6 vs greedy"]
    assert store.is_owner(study, token)
    assert not store.is_owner(study, token + "x")
    new = store.new_owner_token(study)
    assert store.is_owner(study, new)
    assert not store.is_owner(study, token)


def test_names_are_unique_and_printable_and_listed_if_a_study_is_unknown(store):
    add_study(store)
    with pytest.raises(ConfigError, match="there is a study 'study'"):
        add_study(store)
    for name in ("", "  ", "a\nb", "x" * 201):
        with pytest.raises(ConfigError, match="must be 1 to 200 printable characters"):
            add_study(store, name)
    add_study(store, "second")
    with pytest.raises(StoreError, match=r"no study 'third' in .*; it holds: study, second"):
        store.study("third")


@pytest.mark.parametrize("statement", [
    "UPDATE survey_vote SET choice = 'left'", "DELETE FROM survey_vote", "UPDATE survey_exclusion SET rule = 'x'",
    "DELETE FROM survey_exclusion",
])
def test_the_database_itself_refuses_to_change_votes_and_exclusions(store, statement):
    study, _ = add_study(store)
    vote_through(store, study, "me", lambda *_: "left")
    with store.writing() as connection:
        connection.execute(insert(schema.exclusion).values(study_id=study.id, number=1, rule="votes<1", reason="test",
                                                           recorded="2026"))
    before = read_votes(store, study)
    with pytest.raises(StoreError, match="only ever added"), store.writing() as connection:
        connection.execute(text(statement))
    assert read_votes(store, study) == before


def test_no_store_is_not_made_by_reading(tmp_path):
    with pytest.raises(StoreError, match=r"no survey store .*survey.db; make one with superres survey create"):
        Store(tmp_path / "survey.db")
    assert list(tmp_path.iterdir()) == []


def test_a_newer_schema_is_left_alone(tmp_path):
    store = Store(tmp_path / "survey.db", create=True)
    with store.writing() as connection:
        connection.execute(schema.schema.update().values(version=schema.VERSION + 1))
    for create in (False, True):
        with pytest.raises(StoreError, match="has schema 2, newer than this program's 1; install a newer superres"):
            Store(tmp_path / "survey.db", create=create)


def test_an_older_schema_is_brought_up_to_date_in_one_step_or_not_at_all(store, monkeypatch):
    study, _ = add_study(store)
    vote_through(store, study, "me", lambda *_: "left")
    votes = read_votes(store, study)
    failing = [True]

    def step(connection):
        connection.exec_driver_sql("ALTER TABLE survey_study ADD COLUMN note VARCHAR(20)")
        if failing:
            raise ConfigError("the step fails")

    monkeypatch.setattr(schema, "VERSION", 2)
    monkeypatch.setattr(schema, "MIGRATIONS", {1: step})
    with pytest.raises(StoreError, match=r"has schema 1, older than this program's; run superres survey migrate"):
        Store(store.address)
    with pytest.raises(ConfigError):
        Store(store.address, create=True)
    failing.clear()
    new = Store(store.address, create=True)
    assert new.migrated == (1, 2)
    assert read_votes(new, new.study("study")) == votes
    assert Store(store.address, create=True).migrated == (2, 2)
    new.close()


def test_tables_of_another_program_are_no_survey(tmp_path):
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE things (name TEXT)")
    with pytest.raises(StoreError, match="holds no survey; run superres survey migrate"):
        Store(tmp_path / "other.db")


def test_a_file_that_is_no_database_is_named(tmp_path):
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
    session, _ = enrol(sqlite, study, "me", study.settings.consent_version)
    token = next_trial(sqlite, study, session).token
    frozen = Store(f"sqlite:///file:{sqlite.location}?mode=ro&uri=true")
    assert read_votes(frozen, frozen.study("study")) == []
    with pytest.raises(StoreError, match=r"\A[^\n]* is read-only; allow writing"):
        save_vote(frozen, study, session, token, ballot())
    assert read_votes(sqlite, study) == []


def test_a_full_disk_refuses_in_one_line_and_loses_nothing(sqlite):
    """A database that may not grow, for which SQLite reports the same error as for a full disk."""
    study, _ = add_study(sqlite, count=30, trials=30, gold=0, practice=0, repeats=30)

    def limit(pages):
        with sqlite.reading() as connection:  # a connection's own limit; this test uses one at a time
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")

    def vote_on(session):
        while (trial := next_trial(sqlite, study, session)) is not None:
            save_vote(sqlite, study, session, trial.token, ballot())

    session, _ = enrol(sqlite, study, "me", study.settings.consent_version)
    with sqlite.reading() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
    limit(pages)
    with pytest.raises(StoreError, match=r"\A[^\n]* the disk is full; make room and try again"):
        vote_on(session)
    votes = read_votes(sqlite, study)
    limit(10_000)
    vote_on(session)
    assert read_votes(sqlite, study)[:len(votes)] == votes
    assert len(read_votes(sqlite, study)) == 60


def test_two_processes_worth_of_writers_take_turns(store):
    study, _ = add_study(store, count=8, trials=8, gold=0, repeats=0, practice=0)
    second = Store(store.address)
    threads = [threading.Thread(target=vote_through, args=(kept, study, f"rater{n}", lambda *_: "left"))
               for n, kept in enumerate([store, second] * 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    votes = read_votes(store, study)
    assert len(votes) == 6 * 8
    assert len({(vote["rater"], vote["pair"]) for vote in votes}) == 6 * 8
    second.close()
