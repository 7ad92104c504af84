"""Streams of unknown length, of tasks and of functions: steps, shares, bits and errors are those of other data."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.utils.data import IterableDataset

from tests.support import function_trials, library_trials
from tests.support.streamed_blobs import STREAMED, StreamedBlobs
from tests.support.trainer_pool import HERE, on_ranks, run_trial, spec_of
from tests.trainers.test_epoch_parts import assert_same_weights, trained_in_parts
from trainers.checkpoints.checkpoint import last_checkpoint, read_checkpoint
from trainers.contract.task_loading import load_task
from trainers.data import sample_order
from trainers.data.streams import Sharing, StreamSamples
from trainers.failures import CheckpointError
from trainers.local.try_out_task import probe
from trainers.loop.step_counter import StepCounter
from trainers.loop.trainer import Trainer
from trainers.model.network import count
from trainers.protocol import LostError, TaskError
from trainers.ranks.process_group import Group

KNOWN_END = {"samples_per_epoch": 48}
WHOLE = {"schedule": "constant", "warmup_epochs": 0}


def stream_spec(world_size=1, *, options=None, training=None, **more):
    spec = spec_of(world_size, options=options, training={**WHOLE, **(training or {})}, **more)
    return replace(spec, task=STREAMED)


def ran(pool, spec, **more):
    done = on_ranks(pool, spec, **more)
    for error in sorted(
        (one for one in done if isinstance(one, Exception)), key=lambda one: isinstance(one, LostError)
    ):
        raise error
    return done


def seen_in(done, epoch):
    return Counter(number for rank in done for number in rank["seen"][epoch])


@pytest.mark.parametrize(("world_size", "n"), [(1, 50), (4, 33)])
def test_each_sample_is_trained_on_once_by_one_rank(ranks, world_size, n):
    """The last step has 2 or 1 samples for up to 4 ranks; those without one pass a sample that counts nothing."""
    done = ran(ranks, stream_spec(world_size, options={"n": n}, training={"epochs": 2}))
    for epoch in range(2):
        spare = max(0, world_size - n % 16)
        seen = seen_in(done, epoch)
        assert set(seen) == set(range(n))
        assert seen.total() == n + spare
    orders = [done[0]["seen"][epoch] for epoch in range(2)]
    assert orders[0] != orders[1], "each pass draws an order of its own"
    assert done[0]["measurements"][0].metrics["samples_per_second"] > 0


@pytest.mark.parametrize(
    ("world_size", "params", "training"),
    [
        (4, {}, KNOWN_END),
        (2, {"batch_per_rank": 4, "accumulate": 2}, {"clip_norm": 0.5, "ema": 0.9}),
        (2, {}, {"shard": "full", **KNOWN_END, "schedule": "cosine"}),
    ],
)
def test_ranks_train_to_the_weights_of_one_rank(ranks, world_size, params, training):
    alone = ran(None, stream_spec(options={"n": 49, "validation": "stream"}, training=training))[0]
    spec = stream_spec(world_size, options={"n": 49, "validation": "stream"}, training=training, params=params)
    together = ran(ranks, spec)
    assert_same_weights(alone, together[0], 1e-10)
    mine, theirs = (one["measurements"][-1].metrics for one in (alone, together[0]))
    assert mine["val_loss"] == pytest.approx(theirs["val_loss"], abs=1e-10)
    assert mine["val_error"] == theirs["val_error"]
    assert mine["train_loss"] == pytest.approx(theirs["train_loss"], abs=1e-10)


@pytest.mark.parametrize("kind", ["mlp", "flat norms"])
def test_a_stream_trains_to_the_bits_of_a_dataset_in_the_same_order(monkeypatch, kind):
    """Also where BatchNorm cannot do with a last step of one sample, which takes one from the step before."""
    monkeypatch.setattr(sample_order, "permutation", lambda samples, **_: torch.arange(samples))
    options = {"n": 33, "kind": kind, "dropout": 0.5}
    streamed = ran(None, stream_spec(options={**options, "shuffles": False}))[0]
    plain = run_trial(Group(), spec_of(options={**options, "dataset": True}, training=WHOLE))
    assert_same_weights(streamed, plain)


@pytest.mark.medium
@pytest.mark.parametrize(("training", "workers"), [({}, 1), (KNOWN_END, 2)])
def test_worker_processes_change_no_bit(training, workers):
    options, training = {"n": 49, "dropout": 0.3, "validation": "stream"}, {"epochs": 2, **training}
    here = ran(None, stream_spec(options=options, training=training))[0]
    elsewhere = ran(None, stream_spec(options=options, training={**training, "data_workers": workers}))[0]
    assert_same_weights(here, elsewhere)
    assert here["measurements"][-1].metrics["val_loss"] == elsewhere["measurements"][-1].metrics["val_loss"]


def read_by(rank, workers, *, number=1, skip=0):
    """The samples of each pass of one of three ranks, as numbers."""
    data = StreamedBlobs(n=50).train_data({})
    samples = StreamSamples(data, "train_data", torch.device("cpu"), workers)
    sharing = Sharing(batch_per_rank=2, accumulate=2, rank=rank, world_size=3, seed=7)
    steps = samples.steps(sharing, number, skip)
    return [[batch[0][:, 0].tolist() for one, batch in step if not one.is_empty] for step in steps]


@pytest.mark.medium
@pytest.mark.parametrize(("number", "workers"), [(1, 2), (2, 1)])
def test_ranks_read_the_same_shares_whatever_their_worker_processes(number, workers):
    by_rank = [read_by(rank, 0, number=number) for rank in range(3)]
    assert Counter(sample for steps in by_rank for step in steps for one in step for sample in one) == Counter(
        range(50)
    )
    assert [read_by(rank, workers, number=number) for rank in range(3)] == by_rank
    assert read_by(1, workers, number=number, skip=3) == by_rank[1][3:]


def test_an_epoch_of_so_many_samples_goes_on_in_the_stream_and_begins_it_anew(ranks):
    """20 samples in steps of 16: two steps an epoch, of which the third epoch's second one begins the next pass."""
    spec = stream_spec(options={"n": 70}, training={"samples_per_epoch": 20, "epochs": 6, "schedule": "cosine"})
    done = ran(None, spec)[0]
    assert [len(seen) for seen in done["seen"]] == [32, 32, 6 + 16, 32, 16 + 6, 32]
    assert Counter(sum(done["seen"][:2], done["seen"][2][:6])) == Counter(range(70))
    assert done["measurements"][-1].optimizer["learning_rate"] < 0.01, "the cosine has come to its end"


