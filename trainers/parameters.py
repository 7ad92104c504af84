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
        kind: "whole" and "number" have bounds, "choice" has choices only.
        at_least: Smallest value, itself allowed.
        above: Bound that is itself not allowed.
        below: Bound that is itself not allowed.
        choices: Values of a "choice"; words, or null, that a number may be replaced by.
    """

    description: str
    default: ParameterValue
    kind: Literal["whole", "number", "choice"]
    at_least: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[ParameterValue, ...] = ()

    def allowed(self) -> str:
        """What is allowed, in words."""
        words = listed(c if isinstance(c, str) else shown(c) for c in self.choices)
        if self.kind == "choice":
            return words
        bounds = ((self.at_least, "of at least"), (self.above, "above"), (self.below, "below"))
        limits = " and ".join(f"{word} {bound:g}" for bound, word in bounds if bound is not None)
        number = f"a {'whole number' if self.kind == 'whole' else 'finite number'} {limits}".strip()
        return f"{words} or {number}" if words else number

    def problem(self, value: object) -> str | None:
        """Why the trainer cannot take this value, on one line; None if it can."""
        if self.kind == "choice":
            return self._choice_problem(value)
        if any(same(choice, value) for choice in self.choices):
            return None
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
        return found(value, self.allowed(), nearest(value, [c for c in self.choices if isinstance(c, str)]))


def _switch(description: str) -> TrainerParameter:
    return TrainerParameter(description=description, default=False, kind="choice", choices=(False, True))


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
            description="samples between two measurements, in whole steps; auto is one pass over the data",
            default="auto",
            kind="whole",
            at_least=1,
            choices=("auto",),
        ),
        "reference_batch": TrainerParameter(
            description="samples per step for which the learning rate is meant", default=64, kind="whole", at_least=1
        ),
        "lr_scaling": TrainerParameter(
            description="how the learning rate follows the effective batch size",
            default="auto",
            kind="choice",
            choices=("auto", "linear", "sqrt", "none", "adascale"),
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
            choices=("cosine", "constant", "step", "one_cycle"),
        ),
        "decay_every_epochs": TrainerParameter(
            description="epochs between two drops of the step schedule; auto is a third of all epochs",
            default="auto",
            kind="number",
            above=0,
            choices=("auto",),
        ),
        "decay_factor": TrainerParameter(
            description="what a drop of the step schedule multiplies the learning rate with",
            default=0.1,
            kind="number",
            above=0,
            below=1,
        ),
        "precision": TrainerParameter(
            description="number format of the forward and backward pass",
            default="auto",
            kind="choice",
            choices=("auto", "fp32", "bf16", "fp16"),
        ),
        "accumulate": TrainerParameter(
            description="backward passes per optimizer step", default=1, kind="whole", at_least=1
        ),
        "clip_norm": TrainerParameter(
            description="largest norm of the whole gradient; null does not clip",
            default=None,
            kind="number",
            above=0,
            choices=(None,),
        ),
        "compress": TrainerParameter(
            description="compression of gradients on the wire",
            default="none",
            kind="choice",
            choices=("none", "fp16", "bf16", "powersgd"),
        ),
        "powersgd_rank": TrainerParameter(
            description="rank of the matrices that powersgd sends", default=2, kind="whole", at_least=1
        ),
        "shard": TrainerParameter(
            description="what ranks share out instead of each holding all of it",
            default="none",
            kind="choice",
            choices=("none", "optimizer", "full"),
        ),
        "bucket_mb": TrainerParameter(
            description="megabytes of gradients that travel together; auto leaves it to torch",
            default="auto",
            kind="number",
            above=0,
            choices=("auto",),
        ),
        "find_unused_parameters": _switch("whether parameters may have no gradient in a step"),
        "sync_batch_norm": _switch("whether BatchNorm normalises over the batches of all ranks"),
        "activation_checkpointing": _switch("whether blocks are computed twice to save memory"),
        "compile": _switch("whether the model is compiled for training"),
        "ema": TrainerParameter(
            description="decay of averaged weights, which are then the model; null does not average",
            default=None,
            kind="number",
            above=0,
            below=1,
            choices=(None,),
        ),
        "label_smoothing": TrainerParameter(
            description="part of a training target that is spread over all classes",
            default=0.0,
            kind="number",
            at_least=0,
            below=1,
        ),
        "early_stop_patience": TrainerParameter(
            description="epochs without a better val_loss after which a trial is complete; null trains all epochs",
            default=None,
            kind="whole",
            at_least=1,
            choices=(None,),
        ),
        "data_workers": TrainerParameter(
            description="processes that read a Dataset; auto is none on a CPU, cpus_per_rank - 1 on a GPU",
            default="auto",
            kind="whole",
            at_least=0,
            choices=("auto",),
        ),
    }
)
"""By name; every key of the spec's `training` section but `epochs` is among them."""


