"""Options of the trainer: meaning and allowed values. Does not import torch, to check specs quickly."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal, get_type_hints

from search_spaces.messages import found, listed, nearest, shown
from search_spaces.parameters import LARGEST_INT, same
from trainers.protocol import ParameterValue

_KEY = "parameter"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerParameter:
    """Meaning, default and allowed values of a trainer option."""

    description: str
    default: ParameterValue
    kind: Literal["whole", "number", "choice"]  # "whole" and "number" have bounds, "choice" has choices only
    at_least: float | None = None
    above: float | None = None  # exclusive lower bound
    below: float | None = None  # exclusive upper bound
    choices: tuple[ParameterValue, ...] = ()  # values of a "choice"; for a number, other allowed values
    only_in_space: bool = False  # a parameter of the space, but not a key of the spec's `training` section

    def allowed(self) -> str:
        """Return the allowed values, in words."""
        words = listed(c if isinstance(c, str) else shown(c) for c in self.choices)
        if self.kind == "choice":
            return words
        bounds = ((self.at_least, "of at least"), (self.above, "above"), (self.below, "below"))
        limits = " and ".join(f"{word} {bound:g}" for bound, word in bounds if bound is not None)
        number = f"a {'whole number' if self.kind == 'whole' else 'finite number'} {limits}".strip()
        return f"{words} or {number}" if words else number

    def problem(self, value: object) -> str | None:
        """Return the reason why a value is not allowed, or None."""
        if any(same(choice, value) for choice in self.choices):
            return None
        if self.kind == "choice":
            return found(value, self.allowed(), nearest(value, [c for c in self.choices if isinstance(c, str)]))
        types, largest = ((int,), LARGEST_INT) if self.kind == "whole" else ((int, float), sys.float_info.max)
        if isinstance(value, bool) or not isinstance(value, types) or not -largest <= value <= largest:
            return found(value, self.allowed())
        inside = (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )
        return None if inside else found(value, self.allowed())


def _option(kind: Literal["whole", "number", "choice"], default: ParameterValue, description: str, **more: Any) -> Any:
    parameter = TrainerParameter(description=description, default=default, kind=kind, **more)
    return field(default=default, metadata={_KEY: parameter})


def _choice(default: str, description: str, choices: tuple[str, ...], **more: bool) -> Any:
    return _option("choice", default, description, choices=choices, **more)


def _switch(description: str) -> Any:
    return _option("choice", False, description, choices=(False, True))


def _auto_switch(description: str) -> Any:
    return _option("choice", "auto", description, choices=("auto", False, True))


def _whole(default: ParameterValue, description: str, **more: Any) -> Any:
    return _option("whole", default, description, choices=_words(default), **more)


def _number(default: ParameterValue, description: str, **more: Any) -> Any:
    return _option("number", default, description, choices=_words(default), **more)


def _words(default: ParameterValue) -> tuple[ParameterValue, ...]:
    return () if isinstance(default, int | float) else (default,)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerOptions:
    """All trainer options with their defaults, from which every other table of options is derived."""

    learning_rate: float = _number(
        0.1, "learning rate at reference_batch samples per optimizer step", above=0, only_in_space=True
    )
    batch_per_rank: int = _whole(64, "samples per rank and step", at_least=1, only_in_space=True)
    world_size: int = _whole(1, "number of ranks", at_least=1, only_in_space=True)
    optimizer: str = _choice("sgd", "update rule", ("sgd", "adam", "adamw"), only_in_space=True)
    momentum: float = _number(0.9, "momentum of sgd", at_least=0, below=1, only_in_space=True)
    weight_decay: float = _number(0.0, "weight decay", at_least=0, only_in_space=True)
    beta1: float = _number(0.9, "decay of the first moment in adam and adamw", at_least=0, below=1, only_in_space=True)
    beta2: float = _number(0.999, "decay of second moments in adam and adamw", at_least=0, below=1, only_in_space=True)
    samples_per_epoch: Literal["auto"] | int = _whole(
        "auto", "samples between two measurements, in whole steps; auto is one pass over the data", at_least=1
    )
    reference_batch: int = _whole(64, "samples per step for which the learning rate is meant", at_least=1)
    lr_scaling: str = _choice(
        "auto", "how the learning rate follows the effective batch size", ("auto", "linear", "sqrt", "none", "adascale")
    )
    warmup_epochs: float = _number(1.0, "epochs in which the learning rate rises to its full value", at_least=0)
    warmup_steps: int | None = _whole(
        None, "optimizer steps of the warm-up, in place of warmup_epochs; null uses warmup_epochs", at_least=0
    )
    scale_weight_decay: bool = _switch("whether adamw's weight decay follows the effective batch size")
    scale_ema: bool = _switch("whether the decay of averaged weights follows the effective batch size")
    schedule: str = _choice(
        "cosine", "course of the learning rate after warm-up", ("cosine", "constant", "step", "one_cycle")
    )
    decay_every_epochs: Literal["auto"] | float = _number(
        "auto", "epochs between two drops of the step schedule; auto is a third of all epochs", above=0
    )
    decay_factor: float = _number(0.1, "factor of the learning rate at drops of the step schedule", above=0, below=1)
    precision: str = _choice("auto", "number format of the forward and backward pass", ("auto", "fp32", "bf16", "fp16"))
    evaluation_precision: str = _choice(
        "fp32", "number format of evaluations; training uses the format of the forward pass", ("fp32", "training")
    )
    loss_scale: float = _number(65536.0, "factor of the loss in the first steps of fp16", above=0)
    loss_scale_growth_steps: int = _whole(
        2000, "steps without an overflow after which fp16 doubles the factor of the loss", at_least=1
    )
    tf32: Literal["auto"] | bool = _auto_switch(
        "whether GPUs compute fp32 products in training with 10 bits of mantissa; auto is true"
    )
    channels_last: Literal["auto"] | bool = _auto_switch(
        "whether images lie in memory with their channels last; auto is true on a GPU"
    )
    cudnn_benchmark: Literal["auto"] | bool = _auto_switch(
        "whether cuDNN benchmarks its algorithms for each new shape; auto is true"
    )
    fused: Literal["auto"] | bool = _auto_switch(
        "whether one kernel updates all parameters; auto is true where torch has one"
    )
    accumulate: int = _whole(1, "backward passes per optimizer step", at_least=1)
    clip_norm: float | None = _number(None, "largest norm of the whole gradient; null does not clip", above=0)
    compress: str = _choice("none", "compression of the gradients in exchanges", ("none", "fp16", "bf16", "powersgd"))
    powersgd_rank: int = _whole(2, "rank of the matrices that powersgd sends", at_least=1)
    shard: str = _choice("none", "state that ranks divide among them in place of copies", ("none", "optimizer", "full"))
    shard_offload: bool = _switch("whether fully sharded weights and their optimizer are kept in host memory")
    shard_precision: str = _choice(
        "fp32", "number format in which full sharding gathers weights; training is the forward pass's",
        ("fp32", "training"),
    )  # fmt: skip
    init_by_module: bool = _switch("whether the model is built without memory, and filled with values block by block")
    bucket_mb: Literal["auto"] | float = _number(
        "auto", "megabytes of gradients in one exchange; auto is torch's default", above=0
    )
    find_unused_parameters: bool = _switch("whether parameters may have no gradient in a step")
    single_sample_batches: str = _choice(
        "merge", "treatment of batches of one sample in models with BatchNorm", ("merge", "drop")
    )
    sync_batch_norm: bool = _switch("whether BatchNorm normalises over the batches of all ranks")
    activation_checkpointing: bool = _switch("whether blocks are computed twice to save memory")
    compile: bool = _switch("whether the model is compiled for training")
    ema: float | None = _number(
        None, "decay of averaged weights, which become the model; null does not average", above=0, below=1
    )
    label_smoothing: float = _number(0.0, "part of a target that is spread over all classes", at_least=0, below=1)
    early_stop_patience: int | None = _whole(
        None, "epochs without a better val_loss after which a trial is complete; null trains all epochs", at_least=1
    )
    checkpoint_async: Literal["auto"] | bool = _auto_switch(
        "whether a thread writes a copy of the state while training goes on; auto is on a GPU without shard_offload"
    )
    data_workers: Literal["auto"] | int = _whole(
        "auto",
        "processes that read a Dataset; auto is 0 on a CPU and, on a GPU, its CPUs minus one, at most 8",
        at_least=0,
    )


TRAINER_PARAMETERS: Mapping[str, TrainerParameter] = MappingProxyType(
    {option.name: option.metadata[_KEY] for option in fields(TrainerOptions)}
)


RATE_OPTIONS = ("learning_rate", "lr_scaling", "batch_per_rank", "accumulate", "reference_batch")
"""Options that determine the scaled learning rate, besides the optimizer's family."""


