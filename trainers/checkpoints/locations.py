"""Paths and URLs of checkpoints. Imports only small modules.

The main file `epoch-0003.attempt-1.pt` is written last. Beside it are the ranks' shares of sharded weights and
optimizer state, such as `epoch-0003.attempt-1.rank-0-of-4.bin`.
"""

import glob
import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from search_spaces.messages import UserError, found, install_command, nearest
from trainers.checkpoints.checkpoint_cache import Content

_SHARE = re.compile(r"(.+)\.rank-\d+-of-\d+\.bin")


def share_path(main: str | Path, rank: int, world_size: int) -> str:
    """Return the path or URL of a rank's share of a checkpoint."""
    return f"{str(main).removesuffix('.pt')}.rank-{rank}-of-{world_size}.bin"


def main_path(share: Path) -> Path | None:
    """Return the main file of a rank's share; None if the path is not a share's."""
    named = _SHARE.fullmatch(share.name)
    return None if named is None else share.with_name(f"{named[1]}.pt")


def shares_of(main: Path) -> Iterator[Path]:
    """Yield all shares beside a main file, even shares that it does not name."""
    yield from main.parent.glob(f"{glob.escape(main.stem)}.rank-*-of-*.bin")


EXTRA = "object-stores"  # extra of the project with the libraries of all object stores
INSTALL = install_command(EXTRA)
ALLOWED_FOLDER = "a folder, or a URL that begins with s3://, gs://, az:// or file://"
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_FILE = "file"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheme:
    """Library and environment variables of one kind of object store."""

    library: str
    environment: tuple[str, ...]


SCHEMES: Mapping[str, Scheme] = {
    "s3": Scheme(library="s3fs", environment=("AWS_", "FSSPEC_S3")),
    "gs": Scheme(
        library="gcsfs", environment=("GOOGLE_", "GCSFS_", "STORAGE_EMULATOR_HOST", "FSSPEC_GS", "FSSPEC_GCS")
    ),
    "az": Scheme(library="adlfs", environment=("AZURE_", "FSSPEC_AZ", "FSSPEC_ABFS")),
}
"""Object stores by the scheme of their URLs."""


TRIAL_FOLDER = re.compile(r"trial-\d{5,}(?:-seed-\d+)?")
"""Pattern of a trial's folder names, in the search or in a confirming training with a seed."""
CONFIRMED_TRIAL_FOLDER = re.compile(r"trial-\d{5,}-seed-\d+")
_UID_CHARS = 8


class MissingLibraryError(UserError):
    """The library of an object store is not installed here."""


def is_url(folder: str | Path) -> bool:
    """Return whether a folder or file is in an object store."""
    return isinstance(folder, str) and "://" in folder


def scheme_of(url: str) -> str:
    """Return the scheme of a URL."""
    return url.partition("://")[0]


def problem_of_folder(folder: str) -> str:
    """Return the problem of a user's checkpoint folder, or an empty text."""
    url = _URL.fullmatch(folder)
    if url is None:
        return ""
    scheme, rest = url.groups()
    if scheme == _FILE:
        return "" if rest.startswith("/") else found(folder, "file:///FOLDER, with an absolute path")
    if scheme not in SCHEMES:
        suggestion = nearest(scheme, [*SCHEMES, _FILE])
        return found(folder, ALLOWED_FOLDER + (f"; did you mean {suggestion}://?" if suggestion else ""))
    return _problem_of_bucket(folder, scheme, rest)


def _problem_of_bucket(folder: str, scheme: str, rest: str) -> str:
    bucket, *parts = rest.rstrip("/").split("/")
    if not bucket:
        return found(folder, f"{scheme}://BUCKET/FOLDER")
    if "@" in bucket or ":" in bucket:
        return found(folder, f"{scheme}://BUCKET/FOLDER; credentials come from the environment of {scheme}'s library")
    if "" in parts or not {".", ".."}.isdisjoint(parts) or re.search(r"[?#*\[\]\s]", rest):
        return found(folder, f"{scheme}://BUCKET/FOLDER without empty parts, '.', '..', spaces and any of ?#*[]")
    return ""


