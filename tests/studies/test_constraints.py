"""Constraints: what is feasible, what is stopped for good, what every search makes of it, and what readers see."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from automl.confirming import chosen_points
from automl.terminal.explanation import explain, print_explanation
from automl.terminal.summary import print_summary, print_trials
from reports import content, figures
from reports.page import render
from studies.gangs.simulated import Curve
from studies.money.budget import Limits
from studies.records.plain_rows import to_csv
from studies.records.records import Constraint, Objective, StudyRecord
from studies.results import analysis, constraints, pareto
from studies.results.constraints import (
    bounds_of,
    columns,
    excesses,
    in_words,
    is_feasible,
    never_feasible,
    total_violation,
    wanted_in_words,
)
from studies.search.acquisition.acquisition import LEAST, next_points, probability_of_feasibility
from studies.search.model.curve_model import ColumnLimits, CurveModel
from studies.search.model.problem import Problem
from studies.search.observations import Observation, Snapshot
from studies.search.policy import History, Policy, Pruner
from studies.search.pruners.break_even import BreakEven
from studies.search.pruners.median import Median
from studies.search.pruners.mo_asha import MoAsha
from studies.search.pruners.none import NoPruner
from studies.search.samplers.optuna_suggester import OptunaSuggester
from studies.storage.schema.engine import StoreError
from studies.storage.views.mirror import catch_up
from tests.support.indices import indices
from tests.support.simulated_study import (
    OBJECTIVES,
    SPACE,
    FilePool,
    Killed,
    SimulatedStudy,
    checked,
    smooth_curve,
)
from tests.support.study_factory import COST, ERROR, TWO, build_study

SMALL = Constraint(metric="model_parameters", max=1600.0)
patient = settings(deadline=None, max_examples=40)
PRUNERS: dict[str, Pruner] = {
    "none": NoPruner(), "stopping": MoAsha(), "promotion": MoAsha(variant="promotion"),
    "median": Median(startup_trials=2), "median of each": Median(startup_trials=2, combine="any"),
}  # fmt: skip


def sized_curve(params: Any, world_size: int, *, epochs: int = 27) -> Curve:
    """The smooth one with 100 parameters per unit of width, of which it takes at least 125 for the smallest error."""
    smooth = smooth_curve(params, world_size, epochs=epochs)
    size = 100.0 * float(params["width"])
    more = [
        {"model_parameters": size, "latency_ms": size / 1000, "val_loss": 2 * m["val_error"]} for m in smooth.metrics
    ]
    return replace(smooth, metrics=tuple({**m, **n} for m, n in zip(smooth.metrics, more, strict=True)))


def study_of(folder: Path, *constraints: Constraint, pruner: Pruner | None = None, **changes: Any) -> SimulatedStudy:
    epochs = changes.get("epochs", 27)
    usual = {"curve": lambda params, size: sized_curve(params, size, epochs=epochs), "constraints": constraints}
    made = SimulatedStudy(folder, **(usual | changes))
    ours = pruner or BreakEven(CurveModel(made.problem), seed=made.seed)
    made.policy = Policy(pruner=ours)
    return made


def width_of(trial: Any) -> float:
    return float(trial.params["width"])


# ---------------------------------------------------------------------- what keeps a constraint


def test_bounds_are_inclusive_and_what_was_not_measured_violates_them() -> None:
    both = (Constraint(metric="a", min=1.0, max=2.0),)
    assert [is_feasible({"a": value}, both) for value in (0.9, 1.0, 1.5, 2.0, 2.1)] == [False, True, True, True, False]
    assert not is_feasible({"a": math.nan}, both)
    assert not is_feasible({"a": None}, both)
    assert not is_feasible({}, both)
    assert is_feasible({}, ())
    bounds = bounds_of((Constraint(metric="a", min=0.0, max=1.0), Constraint(metric="b", max=1)))
    assert [bound.name for bound in bounds] == ["a min", "a max", "b max"]


def test_violations_are_told_in_the_metrics_units_and_added_in_those_of_the_bounds() -> None:
    wanted = (Constraint(metric="latency_ms", max=5.0), Constraint(metric="accuracy", min=0.8))
    metrics = {"latency_ms": 6.0, "accuracy": 0.6}
    assert excesses(metrics, wanted) == pytest.approx({"latency_ms max": 1.0, "accuracy min": 0.2})
    assert total_violation(metrics, wanted) == pytest.approx(0.2 + 0.25)
    assert total_violation({"latency_ms": 1.0, "accuracy": 0.9}, wanted) == 0.0
    assert in_words(metrics, wanted) == (
        "latency_ms was 6, above the constraint's max 5 and accuracy was 0.6, below the constraint's min 0.8"
    )
    assert wanted_in_words(wanted) == "latency_ms at most 5, accuracy at least 0.8"
    assert total_violation({"x": 0.5}, (Constraint(metric="x", max=0.0),)) == 0.5


@pytest.mark.parametrize(
    ("metric", "side", "is_final"),
    [
        ("model_parameters", "max", True), ("model_parameters", "min", True), ("latency_ms", "max", True),
        ("cost_usd", "max", True), ("cost_usd", "min", False), ("wall_seconds", "max", True),
        ("peak_memory_bytes", "max", True), ("peak_memory_bytes", "min", False),
        ("val_error", "max", False), ("samples_per_second", "min", False),
    ],
)  # fmt: skip
def test_only_what_cannot_mend_itself_is_final(metric: str, side: str, is_final: bool) -> None:
    constraint = Constraint(metric=metric, **{side: 5.0})  # type: ignore[arg-type]
    value = 6.0 if side == "max" else 4.0
    assert (never_feasible({metric: value}, (constraint,)) is not None) == is_final
    assert never_feasible({metric: 5.0}, (constraint,)) is None


# ---------------------------------------------------------------------- ranks


coordinate = st.integers(0, 4).map(float)
rung_of_many = st.lists(
    st.tuples(st.tuples(coordinate, coordinate), st.sampled_from([0.0, 0.0, 0.5, 1.0])), min_size=1, max_size=20
)


def beats(one: Any, other: Any) -> bool:
    """Constrained domination, as the paper words it."""
    (p, v), (q, w) = one, other
    if v == 0 and w == 0:
        return pareto.dominates(p, q)
    return v < w


@patient
@given(rung_of_many)
def test_layers_follow_constrained_domination(rung: list[Any]) -> None:
    layers = pareto.constrained_layers([p for p, _ in rung], [v for _, v in rung])
    for one, other in itertools.permutations(range(len(rung)), 2):
        if beats(rung[one], rung[other]):
            assert layers[one] < layers[other]
    for place, layer in enumerate(layers):
        if layer:
            assert any(layers[k] == layer - 1 and beats(rung[k], rung[place]) for k in range(len(rung)))


@patient
@given(rung_of_many)
def test_a_rank_is_the_place_in_the_order(rung: list[Any]) -> None:
    points, violations = [p for p, _ in rung], [v for _, v in rung]
    order = list(pareto.best_first(points, None, violations))
    assert sorted(order) == list(range(len(rung)))
    ranks = [pareto.rank_of(i, points, list(range(len(rung))), violations) for i in range(len(rung))]
    assert [order.index(i) + 1 for i in range(len(rung))] == ranks
    assert [violations[i] > 0 for i in order] == sorted(v > 0 for v in violations)


@pytest.mark.parametrize("combine", ["joint", "any", "all", "primary"])
def test_median_prefers_the_feasible_and_then_the_nearly_feasible(combine: Any) -> None:
    pruner = Median(startup_trials=2, combine=combine)
    at_rung = {0: (9.0, 9.0), 1: (1.0, 1.0), 2: (2.0, 2.0), 3: (3.0, 3.0)}
    history = History(at_rung={3: at_rung}, violations={3: {1: 0.1, 2: 0.2, 3: 0.3}})
    actions = [pruner.decide(history, number, 3).action for number in at_rung]
    assert actions == ["continue", "continue", "stop", "stop"]
    assert json.dumps([dict(pruner.decide(history, n, 3).numbers) for n in at_rung], allow_nan=False)


def test_mo_asha_promotes_and_keeps_the_feasible_first() -> None:
    at_rung = {0: (9.0, 9.0), 1: (1.0, 1.0), 2: (2.0, 2.0)}
    history = History(at_rung={3: at_rung}, violations={3: {1: 0.2, 2: 0.1}}, paused=dict.fromkeys(at_rung, 3))
    decided = [MoAsha().decide(history, number, 3) for number in at_rung]
    assert [one.action for one in decided] == ["continue", "stop", "stop"]
    assert [one.numbers["rank"] for one in decided] == [1, 3, 2]
    assert [one.numbers.get("violation") for one in decided] == [None, 0.2, 0.1]
    thawed = MoAsha(variant="promotion").thaw(history)
    assert thawed.number == 0


# ---------------------------------------------------------------------- what Optuna's samplers are told


def told(number: int, params: dict[str, Any], **changes: Any) -> Observation:
    usual: dict[str, Any] = {"outcome": "finished", "values": (1.0, 1.0), "excesses": {"a max": -0.5}}
    return Observation(trial_id=number, params=params, **(usual | changes))


def asker(sampler: str) -> OptunaSuggester:
    return OptunaSuggester(
        space=SPACE, directions=("minimize", "minimize"), sampler=sampler, seed=1, study_attributes={}
    )  # fmt: skip


def test_every_trial_has_every_bound_also_those_that_failed() -> None:
    params = {"learning_rate": 0.1, "width": 20}
    history = (
        told(0, params),
        told(1, params, excesses={"a max": 0.7}),
        told(2, params, outcome="infeasible", values=None, excesses={"a max": None}),
        told(3, params, outcome="running", values=None, excesses={"a max": None}),
    )
    trials = asker("random")._study_with(history).trials
    assert [trial.constraints for trial in trials[:3]] == [
        {"a max": -0.5, "it_runs": 0.0}, {"a max": 0.7, "it_runs": 0.0}, {"a max": 0.7, "it_runs": 1.0},
    ]  # fmt: skip
    assert not trials[3].constraints
    assert not asker("random")._study_with((told(0, params, excesses={}),)).trials[0].constraints


@pytest.mark.medium
@pytest.mark.parametrize("sampler", ["tpe", pytest.param("nsga2", marks=pytest.mark.slow), "gp"])
def test_samplers_of_optuna_stay_where_it_is_feasible(sampler: str) -> None:
    """The smaller the error, the wider; but only a fifth of the widths is allowed."""
    suggester, history = asker(sampler), list[Observation]()
    first, rounds = {"tpe": (30, 60), "nsga2": (100, 200), "gp": (10, 14)}[sampler]
    for number in range(rounds):
        suggestion = suggester.suggest(number, tuple(history))
        params, attributes = suggestion.params, suggestion.trial_attributes
        width, rate = float(params["width"]), abs(math.log10(float(params["learning_rate"])) + 2)  # type: ignore[arg-type]
        excess = {"width max": width / 16 - 1}
        values = (20 / width + rate, rate)
        history.append(told(number + 1, dict(params), values=values, excesses=excess, attributes=attributes))
    late = [float(one.params["width"]) <= 16 for one in history[first:]]  # type: ignore[arg-type]
    assert np.mean(late) > 0.4, "random suggestions have 0.2"


# ---------------------------------------------------------------------- our own model


def test_probabilities_are_those_of_samples() -> None:
    rng = np.random.default_rng(0)
    both = (Constraint(metric="a", min=0.5, max=2.0), Constraint(metric="b", max=1.0))
    limits = ColumnLimits(columns(OBJECTIVES, both), both)
    marginals: dict[int, Any] = {
        2: (np.array([0.0, 0.9]), np.array([0.5, 0.2]), "lognormal"),
        3: (np.array([0.8, 1.5]), np.array([0.3, 0.0]), "gaussian"),
    }  # fmt: skip
    a = np.exp(marginals[2][0] + marginals[2][1] * rng.standard_normal((100_000, 2)))
    b = marginals[3][0] + marginals[3][1] * rng.standard_normal((100_000, 2))
    true = ((a >= 0.5) & (a <= 2.0) & (b <= 1.0)).mean(axis=0)
    found = probability_of_feasibility(limits, marginals.__getitem__)
    assert found.tolist() == pytest.approx(true.tolist(), abs=0.01)
    assert found[1] == LEAST, "what is known to be infeasible"
    certain = {2: (np.array([math.log(2.0)]), np.zeros(1), "lognormal"), 3: (np.ones(1), np.zeros(1), "gaussian")}
    found = probability_of_feasibility(limits, certain.__getitem__)  # type: ignore[arg-type]
    assert found.tolist() == [1.0], "bounds are inclusive"


def test_a_maximised_objective_has_its_bounds_turned_round() -> None:
    accuracy = (Objective(metric="accuracy", direction="maximize"),)
    limits = ColumnLimits(accuracy, (Constraint(metric="accuracy", min=0.8),))
    assert limits.holds((-0.9,))
    assert not limits.holds((-0.7,))
    assert columns(accuracy, (Constraint(metric="recall", min=0.5),))[1].direction == "maximize"
    assert columns(accuracy, (Constraint(metric="model_parameters", min=5),))[1].direction == "minimize"


def problem(*constraints: Constraint, **changes: Any) -> Problem:
    usual: dict[str, Any] = {
        "space": SPACE, "objectives": OBJECTIVES, "epochs": 27, "milestones": (2, 3, 6, 12, 27),
        "usd_per_slot_hour": 3.6, "constraints": constraints,
    }  # fmt: skip
    return Problem(**(usual | changes))


def seen(number: int, epochs: int, constraints: tuple[Constraint, ...], **params: Any) -> Snapshot:
    curve = sized_curve(params, 1)
    usd = curve.epoch_seconds[0] * 3.6 / 3600
    looked_at = columns(OBJECTIVES, constraints)

    def values(epoch: int) -> tuple[float, ...]:
        every = {**curve.metrics[epoch - 1], "cost_usd": usd * (epoch + 0.3), "wall_seconds": 1000 * usd * epoch}
        return tuple(one.signed(every[one.metric]) for one in looked_at)

    return Snapshot(
        number=number, params=params, state="paused" if epochs < 27 else "ended", epochs=epochs,
        at={e: values(e) for e in range(1, epochs + 1)}, usd_per_epoch=usd, paid_usd=usd * (epochs + 0.3),
    )  # fmt: skip


def learned(*constraints: Constraint, **changes: Any) -> CurveModel:
    model, rng = CurveModel(problem(*constraints, **changes)), np.random.default_rng(3)
    trials = []
    for number in range(20):
        params = model.encoder.decode(rng.random(2))
        trials.append(seen(number, model.rungs[number % len(model.rungs)], constraints, **params))
    model.learn(trials, refit=True)
    return model


def prices(model: CurveModel, *configurations: dict[str, Any]) -> list[float]:
    some = model.untried(model.features(configurations))
    found: list[float] = indices(model, some).tolist()
    return found


@pytest.mark.parametrize(
    ("constraint", "keeps", "violates"),
    [
        (SMALL, {"width": 12}, {"width": 60}),
        (Constraint(metric="model_parameters", min=3000.0), {"width": 60}, {"width": 12}),
        (Constraint(metric="latency_ms", min=2.0, max=4.0), {"width": 30}, {"width": 100}),
        (Constraint(metric="cost_usd", max=0.008), {"width": 12}, {"width": 250}),
        (Constraint(metric="wall_seconds", max=2.0), {"width": 12}, {"width": 250}),
        (Constraint(metric="val_loss", max=0.1), {"width": 100}, {"width": 9}),
        (Constraint(metric="val_error", max=0.05), {"width": 100}, {"width": 9}),
    ],
    ids=lambda one: f"{one.metric} {one.min} {one.max}" if isinstance(one, Constraint) else "",
)
def test_every_kind_of_constraint_lowers_the_price_of_what_violates_it(
    constraint: Constraint, keeps: dict[str, Any], violates: dict[str, Any]
) -> None:
    """Bounded metrics that are objectives, and those that are not: static, cumulative and learned ones."""
    usual = {"learning_rate": 0.03}
    free, bound = learned(), learned(constraint)
    without, with_it = prices(free, usual | keeps, usual | violates), prices(bound, usual | keeps, usual | violates)
    assert with_it[1] / with_it[0] < 0.5 * without[1] / without[0]
    waiting = np.flatnonzero(bound.table.are("paused") & (bound.table.last_rungs == 1))
    assert np.isfinite(indices(bound, bound.started(waiting, is_running=False))).all()


def test_sizes_that_are_known_without_training_are_not_guessed() -> None:
    model = learned(SMALL, known=lambda params: {"model_parameters": 100.0 * float(params["width"])})  # type: ignore[arg-type]
    just, beyond = prices(model, {"learning_rate": 0.03, "width": 16}, {"learning_rate": 0.03, "width": 17})
    assert beyond < 1e-6 * just


def test_the_models_archive_holds_feasible_milestones_only() -> None:
    model, free = learned(SMALL), learned()
    small = [t for t in model.table.trials if width_of(t) <= 16]
    points = {values[:2] for trial in small for values in trial.at.values()}
    assert len(model.archive)
    assert {tuple(point) for point in model.archive.tolist()} <= points
    assert not {tuple(point) for point in free.archive.tolist()} <= points
    running = [
        replace(seen(20 + k, model.rungs[0], (SMALL,), learning_rate=0.03, width=width), state="running")
        for k, width in enumerate((12, 200))
    ]
    model.learn([*model.table.trials, *running], refit=False)
    some = model.started(np.flatnonzero(model.table.are("running")), is_running=True)
    assert len(next_points(model, some)) == 1, "an infeasible one is not expected in the archive"


def test_where_nothing_can_be_feasible_the_model_still_tells_configurations_apart() -> None:
    model = learned(Constraint(metric="model_parameters", max=1.0))
    good, bad = prices(model, {"learning_rate": 0.03, "width": 64}, {"learning_rate": 1e-4, "width": 64})
    assert good > bad > 0


def test_a_bound_that_nothing_has_reached_yet_is_approached() -> None:
    """As long as all losses lie beyond the bound, they are not taken for equally bad."""
    model = learned(Constraint(metric="val_loss", max=0.01))
    near, far = model.limits.far_end(2, np.array([0.5, 0.7, 0.9])), model.limits.far_end(2, np.zeros(0))
    assert (near, far) == (0.7, 0.01)
    good, bad = prices(model, {"learning_rate": 0.03, "width": 64}, {"learning_rate": 1e-4, "width": 64})
    assert good > bad


# ---------------------------------------------------------------------- whole studies


def check_feasible(record: StudyRecord, *constraints: Constraint) -> None:
    """Front and archive hold what keeps the constraints, and nothing that keeps them was left out."""
    trials = {trial.number: trial for trial in record.started}
    complete = [t for t in record.started if t.state == "complete" and is_feasible(t.epochs[-1].metrics, constraints)]
    points = [tuple(o.signed(t.values(record.objectives)[o.metric]) for o in record.objectives) for t in complete]
    assert [p.trial for p in analysis.front(record)] == [complete[i].number for i in pareto.front(points)]
    for point in analysis.archive(record):
        assert is_feasible(trials[point.trial].epochs[point.epoch - 1].metrics, constraints)
        assert point.checkpoint is not None
    for trial in record.started:
        for epoch in trial.epochs:
            if not is_feasible(epoch.metrics, constraints):
                assert epoch.checkpoint is None, "no file of it is kept"


@pytest.mark.medium
@pytest.mark.parametrize("pruner", ["none", "promotion", "median of each", "break_even"])
def test_what_is_too_large_is_stopped_at_its_first_rung_under_every_pruner(tmp_path: Path, pruner: str) -> None:
    study = study_of(tmp_path, SMALL, pruner=PRUNERS.get(pruner), epochs=9, pool=FilePool,
                     checkpoint_folder=str(tmp_path / "kept"))  # fmt: skip
    study.run(Limits(trials=16))
    record = checked(study)
    check_feasible(record, SMALL)
    large = [trial for trial in record.started if width_of(trial) > 16]
    assert large
    first = study.policy.pruner.rungs(9)[:1] or (2,)
    for trial in large:
        assert trial.state == "pruned"
        assert len(trial.epochs) <= first[0]
        last, size = trial.decisions[-1], 100.0 * width_of(trial)
        assert last.action == "stop"
        assert trial.reason == last.reason
        assert f"model_parameters was {size:.6g}, above the constraint's max 1600" in trial.reason
        assert last.numbers == {"model_parameters": size, "max": 1600.0}
    assert any(trial.state == "complete" for trial in record.started)
    assert analysis.archive(record)
    kept = {epoch.checkpoint for trial in record.started for epoch in trial.epochs}
    kept |= {trial.resume_checkpoint for trial in record.started}
    assert {str(path) for path in (tmp_path / "kept").rglob("epoch-*")} == kept - {None}


def test_a_trial_that_becomes_too_dear_is_stopped_and_its_cheap_milestones_count(tmp_path: Path) -> None:
    cheap = Constraint(metric="cost_usd", max=0.006)
    study = study_of(tmp_path, cheap, pruner=NoPruner(), objectives=(ERROR, Objective(metric="latency_ms")))
    study.run(Limits(trials=8))
    record = study.record()
    check_feasible(record, cheap)
    stopped = [trial for trial in record.started if trial.state == "pruned"]
    assert stopped
    for trial in stopped:
        beyond = [epoch.epoch for epoch in trial.epochs if epoch.metrics["cost_usd"] > 0.006]
        assert beyond == [len(trial.epochs) - 1, len(trial.epochs)], "it drains after the epoch that passed the bound"
        assert "cost_usd was" in trial.reason
    assert {point.trial for point in analysis.archive(record)} & {trial.number for trial in stopped}


@pytest.mark.medium
def test_a_loss_that_is_too_large_may_still_fall(tmp_path: Path) -> None:
    accurate = Constraint(metric="val_loss", max=0.3)
    study = study_of(tmp_path, accurate, pruner=NoPruner())
    study.run(Limits(trials=12))
    record = study.record()
    check_feasible(record, accurate)
    assert {trial.state for trial in record.started} == {"complete"}
    assert all(trial.epochs[0].metrics["val_loss"] > 0.3 for trial in record.started)
    feasible = [constraints.is_trial_feasible(record, trial) for trial in record.started]
    assert {True, False} == set(feasible)
    assert analysis.archive(record)


def test_a_task_that_does_not_measure_what_is_bounded_fails(tmp_path: Path) -> None:
    study = study_of(tmp_path, Constraint(metric="recall", min=0.5), pruner=MoAsha())
    study.run(Limits(trials=2))
    assert {(trial.state, trial.failure) for trial in study.record().started} == {("failed", "error")}


def test_a_killed_study_goes_on_with_the_same_feasible_ones(tmp_path: Path) -> None:
    """Also what a rung has seen of violations is the same again."""
    accurate = Constraint(metric="val_loss", max=0.3)
    study = study_of(tmp_path, accurate, SMALL, pruner=MoAsha(grace=1))
    study.store.alive_for = 50
    with pytest.raises(Killed):
        study.run(Limits(trials=20))
    study.run(Limits(trials=20))
    record = study.record()
    check_feasible(record, accurate, SMALL)
    violations = study.machine._live.history.violations
    for rung, at_rung in study.machine._live.history.at_rung.items():
        for number in at_rung:
            metrics = record.started[number].epochs[rung - 1].metrics
            assert violations.get(rung, {}).get(number, 0.0) == total_violation(metrics, record.constraints)
    assert any(violations.values())


def share_of_small(folder: Path, sampler: str, pruner: Pruner | None, trials: int = 24) -> float:
    study = study_of(folder, SMALL, sampler=sampler, pruner=pruner, epochs=9)
    study.run(Limits(trials=trials))
    record = study.record()
    check_feasible(record, SMALL)
    late = [width_of(trial) <= 16 for trial in record.started[trials // 2 :]]
    return float(np.mean(late))


@pytest.mark.medium
@pytest.mark.parametrize(
    ("sampler", "pruner"),
    [
        ("cokriging", MoAsha()),
        pytest.param("cokriging", None, marks=pytest.mark.slow),
        pytest.param("tpe", MoAsha(), marks=pytest.mark.slow),
    ],
)
def test_a_search_learns_where_it_is_feasible(tmp_path: Path, sampler: str, pruner: Pruner | None) -> None:
    """A fifth of the space is; larger models are better, so the constraint binds."""
    learns = share_of_small(tmp_path / "a", sampler, pruner)
    chance = share_of_small(tmp_path / "b", "random", MoAsha())
    assert learns >= chance + 0.25, (learns, chance)


@pytest.mark.medium
def test_optunas_best_trials_are_the_front(tmp_path: Path) -> None:
    small = Constraint(metric="latency_ms", min=1.0, max=3.0)
    late = Constraint(metric="val_loss", max=0.3)
    study = study_of(tmp_path, small, late, pruner=MoAsha(eta=2), epochs=9)
    study.run(Limits(trials=25))
    assert catch_up(study.store, "simulated")["optuna"] is None
    record = study.record()
    mirrored = optuna.load_study(study_name="simulated", storage=optuna.storages.RDBStorage(study.store.url))
    complete = [trial for trial in record.started if trial.state == "complete"]
    assert {True, False} == {constraints.is_trial_feasible(record, trial) for trial in complete}
    assert [trial.number for trial in mirrored.best_trials] == [point.trial for point in analysis.front(record)]
    for ours, theirs in zip(record.started, mirrored.trials, strict=True):
        wanted = excesses(ours.epochs[-1].metrics, record.constraints)
        assert theirs.system_attrs["constraints"] == list(wanted.values()), "what Optuna Dashboard reads"
        assert {name: theirs.constraints[name] for name in wanted} == wanted, "what Optuna 5 reads"
        assert all(value <= 0 for value in theirs.constraints.values()) == constraints.is_trial_feasible(record, ours)
    mirrored.sampler = optuna.samplers.TPESampler(seed=0)
    mirrored.ask().suggest_float("learning_rate", 1e-4, 1.0, log=True)


# ---------------------------------------------------------------------- what people read


LOW = Constraint(metric="latency_ms", max=0.7)


def built(*constraints: Constraint, **changes: Any) -> StudyRecord:
    """Latencies of these trials are 0.4 to 0.9 ms."""
    return build_study(30, constraints=constraints, **changes)


def printed(study: StudyRecord, what: str = "print_summary", *arguments: Any) -> str:
    printers: dict[str, Any] = {one.__name__: one for one in (print_summary, print_trials, print_explanation)}
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123 - the console's
    with console.file:
        printers[what](console, study, *arguments, **({"report": None} if what == "print_summary" else {}))
    return " ".join(console.export_text().split())


def test_rows_and_summaries_say_what_is_feasible_only_if_there_are_constraints() -> None:
    plain, bound = built(), built(LOW)
    assert "feasible" not in analysis.trial_rows(plain)[0]
    assert not {"constraints", "feasible_trials"} & set(analysis.summary(plain))
    rows, summary = analysis.trial_rows(bound), analysis.summary(bound)
    kept = [row["bounded"]["latency_ms"] <= 0.7 for row in rows]  # type: ignore[index]
    assert [row["feasible"] for row in rows] == kept
    assert summary["feasible_trials"] == sum(kept)
    assert summary["constraints"] == [
        {"metric": "latency_ms", "min": None, "max": 0.7, "violated_by": len(kept) - sum(kept)}
    ]
    json.dumps([rows, summary], allow_nan=False)
    assert "bounded.latency_ms" in to_csv(rows).splitlines()[0]
    hypervolumes = [analysis.hypervolume(study, {"val_error": 2.0, "cost_usd": 1.0}) for study in (plain, bound)]
    assert hypervolumes[0] > hypervolumes[1] > 0  # type: ignore[operator]
    assert analysis.hypervolume_curve(bound)[-1].hypervolume == pytest.approx(analysis.hypervolume(bound))


def test_the_terminal_names_the_violated_constraint_with_its_value() -> None:
    study = built(LOW)
    large = next(t for t in study.started if constraints.is_trial_feasible(study, t) is False)
    value = large.epochs[-1].metrics["latency_ms"]
    status, table = printed(study), printed(study, "print_trials")
    assert "constraints latency_ms at most 0.7: kept by " in status
    assert "latency_ms max 0.7 ms violated by " in status
    assert " feasible " in table
    assert " feasible " not in printed(built(), "print_trials")
    said = printed(study, "print_explanation", replace(large, attempts=()))
    assert f"infeasible: latency_ms was {value:.6g}, above the constraint's max 0.7" in said
    explained = explain(study, large)
    assert explained["feasible"] is False
    assert explained["bounded"] == {"latency_ms": value}
    assert "above the constraint's max 0.7" in str(explained["violated"])
    assert "feasible" not in explain(built(), large)


@pytest.mark.parametrize(
    ("metric", "most", "value", "status", "sentence"),
    [
        ("model_parameters", 1_000_000.0, 1_000_001.0, ("1000000", "1000001"), "was 1000001, above the constraint's"),
        ("model_parameters", 1_000_000.0, 2_000_000.0, ("1 M", "2 M"), "was 2000000, above the constraint's"),
        ("latency_ms", 0.7, 0.70000001, ("0.7", "0.70000001"), "was 0.70000001, above the constraint's max 0.7"),
        ("latency_ms", 0.7, 0.9, ("0.7 ms", "0.9 ms"), "was 0.9, above the constraint's max 0.7"),
    ],
)
def test_a_value_that_violates_a_bound_looks_different_from_it(
    metric: str, most: float, value: float, status: tuple[str, str], sentence: str
) -> None:
    trial = build_study(3, states=("complete",)).started[0]
    trial = replace(trial, epochs=tuple(replace(e, metrics={**e.metrics, metric: value}) for e in trial.epochs))
    kept = replace(trial, number=1, epochs=tuple(replace(e, metrics={**e.metrics, metric: 0.1}) for e in trial.epochs))
    bound = Constraint(metric=metric, max=most)
    study = replace(build_study(3), constraints=(bound,), trials=(trial, kept))
    assert f"{metric} max {status[0]} violated by 1, the latest trial 0 with {status[1]}" in printed(study)
    assert sentence in constraints.violations(study, trial)


def test_a_study_without_a_feasible_model_says_so_and_others_confirm_feasible_ones() -> None:
    study = built(Constraint(metric="latency_ms", max=0.1))
    assert analysis.front(study) == analysis.archive(study) == []
    assert analysis.hypervolume(study) == 0.0
    nearest = min(study.started, key=lambda t: t.epochs[-1].metrics["latency_ms"])
    sentence = "none of 30 measured trials is feasible (latency_ms at most 0.1); nearest is trial "
    assert constraints.nothing_feasible(study).startswith(f"{sentence}{nearest.number}: latency_ms was ")
    assert sentence in printed(study)
    assert sentence in render(study)
    with pytest.raises(StoreError, match=r"digits has no saved models to choose from \(none of 30 measured"):
        chosen_points(study, [], epochs=9)
    for other in (built(), built(LOW), complete := built(LOW, states=("complete",))):
        assert not constraints.nothing_feasible(other)
    feasible = {(point.trial, point.epoch) for point in analysis.archive(complete)}
    assert set() < {(point.trial, point.epoch) for point in chosen_points(complete, [], epochs=9)} <= feasible


@pytest.mark.medium
def test_the_report_draws_the_infeasible_open_and_leaves_them_out_of_the_archive() -> None:
    for objectives in (TWO, (ERROR,), (ERROR, COST, Objective(metric="model_parameters"))):
        study = built(LOW, objectives=objectives)
        drawn: Any = figures.trade_off(study, analysis.archive(study))["data"]
        open_marks = {trace["name"] for trace in drawn if trace["marker"].get("symbol") == "circle-open"}
        assert {name for name in open_marks if name != figures.BEST_TRIALS} == {
            f"{trial.state}, infeasible"
            for trial in study.started
            if constraints.is_trial_feasible(study, trial) is False
        }
    heads, rows = content.trial_table(study)
    place = [head for head, _ in heads].index("feasible")
    assert {row[place].text for row in rows} == {"yes", "no"}
    assert any("above the constraint" in row[place].full for row in rows)
    assert "latency_ms" in [head for head, _ in heads]
    page = render(study)
    assert "A model counts if it keeps latency_ms at most 0.7" in page
    assert "Open marks" in page
    assert "Open marks" not in render(built())
    assert all(len(row) == len(heads) for row in rows)