def training_keys() -> Mapping[str, tuple[Any, ParameterValue]]:
    """Return type and default of each key of the spec's `training` section except `epochs`."""
    types = get_type_hints(TrainerOptions)
    return {name: (types[name], one.default) for name, one in TRAINER_PARAMETERS.items() if not one.only_in_space}


def related() -> tuple[tuple[str, ...], ...]:
    """Return the options that `clashes` checks, in pairs or alone."""
    pairs = ((one, other) for one, _, other, _, _ in _CLASHES)
    return tuple(dict.fromkeys([*pairs, *((name,) for name, _, _ in _NOT_ON_CPU)]))


def clashes(values: Mapping[str, object], device: str | None = None) -> str | None:
    """Return a line about incompatible values with a cure, or None. `device` None skips checks of the device."""
    for one, its_values, other, allowed, reason in _CLASHES:
        if one not in values or other not in values or values[one] not in its_values:
            continue
        if not any(same(value, values[other]) for value in allowed):
            way_out = f"Set {other} to {listed(_plain(value) for value in allowed)}, or choose another {one}"
            found_both = f"{one} is {_plain(values[one])} and {other} is {_plain(values[other])}"
            return f"{found_both}, but {reason}. {way_out}"
    if device == "cpu":
        for name, value, reason in _NOT_ON_CPU:
            if name in values and same(values[name], value):
                return f"{name} is {_plain(value)} on a CPU, but {reason}"
    return None


