"""`automl launch --task ... --data ...`: what is picked, kept, refused, and that it runs to a model."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from automl.launching.launch_or_resume import find_or_create
from automl.launching.prepared_study import prepare
from automl.launching.quickstart import quickstart, write_spec
from automl.launching.spec_reading import absolute_task_options
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import load_spec, parse_spec
from studies.storage.study_store import Store
from tests.support import optional
from tests.support.command_line import InProcess, Workplace
from tests.support.ray_pool import LentPool
from tests.support.task_files import HEADER, people, write


class Place(InProcess):
    """A folder with a table of people, in which studies are launched."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, capsys, monkeypatch)
        write(folder / "people.csv", [HEADER, *people(300)])

    def run(self, *arguments: str) -> tuple[int, str, str]:
        return super().run("launch", *arguments)

    def plan(self, *arguments: str) -> dict[str, Any]:
        code, out, err = self.run(*arguments, "--dry-run", "--json")
        assert code == 0, err
        return dict(json.loads(out))


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, capsys, monkeypatch)


@pytest.mark.parametrize(
    "name", ["Street\n(home)", "x\nmlflow: http://evil #", "next\x85line", "separator\u2028x", "bell\x07", "\ufeffmark"]
)
def test_the_name_of_a_column_writes_nothing_but_a_comment_of_a_saved_spec(place: Place, name: str) -> None:
    rows = [["age", name, "rich"], *([str(age * 7 % 50), "the same", "yes" if age % 2 else "no"] for age in range(200))]
    with (place.folder / "odd.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    picked = quickstart("tabular", {"data": str(place.folder / "odd.csv"), "target": "rich"})
    write_spec(place.folder / "saved.yaml", picked)
    assert load_spec(place.folder / "saved.yaml") == picked.spec
    assert f"left out: {name!r} (constant)" in " ".join(picked.notes)


TABULAR = ("--task", "tabular", "--data", "people.csv", "--target", "rich")


@pytest.mark.medium
def test_a_study_is_picked_from_the_data_and_said(place: Place) -> None:
    plan = place.plan(*TABULAR)
    spec = plan["spec"]
    assert spec["study"] == "people"
    assert spec["task_options"] == {
        "train": str(place.folder / "people.csv"),
        "target": "rich",
        "folds": "auto",
        "reading": 2,
        "test_share": "auto",
    }
    assert [one["metric"] for one in spec["objectives"]] == ["val_error", "cost_usd"]
    assert set(spec["space"]) > {"learning_rate", "width", "architecture"}
    assert spec["training"]["epochs"] == 60  # few rows are seen more often
    assert (spec["budget"]["hours"], spec["budget"]["usd"]) == (0.25, 2.0)
    assert spec["budget"]["trials"] is None, "a hundred short trials ended a search with a third of its time left"
    _, _, said = place.run(*TABULAR, "--dry-run", "--json")
    for words in ("study people", "column 'rich', 2 classes, 'no', 'yes'", "2 of numbers, 1 of categories",
                  "300 to train on and to validate, in folds", "trains 5 models",
                  "60 epochs, for 300 training samples", "$2.00 or 15 min"):  # fmt: skip
        assert words in said, words
    assert list(place.folder.iterdir()) == [place.folder / "people.csv"]


@pytest.mark.medium
def test_numbers_are_estimated_with_their_own_objective(place: Place) -> None:
    plan = place.plan("--task", "tabular", "--data", "people.csv", "--target", "0", "--set", "study=ages")
    assert plan["spec"]["task_options"]["target"] == 0
    assert plan["spec"]["study"] == "ages"
    assert plan["spec"]["objectives"][0]["metric"] == "val_rmse"
    forced = place.plan(*TABULAR[:-1], "age", "--set", "task_options.kind=regression")
    assert forced["spec"]["objectives"][0]["metric"] == "val_rmse"


def test_what_is_unusual_in_the_data_is_printed_first_and_a_study_from_before_goes_on(place: Place) -> None:
    rows = [[index * 37 % 300, *row[:2], f"{row[0]},5", row[3]] for index, row in enumerate(people(300))]
    write(place.folder / "odd.csv", [["", "age", "city", "weight", "rich"], *rows], ";")
    options = ("--task", "tabular", "--data", "odd.csv", "--target", "rich")
    code, out, err = place.run(*options, "--dry-run")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0] == "data: 'column_0' is left out (a row number): --set task_options.numeric=[column_0] keeps it"
    assert lines[1].startswith("data: numbers: 'weight' with a decimal comma: --set task_options.categorical=[weight]")
    assert lines[2].split() == ["column", "type", "example", "missing", "levels"]
    assert lines[3].split() == ["column_0", "left", "out", "0", "0", "300"]
    assert lines[8].startswith("study ")
    assert place.plan(*options)["data_check"]["findings"] == [line.removeprefix("data: ") for line in lines[:2]]
    code, out, err = place.run(*TABULAR, "--dry-run", "--set", "task_options.ignore=[age]")
    assert out.startswith("data: nothing unusual found\ncolumn")
    picked = quickstart("tabular", {"data": "people.csv", "target": "rich"})
    prepared = prepare(picked.spec, source="s", base_folder=place.folder)
    older = {name: one for name, one in prepared.spec.task_options.items() if name != "reading"}
    store = Store(prepared.spec.store)
    row = find_or_create(store, replace(prepared, spec=prepared.spec.model_copy(update={"task_options": older})))
    assert find_or_create(store, prepared).id == row.id
    with pytest.raises(SpecError, match="exists with another spec"):
        find_or_create(store, replace(prepared, spec=prepared.spec.model_copy(update={"task_options": {}})))


