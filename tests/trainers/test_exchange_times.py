"""Times of exchanges are means over parts of a training, without the steps of a cold start."""

from __future__ import annotations

from typing import Any, cast

import pytest
from torch.nn.parallel import DistributedDataParallel

from trainers.loop.step_counter import ExchangeTimes


class Timed:
    """Keeps the mean of the steps that torch times, as DDP's logger does."""

    def __init__(self, *, always: int = 10) -> None:
        self.rate, self._always, self._step = 100, always, 0
        self._times: list[float] = []

    def steps(self, count: int, seconds: float) -> None:
        for _ in range(count):
            self._step += 1
            if self._step <= self._always or self._step % self.rate == 0:
                self._times.append(seconds)

    def _set_ddp_runtime_logging_sample_rate(self, rate: int) -> None:
        self.rate = rate

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        if not self._times:
            return {}
        return {"iteration": self._step, "avg_backward_comm_time": int(1e9 * sum(self._times) / len(self._times))}


@pytest.mark.parametrize("on_cpu", [True, False])
def test_an_epoch_has_the_mean_of_its_own_exchanges(on_cpu: bool) -> None:
    ddp = Timed()
    times = ExchangeTimes(cast("DistributedDataParallel", ddp), on_cpu=on_cpu)
    assert times.mean_seconds() == 0.0
    ddp.steps(250, 0.9)  # a cold start
    assert times.mean_seconds() == pytest.approx(0.9)
    ddp.steps(307, 0.002)
    assert times.mean_seconds() == pytest.approx(0.002, rel=1e-4)
    ddp.steps(4, 0.5)
    assert times.mean_seconds() == pytest.approx(0.5 if ddp.rate == 10 else 0.002, rel=1e-4)
    ddp.steps(3, 0.7)  # none of which is timed
    assert times.mean_seconds() == pytest.approx(0.5 if ddp.rate == 10 else 0.002, rel=1e-4)
