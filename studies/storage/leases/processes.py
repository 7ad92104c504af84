"""Finds out whether a process on this machine is alive. For other machines, only heartbeats show that.

A process id is valid within one boot of a machine and one pid namespace: containers may share a host name, and each
has a process 1. Start times count from the boot, since clocks may change.
"""

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

STUDY_MARK = "AUTOML_STUDY"
"""Environment variable of a study's processes: study uid; pid, start and space of the command that started them."""
STARTED_FIELD = 19  # index of the start time among the fields of /proc/PID/stat after the program's name


@functools.cache
def space() -> str:
    """Return a name of this machine's boot and this process's pid namespace; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def started_at(pid: int) -> float | None:
    """Return when a process started, in seconds since the boot; None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[STARTED_FIELD]) / os.sysconf("SC_CLK_TCK")


def is_known_gone(in_space: str | None, pid: int, start: float) -> bool:
    """Return whether a process has certainly ended; False for another machine or container."""
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
    """Return whether a signal or debugger stopped a process; False for other machines."""
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
    """Mark all processes started inside the block with `STUDY_MARK`."""
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
    """Return ids and command lines of a study's processes on this machine whose command has ended."""
    left = {}
    for process in psutil.process_iter():
        try:
            uid, pid, start, in_space = process.environ().get(STUDY_MARK, "").split()
            if uid == study_uid and is_known_gone(in_space, int(pid), float(start)):
                left[process.pid] = " ".join(process.cmdline())
        except (psutil.Error, OSError, ValueError):  # it has ended, is another user's, or has no such mark
            continue
    return left
