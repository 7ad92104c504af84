"""Which of the trainer's options a training function follows: a parameter that it does not is refused, not ignored.

An option is followed by a helper of `automl.Trial`, or where the function reads the parameter of that name. Those of
the spec's section `training`, which have one value for all trials, are told when the study is launched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainers.protocol import TaskError, TrialSpec
from trainers.trainer_options import TRAINER_PARAMETERS

PREPARE, AUTOCAST, STEP = "trial.prepare(model)", "trial.autocast()", "trial.step(optimizer)"
BACKWARD, OPTIMIZER = "trial.backward(loss)", "trial.optimizer(parameters)"
_HELPERS: Mapping[str, str] = {
    "shard": PREPARE,
    "shard_offload": PREPARE,
    "shard_precision": PREPARE,
    "sync_batch_norm": PREPARE,
    "precision": AUTOCAST,
    "loss_scale": BACKWARD,
    "loss_scale_growth_steps": BACKWARD,
    "clip_norm": STEP,
    "accumulate": STEP,
    "momentum": OPTIMIZER,
    "weight_decay": OPTIMIZER,
    "beta1": OPTIMIZER,
    "beta2": OPTIMIZER,
    "fused": OPTIMIZER,
    "scale_weight_decay": OPTIMIZER,
}
"""The helper that follows each option."""
_ALWAYS_FOLLOWED = frozenset(
    {
        "learning_rate", "batch_per_rank", "world_size", "optimizer", "reference_batch", "lr_scaling", "tf32",
        "cudnn_benchmark", "find_unused_parameters", "checkpoint_async",
    }
)  # fmt: skip
"""Options that act before the function is called, or that helpers pass on whatever they are."""


class ReadParams(dict[str, Any]):
    """A trial's parameters by name, which note what was read of them.

    Attributes:
        read: Names that were read.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a parameter, or `default` where there is none."""
        self.read.add(name)
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        """Remove a parameter and return it."""
        self.read.add(name)
        return super().pop(name, *default)

    def setdefault(self, name: str, default: Any = None) -> Any:
        """Return a parameter, or set it to `default` where there is none."""
        self.read.add(name)
        return super().setdefault(name, default)

    def popitem(self) -> tuple[str, Any]:
        """Remove a parameter and return it with its name."""
        self._read_all()
        return super().popitem()

    def __iter__(self) -> Iterator[str]:
        self._read_all()
        return super().__iter__()

    def keys(self) -> Any:
        """Return the names."""
        self._read_all()
        return super().keys()

    def values(self) -> Any:
        """Return the values."""
        self._read_all()
        return super().values()

    def items(self) -> Any:
        """Return names and values."""
        self._read_all()
        return super().items()

    def copy(self) -> dict[str, Any]:
        """Return a plain copy."""
        self._read_all()
        return super().copy()

    def __or__(self, other: Any) -> Any:
        self._read_all()
        return super().__or__(other)

    def __ror__(self, other: Any) -> Any:
        self._read_all()
        return super().__ror__(other)

    def _read_all(self) -> None:
        self.read.update(super().keys())


def check_followed(spec: TrialSpec, precision: str, followed: set[str]) -> None:
    """Refuse parameters that a training function leaves unheeded, since a search over them would compare noise.

    Args:
        spec: The trial.
        precision: Number format that the trial's `precision` means on its device.
        followed: Names of the helpers that were called, and of the parameters that were read.

    Raises:
        TaskError: A parameter that is an option of the trainer has another value than the option's default, and
            nothing follows it.
    """
    for name, value in spec.params.items():
        helper = _HELPERS.get(name)
        if _is_followed_anyway(name, value) or name in followed or helper in followed:
            continue
        if name == "precision" and precision == "fp32":
            continue
        call = f"call {helper}, " if helper is not None else ""
        allowed = f"{call}read it from trial.params, or take it out of the spec"
        raise TaskError(f"{name}: found {value!r}, which the training function does not follow; {allowed}")


def unheeded(training: Mapping[str, Any]) -> dict[str, str | None]:
    """Return which options of the section `training` no training function follows by itself.

    Args:
        training: The section, by name.

    Returns:
        The helper that follows each, None where none does.
    """
    return {name: _HELPERS.get(name) for name, value in training.items() if not _is_followed_anyway(name, value)}


def _is_followed_anyway(name: str, value: Any) -> bool:
    """Whether a parameter or option needs nobody: one of the user's own, at its default, or passed on in any case."""
    option = TRAINER_PARAMETERS.get(name)
    return option is None or value == option.default or name in _ALWAYS_FOLLOWED
