"""Steps that a training function leaves to the engine, and models whose weights its ranks share out."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.function_trials import on, trained
from tests.support.ranked_functions import network
from tests.support.trainer_pool import HERE
from trainers.checkpoints.checkpoint import read_checkpoint
from trainers.checkpoints.model_export import export_model, load_exported
from trainers.contract.task_loading import load_trainable
from trainers.functions.trial_loader import Loaders
from trainers.functions.trial_steps import Steps
from trainers.loop.step_counter import StepCounter
from trainers.model.traced_program import model_of_function
from trainers.protocol import TaskError, TrialSpec
from trainers.ranks.out_of_step import _begun
from trainers.ranks.process_group import Group
from trainers.trial_settings import Settings

PLAIN = {"samples": 48, "dropout": 0.0}


def spec_of(world_size=1, name="helped", **more):
    params = {"learning_rate": 0.05, "width": 8, "batch_per_rank": 8, "optimizer": "adamw"} | more.pop("params", {})
    training = {"epochs": 3, "reference_batch": 16} | more.pop("training", {})
    return TrialSpec(
        study="test", trial=0, task=f"tests.support.ranked_functions:{name}", params=params, training=training,
        world_size=world_size, python_path=(HERE,), **more,
    )  # fmt: skip


def whole_state(measurement):
    """The weights and the moments of the optimizer of a checkpoint, by name."""
    state = read_checkpoint(measurement.checkpoint)["function"]
    moments = state["optimizer"]["state"]
    return state["model"] | {f"{n} {name}": value for n in moments for name, value in moments[n].items()}


def in_parts(ranks, spec):
    """Train in attempts of one epoch each; returns the last measurement."""
    path = None
    for attempt in range(1, spec.training["epochs"] + 1):
        now = replace(spec, attempt=attempt, resume_from=path)
        (measurement,) = on(ranks, now, until=1000, ends_with=1)[0]["measurements"]
        path = measurement.checkpoint
    return measurement


def assert_same(one, other, **tolerance):
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], **(tolerance or {"rtol": 0, "atol": 0}))


@pytest.mark.parametrize(
    ("world_size", "params", "training"),
    [
        (1, {"accumulate": 2, "clip_norm": 0.5}, {}),
        (2, {"accumulate": 2, "precision": "bf16", "batch_per_rank": 4}, {}),
        (2, {"accumulate": 2, "batch_per_rank": 4, "clip_norm": 0.5}, {"shard": "full", "checkpoint_async": True}),
    ],
)
def test_a_trial_that_is_paused_ends_with_the_bits_of_one_that_is_not(ranks, tmp_path, world_size, params, training):
    spec = spec_of(world_size, params=params, training=training, checkpoint_folder=str(tmp_path / "parts"))
    whole = replace(spec, checkpoint_folder=str(tmp_path / "whole"), milestones=(3,))
    measured = on(ranks, whole)[0]["measurements"]
    last = in_parts(ranks, spec)
    assert last.metrics["val_error"] == measured[-1].metrics["val_error"]
    assert last.metrics["seen"] == 33, "each sample is evaluated once"
    assert last.metrics["is_half"] == (params.get("precision") == "bf16")
    assert_same(whole_state(last), whole_state(measured[-1]))
    files = {path.name for path in Path(last.checkpoint).parent.glob("epoch-0003.attempt-3*")}
    assert len(files) == (3 if training else 1), "ranks that hold rows write their shares beside the main file"


def test_sharded_weights_learn_what_whole_ones_learn_and_go_on_either_way(ranks, tmp_path):
    """The optimizer is the user's own, with two groups."""
    options = {**PLAIN, "own_optimizer": True}
    whole = spec_of(2, task_options=options, checkpoint_folder=str(tmp_path / "whole"), milestones=(1, 3))
    sharded = replace(whole, training={**whole.training, "shard": "full"}, checkpoint_folder=str(tmp_path / "sharded"))
    of_whole, of_sharded = (on(ranks, spec)[0]["measurements"] for spec in (whole, sharded))
    close = {"rtol": 1e-4, "atol": 1e-5}
    assert_same(whole_state(of_whole[-1]), whole_state(of_sharded[-1]), **close)
    again = replace(whole, resume_from=of_sharded[0].checkpoint, attempt=2, checkpoint_folder=str(tmp_path / "again"))
    assert_same(whole_state(on(ranks, again)[0]["measurements"][-1]), whole_state(of_whole[-1]), **close)
    back = replace(sharded, resume_from=of_whole[0].checkpoint, attempt=2, checkpoint_folder=str(tmp_path / "back"))
    assert_same(whole_state(on(ranks, back)[0]["measurements"][-1]), whole_state(of_whole[-1]), **close)
    assert_exports_whole(of_sharded[-1].checkpoint, whole, tmp_path / "model.pt")


def assert_exports_whole(checkpoint, spec, out):
    content = read_checkpoint(checkpoint)
    export_model(checkpoint, out)
    exported = load_exported(out)["state"]["model"]
    assert_same(exported, content["function"]["model"])
    function = load_trainable(spec.task, spec.task_options, spec.python_path)
    call = model_of_function(function, replace(spec, world_size=1), content, checkpoint, "model")
    assert_same(dict(call.model.state_dict()), dict(exported))


