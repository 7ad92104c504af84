"""Samples a second of the trainer on a GPU, beside a loop that is tuned by hand for it."""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.gpu.gpu_trials import DEVICE, KIND, needs_gpu
from trainers.contract.task import BaseTask
from trainers.contract.task_loading import load_task
from trainers.loop.trainer import Trainer
from trainers.protocol import Params, TrialSpec
from trainers.ranks.process_group import Group
from trainers.ranks.process_state import ProcessState

pytestmark = needs_gpu

SAMPLES, BATCH, SIZE, CHANNELS = (32768, 512, 32, 64) if KIND == "cuda" else (512, 64, 16, 8)
EPOCHS = 6
"""Epochs of each contestant, which take turns; the first one, in which cuDNN tries algorithms out, does not count."""
RATE = 0.05


class Images(BaseTask):
    """Images of three channels in two classes: the mean of the first channel is above zero, or below."""

    def train_data(self, _params: Params) -> tuple[Tensor, Tensor]:
        return images(SAMPLES, 0)

    def validation_data(self, _params: Params) -> tuple[Tensor, Tensor]:
        return images(BATCH, 1)

    def model(self, _params: Params) -> nn.Module:
        return network()


def images(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return inputs [n, 3, size, size] and targets [n]."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(2, (samples,), generator=generator)
    inputs = torch.randn(samples, 3, SIZE, SIZE, generator=generator)
    inputs[:, 0] += (2.0 * targets - 1.0)[:, None, None]
    return inputs, targets


def network() -> nn.Sequential:
    """Return six convolutions with BatchNorm, which a GPU computes about as fast as the data can be brought along."""
    layers: list[nn.Module] = []
    width = 3
    for number in range(6):
        wider = CHANNELS * 2 ** (number // 2)
        layers += [nn.Conv2d(width, wider, 3, stride=1 + number % 2, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(wider), nn.ReLU(inplace=True)]
        width = wider
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 2))


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """One epoch of a contestant."""

    seconds: float
    loss: float


def by_hand() -> Iterator[Epoch]:
    """Train by a loop as one writes it for speed: bf16, channels last, fused updates, TF32, tried kernels."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    inputs, targets = (part.to(DEVICE) for part in images(SAMPLES, 0))
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    model = network().to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, fused=True)
    while True:
        started, losses = time.perf_counter(), torch.zeros((), device=DEVICE)
        for chosen in torch.randperm(SAMPLES, device=DEVICE).split(BATCH):
            with torch.autocast(KIND, torch.bfloat16):
                loss = cross_entropy(model(inputs[chosen]), targets[chosen])
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses += loss.detach() * len(chosen)
        mean = float(losses) / SAMPLES
        yield Epoch(seconds=time.perf_counter() - started, loss=mean)


def ours() -> Iterator[Epoch]:
    """Train by the trainer with the same options and the same rate."""
    spec = TrialSpec(
        study="gpu", trial=0, task=f"{__name__}:Images", device=KIND, milestones=(),
        params={"learning_rate": RATE, "batch_per_rank": BATCH},
        training={
            "epochs": EPOCHS, "precision": "bf16", "channels_last": True, "fused": True, "tf32": True,
            "cudnn_benchmark": True, "schedule": "constant", "warmup_epochs": 0, "lr_scaling": "none",
        },
    )  # fmt: skip
    trainer = Trainer(spec, load_task(spec.task, spec.task_options, spec.python_path), group=Group(device=DEVICE))
    for measurement in trainer.advance(EPOCHS):
        metrics = measurement.metrics
        yield Epoch(seconds=SAMPLES / metrics["samples_per_second"], loss=metrics["train_loss"])
    trainer.close()


def test_throughput_beside_a_loop_tuned_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """The figures are printed and not judged, since another program may use the machine; what is learnt is judged."""
    contestants, settings = {"ours": ours(), "by hand": by_hand()}, ProcessState()
    found: dict[str, list[Epoch]] = {name: [] for name in contestants}
    for _ in range(EPOCHS):
        for name, epochs in contestants.items():
            found[name].append(next(epochs))
    settings.restore()
    rates = {name: SAMPLES / statistics.median(one.seconds for one in each[1:]) for name, each in found.items()}
    device = torch.cuda.get_device_name() if KIND == "cuda" else "CPU"
    with capsys.disabled():
        figures = ", ".join(f"{name} {rate:,.0f} samples/s" for name, rate in rates.items())
        print(f"\n{device}: {figures}, {rates['ours'] / rates['by hand']:.2f} times")
    for name, each in found.items():
        assert each[-1].loss < 0.1, f"{name}: {[round(one.loss, 3) for one in each]}"
