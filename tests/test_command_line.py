"""What users type wrong: one line that names the place, the value and what is allowed; exit code 2; nothing written."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import AUTOML, DIGITS, InProcess

LEARNING_RATE = {"type": "float", "low": 0.01, "high": 1.0, "log": True}


class Mistyped(InProcess):
    """Where users mistype."""

    def write(self, text: str) -> None:
        (self.folder / "s.yaml").write_text(text)


@pytest.fixture
def mistyped(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Mistyped:
    return Mistyped(tmp_path, capsys, monkeypatch)


def changed(path: str, value: Any) -> dict[str, Any]:
    """The spec of digits with one key set; a path's parts are joined by dots."""
    spec: Any = copy.deepcopy(DIGITS)
    *parents, last = path.split(".")
    inner = spec
    for parent in parents:
        inner = inner.setdefault(parent, {})
    inner[last] = value
    return dict(spec)


def parameter(**fields: Any) -> dict[str, Any]:
    return changed("space.learning_rate", {"type": "float", **fields})


# spec, what the line must hold: the place in the file, what was found, what is allowed
ODD_TASKS = """
import os
import sys
from trainers.tasks.digits import Digits

class Leaving(Digits):
    def train_data(self, params):
        sys.stderr.write("hello\\nfarewell\\n")
        sys.stderr.flush()
        os._exit(3)

class Exiting(Digits):
    def train_data(self, params):
        raise SystemExit

class Text(Digits):
    parameters = "width"

class Dict(Digits):
    def space(self):
        return {"width": 3}

class NoModel(Digits):
    def model(self, params):
        pass

class Reserved(Digits):
    metric_names = ("val_error", "cost_usd")
"""

