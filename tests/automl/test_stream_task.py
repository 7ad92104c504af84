"""Studies of a task whose data are streams of unknown length: refused, paused, thawed, killed, resumed, exported."""

from __future__ import annotations

import json
import os
import signal
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from automl.stored.open_store import open_store
from automl.training.world_sizes import table
from studies.records.records import StudyRecord
from studies.spec.checks import check_stream
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import parse_spec
from studies.storage.reading.reader import load_study
from tests.support.command_line import Workplace, finish
from tests.support.ray_pool import LentPool

pytestmark = pytest.mark.ray

TASK = """
    import random, time
    import torch
    from torch import nn
    from torch.utils.data import IterableDataset
    from trainers.contract.task import BaseTask

    class Points(IterableDataset):
        def __init__(self, n, seed, seconds=0.0):
            generator = torch.Generator().manual_seed(seed)
            self.targets, self.seconds = torch.arange(n) % 2, seconds
            self.inputs = torch.randn(n, 2, generator=generator) + 1.5 * self.targets[:, None]

        def __iter__(self):
            order = list(range(len(self.targets)))
            random.shuffle(order)
            for index in order:
                time.sleep(self.seconds)
                yield self.inputs[index], self.targets[index]

    class Streamed(BaseTask):
        parameters = ("width",)

        def __init__(self, *, seconds=0.0):
            self.seconds = seconds

        def train_data(self, params):
            return Points(301, 0, self.seconds)

        def validation_data(self, params):
            return Points(101, 1)

        def model(self, params):
            return nn.Sequential(nn.Linear(2, params["width"]), nn.Dropout(0.1), nn.Linear(params["width"], 2))
"""
SPEC: dict[str, Any] = {
    "study": "streamed",
    "task": "streamed:Streamed",
    "space": {
        "learning_rate": {"type": "float", "low": 0.01, "high": 0.5, "log": True},
        "batch_per_rank": {"type": "categorical", "choices": [16, 32]},
        "world_size": {"type": "categorical", "choices": [1, 2]},
        "width": {"type": "int", "low": 4, "high": 16},
    },
    "objectives": [{"metric": "val_error", "direction": "minimize"}, {"metric": "cost_usd", "direction": "minimize"}],
    "training": {"epochs": 6, "schedule": "constant", "warmup_epochs": 0},
    "search": {"seed": 1, "pruner": {"name": "mo_asha", "variant": "promotion", "grace": 1, "eta": 3}},
    "budget": {"usd": 1.0, "hours": 0.5, "trials": 7},
    "resources": {"slots": 2},
}
NO_PRUNER = {"sampler": "random", "seed": 3, "pruner": {"name": "none"}}


@pytest.fixture
def place(tmp_path: Path, warm_pool: LentPool) -> Iterator[Workplace]:
    place = Workplace(tmp_path, warm_pool)
    (tmp_path / "streamed.py").write_text(textwrap.dedent(TASK))
    yield place
    place.end_processes()


def record_of(place: Workplace) -> StudyRecord:
    with closing(open_store(f"sqlite:///{place.folder}/automl.db")) as store:
        return load_study(store, "streamed")


def losses_of(place: Workplace) -> list[list[float]]:
    return [[epoch.metrics["val_loss"] for epoch in trial.epochs] for trial in record_of(place).started]


@pytest.mark.parametrize(
    ("training", "space", "message"),
    [
        ({}, {}, "training.samples_per_epoch: found schedule cosine with samples_per_epoch auto"),
        (
            {"schedule": "constant"},
            {},
            "training.samples_per_epoch: found warmup_epochs 1.0 with samples_per_epoch auto",
        ),
        ({"warmup_epochs": 0}, {"schedule": ["constant", "step"]}, "space.schedule: found schedule step with"),
    ],
)
def test_a_schedule_that_needs_the_number_of_steps_is_refused(training, space, message):
    varied = {name: {"type": "categorical", "choices": choices} for name, choices in space.items()}
    spec = parse_spec({**SPEC, "training": training, "space": SPEC["space"] | varied})
    with pytest.raises(SpecError) as caught:
        check_stream(spec, has_schedule=False)
    assert f"spec: {message}" in str(caught.value)
    assert "take samples_per_epoch: N" in str(caught.value)
    check_stream(parse_spec(SPEC), has_schedule=False)
    with pytest.raises(SpecError, match="a schedule of the task's own"):
        check_stream(parse_spec(SPEC), has_schedule=True)


def test_launch_refuses_in_one_line_and_writes_nothing(place: Workplace) -> None:
    (line,) = place.run("launch", place.spec(SPEC, training={"schedule": "cosine"}), code=2).stderr.splitlines()
    assert "streamed.yaml: training.samples_per_epoch: found schedule cosine" in line
    assert not (place.folder / "automl.db").exists()


def test_a_comparison_of_world_sizes_does_not_count_the_steps_of_a_stream() -> None:
    compared = {"task": "streamed:Streamed", "effective_batch": 64, "samples": 0, "epochs": 2, "world_sizes": []}
    assert str(table(compared).title) == "streamed:Streamed: effective batch 64, 2 epochs"
    assert "5 steps an epoch" in str(table({**compared, "samples": 301}).title)


@pytest.mark.large
def test_a_study_is_paused_and_thawed_charged_and_exported(place: Workplace) -> None:
    training = {"samples_per_epoch": 200, "schedule": "cosine"}
    place.json("launch", place.spec(SPEC, training=SPEC["training"] | training))
    record = record_of(place)
    assert [trial for trial in record.started if len(trial.attempts) > 1], "a paused trial has gone on"
    assert {trial.state for trial in record.started} == {"complete", "pruned"}
    assert all(epoch.metrics["cost_usd"] > 0 for trial in record.started for epoch in trial.epochs)
    assert not [charge for charge in record.charges if charge.kind == "lost"]
    place.audit("streamed")
    points = [(trial.number, epoch) for trial in record.started for epoch in trial.epochs]
    number, epoch = min(points, key=lambda one: (one[1].metrics["val_error"], one[1].metrics["cost_usd"]))
    place.json("export", "streamed", f"{number}@{epoch.epoch}", "--out", "model")
    assert "unknown" in (place.folder / "model" / "README.md").read_text()


@pytest.mark.medium
@pytest.mark.slow
def test_a_killed_study_goes_on_within_an_epoch_with_the_same_figures(place: Workplace) -> None:
    sections: dict[str, Any] = {
        "task_options": {"seconds": 0.004}, "search": NO_PRUNER, "budget": {"trials": 1},
        "checkpoints": {"every_seconds": 0.1}, "training": SPEC["training"] | {"epochs": 3},
    }  # fmt: skip
    process = place.start("launch", place.spec(SPEC, **sections))
    place.wait_for(lambda rows: any(row.epochs for row in rows), "streamed")
    os.kill(process.pid, signal.SIGKILL)
    finish(process)
    place.run("resume", "streamed")
    place.audit("streamed")
    assert len(record_of(place).started[0].attempts) == 2
    resumed = losses_of(place)
    (place.folder / "automl.db").unlink()
    place.json("launch", place.spec(SPEC, **sections))
    assert json.dumps(losses_of(place)) == json.dumps(resumed)
