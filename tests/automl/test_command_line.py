"""What users type wrong: one line that names the place, the value and what is allowed; exit code 2; nothing written."""

import copy
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from automl import commands
from automl.cli import COMMANDS, MODULES, cli
from automl.launching import launch_or_resume
from automl.launching.launch_or_resume import find_or_create
from automl.launching.prepared_study import prepare
from automl.launching.spec_reading import read_spec
from automl.stored.open_store import stored_form
from reports import content
from studies.records.records import Forecast
from studies.storage.leases import lease as leases
from studies.storage.reading.reader import load_study
from studies.storage.schema.engine import StoreError
from studies.storage.study_store import Store
from studies.storage.views.cursors import set_cursor
from studies.storage.writing.changes import Decided
from tests.support.command_line import AUTOML, DIGITS, InProcess
from tests.support.paths import EXAMPLES
from tests.support.stored_study import NO_PROCESS, PARAMS, StoredStudy


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


ODD_SAMPLERS = """
import sys
from optuna.samplers import RandomSampler

class Unlicensed(RandomSampler):
    def __init__(self, seed):
        raise RuntimeError("no licence")

class Leaving(RandomSampler):
    def __init__(self, seed):
        sys.exit(0)

class OfOneSeed(RandomSampler):
    def __init__(self, seed):
        if seed != 0:
            raise ValueError("another seed")

class Silent(RandomSampler):
    def sample_independent(self, study, trial, name, distribution):
        raise RuntimeError("nothing to say")
"""

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

WRONG: list[tuple[str, Any, tuple[str, ...]]] = [
    ("trainning", {}, ("training",)),
    ("space.learningrate", {"type": "float", "low": 0.01, "high": 1.0}, ("learningrate", "learning_rate")),
    ("objectives", [{"metric": "val_eror", "direction": "minimize"}], ("val_eror", "val_error")),
    ("space.world_size", {"type": "categorical", "choices": [1, 64]}, ("64", "2")),
    ("task", "digit", ("digit", "digits")),
    ("task", "broken_task:Task", ("broken_task", "no_such_package")),
    ("task", "lonely_task:Task", ("lonely_task", "Task")),
    ("search.sampler", "nowhere:Sampler", ("nowhere",)),
    ("search.sampler", "odd_samplers:Unlicensed", ("odd_samplers:Unlicensed", "RuntimeError: no licence")),
    ("search.sampler", "odd_samplers:Leaving", ("odd_samplers:Leaving", "SystemExit: 0")),
    ("search.sampler", "odd_samplers:OfOneSeed", ("cannot suggest a trial (ValueError: another seed)",)),
    ("search.sampler", "odd_samplers:Silent", ("cannot suggest a trial (RuntimeError: nothing to say)",)),
    ("store", "sqlit:///x.db", ("sqlit",)),
    ("store", "sqlite:////no/such/folder/x.db", ("/no/such/folder",)),
    ("constraints", [{"metric": "latency", "max": 5}], ("constraints.0.metric", "latency", "latency_ms")),
    ("constraints", [{"metric": "model_parameters", "max": 0}],
     ("constraints.0.max: found 0.0, allowed: a number above 0",)),
    ("task", "odd_tasks:Leaving",
     ("odd_tasks:Leaving", "ended with exit status 3 while it was tried out: farewell")),
    ("task", "odd_tasks:Exiting", ("odd_tasks:Exiting", "ended with exit status 0 while it was tried out")),
    ("task", "odd_tasks:Text", ("Text.parameters: found 'width', allowed: a tuple of names, such as ('width',)",)),
    ("task", "odd_tasks:Dict",
     ("Dict.space(): found a dict, allowed: a Space of search_spaces.space, as Space.from_dict makes",)),
    ("task", "odd_tasks:NoModel", ("NoModel.model(params): found None, allowed: a torch.nn.Module",)),
    ("task", "odd_tasks:Reserved", ("Reserved.metrics: every trial has a metric 'cost_usd' already",)),
]  # fmt: skip
"""A key of the spec of digits, its value, and what the line must hold beside the key; tests/studies/spec has more."""


