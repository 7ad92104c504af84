"""Options of several ranks: each does something, and none changes what is learned more than it says."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from tests.support.trainer_pool import BLOBS, HERE, distance, on_ranks, run_trial, spec_of, weights_of
from trainers.checkpoints.checkpoint import load_model, read_checkpoint
from trainers.contract.task import BaseTask
from trainers.contract.task_loading import load_task
from trainers.failures import CheckpointError
from trainers.loop.trainer import Trainer
from trainers.model.sharding import owners
from trainers.protocol import TaskError
from trainers.ranks.process_group import Group

SGD = {"optimizer": "sgd", "momentum": 0.9}
PLAIN = {"optimizer": "sgd", "momentum": 0.0}
ADAMW = {"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.01}
WIDE = {"width": 64}


def _with_trainer(group, spec, look, until=1000):
    """Train and return what `look` sees in the trainer, and the measurements."""
    trainer = Trainer(spec, load_task(spec.task, spec.task_options, spec.python_path), group=group)
    try:
        measurements = list(trainer.advance(until))
        return look(trainer), measurements
    finally:
        trainer.close()


def _counting_exchanges(group, spec):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    exchanges = []

    def counting(state, bucket):
        exchanges.append(bucket.buffer().numel())
        return default_hooks.allreduce_hook(state, bucket)

    trainer = Trainer(spec, load_task(spec.task, spec.task_options, spec.python_path), group=group)
    try:
        trainer._state.network._ddp.register_comm_hook(None, counting)
        list(trainer.advance(1000))
        return exchanges, weights_of(trainer)
    finally:
        trainer.close()


@pytest.mark.parametrize(("accumulate", "batch", "steps"), [(2, 4, 12), (4, 1, 21)])
def test_gradients_are_exchanged_once_a_step_however_many_passes_it_has(ranks, accumulate, batch, steps):
    spec = spec_of(2, params={"batch_per_rank": batch}, training={"accumulate": accumulate})
    assert [len(exchanges) for exchanges, _ in ranks.run(2, _counting_exchanges, spec)] == [steps, steps]


def test_small_buckets_are_sent_one_by_one_and_fp16_gradients_cost_a_little(ranks):
    spec = partial(spec_of, 2, options=WIDE, training={"epochs": 1})
    whole, one_bucket = ranks.run(2, _counting_exchanges, spec())[0]
    parts, many = ranks.run(2, _counting_exchanges, spec(training={"epochs": 1, "bucket_mb": 0.001}))[0]
    assert len(parts) > len(whole)
    assert set(whole) == {515}
    assert max(parts[1:]) < 515, "after its first step DDP knows the order in which gradients come"
    assert max((one_bucket[name] - many[name]).abs().max().item() for name in many) <= 1e-12
    halved = ranks.run(2, run_trial, spec(training={"epochs": 1, "compress": "fp16"}))
    assert 1e-8 < distance({"weights": one_bucket}, halved[0]) < 1e-2
    assert distance(*halved) == 0.0


@pytest.mark.parametrize(
    ("world_size", "shard", "params", "options", "limit"),
    [
        (4, "optimizer", ADAMW, {"n": 50, "kind": "blocks"}, 1e-8),
        (2, "full", SGD, {"n": 50, "kind": "blocks", "n_validation": 5}, 1e-10),
    ],
)
def test_sharding_changes_no_weight(ranks, world_size, shard, params, options, limit):  # noqa: PLR0917
    training = {"clip_norm": 0.2}
    alone = run_trial(Group(), spec_of(params=params, options=options, training=training))
    more = {"options": options, "training": training | {"shard": shard, "accumulate": 2}}
    for rank in ranks.run(
        world_size, run_trial, spec_of(world_size, params=params | {"batch_per_rank": 8 // world_size}, **more)
    ):
        assert distance(alone, rank) <= limit
        for name in ("val_loss", "val_error", "train_loss"):
            theirs, mine = (one["measurements"][-1].metrics[name] for one in (rank, alone))
            assert theirs == pytest.approx(mine, rel=1e-6), name


def _state_sizes(trainer):
    optimizer = getattr(trainer._state.optimizer, "_optimizer", trainer._state.optimizer)
    states = [value for state in optimizer.state.values() for value in state.values() if value.dim() > 0]
    weights = list(trainer.module.parameters())
    return tuple(
        sum(getattr(value, "to_local", lambda value=value: value)().numel() for value in values)
        for values in (states, weights)
    )


def test_each_rank_holds_its_share_only_and_about_as_much_as_others(ranks):
    def sizes(shard, world_size=4):
        spec = spec_of(world_size, params=ADAMW, options={"kind": "blocks"}, training={"shard": shard, "epochs": 1})
        return [sizes for sizes, _ in on_ranks(ranks, spec, _with_trainer, look=_state_sizes)]

    ((state, weights),) = sizes("none", 1)
    assert state == 2 * weights
    of_optimizer = sizes("optimizer")
    assert sum(mine for mine, _ in of_optimizer) == state
    assert max(mine for mine, _ in of_optimizer) < 0.4 * state
    assert {held for _, held in of_optimizer} == {weights}
    of_all = sizes("full")
    assert sum(held for _, held in of_all) == weights
    assert max(held for _, held in of_all) < 0.4 * weights
    assert owners([5, 9, 1, 3], 2) == [1, 0, 1, 1]
    assert owners([7], 3) == [0]


@pytest.mark.parametrize(
    ("before", "after"), [(("optimizer", 4), ("full", 1)), (("full", 2), ("none", 4)), (("none", 1), ("full", 2))]
)
def test_a_sharded_trial_goes_on_at_any_world_size(ranks, tmp_path, before, after):
    def run(shard, world_size, **more):
        training = {"epochs": 2, "ema": 0.9, "shard": shard}
        return on_ranks(ranks, spec_of(world_size, params=ADAMW, options={"kind": "blocks"}, training=training, **more))

    whole = run("none", 1)[0]
    first = run(*before, milestones=(1,), checkpoint_folder=str(tmp_path))
    path = first[0]["measurements"][0].checkpoint
    resumed = run(*after, resume_from=path, attempt=2)
    assert resumed[0]["facts"].start_epoch == 1
    for rank in resumed:
        assert distance(whole, rank) <= 1e-8
        assert rank["measurements"][-1].metrics["val_loss"] == pytest.approx(
            whole["measurements"][-1].metrics["val_loss"], rel=1e-7
        )
    assert load_model(path, BLOBS, (HERE,))(torch.zeros(1, 5, dtype=torch.float64)).shape == (1, 3)


def test_a_cut_pass_goes_on_at_another_world_size_but_not_with_another_batch(ranks, tmp_path):
    path = run_trial(Group(), spec_of(milestones=(1,), checkpoint_folder=str(tmp_path)))["measurements"][0].checkpoint
    answers = ranks.run(2, run_trial, spec_of(2, params={"batch_per_rank": 16}, resume_from=path))
    assert all(isinstance(answer, CheckpointError) and "16 samples a step, not 32" in str(answer) for answer in answers)
    make = partial(spec_of, params=SGD, training={"epochs": 7, "samples_per_epoch": 20})
    whole = run_trial(Group(), make())
    drained = ranks.run(2, run_trial, make(2, checkpoint_folder=str(tmp_path)), 1000, 3)[0]["measurements"][-1]
    assert read_checkpoint(drained.checkpoint)["position"] == {"epoch": 3, "step": 6}
    for rank in ranks.run(4, run_trial, make(4, resume_from=drained.checkpoint)):
        assert distance(whole, rank) <= 1e-10


def _powersgd_traffic(trainer):
    state = trainer._state.network._compression._state
    sent = state.total_numel_before_compression, state.total_numel_after_compression
    return sent, {"weights": weights_of(trainer)}


def test_powersgd_sends_less_still_learns_and_keeps_ranks_of_several_buckets_in_step(ranks):
    spec = partial(spec_of, 2, options={**WIDE, "kind": "blocks", "n": 400}, params=SGD)
    training = {"compress": "powersgd", "powersgd_rank": 1}
    ((before, after), compressed), measurements = ranks.run(
        2, _with_trainer, spec(training=training), _powersgd_traffic
    )[0]
    assert after < 0.1 * before
    exact = ranks.run(2, run_trial, spec())[0]
    assert distance(exact, compressed) > 1e-6
    errors = [one[-1].metrics["val_loss"] for one in (exact["measurements"], measurements)]
    assert errors[1] < errors[0] + 0.1
    assert errors[1] < measurements[0].metrics["val_loss"]

    # Two buckets wait for each other in another order on each rank, and gloo mistakes one for the other.
    training = {"compress": "powersgd", "epochs": 1}
    spec = spec_of(2, options={"width": 768, "kind": "blocks", "dtype": "float32"}, training=training)
    assert distance(*ranks.run(2, run_trial, spec)) < 1e-3


@pytest.mark.parametrize(
    "training",
    [
        {"compress": "powersgd", "ema": 0.9},
        {"compress": "fp16", "accumulate": 2, "samples_per_epoch": 20, "schedule": "one_cycle"},
        {"lr_scaling": "adascale", "reference_batch": 8},
        {"shard": "optimizer", "precision": "bf16", "activation_checkpointing": True},
    ],
)
def test_a_resumed_trial_ends_with_the_bits_of_an_uninterrupted_one(ranks, tmp_path, training):
    dtype = "float32" if "precision" in training else "float64"
    options = {"dropout": 0.3, "kind": "blocks", "width": 32, "dtype": dtype, "n": 100}
    params = {"optimizer": "sgd", "momentum": 0.9}
    make = partial(
        spec_of, 2, params=params, options=options, training={"epochs": 3, **training}, checkpoint_folder=str(tmp_path)
    )
    whole = ranks.run(2, run_trial, make(milestones=(2,)))[0]
    resumed = ranks.run(2, run_trial, make(attempt=2, resume_from=whole["measurements"][1].checkpoint))[0]
    assert [m.epoch for m in resumed["measurements"]] == [3]
    assert distance(whole, resumed) == 0.0
    assert resumed["measurements"][-1].metrics["val_loss"] == whole["measurements"][-1].metrics["val_loss"]


def test_patience_runs_out_at_the_same_epoch_on_all_ranks_and_after_a_resume(ranks, tmp_path):
    training = {"epochs": 9, "early_stop_patience": 3}
    make = partial(spec_of, 2, params={"learning_rate": 1e-30}, training=training, checkpoint_folder=str(tmp_path))
    measured = [rank["measurements"] for rank in ranks.run(2, run_trial, make(milestones=(3,)))]
    assert [(m.epoch, m.complete) for m in measured[1]] == [(1, False), (2, False), (3, False), (4, True)]
    for rank in ranks.run(2, run_trial, make(attempt=2, resume_from=measured[0][2].checkpoint)):
        assert [(m.epoch, m.complete) for m in rank["measurements"]] == [(4, True)], "two epochs were waited before"


def test_parameters_without_a_gradient_need_the_option(ranks):
    spec = partial(spec_of, 2, options={"kind": "unused"})
    answers = ranks.run(2, run_trial, spec())
    words = "no gradient in a step: 2.weight, 2.bias. Set find_unused_parameters to true"
    assert all(isinstance(answer, TaskError) and words in str(answer) for answer in answers), answers
    assert all("\n" not in str(answer) for answer in answers)
    found = ranks.run(2, run_trial, spec(training={"find_unused_parameters": True}))[0]
    assert distance(run_trial(Group(), spec_of(options={"kind": "unused"})), found) <= 1e-10
    assert distance(found, ranks.run(2, run_trial, spec(training={"shard": "full"}))[0]) <= 1e-10


def test_noise_scale_and_gain_of_adascale_do_not_depend_on_who_measures_them(ranks):
    """Ranks and accumulation make the same small batches, so the estimate is the same."""

    def scales(run):
        return [m.metrics.get("gradient_noise_scale", 0.0) for m in run["measurements"]]

    training = {"epochs": 4, "lr_scaling": "none"}
    make = partial(spec_of, options={"n": 400})
    several = ranks.run(2, run_trial, make(2, training=training))
    passes = run_trial(Group(), make(params={"batch_per_rank": 8}, training=training | {"accumulate": 2}))
    assert scales(several[0]) == pytest.approx(scales(passes), rel=1e-6)
    assert max(scales(passes)) > 0
    assert max(scales(run_trial(Group(), make(training=training)))) == 0, "one batch a step has nothing to compare"
    training = {"lr_scaling": "adascale", "reference_batch": 8}
    make = partial(spec_of, params=PLAIN, options={"n": 400})
    gains = [m.metrics["adascale_gain"] for m in ranks.run(2, run_trial, make(2, training=training))[0]["measurements"]]
    assert all(1.0 < gain < 2.0 for gain in gains)
    passes = run_trial(Group(), make(params=PLAIN | {"batch_per_rank": 8}, training=training | {"accumulate": 2}))
    assert [m.metrics["adascale_gain"] for m in passes["measurements"]] == pytest.approx(gains)
    base = run_trial(Group(), make(params=PLAIN, training=training | {"lr_scaling": "none"}))
    assert distance(base, passes) > 1e-4


def test_sharded_blocks_are_computed_twice_channels_last_and_compiled_ranks_learn_the_same(ranks):
    training = {"activation_checkpointing": True, "shard": "full"}
    spec = spec_of(2, options={"kind": "blocks", "dropout": 0.3}, training=training)
    plain = spec_of(2, options={"kind": "blocks", "dropout": 0.3})
    assert distance(ranks.run(2, run_trial, plain)[0], ranks.run(2, run_trial, spec)[0]) <= 1e-12
    # FSDP2 takes no weights that lie in memory in another order than their own.
    make = partial(spec_of, 2, params=SGD)
    plain = replace(make(training={"epochs": 1}), task=f"{__name__}:Images")
    sharded = replace(make(training={"epochs": 1, "shard": "full", "channels_last": True}), task=plain.task)
    assert distance(ranks.run(2, run_trial, plain)[0], ranks.run(2, run_trial, sharded)[0]) < 1e-6
    make = partial(spec_of, 2, options={"kind": "compilable", "dtype": "float32", "n": 32, "blocks": 1})
    plain = ranks.run(2, run_trial, make(training={"epochs": 1}))[0]
    compiled = ranks.run(2, run_trial, make(training={"epochs": 1, "compile": True}))
    assert distance(plain, compiled[0]) < 1e-5
    assert distance(*compiled) == 0.0


@pytest.mark.slow
def test_compiled_ranks_may_checkpoint_their_activations(ranks):
    make = partial(spec_of, 2, options={"kind": "compilable", "dtype": "float32", "n": 32})
    plain = ranks.run(2, run_trial, make(training={"epochs": 1}))[0]
    both = ranks.run(2, run_trial, make(training={"epochs": 1, "compile": True, "activation_checkpointing": True}))
    assert distance(plain, both[0]) < 1e-5
    assert distance(*both) == 0.0


def test_rows_in_the_hosts_memory_learn_the_same(ranks, tmp_path):
    """On a CPU they lie there anyway; what this shows is that all parts of a training bear it."""
    options = {"kind": "blocks", "dropout": 0.3}
    make = partial(spec_of, 2, params=ADAMW | {"batch_per_rank": 4}, options=options, checkpoint_folder=str(tmp_path))
    training = {"clip_norm": 0.2, "ema": 0.9, "accumulate": 2, "activation_checkpointing": True, "shard": "full"}
    plain = ranks.run(2, run_trial, make(training=training))[0]
    offloaded = make(training=training | {"shard_offload": True}, milestones=(1,))
    first = ranks.run(2, run_trial, offloaded)[0]
    assert distance(plain, first) == 0.0
    path = first["measurements"][0].checkpoint
    assert distance(plain, ranks.run(2, run_trial, make(training=training, resume_from=path))[0]) == 0.0


def _formats(group, spec):
    """Train; returns what was learned, and the number formats of weights in forward passes by class of their module."""
    formats = {}

    def note(module, inputs, _):
        if isinstance(module, nn.Linear | nn.BatchNorm1d):
            formats.setdefault(type(module).__name__.removeprefix("FSDP"), set()).add(str(module.weight.dtype))

    handle = nn.modules.module.register_module_forward_hook(note)
    try:
        return run_trial(group, spec) | {"formats": formats}
    finally:
        handle.remove()


@pytest.mark.parametrize(("kind", "limit", "accumulate"), [("blocks", 1e-6, 2), ("norms", 0.05, 1)])
def test_weights_can_be_gathered_in_the_format_of_training(ranks, kind, limit, accumulate):
    options = {"kind": kind, "dtype": "float32", "n": 48}
    training = {"shard": "full", "precision": "bf16", "evaluation_precision": "training", "accumulate": accumulate}
    make = partial(spec_of, 2, params=ADAMW | {"batch_per_rank": 8 // accumulate}, options=options)
    usual = ranks.run(2, _formats, make(training=training))[0]
    halved = ranks.run(2, _formats, make(training=training | {"shard_precision": "training"}))
    assert usual["formats"]["Linear"] == {"torch.float32"}
    assert halved[0]["formats"] == {"Linear": {"torch.bfloat16"}} | (
        {"BatchNorm1d": {"torch.float32"}} if kind == "norms" else {}
    )
    assert distance(*halved) == 0.0
    assert distance(usual, halved[0]) < limit, "autocast takes the same format for matrix products"
    assert all(value.dtype != torch.bfloat16 for value in halved[0]["weights"].values())


class Images(BaseTask):
    """Noise of two classes, 3 x 8 x 8."""

    def train_data(self, params):
        del params
        generator = torch.Generator().manual_seed(0)
        return torch.randn(32, 3, 8, 8, generator=generator), torch.arange(32) % 2

    validation_data = train_data

    def model(self, params):
        del params
        blocks = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(3)]
        return nn.Sequential(nn.Conv2d(3, 8, 3), *blocks, nn.Flatten(), nn.Linear(8 * 36, 2))
