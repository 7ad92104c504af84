"""Cross-validation within a trial: nothing is judged by a model that has seen it, and all models answer new rows."""

import csv
import random
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from automl.launching.quickstart import quickstart
from automl.launching.spec_reading import with_options_of_new_studies
from studies.spec.study_spec import parse_spec
from tests.automl.exporting import test_standalone as exported
from tests.support.alone import run_alone
from tests.support.task_files import HEADER, metrics_of, people, trained, write
from trainers.contract.task import grows
from trainers.contract.task_loading import load_task
from trainers.loop.evaluation import evaluate
from trainers.loop.trainer import Trainer
from trainers.protocol import TrialSpec
from trainers.ranks.process_group import Group
from trainers.tasks.table.targets import Target
from trainers.tasks.tabular import Tabular

PARAMS: dict[str, dict[str, Any]] = {
    "trees": {"architecture": "trees", "trees": 40, "tree_rate": 0.2, "leaves": 15, "leaf_rows": 2}
} | {
    name: {"architecture": name, "width": 32, "learning_rate": 2e-2, "optimizer": "adamw", "batch_per_rank": 32}
    for name in ("mlp", "tabm")
}


@pytest.fixture
def file(tmp_path: Path) -> str:
    return write(tmp_path / "people.csv", [HEADER, *people(300)])


def test_each_row_is_in_one_fold_and_each_class_in_all(file: str) -> None:
    task = Tabular(file, "rich", folds=4, test_share=0.2)
    inputs, targets = task.train_data({})
    assert len(targets) == 240
    assert torch.equal(inputs, task.validation_data({})[0])
    counts = torch.stack([torch.bincount(targets[inputs[:, -1] == fold], minlength=2) for fold in range(4)])
    assert int(counts.sum()) == 240
    assert int((counts.max(0).values - counts.min(0).values).max()) <= 1
    assert task.test_data({})[0].shape[1] == inputs.shape[1] - 1
    assert torch.equal(inputs, Tabular(file, "rich", folds=4, test_share=0.2).train_data({})[0])


@pytest.mark.medium
@pytest.mark.parametrize("architecture", ["tabm", "trees"])
def test_a_row_trains_all_models_but_the_one_that_judges_it(file: str, architecture: str) -> None:
    task, trainer = trained("tabular", {"train": file, "target": "rich", "folds": 3}, PARAMS[architecture], 15)
    module = trainer.module
    assert metrics_of(task, trainer, "validation")["val_accuracy"] > 0.85
    inputs, _ = task.validation_data({})
    rows, fold = task.new_rows(inputs), inputs[:, -1].long()
    with torch.no_grad():
        apart = torch.stack([one(rows) for one in module.eval().models])
        torch.testing.assert_close(module(inputs), apart[fold, torch.arange(len(rows))])
        torch.testing.assert_close(module(rows).softmax(1), apart.softmax(2).mean(0))
    if not grows(module):
        task.loss(module.train()(inputs[fold == 1]), task.validation_data({})[1][fold == 1]).sum().backward()
        moved = [sum(float(p.grad.abs().sum()) for p in one.parameters()) for one in module.models]
        assert moved[1] == 0
        assert min(moved[0], moved[2]) > 0


@pytest.mark.medium
def test_noise_cannot_be_learned_by_heart(tmp_path: Path) -> None:
    draw = random.Random(1)
    rows = [[*(f"{draw.gauss(0, 1):.4f}" for _ in range(4)), draw.choice("ab")] for _ in range(200)]
    path = write(tmp_path / "noise.csv", [["p", "q", "r", "s", "y"], *rows])
    task, trainer = trained("tabular", {"train": path, "target": "y", "folds": 4}, PARAMS["trees"], 40)
    assert 0.38 < metrics_of(task, trainer, "validation")["val_error"] < 0.62
    inputs, targets = task.train_data({})
    with torch.no_grad():
        known = trainer.module.eval()(task.new_rows(inputs)).argmax(1)
    assert float((known != targets).double().mean()) < 0.25


@pytest.mark.medium
def test_numbers_are_the_mean_of_all_models(tmp_path: Path) -> None:
    rows = [[row[0], row[1], 1000 + 50 * int(str(row[0])) + 0.5] for row in people(300)]
    path = write(tmp_path / "prices.csv", [["age", "city", "price"], *rows])
    task, trainer = trained("tabular", {"train": path, "target": "price", "folds": 3}, PARAMS["trees"], 20)
    assert metrics_of(task, trainer, "validation")["val_r2"] > 0.9
    rows_alone = task.new_rows(task.validation_data({})[0])
    with torch.no_grad():
        apart = torch.stack([one(rows_alone) for one in trainer.module.eval().models])
        torch.testing.assert_close(trainer.module(rows_alone), apart.mean(0))


@pytest.mark.medium
@pytest.mark.parametrize("architecture", ["tabm", "trees"])
def test_a_thawed_trial_comes_to_the_same_bits(file: str, tmp_path: Path, architecture: str) -> None:
    options = {"train": file, "target": "rich", "folds": 3}
    task = load_task("tabular", options)
    spec = TrialSpec(
        study="t", trial=0, task="tabular", task_options=options, params=PARAMS[architecture], training={"epochs": 4},
        checkpoint_folder=str(tmp_path / "checkpoints"), milestones=(2,),
    )  # fmt: skip

    def run(one: TrialSpec) -> tuple[dict[str, torch.Tensor], list[Any]]:
        trainer = Trainer(one, task, group=Group(device=torch.device("cpu")))
        measured = list(trainer.advance(4))
        return trainer.module.state_dict(), measured

    whole, measured = run(spec)
    resumed, again = run(replace(spec, resume_from=measured[1].checkpoint, attempt=2))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    for name in ("train_loss", "val_loss"):
        assert again[-1].metrics[name] == measured[-1].metrics[name]


