"""What changed since the latest trial is said, also to a script, and mixed data are found."""

import csv
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import Workplace
from trainers.contract import user_code
from trainers.contract.user_code import data_files, hash_of_data

SCRIPT = """
import automl

SCALE = {scale}


def train(trial):
    for _ in trial.epochs():
        trial.report(val_error=abs(trial.params["x"] - 0.3) * SCALE + 0.1)


automl.search(
    train, study="constant", space={{"x": (0.0, 1.0)}}, objectives=["val_error"], training={{"epochs": 1}},
    budget="2 trials", resources={{"ray_address": {address!r}, "slots": 2}},
)
"""


def write(path: Path, slope: int) -> None:
    with path.open("w", newline="") as file:
        rows = [(i % 13, i % 7, slope * (i % 13) + i % 7 + 0.5) for i in range(90)]
        csv.writer(file).writerows([("a", "b", "y"), *rows])


@pytest.mark.large
def test_other_data_are_said_at_launch_and_resume_and_found_by_the_audit(place: Workplace) -> None:
    path = place.folder / "table.csv"
    write(path, 1)
    mapping: dict[str, Any] = {
        "study": "table", "task": "tabular", "objectives": ["val_rmse"],
        "task_options": {"train": str(path), "target": "y"},
        "space": {"architecture": "trees", "trees": 8, "tree_rate": [0.1, 0.3]}, "training": {"epochs": 1},
        "baselines": [], "budget": {"trials": 1}, "resources": {"slots": 1},
    }  # fmt: skip
    place.run("launch", place.spec(mapping))
    assert "changed" not in place.run("launch", place.spec(mapping)).stderr
    write(path, 2)
    said = f"{path} changed after trial 0 had started"
    assert said in place.run("launch", place.spec(mapping)).stderr
    assert place.json("audit", "table")["findings"] == []
    assert said in place.run("resume", "table", "--set", "budget.trials=2").stderr
    (finding,) = place.json("audit", "table", code=None)["findings"]
    assert (finding["check"], finding["where"]) == ("data", str(path))
    assert finding["found"] == "trial 0 has read other data than trial 1: their values are not comparable"


@pytest.mark.large
def test_another_constant_is_said_to_a_script(place: Workplace, caplog: pytest.LogCaptureFixture) -> None:
    assert place.pool is not None
    address = place.pool.ray_address
    place.script(SCRIPT.format(scale=1.0, address=address))
    place.script(SCRIPT.format(scale=1.0, address=address))
    assert "changed" not in caplog.text
    place.script(SCRIPT.format(scale=5.0, address=address))
    assert "the training function train or a value that it reads changed after trial 1 had started" in caplog.text


def test_large_files_and_folders_have_hashes_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Task:
        path_options = ("train", "test")

    one, folder = tmp_path / "one.csv", tmp_path / "images"
    one.write_text("a" * 100)
    (folder / "cats").mkdir(parents=True)
    (folder / "cats" / "1.png").write_text("1")
    options = {"train": str(one), "test": str(folder), "target": "y"}
    found = data_files(Task(), options)
    assert set(found) == {str(one), str(folder)}
    (folder / "cats" / "2.png").write_text("2")
    assert data_files(Task(), options)[str(folder)] != found[str(folder)]
    assert data_files(Task(), options | {"train": str(tmp_path / "gone.csv")}).keys() == {str(folder)}
    monkeypatch.setattr(user_code, "WHOLE_BYTES", 10)
    monkeypatch.setattr(user_code, "_END_BYTES", 4)
    hashes = set()
    for place, text in enumerate(("a" * 100, "b" + "a" * 99, "a" * 99 + "b", "a" * 101)):
        one.write_text(text)
        os.utime(one, ns=(place, place))
        hashes.add(hash_of_data(one))
    assert len(hashes) == 4
