"""Studies on the simulated pool, for tests: the real controller, store and lease, virtual time, made-up curves."""

import math
import os
import random
import socket
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from search_spaces.space import Space
from studies.control.controller import Controller
from studies.control.machine.confirmation import ConfirmingMachine
from studies.control.machine.state import StudyMachine
from studies.control.machine.study_setup import (
    FREE_USD_PER_SLOT_HOUR,
    DrainGang,
    EndGang,
    Grant,
    KillGang,
    StartGang,
    Step,
    StudySetup,
    Suggest,
)
from studies.gangs.pool_protocol import Event, GangPool, Measured, TrialQueued
from studies.gangs.simulated import Curve, SimulatedPool
from studies.money.budget import Limits
from studies.records.records import ChargeKind, Constraint, Objective, ResumeState, StudyRecord
from studies.results import analysis
from studies.results.extrapolation import milestones
from studies.search.model.curve_model import CurveModel
from studies.search.model.problem import Problem
from studies.search.observations import decision_rungs
from studies.search.policy import Policy
from studies.search.pruners.mo_asha import MoAsha
from studies.search.pruners.none import NoPruner
from studies.search.samplers.model_suggester import ModelSuggester
from studies.search.samplers.optuna_suggester import OptunaSuggester
from studies.search.samplers.suggester import FirstTrials, Suggester
from studies.spec.sections import FaultsSpec
from studies.storage.leases import lease as leases
from studies.storage.leases.dead_pools import settle_dead_pools
from studies.storage.reading.reader import load_resume_state, load_study
from studies.storage.schema import tables as t
from studies.storage.study_store import Store
from tests.support.databases import empty_database
from trainers.protocol import TrialSpec

SPACE = Space.from_dict(
    {
        "learning_rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
        "width": {"type": "int", "low": 8, "high": 256, "log": True},
    }
)
OBJECTIVES = (Objective(metric="val_error"), Objective(metric="cost_usd"))
EVER = 1e11
DAY = FaultsSpec(start_seconds=86400.0, silence_seconds=86400.0)

Params = Mapping[str, Any]
CurveOf = Callable[[Params, int], Curve]


def smooth_curve(params: Params, world_size: int, *, epochs: int = 27, equal_epochs: bool = False) -> Curve:
    """Error falls as 1 / epoch towards a floor that depends on the parameters; wider costs more.

    Durations are whole 512ths of a second, so that sums of them are exact whatever the clock shows.
    """
    rate, width = float(params["learning_rate"]), float(params.get("width", 32))
    floor = 0.02 + 0.05 * abs(math.log10(rate) + 1.5) + 0.2 / width
    seconds = 1.0 if equal_epochs else round((0.5 + width / 128) / world_size * 512) / 512
    metrics = tuple({"val_error": floor + (0.9 - floor) / (1 + 1.5 * epoch)} for epoch in range(1, epochs + 1))
    return Curve(metrics=metrics, epoch_seconds=(seconds,) * epochs)


def noisy_curve(params: Params, world_size: int, *, epochs: int = 27, seed: int = 0) -> Curve:
    """Curves that cross, and epochs that take a third to, now and then, four times as long as expected."""
    smooth = smooth_curve(params, world_size, epochs=epochs)
    rng = random.Random(f"{seed} {sorted(params.items())}")
    metrics = tuple({"val_error": m["val_error"] * math.exp(rng.gauss(0.0, 0.2))} for m in smooth.metrics)
    seconds = tuple(
        s * (rng.uniform(0.3, 1.5) if rng.random() < 0.9 else rng.uniform(1.5, 4.0)) for s in smooth.epoch_seconds
    )
    return Curve(metrics=metrics, epoch_seconds=seconds)


class Killed(BaseException):
    """What kill -9 looks like from inside."""


class DyingStore(Store):
    """A store whose controller dies at one of its commits: before it, or right after it."""

    alive_for: int | None = None
    after_commit = False

    def commit(self, study_id: int, lease_token: str | None, changes: Any, *, commit_id: str | None = None) -> None:
        if self.alive_for is None:
            super().commit(study_id, lease_token, changes, commit_id=commit_id)
            return
        self.alive_for -= 1
        if self.alive_for < 0:
            if self.after_commit:
                super().commit(study_id, lease_token, changes, commit_id=commit_id)
            self.alive_for = None
            raise Killed
        super().commit(study_id, lease_token, changes, commit_id=commit_id)


