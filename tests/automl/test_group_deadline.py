"""Ranks of `automl train` and `automl compare` that load at different speeds, and ranks that never come."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import AUTOML

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


def is_slow() -> bool:
    if "RANK" in os.environ:
        return os.environ["RANK"] == "1"
    if multiprocessing.parent_process() is None:
        return False
    try:  # of ranks that the command has started, the first one
        os.close(os.open("taken", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class Slow(BaseTask):
    def __init__(self, *, how="sleeps"):
        if not is_slow():
            return
        if how == "sleeps":
            while not os.path.exists("loaded"):  # by the other rank, which waits from now on
                time.sleep(0.05)
            time.sleep({DEADLINE_SECONDS + 2})
        else:
            os.kill(os.getpid(), signal.SIGSTOP)

    def train_data(self, params):
        return torch.randn(42, 3), torch.arange(42) % 2

    def validation_data(self, params):
        open("loaded", "w").close()
        return torch.randn(8, 3), torch.arange(8) % 2

    def model(self, params):
        return nn.Linear(3, 2)
"""
GIVEN = ("slow:Slow", "--epochs", "1", "--group-seconds", str(DEADLINE_SECONDS))
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "automl")
pytestmark = pytest.mark.xdist_group("ranks")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "slow.py").write_text(TASK)
    return tmp_path


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder), **environment}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr[-2000:]
    read: dict[str, Any] = json.loads(done.stdout)
    return read


@pytest.mark.large
@pytest.mark.parametrize(
    "command", [(AUTOML, "compare", "--world-sizes", "2"), pytest.param((*TORCHRUN, "train"), marks=pytest.mark.slow)]
)
def test_a_rank_that_loads_for_longer_than_the_deadline_is_waited_for(folder: Path, command: tuple[str, ...]) -> None:
    trained = document(run(folder, *command, *GIVEN, "--json"))
    assert trained.get("world_size", 2) == 2


@pytest.mark.large
def test_a_rank_that_stops_while_it_loads_ends_the_training(folder: Path) -> None:
    done = run(folder, AUTOML, "compare", "--world-sizes", "2", *GIVEN, "--option", "how=stops")
    assert done.returncode == 1
    deadline = f"within the deadline of {DEADLINE_SECONDS} s (--group-seconds)"
    stops, is_slow = f"of 2 sent no heartbeat {deadline}", f"of 2 has not started {deadline}"  # on a busy machine
    assert stops in done.stderr or is_slow in done.stderr
    assert "last output" in done.stderr


@pytest.mark.large
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_that_nobody_starts_ends_the_others(folder: Path, rank: str, free_port: str) -> None:
    place = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port}
    done = run(folder, AUTOML, "train", *GIVEN[:-1], "1", TORCH_CPP_LOG_LEVEL="FATAL", **place)
    assert done.returncode == 1
    line = next(line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert f"error: rank {rank} of 2 did not meet the others at 127.0.0.1:{free_port} within 1 s" in line
    assert "start all ranks, all with rank 0's MASTER_ADDR and a free MASTER_PORT" in line


@pytest.fixture
def free_port() -> str:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])
