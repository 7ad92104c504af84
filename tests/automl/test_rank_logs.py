"""`automl train --rank-logs`: the losses of each rank's batches, in processes of their own and under torchrun."""

import csv
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.command_line import InProcess
from trainers.local.batch_log import COLUMNS, BatchLog
from trainers.loop.step_counter import StepScalars

TASK = """
import torch
from torch import nn
from trainers.contract.task import BaseTask

class Mine(BaseTask):
    def __init__(self, *, raises_at=None):
        self.raises_at, self.passes = raises_at, 0

    def train_data(self, params):
        generator = torch.Generator().manual_seed(0)
        return torch.randn(50, 3, generator=generator, dtype=torch.float64), torch.arange(50) % 2

    def validation_data(self, params):
        return torch.zeros(7, 3, dtype=torch.float64), torch.arange(7) % 2

    def model(self, params):
        return nn.Linear(3, 2).double()

    def loss(self, outputs, targets):
        self.passes += self.raises_at is not None
        if self.passes and self.passes == self.raises_at:
            raise ValueError("no loss today")
        return super().loss(outputs, targets)

def function(trial):
    for epoch in trial.epochs():
        trial.report(val_error=1.0)
"""
GIVEN = ("--param", "batch_per_rank=4", "--rank-logs", "logs", "--json")


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> InProcess:
    (tmp_path / "logged_task.py").write_text(TASK)
    monkeypatch.syspath_prepend(tmp_path)
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():  # as under torchrun
        monkeypatch.setenv(name, value)
    return InProcess(tmp_path, capsys, monkeypatch)


def rows_of(place: InProcess, rank: int) -> list[dict[str, float]]:
    with (place.folder / "logs" / f"rank-{rank}.csv").open(newline="") as file:
        rows = csv.DictReader(file)
        assert rows.fieldnames == list(COLUMNS)
        return [{name: float(value) for name, value in row.items()} for row in rows]


def check_against(document: dict[str, Any], logs: list[list[dict[str, float]]], accumulate: int) -> None:
    """Every sample of an epoch is in one row, and the rows' losses average to the epoch's."""
    assert sorted(path.name for path in (Path("logs")).iterdir()) == [f"rank-{n}.csv" for n in range(len(logs))]
    steps = -(-50 // document["effective_batch"])
    for epoch in document["epochs"]:
        number = epoch["epoch"]
        rows = [row for log in logs for row in log if row["epoch"] == number]
        assert sum(row["samples"] for row in rows) == 50
        mean = sum(row["samples"] * row["loss"] for row in rows) / 50
        assert mean == pytest.approx(epoch["metrics"]["train_loss"], rel=1e-6)
        for log in logs:
            own = [row for row in log if row["epoch"] == number]
            assert {row["step"] for row in own} == set(range((number - 1) * steps + 1, number * steps + 1))
            assert len(own) >= steps * accumulate - accumulate
            assert all(row["seconds"] > 0 for row in own)
            assert sum(row["seconds"] for row in own) < epoch["wall_seconds"] + 0.5


@pytest.mark.parametrize("accumulate", [1, 2])
def test_rows_add_up_to_the_epochs_loss(place: InProcess, accumulate: int) -> None:
    given = ("--param", f"accumulate={accumulate}", "--epochs", "2")
    code, out, err = place.run("train", "logged_task:Mine", *GIVEN, *given)
    assert code == 0, err
    check_against(json.loads(out), [rows_of(place, 0)], accumulate)


@pytest.mark.large
def test_under_torchrun_each_rank_has_its_log(place: InProcess) -> None:
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = subprocess.run(
        [*launcher, "-m", "automl", "train", "logged_task:Mine", *GIVEN, "--epochs", "2"], cwd=place.folder, text=True,
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (document,) = [json.loads(line) for line in done.stdout.splitlines()]
    check_against(document, [rows_of(place, rank) for rank in range(2)], 1)


def test_a_resumed_training_goes_on_with_its_log_and_another_one_begins_it_anew(place: InProcess) -> None:
    keep = ("--checkpoints", "kept", "--resume")
    place.run("train", "logged_task:Mine", *GIVEN, *keep, "--epochs", "2")
    first = (place.folder / "logs" / "rank-0.csv").read_text()
    # Rows after the checkpoint, and the half of one, as a machine that fails leaves them.
    (place.folder / "logs" / "rank-0.csv").write_text(f"{first}3,27,4,0.5,0.1\n3,2")
    code, _, err = place.run("train", "logged_task:Mine", *GIVEN, *keep, "--epochs", "3")
    assert code == 0, err
    text = (place.folder / "logs" / "rank-0.csv").read_text()
    assert text.startswith(first)
    assert [row["step"] for row in rows_of(place, 0)] == list(range(1, 40))
    place.run("train", "logged_task:Mine", *GIVEN, "--epochs", "1")
    assert [row["step"] for row in rows_of(place, 0)] == list(range(1, 14))
    assert not list((place.folder / "logs").glob(".*"))


def test_a_training_that_fails_leaves_the_batches_before_and_what_cannot_be_logged_is_refused(place: InProcess) -> None:
    code, _, _ = place.run("train", "logged_task:Mine", *GIVEN, "--option", "raises_at=6")
    assert code == 1
    assert [row["step"] for row in rows_of(place, 0)] == [1, 2, 3, 4, 5]
    line = place.refused("train", "logged_task:function", "--rank-logs", "logs")
    assert (
        "--rank-logs: 'logged_task:function' has a training loop of its own, whose batches have no known loss" in line
    )
    line = place.refused("train", "logged_task:Mine", "--rank-logs", "logged_task.py/logs")
    assert f"--rank-logs: found '{place.folder}/logged_task.py/logs', but" in line
    assert "is not a folder" in line


def test_losses_are_read_about_once_a_second_and_not_at_each_batch(tmp_path, monkeypatch):
    """Reading them waits for a GPU."""
    reads: list[int] = []
    take = StepScalars.take
    monkeypatch.setattr(StepScalars, "take", lambda self: reads.append(1) or take(self))
    loss, began = torch.tensor(0.5), time.monotonic()
    with BatchLog(tmp_path / "logs" / "rank-0.csv", torch.device("cpu"), 0) as log:
        log._losses._waiting = torch.zeros(1024, dtype=torch.float64)  # as on a GPU
        for step in range(1, 5001):
            log.add(epoch=1, step=step, samples=4, loss=loss * step, seconds=0.001)
        seconds = time.monotonic() - began
    assert len(reads) <= 5000 // 1024 + seconds + 2
    with (tmp_path / "logs" / "rank-0.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in rows] == [0.5 * step for step in range(1, 5001)]


def test_the_rows_of_an_epoch_are_in_the_file_when_it_ends(tmp_path: Path) -> None:
    """The pool may end the process of a rank as soon as the last epoch is reported."""
    with BatchLog(tmp_path / "rank-0.csv", torch.device("cpu"), 0) as log:
        log.add(epoch=1, step=1, samples=4, loss=torch.tensor(0.5), seconds=0.001)
        log.end_epoch()
        assert len((tmp_path / "rank-0.csv").read_text().splitlines()) == 2


def test_a_disk_that_is_full_ends_the_log_with_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rank-0.csv"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with BatchLog(path, torch.device("cpu"), 0) as log:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # no file may become longer
            for step in range(500):
                log.add(epoch=1, step=step, samples=4, loss=torch.tensor(0.5), seconds=0.001)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert capsys.readouterr().err == f"warning: --rank-logs: {path} ends here: File too large\n"
