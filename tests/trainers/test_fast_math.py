"""Quicker ways to compute: what is set for a GPU, and that results stay where a CPU can show it."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.trainer_pool import spec_of
from trainers.contract.task_loading import load_task
from trainers.loop.trainer import Trainer
from trainers.model.precision import Precision, exact_products, images_channels_last, set_fast_math, with_channels_last
from trainers.protocol import Measurement, TaskError
from trainers.ranks.process_group import Group
from trainers.ranks.process_state import ProcessState
from trainers.trial_settings import Settings, settings_of

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


pytestmark = pytest.mark.usefixtures("process_as_before")


def flags() -> tuple[bool, bool, bool]:
    cudnn = torch.backends.cudnn
    return torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark


def test_a_gpu_computes_quickly_until_the_next_trial_unless_told_otherwise() -> None:
    before = flags()
    set_fast_math(Settings(), CPU)
    assert flags() == before
    set_fast_math(Settings(), CUDA)
    assert flags() == (True, True, True)
    set_fast_math(Settings(tf32=False, cudnn_benchmark=False), CUDA)
    assert flags() == (False, False, False)
    state, before = ProcessState(), flags()
    set_fast_math(Settings(), CUDA)
    state.restore()
    assert flags() == before
    with pytest.raises(TaskError, match=r"tf32: found .on., allowed: auto, false, true"):
        settings_of(spec_of(training={"tf32": "on"}))


def test_evaluations_are_exact_and_what_was_set_goes_on_as_before() -> None:
    set_fast_math(Settings(), CUDA)
    with exact_products():
        assert flags()[:2] == (False, False)
        assert newer_names().isdisjoint({"tf32"})
    assert flags()[:2] == (True, True)
    assert newer_names() == {"tf32"}
    torch.set_float32_matmul_precision("medium")
    set_fast_math(Settings(), CUDA)
    with exact_products():
        assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.get_float32_matmul_precision() == "medium"
    backends: Any = torch.backends
    matmul, conv, rnn = backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn
    matmul.fp32_precision = rnn.fp32_precision = "ieee"
    backends.fp32_precision = "tf32"
    with exact_products():
        assert newer_names().isdisjoint({"tf32"})
    assert matmul.fp32_precision == rnn.fp32_precision == "ieee"
    assert conv.fp32_precision == "tf32"


def newer_names() -> set[str]:
    backends: Any = torch.backends
    return {kind.fp32_precision for kind in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)}


@pytest.mark.parametrize("tf32", [True, False])
@pytest.mark.parametrize(("of_task", "of_cpu"), [("highest", "ieee"), ("high", "tf32"), ("medium", "bf16")])
def test_libraries_can_read_what_is_set_by_its_older_names(tf32: bool, of_task: str, of_cpu: str) -> None:
    backends: Any = torch.backends
    torch.set_float32_matmul_precision(of_task)
    fast = of_task if of_task != "highest" else "high"
    for _ in range(2):
        set_fast_math(Settings(tf32=tf32), CUDA)
        with exact_products():
            assert torch.get_float32_matmul_precision() == "highest"
            assert flags()[:2] == (False, False)
        assert torch.get_float32_matmul_precision() == (fast if tf32 else "highest")
        assert flags()[:2] == (tf32, tf32)
        assert backends.mkldnn.matmul.fp32_precision == (of_cpu if tf32 else "ieee")


def test_torch_before_2_9_has_switches_that_are_on_or_off(monkeypatch: pytest.MonkeyPatch) -> None:
    matmul, cudnn = SimpleNamespace(allow_tf32=False), SimpleNamespace(allow_tf32=True, benchmark=False)
    monkeypatch.setattr(torch.backends, "cudnn", cudnn)
    monkeypatch.setattr(torch.backends.cuda, "matmul", matmul)
    with exact_products():
        assert not cudnn.allow_tf32
    assert (matmul.allow_tf32, cudnn.allow_tf32) == (False, True)
    set_fast_math(Settings(), CUDA)
    assert matmul.allow_tf32
    with exact_products():
        assert not matmul.allow_tf32
    set_fast_math(Settings(tf32=False), CUDA)
    assert not cudnn.allow_tf32


def test_evaluations_in_the_format_of_training_and_scales_of_the_loss_are_as_set() -> None:
    model, inputs = nn.Linear(64, 8), torch.randn(16, 64)
    exact = Precision(Settings(precision="bf16"), CPU).evaluated(model, inputs)
    rounded = Precision(Settings(precision="bf16", evaluation_precision="training"), CPU).evaluated(model, inputs)
    assert exact.dtype == rounded.dtype == torch.float32
    assert torch.equal(exact, model(inputs))
    assert 0 < (exact - rounded).abs().max() < 0.1
    settings = Settings(precision="fp16", loss_scale=8.0, loss_scale_growth_steps=1)
    precision, weights = Precision(settings, CPU), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weights], lr=0.0)
    scales = []
    for _ in range(3):
        precision.backward(weights.sum())
        scales.append(float(weights.grad[0]))
        precision.step(optimizer, nn.Module(), None)
        optimizer.zero_grad()
    assert scales == [8.0, 16.0, 32.0]


@pytest.mark.parametrize("fused", [False, True])
def test_a_first_step_that_overflows_leaves_no_momentum(fused: bool) -> None:
    """torch gives the momentum of its fused kernel memory that is not filled, here with what was freed before."""
    model, before = nn.Linear(300, 300, bias=False), torch.zeros(300, 300)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=fused)
    precision = Precision(Settings(precision="fp16"), torch.device("cpu"))
    for factor in (float("inf"), 1.0):
        precision.backward((model.weight * factor).sum())
        freed = torch.full((300, 300), 1e6)
        del freed
        precision.step(optimizer, model, None)
        optimizer.zero_grad()
        if math.isinf(factor):
            assert torch.equal(model.weight, before), "the step is left out"
    torch.testing.assert_close(model.weight.detach(), torch.full((300, 300), -0.1))


def test_channels_last_changes_the_order_in_memory_and_no_result() -> None:
    model, inputs = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 2)), torch.randn(4, 3, 8, 8)
    plain = model(inputs)
    batch = {"image": inputs, "number": torch.ones(4)}
    turned = images_channels_last(batch)
    assert turned["image"].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(turned["image"], inputs)
    assert turned["number"] is batch["number"]
    with_channels_last(model)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)  # type: ignore[operator]
    torch.testing.assert_close(model(turned["image"]), plain)


@pytest.mark.parametrize(
    ("channels", "size", "strides"), [(4, 1, (4, 1, 4, 4)), (4, 3, (36, 1, 12, 4)), (1, 3, (9, 9, 3, 1))]
)
def test_weights_have_the_strides_in_which_a_gpu_gives_their_gradients(channels, size, strides) -> None:
    """Else DDP copies each gradient, and warns."""
    model = nn.Conv2d(channels, 8, size)
    assert with_channels_last(model) is model
    assert model.weight.stride() == strides


def last(**training: object) -> Measurement:
    spec = spec_of(training={"epochs": 2, **training})
    trainer = Trainer(spec, load_task(spec.task, spec.task_options, spec.python_path), group=Group())
    (*_, measurement) = trainer.advance(2)
    trainer.close()
    return measurement


@pytest.mark.parametrize("options", [{"channels_last": True}, {"fused": False}, {"tf32": False}])
def test_a_trial_learns_the_same(options: dict[str, object]) -> None:
    plain, other = last(), last(**options)
    assert other.metrics["val_loss"] == pytest.approx(plain.metrics["val_loss"], rel=1e-5)
