"""Runs one command between a rank and its program, and ends all processes of the program.

    python -I -S supervisor.py NEWS OUTPUT ERRORS

The first line of standard input is JSON: argv, environment, folder, remove, kill_seconds. Later lines are orders:
`stop`, `continue`, `terminate`, `kill`, `asked SECONDS` (the program's time to end). The end of standard input means
that the rank is dead: the program gets SIGTERM after those seconds, and is killed `kill_seconds` later. Then all its
descendants are killed, in other sessions too: orphans become children of this process. The descriptor NEWS gets
`supervised PID`, `started PID`, `failed WHY`, `exited STATUS` (negative for a signal). From OUTPUT and ERRORS the rank
reads the program's output. Uses only the standard library, to start within 30 ms, or in a fork of `preloaded.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:  # a tenth of the start
    from typing import Any

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
"""Options of the system call `prctl`."""
_ORDERS = {b"stop": signal.SIGSTOP, b"continue": signal.SIGCONT, b"terminate": signal.SIGTERM, b"kill": signal.SIGKILL}
_news = -1
_LEFT_SECONDS = 5.0
"""Limit in seconds for killing processes, because a process that waits for a disk cannot be killed."""


def supervise(news: int, printed: list[int], *, is_preloaded: bool = False) -> dict[str, Any]:
    """Run the command on standard input, and exit. With `is_preloaded`, return it in the program's process."""
    global _news  # noqa: PLW0603 - a process has one
    _news = news
    # Ray kills the children of a process that it ends, and this process has to outlive the rank to end the program.
    if os.fork():
        os._exit(0)
    _tell(f"supervised {os.getpid()}")
    what: dict[str, Any] = json.loads(_first_line())
    wakes, wakened = os.pipe()
    os.set_blocking(wakened, False)
    signal.set_wakeup_fd(wakened)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the rank gets them, too, and sends orders
    _prctl(_SET_CHILD_SUBREAPER, 1)
    pid = status = None
    try:
        pid = _start(what, [news, *printed], is_preloaded=is_preloaded)
    except OSError as error:
        _tell(f"failed {error.strerror}: {error.filename}")
    if pid == 0:
        return what
    try:
        if pid is not None:
            _tell(f"started {pid}")
            status = _follow(pid, what, wakes, printed)
    finally:
        _kill_descendants()
        for folder in what["remove"] if status is None else ():  # a living rank still reads them
            shutil.rmtree(folder, ignore_errors=True)
    if status is not None:
        _tell(f"exited {status}")
    os._exit(0)  # without exit handlers of imported modules


def _follow(pid: int, what: dict[str, Any], wakes: int, printed: list[int]) -> int | None:
    orders, asked_until, terminated_at = b"", 0.0, math.inf
    while True:
        ready, _, _ = select.select([0, wakes], [], [])
        if wakes in ready:
            os.read(wakes, 4096)
        status = _status_of(pid)
        if status is not None:
            return status
        if 0 in ready:
            chunk = os.read(0, 4096)
            if not chunk:
                if terminated_at == math.inf:
                    if _ends_by(asked_until, pid, [wakes, *printed]):
                        return None
                    _send(pid, signal.SIGTERM, signal.SIGCONT)
                kill_at = min(terminated_at, time.monotonic()) + what["kill_seconds"]
                _ends_by(kill_at, pid, [wakes, *printed])
                return None
            *lines, orders = (orders + chunk).split(b"\n")
            for word, _, seconds in (line.partition(b" ") for line in lines):
                if word == b"asked":
                    asked_until = time.monotonic() + float(seconds)
                    continue
                if word == b"terminate":
                    terminated_at = min(terminated_at, time.monotonic())
                _send(pid, _ORDERS[word])


def _send(pid: int, *numbers: signal.Signals) -> None:
    for number in numbers:
        with contextlib.suppress(OSError):
            os.killpg(pid, number)


def _ends_by(moment: float, pid: int, streams: list[int]) -> bool:
    while (status := _status_of(pid)) is None and (left := moment - time.monotonic()) > 0:
        for ready in select.select(streams, [], [], left)[0]:
            if not os.read(ready, 2**16):
                streams.remove(ready)
    return status is not None


def _start(what: dict[str, Any], ours: list[int], *, is_preloaded: bool) -> int:
    """Start the program in a new session. Returns its process id, or 0 in the program's own process."""
    argv = what["argv"]
    fails, failing = os.pipe()  # closed by a program that runs
    mine = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
            if os.getppid() != mine:
                os._exit(1)
            # Python ignores the last two signals, but shell pipes rely on them.
            usual = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)
            for number in usual:
                signal.signal(number, signal.SIG_DFL)
            os.chdir(what["folder"])
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            for mine_alone in ours:
                os.close(mine_alone)
            if is_preloaded:
                os.close(failing)
                return 0
            os.execvpe(argv[0], argv, what["environment"])  # noqa: S606 - its purpose
        except OSError as error:
            os.write(failing, json.dumps([error.errno, error.strerror, str(error.filename or argv[0])]).encode())
        os._exit(127)
    os.close(failing)
    with os.fdopen(fails, "rb") as said:
        failure = said.read()
    if failure:
        os.waitpid(pid, 0)
        raise OSError(*json.loads(failure))
    return pid


def _status_of(pid: int) -> int | None:
    """Return the program's exit status; None while it runs. Also reaps orphaned processes."""
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 0
        if ended == 0:
            return None
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def _kill_descendants() -> None:
    until = time.monotonic() + _LEFT_SECONDS
    while time.monotonic() < until:
        for pid in _descendants():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


def _descendants() -> list[int]:
    parents: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    stat = (folder / "stat").read_bytes()
                    parents[int(folder.name)] = int(stat.rpartition(b")")[2].split()[1])
    found: list[int] = []
    last = {os.getpid()}
    while last:
        last = {pid for pid, parent in parents.items() if parent in last}
        found += last
    return found


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # only Linux has it
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(0)
        line += byte
    return line


def _tell(news: str) -> None:
    with contextlib.suppress(OSError):
        os.write(_news, f"{' '.join(news.split())}\n".encode())


if __name__ == "__main__":
    supervise(int(sys.argv[1]), [int(one) for one in sys.argv[2:4]])
