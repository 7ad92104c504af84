"""Studies of a task whose data are streams of unknown length: refused, paused, thawed, exported."""

import textwrap
from typing import Any

import pytest

from automl.training.world_sizes import table
from studies.spec.checks import check_stream
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import parse_spec
from tests.support.command_line import Workplace

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
    "training": {"epochs": 4, "schedule": "constant", "warmup_epochs": 0},
    "search": {"seed": 1, "pruner": {"name": "mo_asha", "variant": "promotion", "grace": 1, "eta": 2}},
    "budget": {"usd": 1.0, "hours": 0.5, "trials": 5},
    "resources": {"slots": 2},
}


@pytest.mark.parametrize(
    ("training", "space", "message"),
    [
        ({}, {}, "training.samples_per_epoch: samples_per_epoch is auto and schedule is cosine"),
        (
            {"schedule": "constant"},
            {},
            "training.samples_per_epoch: samples_per_epoch is auto and warmup_epochs is 1.0",
        ),
        ({"warmup_epochs": 0}, {"schedule": ["constant", "step"]}, "space.schedule: samples_per_epoch is auto and"),
    ],
)
def test_a_schedule_that_needs_the_number_of_steps_is_refused(training, space, message):
    varied = {name: {"type": "categorical", "choices": choices} for name, choices in space.items()}
    spec = parse_spec({**SPEC, "training": training, "space": SPEC["space"] | varied})
    with pytest.raises(SpecError) as caught:
        check_stream(spec, has_schedule=False)
    assert f"spec: {message}" in str(caught.value)
    assert "Set samples_per_epoch: N" in str(caught.value)
    check_stream(parse_spec(SPEC), has_schedule=False)
    with pytest.raises(SpecError, match="the task has its own schedule"):
        check_stream(parse_spec(SPEC), has_schedule=True)


def test_launch_refuses_in_one_line_and_writes_nothing(place: Workplace) -> None:
    (place.folder / "streamed.py").write_text(textwrap.dedent(TASK))
    line, _ = place.run("launch", place.spec(SPEC, training={"schedule": "cosine"}), code=2).stderr.splitlines()
    assert "streamed.yaml: training.samples_per_epoch: samples_per_epoch is auto and schedule is cosine" in line
    assert not (place.folder / "automl.db").exists()


def test_a_comparison_of_world_sizes_does_not_count_the_steps_of_a_stream() -> None:
    compared = {"task": "streamed:Streamed", "effective_batch": 64, "samples": 0, "epochs": 2, "world_sizes": []}
    assert str(table(compared).title) == "streamed:Streamed: effective batch 64, 2 epochs"
    assert "5 steps an epoch" in str(table({**compared, "samples": 301}).title)


@pytest.mark.large
def test_a_study_is_paused_and_thawed_charged_and_exported(place: Workplace) -> None:
    (place.folder / "streamed.py").write_text(textwrap.dedent(TASK))
    training = {"samples_per_epoch": 200, "schedule": "cosine"}
    place.json("launch", place.spec(SPEC, training=SPEC["training"] | training))
    record = place.record("streamed")
    assert [trial for trial in record.started if len(trial.attempts) > 1], "a paused trial has gone on"
    assert {trial.state for trial in record.started} == {"complete", "pruned"}
    assert all(epoch.metrics["cost_usd"] > 0 for trial in record.started for epoch in trial.epochs)
    assert not [charge for charge in record.charges if charge.kind == "lost"]
    place.audit("streamed")
    points = [(trial.number, epoch) for trial in record.started for epoch in trial.epochs]
    number, epoch = min(points, key=lambda one: (one[1].metrics["val_error"], one[1].metrics["cost_usd"]))
    place.json("export", "streamed", f"{number}@{epoch.epoch}", "--out", "model")
    assert "unknown" in (place.folder / "model" / "README.md").read_text()
