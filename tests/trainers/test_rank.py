"""The process of one slot: what it keeps from trial to trial, what it must not, and where its output goes."""

import gc
import multiprocessing
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from studies.gangs.available_slots import own_cpus
from tests.support.command_trials import script, spec_of
from tests.support.forking import forking_context
from tests.support.paths import ROOT
from tests.support.trainer_pool import messages_of
from trainers.commands.command import COMMAND
from trainers.failures import CheckpointError, StorageError
from trainers.protocol import RankAssignment, TrialSpec
from trainers.ranks.printed_output import folders_of_trial, log_folder, log_path
from trainers.ranks.rank_messages import Began, Failed
from trainers.ranks.rank_process import RankProcess

TASK = """
import torch
from torch import nn
from trainers.contract.task import BaseTask

class Counting(BaseTask):
    made = 0

    def __init__(self, classes=2):
        Counting.made += 1
        self.classes = classes
        self.trained = 0

    def train_data(self, params):
        self.trained += 1
        if self.trained > 1:
            raise RuntimeError("this task was used before")
        targets = torch.arange(12) % self.classes
        return torch.randn(12, 3, generator=torch.Generator().manual_seed(0)), targets

    def validation_data(self, params):
        return self.train_data.__func__(Counting(self.classes), params)

    def model(self, params):
        return nn.Linear(3, self.classes)
"""


def a_trial(folder: Path, number: int, classes: int) -> TrialSpec:
    return TrialSpec(
        study="s", trial=number, attempt=1, task="counting_task:Counting", task_options={"classes": classes},
        params={"learning_rate": 0.1}, training={"epochs": 2, "warmup_epochs": 0}, world_size=1, seed=number,
        device="cpu", python_path=(str(folder),),
    )  # fmt: skip


ASSIGNMENT = RankAssignment(key="0", group_id="", rank=0, store=None, timeout_seconds=10.0, one_host=True)


def epochs_by_message(told: list[object]) -> list[list[int]]:
    return [[measurement.epoch for measurement in message] for message in told if isinstance(message, list)]


def train(rank: RankProcess, spec: TrialSpec) -> list[float]:
    told = messages_of(rank, spec, 2, key=f"{spec.trial}")
    losses = [one.metrics["val_loss"] for message in told if isinstance(message, list) for one in message]
    assert len(losses) == 2
    return losses


def test_a_task_is_made_once_and_each_trial_finds_it_as_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "counting_task.py").write_text(TASK)
    monkeypatch.syspath_prepend(tmp_path)
    import counting_task  # type: ignore[import-not-found]

    rank = RankProcess(device="cpu", cpus_per_rank=1)
    first = train(rank, a_trial(tmp_path, 0, classes=2))
    made = counting_task.Counting.made
    train(rank, a_trial(tmp_path, 1, classes=2))
    assert counting_task.Counting.made == made + 1, "only the validation data of this test makes another"
    other = a_trial(tmp_path, 0, classes=3)
    assert train(rank, other) != first
    assert train(RankProcess(device="cpu", cpus_per_rank=1), replace(other, trial=0)) == train(rank, other)


def digits_trial(**changes: object) -> TrialSpec:
    trial = TrialSpec(study="s", trial=0, task="digits", params={"learning_rate": 0.1}, training={"epochs": 4})
    return replace(trial, **changes)  # type: ignore[arg-type]


CYCLIC = """
import weakref
from counting_task import Counting as Base

class Counting(Base):
    made = []

    def __init__(self, classes=2):
        super().__init__(classes)
        if any(other() is not None for other in self.made):
            raise MemoryError("two tasks do not fit into memory")
        self.itself = self
        self.made.append(weakref.ref(self))
"""


def test_a_loaded_task_is_not_searched_for_garbage_until_another_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counting_task.py").write_text(TASK)
    (tmp_path / "cyclic_task.py").write_text(CYCLIC)
    monkeypatch.syspath_prepend(tmp_path)
    import cyclic_task  # type: ignore[import-not-found]

    rank = RankProcess(device="cpu", cpus_per_rank=1)
    tasks = [replace(a_trial(tmp_path, number, 2 + number), task="cyclic_task:Counting") for number in range(2)]
    try:
        train(rank, tasks[0])
        (first,) = cyclic_task.Counting.made
        task = first()
        assert task is not None
        assert not any(one is task for one in gc.get_objects())
        del task
        train(rank, tasks[1])
        assert [one() is None for one in cyclic_task.Counting.made] == [True, False]
    finally:
        gc.unfreeze()


