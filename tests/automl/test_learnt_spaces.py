"""Studies of objectives for Optuna whose space is learnt as trials run: killed, resumed, on two ranks, in tables."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import optuna
import pytest

import automl
from automl.stored.open_store import open_store
from search_spaces.suggestions import Asked, drawn
from studies.records.records import TrialRecord, proposed_in
from studies.storage.reading.reader import load_resume_state
from studies.storage.study_store import Store
from tests.support.command_line import Workplace

pytestmark = pytest.mark.ray

MODULE = """
import os
import time

from torch import nn

from automl.adapters.optuna_objective import as_training_function


def objective(trial):
    layers = trial.suggest_int("layers", 1, 3)
    model = trial.prepare(nn.Linear(2, 1))
    units = [trial.suggest_int(f"units_{i}", 4, 64, log=True) for i in range(layers)]
    rate = trial.suggest_float("sgd/rate", 1e-4, 1.0, log=True)
    if units[0] > 16:
        rate += trial.suggest_float("decay", 0.0, 0.1 * layers)
    else:
        rate += 0.1 * (trial.suggest_categorical("kind", ["sgd", "adam"]) == "sgd")
    for step in range(4):
        time.sleep(0.05)
        error = trial.mean(rate + 1 / (step + sum(units)))
        trial.report(error, step)
        trial.should_prune()
    late = trial.suggest_int("late", 1, 9)
    return error + late / 100


run = as_training_function(objective, ["error"], 5)
"""
SPEC: dict[str, Any] = {
    "study": "learnt",
    "task": "layered:run",
    "space": {"layers": {"type": "int", "low": 1, "high": 3}, "world_size": {"type": "categorical", "choices": [2]}},
    "objectives": [{"metric": "error"}, {"metric": "cost_usd"}],
    "training": {"epochs": 5},
    "search": {
        "sampler": "tpe", "seed": 3, "learn_space": True,
        "pruner": {"name": "mo_asha", "variant": "promotion", "grace": 2, "eta": 2},
    },
    "budget": {"usd": 1.0, "hours": 0.5, "trials": 10},
    "resources": {"slots": 2},
}  # fmt: skip


def check_is_drawn_or_proposed(store: Store, trials: tuple[TrialRecord, ...]) -> int:
    """Whatever was killed on the way: each value is what was proposed, or what seed, trial and name give.

    Returns:
        Number of values that were proposed.
    """
    attributes = {row.record.id: row.sampler_attributes for row in _stored(store)}
    taken = 0
    for trial in trials:
        proposed = proposed_in(attributes[trial.id])
        for name, one in trial.asked.items():
            fits = name in proposed and one.domain.contains(proposed[name].value)
            expected = drawn(one.domain, seed=3, trial=trial.number or 0, name=name)
            assert trial.asked[name] == Asked(proposed[name].value if fits else expected, one.domain)
            assert trial.params[name] == one.value
            taken += fits
    return taken


def _stored(store: Store) -> Any:
    return load_resume_state(store, store.require("learnt").id, before_lease=0).trials


@pytest.mark.large
@pytest.mark.parametrize("sampler", ["tpe", pytest.param("gp", marks=pytest.mark.slow)])
def test_a_space_is_learnt_over_a_killed_rank_and_a_stop_on_two_ranks(place: Workplace, sampler: str) -> None:
    (place.folder / "layered.py").write_text(MODULE)

    def disturb() -> None:
        place.wait_for(lambda rows: bool(rows[-1].epochs), "learnt")
        place.kill_rank(1)
        place.wait_for(lambda rows: len(rows) > 2 and bool(rows[-1].epochs), "learnt")
        place.order_stop("learnt")

    place.run("launch", place.spec(SPEC, search={"sampler": sampler}), code=130, meanwhile=disturb)
    assert "lost" in {one.outcome for trial in place.record("learnt").started for one in trial.attempts}
    place.run("resume", "learnt")
    place.audit("learnt")
    with closing(open_store(f"sqlite:///{place.folder}/automl.db")) as store:
        study = automl.Study(store, "learnt")
        assert check_is_drawn_or_proposed(store, study.trials) > 10
        assert len(study.trials) == 10
        for trial in study.trials:
            branch = {"decay"} if int(trial.params["units_0"] or 0) > 16 else {"kind"}
            expected = {f"units_{i}" for i in range(int(trial.params["layers"] or 0))} | branch | {"sgd/rate"}
            assert set(trial.asked) - {"late"} == expected
            assert ("late" in trial.asked) == (trial.state == "complete")
        table = study.dataframe()
        assert {"params.layers", "params.units_0", "params.sgd/rate", "params.decay", "params.kind"} <= set(table)
        names = [name for name in study.figures if name.startswith("parameters.error.")]
        assert "parameters.error.units_0" in names
        assert study.figures["parameters.error.units_0"].layout.xaxis.type == "log", "the domain is known"
        assert study.report.read_text().count("sgd/rate") > 0
    check_views(place, study.trials)


def check_views(place: Workplace, trials: tuple[TrialRecord, ...]) -> None:
    mirror = optuna.load_study(study_name="learnt", storage=f"sqlite:///{place.folder}/automl.db")
    for trial, theirs in zip(trials, mirror.trials, strict=True):
        assert theirs.params == dict(trial.params)
    best = trials[0]
    explained = place.run("explain", "learnt", "0").stdout
    assert f"units_0={best.params['units_0']}" in explained
    assert place.json("trials", "learnt")[0]["params"] == dict(best.params)
    refused = place.run("enqueue", "learnt", "--param", "units_0=8", code=2)
    assert "units_0" in refused.stderr
