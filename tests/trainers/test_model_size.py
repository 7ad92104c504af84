"""Models that are counted before they are trained: the numbers, what is learned from them, and where they stay."""

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from automl.launching import model_counting, prepared_study, study_run
from automl.launching.launch_or_resume import find_or_create, resume
from automl.launching.model_counting import Counting
from automl.launching.prepared_study import Prepared, prepare
from automl.launching.study_run import Watcher, drive
from search_spaces.space import Space
from studies.control.assembly import problem_of
from studies.control.machine.state import StudyMachine
from studies.gangs.simulated import SimulatedPool
from studies.records.records import Constraint, Objective
from studies.search.acquisition.acquisition import probability_of_a_feasible_model
from studies.search.model.batch_forecast import NO_NODES
from studies.search.model.curve_model import CurveModel
from studies.search.model.encoding import Encoder, identity
from studies.search.model.problem import Problem
from studies.search.model.size_model import Counted, SizeModel, examples_of
from studies.search.observations import Snapshot
from studies.search.pruners.break_even import BreakEven
from studies.spec.study_spec import parse_spec
from studies.storage.study_store import Store
from tests.support import optional
from tests.support.command_line import InProcess, ViewsInThisProcess
from tests.support.simulated_study import smooth_curve
from tests.support.task_files import HEADER, people, write
from tests.support.waiting import is_gone, wait_until
from trainers.contract.task import BaseTask, space_of
from trainers.contract.task_loading import load_task
from trainers.local.try_out_task import probe
from trainers.loop.trainer import Trainer
from trainers.model.network import count
from trainers.protocol import TrialSpec
from trainers.ranks.process_group import Group

ERROR, COST, SIZE = (Objective(metric=name) for name in ("val_error", "cost_usd", "model_parameters"))
MLP = {"architecture": "mlp", "width": 48, "depth": 2}
CNN = {"architecture": "cnn", "channels": 9}


@pytest.mark.parametrize("params", [MLP, CNN, {}], ids=["mlp", "cnn", "default"])
def test_what_is_counted_is_what_a_training_measures(params: dict[str, Any]) -> None:
    spec = TrialSpec(study="t", trial=0, task="digits", params=params, training={"epochs": 1})
    trainer = Trainer(spec, load_task("digits"), group=Group())
    (measured,) = trainer.advance(1)
    (row,) = count(load_task("digits"), [params], {})
    assert row["model_parameters"] == measured.metrics["model_parameters"]
    assert row["samples_per_epoch"] == trainer.facts.samples


def test_what_is_counted_is_of_one_sample_and_of_the_epoch_that_is_said() -> None:
    rows = count(load_task("digits"), [MLP, CNN], {})
    assert rows[0]["flops_per_sample"] == 2 * (64 * 48 + 48 * 48 + 48 * 10)
    assert rows[1]["flops_per_sample"] == 2 * (9 * 9 * 64 + 9 * 9 * 18 * 16 + 18 * 16 * 10)
    rows = count(load_task("digits"), [MLP, MLP | {"samples_per_epoch": 300}], {"samples_per_epoch": 5000})
    assert [row["samples_per_epoch"] for row in rows] == [1197, 300]
    assert count(load_task("digits"), [MLP], {"samples_per_epoch": 200})[0]["samples_per_epoch"] == 200


def test_built_in_tasks_with_files_and_texts_are_counted(tmp_path: Path) -> None:
    task = load_task("tabular", {"train": write(tmp_path / "people.csv", [HEADER, *people(200)]), "target": "rich"})
    space = space_of(task)
    assert space is not None
    rows = count(task, examples_of(space)[:8], {})
    networks = [row for row in rows if row["params"]["architecture"] != "trees"]
    assert 0 < len(networks) < len(rows) == 8
    assert all(row["flops_per_sample"] for row in networks)
    assert all(
        row["flops_per_sample"] is None for row in rows if row not in networks
    )  # they compare, and hardly compute
    assert rows[0]["model_parameters"] == sum(p.numel() for p in task.model(rows[0]["params"]).parameters())
    optional.module("tokenizers")
    rows = [("a lovely film", "pos"), ("a dull film", "neg")] * 40
    task = load_task("text", {"train": write(tmp_path / "reviews.tsv", rows, "\t")})
    narrow, wide = count(task, [{"width": 16, "heads": 2}, {"width": 64, "heads": 2}], {})
    assert 0 < narrow["flops_per_sample"] < wide["flops_per_sample"]


