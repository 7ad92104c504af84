"""The median pruner: what a user's trials may rely on when it decides, against plain references."""

import itertools
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from studies.money.budget import Limits
from studies.results.pareto import layers
from studies.search.policy import History, Policy
from studies.search.pruners.median import Median
from studies.spec.study_spec import parse_spec, spec_to_mapping
from tests.support.simulated_study import SimulatedStudy, checked

patient = settings(deadline=None, max_examples=40)
COMBINATIONS = ("joint", "any", "all", "primary")
point = st.tuples(st.integers(0, 6).map(float), st.integers(0, 6).map(float))
rung_of_many = st.dictionaries(st.integers(0, 60), point, min_size=6, max_size=25)


def action(at_rung: dict[int, Any], number: int, combine: Any, startup_trials: int = 5) -> str:
    pruner = Median(combine=combine, startup_trials=startup_trials)
    return pruner.decide(History(at_rung={3: at_rung}), number, 3).action


@patient
@given(rung_of_many, st.sampled_from(COMBINATIONS))
def test_it_is_the_rule_that_its_name_says(at_rung: dict[int, tuple[float, float]], combine: str) -> None:
    for number, own in at_rung.items():
        others = [values for other, values in at_rung.items() if other != number]
        worse = [
            value > statistics.median(column) for value, column in zip(own, zip(*others, strict=True), strict=True)
        ]
        layer, *theirs = layers([own, *others])
        stops = {
            "any": worse[0] or worse[1],
            "all": worse[0] and worse[1],
            "primary": worse[0],
            "joint": layer > statistics.median(theirs),
        }
        assert action(at_rung, number, combine) == ("stop" if stops[combine] else "continue")


@pytest.mark.parametrize("combine", COMBINATIONS)
def test_nobody_ends_before_there_are_enough_others(combine: str) -> None:
    at_rung = {number: (float(number), float(number)) for number in range(6)}
    assert action(at_rung, 5, combine, startup_trials=5) == "stop"
    assert action(at_rung, 5, combine, startup_trials=6) == "continue"


def test_a_decision_says_what_was_compared() -> None:
    history = History(at_rung={6: {number: (float(number), 10.0 - number) for number in range(7)}})
    by_objective = Median(combine="any").decide(history, 6, 6)
    assert by_objective.reason == "worse than the median in 1 of 2 objectives at rung 6; any of them ends it"
    assert by_objective.numbers == {
        "trials_at_rung": 7, "objective_1": 6.0, "median_1": 2.5, "objective_2": 4.0, "median_2": 7.5,
    }  # fmt: skip
    history.at_rung[6][7] = (9.0, 9.0)
    joint = Median().decide(history, 7, 6)
    assert joint.reason == "front 2 of 2 at rung 6 is worse than the median 1"
    assert joint.numbers == {"front": 2, "median_front": 1.0, "trials_at_rung": 8}


def test_rungs_double_and_leave_the_end_alone() -> None:
    assert Median().rungs(52) == (3, 6, 12, 24)
    assert Median(grace=1).rungs(10) == (1, 2, 4, 8)
    assert Median().rungs(3) == ()


@pytest.mark.medium
def test_about_half_of_a_study_ends_at_each_rung(tmp_path: Path) -> None:
    study = SimulatedStudy(tmp_path, policy=Policy(pruner=Median(combine="primary")))
    study.run(Limits(trials=40))
    record = checked(study)
    reached = [sum(len(trial.epochs) >= rung for trial in record.started) for rung in (3, 6, 12, 27)]
    assert reached[0] == 40
    for before, after in itertools.pairwise(reached):
        assert 0.3 * before < after < 0.75 * before
    stopped = [trial for trial in record.started if trial.state == "pruned"]
    assert all("worse than the median" in trial.reason for trial in stopped)


def test_the_spec_takes_its_options_and_no_others_and_gets_it() -> None:
    form = {"name": "median", "grace": 2, "startup_trials": 8, "combine": "all"}
    spec = parse_spec({"task": "digits", "search": {"pruner": form}})
    assert spec_to_mapping(spec)["search"]["pruner"] == form
    assert parse_spec(spec_to_mapping(spec)) == spec
    with pytest.raises(Exception, match=r"search\.pruner\.eta: found the unknown key 'eta'.*; mo_asha has it"):
        parse_spec({"task": "digits", "search": {"pruner": {"name": "median", "eta": 3}}})
    with pytest.raises(Exception, match="joint, any, all, primary"):
        parse_spec({"task": "digits", "search": {"pruner": {"name": "median", "combine": "some"}}})
    from studies.control.assembly import PoolSpec, assemble, setup_of

    spec = parse_spec({"task": "digits", "search": {"pruner": {"name": "median", "grace": 2, "combine": "any"}}})
    pool = PoolSpec(device="cpu", slots=1, usd_per_slot_hour=1.0)
    setup = setup_of(spec, pool, assemble(spec, pool).policy, Path(), None)
    assert setup.policy.pruner == Median(grace=2, combine="any")
    assert set(setup.policy.pruner.rungs(20)) <= set(setup.milestones)
