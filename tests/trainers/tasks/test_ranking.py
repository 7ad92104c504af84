"""Ranking with the task `tabular`: queries, their parts, NDCG, and that models learn to rank."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import ndcg_score

from studies.spec.metric_names import likely_direction, quality_metric
from tests.support.task_files import trained, write
from trainers.loop.evaluation import evaluate
from trainers.protocol import TaskError
from trainers.tasks.table.ranking import Ndcg
from trainers.tasks.tabular import Tabular


def offers(queries: int, seed: int = 0) -> list[list[object]]:
    """Rows of query, price, stars, kind and clicks: clicks follow from stars and price compared with the query's."""
    draw = random.Random(seed)
    rows: list[list[object]] = []
    for query in range(queries):
        for _ in range(draw.randint(3, 14)):
            price, stars, kind = draw.uniform(0, 1), draw.uniform(0, 5), draw.choice("ab")
            clicks = max(0, round(stars - 2 * price + (kind == "a") + draw.gauss(0, 0.2)))
            rows.append([f"q{query}", f"{price:.4f}", f"{stars:.4f}", kind, clicks])
    return rows


HEAD = ["query", "price", "stars", "kind", "clicks"]


@pytest.fixture
def file(tmp_path: Path) -> str:
    return write(tmp_path / "offers.csv", [HEAD, *offers(80)])


def test_ndcg_is_scikit_learns_mean_over_queries_whatever_the_batches() -> None:
    draw = np.random.default_rng(0)
    queries = np.repeat(np.arange(30), draw.integers(2, 25, 30))
    gains, scores = draw.integers(0, 4, len(queries)).astype(float), draw.integers(0, 6, len(queries)) / 4
    expected = [
        ndcg_score(gains[None, queries == one], scores[None, queries == one], k=10)
        for one in range(30)
        if gains[queries == one].any()
    ]
    order = draw.permutation(len(queries))
    targets = torch.from_numpy(np.column_stack([gains, gains, queries])[order])
    parts, said = [Ndcg(), Ndcg(), Ndcg()], torch.from_numpy(scores[order])
    for number, rows in enumerate(torch.arange(len(order)).split(17)):
        parts[number % 3].update(said[rows], targets[rows])
    for other in parts[1:]:
        parts[0].merge_state(other)
    assert parts[0].compute() == pytest.approx(np.mean(expected), abs=1e-12)


def test_all_rows_of_a_query_are_in_one_part_of_which_there_must_be_enough(file: str, tmp_path: Path) -> None:
    task = Tabular(file, "clicks", query="query", test_share=0.2)
    parts = (task.train_data({}), task.validation_data({}), task.test_data({}))
    seen = [set(targets[:, 2].tolist()) for _, targets in parts]
    assert len(set.union(*seen)) == sum(map(len, seen)) == 80
    assert [number.name for number in task.encoding.numbers] == ["price", "stars"]
    assert task.metric_names == ("val_ndcg", "val_mse", "val_mae")
    assert "the relevance of a row among rows with the same 'query'" in task.describe()[0]
    assert quality_metric(task.metric_names) == "val_ndcg"
    assert likely_direction("val_ndcg") == "maximize"
    path = write(tmp_path / "offers.csv", [HEAD, *offers(1)])
    with pytest.raises(TaskError, match="1 queries are too few for training and validation"):
        Tabular(path, "clicks", query="query")


@pytest.mark.medium
@pytest.mark.parametrize("architecture", ["mlp", "tabm", "trees"])
def test_models_learn_to_rank(file: str, architecture: str) -> None:
    params = {"architecture": architecture, "optimizer": "adamw", "learning_rate": 0.005, "batch_per_rank": 32,
              "trees": 60, "tree_rate": 0.1}  # fmt: skip
    task, trainer = trained("tabular", {"train": file, "target": "clicks", "query": "query"}, params, 8)
    found = evaluate(trainer.module, task, {})
    assert found["val_ndcg"] > 0.95
    inputs, targets = task.validation_data({})
    with torch.no_grad():
        estimates = np.array(task.decode(trainer.module.eval()(inputs)))
    assert found["val_mae"] == pytest.approx(np.abs(estimates - targets[:, 1].numpy()).mean(), rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "ranking"}, "task_options.query is missing: kind ranking needs"),
        ({"kind": "regression", "query": "query"}, "task_options.kind: found 'regression' with a query"),
        ({"query": "clicks"}, "task_options.query: found 'clicks', the target"),
        ({"query": "wher"}, "task_options.query"),
    ],
)
def test_wrong_options_are_one_line(file: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message) as caught:
        Tabular(file, "clicks", **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (["q1", "0.5", "1", "a", "-1"], r"line 5[0-9]*, column 'clicks': found -1, allowed: the row's relevance"),
        (["", "0.5", "1", "a", "1"], r"line [0-9]+, column 'query': no query. Give each row its query"),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, row: list[object], message: str) -> None:
    path = write(tmp_path / "offers.csv", [HEAD, *offers(80)[:50], row])
    with pytest.raises(TaskError, match=message):
        Tabular(path, "clicks", query="query")
