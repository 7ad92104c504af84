"""Stores checkpoints in a folder of this machine or a file server, or in an object store.

A checkpoint exists completely or not at all, even if its writer dies: ranks write parts (`write_part`), then `write`
makes the checkpoint visible. `delete` removes the main file first. Errors are `OSError`s. Libraries of object stores
are loaded on first use, because the controller imports this module.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from trainers.checkpoints.checkpoint_cache import Content, DamagedObjectError, hashed, sha256_of
from trainers.checkpoints.locations import NO_PARTS, Parts, Place, Save, check_library, is_url, scheme_of, shares_of


def place_of(path: str | Path) -> Place:
    """Return the place of a path or URL. Raises MissingLibraryError."""
    return _object_store(str(path)) if is_url(path) else LocalPlace()


def _object_store(url: str) -> Place:
    check_library(url)
    from trainers.checkpoints.object_store import ObjectStore  # loads fsspec, which local folders do not need

    return ObjectStore(scheme_of(url))


class LocalPlace:
    """Folders of this machine or of a mounted file server."""

    def write(self, path: str, save: Save, parts: Parts = NO_PARTS) -> int:
        """Write a file atomically, even if power fails; see `Place`."""
        final = Path(path)
        draft = final.with_name(f".{final.name}.{os.getpid()}.tmp")
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            with draft.open("wb") as file:
                save(file)
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
            draft.replace(final)
            descriptor = os.open(final.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except BaseException:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        return size + sum(part.bytes for part in parts.values())

    def write_part(self, path: str, save: Save) -> Content:
        """See `Place`."""
        written: list[Content] = []
        self.write(path, lambda file: written.append(hashed(save, file)))
        return written[0]

    def open(self, path: str, *, fresh: bool = False) -> BinaryIO:  # noqa: ARG002 - there are no copies
        """See `Place`."""
        return Path(path).open("rb")

    def open_part(self, path: str, content: Content, *, fresh: bool = False) -> BinaryIO:  # noqa: ARG002 - as above
        """See `Place`."""
        file = Path(path).open("rb")  # noqa: SIM115 - the caller closes it
        if os.fstat(file.fileno()).st_size != content.bytes or sha256_of(file) != content.sha256:
            file.close()
            raise DamagedObjectError(f"{path} contains other bytes than were written")
        file.seek(0)
        return file

    def delete(self, path: str) -> None:
        """See `Place`."""
        main = Path(path)
        main.unlink(missing_ok=True)
        for share in list(shares_of(main)):
            share.unlink(missing_ok=True)

    def withdraw(self, path: str) -> None:
        """Delete only the main file."""
        Path(path).unlink(missing_ok=True)

    def size(self, path: str) -> int:
        """See `Place`."""
        main = Path(path)
        return sum(file.stat().st_size for file in (main, *shares_of(main)))

    def write_note(self, path: str, text: str) -> None:
        """See `Place`."""
        self.write(path, lambda file: file.write(text.encode()))

    def read_note(self, path: str) -> str:
        """See `Place`."""
        return Path(path).read_text(encoding="utf-8")

    delete_note = withdraw

    def try_out(self, folder: str, size: int) -> None:
        """See `Place`."""
        file = Path(folder) / f".room.{os.getpid()}.tmp"
        self.write(str(file), lambda opened: opened.write(bytes(size)))
        file.unlink()
