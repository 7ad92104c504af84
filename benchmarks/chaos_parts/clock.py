"""A clock that can be set for the processes of a scene, without setting that of the machine."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


class Clock:
    """Makes a library that moves the wall clock of each process that preloads it.

    Args:
        folder: Folder for the library, and for the file with the offset that it looks at.
    """

    def __init__(self, folder: Path) -> None:
        self._offset, library = folder / "offset", folder / "clock.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, SOURCE, "-lm"], check=True)
        self._offset.write_bytes(struct.pack("d", 0.0))
        self.environment: Mapping[str, str] = {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(self._offset)}

    def set(self, offset_seconds: float) -> None:
        """Move the clock to so many seconds beside that of the machine."""
        with self._offset.open("r+b") as file:  # the processes have mapped this very file
            file.write(struct.pack("d", offset_seconds))
