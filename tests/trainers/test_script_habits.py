"""What scripts begin and end with, in a training function: each first error says its cure in one line."""

import argparse
import sys
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from automl.adapters.optuna_objective import ObjectiveTrial
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import parse_spec
from tests.support.function_trials import Granted
from trainers.contract.training_function import TrainingFunction
from trainers.functions.function_trainer import FunctionTrainer
from trainers.protocol import TaskError, TrialSpec
from trainers.ranks.process_group import Group


def trained(function, group=None):
    group = group or Group()
    spec = TrialSpec(
        study="test", trial=0, task="unused", params={}, training={"epochs": 2}, world_size=group.world_size
    )
    course = Granted()
    FunctionTrainer(spec, TrainingFunction(function=function), group=group).run(course)
    return len(course.measurements)


def reports(trial):
    for _ in trial.epochs():
        trial.report(val_error=1.0)


def parses(trial):
    argparse.ArgumentParser().parse_args()
    reports(trial)


def joins(trial):
    dist.init_process_group("gloo")
    reports(trial)


def leaves(trial):
    reports(trial)
    dist.destroy_process_group()


def asks_for_the_group(trial):
    dist.get_rank()
    reports(trial)


def names(trial):
    trial.set_user_attr("model", "small")


def suggests(trial):
    trial.suggest_float("lr", 0.0, 1.0)


def fails(trial):
    reports(trial)
    sys.exit("no data in data/")


CASES = {
    parses: "parse_args() found the arguments of the trial's process. Take the values from trial.params, or give",
    joins: "init_process_group: the study forms the group if a trial has several ranks; one rank needs no group",
    leaves: "remove destroy_process_group",
    asks_for_the_group: "Use trial.rank and trial.mean",
    names: "trial.set_user_attr does not exist in a training function. Report numbers by trial.report, and print texts",
    suggests: "trial.suggest_float does not exist in a training function. Its parameters are in trial.params",
    fails: "the training function called sys.exit('no data in data/'). Raise an error, or return after the loop",
}


@pytest.mark.parametrize("function", CASES)
def test_a_first_error_says_its_cure(function, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["rank", "--node-ip=1"])
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(TaskError) as refused:
        trained(function)
    assert CASES[function] in str(refused.value)
    capsys.readouterr()


@pytest.mark.parametrize("code", [None, 0])
def test_sys_exit_at_the_end_of_a_script_is_a_return(code):
    def exits(trial):
        reports(trial)
        sys.exit(code)

    def too_early(_trial):
        sys.exit(code)

    assert trained(exits) == 2
    with pytest.raises(TaskError, match=r"returned without a loop over trial\.epochs"):
        trained(too_early)


def test_other_errors_pass_and_known_slips_say_their_key_or_place():
    def raises(_trial):
        raise ValueError("the user's own")

    with pytest.raises(TaskError, match="ValueError: the user's own"):
        trained(raises)
    trial = SimpleNamespace(params={}, epochs=lambda: iter([1]))
    with pytest.raises(AttributeError, match=r"which has params, report, "):
        ObjectiveTrial(trial, ["val_error"], 1).set_system_attr("a", 1)
    with pytest.raises(SpecError, match=r"found the unknown key 'name'; write study: NAME"):
        parse_spec({"name": "mine", "task": "digits"})


def line_of(group, function):
    try:
        return str(trained(function, group))
    except TaskError as error:
        return str(error)


@pytest.mark.medium
@pytest.mark.xdist_group("ranks")
def test_ranks_that_form_their_own_group_say_so(ranks):
    joined, left = ranks.run(2, line_of, joins), ranks.run(2, line_of, leaves)
    assert ["already in a group. Remove the call" in one for one in joined] == [True, True]
    assert ["remove destroy_process_group" in one for one in left] == [True, True]
    assert ranks.run(2, trained_on, reports) == [2, 2]


def trained_on(group, function):
    return trained(function, group)


def test_a_group_of_one_rank_ends_with_its_trial(tmp_path):
    def own(trial):
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        reports(trial)

    assert [trained(own), dist.is_initialized(), trained(own)] == [2, False, 2]
