"""Search spaces: what is refused when one is made, and that trees survive a round trip and agree with themselves."""

import copy
import math
import pickle
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from search_spaces.drawing import derived_seed, derived_uniform, fresh_seed, untried_choices
from search_spaces.parameters import Categorical, Float, Int, Parameter, SpaceError, Value, first_repeated, same
from search_spaces.space import Space

patient = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
NAMES = [f"p{index}" for index in range(8)]


def finite_floats() -> st.SearchStrategy[float]:
    return st.floats(min_value=-1e6, max_value=1e6, allow_nan=False)


@st.composite
def priors(draw: st.DrawFn, centers: st.SearchStrategy[Value], parts: int | None = None) -> dict[str, object]:
    """The key `prior`, or nothing; `parts` is the number of weights, None for any number."""
    kind = draw(st.sampled_from(["none", "center", "weights"]))
    if kind == "none":
        return {}
    if kind == "weights":
        weights = st.lists(st.floats(0.125, 9.0), min_size=parts or 1, max_size=parts or 6)
        return {"prior": draw(weights)}
    prior: dict[str, object] = {"center": draw(centers)}
    confidence = draw(st.sampled_from(["low", "medium", "high"]))
    return {"prior": prior if confidence == "medium" else {**prior, "confidence": confidence}}


@st.composite
def float_forms(draw: st.DrawFn) -> dict[str, object]:
    low, high = sorted((draw(finite_floats()), draw(finite_floats())))
    if low == high:
        high = low + 1.0
    form: dict[str, object] = {"type": "float", "low": low, "high": high}
    if low > 0 and draw(st.booleans()):
        form["log"] = True
    elif draw(st.booleans()) and high - low > 1e-3:
        form["step"] = (high - low) / draw(st.integers(1, 9))
    return form | draw(priors(st.floats(low, high)))


@st.composite
def int_forms(draw: st.DrawFn) -> dict[str, object]:
    low = draw(st.integers(-50, 50))
    high = low + draw(st.integers(1, 20))
    form: dict[str, object] = {"type": "int", "low": low, "high": high}
    if low > 0 and draw(st.booleans()):
        form["log"] = True
    elif draw(st.booleans()):
        form["step"] = draw(st.integers(1, high - low))
    return form | draw(priors(st.integers(low, high)))


def categorical_forms() -> st.SearchStrategy[dict[str, object]]:
    value = st.one_of(
        st.none(), st.booleans(), st.integers(-3, 3), finite_floats(), st.text(alphabet="abA \n:'☃", max_size=4)
    )
    # Equal in Python's sense counts as doubled, hence the key.
    choices = st.lists(value, min_size=1, max_size=5, unique_by=lambda v: v if isinstance(v, str | None) else float(v))
    return choices.flatmap(
        lambda values: priors(st.sampled_from(values), len(values)).map(
            lambda prior: {"type": "categorical", "choices": values, **prior}
        )
    )


def takes(form: dict[str, object]) -> list[Value]:
    """Some values that a parent can take; none for a float."""
    if form["type"] == "categorical":
        return list(form["choices"])  # type: ignore[call-overload]
    if form["type"] == "int":
        low, high = form["low"], form["high"]
        return list(range(low, high + 1, form.get("step", 1)))  # type: ignore[call-overload, operator]
    return []


@st.composite
def space_forms(draw: st.DrawFn) -> dict[str, dict[str, object]]:
    """Random trees in the YAML form, declared in random order."""
    forms: dict[str, dict[str, object]] = {}
    for name in NAMES[: draw(st.integers(0, len(NAMES)))]:
        form = draw(st.one_of(float_forms(), int_forms(), categorical_forms()))
        parents = [other for other in forms if takes(forms[other])]
        if parents and draw(st.booleans()):
            parent = draw(st.sampled_from(parents))
            values = draw(st.lists(st.sampled_from(takes(forms[parent])), min_size=1, max_size=3, unique_by=repr))
            form["when"] = {parent: values[0] if len(values) == 1 else values}
        forms[name] = form
    return {name: forms[name] for name in draw(st.permutations(list(forms)))}


