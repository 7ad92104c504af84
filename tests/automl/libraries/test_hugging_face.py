"""A Hugging Face Trainer as a trial, in real ranks."""

from __future__ import annotations

import gc
import tempfile

import pytest
import torch

from tests.support import optional
from tests.support.function_trials import in_attempts, on, trained
from tests.support.library_trials import gang_is_usable, spec_of
from trainers.protocol import TaskError, TrainingError
from trainers.ranks.process_group import Group

optional.installed("transformers", "accelerate")
pytestmark = pytest.mark.filterwarnings("default")  # what transformers warns of is its own


@pytest.mark.large
@pytest.mark.parametrize(("world_size", "bf16"), [(1, False), (2, True)])
def test_a_trial_that_is_paused_after_each_epoch_ends_with_the_bits_of_one_that_is_not(
    ranks, tmp_path, world_size, bf16
):
    spec = spec_of("by_hugging_face", world_size, task_options={"bf16": bf16}, checkpoint_folder=str(tmp_path))
    whole = on(ranks, spec)
    assert [one.epoch for one in whole[0]["measurements"]] == [1, 2, 3]
    for one in whole[1:]:
        for name, value in whole[0]["weights"].items():
            assert torch.equal(value, one["weights"][name]), f"{name} differs between ranks"
    attempts = in_attempts(ranks, spec)
    assert [one["facts"].start_epoch for one in attempts] == [0, 1, 2]
    for name, value in whole[0]["weights"].items():
        assert torch.equal(value, attempts[-1]["weights"][name]), name
    seen = [one["measurements"][0].metrics for one in attempts]
    for metric in ("eval_error", "eval_loss"):
        assert [one[metric] for one in seen] == [one.metrics[metric] for one in whole[0]["measurements"]]
    assert set(seen[0]) == {"eval_error", "eval_loss", "model_parameters", "peak_memory_bytes"}


def test_a_trial_on_a_stream_goes_on_with_the_next_epoch(tmp_path):
    spec = spec_of("by_hugging_face", task_options={"fault": "stream"}, checkpoint_folder=str(tmp_path))
    whole = [one.metrics["eval_loss"] for one in trained(Group(), spec)["measurements"]]
    assert len({*whole}) == 3
    attempts = in_attempts(None, spec)
    assert [one["measurements"][0].metrics["eval_loss"] for one in attempts] == whole


def test_ranks_learn_together(ranks):
    """With equal batches in all, two ranks learn what one does, up to rounding: they see each sample once."""
    alone, together = (
        on(ranks, spec_of("by_hugging_face", world_size, training={"epochs": 1}, task_options={"dropout": 0.0}))
        for world_size in (1, 2)
    )
    losses = [one[0]["measurements"][0].metrics["eval_loss"] for one in (alone, together)]
    assert losses[0] == pytest.approx(losses[1], rel=0.2)


def test_a_rank_that_sees_several_gpus_trains_on_its_own():
    """Transformers would spread the batch of a single process over all GPUs that it sees, by DataParallel."""
    faults = ("", "sees four GPUs")
    own, seeing = (trained(Group(), spec_of("by_hugging_face", task_options={"fault": one})) for one in faults)
    losses = [[measured.metrics["eval_loss"] for measured in one["measurements"]] for one in (own, seeing)]
    assert losses[0] == losses[1]


def test_ranks_serve_one_trial_after_another_whatever_ends_them(ranks, tmp_path):
    """A trial that is cut, one that fails, and wider and narrower ones: Accelerate remembers gangs in globals."""
    ends = [(2, 1, ""), (1, 1, ""), (2, None, "raises"), (2, 1, "evaluates"), (1, None, ""), (2, None, "")]
    for number, (world_size, ends_with, fault) in enumerate(ends):
        spec = spec_of("by_hugging_face", world_size, trial=number, task_options={"fault": fault})
        done = ranks.run(world_size, trained, spec, 1000, ends_with)
        for one in done:
            if fault == "raises":
                assert isinstance(one, TrainingError)
                assert "the user's own mistake" in str(one)
            else:
                assert len(one["measurements"]) == (ends_with or 3)
        assert all(ranks.run(world_size, gang_is_usable))
    assert all(ranks.run(2, gang_is_usable, spec_of("by_hugging_face", 2)))


def test_a_trainer_that_has_enough_ends_its_trial():
    done = trained(Group(), spec_of("by_hugging_face", task_options={"fault": "has enough"}))
    assert [(one.epoch, one.complete) for one in done["measurements"]] == [(1, True)]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("too many", "epochs: found more than 3"),
        ("no evaluation", "epoch 1: the evaluation of transformers.Trainer gave no metrics"),
    ],
)
def test_what_is_wrong_is_said(fault, words):
    with pytest.raises(TaskError, match=words):
        trained(Group(), spec_of("by_hugging_face", task_options={"fault": fault}))


def test_a_trainer_that_saves_nothing_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    trained(Group(), spec_of("by_hugging_face"))
    gc.collect()
    assert list(tmp_path.iterdir()) == []
