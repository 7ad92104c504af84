"""Constraints between parameters: what is read, what is refused, and that no configuration violates one."""

import copy
import pickle
import random
import sys
from typing import Any

import pytest

from search_spaces.drawing import complete
from search_spaces.parameters import SpaceError
from search_spaces.relations import LONGEST, Relation
from search_spaces.space import Space

FORM = {
    "layers": (1, 8),
    "width": (16, 1024),
    "optimizer": ["sgd", "adam"],
    "momentum": {"type": "float", "low": 0.0, "high": 0.99, "when": {"optimizer": "sgd"}},
}
KEPT = [
    "layers * width <= 1024",
    "layers ** 2 + 1 < width / 2",
    "not (optimizer == 'sgd' and momentum > 0.9)",
    "optimizer in ['sgd', 'adam']",
]


def space(*constraints: Any) -> Space:
    return Space.from_dict({**FORM, "constraints": list(constraints)})


def test_constraints_are_part_of_a_space_and_kept_by_random_configurations() -> None:
    one = space(*KEPT)
    assert one.constraints == tuple(KEPT)
    assert one.names() == tuple(FORM)
    assert one != Space.from_dict(FORM)
    for same in (Space.from_dict(one.to_dict()), pickle.loads(pickle.dumps(one)), copy.deepcopy(one)):
        assert (same, hash(same)) == (one, hash(one))
    one = space(*KEPT)
    drawn: list[Any] = [complete(one, {}, random.Random(seed)) for seed in range(300)]
    assert all(params["layers"] * params["width"] <= 1024 for params in drawn)
    assert max(params.get("momentum", 0.0) for params in drawn) <= 0.9
    assert {params["optimizer"] for params in drawn} == {"sgd", "adam"}


def test_a_relation_with_an_absent_parameter_holds_one_that_cannot_be_computed_does_not_and_both_end() -> None:
    assert space("momentum > 2").allows({"layers": 1, "width": 16, "optimizer": "adam"})
    assert not space("momentum > 2").allows({"layers": 1, "width": 16, "optimizer": "sgd", "momentum": 0.1})
    assert not space("layers / (width - width) > 0").allows({"layers": 1, "width": 16, "optimizer": "adam"})
    assert not space("layers * optimizer != 3").allows({"layers": 10**9, "width": 16, "optimizer": "adam"})
    assert space("'sg' in optimizer").allows({"layers": 1, "width": 16, "optimizer": "sgd", "momentum": 0.1})
    assert not space("layers < optimizer").allows({"layers": 1, "width": 16, "optimizer": "adam"})
    # With whole numbers of Python each of these would take all memory or all day.
    towers = ["9**9**9**9 > layers", "((((layers**99)**99)**99)**99)**99 > 1", "width ** (width ** width) != 1"]
    assert not any(space(one).allows({"layers": 8, "width": 64, "optimizer": "adam"}) for one in towers)


def test_given_parameters_are_refused_with_the_values_and_the_constraint() -> None:
    with pytest.raises(SpaceError) as refused:
        space("layers * width <= 64").check({"layers": 8, "width": 16, "optimizer": "adam"})
    assert str(refused.value) == (
        "constraints: found layers=8, width=16, allowed: configurations with layers * width <= 64"
    )
    with pytest.raises(SpaceError, match="found layers=8, width=16"):
        complete(space("layers * width <= 64"), {"layers": 8, "width": 16, "optimizer": "adam"}, random.Random(0))
    with pytest.raises(SpaceError, match="none of 10,000 random configurations with layers=8 keeps layers"):
        complete(space("layers * width <= 64"), {"layers": 8}, random.Random(0))
    drawn: dict[str, Any] = dict(complete(space("layers * width <= 64"), {"layers": 2}, random.Random(0)))
    assert drawn["width"] <= 32