@pytest.mark.medium
@pytest.mark.parametrize(("key", "value", "says"), WRONG)
def test_a_wrong_spec_is_refused_in_one_line(mistyped: Mistyped, key: str, value: Any, says: tuple[str, ...]) -> None:
    (mistyped.folder / "broken_task.py").write_text("import no_such_package\n")
    (mistyped.folder / "odd_samplers.py").write_text(ODD_SAMPLERS)
    (mistyped.folder / "odd_tasks.py").write_text(ODD_TASKS)
    (mistyped.folder / "lonely_task.py").write_text("task = 1\n")
    mistyped.write(yaml.safe_dump(changed(key, value)))
    line = mistyped.refused("launch", "s.yaml")
    for part in ("s.yaml", key, *says):
        assert part in line


def test_a_spec_that_is_not_there_or_not_text(mistyped: Mistyped) -> None:
    assert "nowhere.yaml" in mistyped.refused("launch", "nowhere.yaml")
    (mistyped.folder / "s.yaml").write_bytes(b"\xff\xfe\x00study")
    assert "s.yaml" in mistyped.refused("launch", "s.yaml")
    (mistyped.folder / "folder").mkdir()
    assert "folder" in mistyped.refused("launch", "folder")


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
        ("mlflow", "sqlite:///folder", ("folder", "a file that cannot be written")),
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
        ("status", "none"), ("trials", "none"), ("resume", "none"), ("stop", "none"), ("explain", "none", "0"),
        ("export", "none", "0", "--out", "m.pt"), ("report", "none"), ("sync", "none"),
        ("enqueue", "none", "--param", "learning_rate=1"), ("list",),
    ],
)  # fmt: skip
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


@pytest.mark.medium
@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "digit"), ("train", "digits", "--param", "learningrate=1"),
        ("train", "digits", "--param", "learning_rate"), ("train", "digits", "--param", "learning_rate=fast"),
        ("train", "digits", "--param", "learning_rate=nan"), ("train", "nowhere:Task"), ("init", "digit"),
    ],
)  # fmt: skip
def test_wrong_arguments_without_a_study(mistyped: Mistyped, arguments: tuple[str, ...]) -> None:
    line = mistyped.refused(*arguments)
    assert arguments[-1].partition("=")[0] in line


def test_the_environment_beats_the_spec_and_the_command_line_beats_both(mistyped, monkeypatch):
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


def test_the_space_of_a_task_has_the_world_sizes_that_fit(mistyped: Mistyped) -> None:
    """Nobody wrote them, so nobody should have to mend them; what was written is refused as ever."""
    content = {"study": "one", "task": "digits", "resources": {"slots": 1}}
    mistyped.write(yaml.safe_dump(content))
    code, out, err = mistyped.run("launch", "s.yaml", "--dry-run", "--json")
    assert code == 0, err
    assert json.loads(out)["spec"]["space"]["world_size"]["choices"] == [1]
    space = {"world_size": {"type": "categorical", "choices": [1, 2]}}
    mistyped.write(yaml.safe_dump(content | {"space": space}))
    assert "space.world_size.choices: found 2, allowed: at most 1" in mistyped.refused("launch", "s.yaml", "--dry-run")


def test_dollars_are_no_limit_where_slots_are_free(mistyped: Mistyped) -> None:
    content = {"study": "one", "task": "digits", "resources": {"price_per_slot_hour": 0}}
    mistyped.write(yaml.safe_dump(content | {"budget": {"usd": 0.5, "hours": None, "trials": None}}))
    line = mistyped.refused("launch", "s.yaml")
    assert (
        "budget.usd: the price of a slot is 0, so a budget in dollars would never be used up. "
        "Add budget.hours or budget.trials" in line
    )
    mistyped.write(yaml.safe_dump(content | {"budget": {"usd": 0.5, "hours": None, "trials": 3}}))
    code, out, err = mistyped.run("launch", "s.yaml", "--dry-run", "--json")
    assert code == 0, err
    assert json.loads(out)["expected_cost"].endswith("; only the number of trials is limited")


@pytest.mark.parametrize("command", [("launch", "s.yaml"), ("resume", "small")])
def test_an_option_of_earlier_versions_is_refused_with_what_to_use_instead(mistyped, command):
    line = mistyped.refused(*command, "--share-on", "127.0.0.1")
    assert line.startswith("automl: --share-on does not exist any more: join the machines by `ray start`")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"space": {}}, "warning: space: it has no parameter"),
        (
            {"search": {"pruner": {"name": "mo_asha", "grace": 30}}},
            "warning: search.pruner: mo_asha has no rung before",
        ),
        ({}, ""),
    ],
)
def test_what_hardly_anybody_means_is_warned_of(mistyped: Mistyped, change: dict[str, Any], says: str) -> None:
    mistyped.write(yaml.safe_dump({"study": "one", "task": "digits", **change}))
    code, out, err = mistyped.run("launch", "s.yaml", "--dry-run")
    assert code == 0, err
    assert says in out
    assert ("warning: s" in out) is bool(says)


