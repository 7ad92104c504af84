"""The model of a training function, as it was when a checkpoint was written, and what the function calls it with.

The function is run again up to the first pass through the model: what it has handed over gets the checkpoint's state,
and the pass itself is not made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from search_spaces.wording import listed
from trainers.checkpoint import fits_the_model
from trainers.ddp import Group
from trainers.errors import CheckpointError, classified
from trainers.kept_state import with_whole_tensors
from trainers.own_loop import OwnLoop
from trainers.programs import Call, example_call
from trainers.protocol import TaskError, TrialSpec
from trainers.seeds import derive, reseed
from trainers.step_counter import StepCounter
from trainers.training_function import TrainingFunction
from trainers.trial import Trial

_USUAL = "model"
_INSTEAD = "--out FILE.pt writes what it gave, with lines that take the model out of it"


class _Called(BaseException):
    """The function has called the model; no `except Exception` of the user's may catch it."""

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.call_args, self.call_kwargs = args, kwargs


def model_of_function(
    function: TrainingFunction, spec: TrialSpec, content: Mapping[str, Any], path: str, name: str | None = None
) -> Call:
    """Return the model that a training function has handed over, with a checkpoint's weights, and a call of it.

    Args:
        function: The function.
        spec: The trial, with one rank.
        content: The checkpoint.
        path: Where it lies, for messages.
        name: What the model was called in `trial.epochs`; None takes `model`, or the only one there is.

    Raises:
        TaskError: The function has handed over no such model, or does not call it in its loop.
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
            "the training function ended without calling the model that it gave to trial.epochs; the export needs a "
            f"call of it as the example; {_INSTEAD}"
        )


def _stop_at_call(_model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    raise _Called(args, kwargs)


def _chosen(models: Mapping[str, nn.Module], name: str | None) -> str:
    if name is None and (_USUAL in models or len(models) == 1):
        return _USUAL if _USUAL in models else next(iter(models))
    if name in models:
        return str(name)
    if not models:
        raise TaskError(f"the training function gave trial.epochs no torch.nn.Module to make a program of; {_INSTEAD}")
    given = f"found {name!r}" if name is not None else "found no name"
    raise TaskError(f"--model: {given}, allowed: a model that the function gave to trial.epochs: {listed(models)}")