def test_measurements_of_short_epochs_travel_together_and_of_long_ones_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainers.ranks.rank_messages.HOLD_SECONDS", 3600.0)
    told = list(messages_of(RankProcess(device="cpu", cpus_per_rank=1), digits_trial(), 4))
    assert epochs_by_message(told) == [[1, 2, 3, 4]]
    ages = [measurement.age_seconds for message in told if isinstance(message, list) for measurement in message]
    assert ages == sorted(ages, reverse=True)
    assert ages[0] > ages[-1] >= 0.0
    monkeypatch.setattr("trainers.ranks.rank_messages.HOLD_SECONDS", 3600.0)
    params, training = {"learning_rate": 1e-30}, {"epochs": 9, "early_stop_patience": 2}
    trial = digits_trial(params=params, training=training)
    told = list(RankProcess(device="cpu", cpus_per_rank=1).run(trial, ASSIGNMENT, 9))
    assert epochs_by_message(told) == [[1, 2, 3]], "sent without waiting for the epoch that was granted"
    monkeypatch.setattr("trainers.ranks.rank_messages.HOLD_SECONDS", 0.0)
    told = list(messages_of(RankProcess(device="cpu", cpus_per_rank=1), digits_trial(), 4))
    assert epochs_by_message(told) == [[1], [2], [3], [4]]


@pytest.mark.large
def test_the_start_of_a_trial_does_not_count_the_end_of_the_one_before(tmp_path: Path) -> None:
    script(
        tmp_path,
        """
        import automl, signal, time
        signal.signal(signal.SIGTERM, lambda *_: time.sleep(600))
        for epoch in range(1, 5):
            try:
                automl.report(epoch=epoch, val_error=0)
            except SystemExit:
                time.sleep(600)
        """,
    )
    rank = RankProcess(device="cpu", cpus_per_rank=1)
    first = spec_of(tmp_path, {"end_seconds": 6, "kill_seconds": 1})
    for message in rank.run(first, ASSIGNMENT, 1):
        if isinstance(message, list):
            break
    began = time.monotonic()
    script(tmp_path, "import automl; automl.resume(); automl.report(epoch=1, val_error=0, last=True)")
    second = replace(ASSIGNMENT, key="1")
    told = next(iter(rank.run(replace(first, trial=4), second, 1)))
    assert isinstance(told, Began)
    took = time.monotonic() - began
    assert took >= 6.0
    assert told.seconds < took - 5.0
    rank.close(second.key)


def test_what_was_measured_before_a_failure_is_sent_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainers.ranks.rank_messages.HOLD_SECONDS", 3600.0)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "third_epoch_task.py").write_text(
        TASK.replace("Counting", "ThirdEpoch")
        + """
    def loss(self, outputs, targets):
        loss = super().loss(outputs, targets)
        self.batches = getattr(self, "batches", 0) + outputs.requires_grad
        if self.batches == 3:
            raise RuntimeError("the third epoch's only batch")
        return loss
"""
    )
    spec = replace(
        a_trial(tmp_path, 0, classes=2), task="third_epoch_task:ThirdEpoch", training={"epochs": 4, "warmup_epochs": 0},
        params={"learning_rate": 0.1, "batch_per_rank": 12},
    )  # fmt: skip
    *_, measured, failed = messages_of(RankProcess(device="cpu", cpus_per_rank=1), spec, 4)
    assert epochs_by_message([measured]) == [[1, 2]]
    assert isinstance(failed, Failed)
    assert "third epoch" in failed.message


def _cpus_of_a_rank(cpus: tuple[int, ...]) -> tuple[set[int], set[int]]:
    RankProcess(device="cpu", cpus_per_rank=1, cpus=cpus)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as children:
        return os.sched_getaffinity(0), children.submit(os.sched_getaffinity, 0).result()


@pytest.mark.xdist_group("ranks")
@pytest.mark.large
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="CPUs can be chosen on Linux only")
def test_a_rank_and_what_it_starts_keep_to_the_cpus_of_their_slot() -> None:
    every = os.sched_getaffinity(0)
    one = {max(every)}
    with ProcessPoolExecutor(1, mp_context=forking_context()) as apart:
        assert apart.submit(_cpus_of_a_rank, ()).result() == (every, every)
        assert apart.submit(_cpus_of_a_rank, tuple(one)).result() == (one, one)


