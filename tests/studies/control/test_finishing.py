"""What is kept of the budget: leaders that were cut short are trained to their last epoch, and nothing is overspent."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from search_spaces.space import Space
from studies.gangs.pool_protocol import PriceSet
from studies.gangs.simulated import Curve
from studies.money.budget import Limits
from studies.records.records import NANO, Objective, StudyRecord, TrialRecord
from studies.results.recommendation import recommended
from studies.search.policy import Decision, History, Policy, StoppingPruner
from studies.search.pruners.mo_asha import MoAsha
from studies.search.pruners.none import NoPruner
from tests.support.simulated_study import SPACE, SimulatedStudy, check_ledger, checked, noisy_curve, smooth_curve

EPOCHS, RUNG = 9, 3
ERROR = (Objective(metric="val_error"),)


class Pausing(StoppingPruner):
    """Pauses every trial at its first rung, and never goes on with one."""

    def rungs(self, epochs: int) -> tuple[int, ...]:
        return (RUNG,)

    def decide(self, history: History, number: int, rung: int) -> Decision:
        return Decision(action="pause", reason="waits")


class Stopping(Pausing):
    """Stops every trial at its first rung."""

    def decide(self, history: History, number: int, rung: int) -> Decision:
        return Decision(action="stop", reason="is over")


def study_with(tmp_path: Path, **options: Any) -> SimulatedStudy:
    given = {
        "policy": Policy(pruner=Pausing()), "epochs": EPOCHS, "slots": 2, "objectives": ERROR, "price": 36.0,
        "curve": lambda params, size: smooth_curve(params, size, epochs=EPOCHS, equal_epochs=True),
    }  # fmt: skip
    return SimulatedStudy(tmp_path, **given | options)


def reasons(record: StudyRecord) -> list[str]:
    return [one.reason for trial in record.started for one in trial.decisions if one.reason.startswith("finish: ")]


def complete(record: StudyRecord) -> list[TrialRecord]:
    return [trial for trial in record.started if trial.state == "complete"]


def best_at_rung(record: StudyRecord) -> TrialRecord:
    return min(record.started, key=lambda trial: trial.epochs[min(RUNG, len(trial.epochs)) - 1].metrics["val_error"])


@pytest.mark.medium
@pytest.mark.parametrize(("slots", "limit"), [(1, "hours"), (3, "usd")])
def test_the_leader_is_finished_before_the_budget_ends(tmp_path: Path, slots: int, limit: str) -> None:
    seconds = 120.0
    limits = {"usd": {"usd": slots * seconds * 0.01}, "hours": {"hours": seconds / 3600}}[limit]
    study = study_with(tmp_path, slots=slots)
    machine = study.run(Limits(finish=0.1, **limits))
    record = checked(study)
    assert (machine.state, machine.overshoot_nano_usd) == ("closed", 0)
    assert record.cost_nano_usd <= slots * seconds * 0.01 * NANO
    assert best_at_rung(record).state == "complete"
    found = recommended(record)
    assert found is None or found.point.state == "complete"
    assert f"finish: a leader that was cut short at epoch {RUNG} of {EPOCHS}; it must start now" in reasons(record)
    spent = sum(len(trial.epochs) - RUNG for trial in complete(record))
    assert spent <= 0.15 * sum(len(trial.epochs) for trial in record.started), "what is kept, and not more"


@pytest.mark.medium
def test_the_other_slots_go_on_searching(tmp_path: Path) -> None:
    """A last phase that is for leaders alone would pay for slots that wait."""
    study = study_with(tmp_path, slots=4)
    study.run(Limits(usd=2.4, finish=0.1))
    record = study.record()
    idle = sum(charge.cost_nano_usd for charge in record.charges if charge.kind == "idle")
    assert complete(record)
    assert idle <= 0.04 * record.cost_nano_usd
    plain = study_with(tmp_path / "plain", slots=4)
    plain.run(Limits(usd=2.4))
    assert not complete(plain.record())
    assert len(record.started) >= 0.8 * len(plain.record().started)


def test_after_the_last_trial_leaders_go_on(tmp_path: Path) -> None:
    study = study_with(tmp_path, slots=1)
    study.run(Limits(trials=30, finish=0.1))
    record = study.record()
    assert record.stop_reason == "budget_trials"
    assert best_at_rung(record).state == "complete"
    assert len(complete(record)) == 1
    searched = sum(RUNG for _ in record.started)
    assert sum(len(trial.epochs) for trial in record.started) == searched + EPOCHS - RUNG
    assert reasons(record)[-1].endswith("the search is over")
    check_ledger(study)


@pytest.mark.parametrize(("slots", "trials"), [(1, 6), (8, 1)])
def test_once_the_search_is_over_leaders_have_the_rest_of_the_budget(tmp_path: Path, slots: int, trials: int) -> None:
    """However little was searched, and however many slots wait: nothing else would be done with the money."""
    study = study_with(tmp_path, slots=slots)
    study.run(Limits(trials=trials, usd=10.0, hours=1.0, finish=0.1))
    record = study.record()
    assert record.stop_reason == "budget_trials"
    assert [trial.number for trial in complete(record)] == [best_at_rung(record).number]
    check_ledger(study)


def test_no_study_with_money_left_ends_without_a_complete_trial(tmp_path: Path) -> None:
    """Each trial got worse at its rung, so none leads with its latest epoch; one of them goes on all the same."""

    def worst_at_the_rung(params: Any, size: int) -> Curve:
        smooth = smooth_curve(params, size, epochs=EPOCHS, equal_epochs=True)
        errors = [one["val_error"] for one in smooth.metrics]
        errors[RUNG - 2], errors[RUNG - 1] = errors[-1] / 2, errors[0]
        return replace(smooth, metrics=tuple({"val_error": one} for one in errors))

    study = study_with(tmp_path, slots=1, curve=worst_at_the_rung)
    study.run(Limits(trials=6, usd=10.0, finish=0.1))
    record = study.record()
    leader = min(record.started, key=lambda trial: trial.epochs[RUNG - 2].metrics["val_error"])
    assert [trial.number for trial in complete(record)] == [leader.number]
    check_ledger(study)


def test_a_leader_whose_latest_epoch_is_a_little_worse_is_finished_if_a_better_end_is_forecast(tmp_path: Path) -> None:
    """Eight trainings show that errors fall for long; the best trial waits at a rung where its error rose a little."""
    whole, seen = 8, dict[str, int]()

    class PausingLater(Pausing):
        def rungs(self, epochs: int) -> tuple[int, ...]:
            return (RUNG, RUNG + 1)

        def decide(self, history: History, number: int, rung: int) -> Decision:
            if number >= whole and rung > RUNG:
                return super().decide(history, number, rung)
            return Decision(action="continue", reason="is watched")

    def dented(params: Any, size: int) -> Curve:
        smooth = smooth_curve(params, size, epochs=EPOCHS, equal_epochs=True)
        is_late = seen.setdefault(str(params), len(seen)) >= whole
        errors = [one["val_error"] * (0.3 if is_late else 1.0) for one in smooth.metrics]
        errors[RUNG] = errors[RUNG - 1] * 1.02
        return replace(smooth, metrics=tuple({"val_error": one} for one in errors))

    study = study_with(tmp_path, slots=1, curve=dented, policy=Policy(pruner=PausingLater()))
    study.run(Limits(trials=whole + 4, usd=10.0, finish=0.1))
    record = study.record()
    leader = min(record.started, key=lambda trial: trial.epochs[RUNG - 1].metrics["val_error"])
    assert [trial.number for trial in complete(record)] == [*range(whole), leader.number]
    assert reasons(record)[-1].endswith("the search is over")


def test_leaders_that_do_not_fit_into_the_rest_of_the_budget_are_left(tmp_path: Path) -> None:
    study = study_with(tmp_path, slots=1)
    study.run(Limits(trials=6, usd=(6 * RUNG + EPOCHS - RUNG - 1) * 0.01, finish=0.1))
    assert (complete(study.record()), reasons(study.record())) == ([], [])


def test_small_budgets_are_the_search_s(tmp_path: Path) -> None:
    """Less than three full trainings: nobody is finished while the search goes on, and nothing is kept."""
    timed, plain = study_with(tmp_path / "timed", slots=1), study_with(tmp_path / "plain", slots=1)
    timed.run(Limits(usd=0.2, finish=0.1))
    plain.run(Limits(usd=0.2))
    assert [trial.decisions for trial in timed.record().started] == [
        trial.decisions for trial in plain.record().started
    ]


def test_a_pruner_that_stops_is_respected(tmp_path: Path) -> None:
    study = study_with(tmp_path, policy=Policy(pruner=Stopping()))
    study.run(Limits(trials=30, finish=0.1))
    assert (complete(study.record()), reasons(study.record())) == ([], [])
    whole = study_with(tmp_path / "none", policy=Policy(pruner=NoPruner()))
    whole.run(Limits(trials=6, finish=0.1))
    assert (len(complete(whole.record())), reasons(whole.record())) == (6, [])


@pytest.mark.medium
def test_more_budget_goes_on_searching(tmp_path: Path) -> None:
    study = study_with(tmp_path)
    study.run(Limits(usd=1.8, finish=0.1))
    before = study.record()
    study.run(Limits(usd=3.6, finish=0.1))
    after = checked(study)
    assert len(after.started) >= 1.5 * len(before.started)
    assert after.cost_nano_usd <= 3.6 * NANO
    assert best_at_rung(after).state == "complete"


@pytest.mark.medium
def test_a_controller_that_dies_while_it_finishes_has_a_heir_that_goes_on(tmp_path: Path) -> None:
    limits = Limits(trials=30, finish=0.1)
    whole = study_with(tmp_path / "whole", slots=1)
    commits = itertools.count()
    moments: list[int] = []

    def look(machine: Any) -> None:
        number = next(commits)
        if any(one.state == "running" and one.epochs_done >= RUNG for one in machine.trials.values()):
            moments.append(number)

    whole.on_commit = look
    whole.run(limits)
    assert moments
    study = study_with(tmp_path / "killed", slots=1)
    assert study.run_until_killed(limits, moments[len(moments) // 2])
    study.run(limits)
    record = study.record()
    assert [trial.number for trial in complete(record)] == [best_at_rung(record).number]
    assert len(record.started) == 30
    check_ledger(study)


@pytest.mark.medium
@pytest.mark.parametrize("seed", range(2))
def test_noise_prices_and_promotions_keep_the_books(tmp_path: Path, seed: int) -> None:
    """Epochs of any length, a price that triples on the way, mo_asha, and several objectives."""
    study = SimulatedStudy(
        tmp_path, policy=Policy(pruner=MoAsha()), slots=3, price=36.0, seed=seed, start_seconds=0.3,
        curve=lambda params, size: noisy_curve(params, size, seed=seed),
    )  # fmt: skip
    machine = study.run(
        Limits(usd=6.0, finish=0.1),
        before=lambda controller: controller._pool._at(150.0, -1, PriceSet(usd_per_slot_hour=108.0)),  # type: ignore[attr-defined]
    )
    assert machine.state == "closed"
    assert study.record().cost_nano_usd <= 6.0 * NANO
    checked(study)


WIDE = Space.from_dict({**SPACE.to_dict(), "world_size": {"type": "categorical", "choices": [1, 2]}})


def wide_is_better(params: Any, size: int) -> Any:
    """Two ranks lead, in as many seconds as one needs."""
    curve = smooth_curve(params, 1, epochs=EPOCHS, equal_epochs=True)
    better = [{**one, "val_error": one["val_error"] * (0.5 if size == 2 else 1.0)} for one in curve.metrics]
    return replace(curve, metrics=tuple(better))


@pytest.mark.medium
def test_slots_that_wait_for_a_wide_leader_wait_together(tmp_path: Path) -> None:
    study = study_with(tmp_path, space=WIDE, curve=wide_is_better)
    study.run(Limits(usd=2.6, finish=0.1))
    leader = best_at_rung(study.record())
    assert (leader.params["world_size"], leader.state) == (2, "complete")
    check_ledger(study)


def test_leaders_are_finished_once(tmp_path: Path) -> None:
    """Those that come to lead when others are finished go on as well; a study that is resumed finds none."""
    study = study_with(tmp_path, slots=1, objectives=(*ERROR, Objective(metric="latency_ms")), curve=trading)
    study.run(Limits(trials=30, finish=0.1))
    before = study.record()
    assert len(complete(before)) > 1
    found = recommended(before)
    assert found is None or found.point.state == "complete"
    for _ in range(2):
        study.run(Limits(trials=30, finish=0.1))
        after = study.record()
        assert (len(complete(after)), len(reasons(after))) == (len(complete(before)), len(reasons(before)))
        trained = [
            sum(one.cost_nano_usd for one in record.charges if one.kind == "train") for record in (before, after)
        ]
        assert trained[0] == trained[1]


def trading(params: Any, size: int) -> Any:
    """The wider, the slower and the better: many trials are in the archive."""
    curve = smooth_curve(params, size, epochs=EPOCHS, equal_epochs=True)
    width = float(params["width"])
    told = [{**one, "val_error": one["val_error"] * (1 + 64 / width), "latency_ms": width} for one in curve.metrics]
    return replace(curve, metrics=tuple(told))
