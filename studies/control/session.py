"""Takes the lease of a study, charges for dead controllers, and drives the study."""

import gc
import logging
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from studies.control.assembly import PoolSpec, advisor_of, assemble, checkpoint_folder, setup_of
from studies.control.controller import Controller
from studies.control.files.orphans import (
    check_in_place,
    delete_orphans,
    find_orphans,
    is_shared,
    mark_used,
    sizes_of,
    wait_for_ranks,
)
from studies.control.machine.state import ENDS_BY_BUDGET, StudyMachine, has_more
from studies.control.machine.study_setup import OwnLogging
from studies.control.testing_models import test_models, test_specs
from studies.gangs.pool_protocol import DrainRequested, GangPool
from studies.results import analysis
from studies.search.model.size_model import SizeModel, nothing_counted
from studies.search.model.transfer import EarlierStudy
from studies.search.samplers.suggester import Suggester
from studies.spec.study_spec import StudySpec
from studies.storage.leases import lease as leases
from studies.storage.leases.dead_pools import settle_dead_pools, settle_left
from studies.storage.reading.reader import load_resume_state, load_study, mentioned_checkpoints
from studies.storage.study_store import Store, StoreError, StudyRow
from studies.storage.writing import retrying
from studies.storage.writing.retrying import retry


@contextmanager
def set_aside() -> Iterator[None]:
    """Exempt existing objects from garbage collection, which would stop all threads for 80 ms."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def none_meanwhile() -> Iterator[None]:
    """Switch garbage collection off while many long-lived objects are created."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


STAND_BY_SECONDS = 1.0
log = logging.getLogger(__name__)
NO_LEASE = -1
T = TypeVar("T")


class _InterruptedError(Exception):
    """The session was stopped while it waited for the database."""


