"""Metrics of classes: scikit-learn's values on any number of ranks, and standard errors as of repeated draws."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, balanced_accuracy_score, f1_score, log_loss, roc_auc_score
from torch.nn.functional import one_hot

from search_spaces.messages import UserError
from tests.support.task_files import HEADER, people, trained, write
from tests.support.trainer_pool import on_ranks, spec_of
from trainers.contract.task_loading import load_task
from trainers.loop.evaluation import evaluate
from trainers.protocol import STDERR
from trainers.tasks.shared.class_metrics import ClassMetrics

TREES = {"architecture": "trees", "trees": 20, "leaf_rows": 3}


STUMPS = {"architecture": "trees", "trees": 40, "leaves": 3, "tree_rate": 0.2}


def by_scikit_learn(outputs: torch.Tensor, targets: torch.Tensor, positive: int = 1) -> dict[str, float]:
    """The five metrics of logits [n, c]."""
    shares, right, guesses = outputs.double().softmax(1).numpy(), targets.numpy(), outputs.argmax(1).numpy()
    if shares.shape[1] == 2:
        area = roc_auc_score(right == positive, shares[:, positive])
        precision = average_precision_score(right == positive, shares[:, positive])
    else:
        area = roc_auc_score(right, shares, multi_class="ovr", average="macro")
        precision = average_precision_score(np.eye(shares.shape[1])[right], shares, average="macro")
    return {
        "val_auroc": float(area),
        "val_auprc": float(precision),
        "val_f1": f1_score(right, guesses, average="macro"),
        "val_balanced_error": 1 - balanced_accuracy_score(right, guesses),
        "val_log_loss": log_loss(right, shares, labels=range(shares.shape[1])),
    }


def drawn(rows: int, classes: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounded logits, so that scores are equal in part, of a rare first class and others."""
    draw = torch.Generator().manual_seed(seed)
    chances = torch.tensor([0.2, *[0.8 / (classes - 1)] * (classes - 1)])
    targets = chances.multinomial(rows, replacement=True, generator=draw)
    outputs = torch.randn(rows, classes, generator=draw) + one_hot(targets, classes)
    return outputs.mul(4).round().div(4), targets


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_values_are_scikit_learns_however_the_samples_are_shared(classes: int) -> None:
    outputs, targets = drawn(500, classes, seed=classes)
    parts = [ClassMetrics(classes, 0) for _ in range(3)]
    for place, rows in enumerate(torch.arange(500).split(37)):
        parts[place % 3].update(outputs[rows], targets[rows])
    for other in parts[1:]:
        parts[0].merge_state(other)
    expected = by_scikit_learn(outputs, targets, positive=0)
    del expected["val_log_loss"]  # a mean over samples, which the trainer computes
    found = parts[0].compute()
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-12)


@pytest.mark.medium
@pytest.mark.parametrize("classes", [2, 4])
def test_standard_errors_are_the_spread_over_repeated_draws(classes: int) -> None:
    found = []
    for seed in range(400):
        metric = ClassMetrics(classes, 0)
        metric.update(*drawn(400, classes, seed))
        found.append(metric.compute())
    for name in ("val_auroc", "val_auprc", "val_f1", "val_balanced_error"):
        spread = np.std([one[name] for one in found])
        told = np.mean([one[f"{name}{STDERR}"] for one in found])
        assert told == pytest.approx(spread, rel=0.1), name


