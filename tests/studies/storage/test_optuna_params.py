"""Parameters that trials asked for as they ran, in the Optuna view."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import optuna
import pytest

from search_spaces.suggestions import Asked, as_plain, choice_domain, float_domain, int_domain
from studies.records.records import ASKED
from studies.storage.schema import tables as t
from studies.storage.views import mirror
from studies.storage.writing.changes import TrialChanged, TrialColumns
from tests.support.stored_study import PARAMS, StoredStudy

SPEC: dict[str, Any] = {"search": {"learn_space": True}, "mlflow": "off"}
X, LOG, CHOICE, Y = int_domain(1, 8), int_domain(1, 8, log=True), choice_domain([4, 5]), float_domain(0, 1)


def columns(**asked: Asked) -> TrialColumns:
    values = {name: one.value for name, one in asked.items()}
    return {"params": {**PARAMS, **values}, "sampler_attributes": {ASKED: as_plain(asked)}}


def mirrored(study: StoredStudy, *, anew: bool = False) -> list[optuna.trial.FrozenTrial]:
    """What the view has once it has caught up."""
    done = (mirror.rebuild if anew else mirror.catch_up)(study.store, "small")
    assert done == {"optuna": None}
    return optuna.load_study(study_name="small", storage=study.store.url).trials


def change(study: StoredStudy, number: int, changed: TrialColumns) -> None:
    with study.store.engine.connect() as connection:
        (trial_id,) = connection.execute(t.trials.select().where(t.trials.c.number == number)).one()[:1]
    study.store.commit(study.id, None, [TrialChanged(trial_id=trial_id, columns=changed)])


@pytest.mark.medium
def test_what_a_running_trial_asks_for_is_added_to_it(tmp_path: Path) -> None:
    study = StoredStudy(tmp_path, **SPEC)
    study.trial(epochs=1)
    (first,) = mirrored(study)
    change(study, 0, columns(x=Asked(5, X)))
    (second,) = mirrored(study)
    change(study, 0, columns(x=Asked(5, X), y=Asked(0.5, Y)) | {"state": "complete", "ended_at": time.time()})
    (third,) = mirrored(study)
    more = [trial.params.keys() - PARAMS.keys() for trial in (first, second, third)]
    assert more == [set(), {"x"}, {"x", "y"}]
    assert third.distributions["x"] == optuna.distributions.IntDistribution(1, 8)
    assert first._trial_id == third._trial_id, "nothing was made anew"
    assert mirrored(study, anew=True)[0].params == third.params


@pytest.mark.medium
def test_what_is_of_another_kind_than_before_is_left_out(tmp_path: Path) -> None:
    study = StoredStudy(tmp_path, **SPEC)
    for domain in (X, CHOICE, LOG, int_domain(5, 5), int_domain(5, 90)):
        study.trial(epochs=1, **columns(x=Asked(5, domain), y=Asked(0.5, Y)), state="complete", ended_at=time.time())
    for trials in (mirrored(study), mirrored(study), mirrored(study, anew=True)):
        assert ["x" in trial.params for trial in trials] == [True, False, False, False, True]
        assert all(trial.params["y"] == 0.5 for trial in trials)
