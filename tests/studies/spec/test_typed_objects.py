"""Sections written in Python: the same spec, and the same words of refusal, as the YAML gives."""

import pickle
from typing import Any, get_args

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

import automl
from studies.spec.section import Section
from studies.spec.sections import PRUNERS, SAMPLERS, PrunerSpec
from studies.spec.spec_errors import SpecError, model_of
from studies.spec.study_spec import StudySpec, parse_spec, spec_to_mapping
from tests.automl.test_api import DrivenError, driven
from tests.support import training_functions

__all__ = ["driven"]

SECTIONS = {name: model for name, field in StudySpec.model_fields.items() if (model := model_of(field)) is not None}
LISTS = ("baselines", "objectives", "constraints")
VALUES = (
    None, True, False, -1, 0, 1, 2, 3, 8, 2**60, -0.5, 0.25, 1.0, 3.5, float("nan"), float("inf"), "", "auto", "none",
    "x", "val_error", "module:Object", "s3://", "sqlite:///x.db#y", *SAMPLERS, *PRUNERS, [], ["a"], ["a", "a"], [1], {},
    {"name": "mo_asha", "eta": 4}, {"name": "mo_asha", "etta": 4}, {"eta": 4}, "\x00",
)  # fmt: skip


def words_of(annotation: Any) -> list[str]:
    """All words of the literals inside an annotation."""
    found = [one for one in get_args(annotation) if isinstance(one, str)]
    return found + [word for one in get_args(annotation) if not isinstance(one, str) for word in words_of(one)]


def values_of(model: type[Section], key: str) -> st.SearchStrategy[object]:
    """Values of a key: its words and its default more often than any others."""
    field = model.model_fields[key]
    likely = [*words_of(field.annotation), "x" if field.is_required() else field.get_default(call_default_factory=True)]
    return st.sampled_from([one for one in likely if not isinstance(one, Section | tuple)] or [1]) | st.sampled_from(
        VALUES
    )


@st.composite
def written(draw: st.DrawFn) -> tuple[str, dict[str, object]]:
    """The name of a section, and keys of it with values of which some are allowed."""
    name = draw(st.sampled_from(sorted(SECTIONS)))
    model = SECTIONS[name]
    keys = draw(st.lists(st.sampled_from(sorted(model.model_fields)), max_size=3, unique=True))
    given = {key: draw(values_of(model, key)) for key in keys}
    if draw(st.integers(0, 9)) == 0:
        given["unknown_key"] = 1
    return name, given


def place_of(name: str) -> tuple[str | int, ...]:
    return (name, 0) if name in LISTS else (name,)


def spec_with(name: str, section: object) -> dict[str, object]:
    return {"task": "digits", name: [section] if name in LISTS else section}


def outcome(make: Any) -> tuple[StudySpec | None, SpecError | None]:
    try:
        return make(), None
    except SpecError as error:
        return None, error


@pytest.mark.medium
@given(written())
@example(("search", {"advisor": {"name": "mo_asha", "eta": 4}, "unknown_key": 1}))
@settings(max_examples=200)
def test_a_typed_section_is_what_its_yaml_is(case: tuple[str, dict[str, object]]) -> None:
    name, keys = case
    from_yaml, told = outcome(
        lambda: parse_spec(yaml.safe_load(yaml.safe_dump(spec_with(name, keys), sort_keys=False)))
    )
    typed, refused = outcome(lambda: SECTIONS[name](**keys))
    if refused is not None:
        assert told is not None, refused
        assert (*place_of(name), *refused.path) == told.path
        assert (refused.problem, refused.more) == (told.problem, told.more)
        assert refused.source == f"automl.{SECTIONS[name].__name__.removesuffix('Spec')}"
        return
    from_python, told_later = outcome(lambda: parse_spec(spec_with(name, typed)))
    assert str(told_later) == str(told), "what only the whole spec shows"
    assert from_python == from_yaml
    if from_yaml is not None:
        assert spec_to_mapping(from_python) == spec_to_mapping(from_yaml)
        assert from_python.training.model_fields_set == from_yaml.training.model_fields_set


def test_every_section_and_parameter_has_a_short_name() -> None:
    assert {getattr(automl, model.__name__.removesuffix("Spec")) for model in SECTIONS.values()} == set(
        SECTIONS.values()
    )
    assert automl.Pruner is PrunerSpec
    assert all(getattr(automl, name) is not None for name in automl.__all__)
    assert automl.__all__ == sorted(automl.__all__, key=lambda name: (name.islower(), name))
    with pytest.raises(AttributeError, match="has no attribute 'Bugdet'"):
        automl.Bugdet  # noqa: B018


