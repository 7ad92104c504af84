"""Training functions in real ranks: metrics, checkpoints, ends, and what is refused."""

import signal
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, TensorDataset, WeightedRandomSampler

from tests.support.function_trials import Granted, on, trained
from tests.support.paths import EXAMPLES
from tests.support.trainer_pool import HERE
from trainers.checkpoints.checkpoint import read_checkpoint
from trainers.checkpoints.checkpoint_stores import LocalPlace
from trainers.contract.task_loading import TaskLoadError, load_task, load_trainable
from trainers.contract.training_function import TrainingFunction
from trainers.failures import CheckpointError
from trainers.functions.function_trainer import FunctionTrainer
from trainers.functions.trial_loader import SharingSampler
from trainers.protocol import TaskError, TrainingError, TrialSpec
from trainers.ranks.process import free_memory
from trainers.ranks.process_group import Group

MODULE = "tests.support.training_functions"
FOLDERS = (HERE,)


def spec_of(name="train", world_size=1, **more):
    params = {"learning_rate": 0.05, "batch_per_rank": 16 // world_size, "width": 8} | more.pop("params", {})
    training = {"epochs": 4, "reference_batch": 16, "optimizer": "adamw"} | more.pop("training", {})
    return TrialSpec(
        study="test", trial=0, task=f"{MODULE}:{name}", params=params, training=training, world_size=world_size,
        python_path=FOLDERS, **more,
    )  # fmt: skip


def test_a_function_that_stops_after_each_epoch_ends_with_the_bits_of_one_that_does_not(ranks, tmp_path):
    spec = spec_of(world_size=2, checkpoint_folder=str(tmp_path))
    whole = on(ranks, spec)[0]
    assert [one.epoch for one in whole["measurements"]] == [1, 2, 3, 4]
    path, metrics = None, []
    for attempt in range(1, 5):
        now = replace(spec, attempt=attempt, resume_from=path)
        part = on(ranks, now, until=1000, ends_with=1)[0]
        (measurement,) = part["measurements"]
        assert (measurement.ended, measurement.epoch, part["facts"].start_epoch) == (True, attempt, attempt - 1)
        path = measurement.checkpoint
        assert Path(path).stat().st_size == measurement.checkpoint_bytes
        metrics.append(measurement.metrics["val_error"])
    for name, value in whole["weights"].items():
        assert torch.equal(value, part["weights"][name])
    assert metrics == [one.metrics["val_error"] for one in whole["measurements"]]
    assert whole["measurements"][-1].metrics["seen"] == 31


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_saved_model_is_measured_on_data_for_testing_without_training(ranks, tmp_path, world_size):
    spec = spec_of(world_size=world_size, checkpoint_folder=str(tmp_path), milestones=(2, 4))
    without = on(ranks, spec)[0]
    spec = replace(spec, task_options={"test": True}, test_at_end=True)
    whole = on(ranks, spec)[0]
    assert (without["facts"].has_test_part, whole["facts"].has_test_part) == (False, True)
    names = [sorted(name for name in one.metrics if name.startswith("test.")) for one in whole["measurements"]]
    assert names == [[], [], [], ["test.seen", "test.val_error"]]
    assert whole["measurements"][-1].metrics["test.seen"] == 45
    for name, value in without["weights"].items():
        assert torch.equal(value, whole["weights"][name])
    second, last = (replace(spec, attempt=2, resume_from=whole["measurements"][n - 1].checkpoint) for n in (2, 4))
    (measured,) = on(ranks, replace(second, test_at=(2,)))[0]["measurements"]
    (again,) = on(ranks, replace(last, test_at=(4,)))[0]["measurements"]
    assert (measured.epoch, measured.complete, measured.checkpoint) == (2, True, None)
    assert measured.metrics["val_error"] == whole["measurements"][1].metrics["val_error"]
    assert again.metrics == whole["measurements"][-1].metrics


def test_a_measurement_for_testing_changes_neither_buffers_nor_modes(ranks, tmp_path):
    spec = spec_of("normalises_once", checkpoint_folder=str(tmp_path), test_at=(1,))
    without, tested = (on(ranks, replace(spec, task_options={"test": test}))[0] for test in (False, True))
    assert "test.val_loss" in tested["measurements"][0].metrics
    for name, value in without["weights"].items():
        assert torch.equal(value, tested["weights"][name]), name


class Ahead(Granted):
    """Does not wait for files before the next epoch."""

    def measured(self, pending):
        self.measurements.append(pending)


def test_a_function_trains_on_while_its_checkpoints_are_written(ranks, tmp_path):
    training = {"checkpoint_async": True}
    spec = spec_of(world_size=2, checkpoint_folder=str(tmp_path), milestones=(1, 2, 3), training=training)
    whole = on(ranks, replace(spec, checkpoint_folder=None))[0]
    done = ranks.run(2, trained_ahead, spec)
    assert done[0]["epochs_ahead"] > 0, "training waits for the file"
    for measurement in done[0]["measurements"][:3]:
        assert Path(measurement.checkpoint).stat().st_size == measurement.checkpoint_bytes
        later = replace(spec, resume_from=measurement.checkpoint, attempt=2, checkpoint_folder=None)
        again = on(ranks, later)[0]
        for name, value in whole["weights"].items():
            assert torch.equal(value, again["weights"][name]), (measurement.epoch, name)


def trained_ahead(group, spec):
    """Train to the end with files that take long, and count the epochs that ended before the file of an earlier one."""
    function = load_trainable(spec.task, spec.task_options, spec.python_path)
    trainer, course, usual, ahead = FunctionTrainer(spec, function, group=group), Ahead(), LocalPlace.write, []

    def write(place, *arguments):
        measured = len(course.measurements)
        time.sleep(0.3)
        ahead.append(len(course.measurements) - measured)
        return usual(place, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalPlace, "write", write)
        trainer.run(course)
        trainer.close()
    return {"measurements": [one.told() for one in course.measurements], "epochs_ahead": sum(ahead)}


def test_ranks_learn_together_and_the_learning_rate_is_scaled(ranks, tmp_path):
    two = on(ranks, spec_of(world_size=2, params={"batch_per_rank": 16}))
    for name, value in two[0]["weights"].items():
        assert torch.equal(value, two[1]["weights"][name])
    facts = two[0]["facts"]
    assert facts.effective_batch == 32
    assert facts.scaled_learning_rate == pytest.approx(0.05 * 2**0.5)
    assert two[0]["measurements"][-1].metrics["val_error"] < 0.4
    assert facts.model_parameters == two[0]["measurements"][0].metrics["model_parameters"] == 4 * 8 + 8 + 8 * 3 + 3


@pytest.mark.parametrize(
    ("kind", "training", "share", "factor"),
    [
        (torch.optim.AdamW, {}, 1.0, 2.0),
        (torch.optim.SGD, {}, 1.0, 4.0),
        (torch.optim.AdamW, {"optimizer": "sgd"}, 1.0, 4.0),
        (torch.optim.AdamW, {"lr_scaling": "none"}, 1.0, 1.0),
        (torch.optim.AdamW, {}, 0.5, 4.0),  # a rate that is not the trial's stays as it is
    ],
)
def test_an_optimizer_that_the_study_does_not_name_scales_by_its_own_rule(kind, training, share, factor):
    """At four times the reference batch: sqrt for AdamW, linear for SGD."""
    seen = []

    def train(trial):
        model = nn.Linear(2, 2)
        groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.1 * trial.learning_rate}]
        optimizer = kind(groups, lr=share * trial.learning_rate)
        for _ in trial.epochs(optimizer=optimizer):
            seen.append((trial.learning_rate, *(group["lr"] for group in optimizer.param_groups)))
            trial.report(val_error=0.5)

    spec = replace(spec_of(), training={"epochs": 1, "reference_batch": 4} | training)
    course = Granted()
    FunctionTrainer(spec, TrainingFunction(function=train), group=Group()).run(course)
    assert seen == [pytest.approx((factor * 0.05, share * factor * 0.05, 0.1 * factor * 0.05))]
    assert course.facts.scaled_learning_rate == pytest.approx(factor * 0.05)


