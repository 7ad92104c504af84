"""`automl launch train.py:train`: what is picked for code of one's own, refused, saved, and that it runs."""

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

import automl
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import load_spec
from tests.support.command_line import InProcess, Workplace
from tests.support.paths import EXAMPLES
from tests.support.ray_pool import LentPool

FUNCTION = """
    import automl

    space = {"learning_rate": automl.Float(0.01, 0.5, log=True), "width": {"type": "int", "low": 2, "high": 8}}

    def train(trial: automl.Trial, *, start: float = 1.0) -> None:
        weight = start
        for epoch in trial.epochs():
            weight -= trial.learning_rate * weight
            trial.report(train_loss=weight, val_accuracy=1 - weight)

    def bare(trial):
        for epoch in trial.epochs():
            trial.report(**{"anything": 1.0})
    bare.space = {"rate": {"type": "float", "low": 0.0, "high": 1.0}}

    def usual(trial):
        for epoch in trial.epochs():
            trial.report(train_loss=2.0, val_loss=1.0)
    usual.space = bare.space

    def many(trial):
        for epoch in trial.epochs():
            trial.report(train_loss=2.0, val_loss=1.0, latency_ms=3.0, dice=0.5)
    many.space = bare.space

    def wrong(trial):
        pass
    wrong.space = {"rate": {"type": "flaot"}}

    def helper(x):
        return x

    def objective(trial):
        return trial.suggest_float("x", 0.0, 1.0)

    def trainable(config):
        tune.report({"loss": config["x"]})
"""
WITHOUT_SPACE = """
    def train(trial):
        pass

    class Net:
        parameters = ("width",)
        metric_names = ("val_mse",)
"""


