"""Domains of calls that ask for a parameter as a trial runs, and the values that are drawn from them."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.parameters import Categorical, Float, Int, SpaceError
from search_spaces.suggestions import (
    Asked,
    Constant,
    Domain,
    are_compatible,
    as_plain,
    asked_from_plain,
    choice_domain,
    drawn,
    float_domain,
    int_domain,
)

NUMBERS = st.floats(1e-6, 1e6)
DOMAINS = st.one_of(
    st.builds(lambda low, width, log: float_domain(low, low + width, log=log), NUMBERS, NUMBERS, st.booleans()),
    st.builds(lambda low, width: float_domain(low, low + width, step=width / 3), *[st.integers(1, 999)] * 2),
    st.builds(lambda low, width, log: int_domain(low, low + width, log=log), *[st.integers(1, 999)] * 2, st.booleans()),
    st.builds(lambda low, width, step: int_domain(low, low + width, step=step), *[st.integers(1, 99)] * 3),
    st.lists(st.none() | st.text(max_size=3), min_size=1, unique=True).map(choice_domain),
)


@pytest.mark.medium
@settings(max_examples=50)
@given(domain=DOMAINS, seed=st.integers(0, 2**32 - 1), trial=st.integers(0, 9999), name=st.text(min_size=1))
def test_a_value_lies_in_its_domain_and_is_the_same_each_time(domain: Domain, seed: int, trial: int, name: str) -> None:
    value = drawn(domain, seed=seed, trial=trial, name=name)
    assert domain.contains(value)
    assert drawn(domain, seed=seed, trial=trial, name=name) == value
    stored = as_plain({name: Asked(value, domain)})
    assert asked_from_plain(json.loads(json.dumps(stored))) == {name: Asked(value, domain)}


def test_other_seeds_trials_and_names_draw_other_values() -> None:
    wide = float_domain(0.0, 1.0)
    drawn_ones = {drawn(wide, seed=s, trial=t, name=n) for s in range(3) for t in range(5) for n in ("a", "b")}
    assert len(drawn_ones) == 30


@pytest.mark.medium
@pytest.mark.parametrize(
    "domain",
    [
        float_domain(1e-4, 1.0, log=True), float_domain(-1.0, 3.0), float_domain(0.0, 0.9, step=0.3),
        int_domain(1, 8, log=True), int_domain(3, 11, step=4), choice_domain(["a", "b", "c"]),
    ],
)  # fmt: skip
def test_values_are_spread_as_those_of_optunas_random_sampler(domain: Any) -> None:
    import optuna

    from studies.search.samplers.optuna_mirror import to_distribution

    ours: list[Any] = [drawn(domain, seed=0, trial=number, name="x") for number in range(3000)]
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    asked, distribution = study.ask(), to_distribution(domain)
    frozen = study.get_trials(deepcopy=False)[0]
    theirs = [study.sampler.sample_independent(study, frozen, "x", distribution) for _ in range(3000)]
    assert asked.number == 0
    for value in sorted(set(ours)) if len(set(ours)) < 20 else np.quantile(np.array(theirs), [0.1, 0.3, 0.5, 0.7, 0.9]):
        shares = [np.mean([one <= value for one in values]) for values in (ours, theirs)]
        assert shares[0] == pytest.approx(shares[1], abs=0.04)


def test_domains_are_those_of_optuna_and_a_name_has_one_kind_and_scale() -> None:
    assert float_domain(0, 1) == Float(0.0, 1.0)
    assert float_domain(np.float32(0.5), np.float64(2)) == Float(0.5, 2.0)
    assert int_domain(np.int64(1), 8.0, step=1, log=True) == Int(1, 8, log=True)
    assert choice_domain(("a", None)) == Categorical(["a", None])
    for single in (int_domain(3, 3), int_domain(3, 3, log=True), float_domain(3, 3), int_domain(3, 5, step=7)):
        assert single == Constant(3)
    wide, narrow, log = int_domain(1, 9), int_domain(4, 5), int_domain(1, 9, log=True)
    assert are_compatible(wide, narrow), "ranges may change"
    assert are_compatible(wide, Constant(3)), "also to one value"
    assert not are_compatible(wide, log)
    assert not are_compatible(wide, float_domain(1, 9))
    assert not are_compatible(wide, choice_domain([1, 9]))
    assert are_compatible(choice_domain([1, "a"]), choice_domain([1, "a"]))
    assert not are_compatible(choice_domain([1, "a"]), choice_domain([True, "a"]))


@pytest.mark.parametrize(
    ("domain", "words"),
    [
        (lambda: float_domain(math.nan, 1.0), "low: found nan, allowed: a finite number"),
        (lambda: float_domain(0.0, math.inf), "high: found inf, allowed: a finite number"),
        (lambda: float_domain("0", 1.0), "low: found '0', allowed: a finite number"),
        (lambda: float_domain(2.0, 1.0), r"low: found 2.0, allowed: a number below high \(1.0\)"),
        (lambda: float_domain(0.0, 1.0, log=True), "low: found 0.0, allowed: a number above 0"),
        (lambda: int_domain(0, 0, log=True), "low: found 0, allowed: a number"),
        (lambda: int_domain(1, 2.5), "high: found 2.5, allowed: a whole number"),
        (lambda: int_domain(1, 9, step=0), "step: found 0, allowed: above 0"),
        (lambda: choice_domain([]), r"choices: found \[\], allowed: at least one value"),
        (lambda: choice_domain("ab"), "choices: found 'ab', allowed: a list of values"),
        (lambda: choice_domain([(1, 2)]), "choices: found .*, allowed: null, true, false, finite numbers and strings"),
    ],
)
def test_what_is_no_domain_is_refused(domain: Any, words: str) -> None:
    with pytest.raises(SpaceError, match=words):
        domain()
