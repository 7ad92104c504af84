"""What a person sees of a study that runs: in the live picture of a launch, and by `automl status --watch`."""

from __future__ import annotations

import io
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from automl.stored.polling import Looker
from automl.terminal import progress
from automl.terminal.picture import Gang, Halt, Model, Picture, drawn, picture_of
from automl.terminal.progress import Pace, Progress, machine_picture, watch
from studies.control.machine.state import StudyMachine
from studies.money.budget import Limits
from studies.records.records import Objective, StudyRecord
from studies.storage.leases import lease as leases
from studies.storage.reading.reader import load_study
from studies.storage.writing.changes import Decided
from tests.support.command_line import InProcess
from tests.support.simulated_study import SimulatedStudy
from tests.support.stored_study import NO_PROCESS, StoredStudy

NOW = 1000.0


def text_of(picture: Picture, *, width: int = 120, height: int = 60) -> str:
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(drawn(picture, console))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def terminal(height: int = 60) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=120, height=height, color_system=None)


def shown_on(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_picture_has_figures_archive_gangs_and_what_was_just_paused() -> None:
    picture = Picture(
        name="moons",
        state="running",
        objectives=(Objective(metric="val_error"),),
        spent_usd=0.1,
        most_usd=1.0,
        planned=27,
        archive=[Model(name="2@6", values={"val_error": 0.031})],
        gangs=[Gang(trial="7", epochs=3, slots=(0, 1), seconds=65.0, values={"val_error": 0.2})],
        halts=[
            Halt(trial="4", what="paused", epoch=3, reason="trial 9 is worth more", at=NOW - 90.0),
            Halt(trial="5", what="stopped", epoch=9, reason="it is dominated", at=NOW - 5.0),
        ],
        now=NOW,
    )
    lines = [line.strip() for line in text_of(picture).splitlines()]
    assert "epochs  " not in lines[0]
    for row in (["2@6", "3.1", "%"], ["7", "3/27", "2", "0,1", "1", "min", "5", "s", "20", "%"]):
        assert row in [line.split() for line in lines]
    assert lines.index("5.0 s ago: trial 5 stopped at epoch 9: it is dominated") + 1 == lines.index(
        "1 min 30 s ago: trial 4 paused at epoch 3: trial 9 is worth more"
    )
    told = (
        "study moons is running  trials 0  slots starting  best val_error 3.1 % (2@6)  spent $0.10 of $1.00, $0.90 left"
    )
    assert picture.line == told


@pytest.mark.parametrize("height", [24, 40])
def test_a_picture_fits_the_terminal(height: int) -> None:
    many = range(50)
    picture = Picture(
        name="moons", state="running", objectives=(Objective(metric="val_error"),), states=["running"], slots=3,
        epochs=9, estimate_seconds=9.0, archive=[Model(name=f"{one}@6", values={"val_error": 0.031}) for one in many],
        gangs=[Gang(trial=str(one), epochs=3, slots=(0,), seconds=1.0, values={"val_error": 0.2}) for one in many],
        halts=[Halt(trial=str(one), what="paused", epoch=3, reason="because " * 50, at=NOW - one) for one in many],
        now=NOW,
    )  # fmt: skip
    lines = text_of(picture, width=80, height=height).splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= 80
    assert sum("and 4" in line for line in lines) == 2, "it is said how many are left out"


def test_the_picture_of_a_launch_has_what_the_machine_decides(tmp_path: Path) -> None:
    study = SimulatedStudy(tmp_path, slots=2, epochs=9)
    pace, pictures = Pace(), list[Picture]()

    def look(machine: StudyMachine) -> None:
        pace.saw(machine)
        pictures.append(machine_picture(machine, pace))

    study.on_commit = look
    study.run(Limits(trials=8))
    record = study.record()
    decided = {
        (str(trial.number), made.epoch, made.reason)
        for trial in record.started
        for made in trial.decisions
        if made.action in {"pause", "stop"}
    }
    shown = {(one.trial, one.epoch, one.reason) for picture in pictures for one in picture.halts}
    assert shown
    assert shown <= decided
    assert max(len(picture.gangs) for picture in pictures) == 2
    assert pictures[-1].gangs == []
    found = picture_of(record, NOW).archive
    assert sorted((one.name, dict(one.values)) for one in pictures[-1].archive) == sorted(
        (one.name, dict(one.values)) for one in found
    )
    ended, stored = pictures[-1].figures, picture_of(record, NOW).figures
    assert {name: ended[name] for name in ("study", "trials", "epochs", "best", "spent")} == {
        name: stored[name] for name in ("study", "trials", "epochs", "best", "spent")
    }


def test_the_progress_of_a_launch_draws_the_picture_in_a_terminal(tmp_path: Path) -> None:
    study, console = SimulatedStudy(tmp_path, slots=2, epochs=9), terminal()
    with Progress(console) as progress:
        study.on_commit = progress.on_commit
        study.run(Limits(trials=8))
    for words in ("archive", "just paused or ended", "trials", "at epoch"):
        assert words in shown_on(console)


@pytest.fixture
def study(tmp_path: Path) -> StoredStudy:
    """A study that this process drives: one trial runs, one was paused, one has failed."""
    stored = StoredStudy(tmp_path, budget={"usd": 1.0, "hours": 0.5, "trials": 14})
    stored.taken_by(os.getpid())
    stored.trial(epochs=4, checkpoints=(2, 4), state="paused", cost_nano_usd=250_000_000)
    stored.trial(epochs=2)
    stored.trial(state="failed", failure="error", reason="KeyError: 'label'", ended_at=time.time())
    paused = load_study(stored.store, "small").trials[0]
    stored.store.commit(
        stored.id,
        None,
        [Decided(trial_id=paused.id, epoch=4, action="pause", reason="trial 1 is worth more", at=time.time())],
    )
    return stored


def test_the_picture_of_a_stored_study(study: StoredStudy) -> None:
    picture = picture_of(load_study(study.store, "small"), time.time())
    assert [one.name for one in picture.archive] == ["0@4"]
    assert [(one.trial, one.epochs, one.slots) for one in picture.gangs] == [("1", 2, (0, 1))]
    assert {(one.trial, one.what, one.epoch, one.reason) for one in picture.halts} == {
        ("0", "paused", 4, "trial 1 is worth more"),
        ("2", "failed", 0, "KeyError: 'label'"),
    }
    figures = picture.figures
    assert figures["study"] == "small is running"
    assert figures["trials"] == "3 of 14 (1 running, 1 paused, 1 failed)"
    assert figures["spent"] == "$0.25 of $1.00, $0.75 left"
    assert figures["best"] == "val_error 20 % (0@4)"
    assert figures["epochs"] == "6"


def test_the_time_left_is_that_of_the_dollars_or_by_the_pace(study: StoredStudy) -> None:
    record = load_study(study.store, "small")
    charge = record.charges[-1]
    assert charge.usd_per_slot_hour == 1.0

    def left(**changes: Any) -> str:
        return picture_of(replace(record, **changes), NOW).figures["time left"]

    # 0.75 dollars pay three slots for a quarter of an hour; the pace of one ended trial in 13 s says 13 times that.
    assert left(slots_there=3, alive_seconds=0.0, trials=record.trials[:2]) == "at most 15 min"
    assert left(slots_there=3, alive_seconds=13.0) == "about 2 min 49 s"
    assert left(slots_there=3, alive_seconds=1300.0) == "at most 15 min"
    assert left(state="closed") == ""


class Looks:
    """Gives a record after the other, and counts virtual time."""

    def __init__(self, records: list[StudyRecord | type[BaseException]]) -> None:
        self._records, self._last = iter(records), records[-1]
        self.now = NOW
        self.looks = 0

    def __call__(self) -> StudyRecord:
        self.looks += 1
        found = next(self._records, self._last)
        if isinstance(found, type):
            raise found
        return found

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def clock(self) -> float:
        return self.now


def watched(records: list[Any], console: Console | None = None) -> tuple[StudyRecord | None, Looks, str]:
    console, looks = console or Console(file=io.StringIO(), width=200), Looks(records)
    return watch(looks, console, sleep=looks.sleep, clock=looks.clock), looks, shown_on(console)


def test_watching_ends_when_the_study_does(study: StoredStudy) -> None:
    running = load_study(study.store, "small")
    study.change(state="closed", stop_reason="budget_usd")
    closed = load_study(study.store, "small")
    found, looks, out = watched([running, running, running, closed, running])
    assert (found, looks.looks) == (closed, 4)
    (first,) = out.splitlines()
    assert first.startswith("study small is running  trials 3 of 14"), "equal lines are not said again"
    console = terminal()
    assert watched([running, closed], console)[0] == closed
    assert "running gangs" in shown_on(console)


def test_watching_a_large_study_leaves_the_cores_to_those_who_train(study: StoredStudy) -> None:
    """A running study has always changed, so each look reads all of it."""
    running = load_study(study.store, "small")
    study.change(state="closed", stop_reason="budget_usd")
    looks = Looks([running, running, load_study(study.store, "small")])
    used = iter([0.0, 0.5, 0.5, 0.51, 0.51])  # processor time before and after each look, the last one's before only
    watch(looks, Console(file=io.StringIO()), sleep=looks.sleep, clock=looks.clock, used=lambda: next(used))
    assert looks.now - NOW == pytest.approx(19 * 0.5 + progress.LOOK_SECONDS)


def test_a_study_that_waits_for_room_is_watched_on(study: StoredStudy) -> None:
    study.change(state="drained", stop_reason="storage")
    waits = load_study(study.store, "small")
    study.change(state="drained", stop_reason="stopped")
    stopped = load_study(study.store, "small")
    found, looks, _ = watched([waits, waits, stopped, waits])
    assert (found, looks.looks) == (stopped, 3)


def test_a_dead_controller_ends_it_once_no_other_has_taken_over(tmp_path: Path) -> None:
    stored = StoredStudy(tmp_path)
    fresh = load_study(stored.store, "small")
    lease = stored.taken_by(NO_PROCESS)
    time.sleep(0.01)
    with stored.store.engine.begin() as connection:
        leases.release_row(connection, lease.id, lease.acquired_at + 5.0)
    left = load_study(stored.store, "small")
    stored.taken_by(os.getpid())
    driven = load_study(stored.store, "small")
    assert (fresh.driven, left.driven, driven.driven) == (False, False, True)
    found, looks, _ = watched([fresh] * 9 + [driven] + [left] * 3 + [driven] + [left] * 9)
    assert found == left
    assert looks.looks == 9 + 1 + 3 + 1 + 6, "ten seconds, of two seconds each"


def test_ctrl_c_leaves_quietly(study: StoredStudy) -> None:
    running = load_study(study.store, "small")
    found, _, out = watched([running, KeyboardInterrupt])
    assert found is None
    assert "Traceback" not in out


def test_status_watch_says_the_summary_at_the_end(study, tmp_path, capsys, monkeypatch):
    place = InProcess(tmp_path, capsys, monkeypatch)
    monkeypatch.setenv("COLUMNS", "160")
    code, out, err = place.run("status", "--watch", "--json")
    assert (code, out, err.count("\n")) == (2, "", 2)
    assert "--watch and --json exclude each other" in err

    def interrupts(_seconds: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(progress.watch, "__kwdefaults__", {**(progress.watch.__kwdefaults__ or {}), "sleep": interrupts})
        code, out, err = place.run("status", "small", "--watch")
    assert (code, err) == (0, "")
    assert out.startswith("study small is running")
    assert "archive" not in out
    study.change(state="closed", stop_reason="exhausted")
    code, out, err = place.run("status", "small", "--watch")
    assert (code, err) == (0, "")
    assert "small is closed: there was nothing left to try" in out
    assert "archive: models to take" in out


def test_a_study_is_read_when_it_has_changed_or_some_time_has_passed(study, monkeypatch):
    times = iter([0.0, 0.0, 1.0, 2.0, 2.0, 11.0, 13.0, 13.0])
    look = Looker(study.store, "small", clock=lambda: next(times))
    first = look()
    assert look() is first
    study.trial(epochs=1)
    second = look()
    assert len(second.trials) == len(first.trials) + 1
    assert look() is second
    third = look()
    assert third is not second
    assert third == second or third.alive_seconds > second.alive_seconds
