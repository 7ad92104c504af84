"""`automl train`: what it prints where, its errors, the task's options, and Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import optional
from tests.support.command_line import AUTOML, InProcess, finish
from tests.support.waiting import wait_until

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
STEADY = ("--param", "schedule=constant", "--param", "warmup_epochs=0", "--json")
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


def test_shares_are_those_of_a_pass_of_which_an_epoch_may_be_a_part(place: InProcess) -> None:
    options = ("--option", "samples=40", "--param", "batch_per_rank=8", "--param", "samples_per_epoch=16")
    code, out, err = place.run("train", "my_task:Mine", *options, "--epochs", "1")
    assert code == 0, err
    assert "40 of 40 samples in a pass over the data" in out + err
    assert "(samples in a pass by rank: 0: 40)" in out + err


def test_an_epochs_line_has_losses_and_the_tasks_metrics_only(place: InProcess) -> None:
    code, out, _ = place.run("train", "my_task:Mine", "--epochs", "1")
    assert code == 0
    line = next(line for line in out.splitlines() if line.startswith("epoch"))
    assert line.split()[2::2][:4] == ["val_loss", "val_accuracy", "val_error", "train_loss"]
    assert len(line.split()) == 12, "the number, four metrics and the seconds"


@pytest.mark.large
def test_sigterm_to_all_ranks_ends_a_training_after_its_epoch_with_a_clean_document(place: InProcess) -> None:
    """Python, a C library and a child process of each rank write to file descriptor 1 in the meantime."""
    arguments = ["--world-size", "2", "--checkpoints", "kept", "--option", "fault=loud", *STEADY]
    process = subprocess.Popen(
        [AUTOML, "train", "my_task:Mine", *arguments, "--epochs", "100000", "--checkpoint-every", "0"],
        cwd=place.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    wait_until(lambda: list((place.folder / "kept").glob("epoch-*.pt")), seconds=90)
    os.killpg(process.pid, signal.SIGTERM)  # as a service manager does: to all of them
    code, out, err = finish(process)
    assert code == 130, err
    trained = json.loads(out)
    assert (trained["drained"], trained["world_size"]) == (True, 2)
    assert Path(trained["checkpoint"]).name == f"epoch-{trained['epochs'][-1]['epoch']:04d}.attempt-1.pt"
    assert [path.name for path in (place.folder / "kept").iterdir()] == [Path(trained["checkpoint"]).name]
    for words in ("printed", "written", "of a child"):
        assert err.count(words) == 2


@pytest.mark.large
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
    _, err = process.communicate(timeout=150)
    assert (process.returncode, err.strip()) == (130, "")
    wait_until(lambda: not any(one.is_running() for one in family))


def losses(out: str) -> list[float]:
    return [one["metrics"]["val_loss"] for one in json.loads(out)["epochs"]]


def test_resuming_ends_like_an_uninterrupted_training(place: InProcess) -> None:
    _, whole, _ = place.run("train", "my_task:Mine", "--epochs", "4", *STEADY)
    keep = ("--checkpoints", "kept", "--resume")
    code, first, err = place.run("train", "my_task:Mine", "--epochs", "2", *keep, *STEADY)
    assert code == 0, err
    _, rest, _ = place.run("train", "my_task:Mine", "--epochs", "4", *keep, *STEADY)
    assert losses(first) + losses(rest) == losses(whole)
    assert json.loads(rest)["start_epoch"] == 2
    assert [one["epoch"] for one in json.loads(rest)["epochs"]] == [3, 4]
    assert json.loads(rest)["checkpoint"] == str(place.folder / "kept" / "epoch-0004.attempt-1.pt")
    line = place.refused("train", "my_task:Mine", "--epochs", "4", *keep)
    assert "--epochs: found 4, but" in line
    assert "is of epoch 4, so nothing is left; allowed: more" in line


@pytest.mark.large
def test_shares_are_kept_and_deleted_with_their_checkpoint(place: InProcess) -> None:
    words = ["train", "digits", "--world-size", "2", "--param", "shard=full", "--checkpoints", "kept", "--resume"]
    for epochs in ("1", "2"):
        code, out, _ = place.run(*words, "--epochs", epochs, "--json")
        assert code == 0, out
        stem = f"epoch-000{epochs}.attempt-1"
        names = sorted(path.name for path in (place.folder / "kept").iterdir())
        assert names == [f"{stem}.pt", f"{stem}.rank-0-of-2.bin", f"{stem}.rank-1-of-2.bin"]


def test_the_latest_checkpoint_is_kept_and_no_other(place: InProcess) -> None:
    """Seen while the second epoch trains, since the end would look the same if only the last one was written."""
    arguments = ["--epochs", "3", "--checkpoints", "kept", "--checkpoint-every", "0"]
    process = subprocess.Popen(
        [AUTOML, "train", "my_task:Mine", *arguments, "--option", "fault=slow"], cwd=place.folder,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert next(line for line in process.stdout if line.startswith("epoch   1"))
        seen = sorted(path.name for path in (place.folder / "kept").iterdir())
        process.communicate(timeout=60)
    assert seen == ["epoch-0001.attempt-1.pt"]
    assert sorted(path.name for path in (place.folder / "kept").iterdir()) == ["epoch-0003.attempt-1.pt"]


def test_without_a_checkpoint_resume_starts_afresh_and_says_so(place: InProcess) -> None:
    code, out, _ = place.run("train", "my_task:Mine", "--epochs", "1", "--checkpoints", "none", "--resume")
    assert code == 0
    assert out.startswith("no checkpoint in none: starts anew\n")
    assert "found --resume, allowed: beside --checkpoints only" in place.refused("train", "my_task:Mine", "--resume")


@pytest.mark.parametrize("world_size", ["1", "2"])
def test_a_profile_is_a_trace_and_the_dearest_operations(place: InProcess, world_size: str) -> None:
    arguments = ["--epochs", "3", "--world-size", world_size, "--param", "batch_per_rank=6", "--profile"]
    code, out, err = place.run("train", "my_task:Mine", *arguments, "--trace", "traces/mine.json", "--json")
    assert code == 0, err
    profile = json.loads(out)["profile"]
    operations = profile["operations"]
    assert 0 < len(operations) <= 10
    assert [one["seconds"] for one in operations] == sorted((one["seconds"] for one in operations), reverse=True)
    assert 0.2 < sum(one["share"] for one in operations) <= 1.0
    trace = json.loads((place.folder / "traces" / "mine.json").read_text())
    names = {event.get("name") for event in trace["traceEvents"]}
    assert {one["name"] for one in operations} <= names
    assert "aten::addmm" in names, "a forward pass"
    # 24 samples make 4 steps on one rank and 2 on two; one step warms the profiler up.
    assert profile["steps"] == {"1": 11, "2": 5}[world_size]
    _, table, _ = place.run("train", "my_task:Mine", "--epochs", "1", "--profile")
    assert f"  {operations[0]['name']}" in table or " calls  " in table


def test_no_profile_is_made_unasked(place: InProcess) -> None:
    _, out, _ = place.run("train", "my_task:Mine", "--epochs", "1", "--json")
    assert json.loads(out)["profile"] is None
    assert not list(place.folder.glob("*.json"))


def test_tensorboard_gets_every_epochs_metrics(place: InProcess) -> None:
    optional.module("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    code, out, err = place.run("train", "my_task:Mine", "--epochs", "2", "--tensorboard", "board", "--json")
    assert code == 0, err
    written = EventAccumulator(str(place.folder / "board"))
    written.Reload()
    points = [(event.step, event.value) for event in written.Scalars("val_loss")]
    assert points == [(epoch, pytest.approx(loss)) for epoch, loss in enumerate(losses(out), 1)]
    assert set(json.loads(out)["epochs"][0]["metrics"]) <= set(written.Tags()["scalars"])


def test_tensorboard_gets_learning_rate_gradient_norm_and_throughput(place: InProcess) -> None:
    optional.module("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    given = ("--world-size", "2", "--param", "clip_norm=100.0", "--param", "learning_rate=0.25")
    code, out, err = place.run("train", "my_task:Mine", "--epochs", "3", *given, *STEADY, "--tensorboard", "board")
    assert code == 0, err
    written = EventAccumulator(str(place.folder / "board"))
    written.Reload()
    rates = [(event.step, event.value) for event in written.Scalars("learning_rate")]
    assert rates == [(epoch, pytest.approx(json.loads(out)["scaled_learning_rate"])) for epoch in (1, 2, 3)]
    throughput = [one["metrics"]["samples_per_second"] for one in json.loads(out)["epochs"]]
    assert [event.value for event in written.Scalars("samples_per_second")] == pytest.approx(throughput)
    norms = [event.value for event in written.Scalars("gradient_norm")]
    assert len(norms) == 3
    assert all(0 < norm < 100 for norm in norms)


def test_without_the_package_tensorboard_is_refused(place: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    line = place.refused("train", "my_task:Mine", "--tensorboard", "board")
    assert "--tensorboard: found 'board', but the package tensorboard is not installed; install it: pip install" in line


@pytest.mark.slow
def test_torchrun_trains_on_two_nodes(place: InProcess) -> None:
    """Two agents, each of which takes itself for a machine of its own, go on where one rank has stopped."""
    place.run("train", "my_task:Mine", "--epochs", "1", "--checkpoints", "shared", "--param", "batch_per_rank=24")
    (document,) = on_two_nodes(place, "--epochs", "3", "--param", "batch_per_rank=12")
    assert document["world_size"] == 2
    assert document["samples_per_rank"] == {"0": 12, "1": 12}
    assert [one["epoch"] for one in document["epochs"]] == [2, 3]


def on_two_nodes(place: InProcess, *arguments: str) -> list[dict[str, Any]]:
    """The documents that all ranks print together. Agents that miss each other, as on a busy machine, meet again."""
    shared, before = place.folder / "shared", place.folder / "before"
    shared.mkdir(exist_ok=True)
    shutil.copytree(shared, before, dirs_exist_ok=True)
    for _ in range(2):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return once_on_two_nodes(place, *arguments)
        shutil.rmtree(shared)  # the training may have ended before its agents did
        shutil.copytree(before, shared)
    return once_on_two_nodes(place, *arguments)


def once_on_two_nodes(place: InProcess, *arguments: str) -> list[dict[str, object]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    nodes: list[subprocess.Popen[str]] = []
    for number in ("0", "1"):
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"),
            *("--node-rank", number, "--master-addr", "127.0.0.1", "--master-port", str(port)),
            *("-m", "automl", "train", "my_task:Mine", "--checkpoints", "shared", "--resume", *arguments, "--json"),
        ]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        nodes.append(
            subprocess.Popen(
                command, cwd=place.folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    documents = []
    try:
        for node in nodes:
            out, err = node.communicate(timeout=60)
            assert node.returncode == 0, err[-2000:]
            documents += [json.loads(line) for line in out.splitlines()]
    finally:
        for node in nodes:
            node.terminate()  # torchrun ends its ranks
        for node in nodes:
            end(node)
    return documents


def end(node: subprocess.Popen[str]) -> None:
    """Wait for an agent; one that waits for its peer may not hear that it should end, and its ranks live elsewhere."""
    try:
        node.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        processes: list[Any] = [*psutil.Process(node.pid).children(recursive=True), node]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        node.communicate(timeout=30)
