"""Short forms of objectives, spaces and budgets mean what the long ones mean, in YAML, for `--set` and in Python."""

from pathlib import Path
from typing import Any

import pytest

from search_spaces.parameters import Categorical, Float, Int
from search_spaces.space import Space
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import StudySpec, load_spec, parse_spec, spec_to_mapping

NO_LIMIT = {"usd": None, "hours": None, "trials": None}


def read(**sections: Any) -> StudySpec:
    return parse_spec({"task": "digits", **sections})


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("val_error", [("val_error", "minimize")]),
        (["val_accuracy", "cost_usd"], [("val_accuracy", "maximize"), ("cost_usd", "minimize")]),
        ({"reward_rate": "max", "latency": "min"}, [("reward_rate", "maximize"), ("latency", "minimize")]),
        (["val_loss", {"surprise": "maximize"}, {"metric": "a"}],
         [("val_loss", "minimize"), ("surprise", "maximize"), ("a", "minimize")]),
    ],
)  # fmt: skip
def test_objectives_are_named_with_or_without_their_directions(short: Any, long: list[tuple[str, str]]) -> None:
    assert [(one.metric, one.direction) for one in read(objectives=short).objectives] == long


def test_a_space_of_ranges_choices_and_constants_is_that_of_typed_parameters() -> None:
    short = {
        "rate": (1e-4, 0.1, "log"), "decay": "1e-6..1e-2 log", "listed": [1e-4, 0.1, "log"], "width": (16, 64),
        "depth": "-1..3", "share": "0..0.5", "optimizer": ["sgd", "adamw"], "batch": [64, 128], "beta": 0.9,
    }  # fmt: skip
    assert Space.from_dict(short) == Space({
        "rate": Float(1e-4, 0.1, log=True), "decay": Float(1e-6, 1e-2, log=True), "listed": Float(1e-4, 0.1, log=True),
        "width": Int(16, 64), "depth": Int(-1, 3), "share": Float(0, 0.5), "optimizer": Categorical(["sgd", "adamw"]),
        "batch": Categorical([64, 128]), "beta": Categorical([0.9]),
    })  # fmt: skip
    assert Space.from_dict(Space.from_dict(short).to_dict()) == Space.from_dict(short)


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("10 min", {"hours": 1 / 6}), ("90s", {"hours": 0.025}), ("2 days", {"hours": 48.0}), ("$2", {"usd": 2.0}),
        ("0.5 USD, 40 trials", {"usd": 0.5, "trials": 40}), ("1 trial", {"trials": 1}), ("2 Hours", {"hours": 2.0}),
    ],
)  # fmt: skip
def test_a_budget_as_text_has_the_limits_that_it_names_and_no_others(text: str, limits: dict[str, Any]) -> None:
    budget = read(budget=text).budget
    assert budget.model_dump(include=set(NO_LIMIT)) == NO_LIMIT | limits


def test_the_command_line_reads_them_and_sets_parts_of_them(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("task: digits\nobjectives: [val_error]\nspace: {width: 16..64}\nbudget: 10 min\n")
    spec = load_spec(file, ["budget.usd=3", "objectives.0.metric=val_loss", "space.rate=1e-3..1 log"])
    assert (spec.budget.usd, spec.budget.hours) == (3.0, 1 / 6)
    assert spec.objectives[0].metric == "val_loss"
    assert spec.space == Space({"width": Int(16, 64), "rate": Float(1e-3, 1.0, log=True)})
    assert load_spec(file, ["budget=$2", "objectives={speed: max}"]).objectives[0].direction == "maximize"
    assert parse_spec(spec_to_mapping(spec)) == spec


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"objectives": ["val_thing"]}, "objectives.0: found 'val_thing', whose name does not show which direction"),
        ({"objectives": {"speed": "up"}}, "objectives.speed: found 'up', allowed: min or max"),
        ({"objectives": [{"a": "up"}]}, "objectives.0.a: found 'up', allowed: min or max"),
        ({"budget": "soon"}, "budget: found 'soon', allowed: a mapping, or text such as '10 min'"),
        ({"budget": "$2, $3"}, "budget: found '$2, $3'"),
        ({"budget": "0 min"}, "budget: found '0 min'"),
        ({"space": {"a": (1, 2, "lin")}}, "space.a: found (1, 2, 'lin'), allowed: (low, high) or (low, high, 'log')"),
        ({"space": {"a": "5..1"}}, "space.a.low: found 5, allowed: a number below high (1)"),
        ({"space": {"a": "0..1 log"}}, "space.a.low: found 0, allowed: a number above 0"),
        ({"space": {"a": []}}, "space.a.choices: found []"),
    ],
)
def test_what_cannot_be_read_is_named_with_what_is_allowed(sections: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(**sections)
    assert words in str(caught.value)