def test_init_writes_a_spec_that_a_dry_run_accepts(mistyped: Mistyped) -> None:
    assert mistyped.run("init")[0] == 0
    code, out, err = mistyped.run("launch", "digits.yaml", "--dry-run")
    assert code == 0, err
    assert "learning_rate" in out
    assert "exists" in mistyped.refused("init")


@pytest.mark.medium
def test_the_command_itself_ends_with_code_2(mistyped: Mistyped) -> None:
    done = subprocess.run([AUTOML, "launch"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    for arguments in (["lanch", "x"], ["launch", "x", "--sett"], ["trials", "x", "--format", "xml"]):
        code, _, err = mistyped.run(*arguments)
        assert code == 2
        assert "Traceback" not in err


DIGITS_OBJECTIVES = [{"metric": "val_error"}, {"metric": "cost_usd"}]
ABANDONED = "running, but its controller has died; `automl resume small` continues it"


def test_a_study_whose_controller_died_says_so_wherever_it_is_shown(mistyped: Mistyped) -> None:
    study = StoredStudy(mistyped.folder)
    study.taken_by(NO_PROCESS)
    study.trial(epochs=2)
    assert ABANDONED in mistyped.run("list")[1]
    assert f"small is {ABANDONED}" in mistyped.run("status")[1]
    assert mistyped.run("stop", "small") == (0, "small has no controller; `automl resume small` continues it\n", "")
    told = [json.loads(mistyped.run(*command, "--json")[1]) for command in (("status",), ("stop", "small"))]
    told += json.loads(mistyped.run("list", "--json")[1])
    assert [(one["state"], one["driven"]) for one in told] == [("running", False)] * 3


def test_a_budget_below_what_is_used_up_is_refused(mistyped: Mistyped) -> None:
    study = StoredStudy(mistyped.folder)
    leases.release(study.store, study.taken_by(os.getpid()))
    study.trial(epochs=2, cost_nano_usd=500_000_000, state="complete")
    study.trial(epochs=2, state="complete")
    study.change(state="drained", stop_reason="stopped")
    before = study.store.require("small")
    for override, words in (
        ("budget.usd=0.5", "budget.usd: found 0.5, allowed: more than the amount spent ($0.5)"),
        ("budget={usd: 0.25}", "budget.usd: found 0.25, allowed: more than the amount spent ($0.5)"),
        ("budget.trials=1", "budget.trials: found 1, allowed: at least the 2 trials that have started"),
        ("budget.hours=1.0e-9", "budget.hours: found 1e-09, allowed: more than the amount spent"),
    ):
        code, out, err = mistyped.run("resume", "small", "--set", override)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert words in err
    assert study.store.require("small") == before


def test_a_second_launch_says_which_of_its_changes_are_ignored(mistyped, monkeypatch):
    def drive(*_: object) -> None:
        raise StoreError("it would be driven now")

    monkeypatch.setattr(launch_or_resume, "drive", drive)
    mistyped.write(yaml.safe_dump(DIGITS))
    prepared = prepare(read_spec(Path("s.yaml"), ()), source="s.yaml", base_folder=mistyped.folder)
    store = Store(f"sqlite:///{mistyped.folder}/automl.db")
    row = find_or_create(store, prepared)

    def warnings(*overrides: str) -> list[str]:
        settings = [word for override in overrides for word in ("--set", override)]
        code, out, err = mistyped.run("launch", "s.yaml", *settings)
        assert (code, out) == (2, "")
        *lines, last = err.splitlines()
        assert last == "automl: it would be driven now"
        return lines

    assert warnings() == []
    (line,) = warnings("checkpoints.every_seconds=7", "mlflow=off")
    for part in (
        "small",
        "checkpoints.every_seconds, mlflow differ and are ignored",
        "automl resume small --set check",
    ):
        assert part in line
    (line,) = warnings("mlflow=off")
    assert "mlflow differs and is ignored" in line
    assert "resume" not in line, "that cannot change it"
    changed_spec = prepared.spec.model_copy(
        update={"checkpoints": prepared.spec.checkpoints.model_copy(update={"every_seconds": 7.0})}
    )
    store.change_spec(row.id, stored_form(changed_spec))
    assert warnings() == [], "`automl resume` changed it, this file did not"
    assert warnings("checkpoints.every_seconds=7") == [], "it holds already"
    assert len(warnings("checkpoints.every_seconds=8")) == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("learningrate=3",), "--param learningrate: found 'learningrate', allowed: the parameters learning_rate"),
        (("learning_rate=30",), "--param learning_rate: found 30, allowed: a number from 0.01 to 1"),
        (("width=32", "width=32"), "--param width: width is given twice, the second time as 'width=32'"),
        (("width",), "--param: found 'width', allowed: NAME=VALUE"),
    ],
)
def test_a_wrong_parameter_is_blamed_on_its_option(mistyped: Mistyped, given: tuple[str, ...], says: str) -> None:
    study = StoredStudy(mistyped.folder)
    code, out, err = mistyped.run("enqueue", "small", *(word for one in given for word in ("--param", one)))
    assert (code, out) == (2, "")
    assert err.startswith(f"automl: {says}")
    assert study.store.queued(study.id) == []


