"""Tables of a survey's store, and the steps that bring an older store up to date."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    inspect,
    select,
)

metadata = MetaData()

schema = Table("survey_schema", metadata, Column("version", Integer, nullable=False))

study = Table(
    "survey_study", metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(200), nullable=False, unique=True),
    Column("created", String(30), nullable=False),
    Column("settings", Text, nullable=False),
    Column("methods", Text, nullable=False),
    Column("comparisons", Text, nullable=False),
    Column("salt", String(64), nullable=False),
    Column("owner_hash", String(64), nullable=False),
    Column("has_pictures", Boolean, nullable=False),
)

picture = Table(
    "survey_picture", metadata,
    Column("id", Integer, primary_key=True),
    Column("study_id", ForeignKey("survey_study.id"), nullable=False, index=True),
    Column("method", String(200), nullable=False),
    Column("image", String(500), nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("png", LargeBinary, nullable=True),
)

pair = Table(
    "survey_pair", metadata,
    Column("id", Integer, primary_key=True),
    Column("study_id", ForeignKey("survey_study.id"), nullable=False, index=True),
    Column("number", Integer, nullable=False),
    Column("kind", String(10), nullable=False),
    Column("comparison", String(410), nullable=False),
    Column("image", String(500), nullable=False),
    Column("picture_a", ForeignKey("survey_picture.id"), nullable=False),
    Column("picture_b", ForeignKey("survey_picture.id"), nullable=False),
    UniqueConstraint("study_id", "number"),
)

rater = Table(
    "survey_rater", metadata,
    Column("id", Integer, primary_key=True),
    Column("study_id", ForeignKey("survey_study.id"), nullable=False),
    Column("pseudonym", String(64), nullable=False),
    Column("consent_version", String(12), nullable=False),
    Column("consented", String(30), nullable=False),
    Column("session_hash", String(64), nullable=True, unique=True),
    UniqueConstraint("study_id", "pseudonym"),
)

trial = Table(
    "survey_trial", metadata,
    Column("id", Integer, primary_key=True),
    Column("rater_id", ForeignKey("survey_rater.id"), nullable=False),
    Column("pair_id", ForeignKey("survey_pair.id"), nullable=False, index=True),
    Column("position", Integer, nullable=False),
    Column("kind", String(10), nullable=False),
    Column("left_side", String(1), CheckConstraint("left_side IN ('a', 'b')"), nullable=False),
    Column("token_hash", String(64), nullable=True, unique=True),
    Column("issued", String(30), nullable=False),
    UniqueConstraint("rater_id", "position"),
)

vote = Table(
    "survey_vote", metadata,
    Column("id", Integer, primary_key=True),
    Column("trial_id", ForeignKey("survey_trial.id"), nullable=False, unique=True),
    Column("choice", String(6), CheckConstraint("choice IN ('left', 'right', 'unsure')"), nullable=False),
    Column("response_ms", Float, nullable=False),  # as the page reports it; `page_ms` in exports
    Column("display_px", Float, nullable=False),
    Column("pixel_ratio", Float, nullable=False),
    Column("viewport_width", Integer, nullable=False),
    Column("viewport_height", Integer, nullable=False),
    Column("input", String(10), nullable=False),
    Column("voted", String(30), nullable=False),
)

exclusion = Table(
    "survey_exclusion", metadata,
    Column("id", Integer, primary_key=True),
    Column("study_id", ForeignKey("survey_study.id"), nullable=False, index=True),
    Column("number", Integer, nullable=False),
    Column("rule", String(200), nullable=False),
    Column("reason", Text, nullable=False),
    Column("recorded", String(30), nullable=False),
    Column("revokes", Integer, nullable=True),
    UniqueConstraint("study_id", "number"),
)

Index("survey_trial_of_rater", trial.c.rater_id, trial.c.kind)

FACTS = (vote, exclusion)
"""Tables that only grow: the database itself refuses to change or delete their rows."""


def _create(connection: Connection) -> None:
    """Make the tables of `VERSION`."""
    metadata.create_all(connection)
    for table in FACTS:
        for statement in _append_only(table.name, connection.dialect.name):
            connection.exec_driver_sql(statement)


def _append_only(table: str, dialect: str) -> list[str]:
    """Return the statements that make the database refuse changes to `table`; none for a dialect not known here."""
    message = f"{table} is append-only"
    if dialect == "sqlite":
        return [f"CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{message}'); END" for event in ("UPDATE", "DELETE")]
    if dialect == "postgresql":
        refuse = f"{table}_refuse"
        return [f"CREATE FUNCTION {refuse}() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN RAISE EXCEPTION '{message}'; END $$",
                f"CREATE TRIGGER {refuse} BEFORE UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION {refuse}()",
                f"CREATE TRIGGER {refuse}_all BEFORE TRUNCATE ON {table} EXECUTE FUNCTION {refuse}()"]
    return []


VERSION = 1
"""Version of the tables above."""

MIGRATIONS: dict[int, Callable[[Connection], None]] = {}
"""Entry n brings a store from version n to n + 1. Entries are only ever added."""


def version_of(connection: Connection) -> int:
    """Return the version of the store's schema; 0 without a schema."""
    if not inspect(connection).has_table(schema.name):
        return 0
    return int(connection.scalar(select(schema.c.version)) or 0)


def migrate(connection: Connection) -> tuple[int, int]:
    """Bring the store up to date within the transaction of `connection`; return the versions before and after."""
    before = version_of(connection)
    if before == 0:
        _create(connection)
    for version in range(max(before, 1), VERSION):
        MIGRATIONS[version](connection)
    if before < VERSION:
        connection.execute(schema.delete())
        connection.execute(schema.insert().values(version=VERSION))
    return before, max(before, VERSION)
