"""The shares that the main file of a checkpoint names, wherever they are."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from trainers.checkpoint_cache import Content, DamagedObjectError
from trainers.checkpoint_files import share_path
from trainers.checkpoint_store import place_of
from trainers.checkpoint_urls import is_url
from trainers.errors import CheckpointError, StorageError
from trainers.stored_tensors import ShareFacts, ShareFile, check_share


def check_shares(path: str | Path, content: Mapping[str, Any]) -> None:
    """Read the shares of a checkpoint, each wholly, and from an object store itself rather than a copy on this machine.

    Args:
        path: Its main file.
        content: What its main file says.

    Raises:
        CheckpointError: One of them is not what was written.
    """
    if "shares" in content:
        for number, facts in enumerate(_facts(content, path)):
            with closing(_share(path, number, content, facts, fresh=True)) as share:
                check_share(share, facts)


def shares_of(content: Mapping[str, Any], path: str | Path) -> list[tuple[ShareFile, ShareFacts]]:
    """Return the shares, and what the main file says of them."""
    return [(_share(path, rank, content, one), one) for rank, one in enumerate(_facts(content, path))]


def _facts(content: Mapping[str, Any], path: str | Path) -> list[ShareFacts]:
    """Return what the main file says of the shares."""
    try:
        facts = [
            ShareFacts(bytes=size, crc32=crc, index_at=at, sha256=sha256) for size, crc, at, sha256 in content["shares"]
        ]
        if not all([*map(type, row)] == [int, int, int, str] for row in content["shares"]):
            raise TypeError("of another kind")
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: shares of another form than is written") from error
    return facts


def _share(
    path: str | Path, rank: int, content: Mapping[str, Any], facts: ShareFacts, *, fresh: bool = False
) -> ShareFile:
    """Return the share of a rank, of an object store by way of a copy on this machine."""
    share = share_path(path, rank, len(content["shares"]))
    if not is_url(path):
        return ShareFile(share)
    try:
        copy = place_of(share).open_part(share, Content(bytes=facts.bytes, sha256=facts.sha256), fresh=fresh)
    except FileNotFoundError as error:
        raise CheckpointError(f"{share} is missing: all files of a checkpoint belong together") from error
    except DamagedObjectError as error:
        raise CheckpointError(f"{share} is damaged: {error}") from error
    except OSError as error:
        raise StorageError(f"cannot read {share}: {error}") from error
    return ShareFile(share, copy)
