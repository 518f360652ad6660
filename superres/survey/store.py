"""The store of studies and votes: an SQLite file in WAL mode by default, or any database that SQLAlchemy supports.

Votes and exclusions are only ever added; in SQLite and PostgreSQL, triggers refuse to change or delete them. Every
write is one short transaction, which is on disk when the function returns.
"""

from __future__ import annotations

import json
import re
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event, insert, select, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from superres.errors import ConfigError, StoreError, first_line
from superres.survey import schema
from superres.survey.commands import command_line
from superres.survey.credentials import digest, new_token
from superres.survey.pairs import Pair, Picture, encode_png
from superres.survey.study import Comparison, Study, StudySettings

BUSY_SECONDS = 30
"""Seconds that a write waits for another process's write; `?timeout=S` in an SQLite URL overrides it."""


def utc_now(offset: timedelta = timedelta()) -> str:
    """Return the current time plus `offset` in UTC, as ISO 8601 with milliseconds; such texts sort by time."""
    return (datetime.now(timezone.utc) + offset).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def store_url(text: str | Path) -> URL:
    """Return the database URL of a store, given that URL or the path of an SQLite file; raise StoreError."""
    if "://" not in str(text):
        return URL.create("sqlite", database=str(text))
    try:
        url = make_url(str(text))
    except ArgumentError:
        raise StoreError(f"{text!r} is not a database URL; give a file, or one such as postgresql://user@host/name") \
            from None
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


class Store:
    """A store of studies.

    Attributes:
        location: file or URL for messages, without the password.
        migrated: versions of the schema before and after opening.
    """

    def __init__(self, url: str | Path, create: bool = False) -> None:
        """Open a store.

        Args:
            url: an SQLite file, or a SQLAlchemy database URL.
            create: create a missing store, and upgrade the schema of an older one.

        Raises:
            StoreError: the store is missing, cannot be reached, or has a newer or older schema than this program.
        """
        address = store_url(url)
        self._file = address.database if address.get_backend_name() == "sqlite" else None
        if self._file in (None, "", ":memory:") and address.get_backend_name() == "sqlite":
            raise StoreError("a store in memory would lose its votes; give --store a file")
        self.location = self._file or address.render_as_string(hide_password=True)
        if self._file and not self._file.startswith("file:") and not create and not Path(self._file).is_file():
            raise StoreError(f"no survey store {self.location}; make one with superres survey create, or give --store")
        try:
            self._engine = _engine(address)
        except (ImportError, NoSuchModuleError) as error:
            message = f"no driver for the store {self.location} ({error}); install it, such as psycopg"
            raise StoreError(message) from None
        self.migrated = self._migrate() if create else (schema.VERSION, schema.VERSION)
        self._check_version()

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _migrate(self) -> tuple[int, int]:
        """Create or upgrade the schema atomically; return the versions before and after."""
        if self._file:
            with self._translate_errors(), self._engine.connect() as connection:
                # Readers do not wait for writers in WAL mode, which is set outside a transaction and saved in the file.
                connection.connection.cursor().execute("PRAGMA journal_mode=WAL")
        with self.writing() as connection:
            self._refuse_newer(schema.version_of(connection))
            return schema.migrate(connection)

    def _check_version(self) -> None:
        with self.reading() as connection:
            found = schema.version_of(connection)
        self._refuse_newer(found)
        if found < schema.VERSION:
            what = "holds no survey" if found == 0 else f"has schema {found}, older than this program's"
            raise StoreError(f"the store {self.location} {what}; run {command_line('migrate', store=self.location)}")

    def _refuse_newer(self, found: int) -> None:
        if found > schema.VERSION:
            raise StoreError(f"the store {self.location} has schema {found}, newer than this program's "
                             f"{schema.VERSION}; install a newer superres")

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection with a consistent view of the store; raise StoreError if it cannot be read."""
        with self._translate_errors(), self._engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Yield a connection in a transaction, which an exception rolls back.

        Raises:
            StoreError: the store is locked, read-only, full or unreachable; nothing was changed.
        """
        with self._translate_errors(), self._engine.connect() as connection, \
                connection.execution_options(writes=True).begin():
            yield connection

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, PoolTimeout, sqlite3.Error) as error:
            raise StoreError(_explain(self.location, error)) from error
        except SQLAlchemyError as error:
            raise StoreError(f"the store {self.location} cannot be used: {first_line(error)}; check --store") from error

    def create_study(
        self, name: str, settings: StudySettings, comparisons: Sequence[Comparison], methods: dict[str, dict[str, Any]],
        pairs: Sequence[Pair],
    ) -> tuple[Study, str]:
        """Store a study with its pictures atomically; return the study and the owner's token, which is not stored.

        Raises:
            ConfigError: the name is taken or not valid.
            StoreError: the store cannot be written.
        """
        token = new_token()
        with self.writing() as connection:
            key = self.add_study(connection, name, settings, comparisons, methods, owner_hash=digest(token))
            pictures: dict[tuple[str, str, str], int] = {}
            for number, pair in enumerate(pairs):
                a, b = (_picture(connection, key, picture, pictures) for picture in (pair.a, pair.b))
                add_row(connection, schema.pair, study_id=key, number=number, kind=pair.kind,
                        comparison=pair.comparison, image=pair.a.image, picture_a=a, picture_b=b)
        return self.study(name), token

    def add_study(
        self, connection: Connection, name: str, settings: StudySettings, comparisons: Sequence[Comparison],
        methods: dict[str, dict[str, Any]], owner_hash: str = "", created: str | None = None, has_pictures: bool = True,
    ) -> int:
        """Add a study without pairs in the transaction of `connection` and return its id.

        Raises:
            ConfigError: the name is taken or not valid.
        """
        if not name.strip() or len(name) > 200 or not name.isprintable() or name.startswith("-"):
            raise ConfigError("a study's name must be 1 to 200 printable characters and must not begin with '-', "
                              f"where it would be an option; not {name!r}")
        if connection.scalar(select(schema.study.c.id).where(schema.study.c.name == name)) is not None:
            raise ConfigError(f"there is a study {name!r} in {self.location} already; choose another name")
        return add_row(
            connection, schema.study, name=name, created=created or utc_now(), settings=json.dumps(settings.to_dict()),
            methods=json.dumps(methods), comparisons=json.dumps([asdict(c) for c in comparisons]),
            salt=secrets.token_hex(32), owner_hash=owner_hash, has_pictures=has_pictures)

    def studies(self) -> list[str]:
        """Return the names of all studies, oldest first."""
        with self.reading() as connection:
            return list(connection.scalars(select(schema.study.c.name).order_by(schema.study.c.id)))

    def study(self, name: str) -> Study:
        """Return the study with this name; raise StoreError if there is none, or the store cannot be read."""
        with self.reading() as connection:
            row = connection.execute(select(schema.study).where(schema.study.c.name == name)).one_or_none()
        if row is None:
            known = ", ".join(self.studies()) or "none"
            raise StoreError(f"no study {name!r} in {self.location}; it holds: {known}")
        return Study(row.id, row.name, row.created, StudySettings.from_dict(json.loads(row.settings)),
                     json.loads(row.methods), tuple(Comparison(**values) for values in json.loads(row.comparisons)),
                     row.salt, row.has_pictures)

    def is_owner(self, study: Study, token: str) -> bool:
        """Return whether `token` is the current token of the study's owner."""
        with self.reading() as connection:
            stored = connection.scalar(select(schema.study.c.owner_hash).where(schema.study.c.id == study.id))
        return bool(stored) and secrets.compare_digest(str(stored), digest(token))

    def new_owner_token(self, study: Study) -> str:
        """Return a new token for the study's owner and revoke the previous one."""
        token = new_token()
        with self.writing() as connection:
            connection.execute(update(schema.study).where(schema.study.c.id == study.id)
                               .values(owner_hash=digest(token)))
        return token


