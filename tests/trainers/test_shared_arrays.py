"""Processes of one node hold the large arrays of a task once: real processes, and what Linux says of their memory."""

import fcntl
from collections import Counter, namedtuple
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from tests.support.forking import forking_context
from trainers.data import shared_arrays
from trainers.data.shared_arrays import LEAST_BYTES, share_arrays

MIB = 2**20
Pair = namedtuple("Pair", "inputs targets")


def pattern(mib: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, mib * MIB, dtype=np.uint8)


@dataclass(frozen=True)
class Frozen:
    pixels: np.ndarray


class Samples(Dataset):
    def __init__(self, pixels):
        self.pixels = pixels


class Holder:
    """Holds arrays in the ways in which tasks do."""

    def __init__(self, seed=0):
        large = pattern(17, seed)
        self.large, self.again = large, large
        self.small = pattern(1, seed)
        self.floats = pattern(32, seed).view(np.float32).reshape(1024, -1).copy()
        self.tensor = torch.from_numpy(pattern(18, seed)).view(torch.bfloat16).reshape(9, -1).clone()
        self.parts = {"train": Pair(pattern(19, seed), np.arange(5)), "list": [pattern(20, seed)]}
        self.frozen, self.dataset = Frozen(pattern(21, seed)), Samples(pattern(22, seed))
        self.view = large[5:]
        self.me = self

    def arrays(self):
        return (
            self.large, self.again, self.small, self.floats, self.tensor.view(torch.uint8).numpy(),
            *self.parts["train"], *self.parts["list"], self.frozen.pixels, self.dataset.pixels, self.view,
        )  # fmt: skip


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name != "lock")


@pytest.mark.medium
def test_what_an_object_holds_stays_the_same_and_comes_from_files(tmp_path):
    before, holder = Holder(), Holder()
    share_arrays(holder, tmp_path / "arrays")
    for old, new in zip(before.arrays(), holder.arrays(), strict=True):
        assert old.dtype == new.dtype
        np.testing.assert_array_equal(old, new)
    assert holder.tensor.shape == before.tensor.shape
    assert holder.tensor.dtype == before.tensor.dtype
    assert type(holder.parts["train"]) is Pair
    assert holder.again is holder.large
    assert holder.me is holder
    sizes = sorted(path.stat().st_size // MIB for path in files(tmp_path / "arrays"))
    assert sizes == [17, 18, 19, 20, 21, 22, 32]
    assert (tmp_path / "arrays").stat().st_mode & 0o777 == 0o700


@pytest.mark.medium
def test_writing_into_an_array_is_seen_by_nobody_else(tmp_path):
    one, other = Holder(), Holder()
    share_arrays(one, tmp_path)
    share_arrays(other, tmp_path)
    assert len(files(tmp_path)) == 7
    one.large[:100] = 0
    one.tensor[:] = 1
    np.testing.assert_array_equal(other.large, pattern(17))
    assert torch.equal(other.tensor.view(torch.uint8), Holder().tensor.view(torch.uint8))


@pytest.mark.medium
def test_files_that_nobody_holds_are_deleted_and_where_none_can_be_written_all_stays(tmp_path, caplog, monkeypatch):
    holder = Holder()
    share_arrays(holder, tmp_path)
    kept = files(tmp_path)[0]
    (tmp_path / "0123-5.unfinished").write_bytes(b"half")
    with kept.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        del holder.me  # a cycle
        del holder
        share_arrays([pattern(16, seed=9)], tmp_path)
        assert kept in files(tmp_path)
    left = files(tmp_path)
    assert len(left) == 2, "the held one, and the one that was just written for somebody who is gone"
    (tmp_path / "file").write_text("no folder")
    held = [pattern(16)]
    share_arrays(held, tmp_path / "file")
    assert type(held[0].base) is not memoryview
    assert "because sharing failed" in caplog.text
    monkeypatch.setattr(shared_arrays, "_SPARE_SHARE", 0.0)
    share_arrays(held, tmp_path / "full")
    assert files(tmp_path / "full") == []


def _hold(folder, pipe):
    holder = [pattern(96)]
    share_arrays(holder, folder)
    assert holder[0].sum(dtype=np.uint64) > 0  # every page has been touched
    pipe.send("ready")
    pipe.recv()
    pipe.send(_mapped(folder))
    pipe.recv()


def _mapped(folder: Path) -> Counter[str]:
    """What Linux says of the memory of this process into which files of a folder are mapped, in bytes."""
    found, is_ours = Counter[str](), False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            is_ours = str(folder) in line
        elif is_ours and rest[-1] == "kB":
            found[name] += 1024 * int(rest[0])
    return found


@pytest.mark.xdist_group("ranks")
@pytest.mark.large
@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells it")
def test_three_processes_hold_the_data_once(tmp_path):
    context = forking_context()
    pipes, processes = [], []
    for _ in range(3):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=_hold, args=(tmp_path, theirs), daemon=True))
        processes[-1].start()
        pipes.append(ours)
    for pipe in pipes:
        assert pipe.recv() == "ready"
    for pipe in pipes:
        pipe.send("measure")
    figures = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.kill()
        process.join()
    assert LEAST_BYTES < 96 * MIB
    for one in figures:
        assert one["Rss:"] - one["Pss:"] > 0.6 * 96 * MIB, "two thirds of the data belong to the other two"