def stream_problem(values: Mapping[str, object], *, has_own_schedule: bool) -> str | None:
    """Return the reason why these option values do not suit a stream of unknown length, or None."""
    if not same("auto", values["samples_per_epoch"]):
        return None
    needs, cure = "needs the number of steps, which is unknown for a stream", "Set samples_per_epoch: N"
    if has_own_schedule:
        return f"samples_per_epoch is auto and the task has its own schedule, which {needs}. {cure}"
    if values["schedule"] != "constant":
        found_both = f"samples_per_epoch is auto and schedule is {values['schedule']}"
        return f"{found_both}, which {needs}. {cure}, or schedule: constant with warmup_epochs: 0"
    if values["warmup_epochs"] and values["warmup_steps"] is None:
        found_both = f"samples_per_epoch is auto and warmup_epochs is {_plain(values['warmup_epochs'])}"
        return f"{found_both}, which {needs}. {cure}, warmup_epochs: 0, or warmup_steps: N"
    return None


def _plain(value: object) -> str:
    return value if isinstance(value, str) else shown(value)


_CLASHES: tuple[tuple[str, tuple[object, ...], str, tuple[object, ...], str], ...] = (
    ("shard", ("full",), "compress", ("none",), "sharded gradients are never sent whole, so no hook can compress them"),
    ("shard", ("full",), "find_unused_parameters", (False,), "sharding needs no search for unused parameters"),
    ("shard", ("full",), "bucket_mb", ("auto",), "sharded gradients travel block by block, not in buckets"),
    ("shard", ("full",), "compile", (False,), "the compiler does not see through the hooks of sharded blocks"),
    ("shard", ("full",), "precision", ("auto", "fp32", "bf16"), "its gradients cannot be checked for overflow"),
    ("shard", ("full",), "lr_scaling", ("auto", "linear", "sqrt", "none"), "no rank has its own whole gradient"),
    ("shard_precision", ("training",), "evaluation_precision", ("training",), "evaluations gather the same weights"),
    ("lr_scaling", ("adascale",), "optimizer", ("sgd",), "its gain is derived for plain gradient steps"),
    (
        "lr_scaling",
        ("adascale",),
        "precision",
        ("auto", "fp32", "bf16"),
        "the variance of scaled gradients cannot be measured",
    ),
    ("lr_scaling", ("adascale",), "compress", ("none", "fp16", "bf16"), "its variance is derived for exact gradients"),
)
"""(option, its values, other option, allowed values of the other, reason)."""

_NOT_ON_CPU: tuple[tuple[str, object, str], ...] = (
    ("precision", "fp16", "CPUs emulate half precision, ten times slower than fp32. Choose fp32 or bf16"),
    ("compress", "bf16", "its hook needs NCCL and so a GPU. Choose compress fp16 or none, or device cuda"),
    ("sync_batch_norm", True, "torch has it for GPUs only. Choose sync_batch_norm false, or device cuda"),
)
