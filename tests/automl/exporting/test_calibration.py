"""Thresholds of two classes and intervals of numbers, from the export to predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, make_friedman1
from sklearn.metrics import balanced_accuracy_score, f1_score

from automl.exporting.manifest import intervals_of, manifest_of, threshold_of, tuned_metric
from automl.exporting.source import source_of
from automl.exporting.writers import WRITERS
from automl.standalone.answers import ClassAnswers, NumberAnswers
from automl.standalone.model import load
from tests.support.task_files import trained, write
from tests.support.trainer_pool import run_trial
from trainers.model.traced_program import traced
from trainers.protocol import TrialSpec
from trainers.ranks.process_group import Group


@pytest.mark.parametrize("metric", ["val_f1", "val_balanced_error"])
def test_no_other_threshold_is_better_on_the_validation_rows(metric: str) -> None:
    draw = np.random.default_rng(0)
    is_positive = draw.random(300) < 0.1
    scores = np.clip(np.round(draw.normal(0.15, 0.1, 300) + 0.15 * is_positive, 2), 0, 1)

    def value(least: float) -> float:
        chosen = scores >= least
        if metric == "val_f1":
            return float(f1_score(is_positive, chosen, average="macro", zero_division=0))
        return float(1 - balanced_accuracy_score(is_positive, chosen))

    best = (max if metric == "val_f1" else min)(value(least) for least in np.arange(-0.005, 1.01, 0.01))
    found = threshold_of(scores, is_positive, metric)
    assert found is not None
    assert found["value"] == pytest.approx(value(found["at_least"])) == pytest.approx(best)
    assert found["value_at_half"] == pytest.approx(value(0.5))
    assert threshold_of(scores, is_positive & False, metric) is None


def test_a_threshold_is_chosen_for_objectives_that_depend_on_decisions_alone() -> None:
    assert tuned_metric(["val_error", "cost_usd"]) is None
    assert tuned_metric(["cost_usd", "val_balanced_error"]) == "val_balanced_error"
    assert tuned_metric(["val_auprc"]) == "val_f1"
    answers = ClassAnswers({"labels": ["no", "yes"], "threshold": {"label": "yes", "at_least": 0.2}})
    assert answers.answer([[1.0, 0.0]])["label"] == "yes", "26.9 % are enough"
    assert answers.answer([[2.0, 0.0]])["label"] == "no"


@pytest.mark.medium
def test_a_package_labels_rows_by_its_threshold(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=800)
    labels = np.where(draw.random(800) < 1 / (1 + np.exp(4 - 1.5 * x)), "yes", "no")
    file = write(
        tmp_path / "t.csv", [["x", "sick"], *([f"{one:.4f}", label] for one, label in zip(x, labels, strict=True))]
    )
    spec = TrialSpec(
        study="t", trial=0, task="tabular", task_options={"train": file, "target": "sick", "validation_share": 0.4},
        params={"architecture": "trees", "trees": 10}, training={"epochs": 1}, milestones=(1,),
        checkpoint_folder=str(tmp_path / "checkpoints"),
    )  # fmt: skip
    measured = run_trial(Group(), spec)["measurements"][-1]
    source = source_of(measured.checkpoint, "tabular", ())
    origin: dict[str, Any] = {
        "study": "t",
        "trial": 0,
        "epoch": 1,
        "cost_usd": 0.1,
        "values": {"val_balanced_error": 0.2},
    }
    manifest = manifest_of([source], origin)
    least = manifest["answers"]["threshold"]["at_least"]
    assert manifest["answers"]["threshold"]["label"] == "yes"
    assert least < 0.3
    WRITERS["package"]([traced(source.call)], manifest, tmp_path / "out")
    told = load(tmp_path / "out").predict([{"x": value} for value in np.linspace(-3, 3, 50)])
    assert {one["label"] for one in told} == {"no", "yes"}
    assert all((one["label"] == "yes") == (one["probabilities"]["yes"] >= least) for one in told)
    assert any(one["label"] == "yes" and one["confidence"] < 0.5 for one in told)
    assert f"The label is `yes` from a probability of {least:.6g} on" in (tmp_path / "out" / "README.md").read_text()
    assert "threshold" not in manifest_of([source], origin | {"values": {"val_error": 0.1}})["answers"]


def growing_noise(rows: int) -> tuple[Any, Any]:
    """Numbers whose noise grows with them, as prices do."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(rows, 3))
    mean = np.exp(1 + x[:, 0])
    return x, mean * (1 + 0.3 * draw.normal(size=rows))


TABLES: dict[str, Any] = {
    "diabetes": lambda: load_diabetes(return_X_y=True),
    "friedman": lambda: make_friedman1(1500, noise=1.0, random_state=0),
    "growing noise": lambda: growing_noise(3000),
    "long tail": lambda: (growing_noise(1500)[0], np.random.default_rng(2).lognormal(sigma=1.0, size=1500)),
}


@pytest.mark.medium
@pytest.mark.parametrize("name", TABLES)
def test_intervals_contain_nine_of_ten_held_back_values_small_and_large(tmp_path: Path, name: str) -> None:
    x, y = TABLES[name]()
    rows = [["a" + str(place) for place in range(x.shape[1])] + ["y"], *np.column_stack([x, y]).tolist()]
    options = {"train": write(tmp_path / "t.csv", rows), "target": "y", "test_share": 0.4, "kind": "regression",
               "folds": "auto" if len(y) < 2000 else 1}  # fmt: skip
    task, trainer = trained("tabular", options, {"architecture": "trees", "trees": 40}, 1)
    model = trainer.module.eval()
    (values, truth), (new, true) = (
        (np.asarray(task.decode(model(inputs).detach())), np.asarray(task.decode(targets)))
        for inputs, targets in (task.validation_data({}), task.test_data({}))
    )
    found = intervals_of(values, truth)
    answers = NumberAnswers({"mean": 0.0, "deviation": 1.0, "intervals": found}, [1])
    told = [answers.answer([value]) for value in new.tolist()]
    low, high = (np.array([one[end] for one in told]) for end in ("low", "high"))
    inside, widths = (low <= true) & (true <= high), high - low
    thirds = np.array_split(np.argsort(new), 3)
    rows_of_third = len(thirds[0])
    assert inside.mean() >= 0.9 - 2.5 * (0.09 / len(new)) ** 0.5
    assert all(inside[third].mean() >= 0.9 - 3 * (0.09 / rows_of_third) ** 0.5 for third in thirds)
    if name == "growing noise":
        assert widths[thirds[2]].mean() > 3 * widths[thirds[0]].mean()


def test_intervals_are_interpolated_and_contain_their_value() -> None:
    form = {"mean": 0.0, "deviation": 1.0, "mse": 4.0, "intervals": {"at": [0, 10], "low": [-1, -3], "high": [2, 0]}}
    answers = NumberAnswers(form, [1, 1])
    assert answers.answer([4.0, 6.0]) == {"value": 5.0, "low": 3.0, "high": 6.0}
    assert answers.answer([-5.0]) == {"value": -5.0, "low": -6.0, "high": -3.0}
    assert answers.answer([50.0]) == {"value": 50.0, "low": 47.0, "high": 50.0}
    assert intervals_of(np.zeros(29), np.zeros(29)) is None, "too few rows"
    constant = intervals_of(np.zeros(300), np.linspace(1, 2, 300))
    assert constant is not None
    assert constant["at"] == [0.0]
    assert constant["low"] == [0.0], "errors of one sign do not leave the value outside"
