"""What several real ranks do together must be what one process does alone."""

import time
from functools import partial

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from tests.support.trainer_pool import Blobs, distance, on_ranks, run_trial, spec_of
from trainers.loop.evaluation import evaluate
from trainers.protocol import ALWAYS_MEASURED, DivergedError, LostError, TaskError
from trainers.ranks.group_store import StoreClient
from trainers.ranks.group_store_server import StoreServer
from trainers.ranks.process_group import Group, destroy_group, form_group

SGD = {"optimizer": "sgd", "momentum": 0.9}
ADAMW = {"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.01}


def trained(ranks, world_size, **more):
    return on_ranks(ranks, spec_of(world_size, **more))


@pytest.mark.parametrize(
    ("world_size", "params", "options", "limit"),
    [
        (4, SGD, {"n": 50}, 1e-10),  # the last step has 2 samples, so two of four ranks have none
        (2, ADAMW, {"n": 45}, 1e-8),  # the last step has 13
        (2, SGD, {"n": 50, "dtype": "float32"}, 1e-5),
    ],
)
def test_weights_do_not_depend_on_the_number_of_ranks(ranks, world_size, params, options, limit):
    alone = trained(ranks, 1, params=params, options=options)[0]
    for rank in trained(ranks, world_size, params=params, options=options):
        assert distance(alone, rank) <= limit


def test_accumulated_gradients_are_one_larger_batch_of_samples_used_once_an_epoch_in_a_new_order(ranks):
    spec = partial(spec_of, options={"n": 45})
    whole = run_trial(Group(), spec(training={"clip_norm": 0.2}))
    parts = spec(2, params={"batch_per_rank": 2}, training={"accumulate": 4, "clip_norm": 0.2})
    assert distance(whole, ranks.run(2, run_trial, parts)[0]) <= 1e-10
    assert distance(whole, run_trial(Group(), spec())) > 1e-6
    ranks = trained(ranks, 4, options={"n": 45})
    epochs = [[sample for rank in ranks for sample in rank["seen"][epoch]] for epoch in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(45))
    assert epochs[0] != epochs[1] != epochs[2]
    assert max(len(rank["seen"][0]) for rank in ranks) == ranks[0]["facts"].samples_per_rank


@pytest.mark.parametrize("n_validation", [31, 3])
def test_validation_over_ranks_counts_every_sample_once(ranks, n_validation):
    options = {"n_validation": n_validation}
    ranks = trained(ranks, 4, options=options, training={"epochs": 1})
    task = Blobs(**options)
    model = task.model({})
    model.load_state_dict(ranks[0]["weights"])
    exact = evaluate(model, task, {})
    last = ranks[0]["measurements"][-1].metrics
    assert last["val_error"] == exact["val_error"]
    assert last["val_loss"] == pytest.approx(exact["val_loss"], rel=1e-12)
    inputs, targets = task.validation_data({})
    losses = task.loss(model(inputs), targets).detach()
    wrong = last["val_error"]
    assert last["val_error_stderr"] == pytest.approx((wrong * (1 - wrong) / (n_validation - 1)) ** 0.5)
    assert last["val_loss_stderr"] == pytest.approx(losses.std().item() / n_validation**0.5, rel=1e-6)


def test_all_ranks_yield_the_same_measurements_and_find_a_divergence_after_the_same_epoch(ranks):
    first, *others = trained(ranks, 4)
    for other in others:
        assert [m.metrics for m in other["measurements"]] == [m.metrics for m in first["measurements"]]
    errors = {f"{name}_stderr" for name in ("val_error", "val_accuracy", "val_loss")}
    names = errors | {"val_error", "val_accuracy", "communication_seconds", "compute_seconds", "gradient_noise_scale"}
    always = set(ALWAYS_MEASURED) - {"cost_usd", "wall_seconds"}
    assert set(first["measurements"][0].metrics) == names | always
    assert len({m.metrics["latency_ms"] for m in first["measurements"]}) == 1
    answers = ranks.run(2, run_trial, spec_of(2, params={"learning_rate": 1e38}, options={"dtype": "float32"}))
    assert all(isinstance(answer, DivergedError) for answer in answers)
    assert len({str(answer) for answer in answers}) == 1


def test_a_drain_ends_all_ranks_at_the_same_epoch(ranks, tmp_path):
    ranks = ranks.run(4, run_trial, spec_of(4, checkpoint_folder=str(tmp_path)), 1000, 2)
    assert [[(m.epoch, m.ended, m.checkpoint) for m in rank["measurements"]] for rank in ranks] == [
        [(1, False, None), (2, True, str(tmp_path / "epoch-0002.attempt-1.pt"))]
    ] * 4
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-0002.attempt-1.pt"]


def test_a_dataset_trains_like_the_same_tensors(ranks):
    tensors = trained(ranks, 1, options={"dropout": 0.3})[0]
    dataset = trained(ranks, 1, options={"dropout": 0.3, "dataset": True})[0]
    assert distance(tensors, dataset) == 0.0
    shared = trained(ranks, 2, options={"dataset": True})[0]
    assert distance(trained(ranks, 1)[0], shared) <= 1e-10


def _twice(group, spec):
    return [run_trial(group, spec), run_trial(group, spec)]


def test_used_processes_train_like_fresh_ones_in_groups_that_are_kept_and_of_one_size(ranks):
    fresh = trained(ranks, 2)[0]
    first, second = ranks.run(2, _twice, spec_of(2, params=ADAMW))[1]
    assert distance(first, second) == 0.0
    assert len(second["measurements"]) == 3
    assert distance(fresh, trained(ranks, 2)[0]) == 0.0
    for _ in range(8):
        answers = ranks.run(4, run_trial, spec_of(2))
        assert all(
            isinstance(answer, TaskError) and "has 4 ranks, but the trial has 2" in str(answer) for answer in answers
        )


def _many_groups(group, address):
    destroy_group()
    store, times = StoreClient(address), []
    for number in range(25):
        started = time.monotonic()
        form_group(store, f"one-of-many-{number}", group.rank, 2, timeout_seconds=20)
        model = DistributedDataParallel(torch.nn.Linear(3, 1))
        model(torch.ones(2, 3)).sum().backward()
        del model
        destroy_group()
        times.append(time.monotonic() - started)
    return times


def test_many_groups_form_without_a_stall_and_none_twice_under_one_identity(ranks):
    store = StoreServer()
    times = ranks.run(2, _many_groups, store.address)[0]
    assert max(times[1:]) < 2.0, times  # the first one warms up; a stall takes 5 s
    del store
    store = StoreServer()
    ranks.run(2, _same_group_twice, store.address)
    del store


def _same_group_twice(group, address):
    destroy_group()
    store = StoreClient(address)
    form_group(store, "once", group.rank, 2, timeout_seconds=20)
    destroy_group()
    with pytest.raises(LostError, match="has already formed"):
        form_group(store, "once", group.rank, 2, timeout_seconds=20)