def test_set_works_on_top_of_what_was_picked(place: Place) -> None:
    spec = place.plan(
        *TABULAR, "--set", "training.epochs=3", "--set", "budget.trials=2", "--set", "task_options.ignore=[score]",
        "--set", "space.width={type: int, low: 8, high: 16}", "--store", "sqlite:///other.db",
    )["spec"]  # fmt: skip
    assert spec["training"]["epochs"] == 3
    assert (spec["budget"]["trials"], spec["budget"]["hours"]) == (2, 0.25)
    assert spec["task_options"]["ignore"] == ["score"]
    assert spec["space"]["width"]["high"] == 16
    assert spec["store"].endswith("other.db")


@pytest.mark.medium
def test_the_saved_spec_is_commented_and_means_the_same(place: Place) -> None:
    code, _, err = place.run(*TABULAR, "--set", "training.epochs=7", "--save-spec", "picked.yaml", "--dry-run")
    assert code == 0, err
    text = (place.folder / "picked.yaml").read_text()
    assert text.count("#") > 8
    saved = load_spec(place.folder / "picked.yaml")
    assert saved.training.epochs == 7
    picked = quickstart("tabular", {"data": "people.csv", "target": "rich"}, ["training.epochs=7"])
    assert saved == picked.spec
    code, out, _ = place.run("picked.yaml", "--dry-run", "--json")
    assert code == 0
    assert json.loads(out)["spec"]["training"]["epochs"] == 7
    assert "exists" in place.refused(*TABULAR, "--save-spec", "picked.yaml", "--dry-run")


