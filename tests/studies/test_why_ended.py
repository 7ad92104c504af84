"""Why a study ended, in words: a budget that ended before the first epoch names the way on."""

from dataclasses import replace
from pathlib import Path

import pytest

from studies.money.budget import Limits
from tests.support.simulated_study import SimulatedStudy


@pytest.mark.medium
def test_a_budget_that_ends_before_the_first_epoch_says_how_to_go_on(tmp_path: Path) -> None:
    study = SimulatedStudy(tmp_path, epochs=3, slots=1)
    study.run(Limits(trials=2))
    record = replace(study.record(), stop_reason="budget_hours")
    assert record.why_ended == "the hours of its budget are used up"
    nothing = replace(record, trials=tuple(replace(trial, epochs=()) for trial in record.trials))
    for empty in (nothing, replace(record, trials=())):
        assert empty.why_ended == (
            "the hours of its budget are used up before any trial ended an epoch; continue it with a larger budget, "
            'for example `automl resume simulated --set budget="10 min"`'
        )
    assert replace(nothing, stop_reason="budget_trials").why_ended == (
        "all trials that its budget allows have been started"
    )
