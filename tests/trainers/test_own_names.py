"""Parameters of a user's own loop under the names of trainer options: only helpers that follow an option bind it."""

import json

import pytest
import torch
from torch import nn

from automl.training.request import check_params
from search_spaces.space import Space
from studies.spec.checks import check_against_task
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import parse_spec
from tests.support.command_trials import run, script
from tests.support.command_trials import spec_of as command_of
from tests.support.function_trials import Granted
from trainers.contract.training_function import TrainingFunction
from trainers.functions.function_trainer import FunctionTrainer
from trainers.protocol import TaskError, TrialSpec
from trainers.ranks.process_group import Group
from trainers.trainer_options import TRAINER_PARAMETERS

OWN = dict.fromkeys(TRAINER_PARAMETERS, "mine") | {"world_size": 1}
"""A value of every option that the trainer refuses; the ranks of a trial are always the trainer's."""


def trained(function, params, training=None):
    spec = TrialSpec(
        study="test", trial=0, task="unused", params=params, training={"epochs": 2, **(training or {})}, world_size=1
    )
    course = Granted()
    FunctionTrainer(spec, TrainingFunction(function=function), group=Group()).run(course)
    return course


def test_a_function_takes_any_value_under_any_name():
    seen = []

    def train(trial):
        seen.append(dict(trial.params))
        model = nn.Linear(1, 1)
        for _ in trial.epochs(model=model):
            trial.report(val_error=trial.max_epochs)

    assert len(trained(train, OWN).measurements) == 2
    assert seen == [OWN]


FOLLOWING = {
    "learning_rate": lambda trial: trial.learning_rate,
    "lr_scaling": lambda trial: trial.learning_rate,
    "batch_per_rank": lambda trial: trial.loader(torch.zeros(8, 1)),
    "accumulate": lambda trial: trial.accumulate,
    "precision": lambda trial: trial.autocast(),
    "optimizer": lambda trial: trial.optimizer([nn.Parameter(torch.zeros(1))]),
    "momentum": lambda trial: trial.optimizer([nn.Parameter(torch.zeros(1))]),
    "clip_norm": lambda trial: trial.step(torch.optim.SGD([nn.Parameter(torch.zeros(1))])),
    "loss_scale": lambda trial: trial.backward(nn.Parameter(torch.zeros(1)).sum()),
    "shard": lambda trial: trial.prepare(nn.Linear(1, 1)),
    "find_unused_parameters": lambda trial: trial.prepare(nn.Linear(1, 1)),
}


@pytest.mark.parametrize("name", FOLLOWING)
def test_a_helper_that_follows_an_option_refuses_a_value_that_is_not_the_trainers(name):
    def train(trial):
        assert trial.params[name] == "mine"
        for _ in trial.epochs():
            FOLLOWING[name](trial)

    with pytest.raises(TaskError, match=rf"^{name}: found 'mine', allowed: .*trial\.\w+.* uses this option") as refused:
        trained(train, {name: "mine"})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"precision": "fp16"}, "precision is fp16 on a CPU"),
        ({"sync_batch_norm": True}, "sync_batch_norm is true on a CPU"),
    ],
)
def test_options_clash_only_where_helpers_follow_them(params, words):
    def reads(trial):
        assert dict(trial.params) == params
        for _ in trial.epochs():
            trial.report(val_error=1.0)

    def follows(trial):
        trial.prepare(nn.Linear(1, 1))
        trial.autocast()

    assert len(trained(reads, params).measurements) == 2
    with pytest.raises(TaskError, match=words):
        trained(follows, params)


@pytest.mark.parametrize(
    ("optimizer", "factor"), [("SGD", 2.0), ("sgd-nesterov", 2.0), ("Adam", 2**0.5), ("RMSprop", 2**0.5)]
)
def test_the_rate_follows_the_batch_by_the_family_of_the_users_optimizer(optimizer, factor):
    rates = []

    def train(trial):
        rates.append(trial.learning_rate)
        for _ in trial.epochs():
            trial.report(val_error=len(trial.params["optimizer"]))

    trained(train, {"learning_rate": 0.1, "optimizer": optimizer, "batch_per_rank": 128})
    assert rates == [pytest.approx(0.1 * factor)]


def test_an_own_value_that_nothing_reads_is_told():
    def train(trial):
        for _ in trial.epochs():
            trial.report(val_error=1.0)

    with pytest.raises(TaskError, match="optimizer is 'RMSprop', but the training function ignores it"):
        trained(train, {"optimizer": "RMSprop"})


@pytest.mark.medium
def test_a_command_takes_any_value_under_any_name(tmp_path):
    script(tmp_path, """
        import automl, json, os, sys
        assert sys.argv[1:] == ["Adam", "16-mixed"], sys.argv
        print(os.environ["AUTOML_LEARNING_RATE"])
        for epoch in range(1, 5):
            automl.report(epoch=epoch, own=len(automl.params()))
    """)  # fmt: skip
    options = {"command": ["python", "train.py", "{optimizer}", "{precision}"]}
    params = OWN | {"optimizer": "Adam", "precision": "16-mixed"}
    done = run(command_of(tmp_path, options, params=params))
    assert done.epochs == [1, 2, 3, 4]
    assert done.measurements[0].metrics["own"] == len(OWN)
    json.dumps(done.facts.base_learning_rate, allow_nan=False)


SPACE = {name: [value, "other"] for name, value in OWN.items() if name != "world_size"} | {
    "precision": ["fp32", "fp16"]
}


@pytest.mark.parametrize("task", ["my_module:train", {"command": ["python", "train.py", "{optimizer}"]}])
def test_a_space_of_own_names_is_launched_and_the_ranks_are_the_trainers(task):
    spec = parse_spec({"task": task, "space": SPACE, "resources": {"device": "cpu"}})
    assert check_against_task(spec, None, None, Space({})).space is not None
    with pytest.raises(SpecError, match=r"space.world_size.choices: found 'many'"):
        check_against_task(parse_spec({"task": task, "space": {"world_size": ["many", 1]}}), None, None, Space({}))
    with pytest.raises(SpecError, match=r"space.learning_rate.choices: found 'mine'"):
        check_against_task(spec, (), None, Space({}))


@pytest.mark.parametrize("part", ["{scaled_learning_rate}", ["--lr", "{scaled_learning_rate}"]])
def test_a_command_that_is_given_the_scaled_rate_is_bound_to_what_it_is_computed_from(part):
    task = {"command": ["python", "train.py", part]}
    with pytest.raises(SpecError, match=r"space.batch_per_rank.choices: found 'auto'"):
        check_against_task(parse_spec({"task": task, "space": {"batch_per_rank": ["auto"]}}), None, None, Space({}))
    check_against_task(parse_spec({"task": task, "space": {"optimizer": ["Adam", "RMSprop"]}}), None, None, Space({}))


def test_a_single_training_takes_own_names_as_well():
    check_params({"optimizer": "RMSprop", "precision": "16-mixed"}, None)
    with pytest.raises(SpecError, match=r"world_size: found 'many'"):
        check_params({"world_size": "many"}, None)
    with pytest.raises(SpecError, match="optimizer: found 'RMSprop'"):
        check_params({"optimizer": "RMSprop"}, ())
