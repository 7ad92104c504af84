"""The face towards Python: what `automl.launch` makes of specs and overrides."""

from pathlib import Path
from typing import Any

import pytest

from automl import api
from automl.launching import launch_or_resume
from automl.launching.prepared_study import Prepared
from automl.launching.spec_reading import parse_with_overrides
from automl.launching.study_run import Watcher
from search_spaces.space import Space
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import StudySpec, parse_spec
from studies.storage.study_store import Store
from tests.support.command_line import DIGITS


class DrivenError(Exception):
    """A controller would start now."""


@pytest.fixture
def driven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[StudySpec]:
    """The specs that would be driven; nothing runs."""
    specs: list[StudySpec] = []

    def drive(_store: Store, _row: Any, prepared: Prepared, _watcher: Watcher) -> None:
        specs.append(prepared.spec)
        raise DrivenError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch_or_resume, "drive", drive)
    monkeypatch.setattr(launch_or_resume, "drive", drive)
    return specs


OVERRIDES = ("budget.trials=3", "training.epochs=2")


@pytest.mark.parametrize("form", ["mapping", "parsed", "with a Space"])
def test_overrides_hold_for_every_form_of_a_spec(driven: list[StudySpec], form: str) -> None:
    spec: Any = {
        "mapping": DIGITS,
        "parsed": parse_spec(DIGITS),
        "with a Space": {**DIGITS, "space": Space.from_dict(DIGITS["space"])},
    }[form]
    with pytest.raises(DrivenError):
        api.launch(spec, overrides=OVERRIDES)
    (one,) = driven
    assert (one.budget.trials, one.training.epochs) == (3, 2)
    assert one.space == Space.from_dict(DIGITS["space"])


def test_a_wrong_override_is_refused(driven: list[StudySpec]) -> None:
    with pytest.raises(SpecError, match=r"budget\.trails"):
        api.launch(DIGITS, overrides=["budget.trails=3"])
    assert driven == []


def test_without_overrides_a_spec_is_taken_as_it_is() -> None:
    spec = parse_spec(DIGITS)
    assert parse_with_overrides(spec) is spec


def test_overrides_hold_for_resume(driven: list[StudySpec], tmp_path: Path) -> None:
    with pytest.raises(DrivenError):
        api.launch(DIGITS)
    store = Store(f"sqlite:///{tmp_path}/automl.db")
    with pytest.raises(DrivenError):
        launch_or_resume.resume(store, "small", ["budget.trials=77"], Watcher())
    assert [one.budget.trials for one in driven] == [14, 77]


def constant(trial: Any) -> None:
    for _ in trial.epochs():
        trial.report(val_error=0.5)


def test_a_search_without_a_budget_has_that_of_a_study_without_a_spec(driven, caplog):
    space = {"learning_rate": {"type": "float", "low": 0.1, "high": 0.5}}
    with pytest.raises(DrivenError):
        api.search(constant, space=space, objectives=[{"metric": "val_error"}])
    (one,) = driven
    assert (one.budget.hours, one.budget.usd, one.budget.trials) == (0.25, 2.0, None)
    assert "no budget. Default budget: $2.00 or 15 min, whichever comes first" in caplog.text
