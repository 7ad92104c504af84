"""Precision, gradient accumulation and clipping for training functions."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import cast

from torch import Tensor, nn, optim
from torch.nn.parallel import DistributedDataParallel

from trainers.loop.step_counter import GradientNorms
from trainers.model.learning_rate import LearningRate, resolve_rule
from trainers.model.optimizers import build_optimizer
from trainers.model.precision import Precision
from trainers.protocol import TaskError
from trainers.ranks.process_group import Group
from trainers.trial_settings import Settings


class Steps:
    """Takes a trial's optimizer steps, and counts backward passes."""

    def __init__(self, settings: Settings, group: Group, learning_rate: float, *, is_sharded: bool) -> None:
        self._settings, self._group, self._learning_rate = settings, group, learning_rate
        self.precision = Precision(settings, group.device, is_sharded=is_sharded)
        self._networks: list[DistributedDataParallel] = []
        self._passes: dict[optim.Optimizer, int] = {}
        self._stepped: set[optim.Optimizer] = set()
        self._scaled_for: optim.Optimizer | None = None
        self._norms: GradientNorms | None = None

    def add(self, network: nn.Module) -> None:
        """Add a model that the ranks train together in DDP."""
        if isinstance(network, DistributedDataParallel):
            self._networks.append(network)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        """Return the optimizer of the trial's options at the scaled learning rate."""
        settings = self._settings
        rate = LearningRate(
            base=settings.learning_rate,
            scaled=self._learning_rate,
            rule=resolve_rule(settings.lr_scaling, settings.optimizer),
            ratio=settings.effective_batch / settings.reference_batch,
            warmup_steps=0,
            total_steps=1,
            schedule="constant",
        )
        return cast("optim.Optimizer", build_optimizer(parameters, settings, rate, self._group))

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Use the trial's precision in a forward pass. DDP exchanges gradients only in a step's last pass."""
        waiting = [] if self._settings.accumulate == 1 else [one for one in self._networks if not self._ends_step(one)]
        for network in waiting:
            network.require_backward_grad_sync = False  # as DDP's no_sync; the forward pass reads this attribute
        try:
            with self.precision.forward():
                yield
        finally:
            for network in waiting:
                network.require_backward_grad_sync = True

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss."""
        self._scaled_for = None
        self.precision.backward(loss / self._settings.accumulate if self._settings.accumulate > 1 else loss)

    def step(self, optimizer: optim.Optimizer) -> bool:
        """Count a backward pass. After a step's last pass, update the weights and zero the gradients."""
        passes = self._passes.get(optimizer, 0) + 1
        self._passes[optimizer] = passes % self._settings.accumulate
        if passes < self._settings.accumulate:
            return False
        self._check_scale_is_of(optimizer)
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        norm = self.precision.step(optimizer, _Parameters(parameters), self._settings.clip_norm)
        if norm is not None:
            self._norms = self._norms or GradientNorms(norm.device)
            self._norms.add(norm)
        optimizer.zero_grad()
        self._stepped.add(optimizer)
        return True

    def end_epoch(self) -> None:
        """Drop an unfinished step, which checkpoints do not store. Raises TaskError after an epoch without a step."""
        for optimizer, passes in self._passes.items():
            if passes and optimizer not in self._stepped:
                raise TaskError(
                    f"accumulate is {self._settings.accumulate}, but an epoch had only {passes} backward passes. Set "
                    f"accumulate to {passes} or less"
                )
            if passes:
                optimizer.zero_grad()
                self._passes[optimizer] = 0
        self._stepped.clear()

    def gradient_norm(self) -> float | None:
        """Return the root mean square of the gradient norms since the last call; None unless gradients are clipped."""
        norms, self._norms = self._norms, None
        return None if norms is None else norms.root_mean_square()

    def _ends_step(self, network: nn.Module) -> bool:
        own = {id(parameter) for parameter in network.parameters()}
        passes = (
            passes
            for optimizer, passes in self._passes.items()
            if any(id(one) in own for group in optimizer.param_groups for one in group["params"])
        )
        return next(passes, 0) == self._settings.accumulate - 1

    def _check_scale_is_of(self, optimizer: optim.Optimizer) -> None:
        """Raise TaskError for a second step after one fp16 backward pass: the first may have changed the scale."""
        if self._scaled_for not in {None, optimizer} and self.precision.name == "fp16":
            raise TaskError(
                "trial.step: two optimizers took steps after one trial.backward with precision fp16. Call "
                "trial.backward before each step, or set precision to bf16"
            )
        self._scaled_for = optimizer


class _Parameters(nn.Module):
    def __init__(self, tensors: list[nn.Parameter]) -> None:
        super().__init__()
        self._tensors = tensors

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:  # noqa: ARG002 - torch's form
        return iter(self._tensors)