def chooser(seed: int):
    source = random.Random(seed)

    def choose(_: str, parameter: Parameter) -> Value:
        if isinstance(parameter, Categorical):
            return source.choice(list(parameter.choices))
        if isinstance(parameter, Int):
            return source.randrange(parameter.low, parameter.high + 1, parameter.step or 1)
        if parameter.step is None:
            return source.uniform(parameter.low, parameter.high)
        return min(
            parameter.top,
            parameter.low + source.randint(0, round((parameter.top - parameter.low) / parameter.step)) * parameter.step,
        )

    return choose


@pytest.mark.medium
@patient
@given(space_forms())
def test_a_space_survives_the_round_trip_in_order(form: dict[str, dict[str, object]]) -> None:
    space = Space.from_dict(form)
    assert repr(space.to_dict()) == repr({name: _canonical(entry) for name, entry in form.items()})
    assert Space.from_dict(space.to_dict()) == space
    assert pickle.loads(pickle.dumps(space)) == copy.deepcopy(space) == space
    assert hash(space) == hash(Space.from_dict(form))
    assert space.names() == tuple(form)
    assert len(space) == len(form)


def _canonical(entry: dict[str, object]) -> dict[str, object]:
    order = ("type", "low", "high", "log", "step", "choices", "prior", "when")
    return {key: entry[key] for key in order if key in entry}


@pytest.mark.medium
@patient
@given(space_forms(), st.integers(0, 2**32), st.randoms())
def test_every_walk_passes_the_check_and_names_what_is_active_and_fails_with_one_change(form, seed, source):
    space = Space.from_dict(form)
    params = space.walk(chooser(seed))
    space.check(params)
    assert space.active(params) == tuple(params)
    assert space.walk(chooser(seed)) == params
    for name, entry in form.items():
        parents = entry.get("when", {})
        assert isinstance(parents, dict)
        for parent, values in parents.items():
            allowed = values if isinstance(values, list) else [values]
            wanted = parent in params and any(same(params[parent], value) for value in allowed)
            assert (name in params) == wanted
            if name in params:
                assert list(params).index(parent) < list(params).index(name)
    if not params:
        return
    name = source.choice(list(params))
    for changed in ({k: v for k, v in params.items() if k != name}, {**params, name: object()}, {**params, "px": 1}):
        with pytest.raises(SpaceError) as caught:
            space.check(changed)
        assert len(caught.value.path) == 1


def test_walk_asks_parents_first_also_in_a_chain_of_thousands() -> None:
    chain: dict[str, object] = {"p0": Categorical([0, 1])}
    for index in range(1, 3000):
        chain[f"p{index}"] = Categorical([0, 1]).when(**{f"p{index - 1}": 1})
    space = Space(chain)  # type: ignore[arg-type]
    assert len(space.walk(lambda *_: 1)) == 3000
    assert space.walk(lambda *_: 0) == {"p0": 0}
    asked = []

    def choose(name: str, parameter: Parameter) -> Value:
        asked.append(name)
        return parameter.choices[0] if isinstance(parameter, Categorical) else parameter.high

    optimizer_space().walk(choose)
    assert asked == ["optimizer", "momentum", "layers", "width2"]


def optimizer_space() -> Space:
    return Space(
        {
            "momentum": Float(low=0.0, high=0.99).when(optimizer="sgd"),
            "optimizer": Categorical(["sgd", "adamw", "adam"]),
            "layers": Int(low=1, high=3),
            "beta1": Float(low=0.5, high=0.99).when(optimizer=["adam", "adamw"]),
            "width2": Int(low=8, high=64, step=8).when(layers=[2, 3]),
        }
    )


def test_python_and_yaml_form_are_one() -> None:
    assert optimizer_space().to_dict() == {
        "momentum": {"type": "float", "low": 0.0, "high": 0.99, "when": {"optimizer": "sgd"}},
        "optimizer": {"type": "categorical", "choices": ["sgd", "adamw", "adam"]},
        "layers": {"type": "int", "low": 1, "high": 3},
        "beta1": {"type": "float", "low": 0.5, "high": 0.99, "when": {"optimizer": ["adam", "adamw"]}},
        "width2": {"type": "int", "low": 8, "high": 64, "step": 8, "when": {"layers": [2, 3]}},
    }


