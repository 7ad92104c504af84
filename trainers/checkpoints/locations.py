"""Where checkpoints may be, as text: in a folder of this machine, or at a URL of an object store.

Nothing heavy is loaded here: specs are checked, and paths joined, by processes that never read a checkpoint.

A checkpoint is known by the path of its main file; the ranks' shares lie beside it:

epoch-0003.attempt-1.pt                   the main file, written last: the checkpoint is there once it is
epoch-0003.attempt-1.rank-0-of-4.bin      the share of rank 0, where weights or optimizer state are shared out
"""

from __future__ import annotations

import glob
import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from search_spaces.user_errors import UserError
from search_spaces.wording import found, install_command, nearest

_SHARE = re.compile(r"(.+)\.rank-\d+-of-\d+\.bin")


def share_path(main: str | Path, rank: int, world_size: int) -> str:
    """Return the path or URL of the share of a rank."""
    return f"{str(main).removesuffix('.pt')}.rank-{rank}-of-{world_size}.bin"


def main_path(share: Path) -> Path | None:
    """Return the main file to which a file belongs by its name as the share of a rank, None if it is no share."""
    named = _SHARE.fullmatch(share.name)
    return None if named is None else share.with_name(f"{named[1]}.pt")


def shares_of(main: Path) -> Iterator[Path]:
    """Return all shares that lie beside a main file, whether it names them or not."""
    yield from main.parent.glob(f"{glob.escape(main.stem)}.rank-*-of-*.bin")


def checkpoint_bytes(main: str | Path) -> int:
    """Return the size of all files of a checkpoint."""
    main = Path(main)
    return main.stat().st_size + sum(share.stat().st_size for share in shares_of(main))


def delete_checkpoint(main: str | Path) -> None:
    """Delete all files of a checkpoint, the main file first: what is left without it is no checkpoint."""
    main = Path(main)
    main.unlink(missing_ok=True)
    for share in list(shares_of(main)):
        share.unlink(missing_ok=True)


EXTRA = "object-stores"
"""Extra of the project that brings the libraries of all object stores."""
INSTALL = install_command(EXTRA)
ALLOWED_FOLDER = "a folder, or a URL that begins with s3://, gs://, az:// or file://"
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_FILE = "file"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheme:
    """A kind of object store."""

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
"""Name of a trial's folder: of the search, or of the training that has confirmed it with a seed."""
CONFIRMED_TRIAL_FOLDER = re.compile(r"trial-\d{5,}-seed-\d+")
_UID_CHARS = 8


class MissingLibraryError(UserError):
    """The library of an object store is not installed here."""


def is_url(folder: str | Path) -> bool:
    """Return whether a folder or a file is in an object store; paths of this machine are not."""
    return isinstance(folder, str) and "://" in folder


def scheme_of(url: str) -> str:
    """Return the scheme of a URL."""
    return url.partition("://")[0]


def problem_of_folder(folder: str) -> str:
    """Say what is wrong with a folder of checkpoints as a person wrote it; empty if nothing is."""
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
    """Check that the library of a URL's object store is installed here."""
    library = SCHEMES[scheme_of(url)].library
    if importlib.util.find_spec(library) is None:
        raise MissingLibraryError(f"found {url!r}, which needs {library}; install it: {INSTALL}")


def absolute_folder(folder: str | Path, here: Path) -> str:
    """Return a folder of checkpoints in the form in which it is stored: an absolute path, or a URL.

    Args:
        folder: Folder as a person wrote it; nothing is wrong with it (`problem_of_folder`).
        here: Folder in which relative paths start.
    """
    if not is_url(folder):
        return str((here / folder).absolute())
    text = str(folder)
    scheme, rest = text.split("://", 1)
    return str(Path(rest)) if scheme == _FILE else text.rstrip("/")


def joined(folder: str | Path, *names: str) -> str:
    """Return the path or URL of what has these names below a folder."""
    if is_url(folder):
        return "/".join((str(folder).rstrip("/"), *names))
    return str(Path(folder).joinpath(*names))


def study_folder(folder: str | Path, here: Path, study: str, uid: str) -> str:
    """Return the folder of a study's checkpoints: `STUDY-UID8` in the spec's folder, so that no two studies share one.

    Args:
        here: Folder in which relative paths start.
    """
    return joined(absolute_folder(folder, here), f"{study}-{uid[:_UID_CHARS]}")


def trial_folder(trial: int, seed: int | None = None) -> str:
    """Return the name of a trial's folder of checkpoints or logs; with a seed, that of a training that confirms it."""
    return f"trial-{trial:05d}" if seed is None else f"trial-{trial:05d}-seed-{seed}"


def name_of(path: str | Path) -> str:
    """Return the last part of a path or URL."""
    return str(path).rstrip("/").rpartition("/")[2]


def environment_of(folder: str) -> tuple[str, ...]:
    """Return the beginnings of the names of the variables by which ranks get into a folder; none for a local one."""
    return SCHEMES[scheme_of(folder)].environment if is_url(folder) else ()