def test_slots_have_cpus_of_their_own_only_if_they_take_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {1, 2, 5, 7}, raising=False)
    assert own_cpus(4, 1) == {0: (1,), 1: (2,), 2: (5,), 3: (7,)}
    assert own_cpus(2, 2) == {0: (1, 2), 1: (5, 7)}
    assert own_cpus(3, 1) == own_cpus(5, 1) == own_cpus(1, 2) == {}


def test_a_store_that_does_not_answer_is_no_unreadable_checkpoint() -> None:
    """Else the trial would go back to an earlier checkpoint while its own is as good as before."""
    assert Failed.of(CheckpointError("damaged"), has_begun=False).failure == "unreadable"
    assert Failed.of(StorageError("away"), has_begun=False).failure == "storage"
    assert Failed.of(StorageError("away"), has_begun=True).failure == "storage"


PROGRAM = """
import os, subprocess, sys, time
from trainers.ranks import printed_output
from trainers.protocol import TrialSpec
from trainers.ranks.printed_output import RankOutput

printed_output.MOST_BYTES, printed_output.LOOK_SECONDS = 2000, 0.01
folder, task = sys.argv[1:]

def spec(trial, **other):
    return TrialSpec(study="s", trial=trial, task=task, params={}, **{"python_path": (folder,), **other})

output = RankOutput()
print("before")
with output.of(spec(0), 0):
    print("of Python")
    print("an error", file=sys.stderr)
    subprocess.run(["sh", "-c", "echo of a child"])
    os.write(2, b"of a library\\n")
with output.of(spec(1), 3):
    pass
with output.of(spec(2), 1):
    for number in range(300):
        print(f"line {number} " + "x" * 20, flush=True)
        time.sleep(0.002)
first, second = output.of(spec(3), 0), output.of(spec(4), 0)
first.__enter__()
print("of the third")
second.__enter__()  # the next trial may begin before the one before has ended
first.__exit__(None, None, None)
print("of the fourth")
second.__exit__(None, None, None)
with output.of(spec(0, seed=5, test_at=(1,)), 0):
    print("of a training that confirms")
with output.of(spec(5, python_path=()), 0):
    pass
print("after", flush=True)
opened = os.open
os.open = lambda path, *rest: opened("/dev/full" if str(path).endswith(".log") else path, *rest)
with output.of(spec(6), 0):
    print("there is no room for this", flush=True)
os._exit(0)
"""


def run(folder: Path, task: str = "digits") -> str:
    command = [sys.executable, "-c", PROGRAM, str(folder), task]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    assert done.stderr == ("an error\nof a library\n" if task == COMMAND else "")
    return done.stdout


def output_of(folder: Path, trial: int, rank: int = 0) -> Path:
    return log_path(log_folder(folder, "s", trial), 1, rank)


@pytest.mark.medium
def test_all_that_is_printed_while_a_trial_trains_is_kept_with_it_of_much_output_the_end(tmp_path: Path) -> None:
    assert run(tmp_path) == "before\nafter\n"
    assert output_of(tmp_path, 0).read_text() == "of Python\nan error\nof a child\nof a library\n"
    assert output_of(tmp_path, 3).read_text() == "of the third\n"
    assert output_of(tmp_path, 4).read_text() == "of the fourth\n"
    assert not log_folder(tmp_path, "s", 1).exists(), "a silent rank leaves nothing"
    confirming = log_path(tmp_path / "automl_logs/s/trial-00000-seed-5", 1, 0)
    assert confirming.read_text() == "of a training that confirms\n", "what the search has printed stays"
    assert confirming.parent in folders_of_trial(tmp_path, "s", 0)
    run(tmp_path)
    latest = output_of(tmp_path, 2, rank=1)
    kept = Path(f"{latest}.1").read_text() + latest.read_text()
    lines = [int(line.split()[1]) for line in kept.splitlines()]
    assert lines == list(range(lines[0], 300))
    assert lines[0] > 100


@pytest.mark.medium
def test_output_of_a_command_is_left_alone_and_a_full_folder_costs_no_trial(tmp_path: Path) -> None:
    assert "of Python" in run(tmp_path, COMMAND)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "automl_logs").write_text("a file where the folder should be")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), "digits"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    assert "of Python" in done.stdout
