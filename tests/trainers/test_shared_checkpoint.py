"""Checkpoints that ranks write together: a main file, and a share of each rank."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.trainer_pool import BLOBS, HERE, assert_equal, on_ranks, run_trial, spec_of
from trainers.checkpoints import shared_checkpoint
from trainers.checkpoints.checkpoint import check_checkpoint, load_model, open_checkpoint, read_checkpoint
from trainers.checkpoints.checkpoint_stores import LocalPlace
from trainers.checkpoints.model_export import export_model, load_exported
from trainers.checkpoints.stored_tensors import StoredTensor
from trainers.failures import CheckpointError, StorageError

ADAMW = {"optimizer": "adamw", "learning_rate": 0.01}


def make(folder, world_size=4, shard="full", **more):
    training = {"shard": shard, "epochs": 3, "ema": 0.9} | more.pop("training", {})
    options = {"kind": "blocks", "dropout": 0.2}
    return spec_of(
        world_size, params=ADAMW, options=options, training=training, checkpoint_folder=str(folder), milestones=(1, 2),
        **more,
    )  # fmt: skip


def files_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def trial(ranks, tmp_path_factory):
    """The folder of a trial, and its measurements."""
    folder = tmp_path_factory.mktemp("saved") / "trial"
    return folder, ranks.run(4, run_trial, make(folder))[0]["measurements"]


@pytest.fixture
def saved(trial, tmp_path):
    """The checkpoint of a trial's second epoch, in a folder that a test may spoil."""
    return Path(shutil.copytree(trial[0], tmp_path / "trial")) / "epoch-0002.attempt-1.pt"


@pytest.mark.parametrize("shard", ["full", "optimizer"])
def test_each_rank_writes_its_share_and_nothing_else_is_left(ranks, tmp_path, shard, trial):
    if shard == "full":
        tmp_path, measured = trial
    else:
        measured = ranks.run(4, run_trial, make(tmp_path, shard=shard))[0]["measurements"]
    for number, epoch in enumerate(measured[:2], start=1):
        stem = f"epoch-000{number}.attempt-1"
        own = [name for name in files_in(tmp_path) if name.startswith(stem)]
        assert own == [f"{stem}.pt", *(f"{stem}.rank-{rank}-of-4.bin" for rank in range(4))]
        assert epoch.checkpoint_bytes == sum((tmp_path / name).stat().st_size for name in own)
        check_checkpoint(epoch.checkpoint)
    assert not [name for name in files_in(tmp_path) if name.startswith(".")]
    shares = [path.stat().st_size for path in tmp_path.glob("epoch-0001*.bin")]
    assert max(shares) < 0.5 * sum(shares)
    content = open_checkpoint(measured[0].checkpoint)
    stored = [isinstance(value, StoredTensor) for value in content["model"].values()]
    assert all(stored) if shard == "full" else not any(stored)
    assert isinstance(content["optimizer"]["state"][0]["exp_avg"], StoredTensor)


