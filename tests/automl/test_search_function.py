"""Training functions of scripts and notebooks: named, saved with what they refer to, and searched from Python."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch

import automl
from automl.launching.functions import FOLDER, name_of, say_the_same
from studies.spec.spec_errors import SpecError
from tests.support import training_functions
from tests.support.command_line import Workplace
from trainers.contract.task_loading import load_trainable
from trainers.contract.training_function import TrainingFunction

ROOT = Path(__file__).parents[2]
SCRIPT = '''
import automl

BEST = 0.25  # the function refers to it


def train(trial):
    """Has a quoted \\"\\"\\"docstring\\"\\"\\" and a \\\\n."""
    state = {"rate": 0.0}
    for epoch in trial.epochs(rate=(state.copy, state.update)):
        state["rate"] = trial.learning_rate
        trial.report(val_error=abs(trial.learning_rate - BEST) + 1 / epoch)


if __name__ == "__main__":
    study = automl.search(
        train,
        study="by-script",
        space={"learning_rate": {"type": "float", "low": 0.1, "high": 0.5}},
        objectives=[{"metric": "val_error", "direction": "minimize"}],
        training={"epochs": 3},
        budget={"trials": 4, "usd": 0.1},
        resources={"slots": 1},
        search={"sampler": "random", "pruner": {"name": "none"}},
        mlflow="off",
    )
    print(len(study.trials), min(point.values["val_error"] for point in study.front))
'''


def made_here(factor: float = 3.0) -> Callable[..., Any]:

    def inner(trial: Any) -> float:
        return factor * float(trial)

    return inner


def test_a_function_that_nobody_can_import_is_saved_with_what_it_refers_to(tmp_path: Path) -> None:
    name, folder = name_of(made_here(), tmp_path, "one")
    assert folder == tmp_path
    assert name.startswith(f"{FOLDER}.inner_")
    found = load_trainable(name, {}, (str(tmp_path),))
    assert isinstance(found, TrainingFunction)
    assert found.function(2.0) == 6.0
    (path,) = (tmp_path / FOLDER).glob("*.py")
    assert "return factor * float(trial)" in path.read_text()
    before = path.stat().st_mtime_ns
    assert name_of(made_here(), tmp_path, "one") == (name, folder)
    assert path.stat().st_mtime_ns == before


CLASSES = """
CHECKSUM = "0123456789abcdef0123456789abcdef"
FAST = {"adam", "lion", "sgd"}

class Base:
    width = 8

class Net(Base):
    names = frozenset({"one", "two", "three"})

def train(trial):
    assert trial.params["optimizer"] in {"adam", "lion", "sgd"} and FAST and CHECKSUM
    for epoch in trial.epochs():
        trial.report(val_error=Net().width)
"""
CELL = """
import sys, linecache
from pathlib import Path
from automl.launching.functions import name_of

cell, source = sys.argv[1:]
linecache.cache[cell] = (len(source), None, source.splitlines(True), cell)
exec(compile(source, cell, "exec"))
name_of(train, Path.cwd(), "study")
"""


@pytest.mark.medium
def test_a_saved_function_changes_when_its_code_does_and_not_with_each_process(tmp_path: Path) -> None:
    """Processes have other tracker ids of classes and other hashes; a notebook's code names its kernel's process."""

    def saved(run: int, source: str) -> bytes:
        command = [sys.executable, "-c", CELL, f"/tmp/ipykernel_{10 + run}/3405691582.py", source]
        environment = os.environ | {"PYTHONHASHSEED": str(run), "PYTHONPATH": str(ROOT)}
        subprocess.run(command, cwd=tmp_path, env=environment, check=True)
        (path,) = (tmp_path / FOLDER).glob("*.py")
        found = load_trainable(f"{FOLDER}.{path.stem}:train", {}, (str(tmp_path),))
        assert isinstance(found, TrainingFunction)
        return path.read_bytes()

    first = saved(0, CLASSES)
    assert saved(1, CLASSES) == first
    for was, becomes in (("width = 8", "width = 9"), ("0123456789abcdef0", "fedcba9876543210f"), ('"two", ', "")):
        assert saved(1, CLASSES.replace(was, becomes)) != first


def reading(run: str) -> Any:
    """Return a function that trains on the data of a run of MLflow, whose name has 32 digits."""
    folder, pattern = Path("mlruns/7") / run, re.compile(run)
    return lambda: (folder, pattern)


@pytest.mark.parametrize("below", ["", "/artifacts"])
def test_a_path_that_looks_like_a_checksum_is_part_of_what_a_function_says(below: str) -> None:
    one, other = (cloudpickle.dumps(reading(digit * 32 + below)) for digit in "5c")
    assert say_the_same(one, cloudpickle.dumps(reading("5" * 32 + below)))
    assert not say_the_same(one, other)


def test_a_tensor_that_a_function_reads_is_compared_by_its_values() -> None:
    """Its pickle has its address, which is another one in each process."""
    tensors = [torch.tensor([float(value), 2]) for value in (1, 1, 3)]
    one, equal, other = map(cloudpickle.dumps, tensors)
    assert one != equal
    assert say_the_same(one, equal)
    assert not say_the_same(one, other)


def test_functions_of_one_source_are_kept_apart_and_what_one_drags_along_is_bounded(tmp_path: Path) -> None:
    names = [name_of(made_here(factor), tmp_path, study)[0] for factor, study in ((2.0, "two"), (5.0, "five"))]
    found = [load_trainable(name, {}, (str(tmp_path),)) for name in names]
    assert [one.function(1.0) for one in found] == [2.0, 5.0]
    data = bytes(33 * 2**20)

    def holds_data(trial: Any) -> int:
        return len(data)

    with pytest.raises(SpecError, match="uses 33 MiB of data from outside the function, more than 32 MiB"):
        name_of(holds_data, tmp_path, "one")


def test_a_function_of_a_module_is_named_as_it_is(tmp_path: Path) -> None:
    name, folder = name_of(training_functions.train, tmp_path, "one")
    assert name == "tests.support.training_functions:train"
    assert folder == ROOT
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_training_function_is_refused_in_one_line(tmp_path: Path) -> None:
    lock = __import__("threading").Lock()

    def holds_a_lock(trial: Any) -> None:
        lock.acquire()

    cases: list[tuple[Any, str]] = [
        (lambda trial: None, "a study cannot store a lambda, which has no name"),
        (len, "the first parameter of len is not called trial"),
        (training_functions.waits, "found waits: it is an async function"),
        (holds_a_lock, "refers to something that cannot be saved"),
    ]
    for function, words in cases:
        with pytest.raises(SpecError) as refused:
            name_of(function, tmp_path, "one")
        assert words in str(refused.value)
        assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ray
def test_a_script_searches_its_own_function(place: Workplace) -> None:
    trials, best = place.script(SCRIPT).split()[-2:]
    assert trials == "4"
    assert 1 / 3 <= float(best) < 0.6
    assert [trial.state for trial in place.record("by-script").started] == ["complete"] * 4


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({}, "space: a training function has no space of its own. Add a space"),
        ({"space": {"rate": 0.5}, "objective": []}, "objective: found the unknown key 'objective'"),
        ({"space": {"rate": 0.5}, "training": {"epochs": 0}}, "training.epochs: found 0"),
    ],
)
def test_wrong_sections_are_refused_before_the_function_is_saved(tmp_path, monkeypatch, sections, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=rf"^automl\.search: {words}"):
        automl.search(made_here(), budget=automl.Budget(trials=2), **sections)
    assert list(tmp_path.iterdir()) == []