class Odd(BaseTask):
    """Does with its model what tasks do; `params["way"]` says what."""

    parameters = ("way",)

    def train_data(self, params):  # type: ignore[no-untyped-def]
        return torch.randn(20, 3), torch.arange(20) % 2

    validation_data = train_data

    def model(self, params):  # type: ignore[no-untyped-def]
        way = params["way"]
        if way == "raises":
            raise ValueError("these do not go together")
        if way == "no module":
            return "a model"
        model: Any = nn.Sequential(nn.Linear(3, 2))
        if way == "looks at weights":
            model[0].weight.data *= 1.0 / model[0].weight.abs().max().item()
        if way == "looks at values":
            model.append(Looking())
        return model


class Looking(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs if inputs.sum().item() > 0 else -inputs


def test_models_that_cannot_be_built_or_need_values_leave_the_others_alone() -> None:
    ways = ["plain", "raises", "no module", "plain"]
    rows = count(Odd(), [{"way": way} for way in ways], {})
    assert [row["params"]["way"] for row in rows] == ["plain", "plain"]
    assert rows[0] == {"params": {"way": "plain"}, "model_parameters": 8, "flops_per_sample": 12,
                       "samples_per_epoch": 20}  # fmt: skip
    weights, values = count(Odd(), [{"way": "looks at weights"}, {"way": "looks at values"}], {})
    assert (weights["model_parameters"], weights["flops_per_sample"]) == (8, 12), "it is built on the CPU"
    assert (values["model_parameters"], values["flops_per_sample"]) == (8, None), "how much it computes is not known"


def test_no_weights_are_allocated_and_counting_ends_in_time() -> None:
    class Huge(Odd):
        def model(self, params):  # type: ignore[no-untyped-def]
            return nn.Sequential(nn.Linear(3, 2**40), nn.Linear(2**40, 2))

    assert count(Huge(), [{}], {})[0]["model_parameters"] == 6 * 2**40 + 2
    ticks = iter(range(1000))
    rows = count(Odd(), [{"way": "plain"}] * 96, {}, seconds=20.0, clock=lambda: float(next(ticks)))
    assert len(rows) == 9, "half of the time is for building"
    assert 0 < sum(row["flops_per_sample"] is not None for row in rows) <= 9


@pytest.mark.large
def test_the_process_answers_and_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "from trainers.tasks.digits import Digits\nprint('hello')\nclass Loud(Digits):\n    pass\n"
    )

    def answer(task: str) -> Any:
        question = {"task": task, "python_path": [str(tmp_path)], "examples": [MLP], "training": {}}
        done = subprocess.run(
            list(prepared_study.PROBE), input=json.dumps(question), capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)

    (row,) = answer("loud:Loud")["counted"]
    assert row == count(load_task("digits"), [MLP], {})[0]
    wrong = answer("loud:Quiet")
    assert wrong["counted"] == []
    assert wrong["error"] == probe("loud:Quiet", {}, [str(tmp_path)])["error"]


TREE = Space.from_dict(
    {
        "learning_rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
        "architecture": {"type": "categorical", "choices": ["mlp", "cnn"]},
        "width": {"type": "int", "low": 16, "high": 256, "log": True, "when": {"architecture": "mlp"}},
        "depth": {"type": "int", "low": 1, "high": 3, "when": {"architecture": "mlp"}},
        "channels": {"type": "int", "low": 4, "high": 32, "log": True, "when": {"architecture": "cnn"}},
    }
)


