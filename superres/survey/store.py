"""The store of studies and votes: one SQLite file in WAL mode by default, or any database that SQLAlchemy knows.

Votes and exclusions are facts: they are added and never changed, which the database itself sees to. Every write is one
short transaction, and what this module returns from is on disk.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, CursorResult, Engine, Row, create_engine, event, insert, select, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from superres.errors import ConfigError, StoreError
from superres.survey import schema
from superres.survey.pairs import Pair, Picture, pack
from superres.survey.secrecy import digest, new_token
from superres.survey.study import Comparison, Study, StudySettings

BUSY_SECONDS = 30
"""Seconds that a write waits for another process's write; `?timeout=S` in an SQLite URL changes it."""


def utc_now() -> str:
    """Return the time as ISO 8601 in UTC with milliseconds, which sorts as text."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def store_url(text: str | Path) -> URL:
    """Return the URL of a store: `text` itself, or the URL of the SQLite file `text`.

    Raises:
        StoreError: it is neither.
    """
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
        place: file or URL, without the password, for messages.
        migrated: versions of the schema before and after opening.
    """

    def __init__(self, url: str | Path, create: bool = False) -> None:
        """Open a store.

        Args:
            url: an SQLite file, or a URL of SQLAlchemy's.
            create: make the store if there is none, and bring an older one up to date.

        Raises:
            StoreError: there is none, it cannot be reached, or its schema is newer or older than this program's.
        """
        address = store_url(url)
        self._file = address.database if address.get_backend_name() == "sqlite" else None
        if self._file in (None, "", ":memory:") and address.get_backend_name() == "sqlite":
            raise StoreError("a store in memory would lose its votes; give --store a file")
        self.place = self._file or address.render_as_string(hide_password=True)
        if self._file and not self._file.startswith("file:") and not create and not Path(self._file).is_file():
            raise StoreError(f"no survey store {self.place}; make one with superres survey create, or give --store")
        try:
            self._engine = _engine(address)
        except (ImportError, NoSuchModuleError) as error:
            raise StoreError(f"no driver for the store {self.place} ({error}); install it, such as psycopg") from None
        self.migrated = self.migrate() if create else (schema.VERSION, schema.VERSION)
        self._check_version()

    def close(self) -> None:
        """Give back the connections."""
        self._engine.dispose()

    def migrate(self) -> tuple[int, int]:
        """Create or upgrade the schema atomically; return the versions before and after.

        Raises:
            StoreError: the store cannot be written, or its schema is newer than this program's.
        """
        with self._explained():
            if self._file:
                with self._engine.connect() as connection:
                    # Outside of a transaction; the file remembers it. Readers then do not wait for writers.
                    connection.connection.cursor().execute("PRAGMA journal_mode=WAL")
            with self._engine.connect().execution_options(writes=True) as connection, connection.begin():
                found = schema.version_of(connection)
                self._refuse_newer(found)
                return schema.migrate(connection)

    def _check_version(self) -> None:
        with self.reading() as connection:
            found = schema.version_of(connection)
        self._refuse_newer(found)
        if found < schema.VERSION:
            what = "holds no survey" if found == 0 else f"has schema {found}, older than this program's"
            raise StoreError(f"the store {self.place} {what}; run superres survey migrate --store {self.place}")

    def _refuse_newer(self, found: int) -> None:
        if found > schema.VERSION:
            raise StoreError(f"the store {self.place} has schema {found}, newer than this program's "
                             f"{schema.VERSION}; install a newer superres")

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection in one consistent view of the store.

        Raises:
            StoreError: the store cannot be read.
        """
        with self._explained(), self._engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Give a connection in a transaction that is committed at the end, or undone by an exception.

        Raises:
            StoreError: the store is locked, read-only, full or out of reach; nothing was changed.
        """
        with self._explained(), self._engine.connect().execution_options(writes=True) as connection, connection.begin():
            yield connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, PoolTimeout, sqlite3.Error) as error:
            raise StoreError(_explain(self.place, error)) from error
        except SQLAlchemyError as error:
            raise StoreError(f"the store {self.place} cannot be used: {_first_line(error)}; check --store") from error

    def create_study(
        self, name: str, settings: StudySettings, comparisons: Sequence[Comparison], methods: dict[str, dict[str, Any]],
        pairs: Sequence[Pair],
    ) -> tuple[Study, str]:
        """Store a study with its images atomically; return the study and the owner's token, which is not stored.

        Raises:
            ConfigError: the name is taken or no good.
            StoreError: the store cannot be written.
        """
        token = new_token()
        with self.writing() as connection:
            key = self.add_study(connection, name, settings, comparisons, methods, owner_hash=digest(token))
            pictures: dict[tuple[str, str, str], int] = {}
            for number, pair in enumerate(pairs):
                numbers = [_picture(connection, key, picture, pictures) for picture in (pair.a, pair.b)]
                connection.execute(insert(schema.pair).values(
                    study_id=key, number=number, kind=pair.kind, comparison=pair.comparison, image=pair.a.image,
                    picture_a=numbers[0], picture_b=numbers[1]))
        return self.study(name), token

    def add_study(
        self, connection: Connection, name: str, settings: StudySettings, comparisons: Sequence[Comparison],
        methods: dict[str, dict[str, Any]], owner_hash: str = "", created: str | None = None, has_pictures: bool = True,
    ) -> int:
        """Add a study without pairs in the transaction of `connection` and return its number.

        Raises:
            ConfigError: the name is taken or no good.
        """
        if not name.strip() or len(name) > 200 or not name.isprintable():
            raise ConfigError(f"a study's name must be 1 to 200 printable characters, not {name!r}")
        if connection.scalar(select(schema.study.c.id).where(schema.study.c.name == name)) is not None:
            raise ConfigError(f"there is a study {name!r} in {self.place} already; choose another name")
        result = connection.execute(insert(schema.study).values(
            name=name, created=created or utc_now(), settings=json.dumps(settings.to_dict()),
            methods=json.dumps(methods), comparisons=json.dumps([asdict(c) for c in comparisons]),
            salt=secrets.token_hex(32), owner_hash=owner_hash, has_pictures=has_pictures))
        return number_of(result)

    def studies(self) -> list[str]:
        """Return the names of the studies, oldest first."""
        with self.reading() as connection:
            return list(connection.scalars(select(schema.study.c.name).order_by(schema.study.c.id)))

    def study(self, name: str) -> Study:
        """Return a study.

        Raises:
            StoreError: there is none of that name, or the store cannot be read.
        """
        with self.reading() as connection:
            row = connection.execute(select(schema.study).where(schema.study.c.name == name)).one_or_none()
        if row is None:
            known = ", ".join(self.studies()) or "none"
            raise StoreError(f"no study {name!r} in {self.place}; it holds: {known}")
        return _study(row)

    def is_owner(self, study: Study, token: str) -> bool:
        """Return whether `token` is that of the study's owner."""
        with self.reading() as connection:
            kept = connection.scalar(select(schema.study.c.owner_hash).where(schema.study.c.id == study.id))
        return bool(kept) and secrets.compare_digest(str(kept), digest(token))

    def new_owner_token(self, study: Study) -> str:
        """Return a new token for the study's owner; the one before is void."""
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
        connection.isolation_level = None  # transactions are begun below, not by the driver
        cursor = connection.cursor()
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute("PRAGMA synchronous=FULL")  # a vote answered "saved" survives a power cut, too

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A writer takes its turn at once: two that had read before could not both go on.
        writes = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def number_of(result: CursorResult[Any]) -> int:
    """Return the number that an inserted row was given."""
    return int((result.inserted_primary_key or (0,))[0])