class FilePool(SimulatedPool):
    """Writes a small file for every checkpoint that a gang reports, and wants to see the one it goes on from."""

    def wait(self, seconds: float) -> list[Event]:
        events = super().wait(seconds)
        for event in events:
            if isinstance(event, Measured) and event.measurement.checkpoint is not None:
                path = Path(event.measurement.checkpoint)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"epoch {event.measurement.epoch}")
        return events

    def start(self, trial_id: int, spec: Any, slots: tuple[int, ...], until: int) -> None:
        assert spec.resume_from is None or Path(spec.resume_from).exists(), f"{spec.resume_from} was deleted"
        super().start(trial_id, spec, slots, until)


class HoldingPool(SimulatedPool):
    """Hands over every third epoch, and those before it then."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.held: list[tuple[float, Measured]] = []

    def wait(self, seconds: float) -> list[Event]:
        events: list[Event] = []
        for event in super().wait(seconds):
            if not isinstance(event, Measured):
                events.append(event)
                continue
            self.held.append((self.now(), event))
            if event.measurement.epoch % 3 == 0:
                events += [
                    replace(one, measurement=replace(one.measurement, age_seconds=self.now() - at))
                    for at, one in self.held
                ]
                self.held = []
        return events


def spec_mapping(limits: Limits, epochs: int) -> dict[str, object]:
    return {
        "study": "simulated", "task": "digits", "mlflow": "off", "training": {"epochs": epochs},
        "objectives": [{"metric": o.metric, "direction": o.direction} for o in OBJECTIVES],
        "budget": {"usd": limits.usd, "hours": limits.hours, "trials": limits.trials}, "space": SPACE.to_dict(),
    }  # fmt: skip


class SimulatedStudy:
    """One study in one store, driven as often as a test wishes."""

    def __init__(
        self,
        folder: Path,
        *,
        policy: Policy | None = None,
        sampler: str = "random",
        epochs: int = 27,
        slots: int = 4,
        price: float = 3.6,
        curve: CurveOf | None = None,
        seed: int = 0,
        space: Space = SPACE,
        objectives: tuple[Objective, ...] = OBJECTIVES,
        constraints: tuple[Constraint, ...] = (),
        pool: type[SimulatedPool] = SimulatedPool,
        checkpoint_folder: str = "/nowhere",
        faults: FaultsSpec | None = None,
        baselines: tuple[Params, ...] = (),
        url: str | None = None,
        **times: float,
    ) -> None:
        folder.mkdir(exist_ok=True)
        if url is None:
            (folder / "study.db").write_bytes(empty_database())
        self.store = DyingStore(url or f"sqlite:///{folder}/study.db")
        if url is None:  # no test pulls the plug of the machine
            sa.event.listen(self.store.engine, "connect", lambda raw, _: raw.execute("PRAGMA synchronous=OFF"))
            self.store.engine.dispose()
        self.policy = policy or Policy(pruner=MoAsha())
        self.sampler, self.epochs, self.slots, self.price, self.seed = sampler, epochs, slots, price, seed
        self.space, self.objectives, self.constraints = space, objectives, constraints
        self.curve = curve or (lambda params, world_size: smooth_curve(params, world_size, epochs=epochs))
        self.make_pool, self.times, self.baselines = pool, times, baselines
        self.checkpoint_folder, self.faults = checkpoint_folder, faults or FaultsSpec()
        self.clock = 0.0
        self.study_id = 0
        self.has_start_in_epoch = False
        self.on_commit: Callable[[StudyMachine], None] | None = None
        self.most_paused: int | None = None
        self.most_checkpoint_gib: float | None = None
        self.machine: StudyMachine

    def run(self, limits: Limits, *, before: Callable[[Controller], None] | None = None) -> StudyMachine:
        """Launch, or go on with other limits."""
        spec = self._spec(limits)
        if not self.study_id:
            self.study_id = self.store.create_study("simulated", spec, ".", self.clock)
        self.store.change_spec(self.study_id, spec)
        lease = self._take_lease()
        settle_dead_pools(self.store, lease)
        pool = self.make_pool(self.curve, opened_at=self.clock, **self.times)
        self.machine = self._machine(limits, lease, pool)
        controller = self._controller(pool, lease)
        if before:
            before(controller)
        try:
            controller.run()
        except Killed:
            self._beat(lease, pool.now())
            raise
        else:
            with self.store.engine.begin() as connection:
                leases.release_row(connection, lease.id, pool.now())
        finally:
            self.clock = pool.now()
        return self.machine

    def run_until_killed(self, limits: Limits, commits: int, *, after_commit: bool = True) -> bool:
        """Whether kill -9 came after so many commits, before the study was over. Nothing is beaten or released."""
        self.store.alive_for, self.store.after_commit = commits, after_commit
        try:
            self.run(limits)
        except Killed:
            self.clock += 1000.0
            return True
        finally:
            self.store.alive_for = None
        return False

    def record(self) -> StudyRecord:
        return load_study(self.store, "simulated")

    def rows(self, table: sa.Table) -> list[Any]:
        with self.store.engine.connect() as connection:
            return list(connection.execute(sa.select(table).order_by(table.c.id)).all())

    def committed_money(self) -> tuple[int, int]:
        """Nano-dollars of the ledger and reserved ones, as anybody can read them now."""
        with self.store.snapshot() as connection:
            spent = connection.execute(sa.select(sa.func.coalesce(sa.func.sum(t.charges.c.cost_nano_usd), 0)))
            reserved = connection.execute(sa.select(t.studies.c.reserved_nano_usd))
            return int(spent.scalar_one()), int(reserved.scalar_one())

    def _spec(self, limits: Limits) -> dict[str, Any]:
        objectives = [{"metric": o.metric, "direction": o.direction} for o in self.objectives]
        constraints = [{"metric": c.metric, "min": c.min, "max": c.max} for c in self.constraints]
        changed: dict[str, Any] = {
            "objectives": objectives, "constraints": constraints, "space": self.space.to_dict(),
            "baselines": [{"name": f"usual {place}", "params": one} for place, one in enumerate(self.baselines)],
        }  # fmt: skip
        return {**spec_mapping(limits, self.epochs), **changed}

    def _take_lease(self) -> leases.Lease:
        """As `leases.acquire` does, in virtual time: a dead holder's lease ends with its last heartbeat."""
        with self.store.engine.begin() as connection:
            dead = sa.select(t.leases).where(t.leases.c.released_at.is_(None))
            for row in connection.execute(dead).all():
                leases.release_row(connection, row.id, row.heartbeat_at)
            row = {
                "study_id": self.study_id, "holder": uuid.uuid4().hex, "host": socket.gethostname(), "pid": os.getpid(),
                "process_started_at": 0.0, "acquired_at": self.clock, "heartbeat_at": self.clock, "expires_at": EVER,
                "stop_requested": False, "pool_slots": 0, "usd_per_slot_hour": 0.0,
            }  # fmt: skip
            lease_id = connection.execute(sa.insert(t.leases).returning(t.leases.c.id), row).scalar_one()
        return leases.Lease(id=lease_id, token=str(row["holder"]), study_id=self.study_id, acquired_at=self.clock)

    def _beat(self, lease: leases.Lease, now: float) -> None:
        with self.store.engine.begin() as connection:
            connection.execute(sa.update(t.leases).where(t.leases.c.id == lease.id).values(heartbeat_at=now))

    def _machine(self, limits: Limits, lease: leases.Lease, pool: SimulatedPool) -> StudyMachine:
        setup = self._setup(limits)
        resume_state = load_resume_state(self.store, self.study_id, before_lease=lease.id, looked_at=setup.looked_at)
        machine = StudyMachine(setup, resume_state, alive_since=self.clock, pick=pool.pick, worn=pool.worn)
        if closed := resume_state.closed_trial_ids:
            machine.reopen(closed)
        return machine

    def _controller(self, pool: SimulatedPool, lease: leases.Lease) -> Controller:
        return Controller(
            machine=self.machine, pool=pool, store=self.store, suggester=self._suggester(), study_id=self.study_id,
            lease_token=lease.token, background=False, on_commit=self.on_commit,
        )  # fmt: skip

    def _suggester(self) -> Suggester:
        sampler = self._sampler()
        return FirstTrials(self.baselines, space=self.space, seed=self.seed, sampler=sampler)

    def _sampler(self) -> Suggester:
        if self.sampler == "cokriging":
            return ModelSuggester(CurveModel(self.problem), seed=self.seed)
        return OptunaSuggester(
            space=self.space, directions=tuple(o.direction for o in self.objectives), sampler=self.sampler,
            seed=self.seed, study_attributes=self.store.require("simulated").sampler_attributes,
        )  # fmt: skip

    @property
    def problem(self) -> Problem:
        """What the model of `cokriging` and `break_even` has to know of this study."""
        rungs = decision_rungs(self.epochs, least=1)
        return Problem(
            space=self.space, objectives=self.objectives, constraints=self.constraints, epochs=self.epochs,
            milestones=milestones(self.epochs, 3, rungs), usd_per_slot_hour=self.price or FREE_USD_PER_SLOT_HOUR,
        )  # fmt: skip

    def _setup(self, limits: Limits) -> StudySetup:
        rungs = self.policy.pruner.rungs(self.epochs)
        reference = self.store.require("simulated").reference_point
        return StudySetup(
            study="simulated", objectives=self.objectives, task="digits", task_options={},
            has_start_in_epoch=self.has_start_in_epoch,
            training={"epochs": self.epochs}, epochs=self.epochs, milestones=milestones(self.epochs, 3, rungs),
            policy=self.policy, limits=limits, slots=self.slots, usd_per_slot_hour=self.price, seed=self.seed,
            checkpoint_folder=self.checkpoint_folder, faults=self.faults, reference_point=reference,
            cut_seconds=0.0,
            most_paused=self.most_paused, most_checkpoint_gib=self.most_checkpoint_gib, constraints=self.constraints,
            watched=tuple(range(1, self.epochs + 1)), baselines=self.baselines, space=self.space,
        )  # fmt: skip


