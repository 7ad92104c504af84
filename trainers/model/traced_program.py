"""Exports a model as a program of `torch.export`, which needs no Python code of the model.

A training function runs again with the checkpoint's state up to the first call of its model, to capture the arguments.
"""

import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from search_spaces.messages import listed, one_line
from trainers.checkpoints.checkpoint import fits_the_model
from trainers.checkpoints.stored_tensors import with_whole_tensors
from trainers.contract.training_function import TrainingFunction
from trainers.data.seeds import derive, reseed
from trainers.failures import CheckpointError, classified
from trainers.functions.own_loop import OwnLoop
from trainers.functions.trial import Trial
from trainers.loop.step_counter import StepCounter
from trainers.protocol import TaskError, TrialSpec
from trainers.ranks.process_group import Group

_USUAL = "model"
_INSTEAD = "Use --out FILE.pt, which writes its saved state and code that extracts the model"


class _Called(BaseException):
    """Stops the training function when it calls the model. A BaseException escapes `except Exception`."""

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.call_args, self.call_kwargs = args, kwargs


def model_of_function(
    function: TrainingFunction, spec: TrialSpec, content: Mapping[str, Any], path: str, name: str | None = None
) -> "Call":
    """Return a training function's model, with a checkpoint's weights and the arguments of a call.

    `name` is the model's name in `trial.epochs`; None selects `model`, or the only model.

    Raises:
        TaskError: The function saves no such model, or does not call it in its loop.
        CheckpointError: The weights do not fit.
    """
    found: list[nn.Module] = []
    hooks: list[RemovableHandle] = []

    def loop(state: Mapping[str, Any]) -> Iterator[int]:
        chosen = _chosen({key: one for key, one in state.items() if isinstance(one, nn.Module)}, name)
        model = state[chosen]
        saved = content.get("function") or {}
        if chosen not in saved:
            raise CheckpointError(f"checkpoint {path} holds {listed(saved) or 'no state'}, not {chosen!r}")
        with fits_the_model(path):
            model.load_state_dict(with_whole_tensors(saved[chosen]))
        found.append(model)
        hooks.append(model.register_forward_pre_hook(_stop_at_call, with_kwargs=True))
        epoch = int(content["position"]["epoch"])
        trial.begin_epoch(epoch)
        yield epoch

    with classified():
        own = OwnLoop(spec, "a training function")
        trial = Trial(spec, own.settings, Group(), learning_rate=own.learning_rate, counter=StepCounter())
        trial.loop = loop
        reseed(derive("weights", spec.seed))
        try:
            function(trial)
        except _Called as called:
            hooks[0].remove()
            return example_call(found[0], called.call_args, called.call_kwargs)
        raise TaskError(
            "the training function ended without calling the model that it gave to trial.epochs, but the export needs "
            f"such a call as an example. {_INSTEAD}"
        )


def _stop_at_call(_model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    raise _Called(args, kwargs)


def _chosen(models: Mapping[str, nn.Module], name: str | None) -> str:
    if name is None and (_USUAL in models or len(models) == 1):
        return _USUAL if _USUAL in models else next(iter(models))
    if name in models:
        return str(name)
    if not models:
        raise TaskError(f"the training function gave trial.epochs no torch.nn.Module to export. {_INSTEAD}")
    given = f"found {name!r}" if name is not None else "found no name"
    raise TaskError(f"--model: {given}, allowed: a model that the function gave to trial.epochs: {listed(models)}")


_ROWS = 2  # rows of the example, because torch treats a length of 1 as constant


@dataclass(frozen=True, kw_only=True)
class Call:
    """A model with arguments. `are_rows` marks the leaves of (args, kwargs) that are tensors with rows."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    are_rows: tuple[bool, ...]

    def outputs(self) -> Any:
        """Return the model's outputs in evaluation mode, without gradients."""
        self.model.eval()
        with torch.no_grad():
            return self.model(*self.args, **self.kwargs)


def example_call(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> Call:
    """Return a call of a model with a few rows of a batch. Raises TaskError if the batch has no tensor."""
    leaves, form = pytree.tree_flatten((args, dict(kwargs or {})))
    rows = next((len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()), 0)
    if not rows:
        raise TaskError("the model was never called with a batched tensor, so there is no example input for an export")
    are_rows = tuple(isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == rows for leaf in leaves)
    few = [_few(leaf) if is_row else leaf for leaf, is_row in zip(leaves, are_rows, strict=True)]
    some, named = pytree.tree_unflatten(few, form)
    return Call(model=model, args=some, kwargs=named, are_rows=are_rows)


def _few(tensor: Tensor) -> Tensor:
    repeated = tensor.repeat(_ROWS, *[1] * (tensor.dim() - 1)) if len(tensor) < _ROWS else tensor
    return repeated[:_ROWS].detach().clone()


def traced(call: Call, *, longest: int | None = None) -> ExportedProgram:
    """Return a model's program for any number of rows. TaskError if torch cannot export it, or its outputs differ.

    `longest` is the greatest length of the inputs' second dimension; None if the length is constant.
    """
    expected = call.outputs()
    dims: dict[int, Any] = {0: Dim("rows")}
    if longest is not None:
        dims[1] = Dim("length", max=longest)
    form = pytree.tree_structure((call.args, dict(call.kwargs)))
    shapes, named = pytree.tree_unflatten([dims if is_row else None for is_row in call.are_rows], form)
    try:
        with torch.no_grad(), quiet():
            program = torch.export.export(
                call.model, call.args, dict(call.kwargs), dynamic_shapes=(*shapes, *named.values())
            )
    except Exception as error:
        reason = one_line(str(error).partition("\n\n")[0])[:300] or type(error).__name__
        raise TaskError(
            f"torch.export cannot export the model: {reason}. Remove Python branches on tensor values from its "
            "forward, or use --format weights"
        ) from error
    _check_same(program, call, expected)
    return program


def _check_same(program: ExportedProgram, call: Call, expected: Any) -> None:
    with torch.no_grad():
        found = program.module()(*call.args, **call.kwargs)
    pairs = zip(pytree.tree_leaves(expected), pytree.tree_leaves(found), strict=True)
    for mine, its in pairs:
        if isinstance(mine, Tensor) and not torch.allclose(mine, its, rtol=1e-4, atol=1e-5, equal_nan=True):
            far = float((mine - its).abs().max())
            raise TaskError(
                f"the exported program's outputs differ from the model's by up to {far:g}. Its forward may draw random "
                "numbers. Remove them, or use --format weights"
            )


@contextmanager
def quiet() -> Iterator[None]:
    """Hide torch's messages about a failed export, which the raised error contains."""
    loggers = [logging.getLogger(name) for name in ("torch.export", "torch._export", "torch.onnx", "torch.fx")]
    levels = [one.level for one in loggers]
    try:
        for one in loggers:
            one.setLevel(logging.CRITICAL)
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for one, level in zip(loggers, levels, strict=True):
            one.setLevel(level)
