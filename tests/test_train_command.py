"""`automl train`: what it prints where, its errors, the task's options, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from command_line import AUTOML, InProcess

TASK = """
import os
import subprocess
import time
import torch
from torch import nn
from trainers.task import BaseTask

class Mine(BaseTask):
    parameters = ("width",)

    def __init__(self, *, samples=24, fault=None):
        if samples < 1:
            raise ValueError(f"samples must be positive, not {samples}")
        self.samples, self.fault = samples, fault

    def train_data(self, params):
        if self.fault == "loud":
            print("printed")
            os.write(1, b"written\\n")
            subprocess.run(["echo", "of a child"])
        return torch.randn(self.samples, 3), torch.arange(self.samples) % 2

    def validation_data(self, params):
        return torch.randn(8, 3), torch.arange(8) % 2

    def model(self, params):
        return {} if self.fault == "dict" else nn.Linear(3, 2)

    def loss(self, outputs, targets):
        if self.fault == "slow":
            time.sleep(0.2)
        if self.fault == "raises":
            raise ValueError("no loss\\ntoday")
        return super().loss(outputs, targets)

    def metrics(self, outputs, targets):
        metrics = super().metrics(outputs, targets)
        return metrics | {"cost_usd": metrics["val_error"]} if self.fault == "reserved" else metrics
"""
RAISES_AT = next(n for n, line in enumerate(TASK.splitlines(), 1) if "no loss" in line)


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> InProcess:
    (tmp_path / "my_task.py").write_text(TASK)
    monkeypatch.syspath_prepend(tmp_path)
    return InProcess(tmp_path, capsys, monkeypatch)


def test_options_reach_the_task(place: InProcess) -> None:
    code, out, err = place.run("train", "my_task:Mine", "--option", "samples=40", "--epochs", "1", "--json")
    assert code == 0, err
    assert json.loads(out)["samples_per_rank"] == {"0": 40}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--option", "sample=40"], "task_options: found the unknown key 'sample', allowed: samples, fault, did you"),
        (["--option", "samples"], "--option: found 'samples', allowed: NAME=VALUE"),
        (["--option", "samples=-3"], "task_options.samples: found -3: ValueError: samples must be positive, not -3"),
        (["--param", "widht=3"], "allowed: width, learning_rate, batch_per_rank"),
        (["--param", "shard=full", "--param", "compile=true"], "--param: found shard full with compile true"),
        (["--param", "precision=fp16", "--device", "cpu"], "--param: found precision fp16 on a CPU"),
    ],
)
def test_wrong_arguments_are_named(place: InProcess, arguments: list[str], words: str) -> None:
    assert words in place.refused("train", "my_task:Mine", *arguments)


def test_an_error_of_the_task_is_one_line_with_its_place_above_the_traceback(place: InProcess) -> None:
    code, out, err = place.run("train", "my_task:Mine", "--option", "fault=raises", "--json")
    assert (code, out) == (1, "")
    first, empty, *below = err.splitlines()
    assert first == f"error: ValueError: no loss today ({place.folder / 'my_task.py'}:{RAISES_AT})"
    assert empty == ""
    assert below[0] == "Traceback (most recent call last):"


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("dict", "error: Mine.model(params): found a dict, allowed: a torch.nn.Module"),
        ("reserved", "error: Mine.metrics: found 'cost_usd', allowed: any other name, since this one is measured in"),
    ],
)
def test_what_the_task_does_wrong_is_one_line(place: InProcess, fault: str, line: str) -> None:
    code, _, err = place.run("train", "my_task:Mine", "--option", f"fault={fault}", "--json")
    assert code == 1
    assert err.startswith(line)
    assert err.count("\n") == 1


def test_an_epochs_line_has_losses_and_the_tasks_metrics_only(place: InProcess) -> None:
    code, out, _ = place.run("train", "my_task:Mine", "--epochs", "1")
    assert code == 0
    line = next(line for line in out.splitlines() if line.startswith("epoch"))
    assert line.split()[2::2][:4] == ["val_loss", "val_accuracy", "val_error", "train_loss"]
    assert len(line.split()) == 12, "the number, four metrics and the seconds"


def test_what_ranks_print_does_not_get_into_the_document(place: InProcess) -> None:
    """Python, a C library and a child process all write to file descriptor 1."""
    arguments = ["--world-size", "2", "--epochs", "1", "--option", "fault=loud", "--json"]
    done = subprocess.run(
        [AUTOML, "train", "my_task:Mine", *arguments], cwd=place.folder, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["world_size"] == 2
    for words in ("printed", "written", "of a child"):
        assert done.stderr.count(words) == 2


def test_an_interrupt_leaves_no_process(place: InProcess) -> None:
    arguments = ["train", "my_task:Mine", "--world-size", "2", "--epochs", "999", "--option", "fault=slow"]
    process = subprocess.Popen(
        [AUTOML, *arguments], cwd=place.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert next(line for line in process.stdout if line.startswith("epoch"))
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 2
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.strip()) == (130, "")
    deadline = time.monotonic() + 10
    while any(one.is_running() for one in family) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [one for one in family if one.is_running()]
