"""The files of a checkpoint: the main file, by whose path it is known, and the ranks' shares beside it. No torch here.

epoch-0003.attempt-1.pt                   the main file, written last: the checkpoint is there once it is
epoch-0003.attempt-1.rank-0-of-4.bin      the share of rank 0, where weights or optimizer state are shared out
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from pathlib import Path

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
    """Return the size of all files of a checkpoint.

    Raises:
        OSError: A file is not there, or cannot be looked at.
    """
    main = Path(main)
    return main.stat().st_size + sum(share.stat().st_size for share in shares_of(main))


def delete_checkpoint(main: str | Path) -> None:
    """Delete all files of a checkpoint, the main file first: what is left without it is no checkpoint.

    Raises:
        OSError: A file cannot be deleted.
    """
    main = Path(main)
    main.unlink(missing_ok=True)
    for share in list(shares_of(main)):
        share.unlink(missing_ok=True)