def test_a_space_that_a_launch_accepts_can_always_be_drawn_from_and_others_are_said() -> None:
    with pytest.raises(SpaceError, match="none of 10,000 random configurations keeps width > 5000"):
        complete(space("width > 5000"), {}, random.Random(0))
    # One draw in 1,009 is allowed: some seeds would find none in 10,000, and the study would fail half way.

    class Unlucky(random.Random):
        def randint(self, low: int, high: int) -> int:
            return low

    assert complete(space("width == 800"), {}, Unlucky(0))["width"] == 800


@pytest.mark.parametrize(
    ("constraint", "says"),
    [
        ("layers * width", "allowed: a comparison of parameters"),
        ("1 < 2", "allowed: a comparison of parameters"),
        ("layrs < 3", "did you mean 'layers'"),
        ("layers <", "which is not an expression"),
        ("layers < 3; width > 4", "which is not an expression"),
        ("layers = 3", "which is not an expression"),
        ("layers.real < 3", "allowed: a comparison"),
        ("__import__('os').getpid() > layers", "found '__import__'"),
        ("(lambda: 1)() < layers", "allowed: a comparison"),
        ("layers is 3", "allowed: a comparison"),
        ("optimizer == sgd", "found 'sgd', allowed: layers, width, optimizer, momentum. Put a text in quotes"),
        ("not (optimizer == 'sdg' and layers > 2)", "found 'sdg', allowed: sgd, adam; did you mean 'sgd'?"),
        ("optimizer in ['sgd', 'adams']", "found 'adams', allowed: sgd, adam; did you mean 'adam'?"),
        ("[one for one in (1,)] == layers", "found 'one'"),
        ("max(layers, 2) > 1", "found 'max'"),
        ("'a' * 10**9 != optimizer", "allowed: a comparison"),
        ("[1] * 10**9 == layers", "allowed: a comparison"),
        ("layers * (optimizer == 'sgd') > 1", "allowed: a comparison"),
        ("-(layers < 2) < 0", "allowed: a comparison"),
        ("layers < b'3'", "allowed: a comparison"),
        ("layers < 3j", "allowed: a comparison"),
        (f"layers < {'9' * 400}", "allowed: numbers up to"),
        ("(1 << 10**9) > layers", "allowed: a comparison"),
        ("(" * 400 + "layers" + ")" * 400 + " > 1", "allowed: a comparison"),
        ("(" * 190 + "layers" + ")" * 190 + " >", "which is not an expression"),
        ("", "allowed: a comparison"),
        (3, "allowed: a comparison"),
        (None, "allowed: a comparison"),
    ],
)
def test_anything_but_a_comparison_is_refused_with_its_place(constraint: Any, says: str) -> None:
    with pytest.raises(SpaceError) as refused:
        space("layers < 9", constraint)
    assert str(refused.value).startswith("constraints[1]: ")
    assert says in str(refused.value)


def test_the_key_takes_a_list() -> None:
    with pytest.raises(SpaceError, match="constraints: found 'layers < 3', allowed: a list of texts"):
        Space.from_dict({**FORM, "constraints": "layers < 3"})


@pytest.mark.parametrize("begin_with", ["-", "not ", "x + ", "x ** ", "x == 'a' and "])
def test_a_relation_is_read_in_calls_that_grow_with_its_length(begin_with: str) -> None:
    def calls(count: int) -> int:
        found = 0

        def note(_frame: Any, event: str, _value: Any) -> None:
            nonlocal found
            found += event == "call"

        sys.setprofile(note)
        try:
            Relation.of(begin_with * count + "x <= 1", {"x": {"a": None}})
        finally:
            sys.setprofile(None)
        return found

    most = LONGEST // len(begin_with) - 6
    assert calls(most) < 3 * calls(most // 2)


def test_of_a_very_large_space_fewer_configurations_are_drawn() -> None:
    form = {f"p{number}": [1, 2] for number in range(2000)}
    with pytest.raises(SpaceError, match="none of 501 random configurations keeps p0 > 2"):
        complete(Space.from_dict(form | {"constraints": ["p0 > 2"]}), {}, random.Random(0))
