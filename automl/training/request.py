"""Arguments of `automl train` and `automl compare`, and their checks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from automl.given_parameters import read_params, unknown_parameter
from automl.launching.spec_reading import absolute_task_options, check_folder
from search_spaces.messages import install_command
from studies.gangs.available_slots import AvailableSlots, find_slots
from studies.gangs.pool_protocol import PoolError
from studies.money.budget import Price, price_of
from studies.spec.spec_errors import SpecError
from trainers.commands.command import Command
from trainers.contract.task import parameters_of
from trainers.contract.task_loading import Trainable, load_trainable
from trainers.contract.training_function import TrainingFunction
from trainers.protocol import Diagnostics, TrialSpec
from trainers.ranks.group_options import GROUP_SECONDS, BackendChoice, GroupOptions
from trainers.trainer_options import TRAINER_PARAMETERS, clashes


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A task with its parameters, and this machine's slots (devices). `options` are the constructor's arguments."""

    task: str
    options: Mapping[str, Any]
    params: Mapping[str, Any]
    places: AvailableSlots
    price: Price
    trainable: Trainable

    @property
    def is_function(self) -> bool:
        """Return whether the task is a training function."""
        return isinstance(self.trainable, TrainingFunction)

    def value(self, name: str) -> Any:
        """Return a trainer parameter, as given or by default."""
        return self.params.get(name, TRAINER_PARAMETERS[name].default)

    def spec(self, params: Mapping[str, Any], *, epochs: int, world_size: int, seed: int, **other: Any) -> TrialSpec:
        """Return the settings of a trial."""
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
        """Return a warning for more ranks than slots (devices), else ""."""
        slots = self.places.slots
        if world_size <= slots:
            return ""
        return f"{world_size} ranks on {slots} slots: they share devices, so this will be slower"


def training_spec(
    name: str,
    task: str,
    task_options: Mapping[str, Any],
    params: Mapping[str, Any],
    *,
    epochs: int,
    usd: float | None,
    seed: int = 0,
    device: str = "auto",
    backend: BackendChoice = "auto",
    group_seconds: float = GROUP_SECONDS,
    checkpoint_every: float = 60.0,
    metric: str = "val_loss",
) -> dict[str, Any]:
    """Return the spec of a study that trains these parameters once, as a mapping."""
    slots = params.get("world_size", 1)
    return {
        "study": name,
        "task": task,
        "task_options": dict(task_options),
        "objectives": [{"metric": metric}],
        "space": dict(params),
        "training": {"epochs": epochs},
        "search": {"sampler": "random", "pruner": "none", "seed": seed},
        "baselines": [],
        "budget": {"usd": usd, "hours": None, "trials": 1, "finish": 0.0},
        "resources": {"slots": slots if type(slots) is int and slots > 0 else 1, "device": device, "backend": backend},
        "checkpoints": {"every_seconds": checkpoint_every},
        "faults": {"group_seconds": group_seconds},
    }


def check_diagnostics(wanted: Diagnostics, task: str, *, has_own_loop: bool, is_command: bool = False) -> None:
    """Raise SpecError, which names the option, if a training cannot write the requested diagnostic files."""
    if has_own_loop and wanted.rank_logs is not None:
        problem = f"{task!r} has a training loop of its own, whose batches have no known loss. Leave the option out"
        raise SpecError("--rank-logs", (), problem)
    for option, path in (("--profile", wanted.trace), ("--tensorboard", wanted.tensorboard)):
        if is_command and path is not None:
            raise SpecError(option, (), f"{task!r} runs a command, in a process of its own. Leave the option out")
    if wanted.tensorboard is not None and find_spec("tensorboard") is None:
        cure = f"the package tensorboard is not installed. Install it: {install_command('tensorboard')}"
        raise SpecError("--tensorboard", (), f"found {wanted.tensorboard!r}, but {cure}")
    for option, folder in (("--rank-logs", wanted.rank_logs), ("--tensorboard", wanted.tensorboard)):
        if folder is not None:
            check_folder(option, (), folder, Path(folder).absolute())


def check_backend(group: GroupOptions, places: AvailableSlots, ranks: int) -> None:
    """Raise SpecError if the ranks cannot use the requested backend here."""
    if problem := group.problem(places.device, ranks=ranks, devices=places.slots):
        raise SpecError("--backend", (), problem)


def asked_for(task: str, given: Sequence[str], *, task_options: Sequence[str], device: str) -> Asked:
    """Read the command line. Raises SpecError for a wrong value, TaskLoadError for a missing task."""
    params = read_params(given)
    options = absolute_task_options(task, read_params(task_options, "--option"), Path.cwd(), source=task)
    found = load_trainable(task, options, _python_path(task))
    if isinstance(found, Command):
        raise SpecError(task, (), "only a study can run a shell command. Name a task or a training function")
    check_params(params, None if isinstance(found, TrainingFunction) else parameters_of(found))
    try:
        places = find_slots(device, 1, None)
    except PoolError as error:
        raise SpecError("--device", (), str(error)) from None
    defaults = {name: parameter.default for name, parameter in TRAINER_PARAMETERS.items()}
    problem = None if isinstance(found, TrainingFunction) else clashes(defaults | params, places.device)
    if problem:
        raise SpecError("--param", (), problem)
    price = price_of(places.device, places.device_name, 1)
    return Asked(task=task, options=options, params=params, places=places, price=price, trainable=found)


def _python_path(task: str) -> tuple[str, ...]:
    return (str(Path.cwd()),) if ":" in task else ()


def check_params(params: Mapping[str, Any], own: Sequence[str] | None) -> None:
    """Raise SpecError for an unknown parameter, or a trainer parameter out of range.

    A training function (`own` is None) accepts any parameters; only its `world_size` is checked.
    """
    for name, value in params.items():
        if own is None and name != "world_size":
            continue
        if name in TRAINER_PARAMETERS:
            problem = TRAINER_PARAMETERS[name].problem(value)
            if problem:
                raise SpecError("--param", (name,), problem)
        elif name not in (own or ()):
            known = [*(own or ()), *TRAINER_PARAMETERS]
            raise SpecError("--param", (name,), unknown_parameter(name, known, group=""))
