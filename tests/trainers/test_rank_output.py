"""What a rank prints goes to a file of its trial, whoever prints it, and nothing of one trial to another's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from trainers.commands.command import COMMAND
from trainers.ranks.printed_output import folders_of_trial, log_folder, log_path

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
