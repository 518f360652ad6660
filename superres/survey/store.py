"""The store of studies and votes: an SQLite file in WAL mode by default, or any database that
SQLAlchemy supports.

Votes and exclusions are only ever added; in SQLite and PostgreSQL, triggers refuse to change or
delete them, except votes of raters who withdrew (`superres.survey.withdrawal`). Every write is one
short transaction, which is on disk when the function returns. All functions of the survey that take
a store raise StoreError if it is locked, read-only, full, damaged or unreachable; then nothing was
changed.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shlex
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import URL, Connection, Engine, Table, create_engine, event, insert, select, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from superres.config import require
from superres.errors import ConfigError, OutputError, StoreError, first_line, plain
from superres.survey import schema
from superres.survey.commands import STORE_VARIABLE, command_line
from superres.survey.credentials import digest, new_token
from superres.survey.pairs import Pair, encode_png
from superres.survey.study import MAX_IMAGE_NAME, Comparison, Study, StudySettings, check_name
from superres.system.output import prepare_folder, scratch_file
from superres.system.progress import say

BUSY_SECONDS = 30
"""Seconds that a write waits for another process's write; `?timeout=S` in an SQLite URL overrides
it."""

ERROR_MESSAGES = (
    ("is locked|lock timeout", "is locked by another process; stop that one, or try again"),
    ("read-?only", "is read-only; allow writing to the file and its folder, or give another "
     "--store"),
    ("disk is full|no space left", "cannot be written: the disk is full; make room and try again"),
    ("disk i/o error", "cannot be read or written (disk I/O error); check the disk"),
    ("unable to open", "cannot be opened; check the path, its folder and the permissions"),
    ("not a database", "is not an SQLite database; give another --store"),
    ("append-only", "refuses to change or delete votes and exclusions: they are only ever added"),
    ("malformed", "is damaged; restore it from a copy"),
    ("does not exist", "does not exist; create the database, or correct --store"),
    ("permission denied", "may not be used by this user; grant the rights, or give another "
     "--store"),
)
"""Pattern in a driver's message, and the message that users see instead."""


def utc_now(offset: timedelta = timedelta()) -> str:
    """Return the current time plus `offset` in UTC, as ISO 8601 with milliseconds; such texts sort
    by time."""
    return (datetime.now(timezone.utc) + offset).isoformat(timespec="milliseconds").replace(
        "+00:00", "Z")