def test_what_one_class_leaves_undefined_is_not_reported_and_many_classes_are_not_ranked() -> None:
    metric = ClassMetrics(2, 1)
    metric.update(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    found = metric.compute()
    assert sorted(found) == ["val_balanced_error", "val_balanced_error_stderr", "val_f1", "val_f1_stderr"]
    assert all(map(math.isfinite, found.values()))
    assert ClassMetrics(2, 1).compute() == {}
    diverged = ClassMetrics(2, 1)
    diverged.update(torch.tensor([[math.nan, 0.0]]), torch.tensor([0]))
    assert set(diverged.compute()) == {"val_f1", "val_balanced_error"}, "no standard error of one sample either"
    # Each class's scores would have to be gathered and sorted.
    metric = ClassMetrics(101, 0)
    metric.update(torch.eye(101), torch.arange(101))
    assert metric.metric_names == ("val_f1", "val_balanced_error")
    assert metric.compute()["val_f1"] == 1.0


@pytest.mark.medium
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("params", [{"architecture": "mlp"}, TREES], ids=["network", "trees"])
def test_trials_measure_them_on_any_number_of_ranks(ranks, tmp_path, world_size, params):
    file = write(tmp_path / "t.csv", [HEADER, *people(301)])
    options = {"train": file, "target": "rich", "validation_share": 0.3}
    spec = replace(
        spec_of(world_size, training={"epochs": 1}, params=params | {"learning_rate": 0.01}),
        task="tabular", task_options=options,
    )  # fmt: skip
    done = on_ranks(ranks, spec)[0]
    task: Any = load_task("tabular", options)
    model = task.model(spec.params)
    model.load_state_dict(done["weights"])
    inputs, targets = task.validation_data({})
    with torch.no_grad():
        expected = by_scikit_learn(model.eval()(inputs), targets, task.positive)
    metrics = done["measurements"][-1].metrics
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert all(metrics[f"{name}{STDERR}"] > 0 for name in expected)
    assert set(expected) <= set(task.metric_names)
    assert evaluate(model, task, {}) == pytest.approx({name: metrics[name] for name in evaluate(model, task, {})})


def rare(folder: Path, rows: int = 1500) -> str:
    """A table whose class `yes` is rare, and only more likely where x is large."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=rows)
    labels = np.where(draw.random(rows) < 1 / (1 + np.exp(4 - 1.5 * x)), "yes", "no")
    return write(folder / "rare.csv", [["x", "z", "sick"], *zip(x, draw.normal(size=rows), labels, strict=True)])


@pytest.mark.medium
@pytest.mark.parametrize("params", [{"architecture": "mlp", "learning_rate": 0.05}, STUMPS], ids=["network", "trees"])
def test_balanced_classes_find_rare_ones_more_often(tmp_path: Path, params: dict[str, Any]) -> None:
    options = {"train": rare(tmp_path), "target": "sick", "validation_share": 0.4}
    found = {}
    for weight in (None, "balanced"):
        task, trainer = trained("tabular", options | {"class_weight": weight}, params, 10)
        found[weight] = evaluate(trainer.module, task, {})
    assert task.class_weights[0] < 1 < task.class_weights[1]
    assert task.classes[task.positive] == "yes"
    assert found["balanced"]["val_balanced_error"] < found[None]["val_balanced_error"] - 0.1
    assert found["balanced"]["val_error"] > found[None]["val_error"]
    assert found[None]["val_loss"] == pytest.approx(found[None]["val_log_loss"], rel=1e-4)
    inputs, targets = task.validation_data({})
    with torch.no_grad():
        shares = trainer.module.eval()(inputs).double().softmax(1)
    expected = log_loss(targets, shares, sample_weight=np.array(task.class_weights)[targets])
    assert found["balanced"]["val_loss"] == pytest.approx(expected, rel=1e-4), "the loss that is trained"
    assert found["balanced"]["val_log_loss"] == pytest.approx(log_loss(targets, shares), rel=1e-4)


@pytest.mark.parametrize(
    ("column", "weight", "words"),
    [
        ("x", "balanced", "class_weight: found 'balanced', but the target is a number"),
        ("sick", "even", "found 'even', allowed: balanc"),
    ],
)
def test_other_weights_are_refused(tmp_path: Path, column: str, weight: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_task("tabular", {"train": rare(tmp_path, 100), "target": column, "class_weight": weight})
