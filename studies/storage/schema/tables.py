"""The tables of the store; the prefix `automl_` separates them from Optuna's tables in the same database.

    studies ─┬─ trials ─┬─ attempts
             │          ├─ epochs        unique (trial_id, epoch)
             │          └─ decisions
             ├─ charges                  append-only; trial_id may be null
             ├─ leases ─┬─ slot_marks    one row for each controller; a study has at most one held lease
             │          └─ pool_rates    changes of the pool's price and charged slots
             └─ view_cursors             revisions that the views of Optuna and MLflow contain

    jobs ──── job_runs ──── workers      jobs of a team, and their runs on workers' slots
    tokens, sessions, spending_limits    access to the service, and spending limits of users and projects

Times are floats, in seconds since 1970, so that SQLite and PostgreSQL keep the same value.
"""

from typing import Any

import sqlalchemy as sa

from search_spaces.untrusted_text import storable, storable_deep


class SafeText(sa.TypeDecorator[str]):
    """A text column; escapes characters that databases refuse (`search_spaces.untrusted_text`)."""

    impl: type[sa.String] = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:  # noqa: ARG002
        """Escape refused characters, to store or to search for the text."""
        return None if value is None else storable(value)


class SafeString(SafeText):
    """A column for texts of limited length; see `SafeText`."""

    impl = sa.String
    cache_ok = True  # SQLAlchemy does not inherit it


class SafeJson(sa.TypeDecorator[Any]):
    """A JSON column; escapes texts like `SafeText`."""

    impl = sa.JSON
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:  # noqa: ARG002
        """Escape refused characters."""
        return storable_deep(value)


metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

VERSION_TABLE = "automl_alembic_version"


def _key() -> sa.Column[int]:
    return sa.Column("id", sa.Integer, primary_key=True)


def _of_study(*, index: bool = True) -> sa.Column[int]:
    return sa.Column("study_id", sa.ForeignKey("automl_studies.id", ondelete="CASCADE"), nullable=False, index=index)


def _of_trial(*, nullable: bool = False) -> sa.Column[int]:
    return sa.Column("trial_id", sa.ForeignKey("automl_trials.id", ondelete="CASCADE"), nullable=nullable, index=True)


studies = sa.Table(
    "automl_studies",
    metadata,
    _key(),
    sa.Column("uid", SafeString(32), nullable=False, unique=True),
    sa.Column("name", SafeString(100), nullable=False, unique=True),
    sa.Column("state", SafeString(16), nullable=False),
    sa.Column("stop_reason", SafeString(32)),
    sa.Column("error", SafeText),
    sa.Column("closed_by", SafeJson),  # limits and price at the latest end by the budget; null if there was none
    sa.Column("spec", SafeJson, nullable=False),  # current spec: as launched, with changes by `resume --set`
    sa.Column("launched_spec", SafeJson, nullable=False),
    sa.Column("base_folder", SafeText, nullable=False),  # folder of relative paths and of the user's task
    sa.Column("sampler_attributes", SafeJson, nullable=False),  # Optuna's system attributes of the study
    sa.Column("reference_point", SafeJson),
    sa.Column("earlier_studies", SafeJson),  # copy of the studies in `search.from_studies` at launch; null if none
    sa.Column("usd_per_slot_hour", sa.Float),  # set by `automl price set`; null takes the spec's price
    sa.Column("counted_examples", SafeJson),  # sizes of example configurations; null until counted
    sa.Column("reserved_nano_usd", sa.BigInteger, nullable=False),
    sa.Column("reserved_seconds", sa.Float, nullable=False),
    sa.Column("overshoot_nano_usd", sa.BigInteger, nullable=False),
    sa.Column("revision", sa.Integer, nullable=False),  # grows with every commit; a trial stores its last change
    sa.Column("last_commit", sa.String(32)),  # id that shows whether a repeated commit was applied
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("ended_at", sa.Float),
)