@pytest.mark.parametrize(
    ("first", "then"), [(("full", 3), ("optimizer", 2)), (("optimizer", 3), ("full", 2)), (("none", 2), ("full", 1))]
)
def test_any_sharding_goes_on_from_any_other_with_the_same_state(ranks, tmp_path, first, then):
    """Whoever reads a checkpoint writes the same whole tensors again."""
    params = ADAMW | {"batch_per_rank": 1}

    def spec(of, accumulate, **more):
        training = {"epochs": 3, "ema": 0.9, "shard": of[0], "accumulate": accumulate}
        return spec_of(of[1], params=params, options={"kind": "blocks"}, training=training, **more)

    saving = partial(spec, first, 12 // first[1], checkpoint_folder=str(tmp_path / "one"), milestones=(1,))
    path = on_ranks(ranks, saving(), until=1)[0]["measurements"][0].checkpoint
    answers = on_ranks(
        ranks, spec(then, 12 // then[1], resume_from=path, checkpoint_folder=str(tmp_path / "two")), save_again
    )
    assert all(answer is None for answer in answers), answers
    (again,) = (tmp_path / "two").glob("*.pt")
    mine, theirs = read_checkpoint(path), read_checkpoint(again)
    for part in ("model", "optimizer", "engine"):
        assert_equal(mine[part], theirs[part], ignored={"fused", "foreach"})


def save_again(group, spec):
    """Write a checkpoint of what was read, before a step was trained."""
    from trainers.contract.task_loading import load_task
    from trainers.loop.trainer import Trainer

    trainer = Trainer(spec, load_task(spec.task, spec.task_options, spec.python_path), group=group)
    with trainer._state.evaluated_weights():
        trainer._write_checkpoint()
    trainer.close()


def test_readers_see_a_whole_model(ranks, tmp_path, trial):
    path = trial[1][1].checkpoint
    whole = ranks.run(4, run_trial, make(tmp_path / "whole", shard="none"))[0]["measurements"][1].checkpoint
    mine, theirs = load_model(path, BLOBS, (HERE,)).state_dict(), load_model(whole, BLOBS, (HERE,)).state_dict()
    assert all((value - theirs[name]).abs().max() < 1e-8 for name, value in mine.items())
    export_model(path, tmp_path / "out.pt")
    assert_equal(dict(mine), load_exported(tmp_path / "out.pt")["weights"])
    storages = {value.untyped_storage().data_ptr() for value in load_exported(tmp_path / "out.pt")["weights"].values()}
    assert len(storages) == len(mine), "each tensor can be taken from the file without the others"


def test_other_programs_open_a_share_and_a_deleted_checkpoint_leaves_nothing(saved):
    from safetensors.torch import load_file

    content = open_checkpoint(saved)
    name, stored = next(iter(content["model"].items()))
    shares = [load_file(saved.with_name(f"{saved.stem}.rank-{rank}-of-4.bin")) for rank in range(4)]
    assert torch.equal(torch.cat([share[f"model/{name}"] for share in shares]), stored.whole())
    other = saved.with_name("epoch-0001.attempt-1.pt")
    before = LocalPlace().size(str(other))
    LocalPlace().delete(str(saved))
    assert not [name for name in files_in(saved.parent) if name.startswith(saved.stem)]
    assert LocalPlace().size(str(other)) == before


def _shorter(share):
    share.write_bytes(share.read_bytes()[:-1])


def _other_byte(share):
    content = bytearray(share.read_bytes())
    content[-1] ^= 1
    share.write_bytes(content)


@pytest.mark.parametrize(
    ("world_size", "spoil", "words"),
    [
        (4, Path.unlink, "is missing here. Keep all files of a checkpoint together, in a folder that all"),
        (2, _shorter, "is damaged: it has .* bytes instead of"),
        (2, _other_byte, "is damaged: its CRC-32 is"),
    ],
)
def test_a_missing_or_damaged_share_is_named_on_all_ranks(ranks, saved, world_size, spoil, words):
    spoil(saved.with_name(f"{saved.stem}.rank-3-of-4.bin"))
    words = f"rank-3-of-4.bin {words}"
    for answer in ranks.run(world_size, run_trial, make(saved.parent, world_size, resume_from=str(saved))):
        assert isinstance(answer, CheckpointError)
        with pytest.raises(CheckpointError, match=words):
            raise answer
    with pytest.raises(CheckpointError, match=words):
        check_checkpoint(saved)


def test_shares_without_a_main_file_are_no_checkpoint(ranks, saved):
    saved.unlink()
    for answer in ranks.run(4, run_trial, make(saved.parent, resume_from=str(saved))):
        assert isinstance(answer, CheckpointError)
        assert str(answer) == f"checkpoint {saved} is missing"


def _rows(header):
    return json.loads(header["__metadata__"]["rows"])


def _with_first_row(header, place, value):
    rows = _rows(header)
    rows[next(iter(rows))][place] = value
    header["__metadata__"]["rows"] = json.dumps(rows)


def _first(header):
    return header[next(iter(_rows(header)))]


HOSTILE = [
    lambda header: _with_first_row(header, 0, ["model", ["x"]]), lambda header: _with_first_row(header, 0, []),
    lambda header: _with_first_row(header, 1, [2**70, 2**70]), lambda header: _with_first_row(header, 2, 1),
    lambda header: _with_first_row(header, 0, ["format", "x"]),
    lambda header: _with_first_row(header, 0, ["spec", "x"]), lambda header: _first(header).update(dtype="I9"),
    lambda header: _first(header).update(shape=[-1]), lambda header: _first(header).update(shape=[]),
    lambda header: _first(header).update(data_offsets=[0, 10**9]),
    lambda header: _first(header).update(data_offsets=[8, 16]),
    lambda header: header.pop(next(iter(_rows(header)))), lambda header: header.update(__metadata__={}),
    lambda header: header.clear(),
]  # fmt: skip


def test_a_hostile_header_is_refused(saved):
    share, facts = saved.with_name(f"{saved.stem}.rank-0-of-4.bin"), torch.load(saved, weights_only=True)
    data, crc = share.read_bytes(), facts["shares"][0][1]
    start = 8 + int.from_bytes(data[:8], "little")
    for number, change in enumerate(HOSTILE):
        header = json.loads(data[8:start])
        change(header)
        text = json.dumps(header).encode()
        share.write_bytes(len(text).to_bytes(8, "little") + text + data[start:])
        facts["shares"][0] = [share.stat().st_size, crc, ""]
        torch.save(facts, saved)
        with pytest.raises(CheckpointError) as caught:
            load_model(saved, BLOBS, (HERE,))
        assert "\n" not in str(caught.value), number
    for length in (2**63, 2**20):
        share.write_bytes(length.to_bytes(8, "little") + data[8:])
        facts["shares"][0] = [len(data), crc, ""]
        torch.save(facts, saved)
        with pytest.raises(
            CheckpointError,
            match=r"is damaged: its header cannot be read \(ValueError: a header of \d+ bytes would be longer than",
        ):
            load_model(saved, BLOBS, (HERE,))


def test_shares_of_the_former_format_are_refused_in_a_line(saved):
    torch.save(torch.load(saved, weights_only=True) | {"format": 2}, saved)
    with pytest.raises(
        CheckpointError, match=r"in an old format that this version cannot read\. Train the trial again$"
    ):
        load_model(saved, BLOBS, (HERE,))


def test_hostile_facts_of_shares_are_refused(saved):
    content = torch.load(saved, weights_only=True)
    for shares in (None, [], [[1, 2]], [["a", 1, ""]], {"a": 1}, [[1, 2.0, ""]], [[-1, 0, ""]], [[1, 2, 3]]):
        torch.save(content | {"shares": shares}, saved)
        with pytest.raises(CheckpointError, match=r"damaged|missing"):
            load_model(saved, BLOBS, (HERE,))


def _in_other_folders(group, spec):
    """Let rank 2 write to a folder that the others do not see."""
    return run_trial(group, replace(spec, checkpoint_folder=spec.checkpoint_folder + ("-mine" * (group.rank == 2))))


def test_ranks_that_do_not_see_one_folder_are_told_so(ranks, tmp_path):
    answers = ranks.run(4, _in_other_folders, make(tmp_path / "a"))
    words = "rank 0 does not see epoch-0001.attempt-1.rank-2-of-4.bin of rank 2"
    assert all(isinstance(answer, CheckpointError) and words in str(answer) for answer in answers)
    assert files_in(tmp_path / "a") == files_in(tmp_path / "a-mine") == []


def _on_a_full_disk(group, spec):
    """Let the disk be full for rank 1."""
    module: Any = shared_checkpoint
    usual = module.write_share

    def full(pieces, file):
        file.write(b"some")
        raise OSError(28, "No space left on device")

    module.write_share = full if group.rank == 1 else usual
    try:
        return run_trial(group, spec)
    finally:
        module.write_share = usual


def test_a_share_that_cannot_be_written_is_every_ranks_storage_error(ranks, tmp_path):
    answers = ranks.run(4, _on_a_full_disk, make(tmp_path))
    assert all(isinstance(answer, StorageError) and "No space left" in str(answer) for answer in answers)
    assert files_in(tmp_path) == []


def test_a_main_file_never_names_shares_of_another_write(ranks, saved):
    """An attempt that dies between its shares and its main file leaves no main file of an earlier one."""
    kept = saved.parent.parent / "kept"
    shutil.copytree(saved.parent, kept)
    answers = ranks.run(4, _on_a_full_disk, make(saved.parent, resume_from=str(kept / "epoch-0001.attempt-1.pt")))
    assert all(isinstance(answer, StorageError) for answer in answers)
    assert not saved.exists()
