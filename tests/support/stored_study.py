"""A study written straight into a store, as a controller would have left it: for tests of what reads it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Unpack

import sqlalchemy as sa

from automl.stored.open_store import stored_form
from studies.spec.study_spec import parse_spec
from studies.storage.leases import lease as leases
from studies.storage.schema import tables as t
from studies.storage.study_store import Store
from studies.storage.writing.changes import (
    AttemptOpened,
    Change,
    Charged,
    EpochMeasured,
    StudyChanged,
    StudyColumns,
    TrialChanged,
    TrialColumns,
)
from tests.support.command_line import DIGITS

NO_PROCESS = 2**22 + 1  # above Linux's largest process id
PARAMS = {"learning_rate": 0.125, "batch_per_rank": 32, "world_size": 2, "architecture": "mlp", "width": 48}


class StoredStudy:
    """The study `small`, running, without trials."""

    def __init__(self, folder: Path, **sections: Any) -> None:
        self.store = Store(f"sqlite:///{folder}/automl.db")
        spec = stored_form(parse_spec({**DIGITS, "objectives": [{"metric": "val_error"}], **sections}))
        self.id = self.store.create_study("small", spec, str(folder), time.time())
        self._trials = 0

    def taken_by(self, pid: int) -> leases.Lease:
        """Give the lease to a process of this host."""
        lease = leases.acquire(self.store, self.id)
        assert isinstance(lease, leases.Lease)
        with self.store.engine.begin() as connection:
            connection.execute(sa.update(t.leases).where(t.leases.c.id == lease.id).values(pid=pid))
        return lease

    def trial(
        self,
        *,
        epochs: int = 0,
        checkpoints: tuple[int, ...] = (),
        cost_nano_usd: int = 0,
        **ends: Unpack[TrialColumns],
    ) -> int:
        """Start a trial of two ranks and measure some epochs; `ends` are further columns of its row."""
        trial_id = self.store.enqueue(self.id, PARAMS, world_size=2, origin="sampler")
        now, number = time.time(), self._trials
        self._trials += 1
        columns: TrialColumns = {"state": "running", "number": number, "started_at": now, **ends}
        changes: list[Change] = [
            TrialChanged(trial_id=trial_id, columns=columns),
            AttemptOpened(trial_id=trial_id, attempt=1, slots=(0, 1), start_epoch=0, at=now),
        ]
        for epoch in range(1, epochs + 1):
            kept = f"/nowhere/{number}-{epoch}.pt" if epoch in checkpoints else None
            metrics = {"val_error": 1 / (epoch + 1), "val_accuracy": epoch / (epoch + 1), "cost_usd": 0.001 * epoch}
            changes.append(EpochMeasured(
                trial_id=trial_id, epoch=epoch, metrics=metrics, wall_seconds=1.0, cost_nano_usd=0, checkpoint=kept,
                is_milestone=kept is not None, at=now + epoch,
            ))  # fmt: skip
        if cost_nano_usd:
            changes.append(Charged(
                kind="train", trial_id=trial_id, attempt=1, slots=2, slot_numbers=(0, 1), since=now - 1.0,
                seconds=1.0, usd_per_slot_hour=1.0,
                cost_nano_usd=cost_nano_usd, at=now,
            ))  # fmt: skip
        self.store.commit(self.id, None, changes)
        return number

    def change(self, **columns: Unpack[StudyColumns]) -> None:
        """Set columns of the study."""
        self.store.commit(self.id, None, [StudyChanged(columns=columns)])