@pytest.mark.parametrize(
    ("kind", "given"), [("StepLR", {"step_size": 1}), ("LinearLR", {}), ("OneCycleLR", {"total_steps": 9})]
)
def test_a_schedule_at_the_rate_of_another_rule_is_refused(kind, given):
    def train(trial):
        optimizer = torch.optim.AdamW(nn.Linear(2, 2).parameters(), lr=trial.learning_rate)
        own = {"max_lr": trial.learning_rate} if kind == "OneCycleLR" else {}
        schedule = getattr(torch.optim.lr_scheduler, kind)(optimizer, **given, **own)
        next(iter(trial.epochs(optimizer=optimizer, schedule=schedule)))

    spec = replace(spec_of(), training={"epochs": 1, "reference_batch": 4})
    with pytest.raises(TaskError, match="put `optimizer: adamw` into the space"):
        FunctionTrainer(spec, TrainingFunction(function=train), group=Group()).run(Granted())


def test_a_trial_may_wait_hand_nothing_over_and_have_enough(tmp_path):
    assert [one.epoch for one in trained(Group(), spec_of(), until=2)["measurements"]] == [1, 2]
    done = trained(Group(), spec_of("keeps_nothing", checkpoint_folder=str(tmp_path)), ends_with=1)
    assert [(one.epoch, one.checkpoint) for one in done["measurements"]] == [(1, None)]
    assert list(tmp_path.iterdir()) == []
    done = trained(Group(), spec_of("stops_early", training={"epochs": 9}, checkpoint_folder=str(tmp_path)))
    assert [(one.epoch, one.complete) for one in done["measurements"]] == [(1, False), (2, False), (3, True)]
    assert read_checkpoint(done["measurements"][-1].checkpoint)["position"]["epoch"] == 3