def test_text_columns_are_found_or_named_and_digits_need_no_data(place: Place) -> None:
    optional.module("tokenizers")
    rows = [("id", "mood", "words"), *((n, "good" if n % 2 else "bad", f"some words {n % 7} here") for n in range(60))]
    write(place.folder / "train.csv", rows)
    spec = place.plan("--task", "text", "--data", "train.csv")["spec"]
    assert spec["study"] == f"{place.folder.name}-train"[:80]
    assert spec["objectives"][0]["metric"] == "val_error"
    options = place.plan("--task", "text", "--data", "train.csv", "--text", "words", "--label", "mood")["spec"]
    assert options["task_options"] == spec["task_options"] | {"text": "words", "label": "mood"}
    assert "'wrods'" in place.refused("--task", "text", "--data", "train.csv", "--text", "wrods")
    spec = place.plan("--task", "digits")["spec"]
    assert (spec["study"], spec["task_options"]) == ("digits", {})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ("Nothing to run. Name a spec, or --task and --data",)),
        (("spec.yaml", "--task", "digits"), ("SPEC spec.yaml and --task",)),
        (("spec.yaml", "--data", "people.csv"), ("--data needs --task",)),
        (
            ("--task", "tabluar"),
            ("--task", "'tabluar'", "digits, language_model, tabular, text, vision", "module:Class"),
        ),
        (("--task", "tabular"), ("--data is missing", "CSV")),
        (("--task", "vision"), ("--data is missing", "folder")),
        (("--task", "digits", "--data", "x"), ("--data", "digits", "none")),
        ((*TABULAR, "--text", "city"), ("--text", "--target")),
        (("--task", "tabular", "--data", "poeple.csv"), ("poeple.csv", "no such file", "Did you mean 'people.csv'")),
        ((*TABULAR[:-1], "rihc"), ("'rihc'", "Did you mean 'rich'")),
        ((*TABULAR, "--test-data", "nowhere.csv"), ("nowhere.csv", "no such file")),
        ((*TABULAR, "--set", "training.epoch=3"), ("training.epoch", "epochs")),
        ((*TABULAR, "--set", "task_options.kidn=auto"), ("'kidn'", "Did you mean 'kind'")),
        ((*TABULAR, "--set", "space.widht={type: int, low: 1, high: 2}"), ("space.widht", "width")),
        ((*TABULAR, "--save-spec", "no/such/folder.yaml"), ("--save-spec", "no such file or directory")),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(place, arguments, words):
    said = place.refused(*arguments)
    for word in words:
        assert word in said, said


def test_relative_paths_of_a_spec_start_at_the_spec(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.folder / "s.yaml").write_text(yaml.safe_dump({"task": "tabular", "task_options": {"train": "people.csv"}}))
    (place.folder / "elsewhere").mkdir()
    monkeypatch.chdir(place.folder / "elsewhere")
    code, out, err = place.run("../s.yaml", "--dry-run", "--json")
    assert code == 0, err
    assert json.loads(out)["spec"]["task_options"]["train"] == str(place.folder / "people.csv")


def test_a_spec_of_a_new_study_gets_folds_of_few_rows(place: Place) -> None:
    spec = {"study": "s", "task": "tabular", "task_options": {"train": "people.csv", "target": "rich"}}
    (place.folder / "s.yaml").write_text(yaml.safe_dump({**spec, "objectives": [{"metric": "val_error"}]}))
    assert place.plan("s.yaml")["spec"]["task_options"]["folds"] == "auto"
    assert place.plan("s.yaml", "--set", "task_options.folds=1")["spec"]["task_options"]["folds"] == 1


def test_only_paths_are_made_absolute(tmp_path: Path) -> None:
    (tmp_path / "bert").mkdir()
    given = {"train": "a.csv", "text": "a.csv", "checkpoint": "bert-base-uncased"}
    changed = absolute_task_options("text", given, tmp_path)
    assert changed == {**given, "train": str(tmp_path / "a.csv")}
    assert absolute_task_options("text", {"checkpoint": "bert"}, tmp_path) == {"checkpoint": str(tmp_path / "bert")}
    assert absolute_task_options("tabular", {"target": "~score"}, tmp_path) == {"target": "~score"}
    with pytest.raises(SpecError, match=r"spec: task_options\.train: found '~no-such-user/a\.csv', allowed: a path"):
        absolute_task_options("tabular", {"train": "~no-such-user/a.csv"}, tmp_path)
    assert absolute_task_options("my:Task", {"train": "a.csv"}, tmp_path) == {"train": "a.csv"}