class Session:
    """Drives a stored study until it closes, stops early with checkpoints, or fails."""

    def __init__(
        self,
        *,
        store: Store,
        row: StudyRow,
        spec: StudySpec,
        pool_spec: PoolSpec,
        pool: GangPool,
        on_commit: Callable[[StudyMachine], None],
        on_stand_by: Callable[[str], None],
        counted: Callable[[], SizeModel | None] = nothing_counted,
        own_logging: OwnLogging | None = None,
    ) -> None:
        self._store, self._row, self._spec = store, row, spec
        self._pool_spec, self._pool = pool_spec, pool
        self._on_commit, self._on_stand_by, self._counted = on_commit, on_stand_by, counted
        self._own_logging = own_logging
        self._folder = checkpoint_folder(spec, Path(row.base_folder), row.uid)
        self._controller: Controller | None = None
        self._drain_reason: str | None = None
        self._stood_by = False
        self._advisor = advisor_of(spec, Path(row.base_folder))

    def drain(self, reason: str) -> None:
        """Stop each trial at the end of its epoch, or stop waiting for the lease; safe in signal handlers."""
        self._drain_reason = reason
        self._pool.post(DrainRequested(reason=reason))  # type: ignore[arg-type]

    def run(self) -> StudyMachine | None:
        """Take the lease and drive the study; None if it is over, or was stopped during the wait for the lease.

        Raises:
            LeaseLostError: Another controller has taken over.
            StoreError: The study was deleted, its spec changed during the wait, or a checkpoint folder is missing.
        """
        if self._is_over():
            settle_left(self._store, self._row.id)  # a confirmation may have been killed
            return None
        lease = self._take_lease()
        if lease is None:
            return None
        try:
            self._check_unchanged()
        except StoreError:
            leases.release(self._store, lease)
            raise
        try:
            machine = self._drive(lease)
            if machine is not None and self._is_to_be_tested(machine):
                self._test_models(machine)
            return machine
        finally:
            self._pool.close()

    def _drive(self, lease: leases.Lease) -> StudyMachine | None:
        """Drive the study. The pool stays open if saved models are measured afterwards."""
        stop, look = partial(self.drain, "stopped"), self._look_for_requests
        with leases.kept(self._store, lease, on_stop=stop, on_requests=look, on_lost=self._lose_lease):
            check_in_place(mentioned_checkpoints(self._store, self._row.id))
            mark_used(self._folder, self._store, lease)
            settle_dead_pools(self._store, lease)
            with none_meanwhile():
                made = self._machine(lease.id, lease.acquired_at)
            if made is None:
                return None
            machine, suggester = made
            if self._stood_by:  # ranks of the previous controller may still run
                wait_for_ranks(self._row.uid)
            self._delete_orphans()
            controller = self._make_controller(machine, suggester, lease)
            controller.look_for_requests()
            self._controller = controller
            try:
                with set_aside(), retrying.copied_beside(self._store.engine):
                    controller.run()
            finally:
                if self._advisor is not None:
                    self._advisor.close()
            self._controller = None
            if not self._is_to_be_tested(machine):
                self._close_pool()
            return machine

    def _is_to_be_tested(self, machine: StudyMachine) -> bool:
        return machine.state == "closed" and machine.measures_at_end and self._drain_reason is None

    def _test_models(self, machine: StudyMachine) -> None:
        record, warm = load_study(self._store, self._row.name), machine.free_slots
        setup = replace(machine.setup, usd_per_slot_hour=machine.usd_per_slot_hour)
        specs = test_specs(setup, record, machine.explain_seconds)
        lease = leases.acquire(self._store, self._row.id)
        if isinstance(lease, leases.Holder):
            return
        with leases.kept(self._store, lease, on_stop=partial(self.drain, "stopped")):
            if specs and warm is not None:
                test_models(
                    setup, record, specs, pool=self._pool, store=self._store, lease=lease, warm=warm,
                    most_seconds=max(machine.deadline - self._pool.now(), 0.0),
                )  # fmt: skip
            self._close_pool()

    def _close_pool(self) -> None:
        self._pool.close()
        wait_for_ranks(self._row.uid)  # killed ranks may still be writing
        self._delete_orphans()

    def _check_unchanged(self) -> None:
        """Raise StoreError if the study was replaced or its spec changed during the wait for the lease."""
        name, row = self._row.name, self._store.study_row(self._row.name)
        if row is None or row.uid != self._row.uid:
            raise StoreError(f"study: {name!r} was deleted while this process waited for it. Launch it again")
        if row.spec != self._row.spec:
            raise StoreError(
                f"study: the spec of {name!r} changed while this process waited for the study. "
                f"Continue with the new spec: `automl resume {shlex.quote(name)}`"
            )

    def _delete_orphans(self) -> None:
        """Delete files that no trial or copy of the study needs. Call it when no rank writes."""
        folder = self._folder
        try:
            if is_shared(folder, self._store, self._row.id):
                return
            orphans = find_orphans(folder, mentioned_checkpoints(self._store, self._row.id), is_running=False)
        except OSError as error:  # an object store may answer again before the first checkpoint
            log.warning("%s: cannot search for files that no trial needs (%s)", folder, error.strerror)
            return
        gone = delete_orphans(orphans)
        if gone:
            log.info("deleted %d files and folders that no trial needs", len(gone))

    def _look_for_requests(self) -> None:
        if self._controller is not None:
            self._controller.look_for_requests()

    def _lose_lease(self) -> None:
        if self._controller is not None:  # without controller, nothing trains
            self._controller.lose_lease()

    def _is_over(self) -> bool:
        """Return whether a closed study has nothing left to do; needs no lease, whose time would be charged."""
        closed: bool = self._store.require(self._row.name).state == "closed"
        return closed and self._machine(NO_LEASE, time.time()) is None

    def _take_lease(self) -> leases.Lease | None:
        with suppress(_InterruptedError):
            return self._wait_for_lease()
        return None

    def _wait_for_lease(self) -> leases.Lease | None:
        """Wait until this session holds the lease; None if this session or the study was stopped."""
        first: leases.Holder | None = None
        again = self._patiently
        while isinstance(lease := leases.acquire(self._store, self._row.id, patiently=again), leases.Holder):
            if first is None:
                first, self._stood_by = lease, True
                self._on_stand_by(str(lease))
            if self._drain_reason is not None or self._was_stopped_in_order(first):
                return None
            time.sleep(STAND_BY_SECONDS)
        if first is not None and self._was_stopped(first, before=lease.id):
            if self._was_stopped_in_order(first):
                leases.release(self._store, lease)
                return None
            self.drain("stopped")
        return lease

    def _patiently(self, action: Callable[[], T]) -> T:
        """Repeat the action while the database is away, as long as commits."""

        def warn(line: str) -> None:
            if self._drain_reason is not None:
                raise _InterruptedError
            log.warning(line)

        return retry(action, "waiting to take over the study", warn=warn)

    def _was_stopped(self, first: leases.Holder, *, before: int | None = None) -> bool:
        return self._patiently(lambda: leases.was_stopped(self._store, self._row.id, first.lease_id, before))

    def _was_stopped_in_order(self, first: leases.Holder) -> bool:
        """Return whether the earlier controller was stopped and its trials ended with checkpoints."""
        if not self._was_stopped(first):
            return False
        return bool(self._patiently(lambda: self._store.require(self._row.name)).state != "running")

    def _machine(self, lease_id: int, alive_since: float) -> tuple[StudyMachine, Suggester] | None:
        """Return state machine and suggester; None if nothing is left to do."""
        row = self._store.require(self._row.name)
        given = self._spec.reference_point
        reference = dict(given) if isinstance(given, dict) else row.reference_point
        earlier = [EarlierStudy.from_plain(one) for one in row.earlier_studies or ()]
        pool_spec = self._pool_spec.at_price(row.usd_per_slot_hour)
        assembled = assemble(
            self._spec, pool_spec, earlier=earlier, counted=self._counted, study_attributes=row.sampler_attributes,
            advisor=self._advisor,
        )  # fmt: skip
        setup = replace(
            setup_of(self._spec, pool_spec, assembled.policy, Path(row.base_folder), reference, folder=self._folder),
            own_logging=self._own_logging,
        )
        ended_by_budget = row.state == "closed" and row.stop_reason in ENDS_BY_BUDGET and row.closed_by is not None
        if ended_by_budget and not has_more(setup, row.closed_by):
            return None
        resume_state = load_resume_state(self._store, row.id, before_lease=lease_id, looked_at=setup.looked_at)
        if self._spec.checkpoints.max_gib is not None:
            sizes = sizes_of(mentioned_checkpoints(self._store, row.id))
            resume_state = replace(resume_state, checkpoint_bytes=sizes)
        pool = self._pool
        machine = StudyMachine(
            setup, resume_state, alive_since=alive_since, pick=pool.pick, worn=pool.worn, spare=pool.spare
        )
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
            suggester=suggester,
            study_id=self._row.id,
            lease_token=lease.token,
            on_commit=self._on_commit,
            keeps_pool=True,
        )
