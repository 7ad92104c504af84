"""One controller's life with a study: lease, settling what a dead one left, driving, giving everything back."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from search_spaces.space import Space
from studies import analysis
from studies.control.controller import Controller
from studies.control.dead_pools import DeadPool, OpenAttempt, gap_charges
from studies.control.setup import FREE_USD_PER_SLOT_HOUR, StudySetup
from studies.control.state import StudyMachine
from studies.gangs.protocol import GangPool
from studies.milestones import DEFAULT_GRACE, milestones
from studies.money.budget import Limits
from studies.search.model.cokriging import decision_rungs
from studies.search.model.search_model import Problem, SearchModel
from studies.search.model.size_model import SizeModel, nothing_counted
from studies.search.model.transfer import EarlierStudy, Transfer
from studies.search.policy import Policy, Pruner
from studies.search.pruners.break_even import BreakEven
from studies.search.pruners.median import Median
from studies.search.pruners.mo_asha import MoAsha
from studies.search.pruners.none import NoPruner
from studies.search.samplers.suggester import Suggester
from studies.spec.sections import SearchSpec
from studies.spec.study_spec import StudySpec
from studies.storage import lease as leases
from studies.storage import tables as t
from studies.storage.reader import load_memory, load_study
from studies.storage.store import Store, insert_charges, retry

log = logging.getLogger(__name__)

STAND_BY_SECONDS = 1.0
NO_LEASE = -1
PATIENCE_SECONDS = 5.0
"""Sum of the pauses between attempts, each of which waits for a locked database itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where trials train: a slot is one device of this kind at this price."""

    device: Literal["cpu", "cuda"]
    slots: int
    usd_per_slot_hour: float


def policy_of(search: SearchSpec, problem: Problem, *, slots: int) -> Policy:
    """The policy that a spec names.

    Args:
        search: Section of the spec.
        problem: What our own search has to know.
        slots: Of the pool.
    """
    search = search.chosen
    pruner, model = search.pruner, SearchModel(problem)
    fits_elsewhere = search.sampler == "cokriging"
    chosen: Pruner
    match pruner.name:
        case "none":
            chosen = NoPruner()
        case "break_even":
            chosen = BreakEven(model, slots=slots, seed=search.seed, refits=not fits_elsewhere)
        case "median":
            chosen = Median(grace=pruner.grace, startup_trials=pruner.startup_trials, combine=pruner.combine)
        case _:
            chosen = MoAsha(variant=pruner.variant, grace=pruner.grace, eta=pruner.eta)
    return Policy(pruner=chosen, model=model)


def has_model(search: SearchSpec) -> bool:
    """Whether a spec names the sampler `cokriging` or the pruner `break_even`, which look at the search model."""
    search = search.chosen
    return search.sampler == "cokriging" or search.pruner.name == "break_even"


def watched_epochs(search: SearchSpec, epochs: int) -> tuple[int, ...]:
    """Epochs whose values the model of `cokriging` and `break_even` looks at, beside milestones."""
    if not has_model(search):
        return ()
    rungs = decision_rungs(epochs)
    return (rungs[0] - 1, *rungs) if rungs[0] > 1 else rungs


def problem_of(
    spec: StudySpec,
    place: Place,
    earlier: Sequence[EarlierStudy] = (),
    counted: Callable[[], SizeModel | None] = nothing_counted,
) -> Problem:
    """What the model of `cokriging` and `break_even` has to know."""
    given = spec.reference_point
    epochs = spec.training.epochs
    return Problem(
        space=spec.space or Space({}),
        objectives=spec.objective_records,
        constraints=spec.constraint_records,
        epochs=epochs,
        milestones=milestones(epochs, rungs=decision_rungs(epochs)),
        usd_per_slot_hour=place.usd_per_slot_hour or FREE_USD_PER_SLOT_HOUR,
        reference=tuple(o.signed(float(given[o.metric])) for o in spec.objective_records)
        if isinstance(given, dict)
        else None,
        transfer=Transfer(spec.space or Space({}), spec.objective_records, earlier, spec.constraint_records)
        if earlier
        else None,
        counted=counted,
        budget_usd=_budget_usd(spec, place),
        slots=place.slots,
    )


def _budget_usd(spec: StudySpec, place: Place) -> float:
    """What the pool may cost; hours limit that as well, and are all that limits a pool without a price."""
    price, budget = place.usd_per_slot_hour, spec.budget
    usd = math.inf if budget.usd is None or not price else float(budget.usd)
    hours = math.inf if budget.hours is None else float(budget.hours)
    return min(usd, hours * place.slots * (price or FREE_USD_PER_SLOT_HOUR))


def setup_of(
    spec: StudySpec,
    place: Place,
    base_folder: Path,
    reference: dict[str, float] | None,
    earlier: Sequence[EarlierStudy] = (),
    *,
    counted: Callable[[], SizeModel | None] = nothing_counted,
) -> StudySetup:
    """A spec, on slots, as the state machine wants it."""
    search, epochs = spec.search.chosen, spec.training.epochs
    policy = policy_of(search, problem_of(spec, place, earlier, counted), slots=place.slots)
    grace = search.pruner.grace if search.pruner.name in {"mo_asha", "median"} else DEFAULT_GRACE
    budget = spec.budget
    return StudySetup(
        study=spec.study,
        objectives=spec.objective_records,
        constraints=spec.constraint_records,
        task=spec.task,
        task_options=dict(spec.task_options),
        training=spec.training.model_dump(),
        epochs=epochs,
        milestones=milestones(epochs, grace, policy.pruner.rungs(epochs)),
        policy=policy,
        limits=Limits(
            usd=budget.usd,
            hours=budget.hours,
            trials=budget.trials,
            usd_per_trial=budget.usd_per_trial,
            hours_per_trial=budget.hours_per_trial,
            least_percent_per_10_usd=budget.least_percent_per_10_usd,
        ),
        slots=place.slots,
        usd_per_slot_hour=place.usd_per_slot_hour,
        seed=spec.search.seed,
        device=place.device,
        cpus_per_rank=spec.resources.cpus_per_rank,
        checkpoint_folder=str((base_folder / spec.checkpoints.folder).absolute() / spec.study),
        checkpoint_every_seconds=spec.checkpoints.every_seconds,
        most_paused=spec.checkpoints.most_paused,
        python_path=(str(base_folder),),
        reference_point=reference,
        watched=watched_epochs(search, epochs),
    )


def suggester_of(spec: StudySpec, policy: Policy, study_attributes: Mapping[str, Any] | None = None) -> Suggester:
    """Who is asked for parameters.

    Args:
        spec: With its space filled in.
        policy: Made from the same spec; its model gets a twin, since a thread of its own prepares suggestions.
        study_attributes: Optuna's system attributes of the study as they were stored.

    Raises:
        SamplerError: The sampler cannot be made.
    """
    return Suggester(
        space=spec.space or Space({}),
        directions=tuple(objective.direction for objective in spec.objectives),
        sampler=spec.search.chosen.sampler,
        seed=spec.search.seed,
        study_attributes=study_attributes or {},
        model=None if policy.model is None else policy.model.twin(),
        transfer=None if policy.model is None else policy.model.problem.transfer,
    )


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
        place: Place,
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
            machine = self._machine(lease.id, lease.acquired_at)
            if machine is None:
                return None
            controller = self._controller = self._make_controller(machine, lease)
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

    def _machine(self, lease_id: int, alive_since: float) -> StudyMachine | None:
        row = self._store.require(self._row.name)
        memory = load_memory(self._store, row.id, before_lease=lease_id)
        given = self._spec.reference_point
        reference = dict(given) if isinstance(given, dict) else row.reference_point
        earlier = [EarlierStudy.from_plain(one) for one in row.earlier_studies or ()]
        setup = setup_of(self._spec, self._place, Path(row.base_folder), reference, earlier, counted=self._counted)
        machine = StudyMachine(setup, memory, alive_since=alive_since, pick=self._pool.pick, worn=self._pool.worn)
        if row.state == "closed":
            closed = [m.record.id for m in memory.trials if m.record.state == "pruned" and m.record.reason == "closed"]
            machine.reopen(closed)
            if machine.nothing_left() is not None or self._is_still_not_worthwhile(machine, row.stop_reason):
                return None
        return machine

    def _is_still_not_worthwhile(self, machine: StudyMachine, stop_reason: str | None) -> bool:
        if stop_reason != "not_worthwhile":
            return False
        percents = analysis.next_10_usd_percents(load_study(self._store, self._row.name))
        return not machine.setup.limits.is_worthwhile(percents)

    def _make_controller(self, machine: StudyMachine, lease: leases.Lease) -> Controller:
        row = self._store.require(self._row.name)
        return Controller(
            machine=machine,
            pool=self._pool,
            store=self._store,
            load=lambda: load_study(self._store, self._row.name),
            suggester=suggester_of(self._spec, machine.setup.policy, row.sampler_attributes),
            study_id=row.id,
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