def test_a_loop_as_people_write_it_ends_in_step(ranks, tmp_path):
    """Buffers, uneven validation shares, reports of rank 0 alone, a loop that outlives the function, and a break."""
    spec = spec_of("normalises", world_size=2, training={"epochs": 9}, checkpoint_folder=str(tmp_path))
    done = on(ranks, spec)
    for one in done:
        assert [(m.epoch, m.complete) for m in one["measurements"]] == [(1, False), (2, False), (3, True)]
    for name, value in done[0]["weights"].items():
        assert torch.equal(value, done[1]["weights"][name]), f"{name}: buffers are rank 0's"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("no loop", "returned without a loop over trial.epochs"),
        ("no report", "epoch 1 ended without trial.report(...) on rank 0"),
        ("leaves", "left epoch 1 without trial.report(...) on rank 0, and returned; call trial.report before break"),
        ("breaks before", "call trial.report before break"),
        ("tests too late", "trial.test was called after trial.epochs. Call it before the loop over the epochs"),
        ("tests another name", "trial.test: its function returned 'test_error', which no epoch reports"),
        ("tests a library's training", "trial.test needs a loop over trial.epochs"),
        ("tests without a name", "trial.test: its function returned 0.5, allowed: metrics, {'val_error': 0.1}"),
        ("report after", "trial.report: test_error reported outside the loop"),
        ("raises after", "the user's own mistake at the end"),
        ("raises after a report", "the user's own mistake"),
        ("text", "val_error: found 'good', allowed: a number"),
        ("money", "'cost_usd' is measured in every trial. Choose another name"),
        ("twice", "'val_error' was reported twice in epoch 1"),
        ("second loop", "trial.epochs was called twice"),
        ("object", "found model of type object, allowed: an object with state_dict"),
        ("path", "a checkpoint cannot hold the state"),
    ],
)
def test_what_a_function_must_not_do_is_said_in_one_line(tmp_path, how, words):
    spec = spec_of(
        "fails", task_options={"how": how}, checkpoint_folder=str(tmp_path), milestones=(1,), test_at_end=True
    )
    function = load_trainable(spec.task, spec.task_options, spec.python_path)
    course = Granted()
    with pytest.raises(TaskError) as refused:
        FunctionTrainer(spec, function, group=Group()).run(course)
    assert words in str(refused.value)
    ends_late = how in {"report after", "raises after", "tests without a name", "tests another name"}
    expected = 3 if ends_late else int(how == "raises after a report")
    assert [one.epoch for one in course.measurements] == [*range(1, expected + 1)]


def test_checkpoints_and_names_of_something_else_are_refused(tmp_path):
    spec = spec_of(checkpoint_folder=str(tmp_path))
    path = trained(Group(), spec, ends_with=1)["measurements"][0].checkpoint
    other = replace(spec, task=f"{MODULE}:stops_early", resume_from=path)
    with pytest.raises(TrainingError, match="has task"):
        trained(Group(), other)
    wider = replace(spec, resume_from=path, params={**spec.params, "width": 9})
    with pytest.raises(CheckpointError, match="has params"):
        trained(Group(), wider)
    with pytest.raises(TaskLoadError, match="async function"):
        load_trainable(f"{MODULE}:waits", {}, FOLDERS)
    with pytest.raises(TaskLoadError, match=r"a training function has no model\(\)"):
        load_task(f"{MODULE}:train", {}, FOLDERS)
    with pytest.raises(TaskLoadError, match="unknown key 'step'"):
        load_trainable(f"{MODULE}:train", {"step": 1}, FOLDERS)


def test_the_example_learns():
    params = {"learning_rate": 0.02, "width": 16, "optimizer": "adamw", "batch_per_rank": 32}
    spec = replace(spec_of(training={"epochs": 8}), task="training_function:train", params=params)
    done = trained(Group(), replace(spec, python_path=(str(EXAMPLES),)))
    assert done["measurements"][-1].metrics["val_error"] < 0.2