def test_a_whole_spec_of_typed_objects_equals_the_yaml() -> None:
    typed = parse_spec({
        "task": "digits",
        "space": {
            "learning_rate": automl.Float(1e-4, 0.5, log=True, prior=automl.Prior(center=0.1)),
            "layers": automl.Int(1, 4),
            "optimizer": automl.Categorical(["sgd", "adamw"]),
            "momentum": automl.Float(0.0, 0.99).when(optimizer="sgd"),
            "width": {"type": "int", "low": 8, "high": 64},
            "batch_per_rank": 32,
        },
        "objectives": [
            automl.Objective("val_error"), automl.Objective("val_accuracy", "maximize"), {"metric": "cost_usd"},
        ],
        "constraints": (automl.Constraint("latency_ms", max=5.0),),
        "search": automl.Search(sampler="random", pruner=automl.Pruner("mo_asha", eta=4)),
    })  # fmt: skip
    form = """
        task: digits
        space:
          learning_rate: {type: float, low: 1.0e-4, high: 0.5, log: true, prior: {center: 0.1}}
          layers: {type: int, low: 1, high: 4}
          optimizer: {type: categorical, choices: [sgd, adamw]}
          momentum: {type: float, low: 0.0, high: 0.99, when: {optimizer: sgd}}
          width: {type: int, low: 8, high: 64}
          batch_per_rank: 32
        objectives: [{metric: val_error}, {metric: val_accuracy, direction: maximize}, {metric: cost_usd}]
        constraints: [{metric: latency_ms, max: 5.0}]
        search: {sampler: random, pruner: {name: mo_asha, eta: 4}}
    """
    assert typed == parse_spec(yaml.safe_load(form))
    whole = parse_spec({"task": "digits", "space": automl.Space({"width": automl.Int(1, 2)})})
    assert whole == parse_spec({"task": "digits", "space": {"width": {"type": "int", "low": 1, "high": 2}}})


@pytest.mark.parametrize(
    ("spec", "place", "words"),
    [
        ({"space": {"a": automl.Float(1, 2), "b": automl.Int(1, 2).when(c=1)}}, "space.b.when.c", "allowed: a parent"),
        ({"space": {"a": automl.Categorical(["x", "\x00"])}}, "space.a.choices.1", "without NUL"),
        ({"space": {"epochs": automl.Int(1, 2)}, "training": automl.Training(epochs=2)}, "training.epochs", "both"),
        ({"objectives": [automl.Objective("a"), automl.Objective("a")]}, "objectives.1.metric", "found 'a' twice"),
        ({"objectives": automl.Objective("a")}, "objectives", "allowed: a list"),
        ({"budget": automl.Resources(slots=1)}, "budget.slots", "unknown key 'slots'"),
        ({"budgit": automl.Budget(usd=1.0)}, "budgit", "did you mean 'budget'"),
    ],
)
def test_what_does_not_fit_together_is_told_as_in_a_file(spec: dict[str, object], place: str, words: str) -> None:
    with pytest.raises(SpecError, match=words) as refused:
        parse_spec({"task": "digits", **spec}, "automl.search")
    assert str(refused.value).startswith(f"automl.search: {place}: ")


@pytest.mark.parametrize(
    ("section", "values", "keys", "words"),
    [
        ("Budget", (1.0,), {}, "1.0 is given without a name. Name every value"),
        ("Objective", ("a", "minimize", 3), {}, "3 is given without a name. Only metric, direction may be given"),
        ("Objective", ("a",), {"metric": "b"}, "metric: found 'a' and 'b'. Give one of them"),
        ("Objective", (), {}, "metric: found nothing, allowed: the name of a metric"),
        ("Objective", ("a", "min"), {}, "direction: .*did you mean 'minimize'"),
        ("Constraint", ("a\x00",), {"max": 1.0}, "metric: .*allowed: text without NUL"),
    ],
)
def test_values_without_names_are_checked(section, values, keys, words):
    with pytest.raises(SpecError, match=rf"^automl\.{section}: {words}"):
        getattr(automl, section)(*values, **keys)


def test_sections_can_be_copied_and_pickled() -> None:
    budget = automl.Budget(usd=0.5)
    assert pickle.loads(pickle.dumps(budget)) == budget == budget.model_copy()
    assert automl.Float(1.0, 2.0) == automl.Float(low=1.0, high=2.0)


def test_search_takes_typed_objects(driven: list[StudySpec]) -> None:
    with pytest.raises(DrivenError):
        automl.search(
            training_functions.train,
            space={"rate": automl.Float(0.1, 0.5)},
            objectives=[automl.Objective("val_error")],
            budget=automl.Budget(usd=1.0, trials=3),
            resources=automl.Resources(slots=1),
        )
    (spec,) = driven
    assert (spec.budget.trials, spec.resources.slots, spec.space.names()) == (3, 1, ("rate",))
    with pytest.raises(SpecError, match=r"^automl.search: space.rate.low: found 'a', allowed: a finite number"):
        automl.search(
            training_functions.train, space={"rate": {"type": "float", "low": "a", "high": 1}}, budget=automl.Budget()
        )
