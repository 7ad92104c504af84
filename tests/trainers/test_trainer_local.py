"""Training on this machine without Ray: processes, torchrun, interrupts."""

import contextlib
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch

from tests.support import optional
from tests.support.served import free_port
from tests.support.trainer_pool import HERE, run_trial, spec_of
from tests.support.waiting import is_gone, wait_until
from trainers.local.diagnostics import diagnosed
from trainers.local.local_training import train_locally
from trainers.protocol import Diagnostics, LostError, Measurement, TaskError
from trainers.ranks.process_group import Group

SCRIPT = """
import sys
sys.path.insert(0, {here!r})
from tests.support.served import free_port
from tests.support.trainer_pool import spec_of
from trainers.local.local_training import train_locally

def say(line):
    print(line + "\\n", end="", flush=True)  # in one piece: ranks share their output under torchrun

if __name__ == "__main__":
    spec = spec_of(2, options={options!r}, training={training!r})
    train_locally(spec, 2, lambda m: say(f"{{m.epoch}} {{m.metrics['val_loss']!r}}"),
                  lambda f: say(f"rank {{f.rank}} {{f.samples}}"))
"""


@pytest.fixture
def started():
    """Commands of the Python processes that a test has started and that still live; other tests share theirs."""
    before = set(psutil.Process().children(recursive=True))

    def living():
        commands = []
        for child in set(psutil.Process().children(recursive=True)) - before:
            with contextlib.suppress(psutil.NoSuchProcess):
                commands.append(" ".join(child.cmdline()))
        return [one for one in commands if "multiprocessing" in one and "resource_tracker" not in one]

    return living


def script(tmp_path, options=None, training=None):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(here=HERE, options=options or {}, training=training or {}))
    return str(path)


@pytest.mark.large
def test_processes_of_its_own_which_may_read_their_data_in_others_train_like_one(quick_starts, started):
    measurements, facts = [], []
    spec = spec_of(2, options={"dataset": True}, training={"data_workers": 1})
    returned = train_locally(spec, 2, measurements.append, facts.append)
    alone = run_trial(Group(), spec_of())["measurements"]
    assert returned == measurements
    losses = [m.metrics["val_loss"] for m in measurements]
    assert losses == pytest.approx([m.metrics["val_loss"] for m in alone], rel=1e-10)
    assert sorted((f.rank, f.samples, f.device) for f in facts) == [(0, 25, "cpu"), (1, 25, "cpu")]
    assert not started()


@pytest.mark.large
@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("raise on rank 1", TaskError, "ValueError: rank 1 cannot go on"),
        ("die on rank 1", LostError, r"rank 1 died with exit code 9|Connection|gloo"),
    ],
)
def test_the_first_failing_ranks_error_is_raised_and_no_process_is_left(fault, error, words, quick_starts, started):
    with pytest.raises(error, match=words):
        train_locally(spec_of(2, options={"fault": fault}), 2)
    assert not started()


def test_one_rank_needs_no_process():
    facts = []
    assert len(train_locally(spec_of(), 1, on_facts=facts.append)) == 3
    assert facts[0].samples == 50


@pytest.mark.slow  # `automl train` under torchrun runs always
def test_torchrun_launches_the_same_training(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1",
               f"--master-port={free_port()}", script(tmp_path)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    lines = done.stdout.splitlines()
    alone = run_trial(Group(), spec_of())["measurements"]
    losses = [float(line.split()[1]) for line in lines if line[0].isdigit()]
    assert losses == pytest.approx([m.metrics["val_loss"] for m in alone], rel=1e-10)
    assert sorted(line for line in lines if line.startswith("rank")) == ["rank 0 25", "rank 1 25"]


@pytest.mark.large
@pytest.mark.parametrize("sign", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL])
def test_no_rank_outlives_its_parent(tmp_path, sign):
    training = {"epochs": 1_000_000, "data_workers": 1}
    command = [sys.executable, script(tmp_path, options={"dataset": True}, training=training)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parent:
        while not parent.stdout.readline().startswith("1 "):
            assert parent.poll() is None
        ranks = psutil.Process(parent.pid).children(recursive=True)
        assert len(ranks) >= 2 + 4  # two ranks, each with a reader of training data and one of validation data
        os.kill(parent.pid, sign)
        parent.communicate(timeout=120)
    assert parent.returncode == -sign
    wait_until(lambda: all(is_gone(rank) for rank in ranks), "not all ranks have ended")


def test_tensorboard_gets_the_load_of_all_gpus(tmp_path, monkeypatch):
    """MLflow's monitor, over a stand-in for NVIDIA's library with two GPUs."""
    optional.module("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    nvml = SimpleNamespace(
        NVMLError=Exception,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda index: SimpleNamespace(used=1e6 * (index + 1), total=4e6),
        nvmlDeviceGetUtilizationRates=lambda index: SimpleNamespace(gpu=40 + index),
        nvmlDeviceGetPowerUsage=lambda _index: 1000,
        nvmlDeviceGetEnforcedPowerLimit=lambda _index: 2000,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr("mlflow.system_metrics.metrics.gpu_monitor.pynvml", nvml, raising=False)
    group = SimpleNamespace(rank=0, device=torch.device("cuda:0"))
    with diagnosed(Diagnostics(tensorboard=str(tmp_path)), group) as saw:
        for epoch in (1, 2):
            saw(Measurement(epoch=epoch, metrics={"val_loss": 1.0}, wall_seconds=1.0))
    written = EventAccumulator(str(tmp_path))
    written.Reload()
    for gpu in range(2):
        points = [(one.step, one.value) for one in written.Scalars(f"system/gpu_{gpu}_utilization_percentage")]
        assert points == [(1, 40 + gpu), (2, 40 + gpu)]
        assert [one.value for one in written.Scalars(f"system/gpu_{gpu}_memory_usage_megabytes")] == [gpu + 1] * 2
