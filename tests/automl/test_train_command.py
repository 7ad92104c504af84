"""`automl train`: a study of one trial, and one rank under torchrun; what it prints where, its errors and files."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from automl.training.study_of_one_trial import _of_spec
from studies.spec.study_spec import parse_spec
from tests.support import optional
from tests.support.command_line import InProcess, Workplace, message_of
from tests.support.ray_pool import LentPool

TASK = """
import os
import subprocess
import time
import torch
from torch import nn
from trainers.contract.task import BaseTask

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
FUNCTION = """
import torch

def train(trial):
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for epoch in trial.epochs():
        for _ in range({steps}):
            (weight ** 2).sum().backward()
            optimizer.step()
        trial.report(val_error=float(epoch))
"""
STEADY = ("--param", "schedule=constant", "--param", "warmup_epochs=0", "--json")
RAISES_AT = next(n for n, line in enumerate(TASK.splitlines(), 1) if "no loss" in line)


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> InProcess:
    """A folder in which the command is the only rank that torchrun has started."""
    (tmp_path / "my_task.py").write_text(TASK)
    monkeypatch.syspath_prepend(tmp_path)
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    return InProcess(tmp_path, capsys, monkeypatch)


@pytest.fixture
def here(tmp_path: Path, warm_pool: LentPool) -> Iterator[Workplace]:
    """A folder in which the command trains as a study, on a warm pool."""
    place = Workplace(tmp_path, warm_pool)
    (tmp_path / "my_task.py").write_text(TASK)
    yield place
    place.end_processes()


def test_a_training_is_a_study_of_one_trial(here: Workplace) -> None:
    given = ("digits", "--epochs", "3", "--world-size", "2", "--param", "learning_rate=0.1", "--seed", "7")
    lines = here.run("train", *given).stdout.splitlines()
    assert lines[:3] == [
        "train-digits on 2 x CPU",
        "rank 0: cpu, 599 of 1197 samples in a pass over the data",
        "rank 1: cpu, 598 of 1197 samples in a pass over the data",
    ]
    epochs = [line for line in lines if line.startswith("epoch")]
    assert [line.split()[1] for line in epochs] == ["1", "2", "3"]
    assert epochs[0].split()[2::2][:4] == ["val_loss", "val_accuracy", "val_error", "train_loss"]
    assert len(epochs[0].split()) == 12, "the number, four metrics and the seconds"
    assert "learning rate    0.1 scaled to 0.2  (linear)" in lines
    assert "study            train-digits: `automl status train-digits`, `automl report train-digits`" in lines
    record = here.record("train-digits")
    (trial,) = record.started
    assert (record.state, trial.state, trial.world_size) == ("closed", "complete", 2)
    assert record.spec["search"]["seed"] == 7  # type: ignore[index]


def test_the_document_has_what_torchrun_gives_and_its_study(here: Workplace, place: InProcess) -> None:
    (document,) = [json.loads(place.run("train", "digits", "--epochs", "2", *STEADY)[1])]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RANK")
        again = here.json("train", "digits", "--epochs", "2", *STEADY[:-1])
    assert {*again} == {*document, "study"}
    assert losses(json.dumps(again)) == losses(json.dumps(document))
    assert {*again["epochs"][0]["metrics"]} == {*document["epochs"][0]["metrics"]}
    same = ("samples_per_rank", "effective_batch", "scaled_learning_rate", "model_parameters", "drained", "params")
    assert {name: again[name] for name in same} == {name: document[name] for name in same}
    assert Path(again["checkpoint"]).is_file()


def test_trainings_are_numbered_and_one_that_was_named_goes_on(here: Workplace) -> None:
    names = [here.json("train", "my_task:Mine", "--epochs", "1")["study"] for _ in range(2)]
    assert names == ["train-my_task-Mine", "train-my_task-Mine-2"]
    done = here.run("train", "my_task:Mine", "--epochs", "1", "--resume")
    assert done.stdout.startswith("continues train-my_task-Mine-2\n")
    other = here.run("train", "my_task:Mine", "--epochs", "2", "--resume")
    assert other.stdout.startswith("no training with the same settings to continue: starting train-my_task-Mine-3\n")
    named = ("train", "my_task:Mine", "--name", "train-my_task-Mine")
    assert here.json(*named, "--epochs", "1")["study"] == "train-my_task-Mine"
    assert "exists with another spec: training.epochs" in here.run(*named, "--epochs", "2", code=2).stderr


def test_a_training_that_is_stopped_is_drained_and_goes_on(here: Workplace) -> None:
    given = ("train", "my_task:Mine", "--epochs", "20", "--option", "fault=slow", "--checkpoint-every", "0", *STEADY)

    def stop() -> None:
        here.wait_for(lambda started: bool(started[0].epochs), "train-my_task-Mine")
        here.run("stop", "train-my_task-Mine")

    stopped = json.loads(here.run(*given, code=130, meanwhile=stop).stdout)
    assert stopped["drained"]
    assert Path(stopped["checkpoint"]).is_file()
    rest = json.loads(here.run(*given, "--resume").stdout)
    assert (rest["drained"], len(rest["epochs"])) == (False, 20)
    assert rest["start_epoch"] == len(stopped["epochs"])


