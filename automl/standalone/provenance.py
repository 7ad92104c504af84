"""Decides by a program file's digest whether it may be loaded, because `torch.export.load` can run its code.

Exports, and packages of a trusted registry, add the SHA-256 of their programs to a file of the user. Other programs are
loaded only if the caller trusts them, or if this module is in the model's folder, whose code runs already.
"""

import hashlib
import io
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from .errors import UntrustedProgramError

_OWN_NAME = "automl.standalone"


def trusted_program(path: str | Path, *, trust: bool) -> io.BytesIO:
    """Return a program file's bytes. Raises UntrustedProgramError for an unknown origin, unless `trust` is true."""
    content = content_of(Path(path))  # read once, since the file may change between check and loading
    if trust or _lies_beside(Path(path)) or hashlib.sha256(content).hexdigest() in _known():
        return io.BytesIO(content)
    raise UntrustedProgramError(
        f"{path} was not exported by you on this machine, and loading it runs code that the file names. If you trust "
        "its author, use --trust (AUTOML_SERVE_TRUST=1 for a server). An .onnx file needs no trust"
    )


def content_of(path: Path, most_bytes: int | None = None) -> bytes:
    """Return a regular file's content. Raises OSError for other files, such as an endless device."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{path.name} is not a regular file")
    if most_bytes is not None and found.st_size > most_bytes:
        raise OSError(f"{path.name} has more than {most_bytes:,} bytes")
    return path.read_bytes()


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remember(digests: Iterable[str]) -> None:
    """Record that this user may load these programs. Ignores a home folder that is not writable."""
    new = set(digests) - _known()
    if not new:
        return
    with suppress(OSError):
        _file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(_file(), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write("".join(f"{one}\n" for one in new))


def _known() -> frozenset[str]:
    try:
        return frozenset(_file().read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return frozenset()


def _file() -> Path:
    """Return the user's file of digests (XDG Base Directory Specification)."""
    home = os.environ.get("XDG_DATA_HOME") or Path("~/.local/share").expanduser()
    return Path(home) / "automl" / "exported_programs"


def _lies_beside(path: Path) -> bool:
    """Return whether this module is a copy in the program's own package."""
    here = Path(__file__).resolve().parent
    return not (__package__ or "").startswith(_OWN_NAME) and path.resolve().parent == here.parent