def test_passes_that_make_one_step_are_one_batch(ranks, tmp_path):
    """All samples make one step an epoch, so the ranks' shares and orders do not matter."""
    one = spec_of(1, params={"batch_per_rank": 48}, task_options=PLAIN, checkpoint_folder=str(tmp_path / "one"))
    params = {"batch_per_rank": 4, "accumulate": 6}
    many = spec_of(2, params=params, task_options=PLAIN, checkpoint_folder=str(tmp_path / "many"))
    done = [on(ranks, replace(spec, milestones=(3,)))[0]["measurements"][-1] for spec in (one, many)]
    assert [measurement.metrics["steps"] for measurement in done] == [1, 1]
    assert_same(*map(whole_state, done), rtol=1e-4, atol=1e-5)


def test_gradients_are_exchanged_once_a_step_and_too_short_epochs_refused(ranks):
    settings = Settings(world_size=2, accumulate=3)
    assert ranks.run(2, exchanges, settings) == [[0, 0, 1, 0, 0, 1]] * 2
    spec = spec_of(params={"accumulate": 9}, task_options=PLAIN)
    with pytest.raises(TaskError, match=r"accumulate is 9, but an epoch had only 6 backward passes\. Set"):
        trained(Group(), spec)


def exchanges(group, settings):
    """Return how many collectives each backward pass begins."""
    steps = Steps(settings, group, 0.1, is_sharded=False)
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    steps.add(model)
    optimizer = steps.optimizer(model.parameters())
    for _ in range(2):  # after the first pass ranks tell each other the order of gradients, too
        model(torch.ones(1, 2)).sum().backward()
    begun = [_begun()]
    for _ in range(6):
        with steps.passing():
            loss = model(torch.ones(1, 2)).sum()
        steps.backward(loss)
        begun.append(_begun())
        steps.step(optimizer)
    return [after - before for before, after in pairwise(begun)]


@pytest.mark.medium
def test_a_gradient_is_clipped_and_a_searched_optimizer_is_made():
    settings = Settings(clip_norm=0.25, optimizer="sgd", momentum=0.0, learning_rate=1.0)
    steps, weight = Steps(settings, Group(), 1.0, is_sharded=False), nn.Parameter(torch.zeros(4))
    optimizer = steps.optimizer([weight])
    steps.backward((weight * torch.tensor([3.0, 0.0, 4.0, 0.0])).sum())
    assert steps.step(optimizer)
    torch.testing.assert_close(weight.detach(), torch.tensor([-0.15, 0.0, -0.2, 0.0]), rtol=1e-4, atol=1e-6)
    assert weight.grad is None
    settings = Settings(optimizer="adam", beta1=0.8, beta2=0.9, weight_decay=0.01)
    (group,) = Steps(settings, Group(), 0.3, is_sharded=False).optimizer(network(4).parameters()).param_groups
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.3, (0.8, 0.9), 0.01)


@pytest.mark.medium
@pytest.mark.parametrize(("precision", "accumulate"), [("fp32", 1), ("bf16", 2), ("fp16", 1)])
def test_losses_that_were_not_summed_up_are_refused(precision, accumulate):
    """Their sum would be trained, with a rate that grows with the batch."""
    steps = Steps(Settings(precision=precision, accumulate=accumulate), Group(), 1.0, is_sharded=False)
    weight = nn.Parameter(torch.zeros(3))
    steps.optimizer([weight])
    with pytest.raises(RuntimeError, match="scalar"):
        steps.backward(weight * 2.0)
    assert weight.grad is None


@pytest.mark.medium
def test_losses_of_half_precision_are_scaled_and_the_scale_is_kept():
    settings = Settings(precision="fp16", loss_scale=1024.0, loss_scale_growth_steps=1, momentum=0.0)
    steps, model = Steps(settings, Group(), 0.5, is_sharded=False), nn.Linear(1, 1, bias=False)
    optimizer, other = steps.optimizer(model.parameters()), steps.optimizer(model.parameters())
    before = model.weight.detach().clone()
    steps.backward(model(torch.ones(1, 1)).sum())
    assert model.weight.grad.item() == 1024.0
    steps.step(optimizer)
    torch.testing.assert_close(model.weight.detach(), before - 0.5)
    assert steps.precision.state_dict()["scale"] == 2048.0
    later = Steps(settings, Group(), 0.5, is_sharded=False)
    later.precision.load_state_dict(steps.precision.state_dict())
    later.backward(model(torch.ones(1, 1)).sum())
    assert model.weight.grad.item() == 2048.0
    later.step(optimizer)
    with pytest.raises(TaskError, match="two optimizers took steps after one"):
        later.step(other)


@pytest.mark.parametrize("samples", [33, 32, 31, 2])
def test_ranks_that_pass_together_evaluate_in_equally_many_batches(samples):
    loaders = [
        Loaders(Group(rank=rank, world_size=2), 0, StepCounter(), passes_together=True).loader(
            range(samples), {"drop_last": False}, batch_size=16, is_training=False, is_shared_out=False
        )
        for rank in range(2)
    ]
    assert len({len(loader) for loader in loaders}) == 1
    assert sorted(int(number) for loader in loaders for batch in loader for number in batch) == list(range(samples))


@pytest.mark.medium
def test_what_ranks_that_pass_together_cannot_evaluate_is_refused():
    loaders = Loaders(Group(rank=0, world_size=2), 0, StepCounter(), passes_together=True)
    options = {"batch_size": 16, "is_training": False, "is_shared_out": False}
    with pytest.raises(TaskError, match="1 samples are too few for 2 ranks"):
        loaders.loader(range(1), {"drop_last": False}, **options)
    with pytest.raises(TaskError, match="Use a dataset with a length"):
        loaders.loader(iter([]), {}, **options)
    with pytest.raises(TaskError, match=r"is 'optimizer', which a training function cannot use. Choose none or full"):
        trained(Group(), spec_of(training={"shard": "optimizer"}))
