"""Checkpoints that all ranks write: first each rank its share, then rank 0 the main file.

All ranks must see the same folder. An old main file is deleted first, so that it never names shares of another write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import torch
from torch import Tensor, nn

from trainers.checkpoints import checkpoint as checkpoints
from trainers.checkpoints.checkpoint import write_whole_file
from trainers.checkpoints.checkpoint_cache import Content
from trainers.checkpoints.checkpoint_stores import place_of
from trainers.checkpoints.locations import is_url, name_of, share_path
from trainers.checkpoints.stored_tensors import (
    Piece,
    ShareFacts,
    StoredTensor,
    check_share,
    copy_rows,
    pieces_in,
    whole,
    without_pieces,
    write_share,
)
from trainers.failures import CheckpointError, StorageError
from trainers.model.sharding import ShardedOptimizer
from trainers.ranks.process_group import Group, gathered

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

    from trainers.model.optimizers import Optimizer

T = TypeVar("T")


Gather = Callable[[Any], list[Any]]  # collective: takes this rank's value, and returns the values of all ranks


def write_shared(content: Mapping[str, Any], path: str, group: Group, gather: Gather | None = None) -> int:
    """Write a sharded checkpoint, and return the size of all files in bytes. A collective.

    `Piece`s go into this rank's share; rank 0 writes all other content. `gather` defaults to the process group. All
    ranks raise a StorageError or CheckpointError of any rank.
    """
    own, place = share_path(path, group.rank, group.world_size), place_of(path)
    try:
        facts = together(lambda: _write_own(content, path, own), group, gather)
        sizes = together(lambda: _write_main(content, path, facts) if group.rank == 0 else 0, group, gather)
    except CheckpointError:
        with suppress(OSError):
            place.delete_note(own) if group.rank > 0 else place.delete(path)
        raise
    return sizes[0]


def open_together(path: str, group: Group) -> dict[str, Any]:
    """Return a checkpoint's content after the ranks have verified its shares. All raise any rank's error."""
    opened: list[dict[str, Any]] = []

    def look() -> None:
        content, shares = checkpoints.open_with_shares(path)
        opened.append(content)
        for share, facts in shares[group.rank :: group.world_size]:
            check_share(share, facts)  # reads the open copy, because a small cache may have evicted the file

    together(look, group)
    return opened[0]


def together(work: Callable[[], T], group: Group, gather: Gather | None = None) -> list[T]:
    """Run `work` on each rank, and return all results. A collective. All raise a CheckpointError of any rank."""
    own: T | CheckpointError
    try:
        own = work()
    except CheckpointError as error:
        own = error
    answers: list[Any] = [own]
    if group.world_size > 1:
        answers = gathered(own, group) if gather is None else gather(own)
    problems = sorted(
        (one for one in answers if isinstance(one, CheckpointError)), key=lambda one: not isinstance(one, StorageError)
    )
    if problems:
        raise problems[0]
    return answers


def _write_own(content: Mapping[str, Any], path: str, own: str) -> ShareFacts:
    place = place_of(path)
    try:
        place.withdraw(path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {type(error).__name__}: {error}") from error

    def write(file: BinaryIO) -> ShareFacts:
        return write_share(pieces_in(content), file)

    if is_url(own):
        facts, sent = write_whole_file(own, write, lambda save: place.write_part(own, save))
        return replace(facts, sha256=sent.sha256)
    return write_whole_file(own, write, lambda save: place.write(own, save))[0]  # the CRC is enough in a folder


def _write_main(content: Mapping[str, Any], path: str, facts: list[ShareFacts]) -> int:
    if not is_url(path):
        _check_seen(path, facts)
    shares = [[one.bytes, one.crc32, one.sha256] for one in facts]
    main = without_pieces(content) | {"format": checkpoints.FORMAT_WITH_SHARES, "shares": shares}
    names = (name_of(share_path(path, rank, len(facts))) for rank in range(len(facts)))
    parts = {name: Content(bytes=one.bytes, sha256=one.sha256) for name, one in zip(names, facts, strict=True)}
    return checkpoints.write_atomically(main, path, parts)


def _check_seen(path: str, facts: list[ShareFacts]) -> None:
    for rank, one in enumerate(facts):
        share = Path(share_path(path, rank, len(facts)))
        try:
            seen = share.stat().st_size
        except OSError:
            seen = -1
        if seen != one.bytes:
            raise CheckpointError(
                f"cannot write {path}: rank 0 does not see {share.name} of rank {rank}. Use a folder of checkpoints "
                "that all ranks share"
            )


def own_rows(tensor: Tensor) -> tuple[Tensor, int]:
    """Return this rank's rows of a tensor (all if unsharded), not copied, and the first row's number."""
    if not hasattr(tensor, "to_local"):
        return tensor.detach(), 0
    sharded = cast("DTensor", tensor)
    rows, mesh = sharded.shape[0], sharded.device_mesh
    most = -(-rows // mesh.size())  # FSDP2 divides rows as torch.chunk does
    return sharded.to_local().detach(), min(mesh.get_local_rank() * most, rows)


def given(tensor: Tensor, rows: Tensor | None = None) -> Tensor | Piece:
    """Return this rank's part of a tensor for a checkpoint. `rows` replace the tensor's own rows."""
    own, first = own_rows(tensor)
    own = own if rows is None else rows
    return Piece(rows=own, first=first, shape=tuple(tensor.shape)) if hasattr(tensor, "to_local") else own


def given_weights(module: nn.Module) -> dict[str, Tensor | Piece]:
    """Return this rank's part of a model's state dict for a checkpoint."""
    weights: dict[str, Any] = module.state_dict()
    for name, value in weights.items():
        weights[name] = given(value)
    return weights


def given_optimizer(optimizer: Optimizer) -> dict[str, Any]:
    """Return this rank's part of an optimizer's state, in the form of an unsharded state."""
    state = optimizer.state_dict()
    give = _given_whole if isinstance(optimizer, ShardedOptimizer) else given
    return {
        **state,
        "state": {
            number: {name: give(value) if isinstance(value, Tensor) else value for name, value in values.items()}
            for number, values in state["state"].items()
        },
    }


def take_weights(module: nn.Module, weights: Mapping[str, Tensor | StoredTensor]) -> None:
    """Copy this rank's rows of a checkpoint's weights into a sharded model."""
    own = module.state_dict()
    if own.keys() != weights.keys():
        different = sorted(own.keys() ^ weights.keys())
        raise ValueError(f"tensors that only the model or only the checkpoint has: {', '.join(different[:5])}")
    for name, value in own.items():
        take(weights[name], value)


def take(source: Tensor | StoredTensor, target: Tensor, rows: Tensor | None = None) -> None:
    """Copy this rank's rows of a checkpoint's tensor into `target`, or into `rows` if given."""
    if source.shape != target.shape:
        raise ValueError(
            f"a tensor has shape {list(source.shape)} in the checkpoint, but {list(target.shape)} in the model"
        )
    own, first = own_rows(target)
    copy_rows(source, own if rows is None else rows, first)


def take_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Copy this rank's part of a checkpoint's state into an optimizer, which keeps its option `fused`."""
    groups, own_groups = state["param_groups"], optimizer.param_groups
    counts, own_counts = ([len(one["params"]) for one in each] for each in (groups, own_groups))
    if counts != own_counts:
        raise ValueError(f"parameter groups have sizes {counts} in the checkpoint, but {own_counts} in the optimizer")
    parameters = [one for group in own_groups for one in group["params"]]
    numbers = optimizer.own if isinstance(optimizer, ShardedOptimizer) else range(len(parameters))
    own = {
        number: {name: _taken(value, parameters[number]) for name, value in state["state"][number].items()}
        for number in numbers
        if number in state["state"]
    }
    kept = [
        group | ({"fused": own_group["fused"]} if "fused" in own_group else {})
        for group, own_group in zip(groups, own_groups, strict=True)
    ]
    optimizer.load_state_dict({"state": own, "param_groups": kept})


def _given_whole(tensor: Tensor) -> Piece:
    return Piece(rows=tensor, first=0, shape=tuple(tensor.shape))


def _taken(value: Any, parameter: Tensor) -> Any:
    if not isinstance(value, Tensor | StoredTensor):
        return value
    if value.shape != parameter.shape:
        return whole(value).clone()
    target = torch.empty_like(parameter, dtype=value.dtype)
    take(value, target)
    return target