class Store:
    """A store of studies, opened from an SQLite file or a SQLAlchemy database URL.

    `create` creates a missing store. `location` is the file or URL for messages, without the
    password. Raise StoreError if the store is missing, cannot be reached, or has another schema
    than this program's.
    """

    def __init__(self, url: str | Path, create: bool = False) -> None:
        # What the address names.
        address = _url(str(url))
        is_sqlite, file = address.get_backend_name() == "sqlite", address.database
        if is_sqlite and file in (None, "", ":memory:"):
            raise StoreError("a store in memory would lose its votes; give --store a file")
        self.location = str(file) if is_sqlite else address.render_as_string(hide_password=True)
        if (is_sqlite and not self.location.startswith("file:") and not create
            and not Path(self.location).is_file()):
            raise StoreError(f"no survey store {self.location}; make one with superres survey "
                             "create, or give --store")
        self._new_file = (Path(self.location) if create and is_sqlite
                          and not Path(self.location).exists() else None)
        # Its database, and the schema there.
        try:
            self._engine = _engine(address)
        except (ImportError, NoSuchModuleError) as error:
            message = (f"no driver for the store {self.location} ({error}); install it, such as "
                       "psycopg")
            raise StoreError(message) from None
        if create and is_sqlite:
            with self._translate_errors(), self._engine.connect() as connection:
                # Readers do not wait for writers in WAL mode, which is set outside a transaction
                # and saved in the file.
                connection.connection.cursor().execute("PRAGMA journal_mode=WAL")
        with self.reading(writes=create) as connection:
            found = schema.version_of(connection)
            if found not in (0, schema.VERSION):
                raise StoreError(f"the store {self.location} has schema {found}, this program's is "
                                 f"{schema.VERSION}; use the superres that made it")
            if not found and not create:
                remedy = command_line("migrate", store=self.location)
                raise StoreError(f"the store {self.location} holds no survey; run {remedy}")
            if not found:
                schema.create(connection)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @classmethod
    @contextmanager
    def for_new_study(cls, url: str | Path) -> Iterator[Store]:
        """Open a store, or create it; a file that was created is removed again if the context ends
        without a study."""
        store = cls(url, create=True)
        try:
            yield store
        finally:
            if store._new_file is not None and not store.studies():
                store.close()
                store._new_file.unlink(missing_ok=True)

    @contextmanager
    def reading(self, writes: bool = False) -> Iterator[Connection]:
        """Yield a connection with a consistent view of the store."""
        with self._translate_errors(), self._engine.connect() as connection, \
                connection.execution_options(writes=writes).begin():
            yield connection

    def writing(self) -> AbstractContextManager[Connection]:
        """Yield a connection in a transaction, which an exception rolls back."""
        return self.reading(writes=True)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error) as error:
            message = first_line(getattr(error, "orig", None) or error)
            meaning = next(
                (text for part, text in ERROR_MESSAGES if re.search(part, message.lower())),
                f"cannot be used: {message}; check --store")
            raise StoreError(f"the store {self.location} {meaning}") from error

    def clean(self) -> None:
        """Rewrite the files of the store without what was deleted, also while other processes use
        it.

        An SQLite file keeps rows that it moved until then, and its write-ahead log has copies of
        changed pages. PostgreSQL's own log and backups are beyond reach. Other databases are left
        as they are.
        """
        kind = self._engine.dialect.name
        with self._translate_errors(), self._engine.connect() as connection:
            if kind == "sqlite":
                cursor = connection.connection.cursor()  # outside a transaction
                cursor.execute("VACUUM")
                if cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                    raise StoreError(f"the store {self.location} is read by another process; stop "
                                     "that one")
            elif kind == "postgresql":
                connection.execution_options(isolation_level="AUTOCOMMIT")
                connection.exec_driver_sql(f"SET lock_timeout = '{BUSY_SECONDS}s'")
                connection.exec_driver_sql("VACUUM (FULL, ANALYZE) survey_vote, survey_trial, "
                                           "survey_rater")
                connection.exec_driver_sql("RESET lock_timeout")

    def backup(self, path: Path) -> None:
        """Copy an SQLite store to a new file as it is at one moment, also while other processes
        write to it.

        Raises:
            ConfigError: the file exists, or a database server keeps the store.
            OutputError: the file cannot be written.
        """
        if self._engine.dialect.name != "sqlite":
            url = (f'"${STORE_VARIABLE}"' if ":***@" in self.location
                   else shlex.quote(self.location.replace("+psycopg", "")))
            raise ConfigError(f"a database server keeps the store {self.location}; copy it by its "
                              f"own program: pg_dump -Fc -t 'survey_*' -f FILE {url}")
        require(not path.exists(), f"{path} exists already; choose another file, or remove it")
        prepare_folder(path.parent, "file")
        try:
            with (scratch_file(path.parent, path) as file,
                  closing(sqlite3.connect(file.name)) as copy,
                  self._engine.connect() as connection):
                copy.execute("PRAGMA journal_mode=OFF")  # a copy that fails is removed
                connection.connection.driver_connection.backup(copy)  # type: ignore[union-attr]
        except (OSError, sqlite3.Error) as error:
            raise OutputError(f"cannot copy {self.location} to {path}: {first_line(error)}; make "
                              "room, or choose another file") from error

    def create_study(
        self, name: str, settings: StudySettings, comparisons: Sequence[Comparison],
        methods: dict[str, dict[str, Any]], pairs: Sequence[Pair],
    ) -> tuple[Study, str]:
        """Store a study with its pictures atomically; return the study and the owner's token, which
        is not stored.

        Raise ConfigError if the name is taken or not valid.
        """
        check_name("a study's name", name)
        require(not name.startswith("-"), "a study's name must not begin with '-', where it would "
                f"be an option; not {name!r}")
        for method in methods:
            check_name("a method's name", method)
        token = new_token()
        with self.writing() as connection:
            taken = connection.scalar(select(schema.study.c.id).where(schema.study.c.name == name))
            require(taken is None, f"there is a study {name!r} in {self.location} already; choose "
                    "another name")
            study = add_row(
                connection, schema.study, name=name, created=utc_now(),
                settings=json.dumps(settings.to_dict()), methods=json.dumps(methods),
                comparisons=json.dumps([asdict(c) for c in comparisons]),
                salt=secrets.token_hex(32), owner_hash=digest(token), has_pictures=True)
            _add_pairs(connection, study, pairs)
        return self.study(name), token

    def studies(self) -> list[str]:
        """Return the names of all studies, oldest first."""
        with self.reading() as connection:
            return list(connection.scalars(select(schema.study.c.name).order_by(schema.study.c.id)))

    def study(self, name: str) -> Study:
        """Return the study with this name; raise StoreError if there is none."""
        with self.reading() as connection:
            row = connection.execute(
                select(schema.study).where(schema.study.c.name == name)).one_or_none()
        if row is None:
            known = ", ".join(self.studies()) or "none"
            raise StoreError(f"no study {name!r} in {self.location}; it holds: {known}")
        if not row.has_pictures:
            raise StoreError(f"the study {name!r} in {self.location} was imported from votes; "
                             "studies have pictures now: use the superres that imported it")
        try:
            values = dict(json.loads(row.settings))
            was_adaptive = values.pop("adaptive", False)
            study = Study(row.id, row.name, row.created, StudySettings.from_dict(values),
                          json.loads(row.methods),
                          tuple(Comparison(**one) for one in json.loads(row.comparisons)), row.salt)
        except (ValueError, TypeError, RecursionError, ConfigError) as error:
            raise StoreError(f"the study {name!r} in {self.location} is damaged "
                             f"({plain(str(error))}); restore it from a backup") from error
        # The setting was on by default, and without effect on one or two methods.
        methods = {method for c in study.comparisons for method in (c.method_a, c.method_b)}
        if was_adaptive and len(methods) > 2 and not study.settings.judge:
            say(f"the study {name!r} asked for an adaptive order of pairs, and gets the balanced "
                "one: its votes stay valid, and later raters see equally many pairs of each "
                "comparison; for the old order, serve it by the superres that made it")
        return study

    def is_owner(self, study: Study, token: str) -> bool:
        """Return whether `token` is the current token of the study's owner."""
        with self.reading() as connection:
            stored = connection.scalar(
                select(schema.study.c.owner_hash).where(schema.study.c.id == study.id))
        return bool(stored) and secrets.compare_digest(str(stored), digest(token))

    def new_owner_token(self, study: Study) -> str:
        """Return a new token for the study's owner and revoke the previous one."""
        token = new_token()
        with self.writing() as connection:
            connection.execute(update(schema.study).where(schema.study.c.id == study.id)
                               .values(owner_hash=digest(token)))
        return token