def essence(record: StudyRecord) -> dict[str, Any]:
    """All of a study that its owner cares for, but the wall clock: equal studies have equal ones.

    Durations are rounded to nanoseconds: a difference of two moments is not exact when the pool was opened at another.
    """

    def rounded(metrics: Mapping[str, float]) -> dict[str, float]:
        return {**metrics, "wall_seconds": round(metrics["wall_seconds"], 9)}

    trials = {
        trial.number: {
            "params": dict(trial.params),
            "state": (trial.state, trial.failure, trial.reason),
            "decisions": [(d.epoch, d.action, d.reason, dict(d.numbers)) for d in trial.decisions],
            "epochs": [
                (e.epoch, rounded(e.metrics), round(e.wall_seconds, 9), e.cost_nano_usd, e.checkpoint, e.is_milestone)
                for e in trial.epochs
            ],
            "paid": trial.paid_nano_usd,
        }
        for trial in record.started
    }
    front = [(p.trial, dict(p.values)) for p in analysis.front(record)]
    archive = [(p.trial, p.epoch, dict(p.values), p.checkpoint) for p in analysis.archive(record)]
    return {"trials": trials, "front": front, "archive": archive}


def check_ledger(study: SimulatedStudy) -> None:
    """Every slot-second of every pool is in exactly one charge, and all sums agree."""
    record, charges, trials = study.record(), study.rows(t.charges), study.rows(t.trials)
    for lease in study.rows(t.leases):
        mine = [c for c in charges if c.lease_id == lease.id]
        if lease.pool_opened_at is None:
            assert not mine
            continue
        owed = lease.pool_slots * (lease.pool_closed_at - lease.pool_opened_at)
        assert math.isclose(sum(c.slots * c.seconds for c in mine), owed, rel_tol=0, abs_tol=1e-6)
    assert all(c.lease_id is not None and c.kind in {"start", "train", "lost", "idle"} for c in charges)
    assert all(type(c.cost_nano_usd) is int and c.cost_nano_usd >= 0 and c.seconds > 0 for c in charges)
    assert all((c.kind == "idle") == (c.trial_id is None) or c.kind == "lost" for c in charges)
    assert record.cost_nano_usd == sum(c.cost_nano_usd for c in charges)
    for trial in trials:
        if trial.number is None and trial.state == "pruned":  # cancelled in the queue
            assert not any(c.trial_id == trial.id for c in charges)
            continue
        own = sum(c.cost_nano_usd for c in charges if c.trial_id == trial.id and c.kind in {"start", "train"})
        shown = next(one for one in record.trials if one.id == trial.id)
        assert shown.paid_nano_usd == own
        if shown.epochs and shown.failure is None:
            assert shown.epochs[-1].metrics["cost_usd"] <= own / 1e9 + 1e-12