def test_an_error_of_the_task_ends_the_command_in_one_line_above_the_traceback(here: Workplace) -> None:
    done = here.run("train", "faulty_tasks:Faulty", "--param", "fault=raise", "--param", "at_epoch=1", code=1)
    first, empty, *below = done.stderr.splitlines()
    assert first.startswith("error: ")
    assert f"({here.folder / 'faulty_tasks.py'}:" in first
    assert (empty, below[0]) == ("", "Traceback (most recent call last):")


def test_ranks_of_a_study_write_what_is_asked_for(here: Workplace) -> None:
    optional.module("tensorboard")
    given = ("--profile", "--trace", "traces/mine.json", "--rank-logs", "logs", "--tensorboard", "board")
    document = here.json("train", "digits", "--epochs", "2", "--world-size", "2", *given)
    assert 0 < len(document["profile"]["operations"]) <= 10
    assert [path.name for path in (here.folder / "traces").iterdir()] == ["mine.json"]
    assert sorted(path.name for path in (here.folder / "logs").iterdir()) == ["rank-0.csv", "rank-1.csv"]
    assert len(list((here.folder / "board").iterdir())) == 1


def test_mlflow_gets_its_study(here: Workplace) -> None:
    document = here.json("train", "digits", "--epochs", "1", "--mlflow", "sqlite:///mlflow.db")
    assert document["mlflow"]["experiment"] == "train-digits"
    assert "#/experiments/" in document["mlflow"]["link"]


PROGRAM = "for epoch in range({epochs}): print('step', 100 * epoch, 'error', {lr})"
SPEC_OF_A_COMMAND = f"""
study: mine
task:
  command: [python, -c, "{PROGRAM}"]
  metrics: {{pattern: 'step (?P<step>.*) error (?P<val_error>.*)'}}
  epoch_from: step // 100 + 1
space: {{lr: [0.25, 0.5], optimizer: [Adam, RMSprop]}}
objectives: [val_error]
training: {{epochs: 3}}
search: {{first_trials: [{{lr: 0.5, optimizer: RMSprop}}]}}
"""


def test_a_spec_is_trained_once_with_what_was_read_of_its_output(here: Workplace) -> None:
    (here.folder / "specs").mkdir()
    (here.folder / "specs" / "mine.yaml").write_text(SPEC_OF_A_COMMAND)
    lines = here.run("train", "specs/mine.yaml", "--param", "lr=0.25").stdout.splitlines()
    assert [line.split()[:4] for line in lines if line.startswith("epoch")] == [
        ["epoch", str(epoch), "val_error", "0.2500"] for epoch in (1, 2, 3)
    ]
    assert "parameters       lr=0.25 optimizer=RMSprop" in lines
    again = here.json("train", "specs/mine.yaml", "--epochs", "2")
    assert (again["study"], len(again["epochs"])) == ("train-mine-2", 2)
    assert again["params"] == {"lr": 0.5, "optimizer": "RMSprop"}
    for words, given in (
        ("search.first_trials.0.lr: found 0.1", ("--param", "lr=0.1")),
        ("--option has no effect for a spec", ("--option", "a=1")),
        ("--profile: 'specs/mine.yaml' runs a command", ("--profile",)),
    ):
        assert words in message_of(here.run("train", "specs/mine.yaml", *given, code=2).stderr)


def test_one_trial_of_a_spec_needs_no_advisor(tmp_path: Path) -> None:
    text = "task: digits\nspace: {width: 16..64}\nsearch: {advisor: {command: [python, advise.py]}}\n"
    (tmp_path / "mine.yaml").write_text(text)
    device: Any = {"seed": 0, "device": "cpu", "backend": "gloo"}
    form = _of_spec(str(tmp_path / "mine.yaml"), {"width": 32}, None, epochs=1, usd=None, **device)
    assert parse_spec(form, "mine").search.advisor is None


def test_what_is_wrong_is_told_before_anything_is_written(here: Workplace) -> None:
    said = message_of(here.run("train", "my_task:Mine", "--priority", "3", code=2).stderr)
    assert "--priority needs --server" in said
    assert not (here.folder / "automl.db").exists()


def test_options_reach_the_task(place: InProcess) -> None:
    code, out, err = place.run("train", "my_task:Mine", "--option", "samples=40", "--epochs", "1", "--json")
    assert code == 0, err
    assert json.loads(out)["samples_per_rank"] == {"0": 40}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--option", "sample=40"], "task_options: found the unknown key 'sample', allowed: samples, fault. Did you"),
        (["--option", "samples"], "--option: found 'samples', allowed: NAME=VALUE"),
        (["--option", "samples=-3"], "task_options.samples: found -3: ValueError: samples must be positive, not -3"),
        (["--param", "widht=3"], "allowed: width, learning_rate, batch_per_rank"),
        (["--param", "shard=full", "--param", "compile=true"], "--param: shard is full and compile is true"),
        (["--param", "precision=fp16", "--device", "cpu"], "--param: precision is fp16 on a CPU"),
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
        ("reserved", "error: Mine.metrics: every trial has a metric 'cost_usd' already. Rename the task's"),
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
    assert "--epochs: " in line
    assert "is of epoch 4, so nothing is left of 4 epochs" in line