@pytest.mark.parametrize(
    ("params", "path", "parts"),
    [
        ({"optimizer": "sgd", "momentum": 0.5, "layers": 1, "momentun": 1}, "momentun", ["'momentum'?", "layers"]),
        ({"optimizer": "sgd", "layers": 1}, "momentum", ["found no value", "0.0 to 0.99"]),
        ({"optimizer": "sdg", "layers": 1}, "optimizer", ["found 'sdg'", "'sgd', 'adamw'", "did you mean 'sgd'?"]),
        ({"optimizer": "sgd", "momentum": 1.5, "layers": 1}, "momentum", ["found 1.5", "0.0 to 0.99"]),
        ({"optimizer": "sgd", "momentum": math.nan, "layers": 1}, "momentum", ["found nan"]),
        ({"optimizer": "sgd", "momentum": 0.5, "layers": 1.0}, "layers", ["found 1.0", "a whole number from 1 to 3"]),
        ({"optimizer": "sgd", "momentum": 0.5, "layers": True}, "layers", ["found true"]),
        ({"optimizer": "sgd", "momentum": 0.5, "layers": 1, "beta1": 0.9}, "beta1",
         ["found 0.9", "only if optimizer is 'adam' or 'adamw'"]),
        ({"optimizer": "sgd", "momentum": 0.5, "layers": 2, "width2": 12}, "width2", ["found 12", "steps of 8"]),
    ],
)  # fmt: skip
def test_check_says_what_is_wrong(params: dict[str, object], path: str, parts: list[str]) -> None:
    with pytest.raises(SpaceError) as caught:
        optimizer_space().check(params)
    assert caught.value.path == (path,)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("parameter", "inside", "outside"),
    [
        (Float(low=0, high=1), [0, 1, 0.5, 0.0], [True, "0.5", None, -0.1, 1.1, math.nan, math.inf, 10**400]),
        (Float(low=0.1, high=0.5, step=0.1), [0.1, 0.3, 0.30000000000000004, 0.5], [0.15, 0.6, 0.05]),
        (Int(low=1, high=9, step=4), [1, 5, 9], [2, 1.0, True, "1", 13]),
        (Categorical([1, None, "a", 0.5]), [1, None, "a", 0.5], [True, 1.0, "A", [], object(), math.nan]),
    ],
)
def test_contains_is_strict(parameter: Parameter, inside: list[object], outside: list[object]) -> None:
    assert all(parameter.contains(value) for value in inside)
    assert not any(parameter.contains(value) for value in outside)


def test_top_is_the_last_value_on_the_grid() -> None:
    assert Int(low=1, high=10, step=4).top == 9
    assert Float(low=0.0, high=1.0, step=0.3).top == pytest.approx(0.9)
    assert Float(low=0.1, high=0.7, step=0.1).top == 0.7


@pytest.mark.parametrize(
    ("make", "path", "parts"),
    [
        (lambda: Float(low=1, high=1), "low", ["found 1.0", "below high (1.0)"]),
        (lambda: Int(low=5, high=2), "low", ["found 5", "below high (2)"]),
        (lambda: Float(low=0, high=1, log=True), "low", ["found 0.0", "above 0"]),
        (lambda: Int(low=-1, high=1, log=True), "low", ["found -1", "above 0"]),
        (lambda: Float(low=math.nan, high=1), "low", ["found nan", "finite"]),
        (lambda: Float(low=0, high=math.inf), "high", ["found inf", "finite"]),
        (lambda: Float(low=0, high=10**400), "high", ["finite"]),
        (lambda: Float(low=-1.7e308, high=1.7e308), "high", ["at most"]),
        (lambda: Float(low=True, high=2), "low", ["found true", "number"]),
        (lambda: Float(low="0", high=2), "low", ["found '0'", "number"]),
        (lambda: Int(low=1.0, high=2), "low", ["found 1.0", "whole number"]),
        (lambda: Int(low=False, high=2), "low", ["found false"]),
        (lambda: Int(low=0, high=2**60), "high", ["whole number"]),
        (lambda: Float(low=0, high=1, log="yes"), "log", ["found 'yes'", "true or false"]),
        (lambda: Float(low=1, high=2, log=True, step=0.1), "step", ["found 0.1", "log is true"]),
        (lambda: Float(low=1, high=2, step=0), "step", ["found 0.0", "at most high - low (1.0)"]),
        (lambda: Int(low=1, high=3, step=-1), "step", ["found -1"]),
        (lambda: Int(low=1, high=3, step=3), "step", ["found 3", "(2)"]),
        (lambda: Categorical([]), "choices", ["found []", "at least one"]),
        (lambda: Categorical("abc"), "choices", ["found 'abc'", "a list"]),
        (lambda: Categorical([1, "a", 1.0]), "choices", ["found 1.0 twice"]),
        (lambda: Categorical([1, True]), "choices", ["found true twice"]),
        (lambda: Categorical([math.nan]), "choices", ["found nan"]),
        (lambda: Categorical([[1]]), "choices", ["found [1]"]),
        (lambda: Float(low=0, high=1).when(), "when", ["found {}", "one parent"]),
        (lambda: Float(low=0, high=1).when(a=1, b=2), "when", ["one parent"]),
        (lambda: Float(low=0, high=1).when(a=[]), "when.a", ["found []", "at least one"]),
        (lambda: Float(low=0, high=1).when(a=[1, 1]), "when.a", ["found 1 twice"]),
    ],
)
def test_a_wrong_parameter_cannot_be_made(make, path: str, parts: list[str]) -> None:
    with pytest.raises(SpaceError) as caught:
        make()
    assert ".".join(caught.value.path) == path
    for part in parts:
        assert part in caught.value.problem