@pytest.mark.parametrize(
    ("command", "bounds"),
    [
        (("limit", "set", "user", "ann", "1e10"), "0<=x<=1000000000.0"),
        (("serve", "--price-per-slot-hour", "1e7"), "0<=x<=1000000.0"),
        (("mcp", "--price-per-slot-hour", "1e7"), "0<=x<=1000000.0"),
    ],
)
def test_dollars_that_no_ledger_holds_are_refused(mistyped: Mistyped, command: tuple[str, ...], bounds: str) -> None:
    StoredStudy(mistyped.folder)
    code, out, err = mistyped.run(*command)
    assert (code, out) == (2, "")
    assert f"is not in the range {bounds}" in err


def test_export_names_the_models_that_there_are(mistyped: Mistyped) -> None:
    study = StoredStudy(mistyped.folder)
    study.trial(epochs=4, checkpoints=(3,), state="pruned")
    study.trial(epochs=2, state="pruned")

    def refused(point: str) -> str:
        code, _, err = mistyped.run("export", "small", point, "--out", "model.pt")
        assert code == 2
        return err

    assert "0@4 has no saved model; name one of 0@3" in refused("0@4")
    assert "1 has no saved model; name one of 0@3" in refused("1")


@pytest.mark.medium
def test_init_writes_the_space_and_the_metrics_of_ones_own_task(mistyped: Mistyped) -> None:
    (mistyped.folder / "own_task.py").write_text((EXAMPLES / "own_task.py").read_text())
    assert mistyped.run("init", "own_task:Moons") == (
        0, "Wrote own_task.yaml. Next: automl launch own_task.yaml\n", "",
    )  # fmt: skip
    written = yaml.safe_load((mistyped.folder / "own_task.yaml").read_text())
    assert set(written["space"]) == {"learning_rate", "width", "world_size"}
    assert [one["metric"] for one in written["objectives"]] == ["val_error", "cost_usd"]
    code, out, err = mistyped.run("launch", "own_task.yaml", "--dry-run", "--json")
    assert code == 0, err
    assert all("width" in params for params in json.loads(out)["first_params"])


ACCURATE = """
from trainers.tasks.digits import Digits

class Accurate(Digits):
    metric_names = ("val_accuracy",)

    def metrics(self, outputs, targets):
        return {"val_accuracy": outputs.argmax(dim=-1) == targets}
"""


@pytest.mark.medium
def test_init_takes_the_metric_that_the_task_measures(mistyped: Mistyped) -> None:
    (mistyped.folder / "accurate.py").write_text(ACCURATE)
    assert mistyped.run("init", "accurate:Accurate")[0] == 0
    written = yaml.safe_load((mistyped.folder / "accurate.yaml").read_text())
    assert written["objectives"][0] == {"metric": "val_accuracy", "direction": "maximize"}
    assert mistyped.run("launch", "accurate.yaml", "--dry-run")[0] == 0