@pytest.mark.parametrize(("samples", "world_size"), [(10, 3), (9, 3), (2, 4), (1, 3), (0, 2)])
def test_each_sample_is_shared_out(samples, world_size):
    def shares(*, shuffles):
        of_ranks = range(world_size)
        samplers = [SharingSampler(samples, rank=r, world_size=world_size, seed=1, shuffles=shuffles) for r in of_ranks]
        assert [len(sampler) for sampler in samplers] == [len([*sampler]) for sampler in samplers]
        return [[*sampler] for sampler in samplers]

    assert list(chain(*shares(shuffles=False))) == list(range(samples))
    dealt = shares(shuffles=True)
    assert len({len(one) for one in dealt}) == 1
    assert set(chain(*dealt)) == set(range(samples))
    assert len(list(chain(*dealt))) - samples < world_size


@pytest.mark.parametrize(("name", "shuffle"), [("sampler", True), ("batch_sampler", False)])
def test_a_sampler_of_the_users_is_refused_and_not_left_out(name, shuffle):
    def train(trial):
        chosen = WeightedRandomSampler([1.0, 0.0], 2)
        given = {"sampler": chosen, "batch_sampler": BatchSampler(chosen, 2, drop_last=False)}
        trial.loader(TensorDataset(torch.arange(2.0)), shuffle=shuffle, **{name: given[name]})

    trainer = FunctionTrainer(spec_of(), TrainingFunction(function=train), group=Group())
    with pytest.raises(TaskError, match=rf"^trial\.loader does not take a {name}, .* your own DataLoader"):
        trainer.run(Granted())


@pytest.mark.parametrize("samples", [TensorDataset(torch.arange(2.0)), range(2)], ids=["dataset", "stream"])
def test_workers_that_would_outlive_their_epoch_are_refused(samples):
    """They keep the epoch, and the random state, that they began with: a paused trial would end with other bits."""

    def train(trial):
        trial.loader(samples, shuffle=False, num_workers=1, persistent_workers=True)
        trial.loader(samples, num_workers=1, persistent_workers=True)

    trainer = FunctionTrainer(spec_of(), TrainingFunction(function=train), group=Group())
    with pytest.raises(TaskError, match=r"^trial\.loader: set persistent_workers to False\. "):
        trainer.run(Granted())


def test_what_a_function_builds_without_prepare_is_collected_before_the_next_trial():
    built = []

    def train(trial):
        model = nn.Linear(2, 2)
        model.itself = [model]  # a reference cycle, as sharding and models of users make
        built.append(weakref.ref(model))
        for _ in trial.epochs():
            trial.report(val_error=0.5)

    trainer = FunctionTrainer(spec_of(), TrainingFunction(function=train), group=Group())
    trainer.run(Granted())
    remains = trainer.close()
    del trainer
    free_memory(remains)
    assert built[0]() is None


def test_parameters_without_a_gradient_are_named_with_the_option_that_helps(ranks):
    spec = spec_of("has_unused_parameters", 2, training={"optimizer": "sgd"})
    line = "find_unused_parameters is false, .*: forgotten.weight, forgotten.bias. Set find_unused_parameters to true"
    with pytest.raises(TaskError, match=line):
        on(ranks, spec)
    helped = replace(spec, training={**spec.training, "find_unused_parameters": True})
    assert len(on(ranks, helped)[0]["measurements"]) == 4


def test_a_handler_of_a_signal_is_refused_in_a_line_where_trials_run_in_a_thread():
    def train(_trial):
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)

    trainer = FunctionTrainer(spec_of(), TrainingFunction(function=train), group=Group())
    with ThreadPoolExecutor(1) as threads, pytest.raises(TaskError, match=r"^signal\.signal: .* handlers, .* thread"):
        threads.submit(trainer.run, Granted()).result()
    trainer.close()


@pytest.mark.parametrize(
    ("world_size", "batch", "singles", "sizes"),
    [
        (1, 16, "merge", (3, 2, 33)),  # 33 samples: 16, 15, 2
        (1, 16, "drop", (2, 16, 32)),
        (1, 2, "merge", (16, 3, 33)),
        (1, 20, "merge", (2, 13, 33)),
        (2, 8, "merge", (3, 2, 17)),  # 17 samples on each rank: 8, 7, 2
        (2, 8, "drop", (2, 8, 16)),
    ],
)
def test_no_last_batch_has_one_sample_before_batch_norm(ranks, world_size, batch, singles, sizes):
    spec = spec_of("normalised", world_size, params={"batch_per_rank": batch})
    spec = replace(spec, training={**spec.training, "epochs": 2, "single_sample_batches": singles})
    for one in on(ranks, spec)[0]["measurements"]:
        assert (one.metrics["batches"], one.metrics["last"], one.metrics["samples"]) == sizes


def test_a_last_batch_of_one_sample_stays_without_batch_norm(ranks):
    """49 samples in batches of 16: AdamW's step of the single one is part of the weights."""
    spec = replace(spec_of(), task_options={"samples": 49})
    assert on(ranks, spec)[0]["measurements"][-1].epoch == 4