def related() -> tuple[tuple[str, ...], ...]:
    """Return the names of those parameters that are judged together by `clashes`, two or one at a time."""
    pairs = ((one, other) for one, _, other, _, _ in _CLASHES)
    return tuple(dict.fromkeys([*pairs, *((name,) for name, _, _ in _NOT_ON_CPU)]))


def clashes(values: Mapping[str, object], device: str | None = None) -> str | None:
    """Why these values of trainer parameters do not go together, with the way out, on one line; None if they do.

    Args:
        values: Resolved ones by name. A parameter that is missing is not judged, so fill in the defaults of those that
            the space does not vary.
        device: "cpu" or "cuda"; None where it is not known yet judges nothing that depends on it.
    """
    for one, its_values, other, allowed, reason in _CLASHES:
        if one not in values or other not in values or values[one] not in its_values:
            continue
        if not any(same(value, values[other]) for value in allowed):
            way_out = f"take {other} {listed(_plain(value) for value in allowed)}, or another {one}"
            found_both = f"found {one} {_plain(values[one])} with {other} {_plain(values[other])}"
            return f"{found_both}, but {reason}; {way_out}"
    if device == "cpu":
        for name, value, reason in _NOT_ON_CPU:
            if name in values and same(values[name], value):
                return f"found {name} {_plain(value)} on a CPU, but {reason}"
    return None


def _plain(value: object) -> str:
    return value if isinstance(value, str) else shown(value)


_CLASHES: tuple[tuple[str, tuple[object, ...], str, tuple[object, ...], str], ...] = (
    ("shard", ("full",), "compress", ("none",), "sharded gradients are never sent whole, so there is no hook"),
    ("shard", ("full",), "find_unused_parameters", (False,), "sharding needs no search for unused parameters"),
    ("shard", ("full",), "bucket_mb", ("auto",), "sharded gradients travel block by block, not in buckets"),
    ("shard", ("full",), "compile", (False,), "the compiler does not see through the hooks of sharded blocks"),
    ("shard", ("full",), "precision", ("auto", "fp32", "bf16"), "its scaled gradients cannot be checked in shards"),
    ("shard", ("full",), "lr_scaling", ("auto", "linear", "sqrt", "none"), "no rank sees its own whole gradient"),
    ("lr_scaling", ("adascale",), "optimizer", ("sgd",), "its gain is derived for plain gradient steps"),
    (
        "lr_scaling",
        ("adascale",),
        "precision",
        ("auto", "fp32", "bf16"),
        "scaled gradients have no variance to measure",
    ),
    ("lr_scaling", ("adascale",), "compress", ("none", "fp16", "bf16"), "its variance is that of exact gradients"),
)
"""(one, its values, other, what the other may be beside them, why)."""

_NOT_ON_CPU: tuple[tuple[str, object, str], ...] = (
    ("precision", "fp16", "half precision is emulated there, ten times as slow as fp32; take fp32 or bf16"),
    ("compress", "bf16", "its hook needs NCCL and so a GPU; take compress fp16 or none, or device cuda"),
    ("sync_batch_norm", True, "torch has it for GPUs only; take sync_batch_norm false, or device cuda"),
)
