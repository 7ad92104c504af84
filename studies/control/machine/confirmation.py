"""Repeats trainings for `automl confirm`, with the search's state machine.

It treats the trainings as trials that were paused before their first step. Only costs and measurements are stored, and
no checkpoint for resuming: after a fault, a training starts over.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from search_spaces.messages import RunError, StoppedError, listed
from studies.control.controller import Controller, Rows
from studies.control.machine import trial_endings
from studies.control.machine.state import StudyMachine
from studies.control.machine.study_setup import Command, DrainGang, StartGang, Step, StudySetup
from studies.gangs.pool_protocol import DrainRequested, Event, GangFailed, GangPool, Measured, PoolError
from studies.money.budget import Limits
from studies.records.records import NANO, ChargeKind, ResumeState, StoredTrial, TrialRecord
from studies.storage.writing.changes import (
    Change,
    Charged,
    Confirmed,
    EpochMeasured,
    PoolChanged,
    PoolRateChanged,
    StudyChanged,
    TrialChanged,
)
from trainers.protocol import CUMULATIVE_METRICS, TEST_PREFIX, TEST_SAMPLES, TrialSpec

PATIENCE_SECONDS = 60.0  # seconds without any training to wait for devices lost with their node
AUTOSCALER_PATIENCE_SECONDS = 1800.0
"""Seconds as in `PATIENCE_SECONDS` with an autoscaler, which has to start a machine."""
RESERVE_SECONDS = 2.0  # seconds before the money is used up at which trainings are cut


class SpentError(RunError):
    """The money is used up; finished trainings are kept. Allow more money, or train fewer models."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Retrained:
    """A finished or failed training."""

    spec: TrialSpec
    points: tuple[Confirmed, ...]  # measurements at the epochs in the spec's `test_at`; only the cost after a failure
    failure: str = ""

    def at(self, epoch: int) -> Confirmed:
        """Return the measurement at an epoch in `test_at`."""
        return next(point for point in self.points if point.epoch == epoch)


@dataclass(kw_only=True, slots=True)
class _Training:
    spec: TrialSpec
    epochs: list[EpochMeasured] = field(default_factory=list)
    files: dict[int, str] = field(default_factory=dict)
    answers: Mapping[str, Any] = field(default_factory=dict)
    cost_nano_usd: int = 0
    seconds: float = 0.0