FUNCTION = """
space = {"rate": {"type": "float", "low": 0.1, "high": 1.0}}

def train(trial):
    for epoch in trial.epochs():
        trial.report(train_accuracy=0.5, val_accuracy=0.5, samples_per_second=3.0)
"""


@pytest.mark.medium
def test_init_takes_the_metric_that_a_function_reports(mistyped: Mistyped) -> None:
    (mistyped.folder / "mine.py").write_text(FUNCTION)
    assert mistyped.run("init", "mine:train")[0] == 0
    written = (mistyped.folder / "mine.yaml").read_text()
    assert yaml.safe_load(written)["objectives"][0] == {"metric": "val_accuracy", "direction": "maximize"}
    assert "the task also measures train_accuracy\n" in written
    assert "val_loss" not in written.partition("objectives:")[2].partition("\n")[0]
    assert "and metrics that the training function reports" in written
    assert "latency_ms" not in written


@pytest.mark.medium
def test_init_for_a_task_that_is_not_written_yet_or_raises_says_why_its_space_is_a_general_one(mistyped):
    assert mistyped.run("init", "my_task:MyTask") == (
        0,
        "Wrote my_task.yaml. Next: automl launch my_task.yaml\n",
        "my_task cannot be imported yet. Write it beside my_task.yaml\n",
    )
    (mistyped.folder / "my_other.py").write_text("raise RuntimeError('no data today')")
    code, out, err = mistyped.run("init", "my_other:Task")
    assert (code, out) == (0, "Wrote my_other.yaml. Next: automl launch my_other.yaml\n")
    assert "cannot import my_other: RuntimeError: no data today" in err
    assert "adapt `space` and `objectives`" in err
    assert err.count("\n") == 1


def test_every_command_has_a_file_and_its_line_in_the_help(mistyped: Mistyped) -> None:
    """`automl --help` loads no command, so that it has their first lines from a table."""
    files = {path.stem for path in (Path(commands.__file__).parent).glob("*.py")} - {"__init__"}
    assert files == {MODULES.get(name, name) for name in COMMANDS}
    for name, line in COMMANDS.items():
        command = cli.get_command(click.Context(cli), name)
        assert command.name == name
        assert command.get_short_help_str(limit=200) == line


def test_a_mistyped_command_is_answered_with_the_nearest_one(mistyped: Mistyped) -> None:
    assert mistyped.run("lauch") == (2, "", "automl: No such command 'lauch'\nDid you mean `automl launch`?\n")
    assert mistyped.run("xyz")[2].startswith("automl: No such command 'xyz'\nSee `")  # and how this was started


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (["launch", "spec.yaml", "--budjet", "1"], "Did you mean --set budget=...?"),
        (["launch", "spec.yaml", "--epochs", "1"], "Did you mean --set training.epochs=...?"),
        (["resume", "moons", "--max-trials", "1"], "Did you mean --set budget.trials=...?"),
        (["launch", "spec.yaml", "--zzzz", "1"], "See `"),
        (["trials", "moons", "--formt", "csv"], "Did you mean --format?"),
        (["trials", "moons", "--budget", "1"], "See `"),
    ],
)
def test_an_unknown_option_is_answered_with_the_nearest_option_or_key(mistyped, words, cure):
    code, out, err = mistyped.run(*words)
    assert (code, out) == (2, "")
    assert err.startswith(f"automl: No such option '{words[-2]}'\n{cure}")


def test_data_in_place_of_a_spec_is_answered_with_the_command_for_it(mistyped: Mistyped) -> None:
    for name, kind, task in (
        ("a.csv", "table", "tabular"),
        ("b.TSV.gz", "table", "tabular"),
        ("c", "folder", "vision"),
    ):
        path = mistyped.folder / name
        path.mkdir() if kind == "folder" else path.write_text("x,y\n1,2\n")
        code, out, err = mistyped.run("launch", name)
        assert (code, out, err.count("\n")) == (2, "", 2)
        assert f"{name} is a {kind}, not a spec" in err
        assert f"`automl launch --task {task} --data {name}" in err


