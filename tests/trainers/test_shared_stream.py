"""Datasets of unknown length in training functions: shared out, in step, and without a hang."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch.utils.data import IterableDataset

from tests.support.function_trials import on, trained
from tests.support.library_trials import spec_of
from trainers.protocol import TaskError
from trainers.ranks.process_group import Group

MODULE = "tests.support.training_functions"


def stream_spec(world_size=1, *, batch=4, **options):
    spec = spec_of("", world_size, params={"batch_per_rank": batch}, task_options=options, training={"epochs": 2})
    return replace(spec, task=f"{MODULE}:reads_a_stream")


def seen_by(done):
    return [[int(one.metrics[name]) for name in ("batches", "samples", "sum")] for one in done[0]["measurements"]]


@pytest.mark.parametrize(("world_size", "workers"), [(1, 0), (1, 2), (2, 0)])
def test_ranks_and_worker_processes_take_turns(ranks, world_size, workers):
    """46 samples, the numbers from 0 in the first epoch and from 100 in the second; each is seen once."""
    found = seen_by(on(ranks, stream_spec(world_size, samples=46, workers=workers)))
    assert [one[1:] for one in found] == [[46, sum(range(46))], [46, sum(range(100, 146))]]


def test_who_runs_out_first_ends_the_epoch_on_all_ranks(ranks):
    """Rank 0 has 25 samples and rank 1 has 24 of 49: 7 batches and 6; and a model in DDP does not hang."""
    found = seen_by(on(ranks, stream_spec(2, samples=49)))
    assert [one[0] for one in found] == [2 * 6, 2 * 6]
    found = seen_by(on(ranks, stream_spec(2, samples=8, shared_out=True)))
    assert [one[:2] for one in found] == [[2 * 2, 2 * 8], [2 * 2, 2 * 8]], "rank 0 has 2 batches, rank 1 has 4"


def test_an_evaluation_sees_each_sample_once_whatever_the_ranks_have(ranks):
    found = seen_by(on(ranks, stream_spec(2, samples=49, shuffle=False)))
    assert [one[1] for one in found] == [49, 49]


def test_a_stream_that_is_empty_on_one_rank_ends_the_epoch_at_once(ranks):
    assert [one[0] for one in seen_by(on(ranks, stream_spec(2, samples=1)))] == [0, 0]


def test_what_can_be_read_once_only_is_refused():
    with pytest.raises(TaskError, match="found list_iterator, allowed: what each epoch can read"):
        trained(Group(), stream_spec(samples=0, once=True))


def test_a_stream_with_a_length_is_a_stream_still():
    class Counted(IterableDataset):
        def __iter__(self):
            return iter(range(10))

        def __len__(self):
            return 10

    from trainers.functions.trial_loader import SharedStream, is_stream

    assert is_stream(Counted())
    assert list(SharedStream(Counted(), rank=1, world_size=3, is_shared_out=False)) == [1, 4, 7]
