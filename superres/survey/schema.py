"""Tables of a survey's store, and the migrations of older stores."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

metadata = sa.MetaData()

schema = sa.Table("survey_schema", metadata, sa.Column("version", sa.Integer, nullable=False))

study = sa.Table(
    "survey_study", metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(200), nullable=False, unique=True),
    sa.Column("created", sa.String(30), nullable=False),
    sa.Column("settings", sa.Text, nullable=False),
    sa.Column("methods", sa.Text, nullable=False),
    sa.Column("comparisons", sa.Text, nullable=False),
    sa.Column("salt", sa.String(64), nullable=False),
    sa.Column("owner_hash", sa.String(64), nullable=False),
    sa.Column("has_pictures", sa.Boolean, nullable=False),
)

picture = sa.Table(
    "survey_picture", metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("study_id", sa.ForeignKey("survey_study.id"), nullable=False, index=True),
    sa.Column("method", sa.String(200), nullable=False),
    sa.Column("image", sa.String(500), nullable=False),
    sa.Column("sha256", sa.String(64), nullable=False),
    sa.Column("png", sa.LargeBinary, nullable=True),
)

pair = sa.Table(
    "survey_pair", metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("study_id", sa.ForeignKey("survey_study.id"), nullable=False, index=True),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("kind", sa.String(10), nullable=False),
    sa.Column("comparison", sa.String(410), nullable=False),
    sa.Column("image", sa.String(500), nullable=False),
    sa.Column("picture_a", sa.ForeignKey("survey_picture.id"), nullable=False),
    sa.Column("picture_b", sa.ForeignKey("survey_picture.id"), nullable=False),
    sa.UniqueConstraint("study_id", "number"),
)

rater = sa.Table(
    "survey_rater", metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("study_id", sa.ForeignKey("survey_study.id"), nullable=False),
    sa.Column("pseudonym", sa.String(64), nullable=False),
    sa.Column("consent_version", sa.String(12), nullable=False),
    sa.Column("consented", sa.String(30), nullable=False),
    sa.Column("session_hash", sa.String(64), nullable=True, unique=True),
    sa.UniqueConstraint("study_id", "pseudonym"),
)

trial = sa.Table(
    "survey_trial", metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("rater_id", sa.ForeignKey("survey_rater.id"), nullable=False),
    sa.Column("pair_id", sa.ForeignKey("survey_pair.id"), nullable=False, index=True),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("kind", sa.String(10), nullable=False),
    sa.Column("left_side", sa.String(1), sa.CheckConstraint("left_side IN ('a', 'b')"), nullable=False),
    sa.Column("token_hash", sa.String(64), nullable=True, unique=True),
    sa.Column("issued", sa.String(30), nullable=False),
    sa.UniqueConstraint("rater_id", "position"),
)

vote = sa.Table(
    "survey_vote", metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("trial_id", sa.ForeignKey("survey_trial.id"), nullable=False, unique=True),
    sa.Column("choice", sa.String(6), sa.CheckConstraint("choice IN ('left', 'right', 'unsure')"), nullable=False),
    sa.Column("response_ms", sa.Float, nullable=False),  # measured by the page; `page_ms` in exports
    sa.Column("display_px", sa.Float, nullable=False),
    sa.Column("pixel_ratio", sa.Float, nullable=False),
    sa.Column("viewport_width", sa.Integer, nullable=False),
    sa.Column("viewport_height", sa.Integer, nullable=False),
    sa.Column("input", sa.String(10), nullable=False),
    sa.Column("voted", sa.String(30), nullable=False),
)

exclusion = sa.Table(
    "survey_exclusion", metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("study_id", sa.ForeignKey("survey_study.id"), nullable=False, index=True),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("rule", sa.String(200), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("recorded", sa.String(30), nullable=False),
    sa.Column("revokes", sa.Integer, nullable=True),
    sa.UniqueConstraint("study_id", "number"),
)

sa.Index("survey_trial_of_rater", trial.c.rater_id, trial.c.kind)

APPEND_ONLY = (vote, exclusion)
"""Tables whose rows SQLite and PostgreSQL refuse to change or delete."""


def _append_only(table: str, dialect: str) -> list[str]:
    """Return the statements that make the database refuse changes to `table`; none for other dialects."""
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

MIGRATIONS: dict[int, Callable[[sa.Connection], None]] = {}
"""Function n upgrades a store from version n to n + 1."""


def version_of(connection: sa.Connection) -> int:
    """Return the version of the store's schema; 0 if the store has no schema."""
    if not sa.inspect(connection).has_table(schema.name):
        return 0
    return int(connection.scalar(sa.select(schema.c.version)) or 0)


def migrate(connection: sa.Connection) -> tuple[int, int]:
    """Create or upgrade the schema in the transaction of `connection`; return the versions before and after."""
    before = version_of(connection)
    if before == 0:
        metadata.create_all(connection)
        for table in APPEND_ONLY:
            for statement in _append_only(table.name, connection.dialect.name):
                connection.exec_driver_sql(statement)
    for version in range(max(before, 1), VERSION):
        MIGRATIONS[version](connection)
    if before < VERSION:
        connection.execute(schema.delete())
        connection.execute(schema.insert().values(version=VERSION))
    return before, max(before, VERSION)
