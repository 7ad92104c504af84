"""The task `tabular`: what files say, what is wrong with them, and that it learns."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from tests.support.task_files import HEADER, metrics_of, people, real, trained, write
from trainers.checkpoints.model_export import export_model, load
from trainers.contract.task import declared_metrics
from trainers.contract.task_loading import TaskLoadError, built_in_tasks, load_task
from trainers.local.try_out_task import probe
from trainers.protocol import TaskError
from trainers.tasks.shared.split_task import split
from trainers.tasks.table.files import read_table
from trainers.tasks.table.table_networks import MEMBERS
from trainers.tasks.tabular import Tabular

GOOD = {"optimizer": "adamw", "learning_rate": 0.005, "batch_per_rank": 32}


@pytest.fixture
def file(tmp_path: Path) -> str:
    return write(tmp_path / "people.csv", [HEADER, *people(400)])


def refusal(text: str | bytes, folder: Path, **options: Any) -> str:
    """What is said of a file: one line that names it."""
    path = folder / "bad.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(TaskLoadError) as caught:
        load_task("tabular", {"train": str(path), **options})
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"task 'tabular': {path}"), message
    return message.removeprefix(f"task 'tabular': {path}")


def test_the_task_is_built_in_and_its_parts_are_none() -> None:
    assert {"tabular", "text", "vision", "digits", "language_model"} == set(built_in_tasks())


def test_numbers_categories_and_gaps_become_columns(file: str) -> None:
    task = Tabular(file, "rich")
    assert [number.name for number in task.encoding.numbers] == ["age", "score"]
    assert [category.levels for category in task.encoding.categories] == [("Lima", "Oslo", "Rome")]
    assert task.encoding.dense == 3  # age, score, and the mark of a missing score
    inputs, _ = task.train_data({})
    assert inputs[:, 0].mean().abs() < 1e-4
    assert inputs[:, 0].std() == pytest.approx(1, abs=0.01)
    rows = task.encode(
        [
            {"age": 30, "city": "Oslo", "score": "?"},
            {"age": "30", "city": "Paris", "score": 0.5},
            {"age": 30.0, "city": None, "score": "0.5"},
        ]
    )
    assert rows[:, 0].unique().numel() == 1  # 30, "30" and 30.0 are one number
    assert rows[:, 2].tolist() == [1, 0, 0]
    assert rows[:, 3].tolist() == [3, 0, 1]  # Oslo, a level that was never seen, and none
    score = next(number for number in task.encoding.numbers if number.name == "score")
    assert rows[0, 1].item() == pytest.approx((score.median - score.mean) / score.deviation, rel=1e-5)


def test_statistics_are_of_training_rows_and_the_split_gives_each_class_its_share(file: str) -> None:
    task = Tabular(file, "rich")
    ages = np.array([float(row[0]) for row in people(400)])
    labels = np.array([row[3] == "yes" for row in people(400)]).astype(np.int64)
    rows = split(labels, 400, validation=0.15)[0]
    assert task.encoding.numbers[0].mean == pytest.approx(ages[rows].mean())
    assert task.encoding.numbers[0].mean != pytest.approx(ages.mean(), abs=1e-9)
    classes = np.array([0] * 90 + [1] * 10 + [2] * 2)
    train, validation, test = split(classes, 102, validation=0.2, test=0.0)
    assert np.bincount(classes[validation]).tolist() == [18, 2, 1]
    assert sorted([*train, *validation, *test]) == list(range(102))
    again = split(classes, 102, validation=0.2, test=0.0)
    assert np.array_equal(again[1], validation)
    parts = split(classes, 102, validation=0.2, test=0.2)
    assert len(set(np.concatenate(parts).tolist())) == 102
    assert np.bincount(classes[parts[2]])[:2].tolist() == [18, 2]


def test_it_learns_to_classify_and_an_exported_model_takes_new_rows(file: str, tmp_path: Path) -> None:
    options = {"train": file, "target": "rich", "test": write(tmp_path / "new.csv", [HEADER, *people(200, seed=1)])}
    task, trainer = trained("tabular", options, GOOD, 15)
    assert metrics_of(task, trainer, "test")["val_accuracy"] > 0.9
    checkpoint = tmp_path / "checkpoint.pt"
    torch.save(trainer._content(), checkpoint)
    export_model(checkpoint, tmp_path / "model.pt")
    again: Any
    model, again, _ = load(tmp_path / "model.pt")
    rows = [{"age": 70, "city": "Oslo", "score": None}, {"age": 70, "city": "Rome", "score": 0.1}]
    assert again.decode(model(again.encode(rows))) == ["no", "yes"]


def test_weights_are_refused_once_the_training_file_has_changed(tmp_path: Path) -> None:
    rows = people(200)
    path = write(tmp_path / "people.csv", [HEADER, *rows])
    weights = Tabular(path, "rich").model({}).state_dict()
    Tabular(path, "rich").model({}).load_state_dict(weights)
    write(tmp_path / "people.csv", [HEADER, *([int(row[0]) * 2, *row[1:]] for row in rows)])
    with pytest.raises(RuntimeError, match="the training data have changed"):
        Tabular(path, "rich").model({}).load_state_dict(weights)


@pytest.mark.medium
@pytest.mark.parametrize("architecture", ["mlp", "residual", "tabm", "trees"])
def test_it_estimates_a_number_in_its_own_units(tmp_path: Path, architecture: str) -> None:
    rows = [[row[0], row[1], 1000 + 50 * int(row[0]) + (300 if row[1] == "Oslo" else 0) + 0.5] for row in people(600)]
    path = write(tmp_path / "prices.csv", [["age", "city", "price"], *rows])
    params = {**GOOD, "architecture": architecture, "dropout": 0.0, "bins": 8}
    task, trainer = trained("tabular", {"train": path, "target": "price", "test_share": 0.2}, params, 20)
    assert task.metric_names == ("val_rmse", "val_mse", "val_mae", "val_r2")
    measured = metrics_of(task, trainer, "validation")
    _, targets = task.validation_data({})
    prices = np.array(task.decode(targets))
    with torch.no_grad():
        estimates = np.array(task.decode(trainer.module.eval()(task.validation_data({})[0])))
    assert measured["val_mse"] == pytest.approx(((estimates - prices) ** 2).mean(), rel=1e-3)
    assert measured["val_rmse"] == pytest.approx(measured["val_mse"] ** 0.5)
    assert measured["val_r2"] == pytest.approx(1 - ((estimates - prices) ** 2).mean() / prices.var(), rel=1e-3)
    assert measured["val_r2"] > 0.95
    assert prices.min() > 1000


def test_what_the_target_is_follows_from_its_values_unless_it_is_forced(tmp_path: Path) -> None:
    def metrics(values: list[Any], **options: Any) -> tuple[str, ...] | None:
        rows = [[index % 7, value] for index, value in enumerate(values)]
        path = write(tmp_path / "t.csv", [["x", "y"], *rows])
        return declared_metrics(load_task("tabular", {"train": path, "target": "y", **options}))

    classes = ("val_error", "val_accuracy", "val_log_loss", "val_auroc", "val_auprc", "val_f1", "val_balanced_error")
    number = ("val_rmse", "val_mse", "val_mae", "val_r2")
    assert metrics([1, 2, 3] * 10) == classes
    assert metrics([1.5, 2.5, 3.0] * 10) == number
    assert metrics(list(range(40))) == number
    assert metrics(["a", "b"] * 10) == classes
    assert metrics(["true", "false"] * 10) == classes
    assert metrics([1, 2, 3] * 10, kind="regression") == number
    assert metrics(list(range(20)) * 2, kind="classification") == classes


def test_columns_and_headers_are_found_ignored_and_left_out(tmp_path: Path) -> None:
    rows = [
        [index, f"name{index}", 7, index % 3, f"2024-01-{index % 28 + 1:02}", "ab"[index % 2]] for index in range(60)
    ]
    path = write(tmp_path / "t.csv", [["id", "name", "same", "code", "day", "y"], *rows])
    task = Tabular(path, "y", ignore=["id"], categorical=["code"])
    assert [number.name for number in task.encoding.numbers] == ["day"]
    assert task.encoding.numbers[0].is_date
    assert [category.name for category in task.encoding.categories] == ["code"]
    assert task.encoding.left_out == {"name": "different in every row", "same": "constant"}
    assert Tabular(path, "y").encoding.left_out["id"] == "the number of the row"
    assert "id" in [number.name for number in Tabular(path, "y", numeric=["id"]).encoding.numbers]
    train = write(tmp_path / "train.csv", people(100), ", ")
    test = write(tmp_path / "test.csv", [[*row[:3], f"{row[3]}."] for row in people(50, seed=2)], ", ")
    by_last, by_number = Tabular(train, test=test), Tabular(train, 3, test=test)
    assert by_last.classes == by_number.classes == ("no", "yes")
    assert sum(len(part[1]) for part in by_last._parts.values()) == 150
    assert by_last.test_data({})[1].tolist() == [int(row[3] == "yes") for row in people(50, seed=2)]


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_delimiters_are_found(tmp_path: Path, delimiter: str) -> None:
    path = write(tmp_path / "t.csv", [HEADER, *people(60)], delimiter)
    assert read_table(path).names == tuple(HEADER)
    assert len(read_table(path)) == 60


def test_quoted_cells_windows_lines_gzip_and_latin_1_are_read(tmp_path: Path) -> None:
    import gzip

    text = '\ufeffa,b\r\n"x, y",1\r\n"line\r\nbreak",2\r\n"say ""hi""",3\r\n'
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(text.encode()))
    table = read_table(tmp_path / "t.csv.gz")
    assert table.names == ("a", "b")
    assert table.columns["a"].to_pylist() == ["x, y", "line\nbreak", 'say "hi"']
    assert table.where(2).endswith("line 5")
    (tmp_path / "t.csv").write_bytes((GOOD_ROWS + "1,café\n2,café\n").encode("latin-1"))
    assert "café" in Tabular(str(tmp_path / "t.csv"), "y", encoding="latin-1").classes