CHOICE = {"type": "categorical", "choices": ["sgd", "adamw"]}
NUMBER = {"type": "float", "low": 0, "high": 1}


@pytest.mark.parametrize(
    ("form", "path", "parts"),
    [
        ([], "", ["found []", "a mapping"]),
        ({"a b": NUMBER}, "a b", ["found 'a b'", "letters"]),
        ({1: NUMBER}, "1", ["found 1", "letters"]),
        ({"x": None}, "x", ["found null", "a mapping with type", "one value, for a constant"]),
        ({"x": (5,)}, "x", ["found (5,)", "(low, high)"]),
        ({"x": float("nan")}, "x", ["found nan", "a mapping with type"]),
        ({"x": {"low": 0, "high": 1}}, "x.type", ["found nothing", "float, int, categorical"]),
        ({"x": {**NUMBER, "type": "flaot"}}, "x.type", ["found 'flaot'", "did you mean 'float'?"]),
        ({"x": {**NUMBER, "type": ["float"]}}, "x.type", ["found ['float']"]),
        ({"x": {"type": "int", "low": 0}}, "x.high", ["found nothing", "a number"]),
        ({"x": {"type": "categorical"}}, "x.choices", ["found nothing", "a list"]),
        ({"x": {**NUMBER, "hihg": 3}}, "x.hihg", ["found 'hihg'", "did you mean 'high'?"]),
        ({"x": {**CHOICE, "low": 3}}, "x.low", ["found 'low'", "type, choices, prior, when"]),
        ({"x": {**NUMBER, "low": 2}}, "x.low", ["found 2.0", "below high"]),
        ({"x": {**NUMBER, "when": "optimizer"}}, "x.when", ["found 'optimizer'", "one parent"]),
        ({"x": {**NUMBER, "when": {}}}, "x.when", ["found {}"]),
        ({"x": {**NUMBER, "when": {"a": 1, "b": 2}}}, "x.when", ["one parent"]),
        ({"optimizer": CHOICE, "x": {**NUMBER, "when": {"optimiser": "sgd"}}}, "x.when.optimiser",
         ["found 'optimiser'", "did you mean 'optimizer'?"]),
        ({"optimizer": CHOICE, "x": {**NUMBER, "when": {"optimizer": ["sgd", "adam"]}}}, "x.when.optimizer",
         ["found 'adam'", "'sgd', 'adamw'", "did you mean 'adamw'?"]),
        ({"optimizer": CHOICE, "x": {**NUMBER, "when": {"optimizer": []}}}, "x.when.optimizer", ["found []"]),
        ({"n": {**NUMBER, "type": "int"}, "x": {**NUMBER, "when": {"n": 2}}}, "x.when.n", ["found 2", "0 to 1"]),
        ({"n": {**NUMBER, "type": "int"}, "x": {**NUMBER, "when": {"n": True}}}, "x.when.n", ["found true"]),
        ({"y": NUMBER, "x": {**NUMBER, "when": {"y": 1}}}, "x.when.y", ["the parent is a float", "categorical or int"]),
        ({"x": {**CHOICE, "when": {"x": "sgd"}}}, "x.when.x", ["need each other: x -> x"]),
        ({"c": {**NUMBER, "when": {"a": "sgd"}}, "a": {**CHOICE, "when": {"b": "sgd"}},
          "b": {**CHOICE, "when": {"a": "sgd"}}}, "a.when.b", ["need each other: a -> b -> a"]),
    ],
)  # fmt: skip
def test_a_wrong_space_cannot_be_made(form: object, path: str, parts: list[str]) -> None:
    with pytest.raises(SpaceError) as caught:
        Space.from_dict(form)
    assert ".".join(caught.value.path) == path
    for part in parts:
        assert part in caught.value.problem