trials = sa.Table(
    "automl_trials",
    metadata,
    _key(),
    _of_study(),
    sa.Column("number", sa.Integer),  # null while queued
    sa.Column("state", SafeString(16), nullable=False),
    sa.Column("failure", SafeString(16)),
    sa.Column("params", SafeJson, nullable=False),
    sa.Column("world_size", sa.Integer, nullable=False),
    sa.Column("origin", SafeString(16), nullable=False),
    sa.Column("sampler_attributes", SafeJson, nullable=False),  # Optuna's system attributes of the trial
    sa.Column("reason", SafeText, nullable=False),
    sa.Column("error", SafeText),
    sa.Column("resume_checkpoint", SafeText),
    sa.Column("resume_epoch", sa.Integer, nullable=False),
    sa.Column("paused_by", SafeString(16)),  # "policy", "drain" or "fault"; the latter two continue first
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("enqueue_id", sa.String(32)),  # id that shows whether a repeated insertion was applied
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("started_at", sa.Float),
    sa.Column("ended_at", sa.Float),
    sa.Column("cancel_requested_at", sa.Float),  # by `automl cancel`; the controller ends the trial
    sa.UniqueConstraint("study_id", "number"),
    sa.Index("uq_automl_trials_enqueue_id", "enqueue_id", unique=True),
    sa.Index("ix_automl_trials_study_id_revision", "study_id", "revision"),
)

is_trial = sa.or_(trials.c.number.is_not(None), trials.c.state == "queued")
"""Excludes configurations cancelled in the queue."""

attempts = sa.Table(
    "automl_attempts",
    metadata,
    _key(),
    _of_trial(),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("world_size", sa.Integer, nullable=False),
    sa.Column("slots", SafeJson, nullable=False),
    sa.Column("start_epoch", sa.Integer, nullable=False),
    sa.Column("outcome", SafeString(16), nullable=False),
    sa.Column("facts", SafeJson, nullable=False),
    sa.Column("charged_until", sa.Float, nullable=False),  # begin of the uncharged time if the controller dies
    sa.Column("started_at", sa.Float, nullable=False),
    sa.Column("ended_at", sa.Float),
    sa.Column("lease_id", sa.Integer),  # lease whose pool it trains on
    sa.Column("revision", sa.Integer, nullable=False, server_default="0"),  # not used any more
    sa.UniqueConstraint("trial_id", "attempt"),
)

epochs = sa.Table(
    "automl_epochs",
    metadata,
    _key(),
    _of_trial(),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("metrics", SafeJson, nullable=False),
    sa.Column("wall_seconds", sa.Float, nullable=False),
    sa.Column("cost_nano_usd", sa.BigInteger, nullable=False),
    sa.Column("checkpoint", SafeText),
    sa.Column("is_milestone", sa.Boolean, nullable=False),
    sa.Column("measured_at", sa.Float, nullable=False),
    sa.UniqueConstraint("trial_id", "epoch"),
)

decisions = sa.Table(
    "automl_decisions",
    metadata,
    _key(),
    _of_trial(),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("action", SafeString(16), nullable=False),
    sa.Column("reason", SafeText, nullable=False),
    sa.Column("numbers", SafeJson, nullable=False),
    sa.Column("forecasts", SafeJson),  # by the objective's metric; null if the rule forecast nothing
    sa.Column("decided_at", sa.Float, nullable=False),
)

charges = sa.Table(
    "automl_charges",
    metadata,
    _key(),
    _of_study(index=False),
    _of_trial(nullable=True),
    sa.Column("attempt", sa.Integer),
    sa.Column("lease_id", sa.ForeignKey("automl_leases.id", ondelete="CASCADE"), nullable=True),
    sa.Column("kind", SafeString(16), nullable=False),
    sa.Column("slots", sa.Integer, nullable=False),
    sa.Column("seconds", sa.Float, nullable=False),
    sa.Column("usd_per_slot_hour", sa.Float, nullable=False),
    sa.Column("cost_nano_usd", sa.BigInteger, nullable=False),
    sa.Column("charged_at", sa.Float, nullable=False),
    sa.Column("since", sa.Float),  # the interval that is charged; null in charges of earlier versions
    sa.Column("until", sa.Float),
    sa.Column("slot_numbers", sa.JSON),  # charged slots of the lease's pool
    # Queues with spending limits sum all charges every turn; the index alone has the values for that.
    sa.Index("ix_automl_charges_sums", "study_id", "lease_id", "cost_nano_usd"),
)

