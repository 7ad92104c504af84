"""Runs the processes of one rank's command, logs and reads their output, and ends them."""

import fcntl
import json
import math
import os
import re
import selectors
import subprocess
import sys
import termios
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

import psutil

from trainers.commands.forks import MARK, Fork
from trainers.ranks.printed_output import RankLog

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_CHUNK_BYTES = 2**16
_LONGEST_LINE_BYTES = 2**16
"""Length in bytes from which a line is skipped."""
_SHOWN_BYTES = 1024
"""Bytes kept from the beginning of a skipped line, for error messages."""
_LAST_LINES = 20
_COLOUR = re.compile(r"\x1b\[[0-9;:]*[A-Za-z]")
_HOLD_SECONDS, _HOLD_LOOK_SECONDS = 2.0, 0.002
_LEFT_SECONDS = 5.0
"""Limit in seconds for killing remaining processes, and for reading the output afterwards."""
STDOUT, _FILE, _FILE_SECONDS = "stdout", "file", 0.1
"""Names of streams of lines, and seconds between two checks of a file of metrics."""

OnLine = Callable[[str, str], None]
"""Takes a line and the name of its stream."""


class Program:
    """A running command. Raises OSError if this machine cannot start a process.

    Args:
        json_file: File whose new lines are read instead of the output.
        on_exit: Called from another thread with the exit status (negative for a signal), the reason of a failed start,
            or None if the supervisor was killed.
        fork: The program as a fork, used if possible; otherwise the log has the reason.
        remove: Folders to remove after the program's end, if this process is dead by then.

    Attributes:
        last_lines: Last lines of standard error, or else of standard output; empty before the end.
        last_words: Last line of standard error, with the last line of standard output.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        folder: str,
        *,
        log: RankLog,
        on_line: OnLine | None,
        on_exit: Callable[[int | str | None], None],
        json_file: Path | None = None,
        remove: Sequence[str] = (),
        kill_seconds: float = 0.0,
        fork: Fork | None = None,
    ) -> None:
        self._log, self._on_line, self._on_exit = log, on_line, on_exit
        self._file = None if json_file is None else _GrowingFile(json_file)
        self.last_lines: list[str] = []
        self.last_words = ""
        self._over = threading.Event()
        self.seen = 0
        self._supervisor_pid: int | None = None
        self._group: int | None = None
        self._reading, self._noted = threading.Lock(), set[str]()
        self._mark = uuid.uuid4().hex
        self._fork = fork
        self._starter: subprocess.Popen[bytes] | None = None
        (orders, gives), (news, says), (out, prints), (errors, complains) = (os.pipe() for _ in range(4))
        self._given = orders, prints, complains, says, out, errors
        self._orders = os.fdopen(gives, "wb", 0)
        self._ordering = threading.Lock()
        # Before the supervisor reads, a long order would fill the pipe and block.
        self._delayed: list[str] | None = None if fork is None else []
        try:
            if fork is None:
                self._start()
        except BaseException:
            for end in news, out, errors:
                os.close(end)
            self._orders.close()
            log.close()
            raise
        what = {
            "argv": list(argv),
            "environment": {**environment, MARK: self._mark},
            "folder": folder,
            "remove": list(remove),
            "kill_seconds": kill_seconds,
            "python": None if fork is None else fork.python,
        }
        self._order(json.dumps(what))
        streams = [os.fdopen(end, "rb", 0) for end in (news, out, errors)]
        self._printed = streams[1:]
        threading.Thread(target=self._read, args=streams, name="command", daemon=True).start()

    def _start(self) -> None:
        orders, prints, complains, *told = self._given
        try:
            self._starter = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-I", "-S", str(_SUPERVISOR), *map(str, told)],
                stdin=orders, stdout=prints, stderr=complains, pass_fds=told, start_new_session=True,
            )  # fmt: skip
        finally:
            self._close_given()

    def _close_given(self) -> None:
        for end in self._given[:4]:  # this process reads the last two
            os.close(end)

    def hold(self) -> bool:
        """Stop the program until `go_on`, and read its output. Returns whether all its processes are stopped."""
        self._order("stop")
        give_up_at = time.monotonic() + _HOLD_SECONDS
        while not (is_held := self._is_held() and self._has_read_all()) and time.monotonic() < give_up_at:
            time.sleep(_HOLD_LOOK_SECONDS)
        return is_held

    def go_on(self) -> None:
        """Continue the program after `hold`."""
        self._order("continue")

    def will_be_asked(self, seconds: float) -> None:
        """Give the program `seconds` to end, even if this process is killed."""
        self._order(f"asked {seconds}")

    def end(self, asked_seconds: float, kill_seconds: float) -> None:
        """End the program, and wait: SIGTERM after `asked_seconds`, SIGKILL after `kill_seconds` more."""
        if asked_seconds and self._over.wait(asked_seconds):
            return
        for order, seconds in ("continue", 0.0), ("terminate", kill_seconds), ("kill", None):
            self._order(order)
            if order == "kill" and self._fork is not None:
                self._fork.give_up()
            if self._over.wait(seconds):
                return

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of the program's running processes, or of its importing process."""
        total = 0.0
        importing = None if self._fork is None else self._fork.importing
        pid = self._supervisor_pid or importing
        if pid is None:
            return total
        with suppress(psutil.Error, OSError):
            own = psutil.Process(pid)
            for process in [own] * (pid == importing) + own.children(recursive=True):
                with suppress(psutil.Error, OSError):
                    times = process.cpu_times()
                    total += times.user + times.system
        return total

    def _is_held(self) -> bool:
        if self._supervisor_pid is None or self._group is None:
            return False
        with suppress(psutil.Error, OSError):
            below = psutil.Process(self._supervisor_pid).children(recursive=True)
            groups = [(one, os.getpgid(one.pid)) for one in below]
            # The signal reaches no processes outside of the group, such as daemons.
            mine = [one for one, group in groups if group == self._group]
            return all(one.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE) for one in mine)
        return True  # the program has ended

    def _has_read_all(self) -> bool:
        try:
            waiting = [fcntl.ioctl(one, termios.FIONREAD, bytes(4)) for one in self._printed]
        except (OSError, ValueError):
            return True  # the program has ended, and all was read
        with self._reading:
            return not any(map(any, waiting)) and (self._file is None or self._file.is_read())

    def note(self, text: str) -> None:
        """Write a line to the program's log, once for each text. Only the reading thread may call this."""
        if text not in self._noted:
            self._noted.add(text)
            self._log.note(f"[automl] {text}\n".encode(errors="replace"))

    def _order(self, line: str) -> None:
        with self._ordering:
            if self._delayed is None:
                self._write(line)
            else:
                self._delayed.append(line)

    def _write(self, line: str) -> None:
        with suppress(OSError, ValueError):  # the supervisor has ended
            self._orders.write(f"{line}\n".encode())

    # ------------------------------------------------------------------ in the thread that reads

    def _read(self, news: IO[bytes], out: IO[bytes], err: IO[bytes]) -> None:
        if self._fork is not None:
            self._start_fork(self._fork)
        if self._starter is not None:
            self._starter.wait()  # it exits once the supervisor runs
        printed, errors, kept = (
            _Lines(partial(self._take_line, stream), self._pass_over) for stream in (STDOUT, "stderr", _FILE)
        )
        told = _Lines(self._take_news)
        give_up_at = math.inf
        with selectors.DefaultSelector() as selector:
            for stream, lines in (out, printed), (err, errors), (news, told):
                selector.register(stream, selectors.EVENT_READ, lines)
            while selector.get_map() and time.monotonic() < give_up_at:
                self._read_file(kept)
                seconds = _FILE_SECONDS if self._file is not None else None
                for key, _ in selector.select(seconds if give_up_at == math.inf else _LEFT_SECONDS):
                    with self._reading:
                        chunk = os.read(key.fd, _CHUNK_BYTES)
                        if not chunk:
                            selector.unregister(key.fileobj)
                        elif key.data is not told:
                            self.seen += 1
                            self._log.write(chunk)
                        key.data.take(chunk)
                if news not in {key.fileobj for key in selector.get_map().values()} and give_up_at == math.inf:
                    if _end_in(told.last) is None:
                        self._kill_what_is_left()
                    give_up_at = time.monotonic() + _LEFT_SECONDS
        self._read_file(kept)
        for lines in printed, errors, kept, told:
            lines.end()
        self.last_lines = errors.last or printed.last
        said, complained = ("".join(one.last[-1:]).strip() for one in (printed, errors))
        self.last_words = (
            f"{complained} (standard output ended with: {said})" if said and complained else complained or said
        )
        self._log.close()
        for one in (self._orders, out, err, news):
            with suppress(OSError):
                one.close()
        self._over.set()
        self._on_exit(_end_in(told.last))

    def _start_fork(self, fork: Fork) -> None:
        try:
            why = fork.begin(self._given, self._log.write)
        except Exception as error:  # noqa: BLE001 - the command runs without it
            why = f"{type(error).__name__}: {error}"
        if why is None:
            self._close_given()
        else:
            self.note(f"preload: {why}, so the command starts without it")
            with suppress(OSError):  # without a supervisor, the output ends, and the trial counts as lost
                self._start()
        with self._ordering:
            delayed, self._delayed = self._delayed or [], None
            for order in delayed:
                self._write(order)

    def _read_file(self, lines: "_Lines") -> None:
        if self._file is not None:
            with self._reading, suppress(OSError):
                chunk = self._file.read()
                self.seen += bool(chunk)
                lines.take(chunk)

    def _take_news(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "supervised":
            self._supervisor_pid = int(rest)
        elif word == "started":
            self._group = int(rest)

    def _kill_what_is_left(self) -> None:
        """Kill all processes that have this program's mark in their environment."""
        give_up_at = time.monotonic() + _LEFT_SECONDS
        while time.monotonic() < give_up_at:
            left = [
                one for one in psutil.process_iter(["environ"]) if (one.info["environ"] or {}).get(MARK) == self._mark
            ]
            if not left:
                return
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, timeout=0.1)

    def _take_line(self, stream: str, line: str) -> None:
        if self._on_line is not None and (self._file is None or stream == _FILE):
            self._on_line(line, stream)

    def _pass_over(self) -> None:
        if self._on_line is not None:
            self.note(
                f"a line of more than {_LONGEST_LINE_BYTES // 1024} KiB was skipped: print metrics in shorter lines"
            )


