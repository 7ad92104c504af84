"""What `automl train` and `automl compare` are asked to train, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from automl.given_parameters import read_params, unknown_parameter
from automl.launching.paths import absolute_task_options
from studies.gangs.available_slots import AvailableSlots, find_slots
from studies.gangs.protocol import PoolError
from studies.money.prices import Price, price_of
from studies.spec.errors import SpecError
from trainers.commands.command import Command
from trainers.group_options import GroupOptions
from trainers.protocol import TrialSpec
from trainers.task import parameters_of
from trainers.task_loading import Trainable, load_trainable
from trainers.trainer_options import TRAINER_PARAMETERS, clashes
from trainers.training_function import TrainingFunction


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A task with its parameters, and the slots of this machine.

    Attributes:
        task: Name of a built-in task, or `module:Class`.
        options: Arguments of the task's constructor.
        params: Parameters of the trainer and the task, by name.
        places: Slots of this machine.
        price: Price of one slot.
        trainable: What the name of the task stands for.
    """

    task: str
    options: Mapping[str, Any]
    params: Mapping[str, Any]
    places: AvailableSlots
    price: Price
    trainable: Trainable

    @property
    def is_function(self) -> bool:
        """Whether the task is a training function."""
        return isinstance(self.trainable, TrainingFunction)

    def value(self, name: str) -> Any:
        """Return a parameter of the trainer: the given value, else the default."""
        return self.params.get(name, TRAINER_PARAMETERS[name].default)

    def spec(self, params: Mapping[str, Any], *, epochs: int, world_size: int, seed: int, **other: Any) -> TrialSpec:
        """Return the spec of a trial that trains this task."""
        return TrialSpec(
            study="train",
            trial=0,
            task=self.task,
            task_options=self.options,
            params=params,
            training={"epochs": epochs},
            world_size=world_size,
            seed=seed,
            device=self.places.device,
            milestones=(epochs,),
            python_path=_python_path(self.task),
            **other,
        )

    def crowded(self, world_size: int) -> str:
        """Return a warning if there are more ranks than slots; empty if there are not."""
        slots = self.places.slots
        if world_size <= slots:
            return ""
        return f"{world_size} ranks on {slots} slots: they share devices, so this will be slower"


def check_backend(group: GroupOptions, places: AvailableSlots, ranks: int) -> None:
    """Check that ranks on the slots of this machine can exchange messages as was asked for.

    Args:
        group: What the user says about the group.
        places: Slots of this machine.
        ranks: Number of ranks on this machine.

    Raises:
        SpecError: The backend cannot be had.
    """
    if problem := group.problem(places.device, ranks=ranks, devices=places.slots):
        raise SpecError("--backend", (), problem)


def asked_for(task: str, given: Sequence[str], *, task_options: Sequence[str], device: str) -> Asked:
    """Read and check the arguments of the command line.

    Args:
        task: Name of a built-in task, `module:Class`, or `module:function`.
        given: Parameters of the trainer or the task, `NAME=VALUE` each.
        task_options: Arguments of the task's constructor, `NAME=VALUE` each.
        device: "auto", "cpu" or "cuda".

    Raises:
        SpecError: A parameter or an option is unknown or out of range, or they do not go together.
        TaskLoadError: There is no such task.
    """
    params = read_params(given)
    options = absolute_task_options(task, read_params(task_options, "--option"), Path.cwd(), source=task)
    found = load_trainable(task, options, _python_path(task))
    if isinstance(found, Command):
        raise SpecError(task, (), "found a command, which trains in studies only; allowed: a task or a function")
    _check_names(params, [*params] if isinstance(found, TrainingFunction) else parameters_of(found))
    try:
        places = find_slots(device, 1, None)
    except PoolError as error:
        raise SpecError("--device", (), str(error)) from None
    defaults = {name: parameter.default for name, parameter in TRAINER_PARAMETERS.items()}
    problem = clashes(defaults | params, places.device)
    if problem:
        raise SpecError("--param", (), problem)
    price = price_of(places.device, places.device_name, 1)
    return Asked(task=task, options=options, params=params, places=places, price=price, trainable=found)


def _python_path(task: str) -> tuple[str, ...]:
    """The folder in which a user's own task is looked for: that in which the command was typed."""
    return (str(Path.cwd()),) if ":" in task else ()


def _check_names(params: Mapping[str, Any], own: Sequence[str]) -> None:
    for name, value in params.items():
        if name in TRAINER_PARAMETERS:
            problem = TRAINER_PARAMETERS[name].problem(value)
            if problem:
                raise SpecError("--param", (name,), problem)
        elif name not in own:
            known = [*own, *TRAINER_PARAMETERS]
            raise SpecError("--param", (name,), unknown_parameter(name, known, group=""))
