"""Our search inside Optuna studies and Ray Tune, with several objectives."""

import math
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from automl.adapters.external_policy import ExternalPolicy
from automl.adapters.for_optuna import MultiObjectivePruning
from search_spaces.parameters import SpaceError
from search_spaces.space import Space
from studies.records.records import Objective
from studies.search.observations import decision_rungs
from studies.search.policy import Decision, History
from studies.search.pruners.mo_asha import MoAsha
from studies.spec.spec_errors import SpecError

EPOCHS = 27
OBJECTIVES = (Objective(metric="accuracy", direction="maximize"), Objective(metric="cost_usd"))
SPACE = Space.from_dict({"rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True}})
RATES = [10 ** (-4 + 4 * number / 15) for number in range(16)]


def error(rate: float, epoch: int) -> float:
    floor = 0.02 + 0.1 * abs(math.log10(rate) + 1.5)
    return floor + (0.9 - floor) / (1 + epoch)


def test_decisions_are_those_of_the_pruner() -> None:
    rng = random.Random(0)
    policy, seen = ExternalPolicy(objectives=OBJECTIVES, epochs=EPOCHS, pruner="mo_asha"), {}
    assert policy.rungs == (3, 9)
    for number in range(40):
        accuracy, usd = rng.random(), rng.random()
        policy.started(number, {})
        assert policy.measured(number, 1, {"accuracy": 0.1}, paid_usd=0.01) is None
        decision = policy.measured(number, 3, {"accuracy": accuracy, "more": 1.0}, paid_usd=usd)
        seen[number] = (-accuracy, usd)
        assert decision == MoAsha().decide(History(at_rung={3: dict(seen)}), number, 3)


@pytest.mark.parametrize("stride", [1, 2, 5, 10, 26, 27])
@pytest.mark.parametrize("pruner", ["mo_asha", "median", "break_even"])
def test_where_reports_are_some_epochs_apart_the_first_one_after_a_rung_is_judged_at_it(pruner, stride):
    policy = ExternalPolicy(objectives=OBJECTIVES, epochs=EPOCHS, pruner=pruner, space=SPACE)
    reports = range(stride, EPOCHS + 1, stride)
    firsts = {next(epoch for epoch in (*reports, EPOCHS) if epoch >= rung) for rung in policy.rungs}
    for number in range(4):
        policy.started(number, {"rate": 0.1})
        decided = set()
        for epoch in reports:
            if policy.measured(number, epoch, {"accuracy": 0.5}, paid_usd=0.01 * epoch) is not None:
                decided.add(epoch)
                policy.started(number, {})
        assert decided == firsts - {EPOCHS}


@pytest.mark.parametrize("strides", [(5,), (10,), (1, 10)])
@pytest.mark.parametrize(("pruner", "sampler"), [("break_even", "random"), ("mo_asha", "cokriging")])
def test_what_passes_rungs_between_its_reports_counts_at_them(pruner, sampler, strides):
    # Without values at the first rung break_even would pause all trials, and skipped rungs would leave NaN behind.
    objectives = [Objective(metric="error"), Objective(metric="cost_usd")]
    policy = ExternalPolicy(objectives=objectives, epochs=50, pruner=pruner, sampler=sampler, space=SPACE)
    decisions = []
    for number, rate in enumerate(RATES[3:15]):
        policy.started(number, {"rate": rate})
        stride = strides[number % len(strides)]
        for epoch in range(stride, 51, stride):
            decision = policy.measured(number, epoch, {"error": error(rate, epoch)}, paid_usd=0.01 * epoch)
            decisions += [] if decision is None else [decision]
            if decision is not None and decision.action != "continue":
                break
    assert {decision.action for decision in decisions[4:]} > {"continue"}
    numbers = [value for one in decisions for value in one.numbers.values() if isinstance(value, float)]
    assert all(math.isfinite(value) for value in numbers)
    table = np.array([[trial.at.get(rung, (math.nan,))[0] for rung in (2, 5, 10)] for trial in policy._trials.values()])
    assert not (np.isnan(table[:, :-1]) & ~np.isnan(table[:, 1:])).any()
    assert policy.suggestion()


def test_what_is_paid_behind_a_rung_is_no_cost_at_the_rung() -> None:
    policy = ExternalPolicy(objectives=OBJECTIVES, epochs=EPOCHS, pruner="mo_asha")
    policy.started(0, {})
    policy.measured(0, 10, {"accuracy": 0.5}, paid_usd=1.0)
    assert policy._history.at_rung == {3: {0: (-0.5, pytest.approx(0.3))}, 9: {0: (-0.5, pytest.approx(0.9))}}
    assert policy._trials[0].ends[9] == (-0.5, pytest.approx(2.7))


def test_what_is_paused_may_go_on_and_what_has_ended_may_not() -> None:
    promotion = {"name": "mo_asha", "variant": "promotion"}
    policy = ExternalPolicy(objectives=OBJECTIVES, epochs=EPOCHS, pruner=promotion)
    for number in range(6):
        policy.started(number, {})
        decision = policy.measured(number, 3, {"accuracy": number / 10}, paid_usd=1.0)
        assert decision.action == "pause"
    assert policy.paused == set(range(6))
    thaw = policy.thaw()
    assert thaw.number == 5
    policy.started(5, {})
    assert 5 not in policy.paused
    policy.ended(4)
    assert policy.thaw() is None  # the two best of six were 5 and 4


def test_what_is_missing_is_said_in_one_line_and_an_objective_that_is_not_finite_ends_a_trial() -> None:
    policy = ExternalPolicy(objectives=OBJECTIVES, epochs=EPOCHS)
    policy.started(0, {})
    decision = policy.measured(0, 2, {"accuracy": math.nan})
    assert decision.action == "stop"
    policy.ended(0)
    assert policy._trials[0].state == "failed", "it stays so"
    with pytest.raises(SpecError, match=r"space: found null, allowed: a Space"):
        ExternalPolicy(objectives=OBJECTIVES, epochs=EPOCHS, pruner="break_even")
    with pytest.raises(SpecError, match=r"search\.pruner: found 'asha'"):
        ExternalPolicy(objectives=OBJECTIVES, epochs=EPOCHS, pruner="asha")


def all_at_the_first_rung(**options: Any) -> tuple[ExternalPolicy, list[Decision]]:
    """A policy with `break_even` that has seen a trial of each of `RATES` up to the first rung, and its decisions."""
    policy = ExternalPolicy(objectives=OBJECTIVES, epochs=EPOCHS, pruner="break_even", space=SPACE, slots=8, **options)
    decisions = []
    for number, rate in enumerate(RATES):
        policy.started(number, {"rate": rate})
        for epoch in range(1, decision_rungs(EPOCHS)[0] + 1):  # epoch 1 becomes a rung later
            metrics = {"accuracy": 1 - error(rate, epoch), "gap": rate}
            decision = policy.measured(number, epoch, metrics, paid_usd=0.01 * epoch)
            if decision is not None and decision.action == "pause":
                break
        assert decision is not None
        decisions.append(decision)
    return policy, decisions


def test_break_even_compares_with_what_may_be_started() -> None:
    policy, decisions = all_at_the_first_rung()
    actions = [decision.action for decision in decisions]
    assert set(actions) == {"continue", "pause"}
    assert policy.paused == {number for number, action in enumerate(actions) if action == "pause"}
    thaws = [policy.thaw(upcoming={"rate": 1e-4 * (1 + n)}) for n in range(8)]  # poor ones, time and again
    assert thaws[-1].number in policy.paused


def test_a_trial_that_violates_a_constraint_is_ranked_behind_all_that_keep_it() -> None:
    def actions(**options: Any) -> list[str]:
        policy = ExternalPolicy(objectives=OBJECTIVES, epochs=EPOCHS, pruner="mo_asha", **options)
        found = []
        for number in range(8):
            policy.started(number, {})
            metrics = {"accuracy": 0.1 * number, "val_loss": 0.2 if number < 4 else 0.1 * number}
            decision = policy.measured(number, 3, metrics, paid_usd=1.0)
            found.append(decision.action)
        return found

    assert actions() == ["continue"] * 8, "each is more accurate than those before"
    assert actions(constraints=[{"metric": "val_loss", "max": 0.3}]) == ["continue"] * 4 + ["stop"] * 4


def test_a_bounded_objective_counts_as_well() -> None:
    policy = ExternalPolicy(objectives=OBJECTIVES, epochs=EPOCHS, constraints=[{"metric": "accuracy", "min": 0.5}])
    for number, (accuracy, usd) in enumerate([(0.6, 2.0), (0.4, 1.0)]):
        policy.started(number, {})
        decision = policy.measured(number, 3, {"accuracy": accuracy}, paid_usd=usd)
    assert decision.action == "stop"
    assert decision.numbers["violation"] == pytest.approx(0.2)


@pytest.mark.medium
def test_break_even_pays_nothing_for_what_will_not_be_feasible() -> None:
    free, unbound = all_at_the_first_rung()
    held, bound = all_at_the_first_rung(constraints=[{"metric": "gap", "max": 0.005}])
    best = RATES.index(min(RATES, key=lambda rate: error(rate, EPOCHS)))
    assert float(bound[best].numbers["own_price"] or 0) < 0.01 * float(unbound[best].numbers["own_price"] or 0)
    thawed, among_feasible = free.thaw(upcoming={"rate": 1e-4}), held.thaw(upcoming={"rate": 1e-4})
    assert RATES[thawed.number] > 0.005
    assert RATES[among_feasible.number] <= 0.005


def test_what_can_never_become_feasible_is_stopped_before_its_last_epoch() -> None:
    """Its last epoch is over anyway, and a trial that ends there is complete."""
    policy = ExternalPolicy(
        objectives=OBJECTIVES, epochs=EPOCHS, constraints=[{"metric": "model_parameters", "max": 100}]
    )
    for number, epoch in enumerate((1, EPOCHS)):
        policy.started(number, {})
        decision = policy.measured(number, epoch, {"accuracy": 0.9, "model_parameters": 101})
        assert (None if decision is None else decision.reason) == (
            "infeasible for good: model_parameters was 101, above the constraint's max 100" if epoch == 1 else None
        )


@pytest.mark.medium
@pytest.mark.parametrize("sampler", ["tpe", "cokriging"])
def test_suggestions_stay_where_it_is_feasible(sampler: str) -> None:
    """The best rate is 0.03; the lower third of the range, on its scale, is allowed."""

    def late(**options: Any) -> int:
        """How many of the second twenty suggestions are allowed."""
        policy = ExternalPolicy(objectives=OBJECTIVES, epochs=9, space=SPACE, pruner="none", sampler=sampler, **options)
        rates = []
        for number in range(40):
            rates.append(float(policy.suggestion()["rate"]))  # type: ignore[arg-type]
            policy.started(number, {"rate": rates[-1]})
            for epoch in range(1, 10):
                metrics = {"accuracy": 1 - error(rates[-1], epoch), "gap": rates[-1]}
                policy.measured(number, epoch, metrics, paid_usd=0.01 * epoch)
            policy.ended(number)
        return sum(rate <= 0.002 for rate in rates[20:])

    assert late() <= 3
    assert late(constraints=[{"metric": "gap", "max": 0.002}]) >= 9


def test_a_wrong_constraint_and_a_missing_metric_are_named() -> None:
    with pytest.raises(SpecError, match=r"adapter: constraints\.0\.max: found 'five', allowed: a finite number"):
        ExternalPolicy(objectives=OBJECTIVES, epochs=EPOCHS, constraints=[{"metric": "latency_ms", "max": "five"}])
    policy = ExternalPolicy(objectives=OBJECTIVES, epochs=EPOCHS, constraints=[{"metric": "latency_ms", "max": 5}])
    policy.started(0, {})
    with pytest.raises(ValueError, match=r"did not report the metric 'latency_ms'\. Did you mean 'latency_s'"):
        policy.measured(0, 1, {"accuracy": 0.9, "latency_s": 0.004})
    with pytest.raises(ValueError, match="objectives: the trial did not report the metric 'accuracy'"):
        policy.measured(0, 1, {"latency_ms": 4.0})


def optimised(pruner: Any, *, sampler: optuna.samplers.BaseSampler, jobs: int = 1, **options: Any) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)
    pruning = MultiObjectivePruning(study, epochs=EPOCHS, pruner=pruner, jobs=jobs, **options)

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        rate = trial.suggest_float("rate", 1e-4, 1.0, log=True)
        for epoch in range(1, EPOCHS + 1):
            values = (error(rate, epoch), rate)
            trial.set_user_attr("epochs", epoch)
            if pruning.should_prune(trial, epoch, values, metrics={"gap": rate}, paid_usd=0.01 * epoch):
                raise optuna.TrialPruned
        return values

    study.optimize(objective, n_trials=60, n_jobs=jobs)
    return study


@pytest.mark.medium
@pytest.mark.parametrize("pruner", ["mo_asha", {"name": "mo_asha", "variant": "promotion"}, "median", "break_even"])
def test_an_optuna_study_with_two_objectives_is_pruned(pruner: Any) -> None:
    study = optimised(pruner, sampler=optuna.samplers.RandomSampler(seed=0), space=SPACE)
    pruned = [trial for trial in study.trials if trial.state == optuna.trial.TrialState.PRUNED]
    assert 10 < len(pruned) <= 60
    assert all(trial.user_attrs["prune_reason"] for trial in pruned)
    assert {trial.user_attrs["epochs"] for trial in pruned} <= set(range(1, EPOCHS))
    finished = [trial for trial in study.trials if trial.state == optuna.trial.TrialState.COMPLETE]
    assert len(finished) + len(pruned) == 60


def test_an_optuna_study_completes_what_keeps_its_constraints_and_hears_of_metrics_that_are_not_told() -> None:
    def late(**options: Any) -> list[float]:
        """Rates of the complete trials once there are some to compare with."""
        study = optimised("mo_asha", sampler=optuna.samplers.RandomSampler(seed=0), **options)
        complete = [trial for trial in study.trials[12:] if trial.state == optuna.trial.TrialState.COMPLETE]
        return [float(trial.params["rate"]) for trial in complete]

    assert max(late()) > 0.002
    assert 0 < max(late(constraints=[{"metric": "gap", "max": 0.002}])) <= 0.002
    study = optuna.create_study(directions=["minimize", "minimize"])
    pruning = MultiObjectivePruning(study, epochs=EPOCHS, constraints=[{"metric": "latency_ms", "max": 5}])
    with pytest.raises(ValueError, match="constraints: the trial did not report the metric 'latency_ms'"):
        pruning.should_prune(study.ask(), 1, (0.5, 0.1))


@pytest.mark.parametrize(
    ("epoch", "values", "says"),
    [
        (1, (0.5,), "values: found 1, allowed: 2, one for each direction"),
        (1, (0.5, 0.1, 0.2), "values: found 3, allowed: 2"),
        (0, (0.5, 0.1), f"epoch: found 0, allowed: a whole number from 1 to {EPOCHS}"),
        (EPOCHS + 1, (0.5, 0.1), f"epoch: found {EPOCHS + 1}"),
        (1.5, (0.5, 0.1), "epoch: found 1.5"),
    ],
)
def test_an_optuna_trial_that_tells_nonsense_hears_of_it(epoch: Any, values: Any, says: str) -> None:
    study = optuna.create_study(directions=["minimize", "minimize"])
    pruning = MultiObjectivePruning(study, epochs=EPOCHS)
    with pytest.raises(ValueError, match=says):
        pruning.should_prune(study.ask(), epoch, values)


def test_a_trial_that_has_raised_or_is_complete_has_no_claim_any_more() -> None:
    study = optuna.create_study(directions=["minimize", "minimize"])
    pruning = MultiObjectivePruning(study, epochs=EPOCHS, pruner="break_even", space=SPACE)

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        rate = trial.suggest_float("rate", 1e-4, 1.0, log=True)
        for epoch in range(1, EPOCHS + 1):
            pruning.should_prune(trial, epoch, (error(rate, epoch), rate), paid_usd=0.01 * epoch)
            if trial.number == 1 and epoch == EPOCHS // 2:
                raise RuntimeError("the device is gone")
        return error(rate, EPOCHS), rate

    study.optimize(objective, n_trials=4, catch=(RuntimeError,))
    states = [seen.state for seen in pruning._policy._trials.values()]
    assert states[:3] == ["ended", "failed", "ended"]


def test_the_sampler_goes_on_beside_pruned_trials_and_threads_do_no_harm() -> None:
    study = optimised("mo_asha", sampler=optuna.samplers.TPESampler(seed=0, n_startup_trials=5), jobs=4)
    states = [trial.state.name for trial in study.trials]
    assert len(states) == 60
    assert set(states) == {"COMPLETE", "PRUNED"}
    assert study.best_trials


def test_a_suggestion_learns_from_what_was_measured() -> None:
    policy = ExternalPolicy(objectives=OBJECTIVES, epochs=EPOCHS, space=SPACE, sampler="auto", pruner="none", seed=1)
    for number in range(24):
        rate = float(policy.suggestion()["rate"])
        policy.started(number, {"rate": rate})
        for epoch in range(1, EPOCHS + 1):
            policy.measured(number, epoch, {"accuracy": 1 - error(rate, epoch)}, paid_usd=0.01 * epoch)
        policy.ended(number)
    assert abs(math.log10(float(policy.suggestion()["rate"])) + 1.5) < 1.0
    with pytest.raises(ValueError, match="need a search space"):
        ExternalPolicy(objectives=OBJECTIVES, epochs=EPOCHS).suggestion()


def tuned(folder: Path, *, samples: int, stride: int = 1, **options: Any) -> tuple[list[tuple[float, int]], str]:
    """What each trial of a Tuner ended with: its rate and its epochs; and the scheduler's line."""
    from ray import cloudpickle, tune

    from automl.adapters.for_ray_tune import MultiObjectiveScheduler

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test

    class Curve(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.rate, self.epoch = config["rate"], 0

        def step(self) -> dict[str, Any]:
            self.epoch += stride
            metrics = {"error": error(self.rate, self.epoch), "model_parameters": 1000 * self.rate}
            return metrics | {"epoch": self.epoch}

        def save_checkpoint(self, folder: str) -> dict[str, Any]:
            return {"epoch": self.epoch}

        def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
            self.epoch = checkpoint["epoch"]

        def reset_config(self, config: dict[str, Any]) -> bool:
            self.setup(config)
            return True

    # Two workers that a trial needs half of the cluster for run side by side.
    trainable = tune.with_resources(Curve, {"cpu": 2})
    objectives = [("error", "min"), ("cost_usd", "min")]
    scheduler = MultiObjectiveScheduler(
        objectives=objectives, epochs=12, time_attr="epoch", space=SPACE, slots=2, **options
    )
    config = tune.TuneConfig(
        scheduler=scheduler, search_alg=scheduler.searcher(), num_samples=samples, reuse_actors=True
    )
    tuner = tune.Tuner(trainable, tune_config=config, run_config=tune.RunConfig(storage_path=str(folder), verbose=0))
    interrupted = signal.getsignal(signal.SIGINT)
    try:
        results = tuner.fit()
    finally:  # a Tuner leaves its own handler, which keeps the next interrupt to itself
        signal.signal(signal.SIGINT, interrupted)
    assert not results.errors
    ended = [(float((one.config or {})["rate"]), int((one.metrics or {})["epoch"])) for one in results]  # type: ignore[attr-defined]
    return ended, scheduler.debug_string()


@pytest.mark.large
@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")  # of Ray Tune's own
@pytest.mark.usefixtures("ray_address")
def test_a_tuner_pauses_and_thaws_and_leaves_nothing_waiting(tmp_path: Path) -> None:
    ended, line = tuned(tmp_path, samples=14)
    assert len(ended) == 14
    assert line == "0 trials stopped, 0 paused"
    assert any(epochs < 12 for _, epochs in ended), "all were trained to their end"
    assert any(epochs == 12 for _, epochs in ended)
    best = min(ended, key=lambda one: error(one[0], one[1]))
    assert abs(math.log10(best[0]) + 1.5) < 0.7


@pytest.mark.large
@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")  # of Ray Tune's own
@pytest.mark.usefixtures("ray_address")
def test_a_tuner_whose_reports_jump_over_rungs_and_the_end_stops_there_and_what_cannot_keep_constraints(tmp_path):
    ended, line = tuned(
        tmp_path, samples=14, stride=5, pruner={"name": "mo_asha", "grace": 2, "eta": 2}, sampler="random",
        constraints=[{"metric": "model_parameters", "max": 100}],
    )  # fmt: skip
    assert {epochs for rate, epochs in ended if rate > 0.1} == {5}
    feasible = [epochs for rate, epochs in ended if rate <= 0.1]
    assert {*feasible} <= {5, 10, 15}
    assert 15 in feasible
    assert int(line.split()[0]) == sum(epochs < 12 for _, epochs in ended) > len(ended) - len(feasible)


def test_a_mode_or_a_configuration_that_may_not_be_is_refused() -> None:
    from automl.adapters.for_ray_tune import MultiObjectiveScheduler

    with pytest.raises(SpecError, match="found 'least', allowed: min, max"):
        MultiObjectiveScheduler(objectives=[("error", "least")], epochs=3)
    space = Space.from_dict({"layers": (1, 8), "width": (16, 256), "constraints": ["layers * width <= 512"]})
    policy = ExternalPolicy(objectives=OBJECTIVES, epochs=EPOCHS, space=space)
    policy.started(0, {"layers": 2, "width": 256})
    with pytest.raises(SpaceError, match=r"^constraints: found layers=8, width=256, allowed: configurations"):
        policy.started(1, {"layers": 8, "width": 256})
