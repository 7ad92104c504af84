"""The asker: seeded asks, resuming, duplicates, and what samplers are told."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest

from search_spaces.drawing import derived_seed
from search_spaces.space import Space
from studies.control.machine.live_trials import Trial
from studies.money.budget import Limits
from studies.records.records import Objective
from studies.search.observations import Observation
from studies.search.policy import Policy
from studies.search.pruners.none import NoPruner
from studies.search.samplers.optuna_suggester import OptunaSuggester, sampler_factory
from studies.search.samplers.suggester import REDRAWS, Suggestion
from studies.search.user_objects import SearchError
from tests.support.simulated_study import SPACE, SimulatedStudy, smooth_curve

TWO = ("minimize", "minimize")
TREE = Space.from_dict(
    {
        "optimizer": {"type": "categorical", "choices": ["sgd", "adamw"]},
        "momentum": {"type": "float", "low": 0.0, "high": 0.99, "when": {"optimizer": "sgd"}},
        "weight_decay": {"type": "float", "low": 1e-6, "high": 0.1, "log": True, "when": {"optimizer": "adamw"}},
        "depth": {"type": "int", "low": 1, "high": 9, "step": 2},
    }
)


def suggester(sampler: str, *, space: Space = SPACE, seed: int = 3, attributes: Mapping[str, Any] | None = None,
              directions: tuple[Any, ...] = TWO) -> OptunaSuggester:  # fmt: skip
    return OptunaSuggester(
        space=space, directions=directions, sampler=sampler, seed=seed, study_attributes=dict(attributes or {})
    )


def values_of(params: Mapping[str, Any]) -> tuple[float, float]:
    rate, width = math.log10(float(params["learning_rate"])), float(params["width"])
    return (rate + 2) ** 2 + 20 / width, width


def told(number: int, suggestion: Suggestion, *, running: bool = False) -> Observation:
    return Observation(
        trial_id=number + 1, params=suggestion.params, outcome="running" if running else "finished",
        values=None if running else values_of(suggestion.params), attributes=suggestion.trial_attributes,
    )  # fmt: skip


def search(sampler: str, trials: int, *, rebuild: bool, lag: int = 1, seed: int = 3) -> list[Suggestion]:
    """Ask so many times, the latest trials still running; with a new suggester for every ask, or one for all."""
    asker, made = suggester(sampler, seed=seed), list[Suggestion]()
    for number in range(trials):
        if rebuild and made:
            asker = suggester(sampler, seed=seed, attributes=made[-1].study_attributes)
        history = tuple(told(i, one, running=i >= number - lag) for i, one in enumerate(made))
        made.append(asker.suggest(number, history))
    return made


# ---------------------------------------------------------------------- seeds


@pytest.mark.medium
@pytest.mark.parametrize(("sampler", "trials"), [("random", 12), ("tpe", 25), ("nsga2", 120), ("gp", 12)])
def test_a_rebuilt_sampler_suggests_what_an_uninterrupted_one_does(sampler: str, trials: int) -> None:
    whole, parts = search(sampler, trials, rebuild=False), search(sampler, trials, rebuild=True)
    assert [one.params for one in parts] == [one.params for one in whole]
    assert [one.trial_attributes for one in parts] == [one.trial_attributes for one in whole]
    assert len({str(one.params) for one in whole}) == trials, "a rebuilt seeded sampler must not repeat itself"
    generations = [value for one in parts for key, value in one.trial_attributes.items() if "generation" in key]
    if sampler == "nsga2":
        assert max(generations) >= 1, "it would be back at generation 0 for ever"
        assert generations == sorted(generations)


def test_asks_depend_on_the_study_seed_and_on_the_number() -> None:
    asker = suggester("random")
    first = asker.suggest(0, ()).params
    assert suggester("random").suggest(0, ()).params == first
    assert suggester("random", seed=4).suggest(0, ()).params != first
    assert asker.suggest(1, ()).params != first
    assert asker.suggest(0, ()).params == first, "an ask leaves no trace in the asker"


@pytest.mark.medium
@pytest.mark.parametrize(("sampler", "trials"), [("tpe", 30), ("nsga2", 60)])
def test_a_resumed_study_asks_as_if_it_had_never_stopped(tmp_path: Path, sampler: str, trials: int) -> None:
    """Through the store: attributes of trials and study survive as JSON."""
    params = []
    for name, budgets in (("whole", [1.0]), ("parts", [0.004, 0.01, 0.0101, 1.0])):
        study = SimulatedStudy(tmp_path / name, sampler=sampler, slots=1, epochs=1, policy=Policy(pruner=NoPruner()),
                               curve=lambda p, w: smooth_curve(p, w, epochs=1))  # fmt: skip
        for usd in budgets:
            study.run(Limits(trials=trials, usd=usd))
        params.append([dict(trial.params) for trial in study.record().started])
    assert len(params[0]) == trials
    assert params[0] == params[1]


# ---------------------------------------------------------------------- duplicates


def few(count: int) -> Space:
    return Space.from_dict({"depth": {"type": "int", "low": 1, "high": count}})


def plain_told(number: int, params: Mapping[str, Any], values: tuple[float, ...] | None = (1.0, 1.0)) -> Observation:
    return Observation(
        trial_id=number + 1, params=dict(params), outcome="finished" if values else "running", values=values
    )


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_repeated_suggestion_is_redrawn(sampler: str) -> None:
    """With nine of ten tried, one draw is new with a chance of a tenth, eleven with one of two thirds."""
    history = tuple(plain_told(i, {"depth": i + 1}) for i in range(5))
    new = [suggester(sampler, space=few(10), seed=seed).suggest(5, history).params["depth"] for seed in range(40)]
    assert sum(int(depth) > 5 for depth in new) >= 38  # type: ignore[arg-type]


def test_after_ten_redraws_a_repetition_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    asker, made = suggester("random", space=few(2)), []
    make = asker._make_sampler
    asker._make_sampler = lambda seed: (made.append(seed), make(seed))[1]  # type: ignore[func-returns-value]
    both = tuple(plain_told(i, {"depth": i + 1}) for i in range(2))
    assert asker.suggest(2, both).params["depth"] in {1, 2}
    assert len(made) == len(set(made)) == REDRAWS + 1 == 11


# ---------------------------------------------------------------------- conditional parameters


@pytest.mark.parametrize("sampler", ["random", "tpe", "nsga2"])
def test_inactive_parameters_are_left_out(sampler: str) -> None:
    asker, history = suggester(sampler, space=TREE), list[Observation]()
    for number in range(14):
        suggestion = asker.suggest(number, tuple(history))
        params = suggestion.params
        TREE.check(dict(params))
        assert ("momentum" in params) == (params["optimizer"] == "sgd")
        assert ("weight_decay" in params) == (params["optimizer"] == "adamw")
        assert params["depth"] in {1, 3, 5, 7, 9}
        history.append(plain_told(number, params, (float(params["depth"]), float(number % 5))))
    assert {one.params["optimizer"] for one in history} == {"sgd", "adamw"}


# ---------------------------------------------------------------------- what samplers are told


OBJECTIVES = (Objective(metric="val_error"), Objective(metric="cost_usd"))


def trial_of(state: Any, epochs: int, **more: Any) -> Trial:
    metrics = {"val_error": 0.25, "cost_usd": 0.02 * epochs, "wall_seconds": 3.0 * epochs} if epochs else {}
    return Trial(id=1, number=0, params={"depth": 1}, world_size=1, origin="sampler", state=state, epochs_done=epochs,
                 last_metrics=metrics, epoch_seconds=[2.0] * epochs, epoch_costs_nano_usd=[15_000_000] * epochs,
                 **more)  # fmt: skip


@pytest.mark.parametrize(
    ("trial", "outcome", "values"),
    [
        (trial_of("complete", 10), "finished", (0.25, 0.2)),
        (trial_of("pruned", 4), "finished", (0.25, 0.08 + 6 * 0.015)),  # what its start cost is paid once
        (trial_of("paused", 5), "finished", (0.25, 0.1 + 5 * 0.015)),
        (trial_of("paused", 0), "running", None),
        (trial_of("running", 5), "running", None),
        (trial_of("pruned", 0), "failed", None),
        (trial_of("failed", 3, failure="out_of_memory"), "infeasible", None),
        (trial_of("failed", 0, failure="out_of_memory"), "infeasible", None),
        (trial_of("failed", 3, failure="lost"), "failed", None),
        (trial_of("failed", 3, failure="timeout"), "failed", None),
    ],
)
def test_values_are_told_with_cumulative_ones_carried_on_to_the_last_epoch(
    trial: Trial, outcome: str, values: tuple[float, ...] | None
) -> None:
    one = trial.observation(OBJECTIVES, 10)
    assert one.outcome == outcome
    assert one.values == (pytest.approx(values) if values else None)


def test_a_diverged_trial_is_told_as_the_worst_seen() -> None:
    diverged = trial_of("failed", 3, failure="diverged").observation(OBJECTIVES, 10)
    assert diverged.outcome == "finished"
    history = (plain_told(0, {"depth": 1}, (0.5, 7.0)), plain_told(1, {"depth": 2}, (0.25, 9.0)), diverged)
    frozen = suggester("random", space=few(9))._study_with(history).trials
    assert [trial.values for trial in frozen] == [[0.5, 7.0], [0.25, 9.0], [0.5, 9.0]]
    maximized = suggester("random", space=few(9), directions=("maximize", "minimize"))._study_with(history).trials
    assert maximized[2].values == [0.25, 9.0], "the worst is the smallest where larger is better"
    whole_numbers = Observation(trial_id=1, params={"depth": 1}, outcome="finished", values=(3, 4))
    (trial,) = suggester("tpe", space=few(9))._study_with((whole_numbers,)).trials
    assert all(type(value) is float for value in trial.values)
    alone = suggester("random", space=few(9))._study_with((diverged,)).trials
    assert alone[0].state == optuna.trial.TrialState.FAIL, "before anything was seen there is no worst"


def test_a_trial_that_ran_out_of_memory_is_infeasible_and_nothing_is_learned_from_a_lost_one() -> None:
    memory = Observation(trial_id=3, params={"depth": 9}, outcome="infeasible")
    history = (plain_told(0, {"depth": 1}), plain_told(1, {"depth": 2}), memory)
    trials = suggester("random", space=few(9))._study_with(history).trials
    assert [all(v <= 0 for v in trial.constraints.values()) for trial in trials] == [True, True, False]
    assert all(trial.constraints for trial in trials)
    lost = Observation(trial_id=1, params={"depth": 1}, outcome="failed")
    trials = suggester("random", space=few(9))._study_with((lost, plain_told(1, {"depth": 2}))).trials
    assert trials[0].state == optuna.trial.TrialState.FAIL


def test_tpe_keeps_away_from_what_runs_out_of_memory() -> None:
    space = Space.from_dict(
        {
            "size": {"type": "categorical", "choices": ["small", "medium", "large", "huge"]},
            "rate": {"type": "float", "low": 0.0, "high": 1.0},
        }
    )
    asker, history = suggester("tpe", space=space, directions=("minimize",)), list[Observation]()
    for number in range(40):
        params = asker.suggest(number, tuple(history)).params
        fits = params["size"] in {"small", "medium"}
        values = (float(params["rate"]),) if fits else None  # type: ignore[arg-type]
        history.append(
            Observation(trial_id=number + 1, params=params, outcome="finished" if fits else "infeasible", values=values)
        )
    assert sum(one.outcome == "finished" for one in history[-20:]) >= 15, "half of them would be chance"


def test_tpe_learns_from_pruned_trials_cost_only_as_carried_on(tmp_path: Path) -> None:
    """What the sampler is asked with, in a whole study with stopped trials."""
    study = SimulatedStudy(tmp_path, sampler="random")
    asked: list[Any] = []

    def watch(controller: Any) -> None:
        suggested = controller._suggested
        controller._suggested = lambda command: (asked.append(command), suggested(command))[1]

    study.run(Limits(trials=20), before=watch)
    record = study.record()
    last = {one.trial_id: one for one in asked[-1].history}
    stopped = [trial for trial in record.started if trial.state == "pruned" and trial.id in last]
    stopped = [trial for trial in stopped if last[trial.id].outcome == "finished"]
    assert stopped
    for trial in stopped:
        error, cost = last[trial.id].values
        assert error == trial.epochs[-1].metrics["val_error"]
        assert cost == pytest.approx(trial.epochs[-1].metrics["cost_usd"] * 27 / len(trial.epochs))


# ---------------------------------------------------------------------- other samplers


class Eager(optuna.samplers.RandomSampler):
    """A user's own sampler."""

    made: list[int] = []  # noqa: RUF012 - looked at by the test

    def __init__(self, seed: int) -> None:
        Eager.made.append(seed)
        super().__init__(seed=seed)


