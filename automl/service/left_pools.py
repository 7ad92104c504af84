"""Settles what controllers of jobs had not charged when they died, also where no later controller comes to do so."""

from __future__ import annotations

from collections.abc import Callable

from search_spaces.errors import RunError
from studies.control.dead_pools import settle_left
from studies.queueing.job_rows import left_studies
from studies.storage.store import Store, StoreError


def settle_left_pools(store: Store, log: Callable[..., None]) -> None:
    """Settle the pools of jobs that do not run; those of living controllers stay.

    The cost of a job that waits, was cancelled or has failed is then known, and the rest of its cap is free.

    To be called where the database could be reached for so long that a living controller has renewed its lease.

    Args:
        store: Store of the queue.
        log: Function that takes a line and fields of the log.
    """
    with store.snapshot() as connection:
        left = left_studies(connection)
    for study_id in left:
        try:
            # Waiting here, the worker would miss heartbeats of its own.
            settle_left(store, study_id, at_once=True)
        except (StoreError, RunError) as error:  # deleted or taken over meanwhile, or its rows are damaged
            log(f"what a dead controller has left is not charged: {error}", level="warning", study_id=study_id)