def test_parquet_equals_csv_and_infinity_is_named_with_its_row(tmp_path: Path, file: str) -> None:
    cells = list(zip(*people(400), strict=True))
    columns = {
        "age": pa.array(cells[0], pa.int32()),
        "city": pa.array(cells[1]).dictionary_encode(),
        "score": pa.array([None if cell == "?" else float(cell) for cell in cells[2]]),
        "rich": pa.array(cells[3]),
    }
    pa.parquet.write_table(pa.table(columns), tmp_path / "people.parquet")
    one, other = Tabular(file, "rich"), Tabular(str(tmp_path / "people.parquet"), "rich")
    assert torch.equal(one.train_data({})[0], other.train_data({})[0])
    assert torch.equal(one.validation_data({})[1], other.validation_data({})[1])
    # It would make the mean infinite, and every cell of the column NaN.
    numbers = [index * 0.37 for index in range(40)]
    for column, kind in (("x", "classification"), ("y", "regression")):
        columns = {"x": [*numbers], "y": [*numbers] if kind == "regression" else ["a", "b"] * 20}
        columns[column][30] = float("inf")
        path = tmp_path / f"{column}.parquet"
        pa.parquet.write_table(pa.table(columns), path)
        with pytest.raises(TaskError, match=f"row 31, column '{column}': found inf, where 98% of the column"):
            Tabular(str(path), "y", kind=kind)


