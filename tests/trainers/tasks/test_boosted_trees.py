"""Boosted trees as a model of `tabular`: what they predict, that they go on with the same bits, and where they stop."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import torch

from tests.support.task_files import HEADER, metrics_of, people, trained, write
from trainers.contract.task import grows
from trainers.contract.task_loading import load_task
from trainers.loop.trainer import Trainer
from trainers.protocol import TaskError, TrialSpec
from trainers.ranks.process_group import Group
from trainers.tasks.table import tree_growth
from trainers.tasks.table.tree_growth import TreeOptions
from trainers.tasks.table.trees import BoostedTrees

TREES: dict[str, Any] = {"architecture": "trees", "trees": 40, "tree_rate": 0.2, "leaves": 15, "leaf_rows": 5}


def table(rows: int = 400, seed: int = 0) -> tuple[torch.Tensor, np.random.Generator]:
    """Two numbers and one category of five levels, float32 [rows, 3]."""
    draw = np.random.default_rng(seed)
    columns = [draw.normal(size=rows), draw.normal(size=rows), draw.integers(0, 5, rows)]
    return torch.from_numpy(np.column_stack(columns).astype(np.float32)), draw


def model(outputs: int | None, **options: Any) -> BoostedTrees:
    chosen = TreeOptions(**{"trees": 30, "rate": 0.2, "leaves": 9, "leaf_rows": 5, "row_share": 1.0, **options})
    return BoostedTrees(dense=2, category_sizes=[5], outputs=outputs, options=chosen, meaning="test")


def grown(outputs: int | None, rows: torch.Tensor, targets: torch.Tensor, **options: Any) -> BoostedTrees:
    found = model(outputs, **options)
    for epoch in (1, 2, 3):
        said = found.grow_epoch(rows, targets, epoch=epoch, epochs=3, seed=epoch, threads=1, tick=lambda: None)
        torch.testing.assert_close(found(rows), said)
    return found


def targets_of(rows: torch.Tensor, outputs: int | None) -> torch.Tensor:
    score = rows[:, 0] + (rows[:, 2] == 3) * 2 - (rows[:, 1] > 0.3).float()
    return score if outputs is None else torch.bucketize(score, torch.tensor([0.0, 1.0, 2.0][: outputs - 1]))


@pytest.mark.parametrize("outputs", [None, 2, 4])
def test_rows_fall_into_the_leaves_into_which_lightgbm_lets_them_fall(outputs: int | None) -> None:
    rows, _ = table()
    targets = targets_of(rows, outputs)
    ours = model(outputs, column_share=1.0)
    ours.grow_epoch(rows, targets, epoch=1, epochs=1, seed=5, threads=1, tick=lambda: None)
    params = ours._options.lightgbm(outputs) | {"seed": 5, "num_threads": 1}
    base = ours.base.double().repeat(len(rows), 1).numpy()
    base = base[:, 0] if base.shape[1] == 1 else base
    data = lightgbm.Dataset(
        rows.numpy(), label=targets.numpy(), init_score=base, categorical_feature=[2], params=params
    )
    theirs = lightgbm.train(params, data, num_boost_round=30)
    new, _ = table(2000, seed=1)
    margins = torch.from_numpy(theirs.predict(new.numpy(), raw_score=True)).float().view(len(new), -1) + ours.base
    torch.testing.assert_close(ours(new), ours._outputs_of(margins), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("outputs", [None, 2, 4])
def test_trees_learn(outputs: int | None) -> None:
    rows, _ = table(1000)
    found, new = grown(outputs, rows, targets_of(rows, outputs)), table(1000, seed=1)[0]
    said, true = found(new), targets_of(new, outputs)
    if outputs is None:
        assert (said - true).square().mean() < 0.1 * true.var()
    else:
        assert (said.argmax(1) == true).float().mean() > 0.9


def test_a_training_that_goes_on_from_its_weights_grows_the_same_trees() -> None:
    rows, _ = table()
    targets = targets_of(rows, 4)
    whole = grown(4, rows, targets, row_share=0.7, column_share=0.7)
    first = model(4, row_share=0.7, column_share=0.7)
    first.grow_epoch(rows, targets, epoch=1, epochs=3, seed=1, threads=2, tick=lambda: None)
    second = model(4, row_share=0.7, column_share=0.7)
    second.load_state_dict(first.state_dict())
    for epoch in (2, 3):
        second.grow_epoch(rows, targets, epoch=epoch, epochs=3, seed=epoch, threads=1, tick=lambda: None)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_trees_that_have_not_grown_add_nothing_and_too_many_are_refused() -> None:
    rows, _ = table()
    found = model(2)
    assert torch.equal(found(rows), torch.zeros(len(rows), 2))
    found.grow_epoch(rows, torch.zeros(len(rows), dtype=torch.int64), epoch=1, epochs=2, seed=0, threads=1, tick=int)
    assert (found(rows).argmax(1) == 0).all()
    with pytest.raises(TaskError, match=r"30000 trees of 61 nodes and a column of 1000 categories need .* GiB"):
        BoostedTrees(dense=1, category_sizes=[1000], outputs=100, options=TreeOptions(), meaning="")


def test_epochs_may_be_more_than_trees_and_options_of_gradients_are_refused(file: str) -> None:
    _, trainer = trained("tabular", {"train": file, "target": "rich"}, {**TREES, "trees": 3}, epochs=5)
    assert trainer.epoch == 5
    with pytest.raises(TaskError, match="activation_checkpointing true needs a model that is trained by gradient"):
        trained("tabular", {"train": file}, {**TREES, "activation_checkpointing": True}, epochs=1)


@pytest.fixture
def file(tmp_path: Path) -> str:
    return write(tmp_path / "people.csv", [HEADER, *people(600)])


def test_a_trial_of_trees_learns_and_its_probabilities_are_those_of_a_classifier(file: str) -> None:
    task, trainer = trained("tabular", {"train": file, "target": "rich"}, TREES, epochs=4)
    assert grows(trainer.module)
    found = metrics_of(task, trainer, "validation")
    assert found["val_accuracy"] > 0.95
    assert trainer.facts.model_parameters == 40 * (15 + 14)


def test_where_lightgbm_is_missing_networks_are_searched(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise TaskError("architecture: found trees, which need the package lightgbm")

    assert "trees" in load_task("tabular", {"train": file}).space().parameter("architecture").choices  # type: ignore[attr-defined]
    monkeypatch.setattr(tree_growth, "load_lightgbm", missing)
    task = load_task("tabular", {"train": file})
    assert "trees" not in task.space().parameter("architecture").choices  # type: ignore[attr-defined]
    with pytest.raises(TaskError, match="lightgbm"):
        trained("tabular", {"train": file, "target": "rich"}, TREES, epochs=1)


def _train_as_rank(group: Group, spec: TrialSpec) -> dict[str, torch.Tensor]:
    trainer = Trainer(spec, load_task(spec.task, spec.task_options), group=group)
    losses = [torch.tensor(measured.metrics["train_loss"]) for measured in trainer.advance(2)]
    return {**trainer.module.state_dict(), "losses": torch.stack(losses)}


def test_two_ranks_have_the_same_trees(file: str, ranks: Any) -> None:
    spec = TrialSpec(
        study="t", trial=0, task="tabular", task_options={"train": file, "target": "rich"}, params=TREES,
        training={"epochs": 2},
    )  # fmt: skip
    alone = _train_as_rank(Group(device=torch.device("cpu")), spec)
    for rank in ranks.run(2, _train_as_rank, replace(spec, world_size=2)):
        for name, value in alone.items():
            assert torch.equal(value, rank[name]), name
