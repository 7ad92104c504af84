"""Rows for the copies in Optuna and MLflow: a study, and its trials that changed since a revision."""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import sqlalchemy as sa

from search_spaces.suggestions import Asked
from search_spaces.untrusted_text import redact_deep
from studies.records.records import OWN_CHARGES, Constraint, Objective, StudyState, TrialState, asked_in
from studies.results.constraints import constraints_in
from studies.storage.reading.reader import of_row
from studies.storage.schema import tables as t
from studies.storage.study_store import Store
from studies.storage.views.cursors import ViewName
from trainers.protocol import ParameterValue

CHUNK = 200


class ViewError(Exception):
    """The study cannot be copied to this Optuna or MLflow database; the message is one line for users."""


class ViewDamagedError(Exception):
    """The copy in Optuna or MLflow is incomplete or was changed: clear it, and copy the study again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MirroredStudy:
    """A study without trials. Times are in seconds since 1970."""

    id: int
    uid: str
    name: str
    state: StudyState
    stop_reason: str | None
    spec: Mapping[str, Any]
    base_folder: str
    revision: int
    created_at: float
    ended_at: float | None

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The study's objectives, in the order of the spec."""
        return tuple(Objective(**objective) for objective in self.spec["objectives"])

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """The study's constraints, in the order of the spec."""
        return constraints_in(self.spec)

    @property
    def spec_text(self) -> str:
        """The spec as JSON, without credentials."""
        return json.dumps(redact_deep(self.spec), indent=1)

    @property
    def spec_sha256(self) -> str:
        """SHA-256 hash of `spec_text`, to notice a changed spec."""
        return hashlib.sha256(self.spec_text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class MirroredEpoch:
    """One stored epoch. A metric is None if it was not finite; `measured_at` is in seconds since 1970."""

    epoch: int
    metrics: Mapping[str, float | None]
    measured_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MirroredTrial:
    """A started trial."""

    id: int
    number: int
    state: TrialState
    failure: str | None
    reason: str
    params: Mapping[str, ParameterValue]
    world_size: int
    origin: str
    started_at: float | None
    ended_at: float | None
    epochs: tuple[MirroredEpoch, ...]  # ascending: only the last epoch, or all after some epoch
    facts: Mapping[str, object]  # of the latest attempt that reached its first step, such as the scaled learning rate
    paid_nano_usd: int
    asked: Mapping[str, Asked] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pending:
    """Rows that a view lacks; `trials` has number and id of each changed trial, sorted by number."""

    study: MirroredStudy
    since: int
    started: int
    trials: tuple[tuple[int, int], ...]


class View(Protocol):
    """A copy of a study in another tool. Methods may be interrupted and repeated."""

    name: ViewName

    def mirror(self, store: Store, pending: Pending, renew: Callable[[], None]) -> None:
        """Write `pending` to the view, calling `renew()` regularly. Raises `ViewDamagedError` if it must be cleared."""

    def clear(self, study: MirroredStudy) -> None:
        """Delete the study from the view."""

    def link(self, study: MirroredStudy) -> str:
        """Return the address of the page that shows the study, or an empty text."""

    def forget(self) -> None:
        """Forget the view's content, which another process may have changed."""

    def close(self) -> None:
        """Close the view's connections."""


def load_mirrored_study(store: Store, study_id: int) -> MirroredStudy:
    """Read a study without its trials."""
    with store.engine.connect().execution_options(automl_read_only=True) as connection:
        return _study(connection, study_id)


def load_pending(store: Store, study_id: int, since: int) -> Pending:
    """Read which trials changed since a revision."""
    with store.engine.connect().execution_options(automl_read_only=True) as connection, connection.begin():
        study = _study(connection, study_id)
        mine = (t.trials.c.study_id == study_id, t.trials.c.number.is_not(None))
        query = sa.select(t.trials.c.number, t.trials.c.id).where(*mine, t.trials.c.revision > since)
        rows = connection.execute(query.order_by(t.trials.c.number)).all()
        started = connection.execute(sa.select(sa.func.count()).select_from(t.trials).where(*mine)).scalar_one()
    trials = tuple((int(number), trial_id) for number, trial_id in rows if number is not None)
    return Pending(study=study, since=since, started=started, trials=trials)


def with_trials(store: Store, pending: Pending, numbers: Collection[int]) -> Pending:
    """Add started trials to `pending`; ignores unknown numbers."""
    if not numbers:
        return pending
    c = t.trials.c
    query = sa.select(c.number, c.id).where(c.study_id == pending.study.id, c.number.in_(numbers))
    with store.engine.connect().execution_options(automl_read_only=True) as connection:
        found = {(int(number), trial_id) for number, trial_id in connection.execute(query) if number is not None}
    return replace(pending, trials=tuple(sorted({*pending.trials, *found})))


def _study(connection: sa.Connection, study_id: int) -> MirroredStudy:
    row = connection.execute(sa.select(t.studies).where(t.studies.c.id == study_id)).one()
    return of_row(MirroredStudy, row)


def load_trials(store: Store, ids: Sequence[int], after: Mapping[int, int] | None = None) -> list[MirroredTrial]:
    """Read trials, sorted by number, with their epochs later than `after`, or only the last epoch."""
    with store.engine.connect().execution_options(automl_read_only=True) as connection, connection.begin():
        query = sa.select(t.trials).where(t.trials.c.id.in_(ids)).order_by(t.trials.c.number)
        rows = connection.execute(query).all()
        facts, paid = _facts(connection, ids), _paid(connection, ids)
        # Epochs last: where statements see newer commits, a finished trial must not lack its last epoch.
        epochs = {row.id: _epochs(connection, row.id, None if after is None else after[row.id]) for row in rows}
    return [
        of_row(
            MirroredTrial, row, epochs=epochs[row.id], facts=facts.get(row.id, {}),
            paid_nano_usd=paid.get(row.id, 0), asked=asked_in(row.sampler_attributes),
        )
        for row in rows
    ]  # fmt: skip


def _epochs(connection: sa.Connection, trial_id: int, after: int | None) -> tuple[MirroredEpoch, ...]:
    columns = (t.epochs.c.epoch, t.epochs.c.metrics, t.epochs.c.measured_at)
    query = sa.select(*columns).where(t.epochs.c.trial_id == trial_id)
    if after is None:
        query = query.order_by(t.epochs.c.epoch.desc()).limit(1)
    else:
        query = query.where(t.epochs.c.epoch > after).order_by(t.epochs.c.epoch)
    return tuple(
        MirroredEpoch(epoch=epoch, metrics=metrics, measured_at=at) for epoch, metrics, at in connection.execute(query)
    )


def _facts(connection: sa.Connection, ids: Sequence[int]) -> dict[int, Mapping[str, object]]:
    query = sa.select(t.attempts.c.trial_id, t.attempts.c.facts).where(t.attempts.c.trial_id.in_(ids))
    rows = connection.execute(query.order_by(t.attempts.c.attempt))
    return {trial_id: facts for trial_id, facts in rows if facts}


def _paid(connection: sa.Connection, ids: Sequence[int]) -> dict[int, int]:
    query = sa.select(t.charges.c.trial_id, sa.func.sum(t.charges.c.cost_nano_usd)).where(
        t.charges.c.trial_id.in_(ids), t.charges.c.kind.in_(OWN_CHARGES)
    )
    rows = connection.execute(query.group_by(t.charges.c.trial_id))
    return {trial_id: int(paid) for trial_id, paid in rows if trial_id is not None}