WRONG: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "unknown key": (changed("trainning", {}), ("trainning", "training")),
    "unknown key inside": (changed("training.epoch", 3), ("training.epoch", "epochs")),
    "wrong type": (changed("training.epochs", "many"), ("training.epochs", "many")),
    "a fraction of an epoch": (changed("training.epochs", 2.5), ("training.epochs", "2.5")),
    "no epochs": (changed("training.epochs", 0), ("training.epochs", "0")),
    "low above high": (parameter(low=1.0, high=0.1), ("space.learning_rate", "0.1")),
    "low equal to high": (parameter(low=1.0, high=1.0), ("space.learning_rate", "1.0")),
    "log from zero": (parameter(low=0.0, high=1.0, log=True), ("space.learning_rate", "log")),
    "log below zero": (parameter(low=-1.0, high=1.0, log=True), ("space.learning_rate", "log")),
    "NaN bound": (parameter(low=float("nan"), high=1.0), ("space.learning_rate", "nan")),
    "infinite bound": (parameter(low=0.1, high=float("inf")), ("space.learning_rate", "inf")),
    "no choices": (changed("space.optimizer", {"type": "categorical", "choices": []}), ("space.optimizer", "choices")),
    "doubled choices": (
        changed("space.optimizer", {"type": "categorical", "choices": ["sgd", "sgd"]}),
        ("space.optimizer", "sgd"),
    ),
    "unknown parameter type": (changed("space.optimizer", {"type": "flaot"}), ("space.optimizer", "flaot", "float")),
    "when on an unknown parameter": (
        changed("space.momentum", {"type": "float", "low": 0.0, "high": 0.9, "when": {"optimiser": "sgd"}}),
        ("space.momentum", "optimiser"),
    ),
    "when on a value that cannot be": (
        changed("space.width", {"type": "int", "low": 16, "high": 64, "when": {"architecture": "mpl"}}),
        ("space.width", "mpl"),
    ),
    "when on itself": (
        changed("space.momentum", {"type": "float", "low": 0.0, "high": 0.9, "when": {"momentum": 0.5}}),
        ("space.momentum", "momentum"),
    ),
    "a parameter that nobody declares": (
        changed("space.learningrate", LEARNING_RATE),
        ("learningrate", "learning_rate"),
    ),
    "unknown metric": (
        changed("objectives", [{"metric": "val_eror", "direction": "minimize"}]),
        ("objectives", "val_eror", "val_error"),
    ),
    "doubled objective": (
        changed("objectives", [{"metric": "val_error", "direction": "minimize"}] * 2),
        ("objectives", "val_error"),
    ),
    "no objective": (changed("objectives", []), ("objectives",)),
    "unknown direction": (
        changed("objectives", [{"metric": "val_error", "direction": "down"}]),
        ("objectives", "down", "minimize"),
    ),
    "no budget": (changed("budget.usd", 0), ("budget.usd", "0")),
    "negative budget": (changed("budget.hours", -1.5), ("budget.hours", "-1.5")),
    "negative trials": (changed("budget.trials", -3), ("budget.trials", "-3")),
    "NaN budget": (changed("budget.usd", float("nan")), ("budget.usd", "nan")),
    "a gang above the slots": (
        changed("space.world_size", {"type": "categorical", "choices": [1, 64]}),
        ("world_size", "64", "2"),
    ),
    "unknown task": (changed("task", "digit"), ("task", "digit", "digits")),
    "unknown sampler": (changed("search.sampler", "tpee"), ("search.sampler", "tpee", "tpe")),
    "unknown pruner": (changed("search.pruner", "asha"), ("search.pruner", "asha", "mo_asha")),
    "a sampler that does not import": (changed("search.sampler", "nowhere:Sampler"), ("search.sampler", "nowhere")),
    "a task that does not import": (changed("task", "broken_task:Task"), ("task", "broken_task", "no_such_package")),
    "a task without a class": (changed("task", "lonely_task:Task"), ("task", "lonely_task", "Task")),
    "a name with a path in it": (changed("study", "../digits"), ("study", "../digits")),
    "an empty name": (changed("study", ""), ("study",)),
    "a store that is no URL": (changed("store", "my database"), ("store", "my database")),
    "a store of an unknown kind": (changed("store", "sqlit:///x.db"), ("store", "sqlit")),
    "a store that cannot be opened": (changed("store", "sqlite:////no/such/folder/x.db"), ("store", "/no/such/folder")),
    "not built yet": (
        changed("search.pruner", "median"),
        ("search.pruner", "median", "not available yet"),
    ),
    "a task that leaves": (
        changed("task", "odd_tasks:Leaving"),
        ("task", "odd_tasks:Leaving", "ended with exit status 3 while it was tried out: farewell"),
    ),
    "a task that exits in order": (
        changed("task", "odd_tasks:Exiting"),
        ("task", "odd_tasks:Exiting", "ended with exit status 0 while it was tried out"),
    ),
    "a task whose parameters are a text": (
        changed("task", "odd_tasks:Text"),
        ("task", "Text.parameters: found 'width', allowed: a tuple of names, such as ('width',)"),
    ),
    "a task whose space is a dict": (
        changed("task", "odd_tasks:Dict"),
        ("task", "Dict.space(): found a dict, allowed: a Space of search_spaces.space, as Space.from_dict makes"),
    ),
    "a task whose model is none": (
        changed("task", "odd_tasks:NoModel"),
        ("task", "NoModel.model(params): found None, allowed: a torch.nn.Module"),
    ),
    "a task with a metric of ours": (
        changed("task", "odd_tasks:Reserved"),
        ("task", "Reserved.metrics: found 'cost_usd', allowed: any other name"),
    ),
    "a list": ([], ("s.yaml",)),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_spec_is_refused_in_one_line(mistyped: Mistyped, mistake: str) -> None:
    (mistyped.folder / "broken_task.py").write_text("import no_such_package\n")
    (mistyped.folder / "odd_tasks.py").write_text(ODD_TASKS)
    (mistyped.folder / "lonely_task.py").write_text("task = 1\n")
    spec, says = WRONG[mistake]
    mistyped.write(yaml.safe_dump(spec))
    line = mistyped.refused("launch", "s.yaml")
    for part in ("s.yaml", *says):
        assert part in line