def test_no_help_text_is_cut(mistyped: Mistyped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in ([], *([name] for name in COMMANDS)):
        text = mistyped.run(*command, "--help")[1].partition("\n\n")[
            2
        ]  # behind the usage, which names how the tests were started
        assert text
        assert "..." not in text
        assert max(map(len, text.splitlines())) <= 80


def test_a_study_that_is_driven_is_running_and_status_shows_what_runs(mistyped: Mistyped) -> None:
    study = StoredStudy(mistyped.folder)
    study.taken_by(os.getpid())
    for command in ("list", "status"):
        assert "running" in mistyped.run(command)[1]
    assert "()" not in mistyped.run("status")[1], "nothing was paid for yet"
    study.trial(epochs=6, state="complete")
    study.trial(epochs=2)
    out = mistyped.run("status")[1]
    (row,) = [line.split() for line in out.splitlines() if "learning_rate=0.125" in line]
    number, epochs, ranks, slots, seconds, unit, error, percent = row[:8]
    assert (number, epochs, ranks, slots) == ("1", "2/6", "2", "0,1")
    assert float(seconds) < {"s": 60.0, "ms": 1000.0}[unit]
    assert (error, percent) == ("33.33", "%")
    told = json.loads(mistyped.run("status", "--json")[1])
    assert told["driven"] is True
    (running,) = told["running"]
    assert running["trial"] == 1
    assert running["slots"] == [0, 1]
    assert running["params"] == PARAMS
    assert set(running) == {"trial", "params", "epochs", "world_size", "slots", "values", "started_at"}


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_tables_fit_the_terminal(mistyped: Mistyped, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    study = StoredStudy(mistyped.folder, objectives=DIGITS_OBJECTIVES)
    study.taken_by(os.getpid())
    for _ in range(12):
        study.trial(epochs=3, state="pruned", reason="place 3 of 12 at rung 3 is not among the best 4", cost_nano_usd=4)
    study.trial(epochs=2)
    monkeypatch.setenv("COLUMNS", str(columns))
    for command in ("trials", "status"):
        lines = mistyped.run(command, "small")[1].splitlines()
        if command == "trials":
            assert all(len(line) <= columns for line in lines)
            assert ("paid" in lines[1]) == (columns >= 120), "below, the objective cost_usd says nearly the same"
            assert sum("pruned" in line for line in lines) == 12, "one line for each trial"
        assert any("33.33 %" in line for line in lines)


def test_the_table_of_trials_says_what_each_paid(mistyped: Mistyped, monkeypatch: pytest.MonkeyPatch) -> None:
    study = StoredStudy(mistyped.folder)
    study.trial(epochs=1, cost_nano_usd=12_340_000, state="complete", reason="trained all 6 epochs")
    monkeypatch.setenv("COLUMNS", "80")
    out = mistyped.run("trials", "small")[1]
    assert "paid" in out
    assert "$0.0123" in out


def test_the_terminal_recommends_the_best_model_whatever_the_direction(mistyped: Mistyped) -> None:
    """The table shows one of a trial's fifteen models of the archive: the most accurate one is the dearest."""
    objectives = [{"metric": "val_accuracy", "direction": "maximize"}, {"metric": "cost_usd", "direction": "minimize"}]
    study = StoredStudy(mistyped.folder, objectives=objectives)
    study.trial(epochs=15, checkpoints=tuple(range(1, 16)), state="complete")
    out = mistyped.run("status")[1]
    table = out.partition("archive: models to take")[2]
    rows = [line.split()[0] for line in table.splitlines() if line.strip().startswith("0@")]
    assert rows == ["0@15"]
    assert (
        "14 more saved epochs in the report. To export the recommended model: automl export small 0@15 --out model\n"
        in out
    )


def test_explain_writes_no_percentage_that_means_nothing(mistyped: Mistyped) -> None:
    study = StoredStudy(mistyped.folder)
    study.trial(epochs=2, state="pruned")
    trial_id = load_study(study.store, "small").trials[0].id
    numbers = {"next_10_usd_percent": 16664053.05, "price": 0.123456789}
    forecasts = {"val_error": Forecast(epochs=(5, 9), mean=(0.3, 0.2), deviation=(0.1, 0.01))}
    decided = Decided(
        trial_id=trial_id, epoch=1, action="stop", reason="it is dear", numbers=numbers, forecasts=forecasts, at=0.0
    )
    study.store.commit(study.id, None, [decided])
    out = mistyped.run("explain", "small", "0")[1]
    assert "16664053" not in out
    assert "next_10_usd_percent = more than 100 %" in out
    assert "price = 0.12346" in out
    assert "val_error at epoch 9: 20 % expected, 80 % interval 18.72 % to 21.28 %" in out
    told = json.loads(mistyped.run("explain", "small", "0", "--json")[1])
    assert told["decisions"][0]["numbers"] == numbers
    expected = {"epochs": [5, 9], "mean": [0.3, 0.2], "deviation": [0.1, 0.01], "log": False}
    assert told["decisions"][0]["forecasts"] == {"val_error": expected}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("lr", "learning_rate"), ("bs", "batch_per_rank"), ("arch", "architecture"), ("batch_size", "batch_per_rank")],
)
def test_an_abbreviated_parameter_is_named_in_full(mistyped: Mistyped, typed: str, meant: str) -> None:
    StoredStudy(mistyped.folder)
    for command in (("enqueue", "small"), ("train", "digits")):
        code, _, err = mistyped.run(*command, "--param", f"{typed}=0.1")
        assert (code, err.count("\n")) == (2, 2)
        assert f"Did you mean '{meant}'?" in err


