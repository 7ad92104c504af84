"""Ends trials that are queued where no controller drives their study."""

from __future__ import annotations

import sqlalchemy as sa

from studies.storage.leases.lease import Lease
from studies.storage.schema import tables as t
from studies.storage.study_store import Store, held_lease
from studies.storage.writing.changes import TrialChanged


def end_queued(store: Store, lease: Lease, change: TrialChanged) -> None:
    """End a trial if it is still queued; raises `LeaseLostError`, writing nothing.

    The study keeps its revision: views show no unstarted trial, and no controller would mirror a new revision.
    """
    which = (t.trials.c.id == change.trial_id, t.trials.c.state == "queued")
    with store.engine.begin() as connection:
        held_lease(connection, lease.study_id, lease.token)
        connection.execute(sa.update(t.trials).where(*which).values(**change.columns))
