"""Ranks of `automl train` and `automl compare` that load at different speeds, and ranks that never come."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import InProcess
from tests.support.paths import ROOT

DEADLINE_SECONDS = 15
"""Time that a rank may be silent, which is also what a busy machine may take to start its process."""
TASK = f"""
import multiprocessing
import os
import signal
import time
import torch
from torch import nn
from trainers.contract.task import BaseTask

HERE = os.path.dirname(os.path.abspath(__file__))


def is_slow() -> bool:
    if "RANK" in os.environ:
        return os.environ["RANK"] == "1"
    if multiprocessing.parent_process() is None:
        return False
    try:  # of ranks that the command has started, the first one
        os.close(os.open(HERE + "/taken", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class Slow(BaseTask):
    def __init__(self, *, how="sleeps"):
        if not is_slow():
            return
        if how == "sleeps":
            while not os.path.exists(HERE + "/loaded"):  # by the other rank, which waits from now on
                time.sleep(0.05)
            time.sleep({DEADLINE_SECONDS + 2})
        else:
            os.kill(os.getpid(), signal.SIGSTOP)

    def train_data(self, params):
        return torch.randn(42, 3), torch.arange(42) % 2

    def validation_data(self, params):
        open(HERE + "/loaded", "w").close()
        return torch.randn(8, 3), torch.arange(8) % 2

    def model(self, params):
        return nn.Linear(3, 2)
"""
GIVEN = ("slow:Slow", "--epochs", "1", "--group-seconds", str(DEADLINE_SECONDS))
pytestmark = pytest.mark.xdist_group("ranks")


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> InProcess:
    (tmp_path / "slow.py").write_text(TASK)
    monkeypatch.syspath_prepend(tmp_path)
    return InProcess(tmp_path, capsys, monkeypatch)


@pytest.mark.large
def test_a_rank_that_loads_for_longer_than_the_deadline_is_waited_for(place: InProcess) -> None:
    code, out, err = place.run("compare", *GIVEN, "--world-sizes", "2", "--json")
    assert code == 0, err
    assert [one["world_size"] for one in json.loads(out)["world_sizes"]] == [2]


@pytest.mark.medium
@pytest.mark.slow
def test_under_torchrun_it_is_waited_for_as_well(place: InProcess) -> None:
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = subprocess.run(
        [*launcher, "-m", "automl", "train", *GIVEN, "--json"], cwd=place.folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": f"{place.folder}:{ROOT}"}, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["world_size"] == 2


@pytest.mark.large
def test_a_rank_that_stops_while_it_loads_ends_the_training(place: InProcess) -> None:
    code, _, err = place.run("compare", *GIVEN, "--world-sizes", "2", "--option", "how=stops")
    assert code == 1
    deadline = f"within the deadline of {DEADLINE_SECONDS} s (--group-seconds)"
    stops, is_slow = f"of 2 sent no heartbeat {deadline}", f"of 2 has not started {deadline}"  # on a busy machine
    assert stops in err or is_slow in err
    assert "last output" in err


@pytest.mark.medium
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_that_nobody_starts_ends_the_others(place, monkeypatch, rank):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    meeting = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in meeting.items():
        monkeypatch.setenv(name, value)
    code, _, err = place.run("train", *GIVEN[:-1], "1")
    assert code == 1
    line = next(line for line in err.splitlines() if line.startswith("error: "))
    assert f"error: rank {rank} of 2 did not meet the others at 127.0.0.1:{port} within 1 s" in line
    assert "start all ranks, all with rank 0's MASTER_ADDR and a free MASTER_PORT" in line
