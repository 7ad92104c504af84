"""Writes a study that ran elsewhere: all its rows in one transaction, without controller, lease and charges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from studies.records.records import IMPORTED, TrialState
from studies.storage.schema import tables as t
from studies.storage.study_store import Store
from studies.storage.writing.commit_writer import finite


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedTrial:
    """A trial that ran elsewhere; seconds and nano-dollars are of each epoch."""

    params: Mapping[str, Any]
    state: TrialState
    epochs: Sequence[Mapping[str, float]]
    seconds: float
    nano_usd: int

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return int(self.params.get("world_size", 1))


def write_ended(store: Store, spec: Mapping[str, Any], trials: Sequence[EndedTrial], at: float) -> None:
    """Insert a closed study with its trials; `StudyExistsError` if the name is taken. `at` is in seconds since 1970."""

    def insert_trials(connection: sa.Connection, study_id: int) -> None:
        always = {
            "study_id": study_id,
            "origin": IMPORTED,
            "reason": IMPORTED,
            "sampler_attributes": {},
            "resume_epoch": 0,
        }
        always |= {"revision": 1, "created_at": at, "started_at": at, "ended_at": at}
        for number, trial in enumerate(trials):
            row = {"number": number, "state": trial.state, "params": dict(trial.params), "world_size": trial.world_size}
            new = sa.insert(t.trials).returning(t.trials.c.id)
            trial_id = connection.execute(new, {**always, **row}).scalar_one()
            epochs = [
                {
                    "trial_id": trial_id, "epoch": epoch, "metrics": finite(metrics), "wall_seconds": trial.seconds,
                    "cost_nano_usd": trial.nano_usd, "is_milestone": epoch == len(trial.epochs), "measured_at": at,
                }
                for epoch, metrics in enumerate(trial.epochs, start=1)
            ]  # fmt: skip
            connection.execute(sa.insert(t.epochs), epochs)

    columns = {"state": "closed", "stop_reason": IMPORTED, "ended_at": at, "revision": 1}
    store.create_study(spec["study"], spec, ".", at, columns=columns, fill=insert_trials)
