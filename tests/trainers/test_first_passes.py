"""Which passes the peak memory of a GPU counts: cuDNN tries its algorithms out in the first one of each size."""

from __future__ import annotations

import pytest
import torch

from trainers.ranks import process
from trainers.ranks.process import PeakMemory


class Gpu:
    """Stands in for a GPU's memory: the peak since it was last forgotten, in bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.peak = 0.0
        monkeypatch.setattr(process, "peak_memory_bytes", lambda _: self.peak)
        monkeypatch.setattr(process, "forget_peak_memory", lambda _: setattr(self, "peak", 10.0))
        monkeypatch.setattr(process, "_PEAK_LASTS_SECONDS", 0.0)
        self.memory = PeakMemory(torch.device("cuda", 0))

    def passes(self, kind: str, samples: int, peak: float) -> None:
        with self.memory.of_pass(kind, samples):
            self.peak = max(self.peak, peak)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch)


def test_what_is_tried_out_in_the_first_pass_does_not_count_once_there_is_a_second(gpu: Gpu) -> None:
    gpu.passes("training", 256, 900.0)
    assert gpu.memory.peak_bytes() == 900.0, "nothing else is known yet"
    gpu.passes("training", 256, 500.0)
    gpu.passes("training", 44, 800.0)
    assert gpu.memory.peak_bytes() == 500.0


def test_an_epoch_of_one_batch_and_a_rest_counts_the_batch(gpu: Gpu) -> None:
    gpu.passes("training", 256, 900.0)
    gpu.passes("training", 244, 950.0)
    gpu.passes("evaluation", 64, 300.0)
    gpu.passes("evaluation", 1, 200.0)
    assert gpu.memory.peak_bytes() == 900.0
    gpu.passes("training", 256, 400.0)
    gpu.passes("training", 244, 450.0)
    assert gpu.memory.peak_bytes() == 450.0


def test_a_larger_batch_takes_the_place_of_smaller_ones(gpu: Gpu) -> None:
    for samples, peak in ((8, 100.0), (16, 200.0), (8, 60.0), (32, 400.0)):
        gpu.passes("training", samples, peak)
    assert gpu.memory.peak_bytes() == 400.0
    gpu.passes("training", 32, 300.0)
    assert gpu.memory.peak_bytes() == 300.0


def test_what_was_in_use_before_counts(gpu: Gpu) -> None:
    gpu.peak = 700.0
    gpu.passes("training", 8, 100.0)
    assert gpu.memory.peak_bytes() == 700.0


def test_a_cpu_counts_every_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    gpu.memory = PeakMemory(torch.device("cpu"))
    gpu.passes("training", 8, 900.0)
    gpu.passes("training", 8, 500.0)
    assert gpu.memory.peak_bytes() == 900.0