def check_epochs(record: StudyRecord) -> None:
    """Every epoch once, without holes; numbers without gaps; nobody left running."""
    assert [trial.number for trial in record.started] == list(range(len(record.started)))
    for trial in record.trials:
        assert [e.epoch for e in trial.epochs] == list(range(1, len(trial.epochs) + 1))
        assert trial.state != "running"
        assert all(a.outcome != "running" for a in trial.attempts)
        assert (trial.failure is not None) == (trial.state == "failed")


def checked(study: SimulatedStudy) -> StudyRecord:
    """Check the epochs and the ledger of a study; returns its record."""
    record = study.record()
    check_epochs(record)
    check_ledger(study)
    return record


def drive(machine: StudyMachine, pool: SimulatedPool, params_of: Callable[[int], Params]) -> list[Step]:
    """Carry out a machine's commands on a pool until it is finished; nothing is written, no clock ticks."""
    steps = [machine.begin(pool.now())]
    pool.open(machine.setup.slots)
    steps.append(machine.pool_opened(pool.now()))
    _carry_out(steps, pool, params_of)
    while not machine.finished:
        steps.append(machine.handle(pool.wait(EVER), pool.now()))
        _carry_out(steps[-1:], pool, params_of)
    return steps


def _carry_out(steps: Sequence[Step], pool: SimulatedPool, params_of: Callable[[int], Params]) -> None:
    for command in (command for step in steps for command in step.commands):
        match command:
            case StartGang():
                pool.start(command.trial_id, command.spec, command.slots, command.until)
            case Grant():
                pool.grant(command.trial_id, command.attempt, command.until)
            case DrainGang():
                pool.drain(command.trial_id, command.attempt)
            case EndGang():
                pool.end(command.trial_id, command.attempt, command.retire)
            case KillGang():
                pool.kill(command.trial_id, command.attempt)
            case Suggest():
                queued = TrialQueued(
                    trial_id=command.number + 1, params=params_of(command.number), origin="sampler", world_size=1
                )
                pool.post(queued)
            case _:
                pass


