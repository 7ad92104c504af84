"""Signals, and terminals that go away: real processes, real signals, real pipes and terminals."""

import contextlib
import io
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from automl.launching.study_run import Outcome
from automl.signals import LastingFile, draining_signals
from automl.terminal.study_run_output import _exit_code
from studies.control.session import Session
from studies.storage.reading.reader import load_study
from tests.support.command_line import AUTOML, DIGITS, SLOW, InProcess, Workplace
from tests.support.stored_study import StoredStudy
from tests.support.waiting import is_gone, wait_until


@pytest.mark.ray
def test_confirm_is_ended_by_sigterm_with_its_time_charged(place: Workplace) -> None:
    place.json("launch", place.spec(DIGITS, training={"epochs": 2}, budget={"trials": 1}))

    def end() -> None:
        wait_until(lambda: any(charge.kind == "confirm" for charge in place.record("small").charges), seconds=60)
        os.kill(os.getpid(), signal.SIGTERM)

    done = place.run("confirm", "small", "0", "--seeds", "200", "--json", code=130, meanwhile=end)
    assert done.stdout == ""
    assert "draining" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("signals", "leaves"),
    [
        ("INT INT", True), ("TERM INT", True), ("HUP INT INT", True),
        ("TERM TERM", False), ("INT HUP", False), ("HUP TERM", False),
    ],
)  # fmt: skip
def test_the_second_signal_leaves_unless_a_terminal_that_closed_or_timeout_has_sent_it(signals, leaves):
    """`timeout` sends it to a process and to its group; and what ends at the second one is never the process here."""
    drained: list[str] = []

    def leave() -> None:
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    expected = pytest.raises(KeyboardInterrupt) if leaves else contextlib.nullcontext()
    with expected, draining_signals(drained.append, lambda _: None, "it ends", leave):
        for name in signals.split():
            os.kill(os.getpid(), signal.Signals[f"SIG{name}"])
            time.sleep(0.05)  # Python runs the handler between two of its instructions
    assert drained == ["interrupted"]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.large
def test_a_launch_on_a_cluster_of_its_own_outlives_reader_and_terminal_to_drain(tmp_path: Path) -> None:
    """The cluster listens on the loopback interface only, and leaves nothing behind."""
    place = Workplace(tmp_path, None)
    spec = place.spec(SLOW, search={"pruner": "none"}, budget={"trials": 20})
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", _AS_LEADER, AUTOML, "launch", str(spec)],
        cwd=place.folder, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        process.stdout.readline()
        process.stdout.close()  # as `| head -1` does
        place.wait_for(lambda rows: len(rows) > 1 and bool(rows[-1].epochs), "slow")
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        family = [one for one in family if not is_gone(one)]  # a start of Ray that was too slow leaves a zombie
        names = {one.name() for one in family}
        assert {"gcs_server", "raylet"} <= names, names
        ranks = [one for one in family if any(part.startswith("ray::Rank") for part in one.cmdline())]
        assert [one.nice() for one in ranks] == [psutil.Process().nice()] * 2, (
            "Ray's own choice lets any other process starve them"
        )
        listening = [
            (one.name(), connection.laddr.ip)
            for one in family
            for connection in one.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ]
        assert {name for name, _ in listening} >= {"gcs_server", "raylet"}
        assert not [one for one in listening if one[1] not in {"127.0.0.1", "::ffff:127.0.0.1", "::1"}]
        os.close(ours)  # the terminal is closed: the kernel sends SIGHUP to everything in it
        assert process.wait(120) == 130
    finally:
        process.kill()
        process.wait()
    record = place.record("slow")
    assert (record.state, record.stop_reason) == ("drained", "interrupted")
    assert "lost" not in {attempt.outcome for trial in record.started for attempt in trial.attempts}
    psutil.wait_procs(family, timeout=20)
    assert not [one for one in family if one.is_running()]


_AS_LEADER = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # the terminal becomes that of this session
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.medium
def test_a_full_disk_under_the_output_is_said_at_the_end() -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        process = subprocess.run([AUTOML, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert process.returncode == 1
    assert process.stderr == "automl: some of the output could not be written (No space left on device)\n"


@pytest.mark.medium
def test_a_reader_who_leaves_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    file = LastingFile(write, "wb")
    with io.TextIOWrapper(io.BufferedWriter(file), write_through=True) as stream:
        stream.write("nobody reads this")
        stream.flush()
    assert file.problem is None
    done = subprocess.run(f"{AUTOML} --help | head -1", shell=True, capture_output=True, text=True, check=True)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


@pytest.mark.medium
def test_a_controller_that_stands_by_and_is_interrupted_says_so(tmp_path, capsys, monkeypatch):
    """It ended as if the study had: with 0, or with 3 where no trial was complete yet."""
    study = StoredStudy(tmp_path)
    study.taken_by(os.getpid())
    stand_by = Session.__init__

    def interrupted(self: Session, **arguments: Any) -> None:
        def when_standing_by(holder: str) -> None:
            arguments["on_stand_by"](holder)
            os.kill(os.getpid(), signal.SIGTERM)

        stand_by(self, **{**arguments, "on_stand_by": when_standing_by})

    monkeypatch.setattr(Session, "__init__", interrupted)
    code, _, err = InProcess(tmp_path, capsys, monkeypatch).run("resume", "small")
    assert code == 130, err
    assert load_study(study.store, "small").state == "running"


@pytest.mark.parametrize(
    ("state", "interrupted", "code"),
    [
        ("running", True, 130), ("closed", True, 130), ("drained", False, 130), ("closed", False, 0),
        ("failed", False, 1),
    ],
)  # fmt: skip
def test_the_exit_code_is_that_of_the_command_and_not_of_who_went_on(tmp_path, state, interrupted, code):
    """A controller that is interrupted hands over: another one may have closed the study before it has ended."""
    study = StoredStudy(tmp_path)
    study.trial(epochs=1, state="complete")
    study.change(state=state)
    record = load_study(study.store, "small")
    assert _exit_code(Outcome(record=record, report=tmp_path, ran=True, interrupted=interrupted)) == code
