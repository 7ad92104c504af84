"""Keeps what was answered, by which version, as lines of JSON: what `automl ab` compares versions by.

Requests themselves are not kept. A thread writes, so that no answer waits for a disk; what a worker has not written
when it is killed, about the last second, is lost.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from .errors import ServeError

log = logging.getLogger(__name__)
_KEPT = ("label", "confidence", "value", "token")
_MOST_WAITING = 100_000
"""Number of lines that may wait for the disk; more are dropped."""
_PARTS = 16
"""A worker's file ends at this part of the bytes that its files may have."""
_LEAST_PART_BYTES = 4096
_PAUSE_SECONDS = 5.0
"""How long nothing is written after an error of the disk."""


class AnswerLog:
    """The files of one worker.

    Args:
        folder: Folder of the files of all workers.
        most_bytes: Number of bytes that all files may have; the oldest are deleted.
        workers: Number of workers that write into the folder.
    """

    def __init__(self, folder: Path, most_bytes: int, workers: int = 1) -> None:
        self._folder, self._most_bytes = folder, most_bytes
        self._part_bytes = max(_LEAST_PART_BYTES, most_bytes // (_PARTS * workers))
        self._lines: queue.Queue[str | None] = queue.Queue(_MOST_WAITING)
        self._file: IO[str] | None = None
        self._has_warned = False
        self._pause_until = 0.0
        self._thread = threading.Thread(target=self._write_on, name="answers", daemon=True)
        self._thread.start()

    def note(self, answers: Mapping[str, Mapping[str, Any]], *, version: str, role: str, seconds: float) -> None:
        """Keep the answers to a request.

        Args:
            answers: The answer to each row, by the row's id.
            version: The version that has answered.
            role: "champion" or "challenger".
            seconds: Time from the request's head to the answer.
        """
        told = {"at": round(time.time(), 3), "model": version, "role": role, "seconds": round(seconds, 6)}
        try:
            for row_id, answer in answers.items():
                kept = {key: answer[key] for key in _KEPT if key in answer}
                self._lines.put_nowait(json.dumps({"id": row_id} | told | kept, separators=(",", ":")) + "\n")
        except queue.Full:
            self._warn("the disk is too slow")

    def close(self) -> None:
        """Write what waits."""
        self._lines.put(None)
        self._thread.join()

    def _write_on(self) -> None:
        is_over = False
        while not is_over:
            lines = [self._lines.get()]
            while not self._lines.empty():
                lines.append(self._lines.get())
            is_over = None in lines
            try:
                self._write("".join(line for line in lines if line is not None))
            except OSError as error:
                self._warn(error.strerror or str(error))
                self._give_up_for_a_while()
        if self._file is not None:
            self._file.close()

    def _give_up_for_a_while(self) -> None:
        """Close the file, and write nothing for some seconds: a full disk would get an empty file for each batch."""
        self._pause_until = time.monotonic() + _PAUSE_SECONDS
        file, self._file = self._file, None
        with suppress(OSError):
            if file is not None:
                file.close()
            self._delete_oldest()

    def _write(self, text: str) -> None:
        if time.monotonic() < self._pause_until:
            return
        if self._file is not None and os.fstat(self._file.fileno()).st_nlink == 0:
            self._file.close()  # another worker has deleted it, since it was the oldest
            self._file = None
        if self._file is None:
            path = self._folder / f"answers-{time.time_ns()}-{os.getpid()}.jsonl"
            self._file = path.open("a", encoding="utf-8")
        self._file.write(text)
        self._file.flush()
        if self._file.tell() >= self._part_bytes:
            self._file.close()
            self._file = None
            self._delete_oldest()

    def _delete_oldest(self) -> None:
        found = []
        for path in answer_files(self._folder):
            with suppress(FileNotFoundError):  # another worker was quicker
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size, path))
        found.sort()
        excess = sum(size for _, size, _ in found) - self._most_bytes
        for _, size, path in found:
            if excess <= 0:
                return
            path.unlink(missing_ok=True)
            excess -= size

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            log.warning("answers are not kept: %s", reason)
        self._has_warned = True


def answer_files(folder: Path) -> list[Path]:
    """Return the files with kept answers, the oldest first."""
    return sorted(folder.glob("answers-*.jsonl"))


def check_folder(folder: Path) -> None:
    """Make the folder of the answers.

    Raises:
        ServeError: It cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ServeError(
            f"--answers: found {str(folder)!r}, which cannot be written to ({error.strerror}), allowed: a folder"
        ) from None