def bare_machine(policy: Policy, pool: SimulatedPool, limits: Limits, *, epochs: int, slots: int = 4,
                 objectives: tuple[Objective, ...] = OBJECTIVES, price: float = 3.6) -> StudyMachine:  # fmt: skip
    """A state machine for `drive`."""
    setup = StudySetup(
        study="simulated", objectives=objectives, task="digits", task_options={}, training={"epochs": epochs},
        epochs=epochs, milestones=milestones(epochs, 3, policy.pruner.rungs(epochs)), policy=policy, limits=limits,
        slots=slots, usd_per_slot_hour=price, seed=0, checkpoint_folder="/nowhere", faults=DAY,
        cut_seconds=0.0,
    )  # fmt: skip
    return StudyMachine(setup, ResumeState(), alive_since=pool.now(), pick=pool.pick, worn=pool.worn)


def confirming_machine(
    pool: GangPool,
    *specs: TrialSpec,
    slots: int = 2,
    faults: FaultsSpec | None = None,
    autoscale: bool = False,
    kind: ChargeKind = "confirm",
    **limits: Any,
) -> ConfirmingMachine:
    """A machine that trains specs again, for 36 dollars per slot and hour; each confirms the trial of its number."""
    setup = StudySetup(
        study="simulated", objectives=OBJECTIVES, task="digits", task_options={}, training={}, epochs=1, milestones=(),
        policy=Policy(pruner=NoPruner()), limits=Limits(), slots=slots, usd_per_slot_hour=36.0, seed=0,
        checkpoint_folder="/nowhere", faults=faults or FaultsSpec(), autoscale=autoscale,
    )  # fmt: skip
    ids = {spec.trial: spec.trial for spec in specs}
    return ConfirmingMachine(setup, specs, ids, pool=pool, kind=kind, **limits)
