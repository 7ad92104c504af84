"""Batches of one sample, passes that count nothing, and ranks that exchange statistics in each pass."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.support.trainer_pool import Pool, run_trial, spec_of
from trainers import trial_settings
from trainers.data.epoch_plan import plan_epoch
from trainers.model.network import Network
from trainers.protocol import TaskError
from trainers.ranks.process_group import Group

NORMS = {"kind": "norms"}


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize(("batch", "accumulate"), [(2, 1), (3, 2), (4, 1)])
def test_single_samples_are_merged_and_each_is_used_once(batch: int, accumulate: int, world_size: int) -> None:
    for samples in range(2, 40):
        order = torch.arange(samples)
        plans = [
            plan_epoch(
                order, batch_per_rank=batch, accumulate=accumulate, rank=rank, world_size=world_size, singles="merge"
            )
            for rank in range(world_size)
        ]
        counted = [one for plan in plans for one in plan if not one.is_empty]
        smallest = min(len(one.indices) for one in counted)
        used = sorted(index for one in counted for index in one.indices.tolist())
        if batch * accumulate * world_size > 2:
            assert used == list(range(samples))
            assert sum(one.step_samples for one in plans[0] if one.ends_step) == samples
        assert smallest >= 2
        assert max(len(one.indices) for one in counted) <= batch + 1
        assert len({sum(one.ends_step for one in plan) for plan in plans}) == 1
        by_step = [[one.step_samples for one in plan if one.ends_step] for plan in plans]
        assert all(steps == by_step[0] for steps in by_step)


def test_dropped_samples_do_not_count_and_without_batch_norm_batches_stay() -> None:
    plan = plan_epoch(torch.arange(9), batch_per_rank=4, accumulate=1, rank=0, world_size=1, singles="drop")
    assert [(len(one.indices), one.is_empty, one.step_samples) for one in plan] == [
        (4, False, 4), (4, False, 4), (1, True, 1),
    ]  # fmt: skip
    plan = plan_epoch(torch.arange(9), batch_per_rank=8, accumulate=1, rank=0, world_size=1, singles="merge")
    assert [one.indices.tolist() for one in plan] == [[*range(7)], [7, 8]]
    merged, dropped = (
        run_trial(Group(), spec_of(options={"n": 33}, training={"single_sample_batches": one}))
        for one in ("merge", "drop")
    )
    assert all(torch.equal(value, dropped["weights"][name]) for name, value in merged["weights"].items())


def test_batches_of_one_sample_train_with_batch_norm_only_where_they_are_last() -> None:
    merged, dropped = (
        run_trial(Group(), spec_of(options=NORMS | {"n": 33}, training={"single_sample_batches": one}))
        for one in ("merge", "drop")
    )
    assert sorted(int(number) for number in merged["seen"][0]) == list(range(33))
    name = next(name for name in merged["weights"] if name.endswith("num_batches_tracked"))
    assert (int(merged["weights"][name]), int(dropped["weights"][name])) == (9, 6)
    with pytest.raises(TaskError, match=r"batch_per_rank is 1, but BatchNorm1d .* Set batch_per_rank to"):
        run_trial(Group(), spec_of(options=NORMS, params={"batch_per_rank": 1}))
    # How many values of a channel a sample has depends on the images, so single samples are merged here, too.
    pooled = {"kind": "pooled", "n": 33}
    assert torch.isfinite(run_trial(Group(), spec_of(options=pooled))["weights"]["1.norm.running_var"]).all()
    with pytest.raises(TaskError, match=r"BatchNorm got one value .* Set batch_per_rank to"):
        run_trial(Group(), spec_of(options=pooled, params={"batch_per_rank": 1}))


def test_ranks_without_samples_leave_running_statistics_alone(ranks: Pool) -> None:
    """The last step has 2 samples for 4 ranks; each rank counts the batches that it has seen."""
    spec = spec_of(4, options=NORMS | {"n": 18}, training={"epochs": 1})
    counts = [
        next(int(value) for name, value in one["weights"].items() if name.endswith("num_batches_tracked"))
        for one in ranks.run(4, _statistics_of_each_rank, spec)
    ]
    assert counts == [2, 1, 1, 1]


def test_norms_that_a_task_has_frozen_stay_frozen() -> None:
    norms = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2).eval())
    network = Network(norms, trial_settings.settings_of(spec_of()), Group())
    with network.without_statistics():
        assert [norm.training for norm in norms] == [False, False]
    assert [norm.training for norm in norms] == [True, False]


def _statistics_of_each_rank(group: Group, spec: Any) -> Any:
    from trainers.loop import trainer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "copy_buffers_from_rank_0", lambda *_: None)
        return run_trial(group, spec)


class Exchanging(nn.SyncBatchNorm):
    """As torch's, whose own forward pass computes on GPUs only: a collective in each training pass."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            total = torch.cat([inputs.detach().sum(0).flatten(), inputs.new_tensor([len(inputs)])])
            dist.all_reduce(total)
            inputs = inputs - (total[:-1] / total[-1]).view(inputs.shape[1:])
        return inputs * self.weight.view(inputs.shape[1:]) + self.bias.view(inputs.shape[1:])


def _train_with_exchanges(group: Group, spec: Any) -> Any:
    def convert(module: nn.Module) -> nn.Module:
        for name, child in module.named_children():
            setattr(module, name, Exchanging(child.num_features).double() if isinstance(child, nn.BatchNorm1d)
                    else convert(child))  # fmt: skip
        return module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.SyncBatchNorm, "convert_sync_batchnorm", convert)
        patch.setattr(DistributedDataParallel, "_passing_sync_batchnorm_handle", lambda *_: None)  # refuses CPUs
        patch.setattr(trial_settings, "clashes", lambda *_: None)
        return run_trial(group, spec)


@pytest.mark.timeout(150)
def test_ranks_that_exchange_statistics_make_equally_many_passes(ranks: Pool) -> None:
    """The last step has 5 samples: one rank needs two passes and the other one; without a second it would wait."""
    training = {"accumulate": 4, "sync_batch_norm": True}
    accumulating = spec_of(2, params={"batch_per_rank": 2}, training=training, options=NORMS | {"n": 21})
    one, other = ranks.run(2, _train_with_exchanges, accumulating)
    assert not isinstance(one, TaskError), one
    assert all(torch.equal(value, other["weights"][name]) for name, value in one["weights"].items())
    for kind in ("norms", "flat norms"):
        options = {"kind": kind, "n": 17}
        uneven = spec_of(2, params={"batch_per_rank": 8}, training={"sync_batch_norm": True}, options=options)
        one, other = ranks.run(2, _train_with_exchanges, uneven)
        assert not isinstance(one, Exception), one
        assert all(torch.equal(value, other["weights"][name]) for name, value in one["weights"].items())
