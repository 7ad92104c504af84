"""Trials of the training functions with libraries."""

import torch
import torch.distributed as dist

from tests.support.function_trials import in_attempts, on, trained
from tests.support.trainer_pool import HERE
from trainers.protocol import TrainingError, TrialSpec

MODULE = "tests.support.library_functions"


def spec_of(name, world_size=1, *, trial=0, params=None, training=None, **more):
    """A trial of 3 epochs with batches of 16 samples together, unless told otherwise."""
    params = {"learning_rate": 0.05, "batch_per_rank": 16 // world_size} | (params or {})
    training = {"epochs": 3, "reference_batch": 16, "optimizer": "adamw"} | (training or {})
    return TrialSpec(
        study="test", trial=trial, task=f"{MODULE}:{name}", params=params, training=training, world_size=world_size,
        python_path=(HERE,), **more,
    )  # fmt: skip


def gang_is_usable(group, spec=None):
    """Whether the gang's process group, if it has several ranks, is there and sums, after a trial if one is given."""
    before = dist.group.WORLD
    if spec is not None:
        trained(group, spec)
    if group.world_size == 1:
        return not dist.is_initialized()
    ranks = torch.ones(1)
    dist.all_reduce(ranks)
    return dist.group.WORLD is before and ranks.item() == group.world_size


def with_equal_bits(ranks, spec):
    """Train a trial whole and paused after each epoch, with the same bits on all ranks; returns what each measured."""
    whole, attempts = on(ranks, spec), in_attempts(ranks, spec)
    for one in (*whole[1:], attempts[-1]):
        for name, value in whole[0]["weights"].items():
            assert torch.equal(value, one["weights"][name]), name
    assert [one.epoch for one in whole[0]["measurements"]] == [1, 2, 3]
    assert [one["facts"].start_epoch for one in attempts] == [0, 1, 2]
    return whole[0]["measurements"], [one["measurements"][0] for one in attempts]


def serve_one_trial_after_another(ranks, function, ends):
    """Run trials of a number of ranks each, which end after an epoch, by a fault, or by themselves."""
    for number, (world_size, ends_with, fault) in enumerate(ends):
        spec = spec_of(function, world_size, trial=number, task_options={"fault": fault})
        for one in ranks.run(world_size, trained, spec, 1000, ends_with):
            if fault == "raises":
                assert isinstance(one, TrainingError)
                assert "the user's own mistake" in str(one)
            else:
                assert len(one["measurements"]) == (ends_with or 3)
        assert all(ranks.run(world_size, gang_is_usable))
