"""Choices that no configuration has."""

from __future__ import annotations

from search_spaces.parameters import Categorical, Float
from search_spaces.space import Space
from search_spaces.untried import untried_choices

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
