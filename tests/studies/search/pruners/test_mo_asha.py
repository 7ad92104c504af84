"""Correct MO-ASHA: what a user's trials may rely on when it decides, against plain references."""

import heapq
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from studies.gangs.simulated import Curve, SimulatedPool
from studies.money.budget import Limits
from studies.records.records import Objective
from studies.search.policy import Fresh, History, Policy, Thaw
from studies.search.pruners.mo_asha import MoAsha
from studies.storage.schema import tables as t
from tests.support.simulated_study import SimulatedStudy, bare_machine, checked, drive

patient = settings(deadline=None, max_examples=40)
coordinate = st.integers(0, 6).map(float)


def histories(low: int = 1, high: int = 3) -> st.SearchStrategy[dict[int, tuple[float, ...]]]:
    """What a rung may hold: trial numbers with holes, values with many ties."""
    return st.integers(low, high).flatmap(
        lambda d: st.dictionaries(st.integers(0, 60), st.tuples(*[coordinate] * d), min_size=1, max_size=25)
    )


# ---------------------------------------------------------------------- the rule


@patient
@given(histories(), st.sampled_from([2, 3, 4]))
def test_ranks_equal_a_plain_reference_and_the_best_go_on(values: dict[int, tuple[float, ...]], eta: int) -> None:
    """Whatever the order of arrival, which the reference does not know."""
    history, allowed = History(at_rung={3: values}), max(1, len(values) // eta)
    for number in values:
        decision, rank = MoAsha(eta=eta).decide(history, number, 3), plain_rank(values, number)
        assert decision.numbers["rank"] == rank
        assert decision.numbers["ranks_that_go_on"] == allowed
        assert (decision.action == "continue") == (rank <= allowed)


@patient
@given(st.dictionaries(st.sampled_from([3, 9, 27]), histories(2, 2), min_size=1), st.data())
def test_promotion_takes_the_best_that_waits_from_the_highest_rung(at_rung, data):
    paused = {}
    for rung, values in at_rung.items():
        for number in data.draw(st.sets(st.sampled_from(sorted(values)))):
            paused[number] = max(rung, paused.get(number, 0))
    thaw = MoAsha(variant="promotion").thaw(History(at_rung=at_rung, paused=paused))
    assert (thaw.number if thaw else None) == plain_promotion(at_rung, paused, 3)


def test_rungs() -> None:
    rungs: dict[int, tuple[int, ...]] = {52: (3, 9, 27), 27: (3, 9), 3: (), 4: (3,), 1: ()}
    assert {epochs: MoAsha().rungs(epochs) for epochs in rungs} == rungs
    assert MoAsha(grace=2, eta=2).rungs(20) == (2, 4, 8, 16)


# ---------------------------------------------------------------------- plain references


def plain_layers(points: np.ndarray, until: int) -> np.ndarray:
    """Peel off, again and again, what nothing that is left dominates, until the point of this index is off."""
    no_worse = np.logical_and.reduce([column[:, None] <= column for column in points.T])
    better = np.logical_or.reduce([column[:, None] < column for column in points.T])
    dominates = no_worse & better
    layers, layer = np.full(len(points), -1), 0
    while layers[until] < 0:
        left = layers < 0
        beaten = dominates[left].any(axis=0)
        layers[left & ~beaten] = layer
        layer += 1
    return layers


def plain_rank(values: dict[int, tuple[float, ...]], number: int) -> int:
    numbers = sorted(values)
    points = np.array([values[n] for n in numbers])
    layers = plain_layers(points, numbers.index(number))
    mine = layers[numbers.index(number)]
    span = points.max(axis=0) - points.min(axis=0)
    scaled = (points - points.min(axis=0)) / np.where(span > 0, span, 1.0)
    left = [i for i in range(len(numbers)) if layers[i] == mine]
    tie = {i: (tuple(points[i]), numbers[i]) for i in left}
    net = [min(left, key=lambda i: (scaled[i].sum(), tie[i]))]
    left.remove(net[0])
    gap = dict.fromkeys(left, math.inf)
    while numbers[net[-1]] != number:
        gap = {i: min(gap[i], float(((scaled[i] - scaled[net[-1]]) ** 2).sum())) for i in left}
        net.append(min(left, key=lambda i: (-gap[i], tie[i])))
        left.remove(net[-1])
    return int(((layers >= 0) & (layers < mine)).sum()) + len(net)


def plain_promotion(at_rung: dict[int, Any], paused: dict[int, int], eta: int) -> int | None:
    for rung in sorted(at_rung, reverse=True):
        waiting = [n for n, at in paused.items() if at == rung]
        ranks = {n: plain_rank(at_rung[rung], n) for n in waiting}
        if ranks and min(ranks.values()) <= max(1, len(at_rung[rung]) // eta):
            return min(ranks, key=lambda n: ranks[n])
    return None


# ---------------------------------------------------------------------- whole studies against a plain loop

EPOCHS, RUNGS, SLOTS, TRIALS = 52, (3, 9, 27), 4, 200
ERROR_AND_SIZE = (Objective(metric="val_error"), Objective(metric="size"))


def task_curves(seed: int) -> list[Curve]:
    """Curves that cross: floors, speeds, noise, sizes and prices of their own."""
    rng = np.random.default_rng(seed)
    curves = []
    for _ in range(TRIALS):
        floor, speed, size = rng.uniform(0.02, 0.6), rng.uniform(0.3, 1.5), float(rng.lognormal(3.0, 1.0))
        epochs = np.arange(1, EPOCHS + 1)
        errors = (floor + (0.9 - floor) * epochs**-speed) * np.exp(rng.normal(0.0, 0.05, EPOCHS))
        metrics = tuple({"val_error": float(e), "size": size} for e in errors)
        curves.append(Curve(metrics=metrics, epoch_seconds=(float(rng.uniform(0.5, 2.0)),) * EPOCHS))
    return curves


def completed_by_the_controller(curves: list[Curve]) -> set[int]:
    pool = SimulatedPool(lambda params, _: curves[int(params["number"])])
    policy = Policy(pruner=MoAsha())
    machine = bare_machine(policy, pool, Limits(trials=TRIALS), epochs=EPOCHS, slots=SLOTS, objectives=ERROR_AND_SIZE)
    drive(machine, pool, lambda number: {"number": number})
    assert machine.state == "closed"
    return {trial.number for trial in machine.trials.values() if trial.state == "complete"}


def completed_by_a_plain_loop(curves: list[Curve]) -> set[int]:
    """Four workers and a heap: each takes the next number, trains to its rungs, and asks the rule."""
    at_rung: dict[int, dict[int, tuple[float, float]]] = {rung: {} for rung in RUNGS}
    complete, numbers, agenda = set(), iter(range(TRIALS)), []
    stops = (*RUNGS, EPOCHS)

    def begin(now: float) -> None:
        number = next(numbers, None)
        if number is not None:
            heapq.heappush(agenda, (now + RUNGS[0] * curves[number].epoch_seconds[0], number, RUNGS[0]))

    for _ in range(SLOTS):
        begin(0.0)
    while agenda:
        now, number, epoch = heapq.heappop(agenda)
        curve = curves[number]
        if epoch == EPOCHS:
            complete.add(number)
            begin(now)
            continue
        measured = curve.metrics[epoch - 1]
        at_rung[epoch][number] = (measured["val_error"], measured["size"])
        if plain_rank(at_rung[epoch], number) <= max(1, len(at_rung[epoch]) // 3):
            until = stops[stops.index(epoch) + 1]
            heapq.heappush(agenda, (now + (until - epoch) * curve.epoch_seconds[0], number, until))
        else:
            begin(now)
    return complete


@pytest.mark.medium
@pytest.mark.parametrize("studies", [1, pytest.param(50, marks=pytest.mark.slow)])
def test_whole_studies_agree_with_a_plain_loop(studies: int) -> None:
    """With exact durations the same trials are completed, study by study."""
    for seed in range(studies):
        curves = task_curves(seed)
        assert completed_by_the_controller(curves) == completed_by_a_plain_loop(curves)


# ---------------------------------------------------------------------- the promotion variant in a study


class CheckedPolicy(Policy):
    """A policy that compares what it does with a free slot to a plain reference."""

    def for_free_slot(self, history: History) -> Fresh | Thaw | None:
        action = Policy.for_free_slot(self, history)
        expected = plain_promotion(history.at_rung, history.paused, 3)
        if expected is not None:
            assert isinstance(action, Thaw)
            assert action.number == expected
        else:
            assert isinstance(action, Fresh) if history.fresh_allowed else action is None
        return action


@pytest.mark.medium
def test_promotion_loses_nothing(tmp_path: Path) -> None:
    policy = CheckedPolicy(pruner=MoAsha(variant="promotion"))
    study = SimulatedStudy(tmp_path, policy=policy, start_seconds=2.0, thaw_seconds=0.25)
    machine = study.run(Limits(trials=40))
    record = checked(study)
    assert (machine.state, machine.stop_reason) == ("closed", "budget_trials")
    assert not [c for c in record.charges if c.kind == "lost"]
    assert len(record.started) == 40
    promoted = 0
    for trial in record.started:
        pauses = [d.epoch for d in trial.decisions if d.action == "pause"]
        promotions = [d.epoch for d in trial.decisions if d.action == "continue"]
        reached = len(trial.epochs)
        starts = [one.seconds for one in record.charges if (one.kind, one.trial) == ("start", trial.number)]
        assert sum(starts) == pytest.approx(2.0 + 0.25 * (len(trial.attempts) - 1))
        assert all("promoted from rung" in d.reason for d in trial.decisions if d.action == "continue")
        assert pauses == [rung for rung in (3, 9) if rung <= reached], "it must pause at every rung it reaches"
        assert promotions == [rung for rung in (3, 9) if rung < reached]
        assert [a.start_epoch for a in trial.attempts] == [0, *promotions], "it goes on where it was paused"
        assert all(0 < int(d.numbers["rank"]) <= int(d.numbers["ranks_that_go_on"])  # type: ignore[arg-type]
                   for d in trial.decisions if d.action == "continue")  # fmt: skip
        assert (trial.state, trial.reason) == (("complete", "trained all 27 epochs") if reached == 27
                                              else ("pruned", "closed"))  # fmt: skip
        assert reached in {3, 9, 27}
        promoted += len(promotions)
    assert promoted >= 40 // 3
    # Of 40 at the first rung the best 13 were promoted in the end, whatever the order in which they came.
    assert sum(len(t.epochs) > 3 for t in record.started) >= 13


@pytest.mark.medium
def test_promotion_goes_on_after_a_close(tmp_path: Path) -> None:
    study = SimulatedStudy(tmp_path, policy=CheckedPolicy(pruner=MoAsha(variant="promotion")))
    study.run(Limits(trials=10))
    waiting = [trial.id for trial in study.record().trials if trial.reason == "closed"]
    assert waiting
    study.run(Limits(trials=24))
    record = checked(study)
    assert len(record.started) == 24
    went_on = [trial for trial in record.trials if trial.id in waiting and len(trial.attempts) > 1]
    assert went_on, "with more trials at the rung, some that waited are promoted"
    assert not [row for row in study.rows(t.charges) if row.kind == "lost"]


def test_of_those_that_wait_at_the_first_rung_the_last_in_rank_is_worth_least() -> None:
    values = {0: (0.1, 1.0), 1: (0.5, 2.0), 2: (0.9, 3.0), 3: (0.95, 4.0)}
    history = History(at_rung={3: values, 9: {0: (0.1, 3.0)}}, paused={0: 9, 1: 3, 2: 3})
    rule = MoAsha(variant="promotion")
    assert rule.worth_least(history) == 2
    assert Policy(pruner=rule).worth_least(history) == 2
    assert rule.worth_least(History()) is None
    infeasible = History(at_rung={3: values}, violations={3: {1: 0.5}}, paused={1: 3, 2: 3})
    assert rule.worth_least(infeasible) == 1, "what violates a constraint ranks behind all that keep it"


@pytest.mark.medium
def test_promotion_with_few_places_to_wait_evicts_and_ends(tmp_path: Path) -> None:
    study = SimulatedStudy(tmp_path, policy=Policy(pruner=MoAsha(variant="promotion")), slots=2)
    study.most_paused = 4
    study.run(Limits(trials=18))
    record = checked(study)
    assert len(record.started) == 18
    assert any("evicted" in trial.reason for trial in record.started)
    assert any(trial.state == "complete" for trial in record.started)