confirmations = sa.Table(
    "automl_confirmations",
    metadata,
    _key(),
    _of_study(),
    _of_trial(),
    sa.Column("seed", sa.BigInteger, nullable=False),
    sa.Column("epoch", sa.Integer),  # epoch of the point; null in rows of versions that trained to full length only
    sa.Column("epochs", sa.Integer, nullable=False),
    sa.Column("metrics", SafeJson, nullable=False),
    sa.Column("wall_seconds", sa.Float, nullable=False),
    sa.Column("cost_nano_usd", sa.BigInteger, nullable=False),
    sa.Column("checkpoint", sa.Text),
    sa.Column("confirmed_at", sa.Float, nullable=False),
    sa.Column("answers", SafeJson(none_as_null=True)),  # of a tested model to validation samples; null if not described
)

leases = sa.Table(
    "automl_leases",
    metadata,
    _key(),
    _of_study(),
    sa.Column("holder", SafeString(64), nullable=False),
    sa.Column("host", SafeString(255), nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("process_started_at", sa.Float, nullable=False),  # since the boot, to recognise a reused pid
    sa.Column("process_space", sa.String(128)),  # boot and pid namespace in which the pid is valid
    sa.Column("acquired_at", sa.Float, nullable=False),
    sa.Column("heartbeat_at", sa.Float, nullable=False),
    sa.Column("expires_at", sa.Float, nullable=False),  # by the database's clock; all other times by the holder's
    sa.Column("released_at", sa.Float),
    sa.Column("stop_requested", sa.Boolean, nullable=False),
    sa.Column("pool_slots", sa.Integer, nullable=False),
    sa.Column("pool_opened_at", sa.Float),
    sa.Column("pool_closed_at", sa.Float),
    sa.Column("usd_per_slot_hour", sa.Float, nullable=False),
    sa.Column("cluster_address", sa.String(255)),  # not used any more
    sa.Column("cluster_token", sa.String(128)),  # not used any more
    sa.Column("trace_parent", sa.String(55)),  # not used any more
    sa.Column("job_id", sa.Integer, index=True),  # job that confirms the study and pays; null: the study's own job
    sa.Column("revision", sa.Integer, nullable=False, server_default="0"),  # not used any more
    sa.Column("died", sa.Boolean, nullable=False, server_default=sa.false()),  # not used any more
    sa.Index(
        "uq_automl_leases_unreleased",
        "study_id",
        unique=True,
        sqlite_where=sa.text("released_at IS NULL"),
        postgresql_where=sa.text("released_at IS NULL"),
    ),
    sa.Index(
        "ix_automl_leases_open_pools",
        "study_id",
        sqlite_where=sa.text("pool_opened_at IS NOT NULL AND pool_closed_at IS NULL"),
        postgresql_where=sa.text("pool_opened_at IS NOT NULL AND pool_closed_at IS NULL"),
    ),
)

slot_marks = sa.Table(
    "automl_slot_marks",
    metadata,
    _key(),
    sa.Column("lease_id", sa.ForeignKey("automl_leases.id", ondelete="CASCADE"), nullable=False),
    sa.Column("slot", sa.Integer, nullable=False),
    sa.Column("charged_until", sa.Float, nullable=False),  # earliest begin of the slot's next charge
    sa.UniqueConstraint("lease_id", "slot"),
)

pool_rates = sa.Table(
    "automl_pool_rates",
    metadata,
    _key(),
    sa.Column("lease_id", sa.ForeignKey("automl_leases.id", ondelete="CASCADE"), nullable=False, index=True),
    sa.Column("since", sa.Float, nullable=False),
    sa.Column("slot_numbers", sa.JSON, nullable=False),  # slots of the lease's pool that cost money
    sa.Column("usd_per_slot_hour", sa.Float, nullable=False),
)

view_cursors = sa.Table(
    "automl_view_cursors",
    metadata,
    _key(),
    _of_study(),
    sa.Column("view", SafeString(16), nullable=False),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("rebuild", sa.Boolean, nullable=False),
    sa.Column("details", SafeJson, nullable=False),
    sa.Column("error", SafeText),
    sa.UniqueConstraint("study_id", "view"),
)

jobs = sa.Table(
    "automl_jobs",
    metadata,
    _key(),
    sa.Column("kind", SafeString(16), nullable=False),  # "study", "training" (of one trial) or "confirm"
    sa.Column("study", SafeString(100), nullable=False, unique=True),  # its name in `studies`, once it has run
    sa.Column("project", SafeString(100), nullable=False, index=True),
    sa.Column("user", SafeString(100), nullable=False, index=True),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("state", SafeString(16), nullable=False, index=True),
    sa.Column("reason", SafeText, nullable=False),
    sa.Column("spec", SafeJson, nullable=False),  # spec as submitted; the study's row has the current spec
    sa.Column("base_folder", SafeText, nullable=False),
    sa.Column("slots", sa.Integer),  # null takes all slots of the worker
    sa.Column("limit_nano_usd", sa.BigInteger),  # the study's own budget; null is no limit
    sa.Column("spent_nano_usd", sa.BigInteger, nullable=False),  # cost of a deleted study; else see the ledger
    sa.Column("request", SafeString(16)),  # a user's request to the run: "stop", "cancel" or "preempt"
    sa.Column("submitted_at", sa.Float, nullable=False),
    sa.Column("queued_at", sa.Float, nullable=False),
    sa.Column("ended_at", sa.Float),
    sa.Column("trace_parent", sa.String(55)),  # not used any more
)

workers = sa.Table(
    "automl_workers",
    metadata,
    _key(),
    sa.Column("name", SafeString(255), nullable=False),
    sa.Column("host", SafeString(255), nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("process_started_at", sa.Float, nullable=False),  # as in `leases`
    sa.Column("process_space", sa.String(128)),
    sa.Column("device", SafeString(16), nullable=False),
    sa.Column("slots", sa.Integer, nullable=False),
    sa.Column("started_at", sa.Float, nullable=False),
    sa.Column("expires_at", sa.Float, nullable=False),  # by the database's clock
    sa.Column("ended_at", sa.Float),
)

job_runs = sa.Table(
    "automl_job_runs",
    metadata,
    _key(),
    sa.Column("job_id", sa.ForeignKey("automl_jobs.id", ondelete="CASCADE"), nullable=False, index=True),
    sa.Column("worker_id", sa.ForeignKey("automl_workers.id", ondelete="CASCADE"), nullable=False, index=True),
    sa.Column("slot_numbers", sa.JSON, nullable=False),  # slots of the worker that the run uses
    sa.Column("cap_nano_usd", sa.BigInteger),  # limit on the study's spending up to the run's end; null is no limit
    sa.Column("started_at", sa.Float, nullable=False),  # by the database's clock, like the end
    sa.Column("ended_at", sa.Float),
    sa.Column("outcome", SafeString(16)),
    sa.Index(
        "uq_automl_job_runs_open",
        "job_id",
        unique=True,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    ),
)

tokens = sa.Table(
    "automl_tokens",
    metadata,
    _key(),
    sa.Column("name", SafeString(100), nullable=False),
    sa.Column("user", SafeString(100), nullable=False),
    sa.Column("project", SafeString(100), nullable=False),
    sa.Column("role", SafeString(16), nullable=False),
    sa.Column("digest", sa.String(64), nullable=False, unique=True),  # SHA-256 of the token; the token is not stored
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("expires_at", sa.Float),
    sa.Column("revoked_at", sa.Float),
)

sessions = sa.Table(
    "automl_sessions",
    metadata,
    _key(),
    sa.Column("token_id", sa.ForeignKey("automl_tokens.id", ondelete="CASCADE"), nullable=False),
    sa.Column("digest", sa.String(64), nullable=False, unique=True),  # SHA-256 of the cookie
    sa.Column("expires_at", sa.Float, nullable=False),
)

spending_limits = sa.Table(
    "automl_spending_limits",
    metadata,
    _key(),
    sa.Column("kind", SafeString(16), nullable=False),  # "user" or "project"
    sa.Column("name", SafeString(100), nullable=False),
    sa.Column("nano_usd", sa.BigInteger, nullable=False),
    sa.Column("set_at", sa.Float, nullable=False),
    sa.UniqueConstraint("kind", "name"),
)
