"""Categories that the training rows do not have: networks answer them by what they know of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from automl.exporting.formats import save_program, write_onnx
from automl.standalone.batches import stacked
from automl.standalone.programs import OnnxProgram, TorchProgram
from automl.standalone.table_rows import TableRows
from tests.automl.exporting.test_next_token import PAPERS
from tests.support import optional
from tests.support.task_files import write
from trainers.model.traced_program import example_call, traced
from trainers.tasks import tabular
from trainers.tasks.table.folds import trained_levels
from trainers.tasks.tabular import Tabular

LEVELS = 6
NEW: list[dict[str, object]] = [{"c": "new", "x": 0.0}, {"c": None, "x": 0.0}]
OPTIONS: dict[str, Any] = {"width": 64, "bins": 0}


def colours(folder: Path, *further: tuple[str, float, str]) -> str:
    """A file in which three of six levels say yes and three no, with five slips in a hundred rows."""
    draw = np.random.default_rng(0)
    rows: list[tuple[object, ...]] = [*further]
    for _ in range(400):
        level = int(draw.integers(LEVELS))
        answer = (level < LEVELS // 2) != (draw.random() < 0.05)
        rows.append((f"level{level}", f"{draw.normal():.3f}", "yes" if answer else "no"))
    return write(folder / "colours.csv", [("c", "x", "y"), *rows])


def after_some_steps(task: Tabular, seed: int, architecture: str = "mlp", steps: int = 120) -> Any:
    torch.manual_seed(seed)
    model: Any = task.model({**OPTIONS, "architecture": architecture})
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    inputs, targets = task.train_data({})
    for _ in range(steps):
        rows = torch.randint(len(inputs), (64,))
        optimizer.zero_grad()
        task.loss(model(inputs[rows]), targets[rows]).mean().backward()
        optimizer.step()
    return model.eval()


def places(model: Any, rows: Tensor) -> Tensor:
    """The vectors of a model's only category for some rows."""
    vectors: Tensor = model.categories(rows[:, -1:])
    return vectors


@pytest.mark.parametrize("architecture", ["mlp", "tabm"])
def test_an_unknown_or_missing_category_is_between_the_known_ones(tmp_path: Path, architecture: str) -> None:
    task = Tabular(colours(tmp_path), "y")
    new = task.encode(NEW)
    logits = torch.stack([after_some_steps(task, seed, architecture)(new) for seed in range(4)])
    found = logits.detach().softmax(2)[:, :, 1]
    assert float(found.min()) > 0.2
    assert float(found.max()) < 0.8


def test_a_level_of_no_training_row_or_of_another_fold_is_the_mean_of_the_others(tmp_path: Path) -> None:
    task = Tabular(colours(tmp_path), "y")
    model = after_some_steps(task, 0, steps=2)
    table = model.categories.table.weight
    torch.testing.assert_close(places(model, task.encode(NEW)), table[2:].mean(0).expand(2, -1))
    assert torch.equal(places(model, task.encode([{"c": "level0", "x": 0.0}])), table[2:3])
    task = Tabular(colours(tmp_path, ("once", 0.5, "yes"), ("", 0.5, "no")), "y", validation_share=0.001)
    levels = set(task.train_data({})[0][:, -1].tolist())
    assert levels >= {0.0, 1.0}
    model = after_some_steps(task, 0, steps=2)
    assert torch.equal(places(model, task.encode(NEW)), model.categories.table.weight[:2])
    task = Tabular(colours(tmp_path, ("once", 0.5, "yes")), "y", folds=4)
    inputs, _ = task.train_data({})
    fold = int(inputs[inputs[:, -2] == 0, -1])
    models: Any = task.model(OPTIONS)
    new = task.encode(NEW[:1])
    for number, model in enumerate(models.eval().models):
        table = model.categories.table.weight
        expected = table[2:].mean(0) if number == fold else table[0]
        torch.testing.assert_close(places(model, new)[0], expected)


def test_training_rows_are_passed_as_they_were_and_levels_counted_once(tmp_path, monkeypatch) -> None:
    task = Tabular(colours(tmp_path), "y")
    inputs, _ = task.train_data({})
    model: Any = task.model(OPTIONS)
    learned = model.categories.table.weight[inputs[:, -1].long()]
    for is_training in (True, False):
        assert torch.equal(places(model.train(is_training), inputs), learned)
    assert set(model.categories.state_dict()) == {"table.weight"}, "checkpoints of before have nothing else"
    # Models are built by the hundred to count their weights, and rows may be millions.
    counted: list[int] = []

    def noted(*given: Any) -> Any:
        counted.append(1)
        return trained_levels(*given)

    monkeypatch.setattr(tabular, "trained_levels", noted)
    task = Tabular(colours(tmp_path), "y", folds=3)
    for _ in range(3):
        task.model(OPTIONS)
    assert counted == [1]


@pytest.mark.parametrize("ending", [".pt2", ".onnx"])
def test_exported_models_answer_them_alike(tmp_path: Path, ending: str) -> None:
    task = Tabular(colours(tmp_path), "y")
    model = after_some_steps(task, 0, steps=2)
    path, rows = tmp_path / f"model{ending}", TableRows(task.preprocessing())
    program = traced(example_call(model, (task.train_data({})[0][:2],)))
    if ending == ".pt2":
        save_program(program, {}, path)
    else:
        optional.module("onnxruntime")
        write_onnx([program], PAPERS | {"rows": None, "answers": {"kind": "array"}, "programs": [path.name]}, path)
    kind = TorchProgram if ending == ".pt2" else OnnxProgram
    for number, row in enumerate(NEW):
        (outputs,) = kind(path).run(stacked([rows.encode(row, number)]))
        torch.testing.assert_close(torch.tensor(outputs), model(task.encode([row]))[0])
