"""The learning rate of a step: scaled with the effective batch, warmed up, scheduled.

The searched learning rate is for `reference_batch` samples. For k = effective_batch / reference_batch it becomes

    linear  k x base         Goyal et al. 2017, arXiv 1706.02677, section 2.1
    sqrt    sqrt(k) x base   Malladi et al. 2022, arXiv 2205.10287, definition 4: for Adam, with the moment rule
    none    base
    adascale  base, times a gain measured in each step: `trainers.loop.gradient_noise`
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

from trainers.data.epoch_plan import EpochLayout
from trainers.protocol import TaskError
from trainers.trainer_options import stream_problem
from trainers.trial_settings import Settings

_BETA_1_BOUNDS = (0.0, 0.99)
_BETA_2_BOUNDS = (0.9, 0.99999)
_RISE = 0.3
_FIRST = 1 / 25
_LAST = 1 / 25e4  # these three: rising part, first and last rate of one cycle, as in torch's OneCycleLR


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningRate:
    """The learning rate of every step of a trial.

    Attributes:
        scaled: Learning rate at the effective batch, reached at the end of the warm-up.
        ratio: k, the effective batch over the reference batch.
        total_steps: Steps of the schedule; infinite if unknown.
        own: The task's own schedule, if any: factor of the scaled rate for a step and the total of steps.
    """

    base: float
    scaled: float
    rule: str
    ratio: float
    warmup_steps: float
    total_steps: float
    schedule: str
    decay_steps: float = math.inf
    decay_factor: float = 0.1
    own: Callable[[float, float], float] | None = None

    def at(self, step: float) -> float:
        """Return the learning rate of a step, counted from 0.

        The warm-up is linear from the base to the scaled rate (Goyal et al. 2017, section 2.2), without effect for
        k <= 1. Then "cosine" falls to 0 at `total_steps`; "step" drops at intervals counted from step 0. One cycle
        (Smith and Topin 2018, arXiv 1708.07120) rises as a cosine from a 25th of the scaled rate, for 30 % of all steps
        or for a longer warm-up, and falls to nearly 0.
        """
        if self.own is not None:
            return self.scaled * self.own(step, self.total_steps)
        if self.schedule == "one_cycle":
            return self._one_cycle(step)
        if step < self.warmup_steps:
            start = min(self.base, self.scaled)
            return start + (self.scaled - start) * step / self.warmup_steps
        if self.schedule == "constant":
            return self.scaled
        if self.schedule == "step":
            # The small addend prevents that rounding, such as 2.9999999, delays a drop by a step.
            return float(self.scaled * self.decay_factor ** math.floor(step / self.decay_steps + 1e-9))
        done = (step - self.warmup_steps) / max(1.0, self.total_steps - self.warmup_steps)
        return 0.5 * self.scaled * (1.0 + math.cos(math.pi * min(1.0, done)))

    def _one_cycle(self, step: float) -> float:
        rise = min(max(self.warmup_steps, _RISE * self.total_steps), self.total_steps)
        if step < rise:
            return _between(self.scaled * _FIRST, self.scaled, step / rise)
        done = (step - rise) / max(1.0, self.total_steps - rise)
        return _between(self.scaled, self.scaled * _LAST, min(1.0, done))


def planned_learning_rate(
    settings: Settings, layout: EpochLayout | None, own: Callable[[float, float], float] | None = None
) -> LearningRate:
    """Return a trial's learning rate; `own` is the task's schedule. `layout` is None if the steps are unknown."""
    problem = stream_problem(asdict(settings), has_own_schedule=own is not None) if layout is None else None
    if problem is not None:
        raise TaskError(problem)
    ratio = settings.effective_batch / settings.reference_batch
    rule = resolve_rule(settings.lr_scaling, settings.optimizer)
    # AdaScale counts steps of the reference batch: each of its own steps counts as `gain` of them.
    worth = ratio if rule == "adascale" else 1.0
    total = math.inf if layout is None else worth * layout.steps(settings.epochs)
    of_epoch = 0 if layout is None else layout.steps_per_epoch
    warmup = settings.warmup_epochs * of_epoch if settings.warmup_steps is None else settings.warmup_steps
    epochs = settings.epochs / 3 if isinstance(settings.decay_every_epochs, str) else settings.decay_every_epochs
    return LearningRate(
        base=settings.learning_rate,
        scaled=scale(settings.learning_rate, ratio, rule),
        rule=rule,
        ratio=ratio,
        warmup_steps=worth * warmup,
        total_steps=total,
        schedule=settings.schedule,
        decay_steps=epochs / settings.epochs * total,
        decay_factor=settings.decay_factor,
        own=own,
    )


def _between(start: float, end: float, done: float) -> float:
    return end + 0.5 * (start - end) * (1.0 + math.cos(math.pi * done))


def resolve_rule(lr_scaling: str, optimizer: str) -> str:
    """Return the scaling rule. "auto" is linear for SGD and variants such as SGD_Nesterov, sqrt otherwise."""
    if lr_scaling != "auto":
        return lr_scaling
    return "linear" if optimizer.lower().startswith("sgd") else "sqrt"


def scale(base: float, ratio: float, rule: str) -> float:
    """Return the learning rate `base`, scaled to `ratio` times the reference batch."""
    return base * {"linear": ratio, "sqrt": math.sqrt(ratio)}.get(rule, 1.0)


def scale_moments(betas: tuple[float, float], eps: float, ratio: float) -> tuple[tuple[float, float], float]:
    """Return Adam's (beta_1, beta_2) and epsilon, scaled to `ratio` = k times the reference batch.

    beta -> 1 - k (1 - beta), eps -> eps / sqrt(k): Malladi et al. 2022, arXiv 2205.10287, definition 4. Betas are
    clamped: large k would make them negative, small k 1.
    """
    first, second = (1.0 - ratio * (1.0 - beta) for beta in betas)
    return (_clip(first, _BETA_1_BOUNDS), _clip(second, _BETA_2_BOUNDS)), eps / math.sqrt(ratio)


def scale_weight_decay(decay: float, rate: LearningRate) -> float:
    """Return AdamW's weight decay, scaled to `rate.ratio` = k times the reference batch.

    AdamW averages weights over 1 / (rate x decay) steps, and a pass has k times fewer steps, so rate x decay must grow
    with k (Wang & Aitchison 2024, arXiv 2405.13698): decay grows with sqrt(k) under the sqrt rule, and is constant
    under the linear rule.
    """
    return decay * rate.ratio * rate.base / rate.scaled


def scale_ema(decay: float, ratio: float) -> float:
    """Return the decay of averaged weights for k = `ratio`: decay^k (Busbridge et al. 2023, arXiv 2307.13813)."""
    return float(decay**ratio)


def _clip(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])
