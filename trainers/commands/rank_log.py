"""The output of each rank's command, kept in files that do not grow without end. Does not import torch."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import IO

from trainers.rank_output import older


class RankLog:
    """Writes the output of one rank: of what it prints the last `most_bytes` or more than half of that are kept.

    A folder that takes nothing costs the log, and not the trial.

    Args:
        path: The file, from `log_path`.
        most_bytes: Size of both files together.
    """

    def __init__(self, path: Path, most_bytes: int) -> None:
        self._path, self._half = path, max(most_bytes // 2, 1)
        self._file: IO[bytes] | None = None
        self._bytes = 0
        self._is_within_line, self._notes = False, b""
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            older(path).unlink(missing_ok=True)
            self._file = path.open("wb")

    def write(self, chunk: bytes) -> None:
        """Write what a rank has printed."""
        if self._notes and b"\n" in chunk:
            line, _, chunk = chunk.partition(b"\n")
            chunk, self._notes = b"".join([line, b"\n", self._notes, chunk]), b""
        self._is_within_line = not chunk.endswith(b"\n")
        self._write(chunk)

    def note(self, line: bytes) -> None:
        """Write a line of ours, once the line before it is whole."""
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
                self._path.replace(older(self._path))
                self._file, self._bytes = self._path.open("wb"), 0
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
