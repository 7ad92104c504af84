"""`--quiet`, `--verbose` and `--log-file`: how much a launch tells, and where."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from automl.launching.study_run import Outcome, Watcher
from automl.terminal import study_run_output
from automl.terminal.study_run_output import Chronicle, Talk, drive_in_terminal
from studies.gangs.simulated import Curve
from studies.money.budget import Limits
from studies.records.records import StudyRecord
from tests.support.command_line import DIGITS, InProcess, message_of
from tests.support.simulated_study import SimulatedStudy, smooth_curve
from tests.support.stored_study import StoredStudy

Said = tuple[int, str, str]
Run = Callable[[Talk], Said]


@pytest.fixture
def study(tmp_path: Path) -> SimulatedStudy:
    return SimulatedStudy(tmp_path, slots=2, epochs=9)


@pytest.fixture
def run(
    study: SimulatedStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Drives eight trials on the simulated pool as a launch does; returns exit code, stdout and stderr."""

    def drive(watcher: Watcher) -> Outcome:
        watcher.say("a line")
        watcher.warn("a warning")
        logging.getLogger("studies.control.files.kept_files").warning("a file stays")
        study.on_commit = watcher.on_commit
        study.run(Limits(trials=8))
        return Outcome(record=study.record(), report=tmp_path / "report.html", ran=True)

    def run(talk: Talk) -> Said:
        monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's own, which no command has
        with pytest.raises(SystemExit) as ended:
            drive_in_terminal(drive, talk)
        out, err = capsys.readouterr()
        return int(str(ended.value.code)), out, err

    return run


def news(record: StudyRecord) -> set[str]:
    """What has to be told of a study's trials."""
    words = {"pause": "paused", "stop": "stopped"}
    lines = {
        f"trial {trial.number} is {words[made.action]} at epoch {made.epoch}: {made.reason}"
        for trial in record.started
        for made in trial.decisions[-1:]
        if made.action != "continue" and trial.state != "complete"
    }
    return lines | {f"trial {trial.number} is complete" for trial in record.started if trial.state == "complete"}


def test_progress_and_summary_are_told_without_options(run: Run) -> None:
    code, out, err = run(Talk())
    assert code == 0
    assert out.startswith("a line\n")
    assert "trials 8 of 8" in out
    assert "simulated is closed" in out
    assert "starts on slots" not in out
    assert err.splitlines() == ["warning: a warning", "a file stays"]


@pytest.mark.medium
def test_quiet_leaves_warnings_and_the_exit_code(run: Run) -> None:
    assert run(Talk(quiet=True)) == (0, "", "warning: a warning\na file stays\n")


def test_quiet_json_is_one_document(run: Run) -> None:
    code, out, _ = run(Talk(quiet=True, as_json=True))
    assert (code, json.loads(out)["state"], out.count("\n")) == (0, "closed", 1)


@pytest.mark.parametrize("as_json", [False, True])
def test_verbose_tells_of_each_trial(run, study, monkeypatch, as_json):
    monkeypatch.setattr("automl.terminal.study_run_output.LOOK_SECONDS", 0.0)
    _, out, err = run(Talk(verbose=True, as_json=as_json))
    told = err if as_json else out
    for number in range(8):
        assert len(re.findall(rf"^trial {number} starts on slots [01]: learning_rate=", told, re.MULTILINE)) == 1
    expected = news(study.record())
    assert len(expected) >= 5
    for line in expected:
        assert line in told
    assert not as_json or json.loads(out)["state"] == "closed"


def test_a_log_file_has_everything_with_the_time(run, study, tmp_path, monkeypatch):
    monkeypatch.setattr("automl.terminal.study_run_output.LOOK_SECONDS", 0.0)
    path = tmp_path / "study.log"
    path.write_text("an earlier run\n")
    code, out, err = run(Talk(quiet=True, log_file=path))
    assert (code, out, err) == (0, "", "warning: a warning\na file stays\n"), "stderr has what it has without a file"
    first, *lines = path.read_text().splitlines()
    assert first == "an earlier run"
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d  \S", line) for line in lines)
    said = [line.split("  ", 1)[1] for line in lines]
    assert said[:3] == ["a line", "warning: a warning", "warning: a file stays"]
    assert sum(line.startswith("trial ") and " starts on slots " in line for line in said) == 8
    assert all(any(line.startswith(one) for line in said) for one in news(study.record()))
    assert any("trials 8 of 8" in line and "spent $" in line for line in said)
    assert said[-1].startswith("simulated is closed: all trials that its budget allows have been started")
    assert not any(isinstance(one, study_run_output._Handler) for one in logging.getLogger("studies").handlers)


def test_a_disk_that_takes_no_more_ends_the_log_and_not_the_study(run, tmp_path, monkeypatch):
    path = tmp_path / "study.log"

    def refuses(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(study_run_output, "check_log_file", lambda _path: None)
    with monkeypatch.context() as patch:
        patch.setattr("automl.terminal.study_run_output.check_log_file", lambda _path: None)
        patch.setattr(Path, "open", refuses)
        code, _, err = run(Talk(quiet=True, log_file=path))
    assert code == 0
    assert err.count("(No space left on device); the study continues") == 1


def test_control_characters_of_others_are_escaped(tmp_path: Path) -> None:
    with study_run_output.writing(tmp_path / "study.log") as write:
        write("red \x1b[31m\nand a second line")
    assert "\x1b" not in (tmp_path / "study.log").read_text()


def test_what_fails_is_told_and_what_earlier_controllers_did_is_not(tmp_path: Path) -> None:
    def curve(params: object, ranks: int) -> Curve:
        made = smooth_curve({"learning_rate": 0.1}, ranks, epochs=9)
        metrics = ({"val_error": float("nan")}, *made.metrics[1:])
        return Curve(metrics=metrics, epoch_seconds=made.epoch_seconds)

    study = SimulatedStudy(tmp_path, slots=1, epochs=9, curve=curve)

    def lines_of(trials: int) -> list[str]:
        lines: list[str] = []
        study.on_commit = Chronicle(lines.append, with_figures=False, clock=iter(range(10**6)).__next__).on_commit
        study.run(Limits(trials=trials))
        return lines

    assert "trial 0 has failed at epoch 0 (diverged)" in lines_of(2)
    again = lines_of(3)
    assert [line.split()[1] for line in again] == ["2", "2"]


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> InProcess:
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(DIGITS))
    return InProcess(tmp_path, capsys, monkeypatch)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--quiet", "--verbose"), "--quiet and --verbose exclude each other"),
        (("--log-file", "nowhere/study.log"), "--log-file: found 'nowhere/study.log', allowed: a file that can be"),
        (("--log-file", "."), "--log-file: found '.', allowed: a file that can be written to"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(place, options, says):
    assert says in place.refused("launch", "s.yaml", *options)
    StoredStudy(place.folder).store.close()
    code, out, err = place.run("resume", "small", *options)
    assert (code, out) == (2, "")
    assert says in message_of(err)


def test_a_refused_launch_leaves_no_log(place: InProcess) -> None:
    place.refused("launch", "nowhere.yaml", "--log-file", "study.log")
