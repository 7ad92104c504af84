"""Finds out whether a process on this machine is alive. For other machines, only heartbeats show that.

A process id is valid only within one boot of one machine and one pid namespace: containers may share a host name, and
each has a process 1. Start times count from the boot, so that changes of the clock do not matter.
"""

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

STUDY_MARK = "AUTOML_STUDY"
"""Environment variable of processes that a command starts for a study: study uid; command's id, start and space."""
STARTED_FIELD = 19  # index of the start time among the fields of /proc/PID/stat after the program's name


@functools.cache
def space() -> str:
    """Return a name for this machine's boot and this process's pid namespace; empty if the system reports neither."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def started_at(pid: int) -> float | None:
    """Return when a process started, in seconds since the boot; None if it has ended or never existed."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[STARTED_FIELD]) / os.sysconf("SC_CLK_TCK")


def is_known_gone(in_space: str | None, pid: int, start: float) -> bool:
    """Return whether a process has certainly ended; False if it belongs to another machine or container."""
    if not in_space or in_space != space():
        return False
    found = started_at(pid)
    if found is not None:
        return abs(found - start) > 0.5  # the id was given to another process
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # another user's process, on a system that hides its start time
    return True  # a zombie


def is_known_stopped(in_space: str | None, pid: int, start: float) -> bool:
    """Return whether a process is alive but stopped by a signal or debugger; False on other machines."""
    if not in_space or in_space != space():
        return False
    found = started_at(pid)
    if found is None or abs(found - start) > 0.5:
        return False
    with suppress(psutil.Error):
        return bool(psutil.Process(pid).status() in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP})
    return False


@contextmanager
def marked(study_uid: str) -> Iterator[None]:
    """Mark all processes started inside the block with the ids of the study and of this process."""
    before = os.environ.get(STUDY_MARK)
    os.environ[STUDY_MARK] = f"{study_uid} {os.getpid()} {started_at(os.getpid())} {space()}"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(STUDY_MARK, None)
        else:
            os.environ[STUDY_MARK] = before


def left_behind(study_uid: str) -> dict[int, str]:
    """Return ids and command lines of processes on this machine whose parent command for this study has ended."""
    left = {}
    for process in psutil.process_iter():
        try:
            uid, pid, start, in_space = process.environ().get(STUDY_MARK, "").split()
            if uid == study_uid and is_known_gone(in_space, int(pid), float(start)):
                left[process.pid] = " ".join(process.cmdline())
        except (psutil.Error, OSError, ValueError):  # it has ended, is another user's, or has no such mark
            continue
    return left