def test_the_probe_finds_nothing_wrong_copies_share_data_and_no_test_part_is_told(file: str) -> None:
    import copy

    task = Tabular(file, "rich")
    one, other = task.train_data({})[0], copy.copy(task).train_data({})[0]
    assert one.data_ptr() == other.data_ptr()
    answer = probe("tabular", {"train": file, "target": "rich"}, [])
    assert answer["error"] is None
    assert answer["samples"] == 340
    assert answer["metrics"] == sorted(task.metric_names)
    assert {"val_accuracy", "val_error", "val_auroc"} <= set(answer["metrics"])
    with pytest.raises(TaskError, match="task_options"):
        Tabular(file, "rich").test_data({})


GOOD_ROWS = "x,y\n" + "".join(f"{index},{'ab'[index % 2]}\n" for index in range(40))

# file, options, what the line must hold after the file's name
BAD: dict[str, tuple[str | bytes, dict[str, Any], tuple[str, ...]]] = {
    "empty": ("", {}, ("file is empty",)),
    "header only": ("x,y\n", {"header": True}, ("a header, but no row",)),
    "no such column": (GOOD_ROWS, {"target": "yy"}, ("'yy'", "x, y", "did you mean 'y'")),
    "no such number": (GOOD_ROWS, {"target": 2}, ("found no column 2", "0 to 1")),
    "constant target": ("x,y\n1,a\n2,a\n3,a\n", {"target": "y"}, ("column 'y'", "only label", "'a'")),
    "constant number": ("x,y\n1,2.5\n2,2.5\n3,2.5\n4,2.5\n", {"target": "y"}, ("column 'y'", "2.5", "varies")),
    "a class with one row": (GOOD_ROWS + "7,c\n", {"target": "y"}, (": line 42, column 'y'", "'c'", "two rows")),
    "a word among numbers": (
        GOOD_ROWS.replace("\n30,", "\nthirty,"),
        {"target": "y"},
        (": line 32, column 'x'", "'thirty'", "98%", "task_options.categorical"),
    ),
    "infinity among numbers": (GOOD_ROWS.replace("\n30,", "\n1e999,"), {}, (": line 32, column 'x'", "'1e999'")),
    "no label": (
        GOOD_ROWS + "1,\n2,NaN\n",
        {"target": "y"},
        (": line 42", "no value in the target column 'y'", "2 rows"),
    ),
    "a short row": (GOOD_ROWS + "1\n", {}, (": line 42", "1 columns", "2, as in the first row")),
    "a long row": (GOOD_ROWS + "\n\n1,a,3\n", {}, (": line 44", "3 columns", "2")),
    "latin-1": (GOOD_ROWS.encode() + b"1,caf\xe9\n", {}, (": line 42", "0xe9", "utf-8", "encoding")),
    "a column twice": ("x,x,y\n1,2,a\n1,2,b\n", {"header": True}, ("the column 'x' occurs twice",)),
    "only the target": ("y\na\nb\na\nb\n", {"header": True}, ("no column beside the target",)),
    "nothing to learn from": ("x,y\n1,a\n1,b\n1,a\n1,b\n", {"target": "y"}, ("x is constant",)),
    "an unknown column to ignore": (GOOD_ROWS, {"ignore": ["z"]}, ("'z'", "task_options.ignore")),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_data_is_one_line_that_names_the_place(what: str, tmp_path: Path) -> None:
    text, options, words = BAD[what]
    message = refusal(text, tmp_path, **options)
    for word in words:
        assert word in message, message


def test_train_and_test_must_fit(tmp_path: Path, file: str) -> None:
    def message(rows: list[list[object]]) -> str:
        path = write(tmp_path / "other.csv", rows)
        with pytest.raises(TaskError) as caught:
            Tabular(file, "rich", test=path)
        return str(caught.value)

    assert "found the label 'maybe'" in message([HEADER, *people(5), [30, "Rome", 1, "maybe"]])
    assert "other.csv: line 7, column 'rich'" in message([HEADER, *people(5), [30, "Rome", 1, "maybe"]])
    assert "found no column 'city'" in message([["age", "score", "rich"], [1, 2, "yes"]])
    assert "found the column 'extra'" in message([[*HEADER, "extra"], [*people(1)[0], 4]])
    assert "line 3, column 'age': found 'old'" in message([HEADER, *people(1), ["old", "Rome", 1, "no"]])
    reordered = [[row[3], row[1], row[0], row[2]] for row in people(5)]
    path = write(tmp_path / "other.csv", [["rich", "city", "age", "score"], *reordered])
    straight = write(tmp_path / "straight.csv", [HEADER, *people(5)])
    one, other = Tabular(file, "rich", test=path), Tabular(file, "rich", test=straight)
    assert torch.equal(one.test_data({})[0], other.test_data({})[0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ("'train'",)),
        ({"train": "nowhere.csv"}, ("nowhere.csv", "no such file")),
        ({"train": 3}, ("task_options.train", "3")),
        ({"trian": "x.csv"}, ("'trian'", "did you mean 'train'?")),
        ({"train": "x", "kind": "clasification"}, ("task_options.kind", "did you mean 'classification'?")),
        ({"train": "x", "validation_share": 0.9}, ("task_options.validation_share", "0.9", "0.5")),
        ({"train": "x", "ignore": 3}, ("task_options.ignore", "3")),
        ({"train": "x", "delimiter": "ab"}, ("task_options.delimiter", "one character")),
        ({"train": "x", "header": "maybe"}, ("task_options.header", "'maybe'")),
    ],
)
def test_wrong_options(options, words, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TaskLoadError) as caught:
        load_task("tabular", options)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.medium
