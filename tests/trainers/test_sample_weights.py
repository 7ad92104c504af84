"""Samples that count several times, as sequences of several tokens do: means are over the weights of all ranks."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.trainer_pool import Blobs, on_ranks, run_trial, spec_of
from trainers.contract.task_loading import load_task
from trainers.loop.evaluation import StepWeights, evaluate, means_and_errors
from trainers.loop.trainer import Trainer
from trainers.protocol import DivergedError, TaskError
from trainers.ranks.process_group import Group

TASK = "tests.trainers.test_sample_weights:WeighedBlobs"


class WeighedBlobs(Blobs):
    """Targets of class c count c times: 0, 1 or 2; so do the losses in training, and the errors in a metric."""

    metric_names = ("val_error", "val_weighed_error")

    def __init__(self, weights="classes", **options):
        super().__init__(**options)
        self.kind_of_weights = weights

    def metrics(self, outputs, targets):
        wrong = outputs.argmax(dim=-1) != targets
        return {"val_error": wrong, "val_weighed_error": wrong}

    def weights(self, targets):
        return {
            "classes": {"loss": targets, "val_weighed_error": targets}, "ones": {"loss": torch.ones_like(targets)},
            "none": {"val_weighed_error": targets}, "zeros": {"loss": torch.zeros_like(targets)},
            "unknown": {"val_errors": targets}, "scalar": {"loss": targets.sum()}, "list": [1.0],
        }[self.kind_of_weights]  # fmt: skip


def weighed(world_size=1, *, options=None, training=None, **more):
    spec = spec_of(world_size, options={"n": 53, **(options or {})}, training=training, **more)
    return replace(spec, task=TASK)


def trained(ranks, spec):
    return on_ranks(ranks, spec)[0]


@pytest.mark.parametrize(
    ("world_size", "batch_per_rank", "training"),
    [
        (3, 16, {}), (2, 4, {"accumulate": 2, "clip_norm": 0.3, "ema": 0.9}), (2, 8, {"shard": "full"}),
        (2, 8, {"shard": "optimizer", "optimizer": "adamw"}),
    ],
)  # fmt: skip
def test_a_step_is_one_of_the_mean_over_all_weights(ranks, world_size, batch_per_rank, training):
    of_one = {name: value for name, value in training.items() if name not in {"accumulate", "shard"}}
    batch = world_size * batch_per_rank * training.get("accumulate", 1)
    one = trained(ranks, weighed(params={"batch_per_rank": batch}, training=of_one))
    spec = weighed(world_size, params={"batch_per_rank": batch_per_rank}, training=training)
    several = trained(ranks, spec)
    for name, value in one["weights"].items():
        assert (value - several["weights"][name]).abs().max().item() < 1e-12, name
    for mine, theirs in zip(several["measurements"], one["measurements"], strict=True):
        for name in ("train_loss", "val_loss", "val_error", "val_weighed_error"):
            assert mine.metrics[name] == pytest.approx(theirs.metrics[name], rel=1e-12), name


def test_the_first_step_is_that_of_a_loop_by_hand(ranks):
    options = {"n": 16}
    spec = weighed(options=options, training={"epochs": 1, "optimizer": "sgd", "warmup_epochs": 0})
    seen = {}

    class Spy(WeighedBlobs):
        def model(self, params):
            seen["model"] = super().model(params)
            seen["before"] = {name: value.clone() for name, value in seen["model"].state_dict().items()}
            return seen["model"]

    trainer = Trainer(spec, Spy(**options), group=Group())
    (measurement,) = trainer.advance(1, lambda: None)
    after = {name: value.clone() for name, value in seen["model"].state_dict().items()}
    trainer.close()
    model, task = seen["model"], WeighedBlobs(**options)
    model.load_state_dict(seen["before"])
    inputs, targets = task.train_data({})
    losses = task.loss(model(inputs), targets)
    loss = (losses * targets).sum() / targets.sum()
    assert measurement.metrics["train_loss"] == pytest.approx(loss.item(), rel=1e-12)
    model.zero_grad()
    loss.backward()
    moves = [(after[name] - seen["before"][name], parameter.grad) for name, parameter in model.named_parameters()]
    moved, gradient = (torch.cat([pair[side].flatten() for pair in moves]) for side in (0, 1))
    assert torch.nn.functional.cosine_similarity(moved, -gradient, dim=0).item() > 1 - 1e-9


def test_weights_of_one_or_for_metrics_alone_change_nothing_and_evaluations_are_weighed(ranks):
    plain = run_trial(Group(), spec_of(options={"n": 53}))
    for kind in ("ones", "none"):
        other = trained(ranks, weighed(options={"weights": kind}))
        for name, value in plain["weights"].items():
            assert (value - other["weights"][name]).abs().max().item() < 1e-13
        last = other["measurements"][-1].metrics
        assert last["val_error"] == pytest.approx(plain["measurements"][-1].metrics["val_error"])
    assert last["val_weighed_error"] != pytest.approx(last["val_error"])
    assert isinstance(trained(ranks, weighed(2, options={"weights": "zeros"})), DivergedError)
    spec = weighed(2)
    done = trained(ranks, spec)
    task = load_task(TASK, spec.task_options)
    model = task.model({})
    model.load_state_dict(done["weights"])
    recorded = done["measurements"][-1].metrics
    for name, value in evaluate(model, task, {}).items():
        assert value == pytest.approx(recorded[name], rel=1e-9), name


def test_the_standard_error_of_a_weighted_mean_is_the_one_over_drawn_samples():
    """Against 4,000 means of samples that were drawn again with their weights."""
    random = np.random.default_rng(0)
    values, weights = random.exponential(size=400), random.integers(1, 9, size=400).astype(float)
    weighted = values * weights
    sums = [weighted.sum(), weights.sum(), (weighted**2).sum(), (weighted * weights).sum(), (weights**2).sum()]
    found = means_and_errors(["val_loss"], torch.tensor(sums, dtype=torch.float64)[:, None])
    drawn = random.integers(0, 400, size=(4000, 400))
    means = (values * weights)[drawn].sum(1) / weights[drawn].sum(1)
    assert found["val_loss"] == pytest.approx(np.average(values, weights=weights))
    assert found["val_loss_stderr"] == pytest.approx(means.std(), rel=0.05)
    assert means_and_errors(["a"], torch.tensor([[2.0], [1.0], [4.0], [2.0], [1.0]], dtype=torch.float64)) == {"a": 2.0}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("unknown", "sample weights for 'val_errors', allowed: loss, val_error, val_weighed_error"),
        ("scalar", "the weight of 'loss' must have one value per sample, shape [16]"),
        ("list", "WeighedBlobs.weights: found a list, allowed: a mapping"),
    ],
)
def test_weights_of_another_form_are_refused(kind, words):
    with pytest.raises(TaskError) as refused:
        run_trial(Group(), weighed(options={"weights": kind}))
    assert words in str(refused.value)


class Copies(TorchDispatchMode):
    """Counts copies from one device to another, of which each to the host waits for the GPU."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


def test_gradients_that_lie_on_the_host_are_divided_there():
    """As `shard_offload` leaves them, of ranks on GPUs; fake tensors know devices that the machine has not."""
    gpu = torch.device("cuda", 0)
    with FakeTensorMode(allow_non_fake_inputs=True):
        step = StepWeights(WeighedBlobs(), Group(device=gpu))
        step.add(torch.full((3,), 2.0, device=gpu))
        parameters = [nn.Parameter(torch.ones(4, device=device)) for device in ("cpu", gpu, "cpu", "cpu")]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        with Copies() as copies:
            step.divide(parameters, 3)
        assert copies.count == 1
        assert [parameter.grad.device.type for parameter in parameters] == ["cpu", "cuda", "cpu", "cpu"]
