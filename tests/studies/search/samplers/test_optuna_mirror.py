"""The Optuna study that is kept between suggestions is the one that would be made anew from the whole history."""

import math
import random
from typing import Any

import optuna
import pytest

from search_spaces.space import Space
from studies.search.observations import Observation, Outcome
from studies.search.samplers import optuna_mirror
from studies.search.samplers.optuna_mirror import OptunaMirror
from studies.search.samplers.optuna_suggester import MOST_TRIALS, OptunaSuggester, thinned

SPACE = Space.from_dict(
    {"rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True}, "width": {"type": "int", "low": 1, "high": 64}}
)
OUTCOMES: tuple[Outcome, ...] = ("running", "finished", "failed", "infeasible")


def observed(number: int, rng: random.Random, params: Any, objectives: int, *, bounds: bool) -> Observation:
    outcome = rng.choice(OUTCOMES)
    values = None
    if outcome == "finished":
        values = tuple(rng.choice([math.nan, math.inf, rng.random(), float(rng.randint(0, 3))]) if rng.random() < 0.2
                       else rng.random() for _ in range(objectives))  # fmt: skip
    excesses = {"latency_ms": rng.choice([None, rng.uniform(-1, 1)])} if bounds else {}
    attributes = {"generation": rng.randint(0, 2)} if number % 3 == 0 else {}
    return Observation(
        trial_id=number, params=params, outcome=outcome, values=values, attributes=attributes, excesses=excesses
    )


def contents(study: optuna.Study) -> list[tuple[Any, ...]]:
    return [
        (one.number, one._trial_id, one.state, one.params, one.distributions, one.values, one.system_attrs)
        for one in study.get_trials(deepcopy=False)
    ]


@pytest.mark.parametrize(("objectives", "bounds", "seed"), [(1, False, 0), (2, True, 0), (1, True, 1), (2, False, 2)])
def test_a_study_that_follows_is_the_study_that_is_made_anew(objectives: int, seed: int, *, bounds: bool) -> None:
    """Trials start, end, are paused, go on, fail and diverge; asking in between leaves nothing behind."""
    rng = random.Random(seed)
    directions: Any = ("minimize", "maximize")[:objectives]
    kept = OptunaMirror(SPACE, directions, {"a": 1})
    history: list[Observation] = []
    for step in range(60):
        for _ in range(rng.randint(0, 2)):
            params = {"rate": 10 ** rng.uniform(-4, 0), "width": rng.randint(1, 64)}
            history.append(observed(len(history), rng, params, objectives, bounds=bounds))
        for number in rng.sample(range(len(history)), min(2, len(history))):
            history[number] = observed(number, rng, history[number].params, objectives, bounds=bounds)
        if step == 40:
            history = history[: len(history) // 2]  # another study's history, which no controller hands over
        kept.follow(tuple(history))
        fresh = OptunaMirror(SPACE, directions, {"a": 1})
        fresh.follow(tuple(history))
        assert repr(contents(kept.study)) == repr(contents(fresh.study))
        if objectives == 1 and any(one.state.name == "COMPLETE" for one in fresh.study.trials):
            best = [one.study._storage.get_best_trial(one.study._study_id).number for one in (kept, fresh)]
            assert best[0] == best[1]
        kept.study.enqueue_trial({"rate": 0.5})
        for study in (kept.study, kept.study):
            asked = study.ask()
            asked.suggest_float("rate", 1e-4, 1.0, log=True)
            study.tell(asked, state=optuna.trial.TrialState.FAIL)


def test_a_suggestion_looks_only_at_trials_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    plain = optuna_mirror.as_trial

    def counting(observation: Observation, *arguments: Any, **more: Any) -> optuna.trial.FrozenTrial:
        made.append(observation.trial_id)
        return plain(observation, *arguments, **more)

    monkeypatch.setattr(optuna_mirror, "as_trial", counting)
    suggester = OptunaSuggester(space=SPACE, directions=("minimize",), sampler="random", seed=0, study_attributes={})
    history = tuple(
        Observation(trial_id=number, params={"rate": 0.1, "width": 1 + number % 64}, outcome="finished", values=(0.5,))
        for number in range(300)
    )
    suggester.suggest(300, history)
    assert len(made) == 300
    made.clear()
    new = Observation(trial_id=300, params={"rate": 0.2, "width": 3}, outcome="running", values=None)
    changed = Observation(trial_id=7, params=history[7].params, outcome="finished", values=(0.4,))
    suggester.suggest(301, (*history[:7], changed, *history[8:], new))
    assert made == [7, 300]


def test_a_long_history_is_thinned_to_the_best_some_and_the_latest_trials() -> None:
    rng = random.Random(0)
    history = tuple(
        Observation(
            trial_id=number,
            params={"rate": 10 ** rng.uniform(-4, 0), "width": 1 + number % 64},
            outcome="failed" if number % 7 == 0 else "finished",
            values=None if number % 7 == 0 else (rng.random(), rng.random()),
            excesses={"latency_ms": 1.0 if number % 5 == 0 else -1.0},
        )
        for number in range(10_300)
    )
    seen = thinned(history, ("minimize", "maximize"), seed=3)
    numbers = [one.trial_id for one in seen]
    assert numbers == sorted(set(numbers))
    assert numbers[-300:] == list(range(10_000, 10_300)), "running trials and the latest results are among them"
    assert MOST_TRIALS <= len([one for one in numbers if one < 10_000]) <= MOST_TRIALS + 30
    assert thinned(history, ("minimize", "maximize"), seed=3) == seen  # a resumed study sees the same
    feasible = [one for one in history[:10_000] if one.values is not None and one.trial_id % 5]
    best = max(feasible, key=lambda one: (one.values or ())[1] - (one.values or ())[0])
    assert best in seen
    short = history[: 2 * MOST_TRIALS - 1]
    assert thinned(short, ("minimize", "maximize"), seed=3) == short


def test_of_a_long_history_without_a_feasible_trial_the_nearest_are_seen() -> None:
    history = tuple(
        Observation(
            trial_id=number,
            params={"rate": 0.1, "width": 3},
            outcome="finished",
            values=(0.5,),
            excesses={"latency_ms": 5.0 - number * 0.004, "memory": -1.0},
        )
        for number in range(1_200)
    )
    assert set(range(970, 1_000)) <= {one.trial_id for one in thinned(history, ("minimize",), seed=3)}


def test_no_suggestion_repeats_a_trial_that_the_sampler_does_not_see() -> None:
    space = Space.from_dict({"width": {"type": "int", "low": 1, "high": 4_400}})
    history = tuple(
        Observation(trial_id=number, params={"width": 1 + number}, outcome="finished", values=(number * 617 % 1_100,))
        for number in range(1_100)
    )
    suggester = OptunaSuggester(space=space, directions=("maximize",), sampler="tpe", seed=0, study_attributes={})
    suggested = {suggester.suggest(number, history).params["width"] for number in range(1_100, 1_120)}
    assert not suggested & set(range(1, 1_101))
