"""One controller's life with a study: lease, settling what a dead one left, driving, giving everything back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from studies import analysis
from studies.control.assembly import PoolSpec, assemble, setup_of
from studies.control.controller import Controller
from studies.control.dead_pools import DeadPool, OpenAttempt, gap_charges
from studies.control.state import StudyMachine
from studies.gangs.protocol import GangPool
from studies.search.model.earlier_study import EarlierStudy
from studies.search.model.size_model import SizeModel, nothing_counted
from studies.search.samplers.protocol import Suggester
from studies.spec.study_spec import StudySpec
from studies.storage import lease as leases
from studies.storage import tables as t
from studies.storage.reader import load_resume_state, load_study
from studies.storage.store import Store, insert_charges, retry

log = logging.getLogger(__name__)

STAND_BY_SECONDS = 1.0
NO_LEASE = -1
PATIENCE_SECONDS = 5.0
"""Sum of the pauses between attempts, each of which waits for a locked database itself."""


class Session:
    """Drives a study of the store until it is closed, drained or failed.

    Args:
        store: Where the study is.
        row: The study's row.
        spec: In force, with its space filled in.
        place: Where trials train.
        pool: Trains.
        on_commit: Called after each commit, for live progress.
        on_stand_by: Called with the holder once, if another controller drives the study: this one waits for it.
        counted: Gives what was counted of models without training them, None as long as that is not known.
    """

    def __init__(
        self,
        *,
        store: Store,
        row: sa.Row[Any],
        spec: StudySpec,
        place: PoolSpec,
        pool: GangPool,
        on_commit: Callable[[StudyMachine], None],
        on_stand_by: Callable[[str], None],
        counted: Callable[[], SizeModel | None] = nothing_counted,
    ) -> None:
        self._store, self._row, self._spec, self._place, self._pool = store, row, spec, place, pool
        self._on_commit, self._on_stand_by, self._counted = on_commit, on_stand_by, counted
        self._controller: Controller | None = None
        self._drain_reason: str | None = None

    def drain(self, reason: str) -> None:
        """Let the study end at the next boundaries, or stop standing by; may be called from a signal handler."""
        self._drain_reason = reason
        if self._controller is not None:
            self._controller.drain(reason)

    def run(self) -> StudyMachine | None:
        """Take the lease and drive.

        Returns:
            None if there was nothing to do, as in a closed study without more budget, or if the session was drained
            while another controller had the lease.

        Raises:
            LeaseLostError: Another controller has taken over.
        """
        if self._is_over():
            return None
        lease = self._take_lease()
        if lease is None:
            return None
        try:
            _patiently(lambda: settle_dead_pools(self._store, lease))
            made = self._machine(lease.id, lease.acquired_at)
            if made is None:
                return None
            machine, suggester = made
            controller = self._controller = self._make_controller(machine, suggester, lease)
            if self._drain_reason is not None:  # it came before there was anybody to tell
                controller.drain(self._drain_reason)
            with _heart(self._store, lease, controller):
                controller.look_for_queued()
                controller.run()
            return machine
        finally:
            _release(self._store, lease)

    def _is_over(self) -> bool:
        """Whether the study is closed for good: looking at it again takes no lease, whose time would be counted."""
        closed: bool = self._store.require(self._row.name).state == "closed"
        return closed and self._machine(NO_LEASE, time.time()) is None

    def _take_lease(self) -> leases.Lease | None:
        told = False
        while isinstance(lease := leases.acquire(self._store, self._row.id), leases.Holder):
            if self._drain_reason is not None:
                return None
            if not told:
                self._on_stand_by(str(lease))
                told = True
            time.sleep(STAND_BY_SECONDS)
        return lease

    def _machine(self, lease_id: int, alive_since: float) -> tuple[StudyMachine, Suggester] | None:
        """The state machine and the suggester that belongs to its policy; None if there is nothing left to do."""
        row = self._store.require(self._row.name)
        resume_state = load_resume_state(self._store, row.id, before_lease=lease_id)
        given = self._spec.reference_point
        reference = dict(given) if isinstance(given, dict) else row.reference_point
        earlier = [EarlierStudy.from_plain(one) for one in row.earlier_studies or ()]
        assembled = assemble(
            self._spec, self._place, earlier=earlier, counted=self._counted, study_attributes=row.sampler_attributes
        )
        setup = setup_of(self._spec, self._place, assembled.policy, Path(row.base_folder), reference)
        machine = StudyMachine(setup, resume_state, alive_since=alive_since, pick=self._pool.pick, worn=self._pool.worn)
        if row.state == "closed":
            machine.reopen(resume_state.closed_trial_ids)
            if machine.nothing_left() is not None or self._is_still_not_worthwhile(machine, row.stop_reason):
                return None
        return machine, assembled.suggester

    def _is_still_not_worthwhile(self, machine: StudyMachine, stop_reason: str | None) -> bool:
        if stop_reason != "not_worthwhile":
            return False
        percents = analysis.next_10_usd_percents(load_study(self._store, self._row.name))
        return not machine.setup.limits.is_worthwhile(percents)

    def _make_controller(self, machine: StudyMachine, suggester: Suggester, lease: leases.Lease) -> Controller:
        return Controller(
            machine=machine,
            pool=self._pool,
            store=self._store,
            load=lambda: load_study(self._store, self._row.name),
            suggester=suggester,
            study_id=self._row.id,
            lease_id=lease.id,
            on_commit=self._on_commit,
        )


def _patiently(action: Callable[[], None]) -> None:
    """Do it once the database answers: others may have it locked for a while."""
    say = "the store does not answer (%s); waiting for it"
    retry(action, lambda cause: log.warning(say, cause), give_up_after_seconds=PATIENCE_SECONDS)


def _release(store: Store, lease: leases.Lease) -> None:
    """Give the lease back; where the database stays away it runs out by itself."""
    try:
        _patiently(lambda: leases.release(store, lease))
    except DBAPIError as error:
        log.warning("the lease could not be given back (%s); it runs out by itself", error.orig)


@contextmanager
def _heart(store: Store, lease: leases.Lease, controller: Controller) -> Any:
    heart = leases.Heartbeat(
        store, lease, on_stop=lambda: controller.drain("stopped"), on_queue=controller.look_for_queued
    )
    heart.start()
    try:
        yield
    finally:
        heart.stop()


def settle_dead_pools(store: Store, lease: leases.Lease) -> None:
    """Charge what pools of dead controllers cost after their last charges. Doing it twice charges once."""
    dead = sa.select(t.leases).where(
        t.leases.c.study_id == lease.study_id,
        t.leases.c.id < lease.id,  # a later one has taken over
        t.leases.c.pool_opened_at.is_not(None),
        t.leases.c.pool_closed_at.is_(None),
    )
    with store.engine.begin() as connection:
        for row in connection.execute(dead).all():
            pool = _dead_pool(connection, row)
            insert_charges(connection, lease.study_id, row.id, gap_charges(pool))
            closed = sa.update(t.leases).where(t.leases.c.id == row.id).values(pool_closed_at=pool.alive_until)
            connection.execute(closed)


def _dead_pool(connection: sa.Connection, row: sa.Row[Any]) -> DeadPool:
    charged, charged_at = connection.execute(
        sa.select(
            sa.func.coalesce(sa.func.sum(t.charges.c.slots * t.charges.c.seconds), 0.0),
            sa.func.coalesce(sa.func.max(t.charges.c.charged_at), 0.0),
        ).where(t.charges.c.lease_id == row.id)
    ).one()
    running = connection.execute(
        sa.select(t.attempts)
        .join(t.trials, t.trials.c.id == t.attempts.c.trial_id)
        .where(t.trials.c.study_id == row.study_id, t.attempts.c.outcome == "running")
    ).all()
    return DeadPool(
        slots=row.pool_slots,
        usd_per_slot_hour=row.usd_per_slot_hour,
        opened_at=row.pool_opened_at,
        # A commit is a sign of life as well, and may be later than the last heartbeat.
        alive_until=max(row.heartbeat_at, charged_at, row.pool_opened_at, *(one.charged_until for one in running)),
        charged_slot_seconds=float(charged),
        attempts=tuple(
            OpenAttempt(
                trial_id=one.trial_id, attempt=one.attempt, slots=one.world_size, charged_until=one.charged_until
            )
            for one in running
        ),
    )
