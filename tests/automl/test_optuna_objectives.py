"""Objectives that were written for Optuna, as trials of ours."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import automl
from automl.adapters.optuna_objective import as_training_function
from automl.launching.foreign_objectives import is_optuna_objective, with_space_of
from automl.launching.functions import name_of
from search_spaces.space import Space
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import StudySpec, parse_spec
from tests.automl.test_api import DrivenError, driven
from tests.support import optuna_objectives as objectives
from tests.support import training_functions
from tests.support.command_line import Workplace
from tests.support.function_trials import Granted
from trainers.contract.task_loading import load_trainable
from trainers.contract.training_function import TrainingFunction
from trainers.functions.function_trainer import FunctionTrainer
from trainers.protocol import Measurement, TaskError, TrialSpec
from trainers.ranks.process_group import Group

__all__ = ["driven"]

PARAMS = {"layers": 1, "units_0": 8, "rate": 0.1, "kind": "adam", "beta": 0.3}
RATE = {"rate": 0.5}


def trained(
    objective: Callable[..., Any],
    params: dict[str, Any] = PARAMS,
    *,
    metrics: tuple[str, ...] = ("error",),
    epochs: int = 4,
    until: int = 1000,
) -> list[Measurement]:
    """What a trial of one rank measures."""
    spec = TrialSpec(study="s", trial=0, task="x:y", params=params, training={"epochs": epochs})
    function = TrainingFunction(function=as_training_function(objective, metrics, epochs))
    course = Granted(until)
    FunctionTrainer(spec, function, group=Group()).run(course)
    return course.measurements


def test_reports_are_epochs_which_wait_for_a_decision_or_are_measured_where_nobody_asks() -> None:
    expected = [0.003 + 1 / (step + 8) for step in range(4)]
    done = trained(objectives.objective)
    assert [one.epoch for one in done] == [1, 2, 3, 4]
    assert [one.metrics["error"] for one in done] == pytest.approx([*expected[:3], expected[3] / 2])
    longer = trained(objectives.objective, epochs=9)
    assert [one.metrics["error"] for one in longer] == pytest.approx([*expected, expected[3] / 2])
    assert longer[-1].complete, "it was planned for more epochs than it reports"
    assert trained(objectives.objective, PARAMS | {"epochs": 4}, epochs=9)[-1].epoch == 4, "the search chooses"
    assert [one.epoch for one in trained(objectives.objective, until=2)] == [1, 2]
    (only,) = trained(objectives.without_reports, metrics=("a", "b"), params=RATE)
    assert (only.metrics["a"], only.metrics["b"], only.complete) == (0.5, 3.0, True)
    done = trained(objectives.reports_without_asking, RATE)
    assert [one.metrics["error"] for one in done] == [0.5, 1.5, 0.25]


@pytest.mark.parametrize(
    ("objective", "settings", "words"),
    [
        (objectives.silent, {}, "the objective's result is None. Return a number for each objective: error"),
        (objectives.without_reports, {}, "result has 2 values, but the study has 1 objectives: error"),
        (objectives.asks_for_more, {}, "trial.suggest_float: found 'rates', allowed: .* rate; did you mean 'rate'"),
        (
            objectives.asks_for_less,
            {},
            "the space sets rate to 0.5, but this call allows only a number from 0.0 to 0.1",
        ),
        (objectives.asks_for_data, {}, "trial.storage does not exist for an objective in automl.search"),
        (objectives.prunes_at_once, {}, "raised TrialPruned before its first report"),
        (
            objectives.reports_without_asking,
            {"epochs": 2},
            "called more than 2 times. Set training.epochs to the number of calls",
        ),
    ],
)
def test_what_does_not_fit_fails_the_trial_with_one_line(objective: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(TaskError, match=words):
        trained(objective, RATE, **settings)


def test_a_trial_that_prunes_itself_ends_with_its_last_values() -> None:
    first, last = trained(objectives.prunes_itself, RATE)
    assert (first.metrics["error"], last.metrics["error"], last.complete) == (0.5, 0.5, True)
    (only,) = trained(objectives.prunes_without_asking, RATE)
    assert (only.metrics["error"], only.complete) == (0.5, True)
    assert only.metrics["peak_memory_bytes"] >= 0, "measured values stay"


def test_numbers_of_a_trial_are_metrics_and_texts_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    first, last = trained(objectives.keeps_notes, RATE)
    assert first.metrics["half"] == last.metrics["half"] == 0.25
    assert "size" not in first.metrics
    assert (last.metrics["size"], last.metrics["error"]) == (3.0, 0.5)
    assert capsys.readouterr().out == "note: small\nis_wide: True\n"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("beta", 0.35, r"beta to 0.35, but this call allows only a number from 0.0 to 0.9 in steps of 0.1"),
        ("layers", 4, "layers to 4, but this call allows only a whole number from 1 to 3"),
        ("kind", "adamw", "kind to 'adamw', but this call allows only one of 'sgd', 'adam'"),
        ("rate", "0.1", r"rate to '0.1', but this call allows only a number from 0.0001 to 1.0 \(log\)"),
    ],
)
def test_values_are_checked_against_the_range_of_the_objective(name: str, value: object, words: str) -> None:
    with pytest.raises(TaskError, match=words):
        trained(objectives.objective, PARAMS | {name: value})


def test_objectives_are_told_from_training_functions() -> None:
    def in_a_helper(trial: Any) -> Any:
        return objectives.network(trial)

    assert is_optuna_objective(objectives.objective)
    assert is_optuna_objective(in_a_helper), "functions of the user's other modules are looked into"
    assert not is_optuna_objective(training_functions.train)
    assert not is_optuna_objective(torch.optim.AdamW.__init__)
    assert not is_optuna_objective(len)


def spec_of(**sections: Any) -> StudySpec:
    return parse_spec({"task": "x:y", **sections})


def test_the_space_of_literal_calls_is_read_from_the_source() -> None:
    space = with_space_of(objectives.branches, spec_of(), "automl.search").space
    assert space == Space(
        {
            "layers": automl.Int(1, 8, log=True), "drop": automl.Float(0, 0.5, step=0.25),
            "kind": automl.Categorical(["sgd", "adam"]), "beta": automl.Float(0.5, 0.9),
        }
    )  # fmt: skip
    given = spec_of(space={"rate": automl.Float(0.1, 0.2)})
    assert with_space_of(objectives.branches, given, "automl.search") is given, "what people say holds"


@pytest.mark.parametrize(
    ("objective", "known"),
    [
        (objectives.objective, ("rate", "kind", "beta", "layers")), (objectives.differs_by_branch, ("kind",)),
        (objectives.with_options, ()), (objectives.single_and_odd_names, ()),
    ],
)  # fmt: skip
def test_what_the_source_does_not_tell_of_a_space_is_learnt(objective: Any, known: tuple[str, ...]) -> None:
    spec = with_space_of(objective, spec_of(), "automl.search")
    assert spec.space.names() == known
    assert spec.search.learn_space
    chosen = spec.search.chosen
    assert (chosen.sampler, chosen.pruner.name) == ("tpe", "mo_asha"), "a model needs a whole space"


def test_a_space_is_whole_unless_it_is_to_be_learnt() -> None:
    whole = spec_of(space={"layers": 2, "units_0": 8, "units_1": 4, "rate": 0.1, "kind": "adam", "beta": 0.3})
    assert with_space_of(objectives.objective, whole, "automl.search") is whole
    assert not with_space_of(objectives.branches, spec_of(), "automl.search").search.learn_space
    part = spec_of(space={"layers": 2}, search={"learn_space": True})
    assert with_space_of(objectives.objective, part, "automl.search") is part


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        (
            objectives.of_old_optuna,
            (
                "automl.search: space: trial.suggest_loguniform('rate', 0.001, 1.0): found suggest_loguniform, "
                "allowed: suggest_float, suggest_int, suggest_categorical, in the Optuna objective of_old_optuna"
            ),
        ),
        (objectives.wrong_way_round, "trial.suggest_int('width', 9, 1): low: found 9, allowed: a number below high"),
        (
            objectives.without_choices,
            "choices: found [], allowed: at least one value, in the Optuna objective without_choices",
        ),
    ],
)
def test_calls_that_no_trial_can_answer_are_refused(driven, tmp_path, objective, words):
    with pytest.raises(SpecError) as refused:
        automl.search(objective, budget=automl.Budget(trials=3))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("search", "words"),
    [
        ({"sampler": "cokriging"}, r"search.sampler: found 'cokriging', allowed while the space is learnt .* gp"),
        ({"pruner": "break_even"}, r"search.pruner: found 'break_even', allowed while the space is learnt"),
        ({"from_studies": ["a"]}, r"search.from_studies: found 'a', allowed while .*: no studies, or space=\{\.\.\.\}"),
    ],
)
def test_what_needs_a_whole_space_is_refused_where_it_is_learnt(search: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        with_space_of(objectives.objective, spec_of(search=search), "automl.search")
    with pytest.raises(SpecError, match=words.partition(", or space")[0]):
        spec_of(search=search | {"learn_space": True})


def test_an_objective_without_a_source_has_its_space_learnt() -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec("def typed_in(trial):\n    return trial.suggest_float('rate', 0.0, 1.0)", scope)
    spec = with_space_of(scope["typed_in"], spec_of(), "automl.search")
    assert (spec.space, spec.search.learn_space) == (Space({}), True)


def test_what_an_objective_cannot_do_is_refused(driven: list[StudySpec], tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"^automl.search: space.world_size: the Optuna objective objective does"):
        automl.search(objectives.objective, space={"world_size": 2}, budget=automl.Budget(trials=3))
    ranks = spec_of(space={"world_size": 2})
    assert with_space_of(objectives.on_several_ranks, ranks, "automl.search") is ranks, "it prepares a model"
    with pytest.raises(SpecError, match=r"search.learn_space: only objectives .* this is a task. Set it to false"):
        automl.launch({"task": "digits", "search": {"learn_space": True}})
    with pytest.raises(SpecError, match=r"^automl.search: budget.trials: found 0"):
        automl.search(objectives.objective, space={"rate": 0.1}, budget={"trials": 0})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.medium
def test_an_objective_is_saved_under_its_own_source_with_its_helpers(driven: list[StudySpec], tmp_path: Path) -> None:
    with pytest.raises(DrivenError):
        automl.search(
            objectives.objective,
            space={name: value for name, value in PARAMS.items() if name != "rate"} | {"rate": automl.Float(0.01, 0.1)},
            objectives=[automl.Objective("error"), automl.Objective("cost_usd")],
            budget=automl.Budget(trials=3),
        )
    (spec,) = driven
    (path,) = (tmp_path / "automl_functions").glob("*.py")
    assert "def objective(trial):" in path.read_text()
    # Another process knows nothing of the module that it was written in.
    code = (
        f"import sys; sys.path.insert(0, {str(Path(automl.__file__).parents[1])!r})\n"
        "sys.modules['tests'] = None\n"
        "from trainers.contract.task_loading import load_trainable\n"
        f"print(load_trainable({spec.task!r}, {{}}, ({str(tmp_path)!r},)).function.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout.strip() == "objective", done.stderr[-2000:]
    found = load_trainable(spec.task, {}, (str(tmp_path),))
    assert isinstance(found, TrainingFunction)
    other = as_training_function(objectives.asks_for_less, ["error"], 20)
    assert name_of(other, tmp_path, "objective")[0] != spec.task


SCRIPT = """
import automl