def _picture(connection: Connection, study: int, picture: Picture, known: dict[tuple[str, str, str], int]) -> int:
    """Store a picture once and return its number."""
    key = picture.method, picture.image, picture.sha256
    if key not in known:
        result = connection.execute(insert(schema.picture).values(
            study_id=study, method=picture.method, image=picture.image, sha256=picture.sha256,
            png=pack(picture.pixels)))
        known[key] = number_of(result)
    return known[key]


def _study(row: Row[Any]) -> Study:
    comparisons = tuple(Comparison(**values) for values in json.loads(row.comparisons))
    return Study(row.id, row.name, row.created, StudySettings.from_dict(json.loads(row.settings)),
                 json.loads(row.methods), comparisons, row.salt, row.has_pictures)


REASONS = (
    ("database is locked", "is locked by another process; stop that one, or try again"),
    ("database table is locked", "is locked by another process; stop that one, or try again"),
    ("readonly database", "is read-only; allow writing to the file and its folder, or give another --store"),
    ("read-only", "is read-only; allow writing to it, or give another --store"),
    ("disk is full", "cannot be written: the disk is full; make room and try again"),
    ("no space left", "cannot be written: the disk is full; make room and try again"),
    ("disk i/o error", "cannot be read or written (disk I/O error); check the disk"),
    ("unable to open", "cannot be opened; check the path, its folder and the permissions"),
    ("not a database", "is not an SQLite database; give another --store"),
    ("append-only", "refuses to change or delete votes and exclusions: they are only ever added"),
    ("malformed", "is damaged; restore it from a copy"),
    ("does not exist", "does not exist; create the database, or correct --store"),
    ("permission denied", "may not be used by this user; grant the rights, or give another --store"),
)
"""What part of a driver's message means, for people."""


def _explain(place: str, error: Exception) -> str:
    message = _first_line(getattr(error, "orig", None) or error)
    for part, meaning in REASONS:
        if part in message.lower():
            return f"the store {place} {meaning}"
    return f"the store {place} cannot be used: {message}; check --store"


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split("\n")[0].split())
