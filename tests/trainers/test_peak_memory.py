"""The peak memory of a trial is that of the training, however often it was paused and went on."""

from dataclasses import replace
from itertools import count

import pytest

from tests.support.trainer_pool import BLOBS, HERE, messages_of
from tests.support.trial_rows import in_new_processes
from trainers.checkpoints.checkpoint import read_checkpoint, write_atomically
from trainers.protocol import TrialSpec
from trainers.ranks.rank_messages import Failed
from trainers.ranks.rank_process import RankProcess

pytestmark = [pytest.mark.large, pytest.mark.xdist_group("ranks")]

EPOCHS = 2
MOST_DIFFERENCE = 0.03
FUNCTION = "tests.support.training_functions:large"
_keys = count()


def spec_with(folder, *, world_size=1, task=BLOBS, training=None, **params):
    """A trial with about 35 MiB of weights, most of them in one matrix.

    The system gets blocks of more than 32 MiB back as soon as they are freed. Smaller ones lie in glibc's heap, whose
    gaps differ from process to process: with three matrices of 17 MiB equal trials differed by two of them.
    """
    options = {"dtype": "float32", "kind": "blocks", "n": 16, "n_validation": 8, "width": 3000, "blocks": 1}
    return TrialSpec(
        study="peak", trial=0, task=task, task_options={} if task == FUNCTION else options, world_size=world_size,
        params={"learning_rate": 0.001, "batch_per_rank": 8 // world_size, **params},
        training={"epochs": EPOCHS, "reference_batch": 8, **(training or {})}, milestones=tuple(range(1, EPOCHS + 1)),
        checkpoint_folder=str(folder), checkpoint_every_seconds=1e9, python_path=(HERE,),
    )  # fmt: skip


def in_new(spec, until):
    """Train up to an epoch in processes that are new; returns rank 0's measurements."""
    return in_new_processes(spec.world_size, _train, spec, until, f"peak-{next(_keys)}")[0]


def _train(rank, store, spec, until, key):
    measured = []
    for message in messages_of(
        RankProcess(device="cpu", cpus_per_rank=1), spec, until, key, rank=rank, group_id=key, store=store
    ):
        assert not isinstance(message, Failed), message
        measured += message if isinstance(message, list) else []
    return measured


def assert_same_peak(mine, theirs):
    peaks = [one.metrics["peak_memory_bytes"] for one in (mine, theirs)]
    assert peaks[0] == pytest.approx(peaks[1], rel=MOST_DIFFERENCE), [round(peak / 2**20) for peak in peaks]


@pytest.mark.parametrize(
    ("changes", "more"), [({"training": {"ema": 0.9}}, {"optimizer": "adamw"}), ({"task": FUNCTION}, {})]
)
def test_a_trial_that_pauses_has_the_peak_of_one_that_does_not(tmp_path, changes, more):
    spec = spec_with(tmp_path, **changes, **more)
    whole = in_new(spec, EPOCHS)
    (resumed,) = in_new(replace(spec, attempt=2, resume_from=whole[0].checkpoint), EPOCHS)
    assert_same_peak(resumed, whole[1])


def test_a_trial_that_goes_on_with_as_many_ranks_or_fewer_has_the_peak_of_one_that_began_with_them(tmp_path):
    two = spec_with(tmp_path, world_size=2, optimizer="adamw", training={"shard": "optimizer"})
    whole = in_new(two, EPOCHS)
    again = {"attempt": 2, "resume_from": whole[0].checkpoint}
    (resumed,) = in_new(replace(two, **again), EPOCHS)
    assert_same_peak(resumed, whole[1])
    one = spec_with(tmp_path / "one", optimizer="adamw", batch_per_rank=4, accumulate=2)
    (fresh,), (fewer,) = in_new(one, 1), in_new(replace(one, **again), EPOCHS)
    assert_same_peak(fewer, fresh)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("task", "options"), [(BLOBS, {"n": 16, "n_validation": 8}), ("tests.support.training_functions:train", {})]
)
def test_the_peak_of_an_earlier_attempt_is_not_forgotten(tmp_path, task, options):
    spec = replace(spec_with(tmp_path, task=task, width=8), task_options=options)
    (first,) = in_new(spec, 1)
    content = read_checkpoint(first.checkpoint)
    assert content["static"]["peak_memory_bytes"] == pytest.approx(first.metrics["peak_memory_bytes"], rel=0.01)
    content["static"]["peak_memory_bytes"] = 2.0**40
    write_atomically(content, first.checkpoint)
    (second,) = in_new(replace(spec, resume_from=first.checkpoint, attempt=2), 2)
    assert second.metrics["peak_memory_bytes"] == 2.0**40
    assert read_checkpoint(second.checkpoint)["static"]["peak_memory_bytes"] == 2.0**40
