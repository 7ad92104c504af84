"""Parameters that a spec names for the first trials."""

from types import SimpleNamespace
from typing import Any

import pytest

from search_spaces.parameters import Categorical, Float
from search_spaces.space import Space
from studies.search.samplers.suggester import FirstTrials, Suggestion
from studies.spec.checks import with_first_trials
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import parse_spec

SPACE = Space({"kind": Categorical(["a", "b"]), "rate": Float(low=0.1, high=1.0).when(kind="b")})


class Later:
    """A sampler that says which trial it was asked for."""

    def suggest(self, number: int, history: tuple[Any, ...]) -> Suggestion:
        return Suggestion(params={"kind": "a", "asked": number, "told": len(history)})


def suggester(*named: dict[str, Any]) -> FirstTrials:
    return FirstTrials(named, space=SPACE, seed=3, sampler=Later())


def test_named_parameters_come_first_and_what_is_left_open_is_drawn_the_same_in_every_process() -> None:
    found = suggester({"kind": "b", "rate": 0.5}, {"kind": "a"})
    assert [dict(found.suggest(number, ()).params) for number in range(3)] == [
        {"kind": "b", "rate": 0.5},
        {"kind": "a"},
        {"kind": "a", "asked": 2, "told": 0},
    ]
    drawn = [suggester({"rate": 0.25}, {"kind": "b"}).suggest(number, ()).params for number in (0, 1)]
    assert drawn[0] == {"kind": "b", "rate": 0.25}
    assert 0.1 <= float(str(drawn[1]["rate"])) <= 1.0
    assert drawn[1] == suggester({"rate": 0.25}, {"kind": "b"}).suggest(1, ()).params


def test_what_others_have_enqueued_takes_no_named_trials_place() -> None:
    found = suggester({"kind": "b", "rate": 0.5}, {"kind": "a"})
    history: Any = tuple(SimpleNamespace(params={"kind": "b", "rate": rate}, asked={}) for rate in (0.9, 0.5, 0.8))
    assert found.suggest(1, history[:1]).params == {"kind": "b", "rate": 0.5}
    assert found.suggest(3, history).params == {"kind": "a"}
    assert found.suggest(2, history[:1]).params == {"kind": "a"}, "the other one waits for devices"


def test_a_named_trial_that_requested_more_parameters_is_not_repeated() -> None:
    found, named = suggester({"kind": "b", "rate": 0.5}), {"kind": "b", "rate": 0.5}
    for asked in ({}, {"depth": 3}):
        history: Any = (SimpleNamespace(params=named | asked, asked=asked),)
        assert found.suggest(1, history).params["asked"] == 1
        assert suggester(named).suggest(1, history).params["asked"] == 1


def spec(first: Any, **more: Any) -> Any:
    form = {"study": "s", "task": "digits", "search": {"first_trials": first}, **more}
    return parse_spec(form).model_copy(update={"space": SPACE})


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ([{"kind": "a"}, {"knd": "a"}], r"search\.first_trials\.1.*knd"),
        ([{"kind": "c"}], r"search\.first_trials\.0\.kind: found 'c', allowed: one of 'a', 'b'"),
        ([{"kind": "a", "rate": 0.5}], r"search\.first_trials\.0\.rate"),
    ],
)
def test_parameters_outside_of_the_space_are_refused(first: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        with_first_trials(spec(first), ())


@pytest.mark.parametrize("first", [{"kind": "a"}, "a", [["a"]], [{"kind": [1]}]])
def test_something_else_than_a_list_of_mappings_is_refused(first: Any) -> None:
    with pytest.raises(SpecError, match="first_trials"):
        spec(first)


def test_those_of_the_task_are_taken_as_far_as_they_are_in_the_space() -> None:
    proposed = [{"kind": "c"}, {"kind": "b", "rate": 0.2}]
    assert with_first_trials(spec([]), proposed).search.first_trials == ({"kind": "b", "rate": 0.2},)
    assert with_first_trials(spec([{"kind": "a"}]), proposed).search.first_trials == ({"kind": "a"},)
