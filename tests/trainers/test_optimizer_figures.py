"""Figures of an epoch: rate, norm of the gradient, time of exchanges, memory; and what PowerSGD leaves as it was."""

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from tests.support.function_trials import Granted
from tests.support.trainer_pool import run_trial, spec_of, weights_of
from trainers.contract.task_loading import load_task
from trainers.contract.training_function import TrainingFunction
from trainers.functions.function_trainer import FunctionTrainer
from trainers.loop.step_counter import ExchangeTimes, GradientNorms
from trainers.loop.trainer import Trainer
from trainers.model import network
from trainers.model.network import Compression
from trainers.protocol import TrialSpec
from trainers.ranks import process
from trainers.ranks.process import PeakMemory
from trainers.ranks.process_group import Group

PLAIN = {"warmup_epochs": 0, "schedule": "constant"}
STILL = {"momentum": 0.0, "weight_decay": 0.0}
"""With these a step moves the weights by the learning rate times the gradient."""
ONE_STEP = {"n": 16}


def moved_by_an_epoch(spec):
    """The length of the way that an epoch of one step moves the weights, and the measurement."""
    trainer = Trainer(spec, load_task(spec.task, spec.task_options, spec.python_path), group=Group())
    before = weights_of(trainer)
    (measurement,) = trainer.advance(1)
    way = torch.cat([(one - before[name]).flatten() for name, one in weights_of(trainer).items()]).norm().item()
    trainer.close()
    return way, measurement


@pytest.mark.parametrize(
    ("training", "params"),
    [({"clip_norm": 1e9}, {}), ({"accumulate": 2}, {"batch_per_rank": 8}), ({}, {})],
    ids=["where it is clipped", "where passes are compared", "in the first step of an epoch"],
)
def test_the_gradient_norm_is_what_moved_the_weights(training, params):
    way, measurement = moved_by_an_epoch(
        spec_of(options=ONE_STEP, training={**PLAIN, **training}, params=STILL | params)
    )
    figures = measurement.optimizer
    assert figures["learning_rate"] == 0.1
    assert figures["gradient_norm"] == pytest.approx(way / 0.1, rel=1e-6)


def test_the_rate_is_that_of_the_epochs_last_step_and_the_norm_that_before_clipping():
    way, measurement = moved_by_an_epoch(spec_of(options=ONE_STEP, training={**PLAIN, "clip_norm": 0.01}, params=STILL))
    _, free = moved_by_an_epoch(spec_of(options=ONE_STEP, training={**PLAIN, "clip_norm": 1e9}, params=STILL))
    assert way == pytest.approx(0.1 * 0.01, rel=1e-3)
    assert measurement.optimizer["gradient_norm"] == pytest.approx(free.optimizer["gradient_norm"], rel=1e-12)
    measured = run_trial(Group(), spec_of(training={"schedule": "step", "decay_every_epochs": 1, "warmup_epochs": 0}))
    rates = [one.optimizer["learning_rate"] for one in measured["measurements"]]
    assert rates == [pytest.approx(0.1 * 0.1**epoch) for epoch in range(3)]
    assert measured["measurements"][0].figures.keys() > {"learning_rate", "samples_per_second", "val_loss"}


@pytest.mark.parametrize("shard", ["none", "full"])
def test_two_ranks_tell_the_norm_of_one(ranks, shard):
    training = {**PLAIN, "clip_norm": 1e9}
    alone = run_trial(Group(), spec_of(training=training))["measurements"]
    for of_rank in ranks.run(2, run_trial, spec_of(2, training={**training, "shard": shard})):
        norms = [one.optimizer["gradient_norm"] for one in of_rank["measurements"]]
        assert norms == pytest.approx([one.optimizer["gradient_norm"] for one in alone], rel=1e-6)


def test_norms_of_many_steps_are_squared_and_averaged_without_those_that_overflowed():
    norms = GradientNorms(torch.device("cpu"))
    for norm in [float("inf"), *range(1, 3001), float("nan")]:
        norms.add(torch.tensor(float(norm)))
    assert norms.root_mean_square() == pytest.approx(math.sqrt(3001 * 6001 / 6))
    norms.begin_epoch()
    assert norms.root_mean_square() is None


class Hooked:
    """Takes the hook as DDP does."""

    def register_comm_hook(self, state: Any, hook: Any) -> None:
        self.state, self.hook = state, hook