@pytest.mark.parametrize(
    ("world_size", "options", "training"),
    [
        (2, {"dropout": 0.3}, {**KNOWN_END, "schedule": "one_cycle", "ema": 0.9}),
        (2, {"counts": [32, 32]}, {"samples_per_epoch": 64}),  # which is a whole pass
        (1, {"counts": [70], "dropout": 0.3}, {"data_workers": 2}),
    ],
)
def test_a_pause_after_an_epoch_changes_no_bit(ranks, tmp_path, world_size, options, training):
    spec = stream_spec(world_size, options={"n": 70, **options}, training={"epochs": 4, **training})
    whole = ran(ranks, spec)[0]
    spec = replace(spec, checkpoint_folder=str(tmp_path))
    ran(ranks, spec, end_at=1)
    ran(ranks, replace(spec, resume_from=str(last_checkpoint(tmp_path))), end_at=3)
    resumed = ran(ranks, replace(spec, resume_from=str(last_checkpoint(tmp_path))))[0]
    assert_same_weights(whole, resumed)
    assert whole["measurements"][-1].metrics["val_loss"] == resumed["measurements"][-1].metrics["val_loss"]
    assert whole["measurements"][-1].metrics["train_loss"] == resumed["measurements"][-1].metrics["train_loss"]


@pytest.mark.parametrize(
    ("world_size", "options", "training", "step"),
    [
        (1, {"dropout": 0.3, "kind": "flat norms", "n": 33}, {}, 2), (2, {"counts": [32, 32]}, {}, 4),
        (2, {"dropout": 0.3}, {**KNOWN_END, "schedule": "cosine"}, 5), (1, {"counts": [70]}, {"data_workers": 2}, 3),
    ],
)  # fmt: skip
def test_a_trial_goes_on_within_an_epoch(ranks, tmp_path, world_size, options, training, step):  # noqa: PLR0917
    """Also after the last step of a pass, of which nobody knew that it is the last."""
    spec = stream_spec(world_size, options={"n": 70, **options}, training=training, checkpoint_folder=str(tmp_path))
    whole = ran(ranks, replace(spec, checkpoint_folder=None))[0]
    (part, *_) = on_ranks(ranks, spec, trained_in_parts, ends_at_step=step)
    assert part["parts"][-1].ended
    resumed = on_ranks(ranks, replace(spec, resume_from=part["parts"][-1].checkpoint), trained_in_parts)[0]
    assert_same_weights(whole, resumed)
    mine, theirs = (one["measurements"][-1].metrics for one in (whole, resumed))
    assert mine["train_loss"] == pytest.approx(theirs["train_loss"], abs=1e-12)


