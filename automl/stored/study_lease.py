"""Holds the lease of a study without controller while a command changes its rows as a controller would."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from studies.storage.leases import heartbeat
from studies.storage.leases import lease as leases
from studies.storage.study_store import Store


@contextmanager
def undriven(store: Store, row: sa.Row[Any]) -> Iterator[leases.Lease]:
    """Hold a study's lease during the block. StoreError if a controller drives the study."""
    refuse_driven(store, row)
    lease = leases.acquire(store, row.id)
    if isinstance(lease, leases.Holder):
        raise leases.driven_error(row.name, lease)
    with heartbeat.kept(store, lease, on_stop=lambda: None, counts=False):
        yield lease


def refuse_driven(store: Store, row: sa.Row[Any]) -> None:
    """Raise `StoreError` if a controller drives a study, or waits for disk space for its checkpoints."""
    with store.snapshot() as connection:
        leases.refuse_driven(connection, row.id, row.name)
    if row.state == "drained" and row.stop_reason == "storage":
        raise leases.driven_error(row.name, "perhaps a process that waits for disk space for its checkpoints")
