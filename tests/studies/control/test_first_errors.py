"""A study whose first trials all fail by an error of the user's code ends; one that works goes on."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from studies.gangs.simulated import Curve, SimulatedPool
from studies.money.budget import Limits
from studies.search.policy import Policy
from studies.search.pruners.none import NoPruner
from studies.spec.sections import FaultsSpec
from tests.support.simulated_study import SimulatedStudy, check_ledger
from trainers.protocol import Failure


class Failing(SimulatedPool):
    """Fails trials within an epoch, by number."""

    fails: ClassVar[Callable[[int], tuple[int, Failure] | None]]

    def start(self, trial_id: int, spec: Any, slots: tuple[int, ...], until: int) -> None:
        plain, failure = self._curve_of, type(self).fails(spec.trial)
        fails_at = None if failure is None else {1: failure}
        self._curve_of = lambda params, size: dataclasses.replace(plain(params, size), fails_at=fails_at)
        super().start(trial_id, spec, slots, until)
        self._curve_of = plain


def study(folder: Path, fails: Callable[[int], tuple[int, Failure] | None], **faults: Any) -> SimulatedStudy:
    pool = type("FailingSo", (Failing,), {"fails": staticmethod(fails)})
    every_trial = Policy(pruner=NoPruner())
    return SimulatedStudy(folder, policy=every_trial, pool=pool, epochs=3, faults=FaultsSpec(**faults))


def test_a_study_ends_after_eight_errors_and_goes_on_when_they_are_mended(tmp_path: Path) -> None:
    mended = False
    simulated = study(tmp_path, lambda _: None if mended else (1, "error"))
    machine = simulated.run(Limits(trials=100))
    record = simulated.record()
    assert (machine.state, machine.stop_reason) == ("closed", "nothing_works")
    assert 8 <= len(record.started) <= 8 + 3, "those that ran beside the eighth one"
    assert "faults.errors_at_start" in str(record.why_ended)
    check_ledger(simulated)
    failed, mended = len(record.started), True
    machine = simulated.run(Limits(trials=30))
    assert (machine.state, machine.stop_reason) == ("closed", "budget_trials")
    states = [trial.state for trial in simulated.record().started]
    assert states == ["failed"] * failed + ["complete"] * (30 - failed)


def test_a_task_that_never_reports_the_objective_works_as_little(tmp_path: Path) -> None:
    simulated = study(tmp_path, lambda _: None)
    plain = simulated.curve

    def misspelt(params: Any, world_size: int) -> Curve:
        curve = plain(params, world_size)
        return dataclasses.replace(curve, metrics=tuple({"val_eror": 0.5} for _ in curve.metrics))

    simulated.curve = misspelt
    machine = simulated.run(Limits(trials=40))
    assert machine.stop_reason == "nothing_works"
    assert 8 <= len(simulated.record().started) <= 8 + 3
    check_ledger(simulated)


@pytest.mark.parametrize(
    ("fails", "most"),
    [
        (lambda number: None if number == 2 else (1, "error"), 8),  # one shows that the code works
        (lambda _: (2, "error"), 8),  # each trains an epoch
        (lambda _: (1, "out_of_memory"), 8),  # another configuration may fit
        (lambda _: (1, "error"), None),
    ],
)
def test_a_study_that_may_work_goes_on(tmp_path, fails, most):
    simulated = study(tmp_path, fails, errors_at_start=most)
    machine = simulated.run(Limits(trials=15))
    assert machine.stop_reason == "budget_trials"
    assert len(simulated.record().started) == 15


def test_nothing_is_started_while_a_slow_trial_may_still_show_that_the_code_works(tmp_path: Path) -> None:
    class Slow(Failing):
        fails = staticmethod(lambda number: None if number == 0 else (1, "error"))

        def start(self, trial_id: int, spec: Any, slots: tuple[int, ...], until: int) -> None:
            usual = self._curve_of
            if spec.trial == 0:
                self._curve_of = lambda params, size: dataclasses.replace(
                    usual(params, size), epoch_seconds=(900.0,) * 3
                )
            super().start(trial_id, spec, slots, until)
            self._curve_of = usual

    simulated = SimulatedStudy(tmp_path, policy=Policy(pruner=NoPruner()), pool=Slow, epochs=3)
    machine = simulated.run(Limits(trials=20))
    trials = simulated.record().started
    assert machine.stop_reason == "budget_trials"
    begun = [trial.started_at.timestamp() for trial in trials if trial.started_at is not None]
    assert len(begun) == 20
    assert min(begun[12:]) - begun[0] > 800, "until the first trial had trained an epoch"
