"""Samplers of Optuna, asked for parameters that trials were found to ask for as they ran."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from search_spaces.space import Space
from search_spaces.suggestions import Asked, Constant, Domain, choice_domain, drawn, float_domain, int_domain
from studies.records.records import PROPOSED, proposed_in
from studies.search.observations import Observation
from studies.search.samplers.optuna_mirror import OptunaMirror
from studies.search.samplers.optuna_suggester import OptunaSuggester

SPACE = Space.from_dict({"layers": {"type": "int", "low": 1, "high": 3}})
UNITS = int_domain(4, 64, log=True)


def suggester(sampler: str, seed: int = 0, space: Space = SPACE) -> OptunaSuggester:
    return OptunaSuggester(
        space=space, directions=("minimize",), sampler=sampler, seed=seed, study_attributes={}, learns_space=True
    )


def ended(number: int, declared: Any, asked: dict[str, Asked], attributes: Any = None) -> Observation:
    params = {**declared, **{name: one.value for name, one in asked.items()}}
    error = sum(float(value) for value in params.values() if isinstance(value, int | float))
    return Observation(
        trial_id=number, params=params, outcome="finished", values=(error,), attributes=attributes or {}, asked=asked
    )


def grown(sampler: str, trials: int, seed: int = 0) -> list[Observation]:
    """A study of an objective with a loop over layers and a branch, whose trials take what is proposed."""
    source, history = suggester(sampler, seed), list[Observation]()
    for number in range(trials):
        suggestion = source.suggest(number, tuple(history))
        assert set(suggestion.params) == {"layers"}, "what nobody has asked for yet is no parameter"
        proposed = proposed_in(suggestion.trial_attributes)
        domains: dict[str, Domain] = {f"units_{i}": UNITS for i in range(int(suggestion.params["layers"] or 0))}
        domains |= {"drop": float_domain(0.0, 0.5)} if len(domains) > 1 else {"kind": choice_domain(["a", "b"])}
        asked = {
            name: proposed.get(name) or Asked(drawn(one, seed=seed, trial=number, name=name), one)
            for name, one in domains.items()
        }
        history.append(ended(number, suggestion.params, asked, suggestion.trial_attributes))
    return history


@pytest.mark.medium
@pytest.mark.parametrize("sampler", ["random", "tpe", "nsga2"])
def test_samplers_propose_what_trials_have_asked_for(sampler: str) -> None:
    history = grown(sampler, 16)
    names = {"units_0", "units_1", "units_2", "drop", "kind"}
    proposed = proposed_in(suggester(sampler).suggest(16, tuple(history)).trial_attributes)
    assert set(proposed) == names
    assert all(one.domain.contains(one.value) for one in proposed.values())
    assert grown(sampler, 16) == history, "the same seed gives the same values"
    assert grown(sampler, 16, seed=1) != history


@pytest.mark.medium
def test_tpe_learns_from_what_was_asked_for() -> None:
    found, by_chance = (
        [float(one.params["units_0"] or 0) for one in grown(name, 40)[20:]] for name in ("tpe", "random")
    )
    assert statistics.median(found) < 0.6 * statistics.median(by_chance), "small ones are better"


def test_a_suggester_that_is_made_anew_suggests_the_same_and_a_declared_space_has_no_proposals() -> None:
    history, kept = grown("tpe", 14), suggester("tpe")
    for number in range(14):
        kept.suggest(number, tuple(history[:number]))
    assert kept.suggest(14, tuple(history)) == suggester("tpe").suggest(14, tuple(history))
    plain = OptunaSuggester(space=SPACE, directions=("minimize",), sampler="tpe", seed=0, study_attributes={})
    assert PROPOSED not in plain.suggest(0, ()).trial_attributes


def test_ranges_may_change_and_the_latest_one_counts() -> None:
    ranges = [int_domain(1, 8), int_domain(1, 80), int_domain(50, 60), int_domain(9, 9)]
    history = [ended(n, {"layers": 1}, {"x": Asked(n + 50 if n == 2 else 5, one)}) for n, one in enumerate(ranges)]
    assert isinstance(ranges[3], Constant)
    for sampler in ("tpe", "gp", "nsga2"):
        (proposed,) = proposed_in(suggester(sampler).suggest(4, tuple(history)).trial_attributes).values()
        assert proposed.domain == ranges[2]


@pytest.mark.parametrize("sampler", ["tpe", "gp", "nsga2"])
def test_calls_of_another_kind_are_not_learnt_from(sampler: str) -> None:
    kinds = [int_domain(1, 8), choice_domain([5, 6]), int_domain(1, 8, log=True), float_domain(1, 8)]
    history = tuple(ended(n, {"layers": 1}, {"x": Asked(5, kinds[n % 4])}) for n in range(16))
    (proposed,) = proposed_in(suggester(sampler).suggest(16, history).trial_attributes).values()
    assert proposed.domain == kinds[0]
    mirror = OptunaMirror(SPACE, ("minimize",), {})
    mirror.follow(history)
    assert ["x" in trial.params for trial in mirror.study.trials] == [True, False, False, False] * 4


def test_the_mirror_follows_trials_that_ask_for_more() -> None:
    """Also for a name that an earlier trial asks for later, in another way."""
    space, units, log = SPACE, Asked(5, int_domain(1, 8)), Asked(5, int_domain(1, 8, log=True))
    mirror = OptunaMirror(space, ("minimize",), {})
    running = Observation(trial_id=0, params={"layers": 1}, outcome="running")
    steps = [
        (running,),
        (running, ended(1, {"layers": 1}, {"x": log})),
        (ended(0, {"layers": 1}, {"x": units}), ended(1, {"layers": 1}, {"x": log})),
        (ended(0, {"layers": 1}, {"x": units, "y": units}), ended(1, {"layers": 1}, {"x": log})),
    ]
    for history in steps:
        mirror.follow(history)
        fresh = OptunaMirror(space, ("minimize",), {})
        fresh.follow(history)
        assert [(t.params, t.distributions, t.values) for t in mirror.study.trials] == [
            (t.params, t.distributions, t.values) for t in fresh.study.trials
        ]
    assert [set(trial.params) for trial in mirror.study.trials] == [{"layers", "x", "y"}, {"layers"}]


def test_what_would_walk_the_way_of_a_trial_is_drawn_again() -> None:
    """Six configurations in all: with layers 1 the choice of `more` is never asked for."""
    space = Space.from_dict({"layers": {"type": "categorical", "choices": [1, 2]}})
    kind, more = choice_domain(["a", "b"]), choice_domain(["c", "d"])
    seen, history = set(), list[Observation]()
    for number in range(6):
        suggestion = suggester("random", space=space).suggest(number, tuple(history))
        proposed = proposed_in(suggestion.trial_attributes)
        domains = {"kind": kind} | ({"more": more} if suggestion.params["layers"] == 2 else {})
        asked = {n: proposed.get(n) or Asked(drawn(d, seed=0, trial=number, name=n), d) for n, d in domains.items()}
        history.append(ended(number, suggestion.params, asked))
        seen.add(repr(sorted(history[-1].params.items())))
    assert len(seen) >= 5