def test_examples_are_of_the_space_always_the_same_and_none_comes_twice() -> None:
    examples = examples_of(TREE)
    assert len(examples) == 96
    for one in examples:
        TREE.check(one)
    assert {one["architecture"] for one in examples} == {"mlp", "cnn"}
    assert {one["depth"] for one in examples if "depth" in one} == {1, 2, 3}
    assert examples == examples_of(Space.from_dict(json.loads(json.dumps(TREE.to_dict()))))
    small = Space.from_dict({"width": {"type": "categorical", "choices": [16, 32, 64]}})
    assert sorted(one["width"] for one in examples_of(small)) == [16, 32, 64]  # type: ignore[type-var]
    assert examples_of(Space({})) == [{}]


def rows_of(configurations: list[dict[str, Any]]) -> list[Counted]:
    return [Counted.from_plain(row) for row in count(load_task("digits"), configurations, {}, seconds=60.0)]


@pytest.fixture(scope="module")
def sizes() -> SizeModel:
    return SizeModel(TREE, rows_of(examples_of(TREE)))


@pytest.fixture(scope="module")
def others() -> list[Counted]:
    """Configurations that are no examples."""
    encoder, rng = Encoder(TREE), np.random.default_rng(7)
    return rows_of([encoder.decode(rng.random(encoder.parameters)) for _ in range(40)])


def model_of(
    sizes: SizeModel | Callable[[], SizeModel | None] | None,
    *objectives: Objective,
    constraints: tuple[Constraint, ...] = (),
) -> CurveModel:
    counted = sizes if callable(sizes) else lambda: sizes
    problem = Problem(
        space=TREE, objectives=objectives or (ERROR, COST), epochs=9, milestones=(2, 4, 9), usd_per_slot_hour=1.0,
        constraints=constraints,
        counted=counted,
    )  # fmt: skip
    return CurveModel(problem)


@pytest.mark.medium
def test_sizes_and_bounds_on_them_are_forecast_before_any_trial_has_run(sizes, others) -> None:
    model = model_of(sizes, ERROR, SIZE)
    model.learn([], refit=True)
    mean, sd, kind = model.untried(model.features([one.params for one in others])).statics[1]
    off = np.abs(mean - np.log([one.model_parameters for one in others]))
    assert kind == "lognormal"
    assert np.median(off) < 0.01
    assert np.quantile(off, 0.9) < 0.05
    assert np.median(sd) < 0.1
    plain = model_of(None, ERROR, SIZE)
    plain.learn([], refit=True)
    assert plain.untried(plain.features([MLP])).statics[1][1].min() > 1.0, "without, nothing is known"
    model = model_of(sizes, constraints=(Constraint(metric="model_parameters", max=10_000.0),))
    model.learn([], refit=True)
    some = model.untried(
        model.features([{"learning_rate": 0.1, **MLP, "width": width, "depth": 3} for width in (24, 200)])
    )
    small, large = probability_of_a_feasible_model(model.forecast(some), model.limits, NO_NODES)[:, 0, 0]
    assert small > 0.99
    assert large < 0.01


def paid(configurations: list[Counted]) -> list[Snapshot]:
    """Trials after an epoch, whose price is proportional to what they compute."""
    return [
        Snapshot(
            number=i, params=one.params, state="running", epochs=1, at={1: (0.5, 1e-9 * one.flops_per_epoch)},
            usd_per_epoch=1e-9 * one.flops_per_epoch, paid_usd=1e-9 * one.flops_per_epoch, starts=1,
        )
        for i, one in enumerate(configurations)
    ]  # fmt: skip


def error_of_prices(model: CurveModel, others: list[Counted]) -> float:
    log_usd = model.untried(model.features([one.params for one in others])).log_usd
    return float(np.sqrt(np.mean((log_usd - np.log([1e-9 * one.flops_per_epoch for one in others])) ** 2)))


def test_prices_are_forecast_better_with_what_was_counted(sizes: SizeModel, others: list[Counted]) -> None:
    errors = []
    for given in (sizes, None):
        model = model_of(given)
        model.learn(paid(others[:8]), refit=True)
        errors.append(error_of_prices(model, others[8:]))
    assert errors[0] < 0.6 * errors[1]


