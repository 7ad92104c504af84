"""Builds optimizers. Learning rates of parameter groups are constant multiples of the scheduled rate.

A task may have `optimizer(model, learning_rate, params)`, called with the scaled rate; `schedule(step, steps, params)`,
a factor of the scaled rate; and, for the trainer's optimizers, `rate_factors(model, params)`, factors by parameter
name. Before each step, the trainer sets the rate of each parameter group.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from torch import nn, optim

from trainers.contract.task import Task
from trainers.model.learning_rate import LearningRate, scale_moments, scale_weight_decay
from trainers.model.sharding import ShardedOptimizer
from trainers.protocol import Params, TaskError
from trainers.ranks.process_group import Group
from trainers.trial_settings import Settings

RATE_FACTOR = "rate_factor"  # key of a group's learning rate as a multiple of the scheduled rate


def has_optimizer(task: Task) -> bool:
    """Return whether a task builds its own optimizer."""
    return _is_ours(getattr(task, "optimizer", None))


def _is_ours(method: object, *, arguments: int = 3) -> bool:
    """Return whether the trainer can call a task's method, whose name the task may use for something else."""
    if not callable(method):
        return False
    try:
        inspect.signature(method).bind(*[None] * arguments)
    except (TypeError, ValueError):
        return False
    return True


def own_optimizer(
    task: Task, module: nn.Module, learning_rate: float, params: Params, settings: Settings
) -> optim.Optimizer:
    """Return the task's optimizer. Raises TaskError if the task returns something else."""
    place = f"{type(task).__name__}.optimizer"
    if settings.shard == "optimizer":
        raise TaskError(
            f"{place}: the state of an optimizer of your own cannot be sharded by `shard: optimizer`. "
            "Set shard to none or full"
        )
    made: object = task.optimizer(module, learning_rate, params)  # type: ignore[attr-defined]
    if not isinstance(made, optim.Optimizer):
        raise TaskError(f"{place}: found a {type(made).__name__}, allowed: a torch.optim.Optimizer")
    for group in made.param_groups:
        group[RATE_FACTOR] = group["lr"] / learning_rate
    return made


def scheduled_rate(groups: Iterable[Mapping[str, Any]]) -> float:
    """Return the scheduled learning rate of the last step, from a group that is not frozen; 0 if all are frozen."""
    for group in groups:
        if factor := group.get(RATE_FACTOR, 1.0):  # 0 means that the task has frozen the group
            return float(group["lr"] / factor)
    return 0.0


def rate_factors(task: Task, module: nn.Module, params: Params) -> dict[nn.Parameter, float] | None:
    """Return a task's `rate_factors` by parameter. TaskError unless it maps parameter names to positive numbers."""
    method: Any = getattr(task, "rate_factors", None)
    found: object = method(module, params) if _is_ours(method, arguments=2) else None
    if found is None:
        return None
    place, named = f"{type(task).__name__}.rate_factors", dict(module.named_parameters())
    if not isinstance(found, Mapping):
        raise TaskError(f"{place}: found a {type(found).__name__}, allowed: a mapping of parameter names, or None")
    for name, factor in found.items():
        if name not in named:
            raise TaskError(f"{place}: found {name!r}, allowed: names of the model's parameters")
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < math.inf:
            raise TaskError(f"{place}: found {factor!r} for {name!r}, allowed: a number above 0")
    return {named[name]: float(factor) for name, factor in found.items()}


def own_schedule(task: Task, params: Params) -> Callable[[float, float], float] | None:
    """Return the task's schedule, a factor of the learning rate by step and planned steps, or None."""
    schedule: Any = getattr(task, "schedule", None)
    if not _is_ours(schedule):
        return None

    def factor(step: float, steps: float) -> float:
        found = schedule(step, steps, params)
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < math.inf:
            raise TaskError(
                f"{type(task).__name__}.schedule: found {found!r} at step {step:g} of {steps:g}, allowed: a number of "
                "at least 0"
            )
        return float(found)

    return factor


_EPS = 1e-8

Optimizer: TypeAlias = optim.Optimizer | ShardedOptimizer


def build_optimizer(
    parameters: Iterable[nn.Parameter],
    settings: Settings,
    rate: LearningRate,
    group: Group,
    factors: Mapping[nn.Parameter, float] | None = None,
) -> Optimizer:
    """Return the optimizer at its first learning rate, without frozen parameters. `shard` divides its state.

    `factors` are multiples of the learning rate, default 1. None makes one group of all parameters.
    """
    groups = _groups([parameter for parameter in parameters if parameter.requires_grad], factors)
    if group.world_size == 1 or settings.shard == "none":
        return _plain(groups, settings, rate)
    if settings.shard == "full":
        # torch 2.13 cannot shard fused SGD.
        return _plain(groups, settings, rate, can_fuse=settings.optimizer != "sgd")
    return ShardedOptimizer(groups, lambda own: _plain(own, settings, rate), group.rank)


def _groups(trainable: list[nn.Parameter], factors: Mapping[nn.Parameter, float] | None) -> list[dict[str, Any]]:
    if factors is None:
        return [{"params": trainable}]
    by_factor: dict[float, list[nn.Parameter]] = {}
    for parameter in trainable:
        by_factor.setdefault(factors.get(parameter, 1.0), []).append(parameter)
    return [{"params": by_factor[factor], RATE_FACTOR: factor} for factor in sorted(by_factor, reverse=True)]


def _plain(
    groups: list[dict[str, Any]], settings: Settings, rate: LearningRate, *, can_fuse: bool = True
) -> optim.Optimizer:
    """Return torch's optimizer, fused if possible: fused kernels are fastest even for small models."""
    build = OPTIMIZERS.get(settings.optimizer)
    if build is None:
        raise TaskError(f"optimizer: found {settings.optimizer!r}, allowed: {', '.join(OPTIMIZERS)}")
    can_fuse = can_fuse and settings.fused in {"auto", True}
    fused = can_fuse and all(one.is_floating_point() for group in groups for one in group["params"])
    return build(groups, settings, rate, fused)


def _sgd(groups: list[dict[str, Any]], settings: Settings, rate: LearningRate, fused: bool) -> optim.Optimizer:
    momentum, decay = settings.momentum, settings.weight_decay
    return optim.SGD(groups, lr=rate.at(0), momentum=momentum, weight_decay=decay, fused=fused)


def _adam(groups: list[dict[str, Any]], settings: Settings, rate: LearningRate, fused: bool) -> optim.Optimizer:
    betas, eps = _moments(settings, rate)
    decay = settings.weight_decay
    return optim.Adam(groups, lr=rate.at(0), betas=betas, eps=eps, weight_decay=decay, fused=fused)


def _adamw(groups: list[dict[str, Any]], settings: Settings, rate: LearningRate, fused: bool) -> optim.Optimizer:
    betas, eps = _moments(settings, rate)
    decay = scale_weight_decay(settings.weight_decay, rate) if settings.scale_weight_decay else settings.weight_decay
    return optim.AdamW(groups, lr=rate.at(0), betas=betas, eps=eps, weight_decay=decay, fused=fused)


def _moments(settings: Settings, rate: LearningRate) -> tuple[tuple[float, float], float]:
    betas = settings.beta1, settings.beta2
    return scale_moments(betas, _EPS, rate.ratio) if rate.rule == "sqrt" else (betas, _EPS)


OPTIMIZERS: Mapping[str, Callable[[list[dict[str, Any]], Settings, LearningRate, bool], optim.Optimizer]] = {
    "sgd": _sgd,
    "adam": _adam,
    "adamw": _adamw,
}
"""Builders by the value of the option `optimizer`."""
