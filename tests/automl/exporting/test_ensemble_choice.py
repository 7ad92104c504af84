"""Which models make an ensemble, by what, and what its training has cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from automl.exporting.atomic_outputs import ExportError
from automl.exporting.ensemble_scores import part_of_test
from automl.exporting.ensembles import Member, choose, cost_of, write_ensemble
from automl.exporting.source import Source
from studies.records.records import Objective
from trainers.contract.task import BaseTask
from trainers.loop.evaluation import evaluate
from trainers.model.traced_program import example_call

TARGETS = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
"""Target and weight of each sample."""


class Largest:
    """The largest error of all samples."""

    def __init__(self) -> None:
        self.found = 0.0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.found = max(self.found, (outputs - targets[:, 0]).abs().max().item())

    def merge_state(self, other: Largest) -> None:
        self.found = max(self.found, other.found)

    def compute(self) -> float:
        return self.found


class Weighted(BaseTask):
    """Numbers whose second sample counts nothing."""

    def validation_data(self, _params: Any) -> tuple[Tensor, Tensor]:
        return torch.eye(2), TARGETS

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets[:, 0]).square()

    def metrics(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        return {"val_mse": self.loss(outputs, targets)}

    def weights(self, targets: Tensor) -> Mapping[str, Tensor]:
        return {"loss": targets[:, 1], "val_mse": targets[:, 1]}

    def whole_metrics(self, _params: Any) -> Mapping[str, Any]:
        return {"val_largest": Largest()}

    def derived_metrics(self, metrics: Mapping[str, float], params: Any) -> Mapping[str, float]:
        return {"val_rmse": params["scale"] * metrics["val_mse"] ** 0.5}


class Moved(Weighted):
    """The same, whose file of the test part was moved."""

    def test_data(self, params: Any) -> tuple[Tensor, Tensor]:
        raise FileNotFoundError(f"test.csv was moved, {params}")


class Fixed(nn.Module):
    """Answers the sample of each unit vector by a number."""

    def __init__(self, *answers: float) -> None:
        super().__init__()
        self.answers = torch.tensor(answers)

    def forward(self, rows: Tensor) -> Tensor:
        return rows @ self.answers


def member(*answers: float) -> Member:
    source = Source(
        call=example_call(Fixed(*answers), (torch.eye(2),)), rows={"kind": "array"}, answers={"kind": "number"},
        data={}, content={"spec": {"params": {"scale": 10.0}}}, task=Weighted(),
    )  # fmt: skip
    return Member(name=str(answers), source=source, training=(0, None), cost_nano_usd=0)


MEMBERS = (member(2.0, 0.0), member(0.0, 4.0), member(1.0, 1.0))


@pytest.mark.parametrize(
    ("metric", "best", "values"),
    [("val_mse", 1, (4.0, 0.0, 1.0)), ("val_rmse", 1, (20.0, 0.0, 10.0)), ("val_largest", 2, (2.0, 4.0, 1.0))],
)
def test_members_are_judged_as_the_study_judged_them(metric: str, best: int, values: tuple[float, ...]) -> None:
    found = choose((Objective(metric=metric), Objective(metric="cost_usd")), MEMBERS, 1)
    assert (found.objective.metric, found.instead_of, found.best) == (metric, None, best)
    assert [bool(count) for count in found.counts] == [place == best for place in range(3)]
    measured = [evaluate(one.source.call.model, Weighted(), {"scale": 10.0})[metric] for one in MEMBERS]
    assert measured == pytest.approx(list(values))


def test_what_answers_do_not_tell_is_replaced_and_named() -> None:
    found = choose((Objective(metric="cost_usd"), Objective(metric="val_rmse")), MEMBERS, 4)
    assert (found.objective.metric, found.instead_of) == ("val_rmse", "cost_usd")
    assert choose((Objective(metric="latency_ms"),), MEMBERS, 4).objective.metric == "val_loss"


def test_a_training_is_paid_once_however_many_of_its_epochs_are_members() -> None:
    paid = [((2, None), 6), ((2, None), 9), ((3, None), 4), ((2, 7), 5), ((2, 7), 3), ((2, 8), 1)]
    members = [replace(MEMBERS[0], training=training, cost_nano_usd=cost) for training, cost in paid]
    assert cost_of(members) == 9 + 4 + 5 + 1


def test_a_part_that_is_gone_is_one_line() -> None:
    source = replace(MEMBERS[0].source, task=Moved())
    with pytest.raises(ExportError, match=r"ensemble: .*FileNotFoundError: test.csv was moved"):
        part_of_test([source])


def test_a_folder_that_is_in_use_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    unread: Any = None
    with pytest.raises(ExportError, match=r"exists already\. Name a folder that is new or empty"):
        write_ensemble(unread, tmp_path, base_folder="", size=1, usd_per_slot_hour=0.0)