def objective(trial):
    rate = trial.suggest_float("rate", 0.0, 1.0)
    for step in range(3):
        trial.report(abs(rate - 0.25) + 1 / (step + 1), step)
        if trial.should_prune():
            raise RuntimeError
    return abs(rate - 0.25) + 1 / 3


def layered(trial):
    return sum(trial.suggest_int(f"units_{i}", 1, 9) for i in range(trial.suggest_int("layers", 1, 2)))


if __name__ == "__main__":
    study = automl.search(
        objective,
        objectives=[automl.Objective("error")],
        training=automl.Training(epochs=3),
        budget=automl.Budget(trials=7, usd=0.1),
        resources=automl.Resources(slots=1),
        search=automl.Search(sampler="tpe", pruner=automl.Pruner("mo_asha", grace=1, eta=2)),
        mlflow="off",
    )
    learnt = automl.search(
        layered,
        objectives=[automl.Objective("error")],
        training=automl.Training(epochs=1),
        budget=automl.Budget(trials=4, usd=0.1),
        resources=automl.Resources(slots=1),
        search=automl.Search(sampler="gp"),
        mlflow="off",
    )
    print(sorted(learnt.dataframe().filter(like="params.").columns))
    print(len(study.trials), study.best("error").values["error"])
"""


@pytest.mark.ray
def test_a_script_searches_an_objective_on_our_slots(place: Workplace, caplog: pytest.LogCaptureFixture) -> None:
    out = place.script(SCRIPT)
    assert "learn_space: parameters that trials request beyond the space (layers) are learned as trials" in caplog.text
    assert "['params.layers', 'params.units_0', 'params.units_1']" in out
    trials, best = out.split()[-2:]
    assert trials == "7"
    assert 1 / 3 <= float(best) < 0.6
    record = place.record("objective")
    assert {trial.state for trial in record.started} == {"complete", "pruned"}
    assert {len(trial.epochs) for trial in record.started if trial.state == "complete"} == {3}