def check_library(url: str) -> None:
    """Raise MissingLibraryError unless the library of a URL's object store is installed."""
    library = SCHEMES[scheme_of(url)].library
    if importlib.util.find_spec(library) is None:
        raise MissingLibraryError(f"{url!r} needs {library}, which is not installed. Install it: {INSTALL}")


def absolute_folder(folder: str | Path, here: Path) -> str:
    """Return a valid folder as a URL or an absolute path. `here` is the base of relative paths."""
    if not is_url(folder):
        return str((here / folder).absolute())
    text = str(folder)
    scheme, rest = text.split("://", 1)
    return str(Path(rest)) if scheme == _FILE else text.rstrip("/")


def joined(folder: str | Path, *names: str) -> str:
    """Return the path or URL of `names` below a folder."""
    if is_url(folder):
        return "/".join((str(folder).rstrip("/"), *names))
    return str(Path(folder).joinpath(*names))


def study_folder(folder: str | Path, here: Path, study: str, uid: str) -> str:
    """Return the study's folder `STUDY-UID8` below `folder`, which may be relative to `here`."""
    return joined(absolute_folder(folder, here), f"{study}-{uid[:_UID_CHARS]}")


def trial_folder(trial: int, seed: int | None = None) -> str:
    """Return the folder name for a trial's checkpoints or logs, or with a seed for its confirming training."""
    return f"trial-{trial:05d}" if seed is None else f"trial-{trial:05d}-seed-{seed}"


def name_of(path: str | Path) -> str:
    """Return the last part of a path or URL."""
    return str(path).rstrip("/").rpartition("/")[2]


def environment_of(folder: str) -> tuple[str, ...]:
    """Return prefixes of environment variables that give access to a folder; none for a local folder."""
    return SCHEMES[scheme_of(folder)].environment if is_url(folder) else ()


Save = Callable[[BinaryIO], object]
Parts = Mapping[str, Content]  # contents of a checkpoint's parts, by file name
NO_PARTS: Parts = {}
_tick: ContextVar[Callable[[], None]] = ContextVar("_tick", default=lambda: None)


class Place(Protocol):
    """Storage for checkpoints: folders or an object store. All paths are absolute, or URLs."""

    def write(self, path: str, save: Save, parts: Parts = NO_PARTS) -> int:
        """Write a checkpoint after its parts, and return the size of all files. After an OSError, none exists."""

    def write_part(self, path: str, save: Save) -> Content:
        """Write a part of a checkpoint, and return its size and checksum."""

    def open(self, path: str, *, fresh: bool = False) -> BinaryIO:
        """Open a checkpoint. FileNotFoundError if it is missing, DamagedObjectError if its content has changed."""

    def open_part(self, path: str, content: Content, *, fresh: bool = False) -> BinaryIO:
        """Open a part with the size and checksum `content`. Raises the errors of `open`."""

    def delete(self, path: str) -> None:
        """Delete a checkpoint, then its parts. Ignores missing files."""

    def withdraw(self, path: str) -> None:
        """Delete only the main file, before its parts are replaced. Any rank may call it."""

    def size(self, path: str) -> int:
        """Return the size of a checkpoint and its parts in bytes."""

    def write_note(self, path: str, text: str) -> None:
        """Write a short text, replacing an earlier text."""

    def read_note(self, path: str) -> str:
        """Return the short text at a path."""

    def delete_note(self, path: str) -> None:
        """Delete the short text at a path, if it exists."""

    def try_out(self, folder: str, size: int) -> None:
        """Test writing: write a file of `size` bytes to a folder, and remove it."""


@contextmanager
def counting(tick: Callable[[], None]) -> Iterator[None]:
    """Call `tick` for each chunk that is written to or read from a place within the block."""
    token = _tick.set(tick)
    try:
        yield
    finally:
        _tick.reset(token)


def tick() -> Callable[[], None]:
    """Return the function of `counting`, to be called after each chunk."""
    return _tick.get()
