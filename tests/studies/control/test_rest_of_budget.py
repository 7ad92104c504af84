"""The rest of a budget: each gang is asked by itself, free slots take what is expected to fit, and nothing is over."""

import dataclasses
import math
import random
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from search_spaces.space import Space
from studies.gangs.pool_protocol import Event, Measured, Progress
from studies.gangs.simulated import Curve, SimulatedPool
from studies.money.budget import Limits
from studies.records.records import NANO
from studies.search.policy import Decision, History, Policy, StoppingPruner, Thaw
from studies.search.pruners.mo_asha import MoAsha
from studies.search.pruners.none import NoPruner
from tests.support.simulated_study import DAY, OBJECTIVES, SimulatedStudy, check_ledger, checked

UNEVEN = Space.from_dict(
    {
        "learning_rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
        "epoch_seconds": {"type": "float", "low": 2.0, "high": 20.0, "log": True},
    }
)


def uneven_curve(params: Any, _world_size: int) -> Curve:
    """Epochs of one trial differ by some percent, those of two trials up to 1:10."""
    rng = random.Random(repr(sorted(params.items())))
    floor = 0.02 + 0.05 * abs(math.log10(params["learning_rate"]) + 1.5)
    metrics = tuple({"val_error": floor + (0.9 - floor) / (1 + 1.5 * epoch)} for epoch in range(1, 10))
    seconds = tuple(params["epoch_seconds"] * math.exp(rng.gauss(0.0, 0.05)) for _ in range(9))
    return Curve(metrics=metrics, epoch_seconds=seconds)


def curve_of_seconds(*epoch_seconds: float) -> Curve:
    metrics = tuple({"val_error": 1 / (1 + epoch)} for epoch in range(len(epoch_seconds)))
    return Curve(metrics=metrics, epoch_seconds=epoch_seconds)


@pytest.mark.parametrize(
    ("seconds", "slots", "limit"),
    [
        *((25.0, 1, "usd"), (25.0, 4, "hours"), (60.0, 1, "hours"), (60.0, 2, "usd")),
        *((150.0, 2, "hours"), (150.0, 4, "usd")),
    ],
)
def test_a_small_budget_is_spent_and_never_passed(tmp_path: Path, seconds: float, slots: int, limit: str) -> None:
    pruner = MoAsha() if limit == "usd" else MoAsha(variant="promotion")
    study = SimulatedStudy(
        tmp_path, slots=slots, seed=slots + round(seconds), epochs=9, space=UNEVEN, curve=uneven_curve,
        policy=Policy(pruner=pruner), start_seconds=0.2, thaw_seconds=0.2, warm_up_seconds=1.0, faults=DAY,
    )  # fmt: skip
    usd = seconds * slots / 1000
    machine = study.run(Limits(usd=usd) if limit == "usd" else Limits(hours=seconds / 3600))
    record = checked(study)
    assert machine.stop_reason == f"budget_{limit}"
    assert 0.95 <= record.cost_nano_usd / NANO / usd <= 1.0


def test_one_slow_gang_does_not_end_the_others(tmp_path: Path) -> None:
    """The first trial's epoch takes a third of the budget: the second slot goes on, with trial after trial."""
    slow: set[float] = set()

    def curve(params: Any, _world_size: int) -> Curve:
        slow.update([params["learning_rate"]] if not slow else [])
        return curve_of_seconds(*[100.0 if params["learning_rate"] in slow else 5.0] * 9)

    study = SimulatedStudy(tmp_path, slots=2, epochs=9, curve=curve, policy=Policy(pruner=NoPruner()), faults=DAY)
    study.run(Limits(hours=0.1))
    record = study.record()
    epochs = {trial.number: len(trial.epochs) for trial in record.started}
    assert epochs[0] == 3, "300 of 360 seconds; the last 60 are left to quicker ones"
    assert sum(epochs.values()) - epochs[0] == 72 + 12, "one slot trains epochs of 5 s all the time, the other at last"
    assert study.clock == pytest.approx(360.0)


class LatestFirst(StoppingPruner):
    """All trials wait at epoch 1; once three have come so far, the latest one goes on."""

    def rungs(self, epochs: int) -> tuple[int, ...]:
        return (1,)

    def decide(self, history: History, number: int, rung: int) -> Decision:
        return Decision(action="pause", reason="waits")

    def thaw(self, history: History) -> Thaw | None:
        if len(history.paused) < 3:
            return None
        return Thaw(number=max(history.paused), decision=Decision(action="continue", reason="the latest one"))


def test_a_trial_that_does_not_fit_makes_room_for_one_that_does(tmp_path: Path) -> None:
    """30 s are left, and the trial that deserves to go on needs 100: one that the policy had paused gets them."""
    numbers: dict[float, int] = {}

    def curve(params: Any, _world_size: int) -> Curve:
        number = numbers.setdefault(params["learning_rate"], len(numbers))
        metrics = tuple({"val_error": 0.9 - 0.1 * number} for _ in range(9))
        return Curve(metrics=metrics, epoch_seconds=(10.0 if number == 0 else 100.0,) * 9)

    study = SimulatedStudy(
        tmp_path, slots=1, epochs=9, curve=curve, policy=Policy(pruner=LatestFirst()), objectives=OBJECTIVES[:1],
        faults=DAY,
    )  # fmt: skip
    study.run(Limits(hours=240 / 3600))
    record = study.record()
    assert [len(trial.epochs) for trial in record.started] == [4, 1, 1]
    assert not [charge for charge in record.charges if charge.kind == "lost"]
    reasons = [made.reason for made in record.started[0].decisions]
    assert "the rest of the budget has time for an epoch of this trial, but not of the trials ahead of it" in reasons


