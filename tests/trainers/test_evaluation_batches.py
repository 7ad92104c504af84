"""How many samples an evaluation passes at once, in which mode, and metrics that a task works out of others."""

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from trainers.contract.task import BaseTask
from trainers.data.samples import TensorSamples, load_samples
from trainers.loop.evaluation import evaluate, latency_ms, with_derived
from trainers.protocol import TaskError


class Wide(nn.Module):
    """Says much of a small input."""

    def __init__(self, classes):
        super().__init__()
        self.layer, self.sizes = nn.Linear(2, classes), []

    def forward(self, inputs):
        self.sizes.append(len(inputs))
        return self.layer(inputs)


class Samples(BaseTask):
    def validation_data(self, _params):
        generator = torch.Generator().manual_seed(0)
        return torch.randn(300, 2, generator=generator), torch.arange(300) % 3

    train_data = validation_data


@pytest.mark.medium
@pytest.mark.parametrize(
    ("classes", "sizes"), [(3, [16, 128, 128, 28]), (2**14, [16] + [64] * 4 + [28]), (2**18, [16] * 18 + [12])]
)
def test_an_evaluation_is_bounded_by_the_size_of_outputs(classes, sizes):
    torch.manual_seed(0)
    model, task = Wide(classes), Samples()
    found = evaluate(model, task, {}, batch=16)
    assert model.sizes == sizes
    inputs, targets = task.validation_data({})
    with torch.no_grad():
        losses = torch.cat(
            [task.loss(model(one), of) for one, of in zip(inputs.split(32), targets.split(32), strict=True)]
        )
    assert found["val_loss"] == pytest.approx(losses.double().mean().item())


class Merging(nn.Linear):
    """Holds other weights in evaluations, as low-rank updates do that are merged for them."""

    def train(self, mode=True):
        if mode != self.training:
            self.weight.data.mul_(0.5 if mode else 2.0)
        return super().train(mode)


@pytest.mark.parametrize(
    "passed",
    [
        lambda model, task: evaluate(model, task, {}),
        lambda model, task: latency_ms(model, load_samples(task, "validation", {}, torch.device("cpu")), runs=1),
    ],
    ids=["metrics", "latency"],
)
def test_layers_that_a_task_keeps_in_evaluation_mode_stay_there(passed):
    last = Merging(4, 3)
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4)).eval(), nn.Dropout(), last)
    before = [part.training for part in model.modules()]
    weight = last.weight.detach().clone()
    passed(model, Samples())
    assert [part.training for part in model.modules()] == before == [True, False, False, False, True, True]
    assert torch.equal(last.weight, weight)
    passed(model.eval(), Samples())
    assert not any(part.training for part in model.modules())


def test_a_rank_on_a_cpu_wakes_no_gpu_to_measure_its_latency(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: waited.append(device))
    with monkeypatch.context() as there_is_one:
        there_is_one.setattr(torch.cuda, "is_available", lambda: True)
        latency_ms(nn.Linear(2, 3), load_samples(Samples(), "validation", {}, torch.device("cpu")), runs=2)
    assert waited == []
    gpu = torch.device("cuda", 1)
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = torch.ones(4, 2, device=gpu)
        latency_ms(nn.Tanh(), TensorSamples(inputs, inputs, gpu), runs=2)
    assert waited == [gpu] * 3, "one run warms up"


class Derives:
    def __init__(self, given: Any) -> None:
        self.given = given

    def derived_metrics(self, metrics: Any, params: Any) -> Any:
        return self.given(metrics, params) if callable(self.given) else self.given


def test_derived_metrics_stand_beside_the_others() -> None:
    task: Any = Derives(lambda metrics, params: {"double": params["k"] * metrics["val_loss"]})
    assert with_derived(task, {"val_loss": 2.0}, {"k": 2}) == {"val_loss": 2.0, "double": 4.0}
    nothing: Any = object()
    assert with_derived(nothing, {"val_loss": 2.0}, {}) == {"val_loss": 2.0}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (3, "derived_metrics: found 3, allowed: a mapping"),
        ({"a": "b"}, "allowed: a mapping of names to numbers"),
        ({"mine": 1.0}, "'mine' is already measured. Choose another name"),
        ({"val_loss": 1.0}, "every trial has a metric 'val_loss' already"),
    ],
)
def test_what_cannot_be_a_derived_metric_is_refused(given: Any, words: str) -> None:
    task: Any = Derives(given)
    with pytest.raises(TaskError, match=words):
        with_derived(task, {"mine": 0.0}, {})
