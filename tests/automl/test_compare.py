"""`automl compare`, and the collectives that `automl doctor --bandwidth` times."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from automl import doctor_checks
from automl.training import request
from automl.training.world_sizes import _too_quick, too_inefficient
from studies.gangs.available_slots import AvailableSlots
from tests.support.command_line import InProcess
from trainers.checkpoints.checkpoint import _ESSENTIALS, _KEYS, FORMAT, largest_difference
from trainers.failures import CheckpointError
from trainers.local import bandwidth
from trainers.local.bandwidth import measure_bandwidth
from trainers.ranks.group_options import GroupOptions

TASK = """
import torch
from torch import nn
from trainers.contract.task import BaseTask

class Mine(BaseTask):
    def train_data(self, params):
        return torch.randn(42, 3), torch.arange(42) % 2

    def validation_data(self, params):
        return torch.randn(8, 3), torch.arange(8) % 2

    def model(self, params):
        return nn.Linear(3, 2)
"""


READ = """

class Read(Mine):
    def train_data(self, params):
        return torch.utils.data.ConcatDataset([torch.utils.data.TensorDataset(*super().train_data(params))])
"""


FUNCTION = """

def train(trial):
    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(48, 3))
    model = trial.prepare(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in trial.epochs(model=model):
        for (inputs,) in trial.loader(data):
            with trial.autocast():
                loss = (model(inputs) ** 2).mean()
            trial.backward(loss)
            trial.step(optimizer)
        trial.report(error=loss.detach())

def ignoring(trial):
    for epoch in trial.epochs():
        trial.report(error=float(epoch))
"""


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> InProcess:
    (tmp_path / "mine.py").write_text(TASK + READ + FUNCTION)
    monkeypatch.syspath_prepend(tmp_path)
    # On any machine: two ranks find room, three do not.
    monkeypatch.setattr(request, "find_slots", lambda *_: AvailableSlots(device="cpu", device_name="CPU", slots=2))
    return InProcess(tmp_path, capsys, monkeypatch)


@pytest.mark.large
def test_data_may_be_read_by_other_processes(place: InProcess) -> None:
    arguments = ["--world-sizes", "1,2", "--epochs", "1", "--param", "batch_per_rank=6", "--param", "data_workers=1"]
    code, out, err = place.run("compare", "mine:Read", *arguments, "--json")
    assert code == 0, err
    one, two = json.loads(out)["world_sizes"]
    assert two["val_loss"] == pytest.approx(one["val_loss"], abs=1e-5)


@pytest.mark.large
def test_a_function_that_accumulates_takes_the_same_steps_too(place: InProcess) -> None:
    arguments = ["--world-sizes", "1,2", "--epochs", "2", "--param", "batch_per_rank=6"]
    code, out, err = place.run("compare", "mine:train", *arguments, "--json")
    assert code == 0, err
    one, two = json.loads(out)["world_sizes"]
    assert [(row["accumulate"], row["samples_per_second"], row["val_loss"]) for row in (one, two)] == [
        (2, None, None), (1, None, None),
    ]  # fmt: skip
    assert two["weight_difference"] < 1e-5
    assert two["speed_up"] == pytest.approx(one["epoch_seconds"] / two["epoch_seconds"])
    code, out, err = place.run("compare", "mine:train", "--world-sizes", "1", "--epochs", "1")
    assert code == 0, err
    assert "100%" in out
    code, _, err = place.run("compare", "mine:ignoring", *arguments)
    assert (code, "Take steps by trial.step(optimizer)" in err) == (1, True)


@pytest.mark.slow
def test_all_world_sizes_take_the_same_steps(place: InProcess) -> None:
    arguments = ["--world-sizes", "3,1", "--epochs", "2", "--param", "batch_per_rank=4", "--price-per-slot-hour", "36"]
    code, out, err = place.run("compare", "mine:Mine", *arguments, "--json")
    assert code == 0, err
    compared = json.loads(out)
    one, three = compared["world_sizes"]
    assert [(row["world_size"], row["accumulate"]) for row in (one, three)] == [(1, 3), (3, 1)]
    assert compared["effective_batch"] == 12
    assert one["speed_up"] == one["efficiency"] == 1.0
    assert three["efficiency"] == pytest.approx(three["samples_per_second"] / one["samples_per_second"] / 3)
    assert one["weight_difference"] == 0.0
    assert three["weight_difference"] < 1e-5
    assert three["val_loss"] == pytest.approx(one["val_loss"], abs=1e-5)
    assert one["communication_share"] == 0.0
    assert 0.0 < three["communication_share"] <= 1.0
    for row in (one, three):
        assert row["usd_per_epoch"] == pytest.approx(row["world_size"] * row["epoch_seconds"] * 0.01, rel=1e-3)
    assert compared["warnings"] == ["3 ranks on 2 slots: they share devices, so this will be slower"]
    assert err == f"warning: {compared['warnings'][0]}\n"


def test_too_little_efficiency_is_a_failure_with_the_table_printed(place: InProcess) -> None:
    arguments = ["--world-sizes", "1", "--epochs", "1", "--min-efficiency"]
    assert place.run("compare", "mine:Mine", *arguments, "1.0")[0] == 0
    code, out, err = place.run("compare", "mine:Mine", *arguments, "1.01")
    assert code == 1
    assert "samples/s" in out
    assert err == "error: efficiency: 1.00 at world size 1, less than 1.01\n"


def test_every_poor_world_size_is_named() -> None:
    rows = [{"world_size": size, "efficiency": found} for size, found in ((1, 1.0), (2, 0.7), (4, 0.5))]
    line = too_inefficient({"world_sizes": rows}, 0.8)
    assert line == "efficiency: 0.70 at world size 2, 0.50 at world size 4, less than 0.8"
    assert too_inefficient({"world_sizes": rows}, 0.5) == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--world-sizes", "1,two"],
            "found '1,two', allowed: whole numbers from 1, separated by commas, for example 1,2",
        ),
        (["--world-sizes", "0,1"], "found '0,1', allowed: whole numbers"),
        (["--backend", "nccl"], "--backend: nccl is chosen for a CPU, but NCCL connects only GPUs. Choose gloo"),
        (["--backend", "mpi"], "'mpi' is not one of 'auto', 'nccl', 'gloo'"),
        (["--group-seconds", "0"], "Invalid value for '--group-seconds': 0.0 is not in the range x>0"),
        (["--group-seconds", "inf"], "found inf, allowed: a finite number"),
        (["--param", "world_size=2"], "`automl compare` varies world_size itself. Give its values with --world-sizes"),
    ],
)
def test_wrong_arguments_are_named(place: InProcess, arguments: list[str], words: str) -> None:
    assert words in place.refused("compare", "mine:Mine", *arguments)


def test_more_ranks_than_gpus_are_refused_over_nccl_only_and_nothing_is_compared_under_torchrun(place, monkeypatch):
    two = AvailableSlots(device="cuda", device_name="GPU", slots=2)
    monkeypatch.setattr(request, "find_slots", lambda *_: two)
    line = place.refused("compare", "mine:Mine", "--world-sizes", "1,2,4", "--backend", "nccl")
    assert "--backend: nccl is chosen for 4 ranks on 2 GPUs, but NCCL needs a GPU for each rank" in line
    assert [GroupOptions().backend_of("cuda", ranks=ranks, devices=2) for ranks in (1, 2, 3)] == [
        "nccl", "nccl", "gloo",
    ]  # fmt: skip
    assert GroupOptions(backend="nccl").problem("cuda", ranks=2, devices=2) is None
    monkeypatch.setenv("RANK", "0")
    assert "RANK is set, as under torchrun" in place.refused("compare", "mine:Mine")


def checkpoint(path: Path, **weights: Any) -> Path:
    spec = {key: {} for key in _ESSENTIALS}
    parts = {"model": weights, "position": {"epoch": 1, "step": 1}, "static": {"latency_ms": 1.0}, "spec": spec}
    torch.save({key: {} for key in _KEYS} | {"format": FORMAT} | parts, path)
    return path


def test_the_largest_difference_is_that_of_all_weights(tmp_path: Path) -> None:
    one = checkpoint(tmp_path / "1.pt", a=torch.tensor([1.0, 2.0]), b=torch.tensor(3), c=torch.empty(0))
    other = checkpoint(tmp_path / "2.pt", a=torch.tensor([1.0, 2.25]), b=torch.tensor(2), c=torch.empty(0))
    assert largest_difference(one, other) == 1.0
    assert largest_difference(one, one) == 0.0
    with pytest.raises(CheckpointError, match="different models"):
        largest_difference(one, checkpoint(tmp_path / "3.pt", a=torch.tensor([1.0])))


@pytest.mark.large
def test_bandwidth_is_measured_for_each_size() -> None:
    measured = measure_bandwidth(3, sizes_bytes=[4, 12_288])
    found = [(one.collective, one.bytes) for one in measured]
    names = ("all-gather", "reduce-scatter", "broadcast", "all-reduce")
    assert found == [(name, size) for name in names for size in (12, 12_288)], "rounded up to a number for each rank"
    factors = {"all-gather": 2 / 3, "reduce-scatter": 2 / 3, "broadcast": 1.0, "all-reduce": 4 / 3}
    for one in measured:
        assert one.gigabytes_per_second == pytest.approx(one.bytes / one.seconds / 1e9)
        assert one.bus_gigabytes_per_second == pytest.approx(one.gigabytes_per_second * factors[one.collective])


def test_the_doctor_measures_bandwidth_when_asked(place: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    for slow in ("_two_ranks", "_ray", "_mlflow"):
        monkeypatch.setattr(doctor_checks, slow, lambda *_: "not looked at")
    asked = []

    def measured(ranks: int, device: str, *, group: GroupOptions) -> list[bandwidth.Exchange]:
        asked.append((ranks, device, group.backend))
        return [
            bandwidth.Exchange(
                collective="broadcast", bytes=2**20, seconds=0.001, gigabytes_per_second=1.05,
                bus_gigabytes_per_second=1.05,
            )
        ]  # fmt: skip

    monkeypatch.setattr(bandwidth, "measure_bandwidth", measured)
    monkeypatch.setattr(
        doctor_checks, "find_slots", lambda *_: AvailableSlots(device="cpu", device_name="CPU", slots=1)
    )
    _, without, _ = place.run("doctor", "--json")
    assert [one["what"] for one in json.loads(without) if "exchanges" in one] == []
    code, out, err = place.run("doctor", "--bandwidth", "--json")
    assert code == 0, err
    (finding,) = [one for one in json.loads(out) if "exchanges" in one]
    assert finding["exchanges"][0]["bytes"] == 2**20
    assert asked == [(2, "cpu", "auto")], "one slot makes two ranks: one alone exchanges nothing"
    _, text, _ = place.run("doctor", "--bandwidth", "--backend", "gloo")
    assert "2 ranks, CPU over gloo" in text
    assert "1.000 MiB      1.000 ms" in text
    assert asked[-1] == (2, "cpu", "gloo")


def test_the_doctor_refuses_a_backend_that_this_machine_cannot_have(place, monkeypatch):
    for device, words in (("cpu", "nccl is chosen for a CPU"), ("cuda", "nccl is chosen for 2 ranks on 1 GPU")):
        found = AvailableSlots(device=device, device_name="any", slots=1)  # type: ignore[arg-type]
        monkeypatch.setattr(doctor_checks, "find_slots", lambda *_, found=found: found)
        assert f"--backend: {words}" in place.refused("doctor", "--backend", "nccl")


def test_an_efficiency_that_cannot_be_is_said_to_be_one() -> None:
    rows = [{"world_size": 1, "efficiency": 1.0}, {"world_size": 2, "efficiency": 3.63}]
    assert _too_quick(rows).startswith("2 ranks have an efficiency of 363 %, which cannot be: the machine was busy")
    assert not _too_quick(rows[:1])