class _GrowingFile:
    """Reads new content of a file, which may be created or emptied later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = self._size()

    def _size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def is_read(self) -> bool:
        return self._size() == self._at

    def read(self) -> bytes:
        if self.is_read():
            return b""
        with self._path.open("rb") as file:
            file.seek(self._at if self._size() > self._at else 0)
            chunk = file.read()
            self._at = file.tell()
        return chunk


class _Lines:
    """Cuts chunks into lines, and keeps the last. Drops text before a carriage return, for progress bars."""

    def __init__(self, take: Callable[[str], None], pass_over: Callable[[], None] = lambda: None) -> None:
        self._take, self._pass_over = take, pass_over
        self._rest, self._is_too_long = b"", False
        self.last: list[str] = []

    def take(self, chunk: bytes) -> None:
        *lines, rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._one(line)
        self._rest = self._overwritten(rest)
        if len(self._rest) > _LONGEST_LINE_BYTES:
            ending = b"\r" if self._rest.endswith(b"\r") else b""
            self._rest, self._is_too_long = self._rest[:_SHOWN_BYTES] + ending, True

    def end(self) -> None:
        if self._rest:
            self._one(self._rest)

    def _overwritten(self, line: bytes) -> bytes:
        start = line.rstrip(b"\r").rfind(b"\r") + 1
        self._is_too_long = self._is_too_long and not start
        return line[start:]

    def _one(self, line: bytes) -> None:
        line = self._overwritten(line)
        is_too_long, self._is_too_long = self._is_too_long or len(line) > _LONGEST_LINE_BYTES, False
        text = _COLOUR.sub("", line[: _SHOWN_BYTES if is_too_long else None].decode(errors="replace")).rstrip("\r")
        if text.strip():
            self.last = [*self.last[1 - _LAST_LINES :], text]
        if is_too_long:
            self._pass_over()
        else:
            self._take(text)


def _end_in(told: Sequence[str]) -> int | str | None:
    for line in told:
        word, _, rest = line.partition(" ")
        if word == "exited":
            return int(rest)
        if word == "failed":
            return rest
    return None
