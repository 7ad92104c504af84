"""Training functions whose ranks are out of step, or only look so, and what facts say of state that is not kept."""

import time
from dataclasses import replace

import pytest
from torch.distributed.distributed_c10d import _get_default_store

from tests.support.function_trials import Granted, on, trained
from tests.support.trainer_pool import HERE
from trainers.contract.training_function import TrainingFunction
from trainers.functions.function_trainer import FunctionTrainer
from trainers.local.local_training import train_locally
from trainers.protocol import TaskError, TrialSpec
from trainers.ranks import out_of_step
from trainers.ranks.process_group import Group
from trainers.trial_settings import unheeded

MODULE = "tests.support.ranked_functions"


def spec_of(name, world_size=1, **more):
    return TrialSpec(
        study="test", trial=0, task=f"{MODULE}:{name}", params=more.pop("params", {}), training={"epochs": 3},
        world_size=world_size, python_path=(HERE,), **more,
    )  # fmt: skip


@pytest.mark.large
@pytest.mark.parametrize(
    ("how", "rank", "words"),
    [
        ("breaks", 1, "rank 1 has left the loop over trial.epochs in epoch 2, and rank 0 waits within epoch 2"),
        ("one mean more", 0, "rank 1 is at the end of epoch 2, and rank 0 waits within epoch 2"),
        ("returns at once", 1, "returned without a loop over trial.epochs(...), on rank 1"),
    ],
)
@pytest.mark.usefixtures("quick_starts")
def test_a_rank_that_the_others_wait_for_in_vain_ends_the_trial_with_a_line_that_names_it(how, rank, words):
    spec = spec_of("out_of_step", task_options={"how": how, "on": rank})
    told = []
    with pytest.raises(TaskError) as refused:
        train_locally(spec, 2, told.append)
    assert words in str(refused.value)
    assert [one.epoch for one in told] == ([] if how == "returns at once" else [1])


def test_ranks_out_of_step_find_it_out_and_slow_or_sleeping_ones_are_waited_for(ranks):
    spec = spec_of("out_of_step", 2, task_options={"how": "breaks after its report", "on": 1})
    words = "rank 0 is at the end of epoch 2, and rank 1 has left the loop over trial.epochs in epoch 2"
    assert [words in str(one) for one in ranks.run(2, refusal, spec)] == [True, True]
    # Each rank waits until the other one has told that it stands still: in a collective, and at the epoch's end.
    assert ranks.run(2, slow_in_turn, spec_of("unused", 2)) == [[1, 2, 3]] * 2
    within = out_of_step._Report(4, out_of_step.Place.WITHIN, 103)
    assert not out_of_step._waits_in_vain(out_of_step._Report(3, out_of_step.Place.END, 100), within)
    assert out_of_step._waits_in_vain(out_of_step._Report(3, out_of_step.Place.RETURNED, 100), within)
    assert out_of_step._waits_in_vain(out_of_step._Report(4, out_of_step.Place.END, 100), within)


def refusal(group, spec):
    """Return the line alone: an error would keep the model alive, with which no group can be left."""
    try:
        trained(group, spec)
    except TaskError as error:
        return str(error)


def slow_in_turn(group, spec):
    begun, store = out_of_step._begun(), _get_default_store()

    def until_told(rank, words):
        key = f"arrivals/test/0/1/{begun}/{rank}"
        while not (store.check([key]) and store.get(key).decode().startswith(words)):
            time.sleep(0.01)

    def train(trial):
        for epoch in trial.epochs():
            if trial.rank == 0:
                until_told(1, f"{epoch} {int(out_of_step.Place.WITHIN)}")
            trial.mean(1.0)
            trial.report(val_error=1.0)
            if trial.rank == 1:
                place = out_of_step.Place.RETURNED if epoch == 3 else out_of_step.Place.END
                until_told(0, f"{epoch} {int(place)}")

    course = Granted()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(out_of_step, "LOOK_SECONDS", 0.05)
        FunctionTrainer(spec, TrainingFunction(function=train), group=group).run(course)
    return [one.epoch for one in course.measurements]


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("nothing", "started over: the function passes no state to trial.epochs(...); epochs that are trained again"),
        ("models", "would not resume with the same bits: the function passes no optimizer of the prepared Linear to"),
        ("one optimizer", "would not resume with the same bits: the function passes no optimizer of the prepared Lin"),
        ("one model", "would not resume with the same bits: the function does not pass the prepared Linear to"),
        ("all", None),
        ("a pair", None),
        ("frozen", None),
    ],
)
def test_facts_say_what_an_attempt_begins_anew(tmp_path, what, says):
    spec = spec_of("keeps_some", task_options={"what": what}, checkpoint_folder=str(tmp_path), attempt=2)
    facts = trained(Group(), spec)["facts"]
    assert getattr(facts, "resuming", "")[: len(says or "")] == (says or "")
    assert hasattr(facts, "resuming") == (says is not None)


def test_the_first_attempt_says_what_would_be_lost_and_one_without_checkpoints_nothing(tmp_path):
    spec = spec_of("keeps_some", task_options={"what": "nothing"})
    assert not hasattr(trained(Group(), spec)["facts"], "resuming")
    facts = trained(Group(), replace(spec, checkpoint_folder=str(tmp_path)))["facts"]
    assert facts.resuming.startswith("would start over each time it resumes: the function passes no state")


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"clip_norm": 1.0}, "clip_norm is 1.0, but the training function ignores it: call trial.step("),
        ({"precision": "bf16"}, "call trial.autocast(), read it from trial.params, or remove it from the spec"),
        ({"schedule": "constant"}, "'constant', but the training function ignores it: read it from trial.par"),
        ({"momentum": 0.5}, "call trial.optimizer(parameters)"),
        ({"accumulate": 2}, "call trial.step(optimizer)"),
    ],
)
def test_a_parameter_that_nothing_follows_is_refused(params, words):
    spec = spec_of("unheeding", params=params)
    with pytest.raises(TaskError) as refused:
        trained(Group(), spec)
    assert words in str(refused.value)
    (name,) = params
    assert trained(Group(), replace(spec, task_options={"reads": name}))["measurements"]


def test_an_option_of_all_trials_that_nothing_follows_is_told_and_other_names_are_nobodys_business():
    spec = spec_of("unheeding")
    training = {**spec.training, "schedule": "constant", "warmup_epochs": 0, "precision": "bf16"}
    assert trained(Group(), replace(spec, training=training))["measurements"]
    assert unheeded(training) == {
        "schedule": None, "warmup_epochs": None, "precision": "trial.autocast()",
    }  # fmt: skip
    spec = spec_of("unheeding", params={"precision": "fp32", "clip_norm": None, "schedule": "cosine", "colour": "red"})
    assert len(on(None, spec)[0]["measurements"]) == 3