def test_adult_learns_in_four_epochs() -> None:
    options = {"train": real("adult", "adult-train.csv"), "test": real("adult", "adult-test.csv")}
    task, trainer = trained("tabular", options, {**GOOD, "learning_rate": 0.001, "batch_per_rank": 256}, 4)
    assert len(task.test_data({})[1]) == 16281
    assert metrics_of(task, trainer, "test")["val_accuracy"] > 0.85
    assert json.dumps(task.space().to_dict())


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"agee": 30, "city": "Oslo", "score": 1},
         "found the unknown column 'agee' and no column 'age', allowed: age, city, score; None for a missing value; d"),
        ({"agee": 30}, "found the unknown column 'agee' and no column 'age', 'city', 'score', allowed: "),
        ({"age": 30, "city": "Oslo", "score": 1, "shoe": 44}, "found the unknown column 'shoe', allowed: age, city"),
        ({"age": 30, "score": 1}, "found no column 'city', allowed: age, city, score; None for a missing value"),
        ({}, "found no column 'age', 'city', 'score', allowed: "),
        ([30, "Oslo", 1], "found [30, 'Oslo', 1], allowed: a mapping from each column to its value: age, city, score"),
    ],
)  # fmt: skip
def test_new_rows_with_other_columns_are_refused(file: str, row: Any, says: str) -> None:
    task = Tabular(file, "rich")
    good = {"age": 30, "city": None, "score": 1, "rich": "yes"}  # the target may be there
    with pytest.raises(TaskError) as caught:
        task.encode([good, row])
    assert str(caught.value).startswith(f"rows: row 2: {says}")
    assert ("did you mean 'age'?" in str(caught.value)) == ("'agee'" in says)
    assert "\n" not in str(caught.value)
    assert len(task.encode([good])) == 1


