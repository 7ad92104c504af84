"""What the first trials show about a study: a budget too small for one training, a command that keeps no model."""

import math
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from automl.launching.first_trials import FirstTrials, SharedFiles
from automl.launching.launch_or_resume import hardly_enough
from studies.control.machine.live_trials import Trial
from studies.records.records import NANO
from studies.spec.study_spec import parse_spec
from tests.support.study_factory import build_study
from trainers.commands.command import HOW_TO_KEEP, Command


class Machine(SimpleNamespace):
    @property
    def running(self) -> list[Trial]:
        return [trial for trial in self.trials.values() if trial.state == "running"]


def machine(*epochs: list[float], planned: int = 10) -> Any:
    trials = {
        number: Trial(
            id=number, number=number, state="running", params={}, world_size=1, origin="sampler",
            epochs_done=len(seconds), epoch_seconds=seconds,
        )
        for number, seconds in enumerate(epochs)
    }  # fmt: skip
    return Machine(trials=trials, setup=SimpleNamespace(epochs=planned, milestones=(2, 6)))


@pytest.mark.parametrize(("seconds", "said"), [(19.0, "10 epochs take at least 20 s, by the fastest"), (20.0, "")])
def test_a_budget_in_which_no_training_ends_is_told(seconds: float, said: str) -> None:
    """By the fastest epoch: the first of a process is slow, and a trial that is cut early costs less."""
    told: list[str] = []
    FirstTrials(seconds, None, told.append).look(machine([9.0, 2.0], [4.0]))
    assert len(told) == bool(said)
    assert said in "".join(told)


def test_it_is_told_once_and_not_before_some_epochs() -> None:
    told: list[str] = []
    first = FirstTrials(10.0, None, told.append)
    first.look(machine([9.0], []))
    assert not told
    for _ in range(2):
        first.look(machine([9.0, 2.0], [2.0]))
    assert len(told) == 1


@pytest.mark.parametrize(
    ("argument", "saved", "said"),
    [("{checkpoint_folder}", None, 1), ("{checkpoint_folder}", "epoch-0002.pt", 0), ("{trial_folder}", None, 0)],
)
def test_a_command_that_prints_before_it_saves_is_told_so_once(argument: str, saved: str | None, said: int) -> None:
    told: list[str] = []
    first = FirstTrials(math.inf, Command(parts=("python", argument), metrics="json"), told.append)
    first.look(machine([1.0]))
    assert not told, "epoch 2 is the first that gets a checkpoint"
    study = machine([1.0, 1.0])
    study.trials[0].resume_checkpoint = saved
    for _ in range(2):
        first.look(study)
    assert told == said * [f"trial 0 had no file in {{checkpoint_folder}} yet. {HOW_TO_KEEP}"]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (["model.pt"] * 7, "several trials have written model.pt"),
        (["out/model.pt"] * 7, "several trials have written out/model.pt"),
        (["0.pt", "1.pt", "2.pt", "3.pt", "4.pt", "5.pt", "6.pt"], ""),
        (["launch.log"] * 7, ""),
        (["train.py"] * 7, ""),
    ],
)
def test_a_file_that_several_trials_write_is_told_once(written: list[str], said: str, tmp_path: Path) -> None:
    """Two slots: trial n writes its file last while trial n + 1 runs already; trial 0 writes as long as it runs."""
    told: list[str] = []
    shared = SharedFiles(Command(parts=("python", "train.py"), metrics="json"), tmp_path, told.append)
    study = machine(*[[1.0]] * 8)
    for number in study.trials:
        for other, trial in study.trials.items():
            trial.state = "running" if other in {0 if number < 3 else number, number} else "complete"
        shared.look(study)
        for name in [*written[max(number - 1, 0) : number], *(["of-trial-0.pt"] if number < 3 else [])]:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(str(number))
            os.utime(tmp_path / name, ns=(number, number))
    study.trials[0].state = "complete"
    shared.look(study)
    assert len(told) == bool(said)
    assert said in "".join(told)


def test_a_command_with_a_folder_for_each_trial_shares_no_files(tmp_path: Path) -> None:
    told: list[str] = []
    command = Command(parts=("python", "train.py"), metrics="json", folder="{trial_folder}")
    shared = SharedFiles(command, tmp_path, told.append)
    study = machine(*[[1.0]] * 6)
    for number, trial in study.trials.items():
        (tmp_path / "model.pt").write_text(str(number))
        trial.state = "complete"
        shared.look(study)
    assert not told


def test_a_study_without_such_a_limit_is_left_alone() -> None:
    told: list[str] = []
    FirstTrials(math.inf, None, told.append).look(machine([1.0, 1.0, 1.0]))
    assert not told


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({"hours": 0.0005}, "the budget leaves 1.8 s, but a start and one epoch took about"),
        ({"usd": 0.001, "hours": 5.0}, "the budget leaves 1.8 s"),
        ({"hours": 1.0}, ""),
        ({"trials": 99}, ""),
    ],
)
def test_a_resume_with_less_time_than_a_start_takes_is_told(budget: dict[str, float], said: str) -> None:
    """At two dollars an hour."""
    study = replace(build_study(20), alive_seconds=0.0)
    limits = {"usd": None, "hours": None, "trials": None} | budget
    if limits["usd"] is not None:
        limits["usd"] += study.cost_nano_usd / NANO
    spec = parse_spec({"study": "s", "task": "digits", "budget": limits})
    assert hardly_enough(study, spec, usd_per_hour=2.0).startswith(said or "\0") == bool(said)
