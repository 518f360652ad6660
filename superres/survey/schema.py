"""Tables of a survey's store."""

from __future__ import annotations

from functools import partial

import sqlalchemy as sa

VERSION = 4
"""Version of the tables below."""

metadata = sa.MetaData()
_column = partial(sa.Column, nullable=False)


def _table(name: str, *parts: sa.schema.SchemaItem) -> sa.Table:
    return sa.Table(f"survey_{name}", metadata, sa.Column("id", sa.Integer, primary_key=True),
                    *parts)


def _of_study(index: bool = False) -> sa.Column[int]:
    return _column("study_id", sa.ForeignKey("survey_study.id"), index=index)


schema = sa.Table("survey_schema", metadata, _column("version", sa.Integer))
study = _table(
    "study", _column("name", sa.String(200), unique=True), _column("created", sa.String(30)),
    _column("settings", sa.Text), _column("methods", sa.Text), _column("comparisons", sa.Text),
    _column("salt", sa.String(64)), _column("owner_hash", sa.String(64)),
    _column("has_pictures", sa.Boolean))  # always, but in older stores with imported studies
picture = _table(
    "picture", _of_study(index=True), _column("method", sa.String(200)),
    _column("image", sa.String(500)), _column("sha256", sa.String(64)),
    sa.Column("png", sa.LargeBinary))
pair = _table(
    "pair", _of_study(index=True), _column("number", sa.Integer), _column("kind", sa.String(10)),
    _column("comparison", sa.String(410)), _column("image", sa.String(500)),
    _column("picture_a", sa.ForeignKey("survey_picture.id")),
    # none in a study of single pictures
    sa.Column("picture_b", sa.ForeignKey("survey_picture.id")),
    sa.UniqueConstraint("study_id", "number"))
rater = _table(
    "rater", _of_study(), _column("pseudonym", sa.String(64)),
    _column("consent_version", sa.String(12)), _column("consented", sa.String(30)),
    sa.Column("session_hash", sa.String(64), unique=True),
    # The time at which the rater withdrew, and the number of votes that were erased then.
    sa.Column("withdrawn", sa.String(30)), sa.Column("erased", sa.Integer),
    # values of the study's `panel_params` as JSON, if the link had any
    sa.Column("panel", sa.Text),
    sa.UniqueConstraint("study_id", "pseudonym"))
trial = _table(
    "trial", _column("rater_id", sa.ForeignKey("survey_rater.id")),
    _column("pair_id", sa.ForeignKey("survey_pair.id"), index=True),
    _column("position", sa.Integer), _column("kind", sa.String(10)),
    _column("left_side", sa.String(1), sa.CheckConstraint("left_side IN ('a', 'b')")),
    sa.Column("token_hash", sa.String(64), unique=True), _column("issued", sa.String(30)),
    sa.UniqueConstraint("rater_id", "position"))
sa.Index("survey_trial_of_rater", trial.c.rater_id, trial.c.kind)
vote = _table(
    "vote", _column("trial_id", sa.ForeignKey("survey_trial.id"), unique=True),
    _column("choice", sa.String(7),
            sa.CheckConstraint("choice IN ('left', 'right', 'unsure', 'torn', 'unequal', 'good')")),
    _column("response_ms", sa.Float),  # measured by the page; `page_ms` in exports
    _column("display_px", sa.Float), _column("pixel_ratio", sa.Float),
    _column("viewport_width", sa.Integer), _column("viewport_height", sa.Integer),
    _column("input", sa.String(10)), _column("voted", sa.String(30)))
exclusion = _table(
    "exclusion", _of_study(index=True), _column("number", sa.Integer),
    _column("rule", sa.String(200)), _column("reason", sa.Text), _column("recorded", sa.String(30)),
    sa.Column("revokes", sa.Integer), sa.UniqueConstraint("study_id", "number"))


_OF_WITHDRAWN = ("EXISTS (SELECT 1 FROM survey_trial JOIN survey_rater ON survey_rater.id = "
                 "survey_trial.rater_id WHERE survey_trial.id = OLD.trial_id AND "
                 "survey_rater.withdrawn IS NOT NULL)")
"""Condition that a deleted vote is of a rater who withdrew."""


def _append_only(table: str, dialect: str) -> list[str]:
    """Return the statements that make the database refuse changes to `table`; none for other
    dialects.

    Votes of raters who withdrew may be deleted.
    """
    message, refuse = f"{table} is append-only", f"{table}_refuse"
    if dialect == "sqlite":
        when = {"DELETE": f" WHEN NOT {_OF_WITHDRAWN}"} if table == vote.name else {}
        return [f"CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON "
                f"{table}{when.get(event, '')} BEGIN SELECT RAISE(ABORT, '{message}'); "
                "END" for event in ("UPDATE", "DELETE")]
    if dialect == "postgresql":
        allowed = f"IF TG_OP = 'DELETE' THEN IF {_OF_WITHDRAWN} THEN RETURN OLD; END IF; END IF; " \
            if table == vote.name else ""
        return [f"CREATE OR REPLACE FUNCTION {refuse}() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN {allowed}RAISE EXCEPTION '{message}'; END $$",
                f"DROP TRIGGER IF EXISTS {refuse} ON {table}", "DROP TRIGGER IF EXISTS "
                f"{refuse}_all ON {table}", f"CREATE TRIGGER {refuse} BEFORE UPDATE OR DELETE ON "
                f"{table} FOR EACH ROW EXECUTE FUNCTION {refuse}()", f"CREATE TRIGGER {refuse}_all "
                f"BEFORE TRUNCATE ON {table} EXECUTE FUNCTION {refuse}()"]
    return []


def version_of(connection: sa.Connection) -> int:
    """Return the version of the store's schema; 0 if the store has no schema."""
    if not sa.inspect(connection).has_table(schema.name):
        return 0
    return int(connection.scalar(sa.select(schema.c.version)) or 0)


def create(connection: sa.Connection) -> None:
    """Create the tables in the transaction of `connection`."""
    metadata.create_all(connection)
    for table in (vote, exclusion):
        for statement in _append_only(table.name, connection.dialect.name):
            connection.exec_driver_sql(statement)
    connection.execute(schema.insert().values(version=VERSION))
