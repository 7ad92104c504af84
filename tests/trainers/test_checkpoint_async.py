"""Checkpoints that a thread writes while training goes on, and the copies of the state that it writes."""

from __future__ import annotations

import errno
import io
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]

from tests.support.disks import fill, tiny_disk
from tests.support.forking import forking_context
from tests.support.trainer_pool import assert_equal, messages_of, on_ranks, run_trial, spec_of, weights_of
from trainers.checkpoints.checkpoint import last_checkpoint, read_checkpoint
from trainers.checkpoints.checkpoint_stores import LocalPlace
from trainers.checkpoints.checkpoint_writer import FileWriter, Pending, StateCopies
from trainers.checkpoints.stored_tensors import Piece
from trainers.contract.task_loading import load_task
from trainers.failures import StorageError
from trainers.loop import epoch_parts
from trainers.loop.trainer import Trainer
from trainers.protocol import EpochPart, LostError, Measurement
from trainers.ranks.gather_over_store import StoreGather
from trainers.ranks.process_group import Group
from trainers.ranks.rank_messages import Failed, Outgoing
from trainers.ranks.rank_process import RankProcess

PATIENT = 1e9
SECONDS = 60.0
"""Time in which whatever a test waits for has to happen."""
ASYNC = {"checkpoint_async": True}
EPOCHS = 3
_keys = count()


def spec_with(world_size, folder, training=None, *, milestones=range(1, EPOCHS), **more):
    return spec_of(
        world_size,
        training={"epochs": EPOCHS, **ASYNC, **(training or {})},
        milestones=tuple(milestones),
        checkpoint_folder=None if folder is None else str(folder),
        **{"checkpoint_every_seconds": PATIENT, **more},
    )


def trained_ahead(group, spec, *, saves_parts=False):
    """Train to the end without waiting for a checkpoint, and return what a test may want to compare."""
    trainer = Trainer(spec, load_task(spec.task, spec.task_options, spec.python_path), group=group)
    parts, usual = [], epoch_parts.MEET_SECONDS
    if saves_parts:
        epoch_parts.MEET_SECONDS = 0.0  # the ranks meet after each step
    try:
        pending = list(trainer.advance_ahead(1000, parts.append))
        told = [one.told() for one in pending]
        return {"weights": weights_of(trainer), "measurements": told, "parts": [one.told() for one in parts]}
    finally:
        epoch_parts.MEET_SECONDS = usual
        trainer.close()


def assert_same(one, other):
    assert one["weights"].keys() == other["weights"].keys()
    for name, value in one["weights"].items():
        assert torch.equal(value, other["weights"][name]), name


@pytest.mark.parametrize(
    ("world_size", "options", "training"),
    [
        (1, {"kind": "norms"}, {"ema": 0.9, "precision": "bf16"}),
        (2, {"dropout": 0.3}, {"accumulate": 2, "lr_scaling": "adascale", "clip_norm": 0.5}),
        (2, {"dropout": 0.2, "kind": "blocks"}, {"shard": "full", "ema": 0.9, "optimizer": "adamw"}),
    ],
)
def test_a_trial_goes_on_from_each_checkpoint_with_the_bits_of_one_that_never_stopped(
    ranks, tmp_path, world_size, options, training
):
    optimizer = {key: training.pop(key) for key in ("optimizer",) if key in (training := dict(training))}
    params = {"params": {"batch_per_rank": 4, **optimizer} if "accumulate" in training else optimizer}
    make = partial(spec_with, world_size, options=options, **params)
    plain = make(None, training | {"checkpoint_async": False}, milestones=())
    whole = on_ranks(ranks, plain, run_trial)[0]
    spec = make(tmp_path, training)
    saved = on_ranks(ranks, spec, trained_ahead)[0]
    assert_same(whole, saved)
    checkpoints = [one.checkpoint for one in saved["measurements"]]
    assert [path is not None for path in checkpoints] == [True] * (EPOCHS - 1) + [False]
    for number, path in enumerate(checkpoints[:-1], start=2):
        again = replace(spec, resume_from=path, attempt=number, training=spec.training | {"checkpoint_async": "auto"})
        assert_same(whole, on_ranks(ranks, again, trained_ahead)[0])
    sizes = [one.checkpoint_bytes for one in saved["measurements"][:-1]]
    assert sizes == [sum(file.stat().st_size for file in files_of(path)) for path in checkpoints[:-1]]


def files_of(checkpoint):
    return [path for path in Path(checkpoint).parent.iterdir() if path.name.startswith(Path(checkpoint).stem)]