@pytest.mark.large
def test_an_exported_model_takes_new_rows_alone_and_has_the_metric_of_the_study(tmp_path: Path) -> None:
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    write(train, [HEADER, *people(200)])
    write(test, [HEADER, *people(80, seed=1)])
    options = {"train": str(train), "test": str(test), "folds": 3}
    model = exported.trained(tmp_path, "tabular", options, PARAMS["trees"])
    task = model.source.task
    assert isinstance(task, Tabular)
    measured = evaluate(model.source.call.model, task, model.spec.params, part="test")["val_error"]
    rows = list(csv.DictReader(test.read_text().splitlines()))
    out = model.written(tmp_path / "out")
    answers = run_alone(exported.PREDICT, out, rows, "torch")
    wrong = sum(answer["label"] != row["rich"] for answer, row in zip(answers, rows, strict=True))
    assert wrong / len(rows) == pytest.approx(measured, abs=1e-9)
    with torch.no_grad():
        expected = model.source.call.model.eval()(task.encode(str(test))).softmax(1)
    for answer, row in zip(answers, expected.tolist(), strict=True):
        assert list(answer["probabilities"].values()) == pytest.approx(row, abs=1e-5)
    assert "from the model of the trial that had not seen the row" in (out / "README.md").read_text()


def test_few_rows_have_folds_by_auto_and_in_new_studies(file: str) -> None:
    few = Tabular(file, "rich", folds="auto")
    assert len(few.model(PARAMS["mlp"]).models) == 5  # type: ignore[arg-type]
    assert any("a trial trains 5 models and costs 5 times as much" in line for line in few.describe())
    assert not hasattr(Tabular(file, "rich", folds="auto", validation=file).model(PARAMS["mlp"]), "models")
    assert not hasattr(Tabular(file, "rich").model(PARAMS["mlp"]), "models")
    picked = quickstart("tabular", {"data": file, "target": "rich"})
    assert picked.mapping["task_options"]["folds"] == "auto"
    assert any("task_options.folds=1" in note for note in picked.notes)
    off = quickstart("tabular", {"data": file, "target": "rich"}, ["task_options.folds=1"])
    assert off.spec.task_options["folds"] == 1
    assert not any(note.startswith("folds:") for note in off.notes)
    mapping = {"study": "s", "task": "tabular", "objectives": [{"metric": "val_error"}]}
    said = [{}, {"folds": 1}, {"folds": 3}]
    made = [with_options_of_new_studies(parse_spec({**mapping, "task_options": one}, "s")) for one in said]
    assert [one.task_options["folds"] for one in made] == ["auto", 1, 3]
    other = parse_spec({**mapping, "task": "digits"}, "s")
    assert with_options_of_new_studies(other).task_options == {}


def test_weights_of_before_keep_their_mark() -> None:
    """The mark is made of this text: another one would refuse every stored model of tables."""
    assert repr(Target(column="y")) == "_Target(column='y', classes=(), mean=0.0, deviation=1.0, variance=1.0)"


@pytest.mark.medium
@pytest.mark.parametrize(("folds", "kind"), [(1, "yes or no"), (3, "yes or no"), (1, "number"), (3, "number")])
def test_answers_of_a_saved_model_say_what_is_wrong_and_which_columns_are_needed(tmp_path, folds, kind):
    """On validation, also of rows whose fold the model has not seen; without time for all columns some are left out."""
    rows = [
        [age, city, score, rich if kind != "number" else (30 if rich == "yes" else 10) + float(age) / 10]
        for age, city, score, rich in people(600)
    ]
    options = {"train": write(tmp_path / "them.csv", [HEADER, *rows]), "target": "rich", "folds": folds, "reading": 2}
    task = load_task("tabular", options)
    spec = TrialSpec(
        study="t", trial=0, task="tabular", task_options=options, params=PARAMS["trees"], training={"epochs": 9},
        checkpoint_folder=str(tmp_path), milestones=(9,),
    )  # fmt: skip
    *_, last = Trainer(spec, task, group=Group()).advance(9)

    def answers(seconds: float) -> dict[str, Any]:
        course = Mock()
        again = replace(spec, resume_from=last.checkpoint, test_at=(9,), explain_seconds=seconds)
        Trainer(again, task, group=Group()).run(course)
        return dict(course.measured.call_args.args[0].news.answers)

    found = answers(60.0)
    judged = "val_rmse" if kind == "number" else "val_error"
    needed = {name: one[judged] for name, one in found["importance"]["columns"].items()}
    base = found["importance"]["metrics"][judged]
    assert base == pytest.approx(last.metrics[judged], rel=1e-3)
    assert needed.keys() == {"age", "city", "score"}
    assert min(needed["age"], needed["city"]) > 2 * base
    assert abs(needed["score"] - base) < 0.3 * base + 0.02
    size = found["samples"]
    assert size == len(task.validation_data({})[1])
    if kind == "number":
        assert len(found["points"]) == min(size, 400)
        squares = [(actual - estimate) ** 2 for actual, estimate in found["points"]]
        assert (sum(squares) / len(squares)) ** 0.5 == pytest.approx(base, rel=0.25)
        assert found["within"][0] < found["within"][1] < 20
    else:
        right = sum(found["counts"][place][place] for place in range(2))
        assert (sum(map(sum, found["counts"])), 1 - right / size) == (size, pytest.approx(base))
    assert answers(1e-6)["importance"]["left_out"] == 2
