"""Ends queued trials of a study that no controller drives."""

import sqlalchemy as sa

from studies.storage.leases.lease import Lease
from studies.storage.schema import tables as t
from studies.storage.study_store import Store, held_lease
from studies.storage.writing.changes import TrialChanged


def end_queued(store: Store, lease: Lease, change: TrialChanged) -> None:
    """End a trial if it is still queued; `LeaseLostError`, without writing, if the lease is lost.

    The study keeps its revision: the views do not show trials that never started.
    """
    which = (t.trials.c.id == change.trial_id, t.trials.c.state == "queued")
    with store.engine.begin() as connection:
        held_lease(connection, lease.study_id, lease.token)
        connection.execute(sa.update(t.trials).where(*which).values(**change.columns))
