"""Trials of the training functions with libraries."""

import torch
import torch.distributed as dist

from tests.support.function_trials import trained
from tests.support.trainer_pool import HERE
from trainers.protocol import TrialSpec

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