def test_another_world_size_goes_on_and_another_length_of_epochs_is_refused(ranks, tmp_path):
    spec = stream_spec(2, options={"n": 70}, training=KNOWN_END, checkpoint_folder=str(tmp_path))
    whole = ran(ranks, replace(spec, checkpoint_folder=None))[0]
    part = on_ranks(ranks, spec, trained_in_parts, ends_at_step=4)[0]
    shrunk = stream_spec(options={"n": 70}, training=KNOWN_END, resume_from=part["parts"][-1].checkpoint)
    assert_same_weights(whole, ran(None, shrunk)[0], 1e-10)
    spec = stream_spec(training=KNOWN_END, checkpoint_folder=str(tmp_path))
    ran(None, spec, end_at=1)
    other = stream_spec(training={"samples_per_epoch": 16}, resume_from=str(last_checkpoint(tmp_path)))
    with pytest.raises(CheckpointError, match="Set samples_per_epoch to its earlier value"):
        ran(None, other)


def test_how_many_steps_an_epoch_has_is_known_after_the_first(tmp_path):
    """So the part of an epoch that is done, by which later ones are forecast, is 0 in the first one."""
    spec = stream_spec(options={"n": 50}, checkpoint_folder=str(tmp_path), milestones=(3,))
    counter, done = StepCounter(), {1: [], 2: [], 3: []}
    trainer = Trainer(spec, load_task(STREAMED, {"n": 50}, [HERE]), group=Group(), counter=counter)
    trainer.training.on_step = lambda: done[counter.read().epoch].append(counter.read().fraction)
    list(trainer.advance(3))
    trainer.close()
    assert done[1] == [0.0] * 4
    assert 0 <= done[2][0] < done[2][1] < done[2][3] <= 1
    assert done[3] == done[2]
    assert read_checkpoint(last_checkpoint(tmp_path))["position"]["stream_last_steps"] == 4


def test_a_stream_that_shares_itself_out_ends_with_the_rank_that_has_least(ranks):
    """30 and 40 samples in batches of 8: four steps, of which the last has 6 and 8."""
    done = ran(ranks, stream_spec(2, options={"n": 70, "counts": [30, 40]}, training={"epochs": 1}))
    assert [rank["seen"][0] for rank in done] == [list(range(30)), list(range(30, 62))]
    done = ran(None, stream_spec(options={"n": 70, "counts": [70]}, training={"epochs": 1, "data_workers": 2}))
    assert Counter(done[0]["seen"][0]) == Counter(range(70))


@pytest.mark.parametrize(("world_size", "validation"), [(1, "stream"), (2, "shards"), (4, "stream")])
def test_a_validation_stream_is_summed_exactly(ranks, world_size, validation):
    given = {"n": 32, "validation": [20, 11] if validation == "shards" else "stream", "shuffles": False}
    streamed = ran(ranks, stream_spec(world_size, options=given, training={"epochs": 1}))[0]
    plain = ran(None, stream_spec(options={"n": 32, "shuffles": False}, training={"epochs": 1}))[0]
    mine, theirs = (one["measurements"][0].metrics for one in (streamed, plain))
    assert mine["val_loss"] == pytest.approx(theirs["val_loss"], abs=1e-12)
    assert mine["val_error"] == theirs["val_error"]
    assert mine["latency_ms"] > 0


@pytest.mark.parametrize(
    ("options", "training", "message"),
    [
        ({"fault": "empty"}, {}, "train_data has no samples"),
        ({"validation": "empty"}, {}, "validation_data has no samples"),
        ({"fault": "is an iterator"}, {}, "train_data returned OneShot, which can be read only once. Return a stream"),
        ({"fault": "once"}, {}, "train_data: pass 2 over the stream has no samples. Return a stream that has"),
        ({}, {"schedule": "cosine"}, "samples_per_epoch is auto and schedule is cosine, which needs the number of"),
        ({}, {"warmup_epochs": 1.0}, "samples_per_epoch is auto and warmup_epochs is 1.0, which needs"),
        ({"own_schedule": True}, {}, "samples_per_epoch is auto and the task has its own schedule"),
    ],
)
def test_what_cannot_be_trained_is_one_line(options, training, message):
    with pytest.raises(TaskError) as caught:
        ran(None, stream_spec(options=options, training=training))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.medium
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_that_raises_fails_with_its_own_error(workers):
    spec = stream_spec(options={"fault": "raises"}, training={"data_workers": workers})
    with pytest.raises(TaskError, match="sample 20 cannot be read"):
        ran(None, spec)


