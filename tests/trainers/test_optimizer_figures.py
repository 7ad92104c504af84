"""Learning rate and gradient norm of an epoch, against what the weights and the schedule say."""

import math

import pytest
import torch

from tests.support.trainer_pool import run_trial, spec_of, weights_of
from trainers.contract.task_loading import load_task
from trainers.loop.step_counter import GradientNorms
from trainers.loop.trainer import Trainer
from trainers.ranks.process_group import Group

PLAIN = {"warmup_epochs": 0, "schedule": "constant"}
STILL = {"momentum": 0.0, "weight_decay": 0.0}
"""With these a step moves the weights by the learning rate times the gradient."""
ONE_STEP = {"n": 16}


def moved_by_an_epoch(spec):
    """The length of the way that an epoch of one step moves the weights, and the measurement."""
    trainer = Trainer(spec, load_task(spec.task, spec.task_options, spec.python_path), group=Group())
    before = weights_of(trainer)
    (measurement,) = trainer.advance(1)
    way = torch.cat([(one - before[name]).flatten() for name, one in weights_of(trainer).items()]).norm().item()
    trainer.close()
    return way, measurement


@pytest.mark.parametrize(
    ("training", "params"),
    [({"clip_norm": 1e9}, {}), ({"accumulate": 2}, {"batch_per_rank": 8}), ({}, {})],
    ids=["where it is clipped", "where passes are compared", "in the first step of an epoch"],
)
def test_the_gradient_norm_is_what_moved_the_weights(training, params):
    way, measurement = moved_by_an_epoch(
        spec_of(options=ONE_STEP, training={**PLAIN, **training}, params=STILL | params)
    )
    figures = measurement.optimizer
    assert figures["learning_rate"] == 0.1
    assert figures["gradient_norm"] == pytest.approx(way / 0.1, rel=1e-6)


def test_the_rate_is_that_of_the_epochs_last_step_and_the_norm_that_before_clipping():
    way, measurement = moved_by_an_epoch(spec_of(options=ONE_STEP, training={**PLAIN, "clip_norm": 0.01}, params=STILL))
    _, free = moved_by_an_epoch(spec_of(options=ONE_STEP, training={**PLAIN, "clip_norm": 1e9}, params=STILL))
    assert way == pytest.approx(0.1 * 0.01, rel=1e-3)
    assert measurement.optimizer["gradient_norm"] == pytest.approx(free.optimizer["gradient_norm"], rel=1e-12)
    measured = run_trial(Group(), spec_of(training={"schedule": "step", "decay_every_epochs": 1, "warmup_epochs": 0}))
    rates = [one.optimizer["learning_rate"] for one in measured["measurements"]]
    assert rates == [pytest.approx(0.1 * 0.1**epoch) for epoch in range(3)]
    assert measured["measurements"][0].figures.keys() > {"learning_rate", "samples_per_second", "val_loss"}


@pytest.mark.parametrize("shard", ["none", "full"])
def test_two_ranks_tell_the_norm_of_one(ranks, shard):
    training = {**PLAIN, "clip_norm": 1e9}
    alone = run_trial(Group(), spec_of(training=training))["measurements"]
    for of_rank in ranks.run(2, run_trial, spec_of(2, training={**training, "shard": shard})):
        norms = [one.optimizer["gradient_norm"] for one in of_rank["measurements"]]
        assert norms == pytest.approx([one.optimizer["gradient_norm"] for one in alone], rel=1e-6)


def test_norms_of_many_steps_are_squared_and_averaged_without_those_that_overflowed():
    norms = GradientNorms(torch.device("cpu"))
    for norm in [float("inf"), *range(1, 3001), float("nan")]:
        norms.add(torch.tensor(float(norm)))
    assert norms.root_mean_square() == pytest.approx(math.sqrt(3001 * 6001 / 6))
    norms.begin_epoch()
    assert norms.root_mean_square() is None