@pytest.mark.medium
def test_a_rare_class_is_searched_by_auprc_and_the_launch_says_why(place: Place) -> None:
    rows = [[row * 7 % 50, "yes" if row % 40 == 0 else "no"] for row in range(400)]
    write(place.folder / "ill.csv", [["age", "ill"], *rows])
    options = ("--task", "tabular", "--data", "ill.csv", "--target", "ill", "--dry-run")
    code, _, err = place.run(*options)
    assert code == 0
    assert "rare class: 2.5 % of the training rows are 'yes'; always answering 'no' is wrong in 2.5 % of rows" in err
    cure = "objectives=[val_error, cost_usd]"
    assert f"--set '{cure}' takes the error" in err
    plan = place.plan(*options[:-1])
    assert plan["spec"]["objectives"][0] == {"metric": "val_auprc", "direction": "maximize"}
    changed = place.plan(*options[:-1], "--set", cure)
    assert changed["spec"]["objectives"][0] == {"metric": "val_error", "direction": "minimize"}


@pytest.mark.parametrize("task", ["tabular", "text", "vision", "language_model"])
def test_init_writes_a_spec_for_tasks_with_data(place: Place, task: str) -> None:
    code, out, _ = InProcess.run(place, "init", task)
    assert code == 0
    assert f"Next: automl launch {task}.yaml --set task_options.train=PATH" in out
    spec = parse_spec(yaml.safe_load((place.folder / f"{task}.yaml").read_text()))
    assert spec.task_options == {"train": "PATH"}
    assert spec.space is None, "the task takes one that suits the data"


def test_what_init_writes_for_a_task_with_data_launches_with_its_data(place: Place) -> None:
    InProcess.run(place, "init", "tabular")
    options = ("--set", "task_options.train=people.csv", "--set", "task_options.target=rich")
    plan = place.plan("tabular.yaml", *options)
    assert {"learning_rate", "width", "architecture"} <= set(plan["spec"]["space"])
    code, _, err = place.run("tabular.yaml", "--dry-run")
    assert code == 2
    assert "PATH" in err


@pytest.mark.large
@pytest.mark.ray
def test_launch_without_a_spec_ends_with_a_model_that_takes_new_rows(tmp_path: Path, warm_pool: LentPool) -> None:
    place = Workplace(tmp_path, warm_pool)
    write(tmp_path / "people.csv", [HEADER, *people(300)])
    address = f"resources.ray_address={warm_pool.ray_address}"
    small = [
        f"--set={one}" for one in ("training.epochs=3", "budget.trials=2", "resources.slots=2", "mlflow=off", address)
    ]
    summary = place.json("launch", *TABULAR, *small)
    assert summary["trials"]["complete"] >= 1
    point = min(summary["archive"], key=lambda one: one["values"]["val_error"])
    place.run("export", "people", f"{point['trial']}@{point['epoch']}", "--out", "model.pt")
    from trainers.checkpoints.model_export import load

    model, task, _ = load(tmp_path / "model.pt")
    rows = [{"age": 70, "city": "Rome", "score": None}, {"age": 20, "city": None, "score": None}]
    said = task.decode(model(task.encode(rows)))  # type: ignore[attr-defined]
    assert set(said) <= {"no", "yes"}
    assert len(said) == 2
    again = place.json("launch", *TABULAR, *small)  # an equal spec: the study that is there
    assert again["trials"] == summary["trials"]


def test_the_search_begins_with_what_suits_most_tables(place: Place) -> None:
    plan = place.plan(*TABULAR)
    assert [one["architecture"] for one in plan["spec"]["search"]["first_trials"]] == ["trees", "tabm"]
    assert [one["architecture"] for one in plan["first_params"][:2]] == ["trees", "tabm"]
    narrower = place.plan(*TABULAR, "--set", "space.width={type: int, low: 8, high: 16}")
    assert [one["architecture"] for one in narrower["spec"]["search"]["first_trials"]] == ["trees"]