def test_what_comes_while_a_study_runs_is_learned_from_at_once(sizes: SizeModel, others: list[Counted]) -> None:
    known: list[SizeModel] = []
    model = model_of(lambda: known[0] if known else None, ERROR, COST, SIZE)
    some = others[:8]
    trials = [
        replace(trial, at={1: (*trial.at[1], float(one.model_parameters))})
        for trial, one in zip(paid(some), some, strict=True)
    ]
    model.learn(trials, refit=False)
    before = error_of_prices(model, others[8:])
    known.append(sizes)
    model.learn(trials, refit=False)
    assert error_of_prices(model, others[8:]) < 0.6 * before
    mean = model.untried(model.features([one.params for one in others[8:]])).statics[2][0]
    assert np.median(np.abs(mean - np.log([one.model_parameters for one in others[8:]]))) < 0.01
    assert model.sharing_fits().problem.counted() is sizes


def test_few_examples_and_sizes_to_be_maximised_do_no_harm(others: list[Counted], sizes: SizeModel) -> None:
    for some in ([], others[:3], [replace(one, flops_per_sample=None) for one in others[:20]]):
        sizes = SizeModel(TREE, some)
        model = model_of(sizes, ERROR, COST, SIZE)
        model.learn([], refit=True)
        model.learn([replace(t, at={1: (0.5, 1e-3, 5000.0)}) for t in paid(others[:5])], refit=True)
        assert np.isfinite(error_of_prices(model, others[5:]))
        assert sizes.covariates(np.zeros((2, Encoder(TREE).width))).shape == (2, 1 if len(some) > 8 else 0)
    model = model_of(sizes, ERROR, Objective(metric="model_parameters", direction="maximize"))
    model.learn([], refit=True)
    assert model.untried(model.features([MLP])).statics[1][1].min() > 1.0


SPEC: dict[str, Any] = {
    "study": "counted", "task": "digits", "space": TREE.to_dict(), "training": {"epochs": 9}, "mlflow": "off",
    "search": {"sampler": "cokriging", "pruner": "break_even"}, "budget": {"trials": 6}, "resources": {"slots": 2},
}  # fmt: skip


def prepared_in(folder: Path, **changes: Any) -> tuple[Store, Prepared]:
    spec = parse_spec({**SPEC, "store": f"sqlite:///{folder}/automl.db", **changes})
    prepared = prepare(spec, source="spec", base_folder=folder)
    return Store(prepared.spec.store), prepared


@pytest.mark.medium
def test_what_was_counted_is_found_again_and_not_counted_twice(tmp_path: Path, sizes: SizeModel) -> None:
    store, prepared = prepared_in(tmp_path)
    with Counting(store, find_or_create(store, prepared), prepared) as first:
        assert first.process is not None
        first.wait()
    found = first.sizes()
    assert set(map(by_params, found.examples)) <= set(map(by_params, sizes.examples))
    assert len(found.examples) > 8
    with Counting(store, store.require("counted"), prepared) as again:
        assert again.process is None
    there = again.sizes()
    assert there.examples == found.examples
    x = np.random.default_rng(0).random((5, Encoder(TREE).width))
    assert there.covariates(x).tolist() == found.covariates(x).tolist(), "what is suggested is the same"
    problem = problem_of(prepared.spec, prepared.place, (), again.sizes)
    assert problem.counted() is there
    store.close()


def by_params(one: Counted) -> Any:
    return identity(one.params), one.model_parameters


@pytest.mark.medium
def test_a_study_that_ends_first_leaves_it_to_the_next(tmp_path: Path) -> None:
    store, prepared = prepared_in(tmp_path)
    with Counting(store, find_or_create(store, prepared), prepared) as counting:
        process = counting.process
    assert process.returncode is not None, "nothing goes on behind the user's back"
    assert store.require("counted").counted_examples is None
    store.close()


