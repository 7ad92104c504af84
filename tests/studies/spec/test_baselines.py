"""Baselines in a spec: those of the task, or those that the user names."""

from typing import Any

import pytest

from search_spaces.parameters import Categorical, Float
from search_spaces.space import Space
from studies.records.records import TrialRecord
from studies.results.baselines import trials_of
from studies.spec.checks import left_out, with_baselines, with_first_trials
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import StudySpec, parse_spec, spec_to_mapping

SPACE = Space({"kind": Categorical(["a", "b"]), "rate": Float(low=0.1, high=1.0).when(kind="b")})
USUAL = {"name": "usual", "params": {"kind": "b", "rate": 0.2}}
TRIVIAL = {"name": "majority", "metrics": {"val_error": 0.5}}


def spec(**more: Any) -> StudySpec:
    return parse_spec({"study": "s", "task": "digits", **more}).model_copy(update={"space": SPACE})


def names(one: StudySpec) -> list[str]:
    return [baseline.name for baseline in one.baselines or ()]


def test_those_of_the_task_are_trained_whatever_the_first_trials_are() -> None:
    first = {"first_trials": [{"kind": "a"}, USUAL["params"]]}
    both = with_baselines(spec(search=first), [USUAL, TRIVIAL])
    assert names(both) == ["usual", "majority"]
    assert both.search == spec(search=first).search
    other = with_baselines(spec(search={"first_trials": [{"kind": "a"}]}), [USUAL, TRIVIAL])
    assert names(other) == ["usual", "majority"]
    assert other.search.first_trials == (USUAL["params"], {"kind": "a"})
    assert with_baselines(other, [USUAL, TRIVIAL]) == other
    assert left_out(spec(), [USUAL, TRIVIAL]) == []


@pytest.mark.parametrize(
    ("params", "why"),
    [({"kind": "b", "rate": 5.0}, "rate: found 5"), ({"architecture": "ngrams"}, "architecture: found 'architecture'")],
)
def test_one_that_the_space_lacks_is_left_out_and_named(params: dict[str, Any], why: str) -> None:
    proposed = [{"name": "n-grams", "params": params}, TRIVIAL]
    assert names(with_baselines(spec(), proposed)) == ["majority"]
    (line,) = left_out(spec(), proposed)
    assert line.startswith("baselines: 'n-grams' is left out, since the space lacks its parameters (")
    assert why in line
    assert left_out(spec(baselines=[]), proposed) == []


def test_those_of_the_spec_come_first_replace_the_tasks_and_are_stored_with_it() -> None:
    given = with_baselines(spec(baselines=[USUAL], search={"first_trials": [{"kind": "a"}]}), [TRIVIAL])
    assert names(given) == ["usual"]
    assert given.search.first_trials == (USUAL["params"], {"kind": "a"})
    again = with_baselines(given, [TRIVIAL])
    assert again == given
    assert names(with_baselines(spec(baselines=[]), [USUAL, TRIVIAL])) == []
    filled = with_baselines(spec(), [TRIVIAL])
    stored = spec_to_mapping(filled)
    assert stored["baselines"] == [TRIVIAL]
    assert parse_spec(stored) == filled


def test_null_is_a_value_in_first_trials_and_baselines_and_no_missing_parameter() -> None:
    space = Space({"kind": Categorical([None, "a"]), "rate": Float(low=0.1, high=1.0).when(kind="a")})
    plain = {"name": "plain", "params": {"kind": None}}
    parsed = spec(baselines=[plain], search={"first_trials": [{"kind": None}, {"kind": "a", "rate": 0.5}]})
    given = with_baselines(with_first_trials(parsed.model_copy(update={"space": space}), []), [])
    assert [dict(one) for one in given.search.first_trials] == [{"kind": None}, {"kind": "a", "rate": 0.5}]
    trials = [TrialRecord(id=n, state="complete", number=n, params=one) for n, one in enumerate([{}, {"kind": None}])]
    assert trials_of([plain["params"]], trials) == [trials[1]]  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([{"name": "x"}], r"baselines\.0: found neither params nor metrics. Give exactly one"),
        ([{**USUAL, **TRIVIAL}], r"baselines\.0: found both params and metrics"),
        ([TRIVIAL, TRIVIAL], r"baselines\.1\.name: found 'majority' twice"),
        ([{"name": "x", "params": {"kind": "c"}}], r"baselines\.0\.params\.kind: found 'c', allowed: one of 'a', 'b'"),
        ([{"name": "x", "metrics": {"val_eror": 0.1}}], r"baselines\.0\.metrics\.val_eror.*did you mean 'val_error'"),
        ([{"name": "x", "metrics": {"val_error": float("inf")}}], r"baselines\.0\.metrics\.val_error: found inf"),
    ],
)
def test_wrong_baselines_are_named(given: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        with_baselines(spec(baselines=given), [], ("val_error",))
    assert "\n" not in str(caught.value)


def test_first_trials_and_baselines_of_a_very_large_space_are_limited() -> None:
    space = Space({f"p{number}": Categorical([1, 2]) for number in range(1000)})
    for key, count, given in (
        ("search.first_trials", 501, {"search": {"first_trials": [{}] * 501}}),
        ("baselines", 501, {"baselines": [{"name": str(number), "params": {"p0": 1}} for number in range(501)]}),
    ):
        wide = spec(**given).model_copy(update={"space": space})
        said = rf"{key}: found {count} for 1,000 parameters, which are over 500,000 values\. Give fewer"
        with pytest.raises(SpecError, match=said):
            with_baselines(with_first_trials(wide, ()), ())