@pytest.mark.parametrize(("world_size", "training"), [(1, {}), (2, {"shard": "optimizer"})])
def test_it_goes_on_from_parts_of_epochs_with_the_same_bits(ranks, tmp_path, world_size, training):
    make = partial(spec_with, world_size, training=training, milestones=(), options={"dropout": 0.3})
    whole = on_ranks(ranks, make(None), run_trial)[0]
    spec = make(tmp_path, checkpoint_every_seconds=0.0)
    saved = on_ranks(ranks, spec, trained_ahead, saves_parts=True)[0]
    assert_same(whole, saved)
    assert saved["parts"], "nothing was saved within an epoch"
    for number, part in enumerate(saved["parts"][::4], start=2):
        assert part.checkpoint_bytes == sum(file.stat().st_size for file in files_of(part.checkpoint))
        again = replace(spec, resume_from=part.checkpoint, attempt=number, checkpoint_every_seconds=PATIENT)
        assert_same(whole, on_ranks(ranks, again, trained_ahead)[0])


class Gate:
    """Lets writes into folders wait, or fail."""

    def __init__(self, monkeypatch, before):
        usual, numbers = LocalPlace.write, count(1)

        def write(place, *arguments):
            before(next(numbers))
            return usual(place, *arguments)

        monkeypatch.setattr(LocalPlace, "write", write)


def test_the_file_holds_the_state_of_its_epoch_although_training_went_on(tmp_path, monkeypatch):
    spec = spec_with(1, tmp_path / "sync", {"ema": 0.9}, milestones=(1,), params={"optimizer": "adamw"})
    expected = run_trial(Group(), replace(spec, training=spec.training | {"checkpoint_async": False}))
    may_write = threading.Event()
    Gate(monkeypatch, lambda _: may_write.wait(SECONDS))
    spec = replace(spec, checkpoint_folder=str(tmp_path / "async"))
    trainer = Trainer(spec, load_task(spec.task, spec.task_options, spec.python_path), group=Group())
    told = list(trainer.advance_ahead(EPOCHS, lambda _: None))
    assert trainer.epoch == EPOCHS
    assert not list((tmp_path / "async").glob("*.pt"))
    may_write.set()
    mine, theirs = (read_checkpoint(one.checkpoint) for one in (told[0].told(), expected["measurements"][0]))
    trainer.close()
    for part in ("model", "optimizer", "engine", "position", "rng"):
        assert_equal(mine[part], theirs[part])
    assert any((weights_of(trainer_of(spec, mine))[name] != value).any() for name, value in expected["weights"].items())


def trainer_of(spec, content):
    trainer = Trainer(spec, load_task(spec.task, spec.task_options, spec.python_path), group=Group())
    trainer.module.load_state_dict(content["model"])
    return trainer


def run(process, spec, until):
    """Yield what a rank's process tells, until the trial has come so far."""
    return messages_of(process, spec, until, f"async-{next(_keys)}")


def measured(messages):
    return [one for message in messages if isinstance(message, list) for one in message]


@pytest.mark.medium
def test_a_measurement_does_not_arrive_before_its_checkpoint_is_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("trainers.ranks.rank_messages.HOLD_SECONDS", 0.0)
    may_write, last_epoch_ended = threading.Event(), threading.Event()
    Gate(monkeypatch, lambda _: may_write.wait(SECONDS))
    usual = Trainer._run_epoch

    def run_epoch(trainer, epoch, *arguments, **more):
        pending = usual(trainer, epoch, *arguments, **more)
        if epoch == EPOCHS:
            last_epoch_ended.set()
        return pending

    monkeypatch.setattr(Trainer, "_run_epoch", run_epoch)
    spec, told = spec_with(1, tmp_path, milestones=(2,)), []

    def listen():
        messages = run(RankProcess(device="cpu", cpus_per_rank=1), spec, EPOCHS)
        told.extend((message, list(tmp_path.glob("*.pt"))) for message in messages)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    assert last_epoch_ended.wait(SECONDS), "training waits for the file"
    time.sleep(0.2)
    assert [one.epoch for one in measured(message for message, _ in told)] == [1]
    may_write.set()
    listener.join(SECONDS)
    all_measured = measured(message for message, _ in told)
    assert [one.epoch for one in all_measured] == [1, 2, 3]
    (seen,) = [files for message, files in told if isinstance(message, list) and message[0].epoch == 2]
    assert [str(path) for path in seen] == [all_measured[1].checkpoint]
    assert seen[0].stat().st_size == all_measured[1].checkpoint_bytes
    assert all_measured[1].age_seconds > 0.2


