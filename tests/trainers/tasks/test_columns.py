"""Columns of a table as networks get them: scaled numbers, waves, and categories that no training row has."""

import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from automl.exporting.formats import save_program, write_onnx
from automl.launching.quickstart import quickstart
from automl.standalone.batches import stacked
from automl.standalone.programs import OnnxProgram, TorchProgram
from automl.standalone.table_rows import TableRows
from tests.automl.exporting.test_next_token import PAPERS
from tests.support import optional
from tests.support.task_files import HEADER, metrics_of, people, trained, write
from trainers.contract.task_loading import load_task
from trainers.model.traced_program import example_call, traced
from trainers.tasks import tabular
from trainers.tasks.table.columns import bin_edges
from trainers.tasks.tabular import Tabular, trained_levels

TAILS = [0, 1, 2, 3, 4, 5, 6, 7, 1e6, 1e100]
MOSTLY_ZERO = [0] * 8 + [3, 5]
"""Columns with far values, and with quartiles that are equal."""


@pytest.fixture
def file(tmp_path: Path) -> str:
    return write(tmp_path / "people.csv", [HEADER, *people(400)])


@pytest.fixture
def tails(tmp_path: Path) -> str:
    rows = [[tail, zero, "" if number % 3 else number, number % 2]
            for number, (tail, zero) in enumerate(list(zip(TAILS, MOSTLY_ZERO, strict=True)) * 10)]  # fmt: skip
    return write(tmp_path / "tails.csv", [["tail", "zero", "gaps", "y"], *rows])


def bent(value: float, median: float, scale: float) -> float:
    distance = (value - median) / scale
    return distance / math.sqrt(1 + (distance / 3) ** 2)


def test_robust_scaling_takes_the_median_and_the_quartiles_and_bends_what_is_far(tails: str) -> None:
    task = Tabular(tails, "y", scaling="robust", folds=5)
    tail, zero, gaps = task.encoding.numbers
    assert (tail.mean, tail.deviation) == (np.median(TAILS), np.subtract(*np.quantile(TAILS * 10, [0.75, 0.25])))
    assert (zero.mean, zero.deviation) == (0, 2.5)  # half of the range
    assert gaps.marks
    rows = task.encode([{"tail": value, "zero": 5, "gaps": None} for value in (2, 4.5, 1e6, 1e300, -1e300)]).numpy()
    expected = [bent(2, tail.mean, tail.deviation), 0, bent(1e6, tail.mean, tail.deviation), 3, -3]
    assert rows[:, 0] == pytest.approx(expected, rel=1e-6)
    assert rows[:, 1] == pytest.approx([bent(5, 0, 2.5)] * 5)
    assert rows[:, 2:].tolist() == [[0, 1]] * 5
    assert np.isfinite(task.train_data({})[0].numpy()).all()


@pytest.mark.medium
@pytest.mark.parametrize("scaling", ["standard", "robust"])
def test_a_model_that_is_taken_away_scales_as_the_task_does(tails: str, scaling: str) -> None:
    task = Tabular(tails, "y", scaling=scaling)
    alone = TableRows(json.loads(json.dumps(task.preprocessing())))
    rows: list[dict[str, Any]] = [
        {"tail": value, "zero": value / 2, "gaps": None if number % 2 else value}
        for number, value in enumerate([-1e300, -8.0, 0.0, 3.3, 7.5, 2e6, 1e300])
    ]
    theirs = np.array([np.array(alone.encode(row, 0).numbers) for row in rows])
    np.testing.assert_allclose(theirs, task.encode(rows).numpy(), rtol=1e-6)


def test_weights_of_another_scaling_are_refused_and_studies_scale_as_before(file: str) -> None:
    old, new = Tabular(file, "rich"), Tabular(file, "rich", scaling="robust")
    weights = old.model({}).state_dict()
    meaning = ((old.encoding.numbers, old.encoding.categories, old._target),)
    assert weights["mark.digest"] == zlib.crc32(repr(meaning).encode())
    with pytest.raises(RuntimeError, match="have another encoding"):
        new.model({}).load_state_dict(weights)
    assert "scaling" not in quickstart("tabular", {"data": file, "target": "rich"}).spec.task_options
    said = quickstart("tabular", {"data": file, "target": "rich"}, ["task_options.scaling=robust"]).spec.task_options
    stored: Any = load_task("tabular", {"train": file, "target": "rich", "folds": "auto"})
    asked: Any = load_task("tabular", said)
    assert (stored.encoding.is_robust, asked.encoding.is_robust) == (False, True)


@pytest.mark.medium
@pytest.mark.parametrize("architecture", ["mlp", "tabm"])
def test_waves_learn_what_a_number_repeats(tmp_path: Path, architecture: str) -> None:
    places = np.random.default_rng(0).uniform(0, 1, 800)
    rows = [[place, math.sin(2 * math.pi * 6 * place)] for place in places]
    path = write(tmp_path / "waves.csv", [["x", "y"], *rows])
    fixed = {"optimizer": "adamw", "learning_rate": 0.01, "batch_per_rank": 32, "depth": 1, "dropout": 0.0, "bins": 0}
    found = {}
    for waves in (0, 16):
        params = {**fixed, "architecture": architecture, "waves": waves, "wave_scale": 2.0}
        task, trainer = trained("tabular", {"train": path, "target": "y", "scaling": "robust"}, params, 8)
        found[waves] = metrics_of(task, trainer, "validation")["val_r2"]
    assert found[16] > 0.9 > found[0]


def test_waves_are_of_numbers_alone_and_off_by_default(file: str, tmp_path: Path) -> None:
    task = Tabular(file, "rich")
    plain, waved = task.model({"bins": 0}), task.model({"bins": 0, "waves": 4})
    names = waved.state_dict().keys() - plain.state_dict().keys()
    assert names == {"waves.frequencies", "waves.phases", "waves.weight", "waves.bias"}
    assert waved.state_dict()["waves.frequencies"].shape == (2, 4)  # age and score, not the mark of a missing score
    words = write(tmp_path / "words.csv", [["city", "y"], *[[row[1], row[3]] for row in people(60)]])
    assert torch.is_tensor(Tabular(words, "y").model({"waves": 4}).state_dict()["head.weight"])


def test_bins_have_a_width_also_where_quantiles_are_hardly_apart(tmp_path: Path) -> None:
    """Beside a number that stands for nothing the others are so close together that 32 bits hardly tell them apart."""
    draw = np.random.default_rng(0)
    values = np.where(draw.random((400, 5)) < 0.6, 2_147_483_647, draw.integers(0, 1000, (400, 5)))
    table = [["a", "b", "c", "d", "e", "y"], *([*row, number % 2] for number, row in enumerate(values))]
    task = Tabular(write(tmp_path / "far.csv", table), "y", folds=1)
    rows = task.train_data({})[0]
    assert (np.diff(bin_edges(rows.numpy(), 48)) > 0).all()
    assert torch.isfinite(task.model({"architecture": "mlp", "bins": 48})(rows)).all()


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


@pytest.mark.medium
@pytest.mark.parametrize("architecture", ["mlp", "tabm"])
def test_an_unknown_or_missing_category_is_between_the_known_ones(tmp_path: Path, architecture: str) -> None:
    task = Tabular(colours(tmp_path), "y")
    new = task.encode(NEW)
    logits = torch.stack([after_some_steps(task, seed, architecture)(new) for seed in range(2)])
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


@pytest.mark.medium
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
