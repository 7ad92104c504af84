"""Writes the output of a rank's process to a file of its trial. Does not import torch.

The file replaces the output descriptor, so it also gets output of libraries and child processes, such as NCCL's
warnings. A pipe could deadlock: a writer that holds Python's lock would wait for the reader.
"""

import ctypes
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import IO, Any

from trainers.checkpoints.locations import trial_folder
from trainers.commands.command import COMMAND
from trainers.protocol import TrialSpec


class RankLog:
    """Writes a rank's output to `path`, at least the last half of `most_bytes`. An OSError ends only the log."""

    def __init__(self, path: Path, most_bytes: int) -> None:
        self._path, self._half = path, max(most_bytes // 2, 1)
        self._file: IO[bytes] | None = None
        self._bytes = 0
        self._is_within_line, self._notes = False, b""
        with suppress(OSError):
            self._file = open(first_log(path), "wb")  # noqa: SIM115 - a descriptor, closed by `close`

    def write(self, chunk: bytes) -> None:
        """Write a chunk of the rank's output."""
        if self._notes and b"\n" in chunk:
            line, _, chunk = chunk.partition(b"\n")
            chunk, self._notes = b"".join([line, b"\n", self._notes, chunk]), b""
        self._is_within_line = not chunk.endswith(b"\n")
        self._write(chunk)

    def note(self, line: bytes) -> None:
        """Write our own line, after the rank's current line."""
        if self._is_within_line:
            self._notes += line
        else:
            self._write(line)

    def _write(self, chunk: bytes) -> None:
        if self._file is None:
            return
        try:
            if self._bytes + len(chunk) > self._half:
                self._file.close()
                self._file, self._bytes = open(next_log(self._path), "wb"), 0  # noqa: SIM115 - as above
            self._file.write(chunk[-self._half :])
            self._file.flush()
            self._bytes += len(chunk)
        except OSError:
            self._file = None

    def close(self) -> None:
        """Close the file."""
        if self._notes:
            self._write(b"\n" + self._notes)
            self._notes = b""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None


_STDOUT, _STDERR = 1, 2


def divert_stdout() -> int:
    """Redirect standard output to standard error, also in C libraries and children. Returns the old descriptor."""
    sys.stdout.flush()
    kept = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    return kept


@contextmanager
def stdout_diverted() -> Iterator[None]:
    """Redirect standard output to standard error in the block, as `divert_stdout` does."""
    kept = divert_stdout()
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        # C buffers would otherwise be written at exit, to the restored standard output.
        with suppress(OSError, AttributeError, TypeError):  # not every C library allows this
            ctypes.CDLL(None).fflush(None)
        os.dup2(kept, _STDOUT)
        os.close(kept)


FOLDER = "automl_logs"
_NAME = re.compile(r"attempt-(\d+)\.rank-(\d+)\.log")


def log_folder(base_folder: str | Path, study: str, trial: int, *, seed: int | None = None) -> Path:
    """Return the folder of a trial's logs, or with a `seed` of its confirming training."""
    return Path(base_folder) / FOLDER / study / trial_folder(trial, seed)


def seeds_of_trial(base_folder: str | Path, study: str, trial: int) -> list[int]:
    """Return the seeds of a trial's confirming trainings with logs."""
    own = log_folder(base_folder, study, trial)
    endings = (path.name.removeprefix(f"{own.name}-seed-") for path in own.parent.glob(f"{own.name}-seed-*"))
    return sorted(int(ending) for ending in endings if ending.isdecimal())


def folders_of_trial(base_folder: str | Path, study: str, trial: int) -> list[Path]:
    """Return all folders with logs of a trial and its confirming trainings."""
    seeds = (None, *seeds_of_trial(base_folder, study, trial))
    return [log_folder(base_folder, study, trial, seed=seed) for seed in seeds]


def path_of(spec: TrialSpec, rank: int, base_folder: str | Path) -> Path:
    """Return the path of a rank's latest output."""
    seed = spec.seed if spec.test_at else None
    return log_path(log_folder(base_folder, spec.study, spec.trial, seed=seed), spec.attempt, rank)


def log_path(folder: Path, attempt: int, rank: int) -> Path:
    """Return the path of a rank's latest output. A file of this name with `.1` has older output."""
    return folder / f"attempt-{attempt}.rank-{rank}.log"


def logs_in(folder: Path, since: float = 0.0) -> dict[tuple[int, int], Path]:
    """Return a trial's log files by attempt and rank, except files older than `since` (seconds since 1970)."""
    found: dict[tuple[int, int], Path] = {}
    for path in folder.glob("*.log"):
        with suppress(OSError):  # the file may vanish
            if (named := _NAME.fullmatch(path.name)) and path.stat().st_mtime >= since:
                found[int(named[1]), int(named[2])] = path
    return dict(sorted(found.items()))


def older(path: Path) -> Path:
    """Return the path of a log's older output."""
    return path.with_name(f"{path.name}.1")


def first_log(path: Path) -> int:
    """Open a new log, after deleting earlier logs of the attempt. Returns its file descriptor."""
    older(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    return _opened(path)


def next_log(path: Path) -> int:
    """Open a new log, after renaming the full log. Returns its file descriptor."""
    path.replace(older(path))
    return _opened(path)


MOST_BYTES = 8 * 2**20  # kept output of a rank's attempt in bytes; a burst between two checks may exceed it
LOOK_SECONDS = 1.0
_TRIES = 5


class RankOutput:
    """Output of a process that trains one trial after another. Failed writes do not fail a trial."""

    def __init__(self) -> None:
        self._own = os.dup(_STDOUT), os.dup(_STDERR)
        sys.stdout, sys.stderr = _Patient(sys.stdout), _Patient(sys.stderr)
        self._path: Path | None = None
        self._changing = threading.Lock()
        threading.Thread(target=self._look, name="output", daemon=True).start()

    @contextmanager
    def of(self, spec: TrialSpec, rank: int) -> Iterator[None]:
        """Write the block's output to the rank's log, except for commands and trainings without a spec's folder."""
        if spec.task == COMMAND or not spec.python_path:
            yield
            return
        path = path_of(spec, rank, spec.python_path[0])
        with self._changing, suppress(OSError):
            self._begin(path, first_log(path))
        try:
            yield
        finally:
            self._turn_back(path)

    def _turn_back(self, path: Path) -> None:
        with self._changing:
            if self._path != path:
                return  # the log could not be opened, or the next attempt has begun
            _flush()
            for own, number in zip(self._own, (_STDOUT, _STDERR), strict=True):
                os.dup2(own, number)
            self._path = None
            with suppress(OSError):
                if path.stat().st_size == 0 and not older(path).exists():
                    path.unlink()
                    for folder in list(path.parents)[:3]:
                        folder.rmdir()  # fails if another rank, attempt or study has printed something

    def _begin(self, path: Path, file: int) -> None:
        _flush()
        for number in (_STDOUT, _STDERR):
            os.dup2(file, number)
        os.close(file)
        self._path = path

    def _look(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            with self._changing, suppress(OSError):
                if self._path is not None and os.fstat(_STDOUT).st_size > MOST_BYTES // 2:
                    self._begin(self._path, next_log(self._path))


class _Patient:
    """Stream that ignores errors: if its file is full, output is lost, and the trial continues."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _opened(path: Path) -> int:
    for _ in range(_TRIES):
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # a rank without output may have removed the folder
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    raise FileNotFoundError(path)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # user code may have replaced the stream
            stream.flush()