def test_new_rows_have_the_columns_that_the_model_uses(file: str, tmp_path: Path) -> None:
    task = Tabular(file, "rich", ignore=["score"])
    few = write(tmp_path / "few.csv", [("age", "city"), (30, "Oslo"), (40, "Rome")])
    assert torch.equal(task.encode(few), task.encode([{"age": 30, "city": "Oslo"}, {"age": 40, "city": "Rome"}]))
    wrong = write(tmp_path / "wrong.csv", [("agee", "city"), (30, "Oslo"), (40, "Rome")])
    with pytest.raises(TaskError, match=r"wrong\.csv: found the unknown column 'agee' and no column 'age', allowed"):
        task.encode(wrong)
    rows = [(*row[:3], "same", row[3]) for row in people(200)]
    task = Tabular(write(tmp_path / "constant.csv", [(*HEADER[:3], "constant", "rich"), *rows]), "rich")
    assert "constant" in task.encoding.left_out
    row = {"age": 30, "city": "Oslo", "score": 1}
    assert torch.equal(task.encode([row]), task.encode([row | {"constant": "same"}]))


def test_members_of_an_ensemble_answer_together_once_trained_and_first_trials_are_in_the_space(file: str) -> None:
    task = Tabular(file, "rich")
    inputs, targets = task.train_data({})
    module = task.model({"architecture": "tabm", "dropout": 0.0})
    apart, together = module(inputs), module.eval()(inputs)
    assert apart.shape == (len(inputs), MEMBERS, 2)
    torch.testing.assert_close(together.softmax(1), apart.softmax(2).mean(1))
    losses = torch.stack([task.loss(apart[:, member], targets) for member in range(MEMBERS)])
    torch.testing.assert_close(task.loss(apart, targets), losses.mean(0))
    smoothed = torch.stack([task.smoothed_loss(apart[:, member], targets, 0.1) for member in range(MEMBERS)])
    torch.testing.assert_close(task.smoothed_loss(apart, targets, 0.1), smoothed.mean(0))
    task = Tabular(file, "rich")
    trials = task.first_trials()
    assert [one["architecture"] for one in trials] == ["trees", "tabm"]
    for one in trials:
        task.space().check(one)


TREES = {"architecture": "trees"}


@pytest.mark.parametrize(
    ("options", "params", "message"),
    [
        ({"folds": 0}, {}, "task_options.folds: found 0, allowed: auto, or a whole number from 1 to 20"),
        ({"folds": "many"}, {}, "task_options.folds: found 'many'"),
        ({"folds": True}, {}, "task_options.folds: found True"),
        ({"folds": 2, "query": "city", "target": "age"}, {}, "task_options.folds: found 2 together with query"),
        ({"scaling": "minmax"}, {}, "task_options.scaling: found 'minmax', allowed: standard, robust"),
        ({}, {"architecture": "forest"}, "architecture: found 'forest', allowed: mlp, residual, tabm, trees"),
        ({}, {"waves": 1.5}, "waves: found 1.5, allowed: a whole number from 0 to 256"),
        ({}, {"waves": -1}, "waves: found -1, allowed"),
        ({}, {"waves": 8, "wave_scale": 0}, "wave_scale: found 0, allowed: a number from 0.001 to 100"),
        ({}, {**TREES, "trees": 10.5}, "trees: found 10.5, allowed: a whole number from 1"),
        ({}, {**TREES, "leaves": 1}, "leaves: found 1, allowed: a whole number from 2"),
        ({}, {**TREES, "row_share": 2.0}, "row_share: found 2.0, allowed: a number from 0.001 to 1"),
        ({}, {**TREES, "tree_rate": -1}, "tree_rate: found -1"),
    ],
)
def test_options_and_parameters_out_of_bounds_are_one_line(file, options, params, message) -> None:
    with pytest.raises(TaskError) as caught:
        Tabular(**{"train": file, "target": "rich", **options}).model(params)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
