"""Numbers in terminal tables: three digits, units, and the root beside a mean squared error."""

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from automl.confirming import measured_on
from automl.terminal.explanation import print_explanation
from automl.terminal.study_run_output import print_ending
from automl.terminal.summary import confirmed_table, document_of, print_summary
from automl.terminal.texts import values_text
from reports.phrases import value_in_words
from reports.recommending import confirmed_value
from studies.records.records import NEXT_10_USD_PERCENT, BudgetLine, DecisionRecord
from studies.results import analysis
from tests.studies.test_analysis import study_of, trial


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("cost_usd", 4.398e-06, "$0.0000044"), ("cost_usd", 0.0123456, "$0.0123"), ("cost_usd", 12.3456, "$12.35"),
        ("val_mse", 2500.1234, "2,500 (RMSE 50)"), ("val_mse", 1.2345678, "1.23 (RMSE 1.11)"),
        ("val_error", 0.0312345, "3.12 %"), ("val_squared_error", 0.1328, "0.133"), ("val_loss", 0.693147, "0.693"),
        ("wall_seconds", 200.0, "3 min 20 s"), ("model_parameters", 2_627_000_000.0, "2,627 M"),
        ("latency_ms", 1.23456, "1.23 ms"), ("val_mse", float("nan"), "not finite"), ("val_error", None, ""),
    ],
)  # fmt: skip
def test_a_value_has_three_digits_and_its_unit(name: str, value: Any, text: str) -> None:
    assert value_in_words(name, value) == text


def test_a_row_of_values_has_them_too() -> None:
    assert values_text({"val_error": 0.0312, "cost_usd": 4e-7}) == "val_error 3.12 %, cost_usd $0.0000004"


@pytest.mark.parametrize(("state", "said"), [("pruned", True), ("complete", False)])
def test_exit_code_3_is_explained_below_the_summary(state: Any, said: bool) -> None:
    plain = study_of(replace(trial(0, (0.2, 1.0)), state=state), spec={})
    budget = {"trials": BudgetLine(limit=3, spent=3)}
    console = Console(file=io.StringIO(), width=200)
    print_ending(console, replace(plain, state="closed", stop_reason="budget_trials", budget=budget), report="")
    *_, last = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert last.startswith("Exit code 3: no trial reached its last epoch") == said
    assert last.endswith(f"To train longer: automl resume {plain.name} --set 'budget=6 trials'") == said


def test_failures_alone_get_no_advice_to_train_longer() -> None:
    plain = study_of(replace(trial(0), state="failed", failure="error"), spec={})
    budget = {"trials": BudgetLine(limit=1, spent=1)}
    console = Console(file=io.StringIO(), width=200)
    print_ending(console, replace(plain, state="closed", stop_reason="budget_trials", budget=budget), report="")
    *_, last = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    cure = f"Remove the cause, then launch with --set study={plain.name}-2"
    assert last == f"Exit code 3: every trial failed. {cure}"


def test_the_summary_tells_of_percent_and_json_stays_raw() -> None:
    usual = {"name": "usual trees", "params": {"lr": 0.0}}
    plain = study_of(trial(0, (0.2, 1.0), (0.1, 2.0), (0.15, 3.0)), trial(1, (0.02, 2.5)))
    study = study_of(*plain.trials, spec={**plain.spec, "baselines": [usual]})
    console = Console(file=io.StringIO(), width=200)
    print_summary(console, study, report=None)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert re.search(r"hypervolume +half of the money reached .* % of it; usual trees alone \d", said)
    assert "val_error 2 % (1@1)" in said
    assert f"{analysis.hypervolume(study):.5g}" not in said
    document = document_of(study, report=None)
    assert document["hypervolume"] == analysis.hypervolume(study)


def test_confirmed_figures_and_their_deviations_have_units_unless_all_trainings_failed() -> None:
    spread = {"mean": 2.5, "deviation": 0.125}
    row = {"trial": 1, "epoch": 6, "search": {"val_mse": 2.25}, "validation": {"val_mse": spread}, "test": {}}
    console = Console(file=io.StringIO(), width=200)
    console.print(confirmed_table({"study": "s", "seeds": 3, "trials": [row]}))
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "2.25 (RMSE 1.5)" in said
    assert "2.5 (RMSE 1.58) ± 0.125" in said
    spread = {"val_error": {"mean": 0.5}}
    failed: dict[str, Any] = {"test": {}, "validation": {}}
    assert measured_on([failed, failed]) is None
    assert measured_on([failed, {**failed, "validation": spread}]) == "validation"
    assert measured_on([{"validation": spread, "test": spread}, failed]) == "test"
    assert str(confirmed_table({"study": "s", "seeds": 1, "trials": []}).title) == "s: each point with 1 fresh seed"
    spreads = {"val_error": {"mean": 1.2, "deviation": 0.3}, "val_absolute_error": {"mean": 0.2, "deviation": 0.1}}
    assert confirmed_value({"metrics": spreads}, "val_error") == "1.2 ± 0.3"
    assert confirmed_value({"metrics": spreads}, "val_absolute_error") == "0.2 ± 0.1"


@pytest.mark.parametrize(
    ("percent", "words"), [(None, "unknown while the hypervolume is 0"), (0.0, "about 0 %"), (3.1415, "about 3.1 %")]
)
def test_a_growth_that_cannot_be_stated_is_not_told_as_none(percent: float | None, words: str) -> None:
    decision = DecisionRecord(epoch=1, action="pause", reason="waits", numbers={NEXT_10_USD_PERCENT: percent})
    one = replace(trial(0, (0.2, 1.0)), decisions=(decision,))
    console = Console(file=io.StringIO(), width=200)
    print_explanation(console, study_of(one), one)
    assert f"{NEXT_10_USD_PERCENT} = {words}\n" in console.file.getvalue()  # type: ignore[attr-defined]