UNREADABLE = {
    "study: digits\nstudy: other\n": ("study", "once"),
    "study: digits\nspace:\n  a: {type: int, low: 1, high: 2}\n  a: {type: int, low: 1, high: 3}\n": (
        "space.a",
        "once",
    ),
    "study: [digits\n": ("line",),
    "study: digits\ttab: {\n": ("line",),
    "": (),
    "study: !!python/object/apply:os.system ['true']\n": ("line",),
}


@pytest.mark.parametrize("text", UNREADABLE)
def test_unreadable_yaml_is_refused_in_one_line(mistyped: Mistyped, text: str) -> None:
    mistyped.write(text)
    line = mistyped.refused("launch", "s.yaml")
    for part in ("s.yaml", *UNREADABLE[text]):
        assert part in line


def test_a_spec_that_is_not_there_or_not_text(mistyped: Mistyped) -> None:
    assert "nowhere.yaml" in mistyped.refused("launch", "nowhere.yaml")
    (mistyped.folder / "s.yaml").write_bytes(b"\xff\xfe\x00study")
    assert "s.yaml" in mistyped.refused("launch", "s.yaml")
    (mistyped.folder / "folder").mkdir()
    assert "folder" in mistyped.refused("launch", "folder")


def test_a_circle_of_conditions(mistyped: Mistyped) -> None:
    spec = copy.deepcopy(DIGITS)
    spec["space"]["width"] = {"type": "categorical", "choices": [16], "when": {"channels": 4}}
    spec["space"]["channels"] = {"type": "categorical", "choices": [4], "when": {"width": 16}}
    mistyped.write(yaml.safe_dump(spec))
    line = mistyped.refused("launch", "s.yaml")
    assert "width" in line
    assert "channels" in line


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("budget.usd=-1", "budget.usd"),
        ("budget.usd", "budget.usd"),
        ("=1", "--set"),
        ("budget.dollars=1", "budget.dollars"),
        ("training.epochs=[", "training.epochs"),
        ("study.name=1", "study"),
    ],
)
def test_a_wrong_override_is_refused_in_one_line(mistyped: Mistyped, override: str, says: str) -> None:
    mistyped.write(yaml.safe_dump(DIGITS))
    assert says in mistyped.refused("launch", "s.yaml", "--set", override)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("checkpoints.folder", "a-file", ("a-file", "not a folder")),
        ("checkpoints.folder", "a-file/below", ("a-file/below", "not a folder")),
        ("checkpoints.folder", "/proc/nowhere", ("/proc/nowhere", "/proc")),
        ("mlflow", "sqlite:///automl.db", ("automl.db", "own database")),
        ("mlflow", "not a URI", ("not a URI", "sqlite:///FILE")),
        ("mlflow", "ftp://somebody:secret@host", ("ftp://", "sqlite:///FILE")),
        ("mlflow", "sqlite://", ("sqlite://", "sqlite:///FILE")),
        ("mlflow", "sqlite:///folder", ("folder", "no file")),
        ("mlflow", "sqlite:///a-file/mlflow.db", ("a-file", "not a folder")),
        ("resources.ray_temp_folder", "/proc/nowhere", ("/proc/nowhere",)),
        ("resources.ray_temp_folder", f"/tmp/{'x' * 60}", ("xxx", "40 characters")),
    ],
)
def test_a_place_that_cannot_be_written_to(mistyped: Mistyped, key: str, value: str, says: tuple[str, ...]) -> None:
    (mistyped.folder / "a-file").write_text("")
    (mistyped.folder / "folder").mkdir()
    mistyped.write(yaml.safe_dump(changed(key, value)))
    line = mistyped.refused("launch", "s.yaml")
    assert "secret" not in line
    for part in (key, *says):
        assert part in line