def test_python_mistakes_are_told_names_found_and_nothing_can_be_changed() -> None:
    with pytest.raises(SpaceError, match="found 3, allowed: Float, Int or Categorical"):
        Space({"x": 3})  # type: ignore[dict-item]
    with pytest.raises(SpaceError, match="a mapping"):
        Space([])  # type: ignore[arg-type]
    assert optimizer_space().parameter("momentum") == Float(low=0.0, high=0.99)
    with pytest.raises(SpaceError, match="did you mean 'momentum'"):
        optimizer_space().parameter("Momentun")
    assert "layers" in optimizer_space()
    assert eval(repr(optimizer_space()), {"Space": Space}) == optimizer_space()
    with pytest.raises(AttributeError):
        Float(low=0, high=1).low = 2  # type: ignore[misc]
    with pytest.raises(AttributeError):
        optimizer_space()._entries = ()  # type: ignore[misc]


@pytest.mark.parametrize("value", ["adamw", 32, 0.1, True])
def test_a_value_alone_is_a_parameter_with_one_choice(value: Value) -> None:
    space = Space.from_dict({"width": {"type": "int", "low": 1, "high": 9}, "fixed": value})
    assert space.parameter("fixed") == Categorical([value])
    assert Space.from_dict(space.to_dict()) == space
    assert space.to_dict()["fixed"] == {"type": "categorical", "choices": [value]}
    space.check({"width": 3, "fixed": value})


def test_derived_numbers_tell_their_parts_apart_are_spread_and_never_change() -> None:
    seeds = {derived_seed("ask", a, b) for a in range(30) for b in range(30)}
    assert len(seeds) == 900
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert derived_seed(1, 23) != derived_seed(12, 3)
    assert derived_seed("ask", 0, 0) == 1528054851
    assert derived_seed("candidate", 7, 12) == 2809151448
    assert fresh_seed("confirm", 0, 3, 1) == 1298528258
    assert all(0 <= fresh_seed("confirm", 5, trial, 0) < 2**31 for trial in range(100))
    numbers = [derived_uniform(0, trial, 3) for trial in range(400)]
    assert all(0.0 <= number < 1.0 for number in numbers)
    assert abs(sum(numbers) / len(numbers) - 0.5) < 0.05
    assert derived_uniform(0, 4, 9) == 0.3084699918035769


SPACE = Space(
    {
        "kind": Categorical(["a", "b", "c"]), "bins": Categorical([0, 16]).when(kind="b"),
        "flag": Categorical([True, False]), "rate": Float(low=0.1, high=1.0),
    }
)  # fmt: skip


def test_choices_are_left_until_a_configuration_has_them() -> None:
    assert untried_choices(SPACE, []) == {"kind": ["a", "b", "c"], "bins": [0, 16], "flag": [True, False]}
    tried = [{"kind": "b", "bins": 0, "flag": True, "rate": 0.2}, {"kind": "a", "flag": True, "rate": 0.3}]
    assert untried_choices(SPACE, tried) == {"kind": ["c"], "bins": [16], "flag": [False]}
    assert untried_choices(SPACE, tried, conditional=False) == {"kind": ["c"], "flag": [False]}
    assert untried_choices(Space({"rate": Float(low=0.1, high=1.0)}), tried) == {}


def test_choices_and_names_are_compared_as_often_as_there_are_some() -> None:
    compared = 0

    class Counted(int):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return int(self) == other

        __hash__ = int.__hash__

    Categorical([Counted(number) for number in range(2000)])
    assert first_repeated([Counted(number) for number in (*range(2000), 7)]) == 2000
    assert compared < 20
