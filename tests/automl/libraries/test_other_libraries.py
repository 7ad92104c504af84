"""Accelerate, Keras, scikit-learn, XGBoost and LightGBM in trials."""

import os
from dataclasses import replace

import pytest
import torch

from tests.support import optional
from tests.support.function_trials import in_attempts, on, trained
from tests.support.library_trials import serve_one_trial_after_another, spec_of, with_equal_bits
from tests.support.paths import EXAMPLES
from trainers.checkpoints.checkpoint import read_checkpoint
from trainers.contract.task_loading import load_trainable
from trainers.functions.trial import Trial
from trainers.loop.step_counter import StepCounter
from trainers.protocol import TaskError
from trainers.ranks.process_group import Group
from trainers.trial_settings import settings_of

os.environ.setdefault("KERAS_BACKEND", "torch")
pytestmark = pytest.mark.filterwarnings("default")  # what the libraries warn of is their own
PARAMS = {"learning_rate": 0.01, "width": 16, "eta": 0.3, "depth": 3, "batch_per_rank": 64}


def example_spec(name, tmp_path, world_size=1):
    spec = spec_of("", world_size, params=PARAMS, training={"reference_batch": 64}, milestones=(3,))
    return replace(spec, checkpoint_folder=str(tmp_path), task=f"with_{name}:train", python_path=(str(EXAMPLES),))


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "library", "metric"),
    [
        ("keras", "keras", "val_accuracy"), ("scikit_learn", "skops", "val_error"),
        ("xgboost", "xgboost", "val_error"), ("lightgbm", "lightgbm", "val_error"),
    ],
)  # fmt: skip
def test_an_example_that_is_paused_after_each_epoch_ends_with_the_bits_of_one_that_is_not(
    tmp_path, name, library, metric
):
    optional.module(library)
    whole = on(None, example_spec(name, tmp_path / "whole"))[0]["measurements"]
    paused = [one["measurements"][0] for one in in_attempts(None, example_spec(name, tmp_path / "paused"))]
    assert [one.metrics[metric] for one in paused] == [one.metrics[metric] for one in whole]
    assert len({one.metrics[metric] for one in whole}) > 1, "the model learns"
    if name != "scikit_learn":  # skops writes the time into its files
        assert_equal(*(read_checkpoint(one[-1].checkpoint)["function"] for one in (whole, paused)))


def assert_equal(one, other):
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = list(one.values()), list(other.values())
    if isinstance(one, list):
        for left, right in zip(one, other, strict=True):
            assert_equal(left, right)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


@pytest.mark.parametrize("name", ["keras", "scikit_learn", "xgboost", "lightgbm"])
def test_a_library_that_trains_on_one_rank_refuses_gangs(tmp_path, name):
    optional.module({"scikit_learn": "skops"}.get(name, name))
    spec = example_spec(name, tmp_path, 2)
    group = Group(rank=0, world_size=2)  # which is not formed: nothing is exchanged before it is refused
    trial = Trial(spec, settings_of(spec), group, learning_rate=0.05, counter=StepCounter())
    with pytest.raises(TaskError, match="world_size is 2, but"):
        load_trainable(spec.task, {}, spec.python_path)(trial)  # type: ignore[operator]


@pytest.mark.parametrize(("world_size", "precision"), [(1, "no"), (2, "bf16")])
def test_a_loop_with_accelerate_goes_on_with_the_same_bits(ranks, tmp_path, world_size, precision):
    optional.module("accelerate")
    options = {"mixed_precision": precision}
    spec = spec_of("by_accelerate", world_size, task_options=options, checkpoint_folder=str(tmp_path))
    with_equal_bits(ranks, spec)


def test_ranks_serve_loops_with_accelerate_whatever_ends_them(ranks):
    optional.module("accelerate")
    ends = [(2, 1, ""), (1, 1, ""), (2, None, "raises"), (2, None, "")]
    serve_one_trial_after_another(ranks, "by_accelerate", ends)


def test_a_library_that_calls_back_becomes_the_loop_of_a_trial_and_more_epochs_are_refused(ranks, tmp_path):
    with_equal_bits(ranks, spec_of("by_another", 2, checkpoint_folder=str(tmp_path)))
    with pytest.raises(TaskError, match="the code trained more than 3 epochs"):
        trained(Group(), spec_of("by_another", task_options={"epochs": 4}))


def test_keras_ends_trials_and_refuses_what_it_cannot_do():
    optional.module("keras")
    done = trained(Group(), spec_of("by_keras", task_options={"fault": "has enough"}))
    assert [(one.epoch, one.complete) for one in done["measurements"]] == [(1, True)]
    for fault, words in (
        ("not built", "needs a built and compiled model"),
        ("epochs", r"fit\(\) got epochs, which the trial sets itself"),
    ):
        with pytest.raises(TaskError, match=words):
            trained(Group(), spec_of("by_keras", task_options={"fault": fault}))


@pytest.mark.parametrize("data", ["", "named", "list"])
def test_keras_trains_on_arrays_with_the_batches_of_the_trial_and_reports_what_callbacks_add(data):
    optional.module("keras")
    done = trained(Group(), spec_of("by_keras", task_options={"fault": data}))
    assert [one.metrics["batches"] for one in done["measurements"]] == [4] * 3, "54 samples in batches of 16"


@pytest.mark.medium
def test_an_estimator_with_unknown_types_is_refused(tmp_path):
    optional.module("skops")
    (tmp_path / "odd.py").write_text(
        "from automl.libraries.scikit_learn import EstimatorState\n"
        "class Odd:\n    inner = 1\n"
        "class Model:\n    def __init__(self):\n        self.odd = Odd()\n"
        "def train(trial, trusted=()):\n"
        "    for _ in trial.epochs(model=EstimatorState(trial, Model(), trusted)):\n"
        "        trial.report(val_error=1.0)\n"
    )
    spec = replace(spec_of("", checkpoint_folder=str(tmp_path)), task="odd:train", python_path=(str(tmp_path),))
    with pytest.raises(TaskError, match=r"skops does not trust odd\.Model, odd\.Odd in Model"):
        trained(Group(), spec, ends_with=1)
    trusting = replace(spec, task_options={"trusted": ["odd.Model", "odd.Odd"]})
    assert trained(Group(), trusting, ends_with=1)["measurements"][0].checkpoint


@pytest.mark.parametrize(
    "name", ["lightning", "hugging_face", "accelerate", "keras", "scikit_learn", "xgboost", "lightgbm"]
)
def test_an_example_is_short(name):
    assert len((EXAMPLES / f"with_{name}.py").read_text().splitlines()) <= 40
