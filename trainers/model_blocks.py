"""The blocks of a model: what activation checkpointing computes twice and full sharding gathers one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

_FEWEST_REPEATED = 2


def repeated_blocks(module: nn.Module) -> list[nn.Module]:
    """Return the repeated blocks of a model, outermost first and none within another.

    Those are the elements of a ModuleList or Sequential of which at least two have the same class, with layers of
    their own. Blocks without parameters, or whose parameters others use too, are left out.
    """
    return [block for block in _repeated(module) if _owns_parameters(block, module)]


def units_of(module: nn.Module) -> list[list[nn.Module]]:
    """Return the modules of each repeated block, and last all others: full sharding gathers each of these together.

    Each module comes before those within it.
    """
    blocks = [list(block.modules()) for block in repeated_blocks(module)]
    inside = {id(part) for block in blocks for part in block}
    return [*blocks, [part for part in module.modules() if id(part) not in inside]]


def checkpoint_activations(module: nn.Module, *, compiled: bool = False) -> None:
    """Have every repeated block, or else every child, keep its input only and compute its inside again going backward.

    The forward methods are replaced on the objects, so names in the state dict stay as they are. Dropout draws the
    same numbers again, and BatchNorm counts a batch once.

    Args:
        module: The model.
        compiled: Whether the model is going to be compiled; blocks with BatchNorm are left out of that.
    """
    for block in repeated_blocks(module) or [child for child in module.children() if any(child.children())]:
        block.forward = _checkpointed(block, block.forward, compiled=compiled)


def _checkpointed(block: nn.Module, forward: Callable[..., Any], *, compiled: bool) -> Callable[..., Any]:
    norms = [part for part in block.modules() if isinstance(part, _BatchNorm)]
    if not norms:
        return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)
    contexts = partial(_contexts, norms)

    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    # A context does not compile, and without it a batch would count twice wherever the compiler gives up.
    return cast("Any", torch.compiler).disable(checkpointed) if compiled else checkpointed


def _contexts(norms: list[_BatchNorm]) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _statistics_kept(norms)


@contextmanager
def _statistics_kept(norms: list[_BatchNorm]) -> Iterator[None]:
    """Let BatchNorm normalise as in the first pass without taking the same batch into its running statistics."""
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    counts = [None if count is None else count.clone() for _, count in before]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, (momentum, count), kept in zip(norms, before, counts, strict=True):
            norm.momentum = momentum
            if count is not None and kept is not None:
                count.copy_(kept)


def _repeated(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, (nn.ModuleList, nn.Sequential)) and _repeats(child):
            yield from child
        else:
            yield from _repeated(child)


def _repeats(container: nn.Module) -> bool:
    classes = [type(child) for child in container.children() if any(True for _ in child.children())]
    return any(classes.count(one) >= _FEWEST_REPEATED for one in set(classes))


def _owns_parameters(block: nn.Module, module: nn.Module) -> bool:
    inside = {id(part) for part in block.modules()}
    own = {id(parameter) for parameter in block.parameters()}
    if not own:
        return False
    others = (part for part in module.modules() if id(part) not in inside)
    return not any(id(parameter) in own for part in others for parameter in part.parameters(recurse=False))
