"""What studies decide is what they decided when tests/golden.json was recorded (tests/support/golden.py)."""

import json

import pytest

from tests.support.golden import CASES, RECORD, SPECS, available, differences, recorded_here

FAMILIES = ("made_up", "failing", "world_sizes", "lcbench", "taskset", "spec")


def test_every_case_has_a_record_and_a_family() -> None:
    assert set(json.loads(RECORD.read_text())) == {*CASES, *SPECS}
    assert {name.split("/")[0] for name in (*CASES, *SPECS)} == set(FAMILIES)


QUICK = (
    "made_up/random+mo_asha", "made_up/nsga2+median", "made_up/auto+three_objectives", "failing/auto",
    "world_sizes/tpe+mo_asha",
)  # fmt: skip
"""A share of the record that takes seconds; `make test-slow` and `python -m tests.support.golden` compare all of it."""


@pytest.mark.medium
def test_a_share_of_the_decisions_suggestions_and_charges_are_the_recorded_ones() -> None:
    assert list(differences(recorded_here(QUICK), json.loads(RECORD.read_text()))) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("family", FAMILIES)
def test_decisions_suggestions_and_charges_are_the_recorded_ones(family: str) -> None:
    names = tuple(name for name in available() if name.startswith(f"{family}/"))
    if not names:
        pytest.skip(f"the recorded curves of {family} are not at hand")
    assert list(differences(recorded_here(names), json.loads(RECORD.read_text()))) == []


def test_a_changed_decision_is_noticed() -> None:
    known = json.loads(RECORD.read_text())
    name = "made_up/random+mo_asha"
    found = {name: known[name] | {"decisions": "0" * 20}}
    assert list(differences(found, known)) == [f"{name}: decisions"]