class Place(InProcess):
    """A folder with training functions, in which studies are launched."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, capsys, monkeypatch)
        for name, text in (("loops.py", FUNCTION), ("plain.py", WITHOUT_SPACE), ("two-words.py", FUNCTION)):
            (folder / name).write_text(textwrap.dedent(text))

    def run(self, *arguments: str) -> tuple[int, str, str]:
        return super().run("launch", *arguments)

    def spec(self, *arguments: str) -> dict[str, Any]:
        code, out, err = self.run(*arguments, "--dry-run", "--json")
        assert code == 0, err
        return dict(json.loads(out)["spec"])


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, capsys, monkeypatch)


@pytest.mark.large
def test_a_study_of_a_function_is_picked_and_said(place: Place) -> None:
    spec = place.spec("loops.py:train")
    assert (spec["study"], spec["task"]) == ("loops-train", "loops:train")
    assert set(spec["space"]) == {"learning_rate", "width"}
    assert spec["objectives"] == [
        {"metric": "val_accuracy", "direction": "maximize"},
        {"metric": "cost_usd", "direction": "minimize"},
    ]
    assert (spec["training"]["epochs"], spec["budget"]["hours"], spec["budget"]["trials"]) == (20, 0.25, None)
    _, _, said = place.run("loops.py:train", "--dry-run", "--json")
    for words in ("study loops-train", "training function", "val_accuracy (maximize)", "learning_rate, width, its own"):
        assert words in said, words
    assert "has to report it" not in said
    assert place.spec("loops:train") == spec, "a module of this folder is the same"


@pytest.mark.medium
def test_the_metric_of_a_function_is_a_loss_that_it_reports_or_unknown_and_its_space_an_attribute(place: Place) -> None:
    spec = place.spec("loops.py:bare")
    assert set(spec["space"]) == {"rate"}
    assert spec["objectives"][0]["metric"] == "val_error"
    _, _, said = place.run("loops.py:bare", "--dry-run", "--json")
    assert "val_error: bare has to report it; --set 'objectives=" in said
    # Tasks are always measured by it, but a function has only what it reports.
    spec = place.spec("loops.py:usual")
    assert [one["metric"] for one in spec["objectives"]] == ["val_loss", "cost_usd"]
    assert place.spec("loops.py:many")["objectives"][0]["metric"] == "dice", "its own metric comes before losses"
    _, _, said = place.run("loops.py:usual", "--dry-run", "--json", "--set", "study=mine")
    assert "has to report it" not in said
    assert "named after the code" not in said


@pytest.mark.medium
@pytest.mark.parametrize(
    ("function", "metric", "words"),
    [
        ("train", "latency_ms", ", whose source reports train_loss, val_accuracy; a trial without it fails"),
        ("train", "train_loss", None), ("train", "peak_memory_bytes", None), ("train", "wall_seconds", None),
        ("bare", "latency_ms", "; a trial without it fails"), ("bare", "val_loss", None), ("bare", "recall", None),
    ],
)  # fmt: skip
def test_a_bound_on_what_a_function_does_not_measure_is_warned_of(place, function, metric, words):
    bounds = f"constraints=[{{metric: {metric}, max: 5}}]"
    code, out, err = place.run(f"loops.py:{function}", "--dry-run", "--set", bounds)
    assert code == 0, err
    warned = f"constraints: {metric} is measured only if the training function reports it"
    said = " ".join((out + err).split())
    assert (warned in said) == (words is not None)
    assert words is None or warned + words in said


@pytest.mark.large
def test_set_works_on_top_of_what_was_picked(place: Place) -> None:
    spec = place.spec(
        "loops.py:train", "--set", "training.epochs=3", "--set", "budget.trials=2", "--set", "study=mine", "--set",
        "objectives=[{metric: loss, direction: minimize}]", "--set", "space.width.high=4", "--set",
        "task_options.start=2.0",
    )  # fmt: skip
    assert (spec["study"], spec["training"]["epochs"], spec["budget"]["trials"]) == ("mine", 3, 2)
    assert spec["objectives"] == [{"metric": "loss", "direction": "minimize"}]
    assert spec["space"]["width"]["high"] == 4
    assert "learning_rate" in spec["space"]
    assert spec["task_options"] == {"start": 2.0}
    whole = place.spec("plain.py:train", "--set", "space={rate: {type: float, low: 0, high: 1}}")
    assert set(whole["space"]) == {"rate"}


@pytest.mark.medium
def test_a_task_of_ones_own_brings_metrics_and_space(place: Place) -> None:
    (place.folder / "own_task.py").write_text((EXAMPLES / "own_task.py").read_text())
    spec = place.spec("own_task.py:Moons")
    assert (spec["study"], spec["objectives"][0]["metric"]) == ("own_task-Moons", "val_error")
    assert set(spec["space"]) == {"learning_rate", "width"}


@pytest.mark.medium
def test_a_file_of_a_package_is_imported_as_a_part_of_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    package = place.folder / "mine" / "inner"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "helper.py").write_text("from automl import Float\n")
    text = textwrap.dedent(FUNCTION).replace("import automl\n", "import automl\nfrom ..inner import helper\n", 1)
    (package / "loops.py").write_text(text)
    monkeypatch.chdir(package)
    assert place.spec("loops.py:train")["task"] == "mine.inner.loops:train"


@pytest.mark.large
def test_the_saved_spec_means_the_same(place: Place) -> None:
    code, _, err = place.run("loops.py:train", "--set", "training.epochs=7", "--save-spec", "saved.yaml", "--dry-run")
    assert code == 0, err
    saved = load_spec(place.folder / "saved.yaml")
    assert (saved.task, saved.training.epochs) == ("loops:train", 7)
    assert place.spec("saved.yaml") == place.spec("loops.py:train", "--set", "training.epochs=7")
    assert "exists" in place.refused("loops.py:train", "--save-spec", "saved.yaml", "--dry-run")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("loops.py",), ("'loops.py'", "loops.py:NAME")),
        (("loop.py:train",), ("'loop.py'", "Did you mean 'loops.py'")),
        (("loops.py:",), ("found ''", "the name of a training function")),
        (("loops.py:trian",), ("loops.py has no 'trian'",)),
        (("two-words.py:train",), ("'two-words.py'", "can be imported")),
        (("nowhere:train",), ("no module 'nowhere'",)),
        (
            ("plain.py:train",),
            ("this code has no search space. Add `space = {...}` in plain.py", "--set 'space={learning_rate"),
        ),
        (("loops.py:wrong",), ("space: rate.type: found 'flaot'", "Did you mean 'float'")),
        (("plain.py:Net",), ("lacks train_data",)),
        (("loops.py:helper",), ("'x'",)),
        (("loops.py:train", "--set", "task_options.strat=1"), ("'strat'", "start")),
        (("loops.py:train", "--set", "training.epoch=1"), ("training.epoch", "epochs")),
        (("loops.py:train", "--set", "space.width.high=none"), ("space.width.high",)),
        (("loops.py:train", "--data", "x.csv"), ("--data needs --task",)),
        (("loops.py:train", "--task", "digits"), ("SPEC loops.py:train and --task",)),
        (("loops.py:train", "--save-spec", "../spec.yaml"), ("--save-spec", "finds its code beside it")),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(place, arguments, words):
    said = place.refused(*arguments, "--dry-run")
    for word in words:
        assert word in said, said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("objective", "objective is an Optuna objective, which only Python code can search"),
        ("trainable", "trainable is a trainable of Ray Tune, which only Python code can search"),
    ],
)
def test_functions_for_other_libraries_are_refused_with_the_call_that_searches_them(place, name, words):
    code, _, err = place.run(f"loops.py:{name}", "--dry-run")
    assert (code, words in err, f"automl.search({name}, " in err) == (2, True, True)
    code, _, err = InProcess.run(place, "train", f"loops.py:{name}")
    assert (code, words in err) == (2, True)
    Path("study.yaml").write_text(f"task: loops:{name}\nobjectives: [loss]\nspace: {{rate: [0.1, 1.0]}}\n")
    code, _, err = InProcess.run(place, "launch", "study.yaml", "--dry-run")
    assert (code, words in err) == (2, True)


def test_a_training_function_with_a_search_of_its_own_is_none_of_another_library(place) -> None:
    Path("own.py").write_text(
        textwrap.dedent(
            """
            space = {"rate": [0.1, 1.0]}

            class train:
                report = print

            def run(trial):
                for epoch in trial.epochs():
                    tuned = lambda trial: trial.suggest_float("threshold", 0, 1)
                    train.report("done")
                    trial.report(val_error=trial.params["rate"])
            """
        )
    )
    code, _, err = place.run("own.py:run", "--dry-run")
    assert code == 0, err


def test_search_takes_the_space_that_a_function_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def train(trial: Any) -> None:
        """Never called."""

    train.space = {"rate": {"type": "float", "low": 0.0, "high": -1.0}}  # type: ignore[attr-defined]
    with pytest.raises(SpecError, match=r"^automl\.search: space: rate\.\w+: found "):
        automl.search(train, budget={"trials": 1})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.large
@pytest.mark.ray
def test_a_function_is_searched_to_the_end_without_a_spec(tmp_path: Path, warm_pool: LentPool) -> None:
    place = Workplace(tmp_path, warm_pool)
    (tmp_path / "loops.py").write_text(textwrap.dedent(FUNCTION))
    small = [
        f"--set={one}"
        for one in (
            "training.epochs=3", "budget.trials=3", "resources.slots=2", "mlflow=off",
            f"resources.ray_address={warm_pool.ray_address}",
        )
    ]  # fmt: skip
    summary = place.json("launch", "loops.py:train", *small)
    assert summary["trials"]["complete"] >= 1
    best = max(point["values"]["val_accuracy"] for point in summary["archive"])
    assert 0 < best < 1
    again = place.json("launch", "loops.py:train", *small)
    assert again["trials"] == summary["trials"], "an equal spec goes on with the study that is there"
