"""What a person reads while a study runs."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from automl.terminal.progress import Pace, Progress, machine_picture
from studies.control.machine.state import StudyMachine
from studies.money.budget import Limits
from studies.search.policy import Policy
from studies.search.pruners.none import NoPruner
from tests.support.simulated_study import SimulatedStudy, smooth_curve

EPOCHS, TRIAL_SECONDS = 3, 3.0


@pytest.fixture
def study(tmp_path: Path) -> SimulatedStudy:
    """One slot; every trial takes as long as the others."""
    return SimulatedStudy(
        tmp_path, slots=1, epochs=EPOCHS, policy=Policy(pruner=NoPruner()),
        curve=lambda params, ranks: smooth_curve(params, ranks, epochs=EPOCHS, equal_epochs=True),
    )  # fmt: skip


def watched(study: SimulatedStudy, limits: Limits) -> list[tuple[int, str]]:
    """How many trials had ended and what was said of the time left, after each commit of one controller."""
    pace, said = Pace(), list[tuple[int, str]]()

    def look(machine: StudyMachine) -> None:
        pace.saw(machine)
        ended = sum(trial.state == "complete" for trial in machine.trials.values())
        said.append((ended, machine_picture(machine, pace).figures["time left"]))

    study.on_commit = look
    study.run(limits)
    study.on_commit = None
    return said


def test_the_time_left_is_estimated_from_this_controllers_own_trials(study: SimulatedStudy) -> None:
    study.run(Limits(trials=9))
    said = watched(study, Limits(trials=12, hours=1.0))
    assert {text for ended, text in said if ended == 9 and text.startswith("about")} == set(), "nothing is known yet"
    for ended in (10, 11):
        seconds = {float(text.split()[1]) for at, text in said if at == ended and text}
        left = TRIAL_SECONDS * (12 - ended)
        assert seconds
        assert all(left - 0.6 <= one <= left * 2 for one in seconds), (ended, seconds)
        assert all(text.startswith("about ") for at, text in said if at == ended and text)
    assert said[-1] == (12, ""), "nothing is left when it is over"


def test_a_deadline_is_said_to_be_one(study: SimulatedStudy) -> None:
    said = watched(study, Limits(usd=0.01))
    texts = [text for _, text in said if text]
    assert texts
    assert all(text.startswith("at most ") for text in texts)
    assert max(float(text.split()[2]) for text in texts) <= 10.0, "a cent pays one slot at $3.6 an hour for 10 s"


def test_lines_go_to_a_file_without_empty_figures(study: SimulatedStudy) -> None:
    text = io.StringIO()
    with Progress(Console(file=text, width=200)) as progress:
        study.on_commit = progress.on_commit
        study.run(Limits(trials=2))
    assert "trials 2 of 2 (2 complete)" in text.getvalue()
    assert "()" not in text.getvalue()
