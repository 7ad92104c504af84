"""Places of checkpoints: a folder of this machine or of a file server, or an object store.

A checkpoint is there wholly or not at all, even if its writer dies. Its parts, files beside it, are written first.

    place = place_of(path)              # by the form of the path
    part = place.write_part(path, save) # for each part, by any rank
    place.write(path, save, parts)      # last: makes the checkpoint visible, with all its parts
    place.open(path), place.open_part(path, part)
    place.delete(path)                  # the checkpoint first, then its parts

Errors of a place are `OSError`s. Libraries of stores are loaded on first use: the controller imports this module.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from trainers.checkpoints.checkpoint_cache import Content, DamagedObjectError, hashed, sha256_of
from trainers.checkpoints.checkpoint_place import NO_PARTS, Parts, Place, Save
from trainers.checkpoints.locations import check_library, checkpoint_bytes, delete_checkpoint, is_url, scheme_of


def place_of(path: str | Path) -> Place:
    """Return the place of a path or URL; raises MissingLibraryError if the object store's library is not installed."""
    return _object_store(str(path)) if is_url(path) else LocalPlace()


def _object_store(url: str) -> Place:
    check_library(url)
    from trainers.checkpoints.object_store import ObjectStore  # loads fsspec, which local folders do not need

    return ObjectStore(scheme_of(url))


class LocalPlace:
    """Folders of this machine, or of a file server that is mounted on it."""

    def write(self, path: str, save: Save, parts: Parts = NO_PARTS) -> int:
        """Write a file that a power loss cannot leave half written; see `Place`."""
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
            _sync_folder(final.parent)
        except BaseException:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        return size + sum(part.bytes for part in parts.values())

    def write_part(self, path: str, save: Save) -> Content:
        """Write a part, and add up its checksum; see `Place`."""
        written: list[Content] = []
        self.write(path, lambda file: written.append(hashed(save, file)))
        return written[0]

    def open(self, path: str, *, fresh: bool = False) -> BinaryIO:  # noqa: ARG002 - there are no copies
        """Open a file; see `Place`."""
        return Path(path).open("rb")

    def open_part(self, path: str, content: Content, *, fresh: bool = False) -> BinaryIO:  # noqa: ARG002 - as above
        """Open a part and compare its checksum; see `Place`."""
        file = Path(path).open("rb")  # noqa: SIM115 - the caller closes it
        if os.fstat(file.fileno()).st_size != content.bytes or sha256_of(file) != content.sha256:
            file.close()
            raise DamagedObjectError(f"{path} has other bytes than were written")
        file.seek(0)
        return file

    def delete(self, path: str) -> None:
        """Delete a file, and then the parts beside it; see `Place`."""
        delete_checkpoint(path)

    def withdraw(self, path: str) -> None:
        """Delete the main file alone; see `Place`."""
        Path(path).unlink(missing_ok=True)

    def size(self, path: str) -> int:
        """Add up the sizes of a file and of the parts beside it; see `Place`."""
        return checkpoint_bytes(path)

    def write_note(self, path: str, text: str) -> None:
        """Write a small file; see `Place`."""
        self.write(path, lambda file: _write_text(file, text))

    def read_note(self, path: str) -> str:
        """Read a small file; see `Place`."""
        return Path(path).read_text(encoding="utf-8")

    def delete_note(self, path: str) -> None:
        """Delete a small file; see `Place`."""
        Path(path).unlink(missing_ok=True)

    def try_out(self, folder: str, size: int) -> None:
        """Write a file and remove it; see `Place`."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        draft = Path(folder) / f".room.{os.getpid()}.tmp"
        try:
            with draft.open("wb") as file:
                file.write(bytes(size))
                file.flush()
                os.fsync(file.fileno())
        finally:
            draft.unlink(missing_ok=True)


def _write_text(file: BinaryIO, text: str) -> None:
    file.write(text.encode())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