def test_a_study_in_which_everything_failed_says_why(mistyped: Mistyped) -> None:
    study = StoredStudy(mistyped.folder)
    study.trial(state="failed", failure="error", reason="ValueError: no such file: train.csv")
    assert "  0 epochs, $0 paid" in mistyped.run("explain", "small", "0")[1].splitlines(), "without empty parts"
    study.trial(state="failed", failure="error", reason="KeyError: 'label'")
    out = mistyped.run("status")[1]
    assert "trial 0: ValueError: no such file: train.csv; see automl explain small 0" in out
    assert "KeyError" not in out
    study.trial(epochs=1, state="complete")
    assert "ValueError" not in mistyped.run("status")[1], "then it is one failure among results"


def test_a_study_that_an_error_ended_says_which_wherever_it_is_shown(mistyped: Mistyped) -> None:
    study = StoredStudy(mistyped.folder)
    assert json.loads(mistyped.run("status", "--json")[1])["error"] is None
    error = "slots do not come up: the Ray cluster has 2 CPUs"
    study.change(state="failed", stop_reason="error", error=error)
    assert error in mistyped.run("status")[1]
    assert json.loads(mistyped.run("status", "--json")[1])["error"] == error
    lead = content.lead(load_study(study.store, "small"), ())
    assert lead.endswith(f"It has failed: an error ended it. The error: {error}.")


def test_closed_is_explained_in_words_and_stored_as_it_is(mistyped: Mistyped) -> None:
    study = StoredStudy(mistyped.folder)
    study.trial(epochs=3, state="pruned", reason="closed")
    words = "paused at epoch 3 when the study closed; more budget reopens it"
    assert f"trial 0 of small is pruned: {words}" in mistyped.run("explain", "small", "0")[1]
    assert words in mistyped.run("trials", "small")[1]
    assert json.loads(mistyped.run("explain", "small", "0", "--json")[1])["reason"] == "closed"
    assert json.loads(mistyped.run("trials", "small", "--json")[1])[0]["reason"] == "closed"


def test_status_says_why_a_view_is_late(mistyped: Mistyped) -> None:
    study = StoredStudy(mistyped.folder)
    study.taken_by(os.getpid())
    study.trial(epochs=1)
    assert "not up to date" not in mistyped.run("status")[1], "views rest some seconds while a study runs"
    set_cursor(study.store, study.id, "mlflow", error="OSError: connection refused")
    said = "the study's copy in MLflow (OSError: connection refused) is not up to date yet; see automl sync small"
    assert said in mistyped.run("status")[1]
    views = json.loads(mistyped.run("status", "--json")[1])["views"]
    assert views["mlflow"] == {"behind": 1, "error": "OSError: connection refused"}
    assert views["optuna"] == {"behind": 1, "error": None}
    set_cursor(study.store, study.id, "mlflow", error=f"MlflowException: {'x' * 400}: [Errno 111] refused")
    (line,) = [line for line in mistyped.run("status")[1].splitlines() if "MLflow" in line]
    assert len(line.strip()) < 260
    assert "MlflowException: xxx" in line
    assert "xxx: [Errno 111] refused) is not" in line
    set_cursor(study.store, study.id, "mlflow", error="OSError: connection refused")
    study.change(state="closed")
    assert "the study's copies in Optuna and MLflow (OSError" in mistyped.run("status")[1]
