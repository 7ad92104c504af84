"""The parameters that the trainer itself takes, whatever the task: what each means and which values it can have.

No torch here: the spec is checked against this table before anything heavy is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from search_spaces.parameters import LARGEST_INT, same
from search_spaces.wording import found, listed, nearest, shown
from trainers.protocol import ParameterValue


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerParameter:
    """One parameter of the trainer.

    Attributes:
        description: What it does, in a few words.
        default: Its value when neither the space nor the `training` section gives one.
        kind: "whole" and "number" have bounds, "choice" has choices.
        at_least: Smallest value, itself allowed.
        above: Bound that is itself not allowed.
        below: Bound that is itself not allowed.
        choices: Values of a "choice".
        later: Values whose work is not built yet; None when every other value is such a one.
    """

    description: str
    default: ParameterValue
    kind: Literal["whole", "number", "choice"]
    at_least: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[ParameterValue, ...] = ()
    later: tuple[ParameterValue, ...] | None = ()

    def allowed(self) -> str:
        """What is allowed, in words."""
        if self.kind == "choice":
            return listed(c if isinstance(c, str) else shown(c) for c in self.choices)
        bounds = ((self.at_least, "of at least"), (self.above, "above"), (self.below, "below"))
        limits = " and ".join(f"{word} {bound:g}" for bound, word in bounds if bound is not None)
        return f"a {'whole number' if self.kind == 'whole' else 'finite number'} {limits}".strip()

    def problem(self, value: object) -> str | None:
        """Why the trainer cannot take this value, on one line; None if it can."""
        if self.kind == "choice":
            return self._choice_problem(value)
        types, largest = ((int,), LARGEST_INT) if self.kind == "whole" else ((int, float), sys.float_info.max)
        if isinstance(value, bool) or not isinstance(value, types) or not -largest <= value <= largest:
            return found(value, self.allowed())
        inside = (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )
        return None if inside else found(value, self.allowed())

    def _choice_problem(self, value: object) -> str | None:
        if any(same(choice, value) for choice in self.choices):
            return None
        if self.later is None or any(same(value, later) for later in self.later):
            return f"found {shown(value)}, which is not available yet, allowed: {self.allowed()}"
        return found(value, self.allowed(), nearest(value, [c for c in self.choices if isinstance(c, str)]))


TRAINER_PARAMETERS: Mapping[str, TrainerParameter] = MappingProxyType(
    {
        "learning_rate": TrainerParameter(
            description="learning rate at reference_batch samples a step", default=0.1, kind="number", above=0
        ),
        "batch_per_rank": TrainerParameter(
            description="samples per rank and step", default=64, kind="whole", at_least=1
        ),
        "world_size": TrainerParameter(description="number of ranks", default=1, kind="whole", at_least=1),
        "optimizer": TrainerParameter(
            description="rule of the updates", default="sgd", kind="choice", choices=("sgd", "adam", "adamw")
        ),
        "momentum": TrainerParameter(description="momentum of sgd", default=0.9, kind="number", at_least=0, below=1),
        "weight_decay": TrainerParameter(description="decay of the weights", default=0.0, kind="number", at_least=0),
        "beta1": TrainerParameter(
            description="decay of the first moment in adam and adamw", default=0.9, kind="number", at_least=0, below=1
        ),
        "beta2": TrainerParameter(
            description="decay of the second moment in adam and adamw",
            default=0.999,
            kind="number",
            at_least=0,
            below=1,
        ),
        "samples_per_epoch": TrainerParameter(
            description="samples between two measurements; auto is one pass over the data",
            default="auto",
            kind="choice",
            choices=("auto",),
            later=None,
        ),
        "reference_batch": TrainerParameter(
            description="samples per step for which the learning rate is meant", default=64, kind="whole", at_least=1
        ),
        "lr_scaling": TrainerParameter(
            description="how the learning rate follows the effective batch size",
            default="auto",
            kind="choice",
            choices=("auto", "linear", "sqrt", "none"),
            later=("adascale",),
        ),
        "warmup_epochs": TrainerParameter(
            description="epochs in which the learning rate rises to its full value",
            default=1.0,
            kind="number",
            at_least=0,
        ),
        "schedule": TrainerParameter(
            description="course of the learning rate after warm-up",
            default="cosine",
            kind="choice",
            choices=("cosine", "constant"),
            later=("step", "one_cycle"),
        ),
        "precision": TrainerParameter(
            description="number format of the forward and backward pass",
            default="auto",
            kind="choice",
            choices=("auto", "fp32"),
            later=None,
        ),
        "accumulate": TrainerParameter(
            description="backward passes per optimizer step", default=1, kind="choice", choices=(1,), later=None
        ),
        "clip_norm": TrainerParameter(
            description="largest norm of the gradient", default=None, kind="choice", choices=(None,), later=None
        ),
        "compress": TrainerParameter(
            description="compression of gradients on the wire",
            default="none",
            kind="choice",
            choices=("none",),
            later=None,
        ),
        "shard": TrainerParameter(
            description="sharding of weights and optimizer state over ranks",
            default="none",
            kind="choice",
            choices=("none",),
            later=None,
        ),
    }
)
"""By name; every key of the spec's `training` section but `epochs` is among them."""