def test_a_measurement_does_not_wait_for_the_checkpoint_of_the_one_after_it(monkeypatch):
    monkeypatch.setattr("trainers.ranks.rank_messages.HOLD_SECONDS", 0.05)
    outgoing, files, may_write = Outgoing(), FileWriter(lambda: None), threading.Event()

    def save(_):
        may_write.wait(SECONDS)
        return 7

    write = files.write(dict, save, in_background=True)
    outgoing.measure(Pending(news=Measurement(epoch=1, metrics={}, wall_seconds=1.0)), is_last=False)
    outgoing.measure(Pending(news=Measurement(epoch=2, metrics={}, wall_seconds=1.0), write=write), is_last=False)
    part = EpochPart(epoch=3, fraction=0.5, wall_seconds=1.0, checkpoint="p", checkpoint_bytes=0)
    outgoing.send(Pending(news=part, write=write))
    outgoing.send(None)
    messages = outgoing.messages()
    assert [one.epoch for one in next(messages)] == [1]
    may_write.set()
    second, third = messages
    assert [(one.epoch, one.checkpoint_bytes) for one in second] == [(2, 7)]
    assert (third.epoch, third.checkpoint_bytes) == (3, 7)


def refuse(number):
    if number == 2:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.medium
@pytest.mark.parametrize("within_epochs", [False, True])
def test_a_failed_write_ends_the_trial_and_leaves_the_process_as_it_was(tmp_path, monkeypatch, within_epochs):
    monkeypatch.setattr("trainers.loop.epoch_parts.MEET_SECONDS", 0.0)
    Gate(monkeypatch, refuse)
    every = 0.0 if within_epochs else PATIENT
    spec = spec_with(1, tmp_path, {"epochs": 10**6}, milestones=(1, 2), checkpoint_every_seconds=every)
    process, began = RankProcess(device="cpu", cpus_per_rank=1), time.monotonic()
    messages = list(run(process, spec, 10**6))
    assert time.monotonic() - began < SECONDS, "training goes on without end"
    failed = messages[-1]
    assert isinstance(failed, Failed)
    assert sum(isinstance(message, Failed) for message in messages) == 1
    assert failed.failure == "storage"
    assert "No space left on device" in failed.message
    assert str(tmp_path) in failed.message
    if not within_epochs:
        assert [one.epoch for one in measured(messages)] == [1]
    whole = run_trial(Group(), spec_with(1, None))
    later = spec_with(1, tmp_path / "later", milestones=(EPOCHS,))
    *_, last = measured(run(process, later, EPOCHS))
    assert last.epoch == EPOCHS
    for name, value in read_checkpoint(last.checkpoint)["model"].items():
        assert torch.equal(value, whole["weights"][name]), name


@pytest.mark.medium
def test_a_real_full_disk_ends_the_trial_as_storage(tmp_path):
    with tiny_disk(tmp_path / "disk") as disk:
        spec = spec_with(1, disk, {"epochs": 10**6}, milestones=range(1, 10**4))
        told = []
        for message in run(RankProcess(device="cpu", cpus_per_rank=1), spec, 10**6):
            told.append(message)
            if len(told) == 2:
                fill(disk)
        assert isinstance(told[-1], Failed)
        assert told[-1].failure == "storage"


def test_the_error_is_raised_where_somebody_waits_for_the_file_and_on_all_ranks(tmp_path, monkeypatch, ranks):
    Gate(monkeypatch, lambda number: refuse(number + 1))
    spec = spec_with(1, tmp_path, milestones=(1,))
    trainer = Trainer(spec, load_task(spec.task, spec.task_options, spec.python_path), group=Group())
    with pytest.raises(StorageError, match="No space left"):
        list(trainer.advance(EPOCHS))
    assert trainer.epoch == 1
    trainer.close()
    spec = spec_with(2, tmp_path, {"shard": "optimizer"})
    for rank, told in enumerate(ranks.run(2, partial(trained_with_fault, rank=1), spec)):
        assert isinstance(told, StorageError), (rank, told)
        assert "rank-1" in str(told) or "No space left" in str(told)
    assert not list(tmp_path.glob("epoch-*.pt"))


def trained_with_fault(group, spec, *, rank):
    """Train where this rank's disk is full."""
    with pytest.MonkeyPatch.context() as patch:
        if group.rank == rank:
            Gate(patch, lambda number: refuse(number + 1))
        return trained_ahead(group, spec)


def train_and_be_killed(spec, pipe):
    """Train in a process that stops in the middle of its second file."""

    def stop(number):
        if number == 2:
            (Path(spec.checkpoint_folder) / f".half.{os.getpid()}.tmp").write_bytes(b"PK")
            pipe.send("writing")
            signal.pause()

    with pytest.MonkeyPatch.context() as patch:
        Gate(patch, stop)
        trained_ahead(Group(), spec)


