"""Saves and restores the state that a training function passes to `trial.epochs(...)`.

Each rank saves and restores only its rows of a fully sharded model and its optimizer, for any number of ranks.
"""

import io
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler

from trainers.checkpoints import checkpoint as checkpoints
from trainers.checkpoints.checkpoint_writer import StateCopies
from trainers.checkpoints.shared_checkpoint import given, take_optimizer, take_weights
from trainers.checkpoints.stored_tensors import Piece, with_whole_tensors
from trainers.data.nested_tensors import map_tensors
from trainers.failures import CheckpointError
from trainers.protocol import TaskError

USUAL_NAME = "model"
_TRANSPARENT = (nn.Module, optim.Optimizer, LRScheduler, GradScaler)
"""Classes of known content. Objects of other classes may contain a model or an optimizer."""


def line_that_loads(name: str) -> str:
    """Return the line of Python that loads an exported file's `state` into a torch object."""
    return f'{name}.load_state_dict(state[{name!r}])  # first create {name} with the parameters exported["params"]'


class KeptState:
    """State that a training function saves: objects with `state_dict` and `load_state_dict`, or pairs of functions.

    An object may have `how_to_load(state)`, which returns Python code that makes a model of the expression `state`.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = {name: _unwrapped(name, one) for name, one in state.items()}
        self._is_checked = False

    def __bool__(self) -> bool:
        return bool(self._state)

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the saved torch modules."""
        return tuple(name for name, one in self._state.items() if isinstance(one, nn.Module))

    def how_to_load(self) -> str:
        """Return Python code that loads the model, or else the first object, from an exported file's `state`."""
        name = next((one for one in (USUAL_NAME, *self.models) if one in self._state), next(iter(self._state)))
        one, state = self._state[name], f"state[{name!r}]"
        if callable(getattr(one, "how_to_load", None)):
            return str(one.how_to_load(state))
        if isinstance(one, tuple):
            return f"kept = {state}  # the value that your save function returned"
        return line_that_loads(name)

    def missing(self, prepared: Iterable[nn.Module]) -> str:
        """Return the reason why a resumed trial would lose state, or an empty text."""
        if not self._state:
            return "the function passes no state to trial.epochs(...)"
        handed = list(self._state.values())
        if not all(isinstance(one, _TRANSPARENT) for one in handed):
            return ""
        weights = {id(one) for module in handed if isinstance(module, nn.Module) for one in module.parameters()}
        steered = {id(one) for steers in handed if isinstance(steers, optim.Optimizer) for one in _parameters(steers)}
        for model in prepared:
            trained = {id(one) for one in model.parameters() if one.requires_grad}
            if not trained <= weights:
                return f"the function does not pass the prepared {type(model).__name__} to trial.epochs(...)"
            if trained and trained.isdisjoint(steered):
                return f"the function passes no optimizer of the prepared {type(model).__name__} to trial.epochs(...)"
        return ""

    def content(self) -> dict[str, Any]:
        """Return this rank's state for a checkpoint. The first call raises TaskError if it cannot be saved."""
        states = {name: one[0]() if isinstance(one, tuple) else one.state_dict() for name, one in self._state.items()}
        content = {name: _given(state) for name, state in states.items()}
        if not self._is_checked:
            self._is_checked = True
            _check_readable(content)
        return content

    def restore(self, saved: object, path: str) -> None:
        """Restore the saved state."""
        if not isinstance(saved, dict) or saved.keys() != self._state.keys():
            names = sorted(saved) if isinstance(saved, dict) else "no state"
            raise CheckpointError(f"checkpoint {path} holds {names}, but trial.epochs was given {sorted(self._state)}")
        for name, one in self._state.items():
            if isinstance(one, tuple):  # the user's own function, whose errors are the user's
                one[1](_own_copy(saved[name]))
                continue
            with checkpoints.fits_the_model(path):
                _restore(one, saved[name])


def _restore(one: Any, saved: Any) -> None:
    if isinstance(one, nn.Module) and _has_rows(one.parameters()):
        take_weights(one, saved)
    elif isinstance(one, optim.Optimizer) and _has_rows(_parameters(one)):
        take_optimizer(one, saved)
    else:
        one.load_state_dict(_own_copy(saved))


def _own_copy(saved: Any) -> Any:
    """Return a copy with whole tensors, because an optimizer that keeps a file's tensor keeps the whole file mapped."""
    return StateCopies().of({"": with_whole_tensors(saved)})[""]


def _given(value: Any) -> Any:
    if type(value) is dict:
        return {name: _given(one) for name, one in value.items()}
    if isinstance(value, Mapping) and any(_is_shared_out(one) for one in value.values()):  # an OrderedDict of weights
        return {name: _given(one) for name, one in value.items()}
    return given(value) if _is_shared_out(value) else value


def _parameters(optimizer: optim.Optimizer) -> list[Tensor]:
    return list(chain.from_iterable(group["params"] for group in optimizer.param_groups))


def _has_rows(parameters: Iterable[Tensor]) -> bool:
    return any(map(_is_shared_out, parameters))


def _is_shared_out(value: object) -> bool:
    return isinstance(value, Tensor) and hasattr(value, "to_local")


def _check_readable(content: Mapping[str, Any]) -> None:
    file = io.BytesIO()
    try:
        torch.save(map_tensors(_without_values, _without_pieces(content)), file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise TaskError(f"trial.epochs: a checkpoint cannot hold the state: {reason}") from error


def _without_values(tensor: Tensor) -> Tensor:
    return torch.empty(0, dtype=tensor.dtype)


def _without_pieces(value: Any) -> Any:
    if isinstance(value, Piece):
        return None
    return {name: _without_pieces(one) for name, one in value.items()} if type(value) is dict else value


def _unwrapped(name: str, one: Any) -> Any:
    """Return the model inside a DDP wrapper, whose state fits any number of ranks, or the object itself."""
    if isinstance(one, DistributedDataParallel):
        return one.module
    is_pair = isinstance(one, tuple) and len(one) == 2 and all(map(callable, one))
    has_state = callable(getattr(one, "state_dict", None)) and callable(getattr(one, "load_state_dict", None))
    if is_pair or has_state or isinstance(one, nn.Module):
        return one
    raise TaskError(
        f"trial.epochs: found {name} of type {type(one).__name__}, allowed: an object with state_dict and "
        "load_state_dict, or a pair of functions (save, load)"
    )