def draws(state: Any, bucket: Any) -> str:
    """Do what torch's hook does where it has no matrices of the step before."""
    if bucket.index() not in state.p_memory_dict:
        state.p_memory_dict[bucket.index()] = torch.zeros(1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(state.rng.randint(1_000_000_000))
    return "future"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_gpu_goes_on_drawing_where_it_was(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, calls = {"seed": 5}, []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: gpu.update(seed=seed))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda _: calls.append("get") or gpu["seed"])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda seed, _: calls.append("set") or gpu.update(seed=seed))
    monkeypatch.setattr(network, "powerSGD_hook", draws)
    ddp: Any = Hooked()
    compression = Compression(ddp, "powersgd", 1)
    bucket = SimpleNamespace(index=lambda: 0, buffer=lambda: SimpleNamespace(device=torch.device(device)))
    for _ in range(2):
        compression.begin_epoch()
        assert [ddp.hook(ddp.state, bucket) for _ in range(3)] == ["future"] * 3
    if device == "cuda":
        assert gpu == {"seed": 5}
        assert calls == ["get", "set"] * 2, "once in an epoch for each bucket"
    else:
        assert calls == []


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


@pytest.mark.parametrize(
    ("first", "counted", "later", "counted_then"),
    [
        ([(256, 900.0)], 900.0, [(256, 500.0), (44, 800.0)], 500.0),  # what is tried out in the first pass is left out
        ([(256, 900.0), (244, 950.0)], 900.0, [(256, 400.0), (244, 450.0)], 450.0),  # a batch and a rest
        ([(8, 100.0), (16, 200.0), (8, 60.0), (32, 400.0)], 400.0, [(32, 300.0)], 300.0),  # the largest batch
    ],
)
def test_the_second_pass_of_the_largest_batch_counts_once_there_is_one(gpu, first, counted, later, counted_then):
    for passes, expected in ((first, counted), (later, counted_then)):
        for samples, peak in passes:
            gpu.passes("training", samples, peak)
        gpu.passes("evaluation", 64, 30.0)
        gpu.passes("evaluation", 1, 20.0)
        assert gpu.memory.peak_bytes() == expected


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


@pytest.mark.parametrize("clip_norm", [None, 1e-3], ids=["unclipped", "clipped"])
def test_a_training_function_has_the_rate_of_its_last_step_and_the_norm_where_it_clips(clip_norm):
    def train(trial):
        weight = torch.nn.Parameter(torch.zeros(2))
        optimizer = torch.optim.SGD([weight], lr=trial.learning_rate)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        for epoch in trial.epochs(optimizer=optimizer):
            for factor in (3.0, 4.0):
                trial.backward(epoch * factor * weight[0])
                trial.step(optimizer)
            schedule.step()
            trial.report(error=float(epoch))

    params = {"learning_rate": 0.1, "clip_norm": clip_norm, "accumulate": 1}
    spec = TrialSpec(study="s", trial=0, task="x:y", params=params, training={"epochs": 2})
    course = Granted()
    FunctionTrainer(spec, TrainingFunction(function=train), group=Group()).run(course)
    norm = math.sqrt((9 + 16) / 2)
    for epoch, one in enumerate(course.measurements, 1):
        norms = {} if clip_norm is None else {"gradient_norm": pytest.approx(epoch * norm)}
        assert one.optimizer == {"learning_rate": pytest.approx(0.1 / epoch)} | norms


class OwnRate(torch.optim.SGD):
    """Chooses its rate itself, as Adafactor does."""

    @torch.no_grad()
    def step(self, closure=None):
        self.param_groups[0]["lr"] = None


class Wrapper(torch.optim.Optimizer):
    """Has no state of torch's class, as some wrappers of optimizers."""

    def __init__(self, inner):
        self.inner, self.param_groups = inner, inner.param_groups

    def step(self, closure=None):
        self.inner.step()

    def state_dict(self):
        return self.inner.state_dict()


@pytest.mark.parametrize("kind", [OwnRate, lambda *given, **named: Wrapper(torch.optim.SGD(*given, **named))])
def test_a_rate_that_cannot_be_read_does_not_end_a_training(kind):
    def train(trial):
        optimizer = kind([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        for epoch in trial.epochs(optimizer=optimizer):
            optimizer.step()
            trial.report(error=float(epoch))

    spec = TrialSpec(study="s", trial=0, task="x:y", params={}, training={"epochs": 2})
    course = Granted()
    FunctionTrainer(spec, TrainingFunction(function=train), group=Group()).run(course)
    assert [one.optimizer for one in course.measurements] == [{}, {}]