def test_equal_epochs_that_cannot_fit_are_tried_only_while_more_than_a_twentieth_is_left(tmp_path: Path) -> None:
    little, much = (
        SimulatedStudy(tmp_path / name, slots=1, epochs=9, curve=lambda *_: curve_of_seconds(*[10.0] * 9),
                       policy=Policy(pruner=NoPruner()), faults=DAY)
        for name in ("little", "much")
    )  # fmt: skip
    assert little.run(Limits(hours=1003 / 3600)).stop_reason == "budget_hours"
    assert little.clock == pytest.approx(1000.0), "3 seconds are not worth an epoch that needs 10"
    assert much.run(Limits(hours=89 / 3600)).stop_reason == "budget_hours"
    assert much.clock == pytest.approx(89.0)


def test_a_wide_trial_that_comes_too_late_lets_narrow_ones_pass(tmp_path: Path) -> None:
    """Two of four slots are free, and the next trial needs four: it waits if it can still end an epoch."""
    space = Space.from_dict(
        {
            "learning_rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
            "world_size": {"type": "categorical", "choices": [1, 2, 4]},
        }
    )

    def curve(_params: Any, world_size: int) -> Curve:
        return curve_of_seconds(*[16.0 / world_size] * 9)

    study = SimulatedStudy(tmp_path, slots=4, epochs=9, curve=curve, space=space, faults=DAY, seed=3)
    usd = 0.6
    study.run(Limits(usd=usd))
    record = checked(study)
    assert record.cost_nano_usd / NANO >= 0.95 * usd


class TellingPool(SimulatedPool):
    """Ranks that say how far they are in the midst of each epoch."""

    def _train(self, trial_id: int, gang: Any) -> None:
        super()._train(trial_id, gang)
        seconds = gang.curve.epoch_seconds[gang.epoch]
        progress = Progress(trial_id=trial_id, attempt=gang.spec.attempt, epoch=gang.epoch + 1, fraction=0.5)
        self._at(seconds / 2, trial_id, progress)


def test_the_progress_of_a_first_epoch_tells_that_no_second_one_fits(tmp_path: Path) -> None:
    """Half of it took 20 s, so two take 80 of 70: the last 30 s go to another trial instead of an epoch that is cut."""
    seen: list[float] = []

    def curve(params: Any, _world_size: int) -> Curve:
        seen.extend([] if params["learning_rate"] in seen else [params["learning_rate"]])
        return curve_of_seconds(*[40.0 if params["learning_rate"] == seen[0] else 5.0] * 9)

    study = SimulatedStudy(
        tmp_path, slots=1, epochs=9, curve=curve, pool=TellingPool, policy=Policy(pruner=NoPruner()), faults=DAY
    )
    study.run(Limits(hours=70 / 3600))
    assert [len(trial.epochs) for trial in study.record().started] == [1, 6]
    check_ledger(study)


class SavesNothing(SimulatedPool):
    """Programs of which no epoch can be continued."""

    def wait(self, seconds: float) -> list[Event]:
        events = super().wait(seconds)
        return [
            dataclasses.replace(one, measurement=dataclasses.replace(one.measurement, checkpoint=None))
            if isinstance(one, Measured)
            else one
            for one in events
        ]


def programs(folder: Path, *epoch_seconds: float, slots: int = 1) -> SimulatedStudy:
    """A study of a command that saves nothing, and whose first epoch holds its start."""
    curve = curve_of_seconds(*epoch_seconds)
    study = SimulatedStudy(
        folder, slots=slots, epochs=len(epoch_seconds), curve=lambda *_: curve, policy=Policy(pruner=NoPruner()),
        pool=SavesNothing, faults=DAY,
    )  # fmt: skip
    study.has_start_in_epoch = True
    return study


@pytest.mark.parametrize("interrupted_at", [None, 41.5])
@pytest.mark.parametrize("budget_seconds", [50, 55, 59, 60, 61, 65, 70])
def test_a_program_that_saves_nothing_does_not_start_over_in_vain(tmp_path, budget_seconds, interrupted_at):
    """Each program needs 8 s to start, and 3 s for each of six epochs."""
    study = programs(tmp_path, 11.0, *[3.0] * 5, slots=2)
    before: list[int] = []
    if interrupted_at is not None:
        study.run(Limits(hours=interrupted_at / 3600))
        before = [len(trial.epochs) for trial in study.record().started]
        assert before == [6, 6, 2, 2]
    study.run(Limits(hours=budget_seconds / 3600))
    for trial, epochs in zip_longest(study.record().started, before, fillvalue=0):
        if len(trial.attempts) > 1:
            assert 0 < epochs < len(trial.epochs), "who starts over has time for more than before"


def test_a_quick_program_is_not_stopped_for_its_slow_start(tmp_path: Path) -> None:
    """The first epoch of each trial takes 9 s, the other 59 together less than 2 s: the last trial ends, too."""
    study = programs(tmp_path, 9.0, *[0.03] * 59)
    study.run(Limits(hours=45 / 3600))
    trials = study.record().started
    assert [(trial.state, len(trial.epochs)) for trial in trials] == [("complete", 60)] * 4


@pytest.mark.parametrize("budget_seconds", [56, 58, 60, 63])
def test_an_attempt_that_repeats_epochs_is_not_stopped_within_them(tmp_path: Path, budget_seconds: int) -> None:
    """Epochs of 10 s; the first attempt is lost within epoch 3; the second has time for three."""
    curve = dataclasses.replace(curve_of_seconds(*[10.0] * 9), fails_at={1: (3, "lost")})
    study = SimulatedStudy(
        tmp_path, slots=1, epochs=9, curve=lambda *_: curve, policy=Policy(pruner=NoPruner()), faults=DAY
    )
    study.run(Limits(hours=budget_seconds / 3600))
    assert len(study.record().started[0].epochs) == 3
