"""`automl import`: histories of other tools as closed studies, what is refused, and what a new study learns."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml

from automl.histories.importing import import_history
from studies.records.records import StudyRecord
from studies.storage.reading.reader import load_study
from studies.storage.study_store import Store
from tests.support import foreign_histories as foreign
from tests.support.command_line import InProcess
from tests.support.foreign_histories import ForeignRun, write_csv

EPOCHS = 4
SPEC: dict[str, Any] = {
    "study": "new",
    "task": {"command": ["python", "train.py", "{learning_rate}", "{width}", "{optimizer}"]},
    "objectives": {"val_error": "min", "cost_usd": "min"},
    "space": {"learning_rate": "1e-4..1 log", "width": "8..256", "optimizer": ["sgd", "adam"]},
    "training": {"epochs": EPOCHS},
    "budget": "5 trials",
    "resources": {"device": "cpu", "slots": 1, "price_per_slot_hour": 1.0},
    "mlflow": "off",
}


def accuracy(rate: float, epoch: int) -> float:
    return 0.8 - 0.1 * abs(math.log10(rate) + 1) - 0.2 / epoch


def run(k: int, epochs: int = EPOCHS) -> ForeignRun:
    rate = 10.0 ** -(k / 4)
    return ForeignRun(
        params={"lr": rate, "model.width": 8 + 16 * k, "optimizer": ("sgd", "adam")[k % 2]},
        curve=[accuracy(rate, epoch) for epoch in range(1, epochs + 1)],
        seconds=10.0 + k, is_pruned=epochs < EPOCHS,
    )  # fmt: skip


RUNS = [run(k, 2 if k == 5 else EPOCHS) for k in range(8)]
NAMES = ("--map", "lr=learning_rate", "--map", "model.width=width")
USUAL = (*NAMES, "--map", "val_acc=val_error:max", "--price", "3.6")  # a second costs 0.001 dollars


@pytest.fixture
def here(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> InProcess:
    monkeypatch.delenv("AUTOML_STORE", raising=False)
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    (tmp_path / "train.py").touch()
    return InProcess(tmp_path, capsys, monkeypatch)


def imported(here: InProcess, *arguments: str) -> tuple[StudyRecord, list[str]]:
    code, out, err = here.run("import", "old", "--for", "spec.yaml", *arguments)
    assert code == 0, err
    return load_study(Store("sqlite:///automl.db"), "old"), out.splitlines()


@pytest.mark.parametrize(
    "tool", [*sorted(foreign.WRITERS.keys() - {"mlflow"}), pytest.param("mlflow", marks=pytest.mark.large)]
)
def test_the_same_runs_are_the_same_trials_whichever_tool_recorded_them(here: InProcess, tool: str) -> None:
    record, said = imported(here, *foreign.WRITERS[tool](here.folder, RUNS, "val_acc", "maximize"), *USUAL)
    assert "8 trials of 8 runs taken, 7 complete" in said[0]
    assert "val_error is 1 - val_acc, since higher val_acc is better" in said
    for one, trial in zip(RUNS, record.started, strict=True):
        assert trial.params == {
            "learning_rate": pytest.approx(one.params["lr"]), "width": one.params["model.width"],
            "optimizer": one.params["optimizer"],
        }  # fmt: skip
        assert trial.state == ("pruned" if one.is_pruned else "complete")
        assert [e.metrics["val_error"] for e in trial.epochs] == pytest.approx([1 - value for value in one.curve])
        assert trial.epochs[-1].metrics["cost_usd"] == pytest.approx(0.001 * one.seconds, rel=1e-6)
        assert trial.epochs[-1].metrics["wall_seconds"] == pytest.approx(one.seconds)


@pytest.mark.medium
def test_an_imported_study_is_closed_costs_nothing_and_cannot_run(here: InProcess) -> None:
    record, _ = imported(here, *foreign.wandb(here.folder, RUNS, "val_acc"), *USUAL)
    assert (record.state, record.stop_reason, record.cost_nano_usd) == ("closed", "imported", 0)
    assert here.run("audit", "old")[1].strip() == "old is closed: 0 findings"
    assert "closed: imported" in here.run("list")[1]
    assert "another tool ran and paid its trials" in here.run("status", "old")[1]
    for command in (("resume", "old"), ("confirm", "old"), ("enqueue", "old", "--param", "width=9")):
        assert "'old' was imported, so it cannot run" in here.run(*command)[2]
    assert "'old' was imported" in here.run("launch", "spec.yaml", "--set", "study=old")[2]
    page = _report(here)
    assert "The study was imported, so there is no model to take" in page
    assert "curves.csv: another tool ran and paid its trials" in page
    assert "automl simulate" not in page
    view = optuna.load_study(study_name="old", storage="sqlite:///automl.db")
    assert [trial.state.name for trial in view.trials].count("COMPLETE") == 7
    assert "Take another name" in here.refused("import", "old", "--for", "spec.yaml", "--from", "runs.csv", *USUAL)
    assert here.run("delete", "old", "--yes")[0] == 0
    assert here.run("list", "--json")[1].strip() == "[]"


def _report(here: InProcess) -> str:
    code, _, err = here.run("report", "old", "--out", "old.html")
    assert code == 0, err
    return (here.folder / "old.html").read_text(encoding="utf-8")


def test_a_study_of_one_objective_helps_one_of_two_since_its_durations_are_its_cost(here: InProcess) -> None:
    source = foreign.optuna_study(here.folder, RUNS, "val_acc", "maximize")
    there = source[1].removeprefix("optuna:")
    said = here.refused("launch", "spec.yaml", "--dry-run", "--from-study", there)
    assert "objective cost_usd; this study has val_acc. `automl import` names its objectives" in said
    imported(here, *source, *USUAL)
    code, out, err = here.run("launch", "spec.yaml", "--dry-run", "--json", "--from-study", "old")
    assert code == 0, err
    plan = json.loads(out)
    assert plan["earlier_studies"][0].startswith("old: 8 trials taken, 0 left out")
    assert plan["first_params"][0]["learning_rate"] in [pytest.approx(one.params["lr"]) for one in RUNS]


def test_what_was_better_high_is_not_learnt_as_better_low(here: InProcess) -> None:
    same = here.folder / "same.yaml"
    same.write_text(yaml.safe_dump({**SPEC, "objectives": {"val_acc": "max"}}))
    source = foreign.wandb(here.folder, RUNS, "val_acc")
    assert here.run("import", "old", "--for", "same.yaml", *source, *NAMES, "--price", "1")[0] == 0
    same.write_text(yaml.safe_dump({**SPEC, "objectives": {"val_acc": "min"}}))
    code, _, said = here.run("launch", "same.yaml", "--dry-run", "--from-study", "old")
    assert code == 2
    assert "A study that has to minimize 'val_acc'; this study has to maximize it".lower() in said.lower()


WANDB = ("--from", "runs.csv", "--from", "curves.csv")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (WANDB, "has no learning_rate. It has Name, State, User, Created, Runtime, lr, model.width, optimizer"),
        (WANDB, "Add --map lr=learning_rate. If all runs had the same value, pass --param learning_rate=VALUE"),
        ((*WANDB, *NAMES[:2]), "has no width"),
        ((*WANDB, *NAMES[:2]), "Add --map model.width=width"),
        ((*WANDB, *NAMES), "has no val_error"),
        ((*WANDB, "--map", "val_ac=val_error"), "has no val_ac"),
        ((*WANDB, *NAMES, "--map", "val_acc=val_error"), "val_error: found no direction of val_acc. Add :min"),
        ((*WANDB, "--map", "val_acc=val_eror"), "--map val_acc=val_eror: found 'val_eror', allowed: THEIRS=OURS"),
        ((*WANDB, "--map", "lr"), "--map lr: found 'lr', allowed: THEIRS=OURS"),
        ((*WANDB, "--map", "lr=width", "--map", "b=width"), "--map b=width: is given twice"),
        ((*WANDB, "--map", "val_acc=val_error:up"), "found 'up', allowed: min, max, percent"),
        (("--from", "curves.csv", *USUAL), "found 0 tables of runs and 1 files of curves, allowed: one table"),
        (("--from", "run.csv", *USUAL), "run.csv"),
        (("--from", "optuna:sqlite:///no.db#mine", *USUAL), "found 'mine', allowed: an Optuna study (there is none)"),
        (("--from", "optuna:mine", *USUAL), "Pass --from optuna:URL#NAME"),
        (("--from", "mlflow:sqlite:///no.db#mine", *USUAL), "no MLflow database no.db. Pass --from mlflow:URI#"),
        (("--from", "ray:.", *USUAL), "found no folder with a result.json"),
        (("--from", "ray:.", "--from", "runs.csv"), "found 2 sources, allowed: one"),
    ],
)  # fmt: skip
def test_what_is_missing_is_one_line_with_what_to_type(here: InProcess, arguments: tuple[str, ...], says: str) -> None:
    foreign.wandb(here.folder, RUNS, "val_acc")
    price = () if "--price" in arguments else ("--price", "1")
    assert says in here.refused("import", "old", "--for", "spec.yaml", *arguments, *price)


def test_percent_is_refused_until_it_is_said_and_a_loss_cannot_be_turned(here: InProcess) -> None:
    percent = [replace(one, curve=[100 * value for value in one.curve]) for one in RUNS]
    source = foreign.wandb(here.folder, percent, "val_acc")
    said = here.refused("import", "old", "--for", "spec.yaml", *source, *USUAL)
    assert "a share from 0 to 1. If it is in percent: --map val_acc=val_error:max:percent" in said
    terms = (*NAMES, "--map", "val_acc=val_error:max:percent", "--price", "1")
    record, _ = imported(here, *source, *terms)
    assert record.started[0].epochs[-1].metrics["val_error"] == pytest.approx(1 - RUNS[0].curve[-1])
    (here.folder / "loss.yaml").write_text(yaml.safe_dump({**SPEC, "objectives": {"val_loss": "min"}}))
    said = here.refused(
        "import", "b", "--for", "loss.yaml", *source, *terms[:4], "--map", "val_acc=val_loss:max", "--price", "1"
    )
    assert "found maximize, but new has to minimize val_loss. Map a metric with the same direction" in said


def table(here: InProcess, *rows: str) -> tuple[str, str]:
    head = ["learning_rate", "width", "val_error", "minutes", "state"]
    write_csv(here.folder / "trials.csv", [head, *[row.split(",") for row in rows]])
    return ("--from", "trials.csv")


def test_runs_that_cannot_be_used_are_counted_with_their_reason(here: InProcess) -> None:
    source = table(
        here, "0.1,16,0.2,2,", "0.01,32,0.3,3,finished", "2.0,16,0.2,2,", "0.1,16,,2,", "0.1,16,0.2,,", "0.1,16,nan,2,",
        "0.1,16,0.2,2,failed", "0.1,16,0.2,2,running", "0.1,16,0.2,2,pruned",
    )  # fmt: skip
    fixed = ("--param", "optimizer=adam", "--map", "minutes=seconds:minutes", "--price", "60")
    record, said = imported(here, *source, *fixed)
    assert said[1:8] == [
        "left out: 1 run outside the space of new (learning_rate: found 2.0, allowed: a number from 0.0001 to 1.0)",
        "left out: 2 runs without val_error",
        "left out: 1 run without a duration (name the column with --map THEIRS=seconds)",
        "left out: 1 run failed",
        "left out: 1 run unfinished",
        "left out: 1 run without a curve",
        "cost: $5.00 at $60.00 per slot-hour, paid elsewhere, in no budget here",
    ]
    assert "too few to learn from: at least 4 trials are needed" in said
    assert [trial.params["optimizer"] for trial in record.started] == ["adam", "adam"]
    assert [trial.epochs[-1].metrics["cost_usd"] for trial in record.started] == pytest.approx([2.0, 3.0])
    said_none = here.refused(
        "import", "none", "--for", "spec.yaml", *source, "--param", "optimizer=adam", "--price", "1"
    )
    assert "trials.csv: no run can be imported: " in said_none
    assert "without a duration (name the column with --map THEIRS=seconds)" in said_none


def test_long_curves_are_thinned(here: InProcess) -> None:
    long = [replace(one, curve=[0.5 + k / 10_000 for k in range(1001)], is_pruned=False) for one in RUNS[:2]]
    record, said = imported(here, *foreign.ray(here.folder, long, "val_acc"), *USUAL)
    assert "of curves with up to 1001 points each 6th point is kept" in said
    assert [len(trial.epochs) for trial in record.started] == [167, 167]
    assert {trial.state for trial in record.started} == {"complete"}


def test_numbers_among_choices_and_empty_cells_are_read_as_meant(here: InProcess) -> None:
    (here.folder / "spec.yaml").write_text(yaml.safe_dump(SPEC | {"space": SPEC["space"] | {"width": [16.0, 32.0]}}))
    rows = [["learning_rate", "width", "optimizer", "val_error", "seconds", "acc - val"]]
    rows += [["1e-2", width, "", "0.5", "2.0", "1.0"] for width in ("16", "32.0", "1.6e1")]
    write_csv(here.folder / "trials.csv", rows)
    record, said = imported(here, "--from", "trials.csv", "--param", "optimizer=adam", "--price", "1")
    assert [trial.params["width"] for trial in record.started] == [16.0, 32.0, 16.0], said
    assert {trial.params["optimizer"] for trial in record.started} == {"adam"}


def test_an_interrupted_import_leaves_nothing(here: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    source = foreign.ray(here.folder, RUNS, "val_acc")[1:]
    names = [one for one in USUAL if "=" in one]
    monkeypatch.setattr(Store, "enqueue", stopped)
    with pytest.raises(KeyboardInterrupt):
        import_history("old", source, Path("spec.yaml"), price=3.6, names=names)
    assert Store("sqlite:///automl.db").study_names() == []


def test_a_damaged_folder_of_ray_is_left_out(here: InProcess) -> None:
    arguments = foreign.ray(here.folder, RUNS, "val_acc")
    folders = sorted(path.parent for path in here.folder.rglob("result.json"))
    (folders[0] / "params.json").unlink()
    (folders[1] / "params.json").write_text("[1, 2]")
    (folders[2] / "result.json").write_text('{"val_acc": 0.5}\n[1]\n')
    record, said = imported(here, *arguments, *USUAL)
    assert len(record.started) == len(RUNS) - 3
    assert any(line.startswith("left out: ") for line in said)


@pytest.mark.large
@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")  # of Ray Tune's own
@pytest.mark.usefixtures("ray_address")
def test_a_real_run_of_ray_tune_is_imported(here: InProcess) -> None:
    from ray import tune

    def train(config: dict[str, Any]) -> None:
        for epoch in range(1, EPOCHS + 1):
            tune.report({"val_acc": accuracy(config["optim"]["lr"], epoch)})

    rates = [0.1, 0.01]
    space = {"optim": {"lr": tune.grid_search(rates)}, "width": 8, "optimizer": "sgd"}
    tune.Tuner(
        train, param_space=space, run_config=tune.RunConfig(name="old", storage_path=str(here.folder), verbose=0)
    ).fit()
    names = ("--map", "optim/lr=learning_rate", "--map", "val_acc=val_error:max", "--price", "1")
    record, _ = imported(here, "--from", "ray:old", *names)
    ends = {trial.params["learning_rate"]: trial.epochs[-1].metrics["val_error"] for trial in record.started}
    assert ends == {rate: pytest.approx(1 - accuracy(rate, EPOCHS)) for rate in rates}