class ConfirmingMachine(StudyMachine):
    """Runs trainings for at most `most_nano_usd` and `most_seconds`.

    Raises PoolError if a training needs more ranks than slots.
    """

    def __init__(
        self,
        setup: StudySetup,
        specs: Sequence[TrialSpec],
        trial_ids: Mapping[int, int],
        *,
        pool: GangPool,
        most_nano_usd: int | None = None,
        most_seconds: float = math.inf,
        kind: ChargeKind = "confirm",
    ) -> None:
        widest = max((spec.world_size for spec in specs), default=0)
        if widest > setup.slots:
            raise PoolError(
                f"a training needs {widest} slots, one for each rank, but the study has only {setup.slots}. Use "
                "machines with more slots"
            )
        trials = tuple(
            StoredTrial(
                record=TrialRecord(id=n, number=n, state="paused", params=spec.params, world_size=spec.world_size),
                paused_by="drain", wall_seconds=0.0, slot_seconds=0.0, sampler_attributes={},
            )
            for n, spec in enumerate(specs)
        )  # fmt: skip
        setup = replace(
            setup,
            objectives=(), constraints=(), reference_point={}, milestones=(), watched=(), baselines=(),
            epochs=max((max(spec.test_at) for spec in specs), default=1),
            limits=Limits(
                usd=None if most_nano_usd is None else most_nano_usd / NANO,
                hours=None if most_seconds == math.inf else most_seconds / 3600,
                trials=0,
            ),
            most_paused=None, most_checkpoint_gib=None, on_lost_node="wait", cut_seconds=RESERVE_SECONDS,
        )  # fmt: skip
        self.done: dict[int, Retrained] = {}
        self.error = ""
        self._trainings = [_Training(spec=spec) for spec in specs]
        self._trial_ids, self._kind = trial_ids, kind
        self._waits_since = math.inf
        super().__init__(
            setup, ResumeState(trials=trials), alive_since=pool.now(), pick=pool.pick, worn=pool.worn, spare=pool.spare
        )

    def pool_refused(self, message: str, now: float) -> Step:  # noqa: ARG002 - as of a study
        """Raise `PoolError`."""
        raise PoolError(message)

    def handle(self, events: Sequence[Event], now: float) -> Step:
        """Handle events; end the trainings if lost devices do not return in time."""
        return super().handle([*events, *self._gives_up(now)], now)

    def _take_in(self, event: Event) -> None:
        if isinstance(event, DrainRequested):  # a stopped training starts over, so its epoch is useless
            for trial in self.running:
                trial_endings.cut(self._live, trial, "given up")
        elif isinstance(event, GangFailed) and event.failure == "storage":  # other trainings may need no disk space
            event = replace(event, failure="error")
        elif isinstance(event, Measured) and self._live.registry.held_by(event.trial_id, event.attempt):
            event = self._without_file(event)
        super()._take_in(event)

    def _without_file(self, event: Measured) -> Measured:
        training, epoch = self._trainings[event.trial_id], event.measurement
        if epoch.checkpoint is not None:
            training.files[epoch.epoch] = epoch.checkpoint
        training.answers = epoch.answers
        is_over = epoch.complete or epoch.epoch >= max(training.spec.test_at)
        return replace(event, measurement=replace(epoch, checkpoint=None, complete=is_over))

    def _fill_slots(self) -> bool:
        super()._fill_slots()
        return False  # waiting trainings can use every slot, once enough slots are free

    def _gives_up(self, now: float) -> list[Event]:
        """Return events that end a long wait for lost devices, since other slots cost money."""
        live = self._live
        waiting = [self._trainings[trial.id].spec for trial in live.registry.in_state("paused")]
        needed = min((spec.world_size for spec in waiting), default=0)
        left = live.slots - len(live.missing)
        if self.running or needed <= left:
            self._waits_since = math.inf
            return []
        self._waits_since = min(self._waits_since, now)
        if now < self._waits_since + (AUTOSCALER_PATIENCE_SECONDS if self.setup.autoscale else PATIENCE_SECONDS):
            return []
        brings = "the cluster's autoscaler brings no more nodes"
        trials = listed(str(number) for number in sorted({spec.trial for spec in waiting}))
        message = (
            f"{brings if self.setup.autoscale else 'a node of the cluster was lost'}: {left} of "
            f"{live.slots} slots have devices, and {needed} are needed (trials left: {trials}); finished trainings "
            f"are charged and kept; run `automl confirm` with these trials again once the cluster has the devices"
        )
        return [DrainRequested(reason="error", message=message)]

    def _step(self) -> Step:
        step = super()._step()
        return Step(
            changes=tuple(row for change in step.changes for row in self._rows(change)),
            commands=tuple(self._order(one) for one in step.commands if not isinstance(one, DrainGang)),
        )

    def _order(self, command: Command) -> Command:
        if not isinstance(command, StartGang):
            return command
        training = self._trainings[command.trial_id]
        training.spec = replace(training.spec, attempt=command.spec.attempt)
        return replace(command, spec=training.spec, until=max(training.spec.test_at))

    def _rows(self, change: Change) -> Iterator[Change]:
        """Yield costs, measurements and the pool's state, but no changes of trials."""
        match change:
            case Charged():
                if change.trial_id is not None:
                    self._trainings[change.trial_id].cost_nano_usd += change.cost_nano_usd
                    self._trainings[change.trial_id].seconds += change.seconds
                yield replace(change, kind=self._kind, trial_id=None, attempt=None)
            case PoolChanged() | PoolRateChanged():
                yield change
            case EpochMeasured():
                self._trainings[change.trial_id].epochs.append(change)
            case TrialChanged(trial_id=number, columns={"state": "complete"}):
                yield from self._end(number)
            case TrialChanged(trial_id=number, columns={"state": "failed", "error": message, "failure": failure}):
                self._end(number, failure=message or str(failure))
            case StudyChanged(columns={"error": message}):
                self.error = message or self.error

    def _end(self, number: int, *, failure: str = "") -> tuple[Confirmed, ...]:
        training = self._trainings[number]
        points = tuple(self._point(training, epoch, failed=bool(failure)) for epoch in training.spec.test_at)
        self.done[number] = Retrained(spec=training.spec, points=points, failure=failure)
        return points

    def _point(self, training: _Training, epoch: int, *, failed: bool) -> Confirmed:
        spec, seconds, cost = training.spec, training.seconds, training.cost_nano_usd
        metrics: dict[str, float] = {}
        if not failed:
            last = training.epochs[min(epoch, len(training.epochs)) - 1]
            metrics = {name: value for name, value in last.metrics.items() if name not in CUMULATIVE_METRICS}
            if self._kind == "test":  # the epoch's other metrics are the search's
                metrics = {name: one for name, one in metrics.items() if name.startswith((TEST_PREFIX, TEST_SAMPLES))}
            seconds, cost = last.metrics["wall_seconds"], round(last.metrics["cost_usd"] * NANO)
        epochs = 0 if failed or self._kind == "test" else last.epoch
        return Confirmed(
            trial_id=self._trial_ids[spec.trial],
            seed=spec.seed,
            epoch=epoch,
            epochs=epochs,
            metrics=metrics,
            wall_seconds=seconds,
            cost_nano_usd=cost,
            checkpoint=training.files.get(epochs),
            answers=None if failed else dict(training.answers) or None,
            at=time.time(),
        )


def train_again(
    machine: ConfirmingMachine,
    pool: GangPool,
    store: Rows,
    *,
    study_id: int,
    lease_token: str | None,
    on_end: Callable[[Retrained], None] = lambda _: None,
    warm: tuple[int, ...] | None = None,
) -> list[Retrained]:
    """Run the machine's trainings on a new pool, or on `warm`, the free slots of an open pool, which stays open.

    Returns finished and failed trainings.

    Raises:
        PoolError: Slots are missing or were taken away, or the remaining trainings need more ranks than are left.
        StoppedError: A signal or `automl stop` ended the trainings.
        SpentError: The money for the trainings is used up.
        LeaseLostError: A controller has taken over the study.
    """
    told: set[int] = set()

    def tell(_machine: StudyMachine) -> None:
        for number in [one for one in machine.done if one not in told]:
            told.add(number)
            on_end(machine.done[number])

    controller = Controller(
        machine=machine, pool=pool, store=store, suggester=None, study_id=study_id, lease_token=lease_token,
        background=False, on_commit=tell, keeps_pool=warm is not None, warm=warm,
    )  # fmt: skip
    controller.run()
    tell(machine)
    match machine.stop_reason:
        case "interrupted" | "stopped" as reason:
            message = machine.error or "stopped before all trainings ended; finished trainings are charged and kept"
            raise StoppedError(message, by_command=reason == "stopped")
        case "error":
            raise PoolError(machine.error or "the slots were taken away before all trainings ended")
        case "budget_usd" | "budget_hours":
            over = f"{len(machine.done)} of {len(machine.trials)} trainings have ended"
            raise SpentError(f"the money for the confirmation is used up: {over}. Give more money")
    return [machine.done[number] for number in sorted(machine.done)]