def _url(text: str) -> URL:
    if "://" not in text:
        return URL.create("sqlite", database=text)
    try:
        url = make_url(text)
    except ArgumentError:
        raise StoreError(f"{text!r} is not a database URL; give a file, or one such as "
                         "postgresql://user@host/name") from None
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def _engine(url: URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        return create_engine(url, pool_size=20, max_overflow=20, pool_timeout=BUSY_SECONDS,
                             pool_pre_ping=True)
    if "timeout" not in url.query:
        url = url.update_query_dict({"timeout": str(BUSY_SECONDS)})
    engine = create_engine(url, pool_size=20, max_overflow=30, pool_timeout=2 * BUSY_SECONDS)

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: object) -> None:  # noqa: ANN401 -- the driver's own type
        connection.isolation_level = None  # `begin` starts transactions, not the driver
        cursor = connection.cursor()
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute("PRAGMA secure_delete=ON")  # what is erased is overwritten in the file
        cursor.execute("PRAGMA synchronous=FULL")  # a committed vote survives a power failure

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A writer locks the store before it reads: if two transactions read first, one of them
        # could not write.
        writes = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _add_pairs(connection: Connection, study: int, pairs: Sequence[Pair]) -> None:
    """Add the pairs of a study and their pictures; a picture of several pairs is stored once."""
    known: dict[tuple[str, str, str], int] = {}  # ids of stored pictures
    for number, pair in enumerate(pairs):
        check_name("an image's name", pair.image, MAX_IMAGE_NAME)
        ids = []
        for method, pixels in zip(pair.methods, pair.pictures, strict=True):
            sha256 = hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).hexdigest()
            key = method, pair.image, sha256
            if key not in known:
                known[key] = add_row(connection, schema.picture, study_id=study, method=method,
                                     image=pair.image, sha256=sha256, png=encode_png(pixels))
            ids.append(known[key])
        add_row(connection, schema.pair, study_id=study, number=number, kind=pair.kind,
                comparison=pair.comparison, image=pair.image, picture_a=ids[0],
                picture_b=ids[1] if len(ids) > 1 else None)


def add_row(connection: Connection, table: Table, **values: object) -> int:
    """Insert a row and return its id."""
    return int((connection.execute(insert(table).values(**values)).inserted_primary_key or (0,))[0])
