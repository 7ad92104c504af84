"""Local copies of checkpoints in an object store. Each is fetched once per machine, and verified whenever it is opened.

AUTOML_CACHE_FOLDER   folder of the copies; default ~/.cache/automl/checkpoints
AUTOML_CACHE_GIB      limit of the copies in GiB; default 20, and never more than the free space
"""

import fcntl
import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

FOLDER_VARIABLE = "AUTOML_CACHE_FOLDER"
GIB_VARIABLE = "AUTOML_CACHE_GIB"
DEFAULT_GIB = 20.0
DRAFT_SECONDS = 86_400.0  # age in seconds from which an unfinished file counts as abandoned
_LOCKS = 64  # number of lock files, which objects share, so that none has to be deleted
_COPY, _DRAFT = ".copy", ".draft"
log = logging.getLogger(__name__)


class DamagedObjectError(Exception):
    """An object's content has changed since it was written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """Size and checksum of an object in an object store."""

    bytes: int
    sha256: str


class CheckpointCache:
    """Folder of copies for all processes of this machine. Keeps the newest copy even above `most_bytes`."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder, self._most_bytes = folder, most_bytes

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """Yield an empty file, which is deleted after the block unless `keep` took it. Raises OSError.

        First deletes copies over the limit, even the newest, so that a full disk does not refuse a checkpoint.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._evict(spares=0)
        descriptor, name = tempfile.mkstemp(suffix=_DRAFT, dir=self._folder)
        os.close(descriptor)
        try:
            yield Path(name)
        finally:
            Path(name).unlink(missing_ok=True)

    def keep(self, draft: Path, url: str, content: Content) -> None:
        """Make a draft the copy of an object, and delete the oldest copies over the limit."""
        draft.replace(self._path(url, content))
        self._evict(spares=1)

    def open(self, url: str, content: Content, fetch: Callable[[Path], None], *, fresh: bool = False) -> BinaryIO:
        """Open an object's copy; fetch it if necessary. Raises DamagedObjectError, OSError or errors of `fetch`."""
        path = self._path(url, content)
        if not fresh and (file := _whole(path, content)):
            return file
        with self._locked(path.name):  # one rank of this machine fetches, and the others wait
            if not fresh and (file := _whole(path, content)):
                return file
            if path.exists() and not fresh:
                log.warning("%s: the copy of %s is damaged and will be fetched again", path, url)
            try:
                return self._fetched(url, content, fetch)
            except DamagedObjectError:  # if it was damaged in transfer, the second try succeeds
                return self._fetched(url, content, fetch)

    def _fetched(self, url: str, content: Content, fetch: Callable[[Path], None]) -> BinaryIO:
        with self.draft() as draft:
            fetch(draft)
            file = _whole(draft, content)
            if file is None:
                raise DamagedObjectError(f"{url} contains other bytes than were written")
            self.keep(draft, url, content)
            return file

    def forget(self, url: str) -> None:
        """Delete the copies of an object that was deleted."""
        with suppress(OSError):
            for path in self._folder.glob(f"{_digest(url)}-*{_COPY}"):
                path.unlink(missing_ok=True)

    def _path(self, url: str, content: Content) -> Path:
        return self._folder / f"{_digest(url)}-{content.bytes}-{content.sha256[:32]}{_COPY}"

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """Hold the lock of a name in the block. The kernel frees it if the holder dies."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        number = int(_digest(name), 16) % _LOCKS
        with (self._folder / f"lock-{number}").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _evict(self, *, spares: int) -> None:
        with suppress(OSError):
            copies, total = [], 0
            for entry in os.scandir(self._folder):
                with suppress(FileNotFoundError):  # another process may delete, too
                    about = entry.stat()
                    if entry.name.endswith(_DRAFT) and about.st_mtime < time.time() - DRAFT_SECONDS:
                        Path(entry.path).unlink(missing_ok=True)
                    elif entry.name.endswith(_COPY):
                        copies.append((about.st_mtime, about.st_size, entry.path))
                        total += about.st_size
            # The copies may fill at most half of the space that they and the free space make up.
            most_bytes = min(self._most_bytes, (total + shutil.disk_usage(self._folder).free) // 2)
            for _, size, path in sorted(copies)[: len(copies) - spares]:
                if total <= most_bytes:
                    break
                Path(path).unlink(missing_ok=True)
                total -= size


def cache_of_this_machine() -> CheckpointCache:
    """Return the cache set by environment variables. Raises OSError if AUTOML_CACHE_GIB is not a number."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    folder = Path(os.environ.get(FOLDER_VARIABLE) or home / "automl" / "checkpoints").absolute()
    given = os.environ.get(GIB_VARIABLE) or DEFAULT_GIB
    try:
        most_bytes = int(float(given) * 2**30)
    except (ValueError, OverflowError):
        problem = f"{GIB_VARIABLE}: found {given!r}, allowed: a number of GiB"
        raise OSError(22, problem) from None
    return CheckpointCache(folder, most_bytes)


def _whole(path: Path, content: Content) -> BinaryIO | None:
    """Open an intact copy and mark it as used; None if it is missing or damaged."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    try:
        if os.fstat(file.fileno()).st_size == content.bytes and sha256_of(file) == content.sha256:
            file.seek(0)
            with suppress(OSError):
                os.utime(path)
            return file
    except BaseException:
        file.close()
        raise
    file.close()
    return None


def hashed(save: Callable[[BinaryIO], object], file: BinaryIO) -> Content:
    """Let `save` write a file, and return the file's size and checksum."""
    writer = _HashingWriter(file)
    save(cast("BinaryIO", writer))
    return writer.content()


class _HashingWriter:
    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash, self._bytes = file, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        self._bytes += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def content(self) -> Content:
        return Content(bytes=self._bytes, sha256=self._hash.hexdigest())


def sha256_of(file: BinaryIO) -> str:
    """Return the checksum of an open file from its position on."""
    return hashlib.file_digest(cast("Any", file), "sha256").hexdigest()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