@pytest.mark.parametrize(
    "command",
    [
        ("status", "none"),
        ("trials", "none"),
        ("resume", "none"),
        ("stop", "none"),
        ("explain", "none", "0"),
        ("export", "none", "0", "--out", "m.pt"),
        ("report", "none"),
        ("sync", "none"),
        ("enqueue", "none", "--param", "learning_rate=1"),
        ("list",),
    ],
)
def test_a_store_that_does_not_exist(mistyped: Mistyped, command: tuple[str, ...]) -> None:
    assert "automl.db" in mistyped.refused(*command)
    assert "nowhere.db" in mistyped.refused(*command, "--store", "sqlite:///nowhere.db")


@pytest.mark.parametrize("url", ["nonsense", "sqlit:///x", "postgresql://somebody:secret@127.0.0.1:9/x"])
def test_a_store_that_cannot_be_opened_never_shows_its_password(mistyped: Mistyped, url: str) -> None:
    line = mistyped.refused("status", "--store", url)
    assert "secret" not in line
    mistyped.write(yaml.safe_dump(changed("store", url)))
    line = mistyped.refused("launch", "s.yaml")
    assert "secret" not in line


def test_a_file_that_is_no_database(mistyped: Mistyped) -> None:
    (mistyped.folder / "notes.txt").write_text("not a database at all\n" * 100)
    assert "notes.txt" in mistyped.refused("status", "--store", "sqlite:///notes.txt")
    mistyped.write(yaml.safe_dump(changed("store", "sqlite:///notes.txt")))
    assert "notes.txt" in mistyped.refused("launch", "s.yaml")


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "digit"),
        ("train", "digits", "--param", "learningrate=1"),
        ("train", "digits", "--param", "learning_rate"),
        ("train", "digits", "--param", "learning_rate=fast"),
        ("train", "digits", "--param", "learning_rate=nan"),
        ("train", "nowhere:Task"),
        ("init", "digit"),
    ],
)
def test_wrong_arguments_without_a_study(mistyped: Mistyped, arguments: tuple[str, ...]) -> None:
    line = mistyped.refused(*arguments)
    assert arguments[-1].partition("=")[0] in line


def test_the_environment_beats_the_spec_and_the_command_line_beats_both(
    mistyped: Mistyped, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistyped.write(yaml.safe_dump(changed("store", "sqlite:///spec.db")))

    def store_of(*arguments: str) -> str:
        code, out, err = mistyped.run("launch", "s.yaml", "--dry-run", "--json", *arguments)
        assert code == 0, err
        return Path(json.loads(out)["spec"]["store"].removeprefix("sqlite:///")).name

    assert store_of() == "spec.db"
    monkeypatch.setenv("AUTOML_STORE", "sqlite:///environment.db")
    assert store_of() == "environment.db"
    assert store_of("--set", "store=sqlite:///set.db") == "set.db"
    assert store_of("--store", "sqlite:///option.db") == "option.db"
    assert {path.name for path in mistyped.folder.iterdir()} == {"s.yaml"}, "a dry run writes nothing"


def test_init_writes_a_spec_that_a_dry_run_accepts(mistyped: Mistyped) -> None:
    assert mistyped.run("init")[0] == 0
    code, out, err = mistyped.run("launch", "digits.yaml", "--dry-run")
    assert code == 0, err
    assert "learning_rate" in out
    assert "exists" in mistyped.refused("init")


def test_the_command_itself_ends_with_code_2() -> None:
    for arguments in (["launch"], ["lanch", "x"], ["launch", "x", "--sett"], ["trials", "x", "--format", "xml"]):
        done = subprocess.run([AUTOML, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_help_needs_no_heavy_library() -> None:
    heavy = ["torch", "ray", "optuna", "sqlalchemy", "mlflow", "plotly", "numpy", "pydantic", "rich"]
    code = (
        "import sys\nsys.argv = ['automl', '--help']\nfrom automl import cli\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\n"
        f"print('LOADED', [name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "LOADED []" in done.stdout
