"""Disks that are full: small file systems of their own, where this process may mount one."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def tiny_disk(folder: Path, size: str = "8m") -> Iterator[Path]:
    """Mount an empty disk of that size on a new folder; the test is left out where that is not allowed."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Fill a disk up to its last byte; returns the file that does."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:  # noqa: PTH123 - unbuffered
        for size in (2**16, 512, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return filler


def make_read_only(disk: Path) -> None:
    """Remount a disk read-only."""
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
