"""Measures gradient noise: the noise scale, and AdaScale's gain.

With ranks or accumulation a step has M small batches of b samples each. The mean squared norm of their gradients,
s = E|g_b|^2, and the squared norm of their mean, m = |g_B|^2 at B = M b, give without bias (McCandlish et al. 2018,
arXiv 1812.06162, appendix A.1)

    |G|^2 = (B m - b s) / (B - b)     the squared norm of the true gradient
    tr S  = (s - m) / (1/b - 1/B)     the variance of one sample's gradient

whose ratio tr S / |G|^2 is the noise scale: the batch size up to which a larger batch saves steps proportionally.
AdaScale (Johnson et al. 2020, arXiv 2007.05105) multiplies the base learning rate by the gain

    r = (sigma^2 + mu^2) / (sigma^2 / k + mu^2),   sigma^2 = tr S / reference_batch,   mu^2 = |G|^2,

which is between 1 and k = effective_batch / reference_batch.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainers.ranks.process_group import Group

_STEPS_BETWEEN_MEASUREMENTS = 64
_KEEP_OF_EPOCH = 0.8
_SMALLEST = 1e-30
_MEMORY_STEPS = 1000


class GradientWatch:
    """Measures squared gradient norms of micro-batches by hooks, before accumulation and exchange.

    AdaScale needs each step; otherwise 1 step in 64 is measured.

    Attributes:
        sums: Sums over the epoch's measured steps, float64 [2] on the device: squared norms of the mean gradients of
            this rank's micro-batches, and of the steps' mean gradients.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], group: Group, accumulate: int, adascale: "AdaScale | None"
    ) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._group, self._accumulate, self._adascale = group, accumulate, adascale
        self._handles: list[Any] = []
        self._norms: list[Tensor] = []
        self._missed = False
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Set the epoch's sums to zero."""
        self.sums = torch.zeros(2, dtype=torch.float64, device=self._group.device)
        self.measured_steps = 0

    def begin_step(self, step: int, *, is_full: bool) -> None:
        """Measure the step if it is due, but never a short step, in which ranks may have unequal batches."""
        is_due = self._adascale is not None or self._missed or step % _STEPS_BETWEEN_MEASUREMENTS == 0
        self._missed = is_due and not is_full
        if is_due and is_full:
            self._norms.clear()
            hooks = [cast("Any", parameter).register_hook for parameter in self._parameters]
            self._handles = [hook(self._note) for hook in hooks]

    def end_step(self) -> None:
        """Add the step's gradient norms. Call this before clipping."""
        if not self._handles:
            return
        for handle in self._handles:
            handle.remove()
        self._handles = []
        whole = torch._foreach_norm([p.grad for p in self._parameters if p.grad is not None])  # noqa: SLF001
        # A pass contributes 1 / `accumulate` of the gradient of its own mean loss, hence the factor.
        squares = torch.stack([_squared(self._norms) * self._accumulate**2, _squared(list(whole))])
        self.sums += squares
        self.measured_steps += 1
        if self._adascale is not None:
            self._tell(self._adascale, squares)

    def _tell(self, adascale: "AdaScale", squares: Tensor) -> None:
        world_size = self._group.world_size
        if world_size > 1:
            dist.all_reduce(squares)
        small, big = squares.tolist()
        adascale.add(small / (world_size * self._accumulate), big / world_size)

    def _note(self, gradient: Tensor) -> None:
        self._norms.append(torch.linalg.vector_norm(gradient))


def _squared(norms: list[Tensor]) -> Tensor:
    return torch.stack(norms).double().square().sum()


class Moments:
    """Running averages of |G|^2 (`true`) and tr S (`variance`). Noise may make `true` negative."""

    def __init__(self, keep: float = _KEEP_OF_EPOCH) -> None:
        self._keep = keep
        self._weight, self.true, self.variance = 0.0, 0.0, 0.0

    def add(self, small_mean: float, big_mean: float, *, small: int, big: int) -> None:
        """Add the mean squared norms of gradients over `small` and over `big` samples."""
        true = (big * big_mean - small * small_mean) / (big - small)
        variance = (small_mean - big_mean) / (1.0 / small - 1.0 / big)
        self._weight = self._keep * self._weight + 1.0
        self.true += (true - self.true) / self._weight
        self.variance += (variance - self.variance) / self._weight

    def noise_scale(self) -> float | None:
        """Return the noise scale in samples; None while noise hides the gradient."""
        if self.true <= _SMALLEST or self.variance < 0:
            return None
        return self.variance / self.true

    def state_dict(self) -> dict[str, float]:
        """Return the state for a checkpoint."""
        return {"weight": self._weight, "true": self.true, "variance": self.variance}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore the state from a checkpoint."""
        self._weight, self.true, self.variance = state["weight"], state["true"], state["variance"]


class AdaScale:
    """AdaScale's gain, and `steps`, the sum of gains so far, which replaces the step in the schedule.

    Both moments are averaged over about 1000 / M steps, as in the paper. If M is 1, the gain is 1.
    """

    def __init__(self, batches: int, small: int, reference: int) -> None:
        self._batches, self._small, self._reference = batches, small, reference
        self._moments = Moments(max(0.0, 1.0 - batches / _MEMORY_STEPS))
        self.steps, self.gain = 0.0, 1.0

    def add(self, small_mean: float, big_mean: float) -> None:
        """Add a step's squared norms and compute the next gain."""
        big = self._batches * self._small
        if self._batches > 1:
            self._moments.add(small_mean, big_mean, small=self._small, big=big)
            moments = self._moments
            self.gain = gain(moments.true, moments.variance / self._reference, big / self._reference)

    def state_dict(self) -> dict[str, float]:
        """Return the state for a checkpoint."""
        return {**self._moments.state_dict(), "steps": self.steps, "gain": self.gain}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore the state from a checkpoint."""
        self._moments.load_state_dict(state)
        self.steps, self.gain = state["steps"], state["gain"]


def gain(true: float, variance: float, scale: float) -> float:
    """Return AdaScale's gain for mu^2 = `true`, sigma^2 = `variance` and k = `scale`."""
    true, variance = max(true, 0.0), max(variance, 0.0)
    if true + variance <= _SMALLEST:
        return 1.0
    return (variance + true) / (variance / scale + true)
