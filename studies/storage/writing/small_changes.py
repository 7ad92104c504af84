"""Ends trials that are queued where no controller drives their study."""

from __future__ import annotations

import sqlalchemy as sa

from studies.storage.leases.lease import Lease
from studies.storage.schema import tables as t
from studies.storage.study_store import Store, held_lease
from studies.storage.writing.changes import TrialChanged


def end_queued(store: Store, lease: Lease, change: TrialChanged) -> None:
    """End a trial that is queued; one that is not any more stays as it is.

    The study keeps its revision, as when a trial is enqueued: views show no trial that has not started, and no
    controller is there that would mirror a new revision.

    Args:
        lease: Lease of the trial's study.
        change: New columns of the trial's row.

    Raises:
        LeaseLostError: The lease was taken over; nothing is written.
    """
    which = (t.trials.c.id == change.trial_id, t.trials.c.state == "queued")
    with store.engine.begin() as connection:
        held_lease(connection, lease.study_id, lease.token)
        connection.execute(sa.update(t.trials).where(*which).values(**change.columns))