def test_without_a_checkpoint_resume_starts_afresh_and_says_so(place: InProcess) -> None:
    code, out, _ = place.run("train", "my_task:Mine", "--epochs", "1", "--checkpoints", "none", "--resume")
    assert code == 0
    assert out.startswith("no checkpoint in none: starts at epoch 1\n")
    assert "under torchrun, --resume needs --checkpoints" in place.refused("train", "my_task:Mine", "--resume")
    assert "--name has no effect under torchrun" in place.refused("train", "my_task:Mine", "--name", "mine")


def test_a_profile_is_a_trace_and_the_dearest_operations(place: InProcess) -> None:
    arguments = ["--epochs", "3", "--param", "batch_per_rank=6", "--profile"]
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
    assert profile["steps"] == 11, "24 samples make 4 steps; one step warms the profiler up"
    _, table, _ = place.run("train", "my_task:Mine", "--epochs", "1", "--profile")
    assert f"  {operations[0]['name']}" in table or " calls  " in table


@pytest.mark.parametrize(("steps", "recorded"), [(40, 20), (5, 3), (2, None)])
def test_a_profile_of_a_function_counts_the_steps_of_its_optimizers(
    steps: int, recorded: int | None, place: InProcess
) -> None:
    (place.folder / "loops.py").write_text(FUNCTION.format(steps=steps))
    code, out, err = place.run("train", "loops:train", "--epochs", "1", "--profile", "--json")
    assert code == 0, err
    profile = json.loads(out)["profile"]
    assert (profile and profile["steps"]) == recorded
    assert (place.folder / "trace.json").exists() == (recorded is not None)
    assert ("--profile needs more than 2 steps of a torch optimizer: no trace" in err) == (recorded is None)


def test_tensorboard_gets_every_epochs_metrics_learning_rate_gradient_norm_and_throughput(place: InProcess) -> None:
    optional.module("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    given = ("--param", "clip_norm=100.0", "--param", "learning_rate=0.25")
    code, out, err = place.run("train", "my_task:Mine", "--epochs", "3", *given, *STEADY, "--tensorboard", "board")
    assert code == 0, err
    written = EventAccumulator(str(place.folder / "board"))
    written.Reload()
    points = [(event.step, event.value) for event in written.Scalars("val_loss")]
    assert points == [(epoch, pytest.approx(loss)) for epoch, loss in enumerate(losses(out), 1)]
    assert set(json.loads(out)["epochs"][0]["metrics"]) <= set(written.Tags()["scalars"])
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
    cure = "but the package tensorboard is not installed. Install it: pip install"
    assert f"--tensorboard: found '{place.folder}/board', {cure}" in line


@pytest.mark.slow
def test_torchrun_trains_on_two_nodes(place: InProcess) -> None:
    """Two agents, each of which takes itself for a machine of its own, go on where one rank has stopped."""
    place.run("train", "my_task:Mine", "--epochs", "1", "--checkpoints", "before", "--param", "batch_per_rank=24")
    for patience in (60, 60, 600):  # agents that miss each other, as on a busy machine, meet again
        shutil.rmtree("shared", ignore_errors=True)  # the training may have ended before its agents did
        shutil.copytree("before", "shared")
        with contextlib.suppress(subprocess.TimeoutExpired):
            (document,) = on_two_nodes(place, patience)
            break
    assert document["world_size"] == 2
    assert document["samples_per_rank"] == {"0": 12, "1": 12}
    assert [one["epoch"] for one in document["epochs"]] == [2, 3]


def on_two_nodes(place: InProcess, seconds: float) -> list[dict[str, Any]]:
    """The documents that all ranks print together."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1")
    meeting = ("--master-addr", "127.0.0.1", "--master-port", port)
    given = ("--checkpoints", "shared", "--resume", "--epochs", "3", "--param", "batch_per_rank=12", "--json")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    nodes = [
        subprocess.Popen(
            [*launcher, "--node-rank", number, *meeting, "-m", "automl", "train", "my_task:Mine", *given],
            cwd=place.folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) for number in ("0", "1")
    ]  # fmt: skip
    try:
        said = [node.communicate(timeout=seconds) for node in nodes]
        assert [node.returncode for node in nodes] == [0, 0], said
    finally:
        for node in nodes:
            node.terminate()  # torchrun ends its ranks
        for node in nodes:
            end(node)
    return [json.loads(line) for out, _ in said for line in out.splitlines()]


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