BUSY_TASK = """
import os, subprocess, time
from pathlib import Path

here = Path(__file__).parent
(here / "written").write_text(str(subprocess.Popen(["sleep", "100"]).pid))
os.replace(here / "written", here / "child")
time.sleep(100)
"""


@pytest.mark.medium
def test_a_study_that_ends_first_waits_for_no_process_that_the_task_has_started(tmp_path: Path) -> None:
    """Such as the workers of a pool: they hold the output of the process that counts, and live on without it."""
    (tmp_path / "busy_task.py").write_text(BUSY_TASK)
    store, prepared = prepared_in(tmp_path)
    row = find_or_create(store, prepared)
    busy = replace(prepared, spec=prepared.spec.model_copy(update={"task": "busy_task:Busy"}))
    deadline = time.monotonic() + 60
    with Counting(store, row, busy):
        while not (tmp_path / "child").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        ended_at = time.monotonic()
    assert time.monotonic() - ended_at < 50
    wait_until(lambda: is_gone(int((tmp_path / "child").read_text())), seconds=10.0)
    store.close()


@pytest.mark.medium
def test_a_task_that_dies_while_it_is_counted_leaves_nothing_to_count(tmp_path: Path) -> None:
    (tmp_path / "dying_task.py").write_text("import os\nos._exit(7)\n")
    store, prepared = prepared_in(tmp_path)
    row = find_or_create(store, prepared)
    dying = replace(prepared, spec=prepared.spec.model_copy(update={"task": "dying_task:Dying"}))
    with Counting(store, row, dying) as counting:
        counting.wait()
    found = counting.sizes()
    assert found.examples == ()
    assert store.require("counted").counted_examples == [], "it would die again"
    store.close()


def test_other_searches_count_nothing(tmp_path: Path) -> None:
    store, prepared = prepared_in(tmp_path, search={"sampler": "tpe", "pruner": "mo_asha"})
    with Counting(store, find_or_create(store, prepared), prepared) as counting:
        assert counting.process is None
    assert counting.sizes() is None
    store.close()


class Waiting(Counting):
    """Waits at its beginning, since trials in virtual time do not."""

    def __enter__(self) -> Counting:
        entered = super().__enter__()
        self.wait()
        return entered


class NoViews(ViewsInThisProcess):
    """This study has no mirror in Optuna and MLflow."""

    def wait_until_caught_up(self, _seconds: float) -> bool:
        return True

    def keep_report(self, _report: Path, _seconds: float) -> bool:
        return True


@pytest.mark.large
def test_a_study_counts_beside_its_trials_and_resume_does_not_again(tmp_path, monkeypatch) -> None:
    store, prepared = prepared_in(tmp_path)
    monkeypatch.setattr(study_run, "RayPool", lambda **_: SimulatedPool(lambda p, w: smooth_curve(p, w, epochs=9)))
    monkeypatch.setattr(study_run, "Counting", Waiting)
    monkeypatch.setattr(study_run, "ViewsProcess", NoViews)
    found: list[SizeModel | None] = []

    def look(machine: StudyMachine) -> None:
        assert isinstance(machine.setup.policy.pruner, BreakEven)
        found.append(machine.setup.policy.pruner._model.problem.counted())

    drive(store, find_or_create(store, prepared), prepared, Watcher(on_commit=look))
    row = store.require("counted")
    assert len(row.counted_examples) == len(found[0].examples)  # type: ignore[union-attr]
    monkeypatch.setattr(model_counting, "_started", lambda: pytest.fail("it is counted already"))
    found.clear()
    resume(store, "counted", ["budget.trials=8"], Watcher(on_commit=look))
    assert found[0] is not None
    assert [one.to_plain() for one in found[0].examples] == row.counted_examples
    store.close()


def test_a_dry_run_writes_nothing(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.delenv("AUTOML_STORE", raising=False)
    here = InProcess(tmp_path, capsys, monkeypatch)
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(SPEC))
    monkeypatch.setattr(model_counting, "_started", lambda: pytest.fail("nothing is to be counted"))
    assert here.run("launch", "s.yaml", "--dry-run")[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"]
