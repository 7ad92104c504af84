"""Studies of the examples with other loops: pruned, paused, thawed, on one rank and on two, and audited."""

import shlex
from typing import Any

import pytest
import yaml

from reports.recommending import command_of
from studies.results.recommendation import recommended
from tests.support import optional
from tests.support.paths import EXAMPLES

SEARCH: dict[str, Any] = {
    "sampler": "random", "seed": 1, "pruner": {"name": "mo_asha", "variant": "promotion", "grace": 1, "eta": 2},
}  # fmt: skip


SLOW = pytest.mark.slow


@pytest.mark.large
@pytest.mark.ray
@pytest.mark.parametrize(
    ("example", "library", "ranks"),
    [
        ("with_lightning", "lightning", (1, 2)), pytest.param("with_hugging_face", "accelerate", (1, 2), marks=SLOW),
        pytest.param("with_accelerate", "accelerate", (1, 2), marks=SLOW),
        pytest.param("with_keras", "keras", (1,), marks=SLOW),
        pytest.param("with_scikit_learn", "skops", (1,), marks=SLOW),
        pytest.param("with_xgboost", "xgboost", (1,), marks=SLOW), pytest.param("gan", "torch", (1, 2), marks=SLOW),
        pytest.param("with_lightgbm", "lightgbm", (1,), marks=SLOW),
    ],
)  # fmt: skip
def test_trials_are_pruned_paused_and_thawed(place, monkeypatch, example, library, ranks):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    optional.module(library)
    for name in ("own_task.py", f"{example}.py"):
        (place.folder / name).write_text((EXAMPLES / name).read_text())
    spec = yaml.safe_load((EXAMPLES / f"{example}.yaml").read_text())
    spec["space"] |= {"world_size": {"type": "categorical", "choices": list(ranks)}}
    changed = {"training": {"epochs": 4}, "search": SEARCH, "budget": {"usd": 1.0, "hours": 0.5, "trials": 6}}
    summary = place.json("launch", place.spec(spec, **changed, resources={"slots": 2}, mlflow="off"))
    assert summary["trials"].get("failed", 0) == 0
    assert summary["trials"]["complete"] >= 1
    assert summary["trials"]["pruned"] >= 1
    record = place.record(spec["study"])
    assert [trial for trial in record.started if len(trial.attempts) > 1], "promotion goes on with paused trials"
    assert {attempt.outcome for trial in record.started for attempt in trial.attempts} <= {
        "complete", "pruned", "paused",
    }  # fmt: skip
    assert not [charge for charge in record.charges if charge.kind == "lost"]
    assert {trial.world_size for trial in record.started} == set(ranks)
    for trial in record.started:
        assert [epoch.epoch for epoch in trial.epochs] == list(range(1, len(trial.epochs) + 1))
    place.audit(spec["study"])
    found = recommended(record)
    program, *command = shlex.split(command_of(record, found.point))
    assert program == "automl"
    assert place.json(*command)["trial"] == found.point.trial