def tpe_without_startup(seed: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=1)


class NotASampler:
    def __init__(self, seed: int) -> None:
        self.seed = seed


def test_a_users_own_sampler_is_made_anew_for_each_ask() -> None:
    Eager.made.clear()
    asker = suggester(f"{__name__}:Eager")
    Eager.made.clear()
    first, second = asker.suggest(0, ()), asker.suggest(1, ())
    assert Eager.made == [derived_seed("ask", 3, 0, 0), derived_seed("ask", 3, 1, 0)]
    assert first.params != second.params
    assert suggester(f"{__name__}:tpe_without_startup").suggest(0, ()).params


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_such_module:Thing", "ModuleNotFoundError"),
        (f"{__name__}:Missing", "AttributeError"),
        (f"{__name__}:few", "TypeError"),
        (f"{__name__}:NotASampler", "returns a NotASampler. Name a class or function that returns an Optuna sampler"),
    ],
)
def test_what_is_no_sampler_is_refused_in_one_line(name: str, says: str) -> None:
    with pytest.raises(SearchError, match=says) as raised:
        sampler_factory(name)
    assert "\n" not in str(raised.value)


@pytest.mark.medium
@pytest.mark.parametrize("name", ["tpe", "random", "nsga2", "gp"])
def test_a_constant_of_the_space_is_in_every_suggestion(name: str) -> None:
    space = Space.from_dict({"depth": {"type": "int", "low": 1, "high": 9}, "optimizer": "adamw", "rate": 0.1})
    asker, history = suggester(name, space=space), list[Observation]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        for number in range(11):
            params = asker.suggest(number, tuple(history)).params
            assert (params["optimizer"], params["rate"]) == ("adamw", 0.1)
            history.append(plain_told(number, params, (float(number), 1.0)))
