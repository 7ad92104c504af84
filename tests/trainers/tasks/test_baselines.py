"""What the built-in tasks name as baselines, against models that really are constant."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from search_spaces.parameters import Float, Int, Prior
from tests.support.task_files import write
from trainers.contract.task import baselines_of, first_trials_of
from trainers.protocol import TaskError
from trainers.tasks.tabular import Tabular
from trainers.tasks.text import Text


def numbered(rows: int, target: Any) -> list[list[Any]]:
    random = np.random.default_rng(0)
    return [[f"{random.normal():.4f}", row % 3, target(row, random)] for row in range(rows)]


def constant(task: Any, answer: torch.Tensor) -> dict[str, float]:
    """Mean validation metrics of a model that gives the same outputs for each row."""
    inputs, targets = task.validation_data({})
    outputs = answer.expand(len(inputs), *answer.shape)
    means = {name: float(values.double().mean()) for name, values in task.metrics(outputs, targets).items()}
    for metric in task.whole_metrics({}).values():
        metric.update(outputs, targets)
        means |= {name: value for name, value in metric.compute().items() if name in task.metric_names}
    derived = task.derived_metrics(means, {}) if hasattr(task, "derived_metrics") else {}
    return {**means, **derived, "val_loss": float(task.loss(outputs, targets).double().mean())}


def test_trivial_baselines_are_the_most_frequent_class_and_the_mean(tmp_path: Path) -> None:
    rows = numbered(300, lambda row, _: "abc"[row % 7 % 3])
    task = Tabular(write(tmp_path / "t.csv", [["x", "z", "y"], *rows]), "y")
    trivial = baselines_of(task)[-1]
    counts = np.bincount(task.train_data({})[1].numpy())
    expected = constant(task, torch.from_numpy(np.log(counts / counts.sum())).float())
    assert trivial["name"] == "always the most frequent class"
    assert trivial["metrics"] == pytest.approx(expected, rel=1e-5)
    rows = numbered(200, lambda row, random: 1000 + 50 * (row % 3) + random.normal())
    task = Tabular(write(tmp_path / "t.csv", [["x", "z", "y"], *rows]), "y")
    trivial = baselines_of(task)[-1]
    assert trivial["name"] == "always the mean"
    assert trivial["metrics"] == pytest.approx(constant(task, torch.tensor(0.0)), rel=1e-4)
    assert trivial["metrics"]["val_mse"] > 1000


def test_rows_without_an_order_have_the_mean_ndcg_over_all_orders(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = [[f"q{row // 8}", f"{random.normal():.3f}", int(random.integers(0, 4))] for row in range(400)]
    task = Tabular(write(tmp_path / "t.csv", [["query", "x", "clicks"], *rows]), "clicks", query="query")
    measured = []
    for _ in range(200):
        ndcg = task.whole_metrics({})["val_ndcg"]
        targets = task.validation_data({})[1]
        ndcg.update(torch.from_numpy(random.permutation(len(targets))).float(), targets)
        measured.append(ndcg.compute())
    assert baselines_of(task)[-1]["metrics"]["val_ndcg"] == pytest.approx(np.mean(measured), abs=0.02)


def test_the_usual_baseline_is_the_first_trial_and_where_the_search_begins(tmp_path: Path) -> None:
    table = Tabular(write(tmp_path / "t.csv", [["x", "z", "y"], *numbered(100, lambda row, _: "ab"[row % 2])]), "y")
    texts = Text(
        write(tmp_path / "r.csv", [["text", "mood"], *[[f"word {row} more", "ab"[row % 2]] for row in range(90)]])
    )
    for task, architecture in ((table, "trees"), (texts, "tfidf")):
        usual = baselines_of(task)[0]["params"]
        assert usual["architecture"] == architecture
        assert first_trials_of(task)[0] == usual
        task.space().check(usual)
    assert len(first_trials_of(table)) == len(table.first_trials())
    table = Tabular(write(tmp_path / "t.csv", [["x", "z", "y"], *numbered(100, lambda row, _: "ab"[row % 2])]), "y")
    space = table.space()
    for known in table.first_trials():
        for name, value in known.items():
            if isinstance(parameter := space.parameter(name), Float | Int):
                assert parameter.prior == Prior(center=value, confidence="low"), name
    assert first_trials_of(Named([{"name": "old", "params": {"width": 8}}])) == ({"width": 8},)  # type: ignore[arg-type]


class Named:
    """A task that says what it is told to say."""

    def __init__(self, named: Any) -> None:
        self.named = named

    def baselines(self) -> Any:
        return self.named


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("old", r"Named\.baselines\(\): found a str, allowed: a list of mappings"),
        ([{"params": {"width": 8}}], r"baselines\(\)\[0\]: found the name None, allowed: a text"),
        ([{"name": "old"}], r"\[0\]: found the keys 'name', allowed: name, and either params or metrics"),
        ([{"name": "old", "params": {"a": 1}, "metrics": {"b": 1}}], r"\[0\]: found the keys"),
        ([{"name": "old", "metrics": {"b": float("nan")}}], r"metric 'b': found nan, allowed: a finite number"),
    ],
)
def test_wrong_baselines_are_one_line(named: Any, message: str) -> None:
    with pytest.raises(TaskError, match=message) as caught:
        baselines_of(Named(named))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
