"""Uploaded files of a project, in the operator's folder, with a limited total size.

A file has a hidden name until it is complete, but its bytes count at once. Only data files are allowed, because
studies resolve relative paths in this folder, and could import a Python file.
"""

import asyncio
import os
import re
import secrets
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from automl.service.http_errors import MissingError, TooLargeError
from automl.service.limits import check_expanded
from automl.service.subprocess_questions import Kind, answer_of, telling
from reports.phrases import size_in_bytes
from search_spaces.messages import found, listed
from studies.spec.spec_errors import SpecError

ENDINGS = ("csv", "tsv", "parquet", "txt", "json", "jsonl", "gz")
MOST_FILES = 1000  # most files of a project
CHECK = Kind.of("upload", seconds=60.0, too_late="it took longer than 60 s to expand", most=2, memory_bytes=2**30)
"""Program that expands a compressed upload, and may end for lack of memory."""
STALE_SECONDS = 3600.0  # seconds without a new byte after which a partial file is deleted, as a killed service left it
_NAME = re.compile(rf"(?!\.)[A-Za-z0-9._-]{{1,100}}\.({'|'.join(ENDINGS)})", re.ASCII | re.IGNORECASE)
_PART = ".part"
_writing = threading.Lock()
"""Held while a chunk is counted and written, so that concurrent uploads together stay within the limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Upload:
    """An uploaded file. `uploaded_at` is in seconds since 1970."""

    name: str
    bytes: int
    uploaded_at: float


def checked_name(name: str) -> str:
    """Return an upload's name. Raises SpecError if it is not allowed."""
    if _NAME.fullmatch(name) is None:
        allowed = f"letters, digits, - _ and ., at most 100 characters, no . in front, and an ending {listed(ENDINGS)}"
        raise SpecError("name", (), found(name[:200], allowed))
    return name


class Uploads:
    """The uploaded files of a project, of at most `most_bytes` in total."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder, self.most_bytes = folder, most_bytes

    def listed(self) -> list[Upload]:
        """Return the uploaded files, sorted by name."""
        own = [(entry.name, stat) for entry, stat in self._entries() if not entry.name.startswith(".")]
        return [Upload(name=name, bytes=stat.st_size, uploaded_at=stat.st_mtime) for name, stat in sorted(own)]

    def path_of(self, name: str) -> Path:
        """Return an uploaded file's path. Raises MissingError if it does not exist."""
        path = self._folder / checked_name(name)
        if path.is_symlink() or not path.is_file():
            raise MissingError(f"upload: found {name!r}, allowed: {listed([one.name for one in self.listed()])}")
        return path

    def delete(self, name: str) -> None:
        """Delete an uploaded file. Raises MissingError if it does not exist."""
        self.path_of(name).unlink()

    async def keep(self, name: str, chunks: AsyncIterator[bytes], *, length: int | None = None) -> Upload:
        """Write an upload as its bytes arrive. Replaces a file of the same name.

        Raises SpecError if the name is not allowed or a compressed file is damaged, TooLargeError if the project has no
        room or the file expands too far. Then nothing is stored.
        """
        target = self._folder / checked_name(name)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._remove_stale_parts()
        self._check_room(name, length or 0)
        part = self._folder / f".{secrets.token_hex(8)}{_PART}"
        try:
            with part.open("xb", buffering=0) as file:
                async for chunk in chunks:
                    if chunk:
                        await asyncio.to_thread(self._write, file, chunk, name)
            await asyncio.to_thread(_check, part, name, self.most_bytes)
            stat = await asyncio.to_thread(self._put, part, target)
        finally:
            with suppress(FileNotFoundError):
                part.unlink()
        return Upload(name=name, bytes=stat.st_size, uploaded_at=stat.st_mtime)

    @staticmethod
    def _put(part: Path, target: Path) -> os.stat_result:
        """Rename a complete upload, under a lock: a listing during the rename might show neither name."""
        with _writing:
            stat = part.stat()
            part.replace(target)
        return stat

    def _write(self, file: BinaryIO, chunk: bytes, name: str) -> None:
        with _writing:
            self._check_room(name, len(chunk))
            view = memoryview(chunk)
            while view:
                view = view[file.write(view) :]

    def _check_room(self, name: str, more: int) -> None:
        """Refuse bytes above the limit. A file to be replaced still counts."""
        there = list(self._entries())
        files = sum(entry.name != name for entry, _ in there)
        if files > MOST_FILES:
            raise TooLargeError(f"uploads: the project has {files} files already, its limit. Delete some files")
        used = sum(stat.st_size for _, stat in there)
        if used + more > self.most_bytes:
            most, kept = size_in_bytes(self.most_bytes), size_in_bytes(used)
            raise TooLargeError(f"uploads: the project already uses {kept} of its {most}. Delete some files")

    def _entries(self) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
        """Yield the files with their status, except files that vanish at the same time."""
        with suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.is_file(follow_symlinks=False):
                        yield entry, entry.stat(follow_symlinks=False)

    def _remove_stale_parts(self) -> None:
        for entry, stat in self._entries():
            if entry.name.endswith(_PART) and time.time() - stat.st_mtime > STALE_SECONDS:
                with suppress(FileNotFoundError):
                    Path(entry.path).unlink()


def _check(part: Path, name: str, most_bytes: int) -> None:
    """Check a compressed upload's expanded size, in a process of limited memory."""
    if name.lower().endswith((".gz", ".parquet")):
        answer_of("automl.service.uploads", [str(part), name, str(most_bytes)], kind=CHECK)


def main() -> None:
    """Check the upload named by the arguments, and print an empty JSON object."""
    with telling():
        check_expanded(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    print("{}")


if __name__ == "__main__":
    main()
