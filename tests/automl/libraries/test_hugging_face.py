"""A Hugging Face Trainer as a trial, in real ranks."""

import gc
import tempfile

import pytest

from tests.support import optional
from tests.support.function_trials import in_attempts, on, trained
from tests.support.library_trials import gang_is_usable, serve_one_trial_after_another, spec_of, with_equal_bits
from trainers.protocol import TaskError
from trainers.ranks.process_group import Group

optional.installed("transformers", "accelerate")
pytestmark = pytest.mark.filterwarnings("default")  # what transformers warns of is its own


@pytest.mark.large
def test_a_trial_that_is_paused_after_each_epoch_ends_with_the_bits_of_one_that_is_not(ranks, tmp_path):
    spec = spec_of("by_hugging_face", 2, task_options={"bf16": True}, checkpoint_folder=str(tmp_path))
    whole, paused = with_equal_bits(ranks, spec)
    seen = [one.metrics for one in paused]
    for metric in ("eval_error", "eval_loss"):
        assert [one[metric] for one in seen] == [one.metrics[metric] for one in whole]
    assert set(seen[0]) == {"eval_error", "eval_loss", "model_parameters", "peak_memory_bytes"}


@pytest.mark.medium
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


@pytest.mark.medium
def test_a_rank_that_sees_several_gpus_trains_on_its_own_and_one_that_saves_nothing_leaves_nothing(
    tmp_path, monkeypatch
):
    """Transformers would spread the batch of a single process over all GPUs that it sees, by DataParallel."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    faults = ("", "sees four GPUs")
    own, seeing = (trained(Group(), spec_of("by_hugging_face", task_options={"fault": one})) for one in faults)
    losses = [[measured.metrics["eval_loss"] for measured in one["measurements"]] for one in (own, seeing)]
    assert losses[0] == losses[1]
    del own, seeing
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_ranks_serve_one_trial_after_another_whatever_ends_them(ranks, tmp_path):
    """A trial that is cut, one that fails, and wider and narrower ones: Accelerate remembers gangs in globals."""
    ends = [(2, 1, ""), (1, 1, ""), (2, None, "raises"), (2, 1, "evaluates"), (1, None, "")]
    serve_one_trial_after_another(ranks, "by_hugging_face", ends)
    assert all(ranks.run(2, gang_is_usable, spec_of("by_hugging_face", 2)))


@pytest.mark.medium
def test_a_trainer_that_has_enough_ends_its_trial():
    done = trained(Group(), spec_of("by_hugging_face", task_options={"fault": "has enough"}))
    assert [(one.epoch, one.complete) for one in done["measurements"]] == [(1, True)]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("too many", "the code trained more than 3 epochs"),
        ("no evaluation", "epoch 1: the evaluation of transformers.Trainer measured nothing"),
    ],
)
def test_what_is_wrong_is_said(fault, words):
    with pytest.raises(TaskError, match=words):
        trained(Group(), spec_of("by_hugging_face", task_options={"fault": fault}))
