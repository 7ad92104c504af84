"""The optimizers, by name, and the rates of groups of parameters as multiples of the scheduled one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from torch import nn, optim

from trainers.ddp import Group
from trainers.own_optimizer import RATE_FACTOR
from trainers.scaling import LearningRate, scale_moments, scale_weight_decay
from trainers.settings import Settings
from trainers.shard import ShardedOptimizer

_EPS = 1e-8

Optimizer: TypeAlias = optim.Optimizer | ShardedOptimizer


def build_optimizer(
    parameters: Iterable[nn.Parameter],
    settings: Settings,
    rate: LearningRate,
    group: Group,
    factors: Mapping[nn.Parameter, float] | None = None,
) -> Optimizer:
    """Return the optimizer at its first learning rate, with its state shared out if `shard` says so.

    Args:
        parameters: Parameters of the model; those that are frozen are left out.
        settings: The trial's options.
        rate: Learning rate of every step.
        group: The ranks.
        factors: Learning rates of parameters as multiples of that one, 1 for those that it lacks; None is the same
            rate for all, in one group.
    """
    groups = _groups([parameter for parameter in parameters if parameter.requires_grad], factors)
    if group.world_size == 1 or settings.shard == "none":
        return _plain(groups, settings, rate)
    if settings.shard == "full":
        # torch 2.13 shards no fused SGD.
        return _plain(groups, settings, rate, can_fuse=settings.optimizer != "sgd")
    return ShardedOptimizer(groups, lambda own: _plain(own, settings, rate), group.rank)


def _groups(trainable: list[nn.Parameter], factors: Mapping[nn.Parameter, float] | None) -> list[dict[str, Any]]:
    """Return groups of parameters, the largest factor first; one without a factor where there are none."""
    if factors is None:
        return [{"params": trainable}]
    by_factor: dict[float, list[nn.Parameter]] = {}
    for parameter in trainable:
        by_factor.setdefault(factors.get(parameter, 1.0), []).append(parameter)
    return [{"params": by_factor[factor], RATE_FACTOR: factor} for factor in sorted(by_factor, reverse=True)]


def _plain(
    groups: list[dict[str, Any]], settings: Settings, rate: LearningRate, *, can_fuse: bool = True
) -> optim.Optimizer:
    """Return one of torch's optimizers.

    Fused kernels are the quickest for small models too: on a CPU 66 us a step against 108 (SGD), 101 us against 228
    (AdamW), for a multilayer perceptron of 26,000 parameters.
    """
    can_fuse = can_fuse and settings.fused in {"auto", True}
    fused = can_fuse and all(one.is_floating_point() for group in groups for one in group["params"])
    first, decay = rate.at(0), settings.weight_decay
    if settings.scale_weight_decay and settings.optimizer == "adamw":
        decay = scale_weight_decay(decay, rate)
    if settings.optimizer == "sgd":
        return optim.SGD(groups, lr=first, momentum=settings.momentum, weight_decay=decay, fused=fused)
    betas, eps = (settings.beta1, settings.beta2), _EPS
    if rate.rule == "sqrt":
        betas, eps = scale_moments(betas, eps, rate.ratio)
    kind = optim.AdamW if settings.optimizer == "adamw" else optim.Adam
    return kind(groups, lr=first, betas=betas, eps=eps, weight_decay=decay, fused=fused)