def _engine(url: URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        return create_engine(url, pool_size=20, max_overflow=20, pool_timeout=BUSY_SECONDS, pool_pre_ping=True)
    if "timeout" not in url.query:
        url = url.update_query_dict({"timeout": str(BUSY_SECONDS)})
    engine = create_engine(url, pool_size=20, max_overflow=30, pool_timeout=2 * BUSY_SECONDS)

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: object) -> None:  # noqa: ANN401 -- the driver's own type
        connection.isolation_level = None  # `begin` starts transactions, not the driver
        cursor = connection.cursor()
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute("PRAGMA synchronous=FULL")  # a committed vote survives a power failure

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A writer locks the store before it reads: if two transactions read first, one of them could not write.
        writes = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def add_row(connection: Connection, table: Table, **values: object) -> int:
    """Insert a row and return its id."""
    return int((connection.execute(insert(table).values(**values)).inserted_primary_key or (0,))[0])


def _picture(connection: Connection, study: int, picture: Picture, known: dict[tuple[str, str, str], int]) -> int:
    """Store a picture unless `known` has its id, and return its id."""
    key = picture.method, picture.image, picture.sha256
    if key not in known:
        known[key] = add_row(connection, schema.picture, study_id=study, method=picture.method, image=picture.image,
                             sha256=picture.sha256, png=encode_png(picture.pixels))
    return known[key]


ERROR_MESSAGES = (
    ("is locked", "is locked by another process; stop that one, or try again"),
    ("read-?only", "is read-only; allow writing to the file and its folder, or give another --store"),
    ("disk is full|no space left", "cannot be written: the disk is full; make room and try again"),
    ("disk i/o error", "cannot be read or written (disk I/O error); check the disk"),
    ("unable to open", "cannot be opened; check the path, its folder and the permissions"),
    ("not a database", "is not an SQLite database; give another --store"),
    ("append-only", "refuses to change or delete votes and exclusions: they are only ever added"),
    ("malformed", "is damaged; restore it from a copy"),
    ("does not exist", "does not exist; create the database, or correct --store"),
    ("permission denied", "may not be used by this user; grant the rights, or give another --store"),
)
"""Pattern in a driver's message, and the message that users see instead."""


def _explain(location: str, error: Exception) -> str:
    message = first_line(getattr(error, "orig", None) or error)
    for part, meaning in ERROR_MESSAGES:
        if re.search(part, message.lower()):
            return f"the store {location} {meaning}"
    return f"the store {location} cannot be used: {message}; check --store"