@pytest.mark.parametrize(
    ("options", "training", "message"),
    [
        ({"counts": [20, 0]}, {}, "train_data: pass 1 over the stream: rank 1 of 2 got no samples. Give each rank at"),
        ({"validation": [31, 0]}, {}, "validation_data: rank 1 of 2 got no samples. Give each rank at least one"),
        ({"validation": [30, 1]}, {"shard": "full"}, "validation_data is a stream with set_rank, but with shard: full"),
    ],
)
def test_a_rank_without_samples_is_named(ranks, options, training, message):
    with pytest.raises(TaskError) as caught:
        ran(ranks, stream_spec(2, options=options, training=training))
    assert message in str(caught.value)


@pytest.mark.medium
def test_a_stream_is_tried_out_and_counted_without_reading_all_of_it():
    answer = probe(STREAMED, {"fault": "raises", "validation": "raises"}, [HERE], {})
    assert (answer["error"], answer["samples"]) == (None, None)
    assert not answer["has_schedule"]
    assert probe(STREAMED, {"own_schedule": True}, [HERE], {})["has_schedule"]
    task = load_task(STREAMED, {"fault": "raises", "dtype": "float32"}, [HERE])
    for training, samples in (({}, None), (KNOWN_END, 48)):
        (row,) = count(task, [{}], training)
        assert row["samples_per_epoch"] == samples
        assert row["flops_per_sample"] > 0


MODULE = "tests.support.training_functions"


def shared_spec(world_size=1, *, batch=4, **options):
    spec = library_trials.spec_of(
        "", world_size, params={"batch_per_rank": batch}, task_options=options, training={"epochs": 2}
    )
    return replace(spec, task=f"{MODULE}:reads_a_stream")


def seen_by(done):
    return [[int(one.metrics[name]) for name in ("batches", "samples", "sum")] for one in done[0]["measurements"]]


@pytest.mark.parametrize(("world_size", "workers"), [(1, 0), (1, 2), (2, 0)])
def test_ranks_and_worker_processes_take_turns(ranks, world_size, workers):
    """46 samples, the numbers from 0 in the first epoch and from 100 in the second; each is seen once."""
    found = seen_by(function_trials.on(ranks, shared_spec(world_size, samples=46, workers=workers)))
    assert [one[1:] for one in found] == [[46, sum(range(46))], [46, sum(range(100, 146))]]


def test_a_stream_that_ends_first_on_one_rank_ends_the_epoch_on_all(ranks):
    """Rank 0 has 25 samples and rank 1 has 24 of 49: 7 batches and 6; and a model in DDP does not hang."""
    found = seen_by(function_trials.on(ranks, shared_spec(2, samples=49)))
    assert [one[0] for one in found] == [2 * 6, 2 * 6]
    found = seen_by(function_trials.on(ranks, shared_spec(2, samples=8, shared_out=True)))
    assert [one[:2] for one in found] == [[2 * 2, 2 * 8], [2 * 2, 2 * 8]], "rank 0 has 2 batches, rank 1 has 4"
    found = seen_by(function_trials.on(ranks, shared_spec(2, samples=49, shuffle=False)))
    assert [one[1] for one in found] == [49, 49]
    assert [one[0] for one in seen_by(function_trials.on(ranks, shared_spec(2, samples=1)))] == [0, 0]


def test_what_can_be_read_once_only_is_refused_but_a_stream_may_have_a_length():
    with pytest.raises(TaskError, match="found list_iterator, allowed: a dataset that can be read in each"):
        function_trials.trained(Group(), shared_spec(samples=0, once=True))

    class Counted(IterableDataset):
        def __iter__(self):
            return iter(range(10))

        def __len__(self):
            return 10

    from trainers.functions.trial_loader import SharedStream, is_stream

    assert is_stream(Counted())
    assert list(SharedStream(Counted(), rank=1, world_size=3, is_shared_out=False)) == [1, 4, 7]