@pytest.mark.xdist_group("ranks")
@pytest.mark.medium
def test_after_a_death_during_a_write_the_trial_goes_on_from_the_checkpoint_before(tmp_path):
    spec = spec_with(1, tmp_path, options={"dropout": 0.3})
    whole = run_trial(Group(), replace(spec, checkpoint_folder=None))
    context = forking_context()
    ours, theirs = context.Pipe()
    process = context.Process(target=train_and_be_killed, args=(spec, theirs), daemon=True)
    process.start()
    assert ours.poll(SECONDS)
    process.kill()
    process.join(SECONDS)
    left = last_checkpoint(tmp_path)
    assert left.name == "epoch-0001.attempt-1.pt"
    assert_same(whole, trained_ahead(Group(), replace(spec, resume_from=str(left), attempt=2)))


def content():
    weights = torch.arange(24.0).view(2, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    tied = torch.ones(3, requires_grad=True)
    model = nn.BatchNorm1d(3)
    return {
        "weights": weights, "tied": {"one": tied, "other": tied.detach().requires_grad_()},
        "piece": Piece(rows=torch.zeros(2, 2), first=2, shape=(4, 2)), "model": model.state_dict(),
        "parameter": nn.Parameter(torch.ones(2)), "plain": [1, 2.5, "text", None, (True, b"bytes"), {3}],
        "generator": random.getstate(), "empty": torch.empty(0, 3), "row": torch.arange(1000.0)[3:5],
        "number": torch.tensor(7),
    }  # fmt: skip


def test_a_copy_is_equal_has_the_same_form_and_does_not_change_with_the_state() -> None:
    given = content()
    copied = StateCopies().of(given)
    assert copied.keys() == given.keys()
    assert torch.equal(copied["weights"], given["weights"])
    assert copied["weights"].stride() == given["weights"].stride()
    assert copied["tied"]["one"] is copied["tied"]["other"], "a file would have it twice"
    assert copied["tied"]["one"].requires_grad
    assert (copied["piece"].first, copied["piece"].shape) == (2, (4, 2))
    assert type(copied["model"]) is type(given["model"])
    assert copied["model"]._metadata == given["model"]._metadata
    assert isinstance(copied["parameter"], nn.Parameter)
    assert copied["plain"] == given["plain"]
    assert copied["generator"] == given["generator"]
    assert copied["empty"].shape == (0, 3)
    assert copied["row"].tolist() == [3.0, 4.0]
    assert copied["row"].untyped_storage().nbytes() < 100, "of a large memory only the part that is meant is copied"
    assert copied["number"] == 7
    file = io.BytesIO()
    torch.save({name: copied[name] for name in copied if name not in {"piece", "plain"}}, file)
    file.seek(0)
    torch.load(file, weights_only=True)
    given = content()
    copied = StateCopies().of(given)
    with torch.no_grad():
        given["weights"].zero_()
        given["tied"]["one"].zero_()
        given["piece"].rows.fill_(9.0)
    given["plain"].append(1)
    given["tied"]["new"] = 1
    assert copied["weights"].sum() == 276.0
    assert copied["tied"]["one"].sum() == 3.0
    assert copied["piece"].rows.sum() == 0.0
    assert len(copied["plain"]) == 6
    assert "new" not in copied["tied"]


def test_the_memory_of_the_last_copy_serves_again() -> None:
    copies = StateCopies()
    state = {"a": torch.ones(1000), "b": torch.zeros(1000)}
    first = {value.data_ptr() for value in copies.of(state).values()}
    state["a"] += 1.0
    again = copies.of(state)
    assert {value.data_ptr() for value in again.values()} == first
    assert again["a"].sum() == 2000.0
    smaller = copies.of({"a": state["a"]})
    assert copies.of({"b": state["b"]})["b"].data_ptr() == smaller["a"].data_ptr()


def test_ranks_gather_over_a_store_and_one_that_tells_nothing_is_named() -> None:
    store = PrefixStore("some group", HashStore())
    both = threading.Barrier(3)

    def rank(number: int) -> list[list[object]]:
        gather = StoreGather("epoch-0001", Group(rank=number, world_size=3), store)
        told = [gather((number, "first")), gather({"second": number})]
        both.wait(30)
        return told

    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(rank, range(3)))
    expected = [[(number, "first") for number in range(3)], [{"second": number} for number in range(3)]]
    assert answers == [expected] * 3
    assert store.num_keys() == 0
    gather = StoreGather("epoch-0001", Group(rank=0, world_size=3), HashStore(), gather_seconds=0.1)
    with pytest.raises(LostError, match=r"ranks 1, 2 did not send epoch-0001 within 0\.1 s"):
        gather(0)
