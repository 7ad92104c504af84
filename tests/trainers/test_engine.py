"""Options of one rank: each does something, the equations behind them hold, and each is declared once."""

import math
import time
from dataclasses import fields
from functools import partial
from typing import get_args, get_type_hints

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from search_spaces.space import Space
from studies.spec.checks import check_against_task
from studies.spec.sections import TrainingSpec
from studies.spec.study_spec import parse_spec, spec_to_mapping
from tests.support.trainer_pool import BLOBS, HERE, Blobs, Block, distance, run_trial, spec_of
from trainers.checkpoints.checkpoint import load_model, read_checkpoint
from trainers.contract.task import BaseTask
from trainers.data import sample_order
from trainers.data.epoch_plan import epoch_layout
from trainers.data.samples import DatasetSamples, TensorSamples, load_samples
from trainers.data.seeds import permutation
from trainers.loop.evaluation import evaluate
from trainers.loop.gradient_noise import AdaScale, Moments, gain
from trainers.loop.trainer import Trainer
from trainers.loop.training_state import Average, Patience
from trainers.model.learning_rate import LearningRate, scale_moments
from trainers.model.optimizers import build_optimizer
from trainers.model.sharding import checkpoint_activations, repeated_blocks
from trainers.protocol import ALWAYS_MEASURED, TaskError
from trainers.ranks.process import forget_peak_memory, peak_memory_bytes
from trainers.ranks.process_group import Group
from trainers.trainer_options import TRAINER_PARAMETERS, TrainerOptions, clashes
from trainers.trial_settings import Settings, settings_of

CPU = torch.device("cpu")
DEFAULTS = {name: parameter.default for name, parameter in TRAINER_PARAMETERS.items()}


def trained(**more):
    return run_trial(Group(), spec_of(**more))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"shard": "full", "compress": "powersgd"}, "shard is full and compress is powersgd, .* Set compress to none"),
        ({"shard": "full", "find_unused_parameters": True}, "find_unused_parameters is true, .* Set .* false"),
        ({"shard": "full", "bucket_mb": 5}, "bucket_mb is 5, .* Set bucket_mb to auto, or choose another shard"),
        ({"shard_precision": "training"}, "evaluation_precision is fp32, .* Set evaluation_precision to training"),
        ({"shard": "full", "compile": True}, "compile is true, .* Set compile to false"),
        ({"shard": "full", "precision": "fp16"}, "precision is fp16, .* Set precision to auto, fp32, bf16"),
        ({"shard": "full", "lr_scaling": "adascale"}, "lr_scaling is adascale, .* Set lr_scaling to auto"),
        ({"lr_scaling": "adascale", "optimizer": "adamw"}, "optimizer is adamw, .* Set optimizer to sgd"),
        ({"lr_scaling": "adascale", "precision": "fp16"}, "precision is fp16, .* Set precision to"),
        ({"lr_scaling": "adascale", "compress": "powersgd"}, "compress is powersgd, .* Set compress to none"),
        ({"precision": "fp16"}, "precision is fp16 on a CPU, .* Choose fp32 or bf16"),
        ({"compress": "bf16"}, "compress is bf16 on a CPU, .* Choose compress fp16 or none"),
        ({"sync_batch_norm": True}, "sync_batch_norm is true on a CPU, .* Choose sync_batch_norm false"),
    ],
)
def test_options_that_do_not_go_together_are_refused_before_any_training(values, words):
    with pytest.raises(TaskError, match=words) as caught:
        Trainer(spec_of(training=values), Blobs(), group=Group())
    assert "\n" not in str(caught.value)
    assert clashes(DEFAULTS | values, "cpu") == str(caught.value)


def test_defaults_and_what_is_not_known_yet_are_no_clash():
    assert [clashes(DEFAULTS, device) for device in (None, "cpu", "cuda")] == [None, None, None]
    assert clashes({"lr_scaling": "adascale"}) is None
    assert clashes({"precision": "fp16", "sync_batch_norm": True, "compress": "bf16"}) is None
    assert clashes({"precision": "fp16", "sync_batch_norm": True, "compress": "bf16"}, "cuda") is None


def test_bf16_rounds_the_forward_pass_and_leaves_weights_evaluation_and_double_precision_exact(tmp_path):
    make = partial(spec_of, options={"dtype": "float32", "width": 64}, checkpoint_folder=str(tmp_path), milestones=(3,))
    exact = run_trial(Group(), make())
    rounded = run_trial(Group(), make(training={"precision": "bf16"}))
    assert 1e-5 < distance(exact, rounded) < 0.05
    assert {value.dtype for value in rounded["weights"].values()} == {torch.float32}
    last = rounded["measurements"][-1]
    again = evaluate(load_model(last.checkpoint, BLOBS, (HERE,)), Blobs(dtype="float32"), {})
    assert last.metrics["val_loss"] == pytest.approx(again["val_loss"], rel=1e-12)
    assert distance(exact, run_trial(Group(), make(training={"precision": "auto"}))) == 0.0
    assert distance(trained(), trained(training={"precision": "bf16"})) == 0.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="half precision needs a GPU")
def test_fp16_scales_its_gradients():
    make = partial(spec_of, options={"dtype": "float32", "width": 64}, device="cuda")
    group = Group(device=torch.device("cuda", 0))
    exact, rounded = (run_trial(group, make(training={"precision": one})) for one in ("fp32", "fp16"))
    assert 1e-6 < distance(exact, rounded) < 0.05


def test_clipping_bounds_the_whole_gradient():
    spec = spec_of(params={"momentum": 0.0, "learning_rate": 1.0}, training={"clip_norm": 1e-3, "epochs": 1,
                   "schedule": "constant", "samples_per_epoch": 16, "warmup_epochs": 0})  # fmt: skip
    before = trained(training={"epochs": 1}, params={"learning_rate": 1e-30})["weights"]
    after = run_trial(Group(), spec)["weights"]
    moved = math.sqrt(sum((after[name] - before[name]).square().sum().item() for name in after))
    assert moved == pytest.approx(1e-3, rel=1e-3)


class FrozenNorms(Blobs):
    def model(self, params):
        model = super().model(params)
        for part in model.modules():
            if isinstance(part, nn.BatchNorm1d):
                part.eval()
        return model


class ComesInEvaluationMode(Blobs):
    def model(self, params):
        return super().model(params).eval()


def test_norms_that_a_task_has_frozen_stay_frozen_but_a_model_in_evaluation_mode_is_trained():
    def tracked(task):
        trainer = Trainer(spec_of(training={"epochs": 3}), task(kind="norms"), group=Group())
        list(trainer.advance(3))
        norms = [part for part in trainer.module.modules() if isinstance(part, nn.BatchNorm1d)]
        return [norm.num_batches_tracked.item() for norm in norms]

    assert tracked(FrozenNorms) == [0] * 3
    assert all(tracked(ComesInEvaluationMode))


def test_averaged_weights_are_judged_and_delivered_and_are_the_sum_they_should_be(tmp_path):
    training = {"ema": 0.5, "epochs": 3}
    result = trained(training=training, milestones=(3,), checkpoint_folder=str(tmp_path))
    plain = trained(training={"epochs": 3})
    assert distance(plain, result) == 0.0, "training itself does not see the average"
    last = result["measurements"][-1]
    content = read_checkpoint(last.checkpoint)
    for name, value in content["engine"]["weights"].items():
        assert torch.equal(value, plain["weights"][name])
    assert last.metrics["val_loss"] != plain["measurements"][-1].metrics["val_loss"]
    again = evaluate(load_model(last.checkpoint, BLOBS, (HERE,)), Blobs(), {})
    assert last.metrics["val_loss"] == pytest.approx(again["val_loss"], rel=1e-12)
    module = nn.Linear(1, 1, bias=False)
    values, average = [3.0, 5.0, -1.0], None
    nn.init.constant_(module.weight, 1.0)
    average = Average(module, 0.25)
    expected = 1.0
    for step, value in enumerate(values, start=1):
        nn.init.constant_(module.weight, value)
        average.update(step)
        decay = min(0.25, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
    with average.applied():
        assert module.weight.item() == pytest.approx(expected)
    assert module.weight.item() == -1.0


@pytest.mark.parametrize("kind", ["blocks", "norms"])
def test_checkpointed_activations_are_computed_twice_and_change_nothing(kind):
    options = {"kind": kind, "dropout": 0.3}
    Block.passes = 0
    plain = trained(options=options)
    once, Block.passes = Block.passes, 0
    twice = trained(options=options, training={"activation_checkpointing": True})
    assert distance(plain, twice) == 0.0, "running statistics of BatchNorm are among them"
    steps, blocks = 12, 3
    assert Block.passes == once + steps * blocks


def test_checkpointed_activations_save_memory_and_shared_blocks_are_left_alone():
    def kept(*, checkpoints):
        model = nn.Sequential(nn.Sequential(*[Block(64, norm=False, dropout=0.0) for _ in range(4)]))
        if checkpoints:
            checkpoint_activations(model)
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda one: sizes.append(one.numel()) or one, lambda one: one):
            model(torch.randn(512, 64, requires_grad=True))
        return sum(sizes)

    assert kept(checkpoints=True) < 0.5 * kept(checkpoints=False)
    blocks = nn.ModuleList([Block(4, norm=False, dropout=0.0) for _ in range(3)])
    model = nn.Module()
    model.blocks, model.tied = blocks, nn.Linear(4, 4)
    assert repeated_blocks(model) == list(blocks)
    model.tied.weight = blocks[1].inside[0].weight
    assert repeated_blocks(model) == [blocks[0], blocks[2]]


@pytest.mark.large
def test_a_compiled_model_learns_the_same_keeps_its_names_and_may_checkpoint_its_activations(tmp_path):
    options = {"kind": "compilable norms", "dtype": "float32", "n": 32, "blocks": 2}
    make = partial(spec_of, options=options, milestones=(1,), checkpoint_folder=str(tmp_path))
    plain = run_trial(Group(), make(training={"epochs": 1}))
    from torch._dynamo.utils import counters

    counters.clear()
    compiled = run_trial(Group(), make(training={"epochs": 1, "compile": True, "activation_checkpointing": True}))
    assert counters["stats"]["unique_graphs"] >= 1
    assert distance(plain, compiled) < 1e-5, "running statistics of BatchNorm are among them"
    load_model(compiled["measurements"][0].checkpoint, BLOBS, (HERE,))


def test_without_a_compiler_nothing_is_compiled(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(TaskError, match=r"compile is true, but there is no C\+\+ compiler \(CXX=no-such-compiler\)"):
        Trainer(spec_of(training={"compile": True}), Blobs(), group=Group())


class Smooth(Blobs):
    loss = BaseTask.loss


def test_label_smoothing_is_for_training_only_and_needs_a_loss_that_can_be_smoothed():
    def losses(task, smoothing):
        spec = spec_of(training={"label_smoothing": smoothing, "epochs": 1}, params={"learning_rate": 1e-30})
        (one,) = Trainer(spec, task, group=Group()).advance(1)
        return one.metrics["train_loss"], one.metrics["val_loss"]

    plain, smooth = losses(Smooth(), 0.0), losses(Smooth(), 0.3)
    assert plain[1] == smooth[1]
    inputs, targets = Smooth().train_data({})
    torch.manual_seed(0)
    logits = Trainer(spec_of(), Smooth(), group=Group()).module.eval()(inputs)
    expected = nn.functional.cross_entropy(logits, targets, label_smoothing=0.3)
    assert smooth[0] == pytest.approx(expected.item(), rel=1e-12)
    assert plain[0] != smooth[0]

    class Regression(BaseTask):
        train_data = validation_data = staticmethod(lambda params: (torch.randn(20, 2), torch.randn(20)))
        model = staticmethod(lambda params: nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)))
        loss = staticmethod(lambda outputs, targets: (outputs - targets) ** 2)

    spec = spec_of(training={"label_smoothing": 0.1})
    with pytest.raises(TaskError, match=r"label_smoothing is 0.1, but Regression .* Set label_smoothing to 0, or give"):
        Trainer(spec, Regression(), group=Group())


def rate(**more):
    given = {"base": 0.1, "scaled": 0.4, "rule": "linear", "ratio": 4.0, "warmup_steps": 10.0, "total_steps": 100,
             "schedule": "constant"}  # fmt: skip
    return LearningRate(**{**given, **more})


def test_schedules_and_that_one_cycle_is_torchs():
    step = rate(schedule="step", decay_steps=30.0, decay_factor=0.5)
    assert [step.at(at) for at in (0, 5, 10, 29, 30, 59, 60, 99)] == pytest.approx(
        [0.1, 0.25, 0.4, 0.4, 0.2, 0.2, 0.1, 0.05]
    )
    cycle = rate(schedule="one_cycle")
    assert [cycle.at(at) for at in (0, 15, 30, 65, 100)] == pytest.approx([0.016, 0.208, 0.4, 0.2, 0.0], abs=1e-5)
    assert rate(schedule="one_cycle", warmup_steps=50.0).at(50) == 0.4
    assert rate(schedule="one_cycle", warmup_steps=500.0).at(99) <= 0.4

    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.4)
    theirs = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.4, total_steps=1001)
    ours = rate(schedule="one_cycle", warmup_steps=0.0, total_steps=1000)
    for at in range(1000):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(ours.at(at), rel=0.02, abs=1e-6)
        optimizer.step()
        theirs.step()


def test_each_schedule_trains_differently_and_drops_follow_their_options():
    usual, plain = trained(), trained(training={"schedule": "step"})
    assert distance(usual, plain) > 1e-3
    for schedule in ("one_cycle", "constant"):
        assert distance(usual, trained(training={"schedule": schedule})) > 1e-3
    assert distance(plain, trained(training={"schedule": "step", "decay_factor": 0.5})) > 1e-4
    assert distance(plain, trained(training={"schedule": "step", "decay_every_epochs": 2})) > 1e-4
    assert distance(plain, trained(training={"schedule": "step", "decay_every_epochs": 1})) == 0.0


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_adams_moments_follow_the_batch(optimizer):
    settings = settings_of(spec_of(params={"optimizer": optimizer, "beta1": 0.95, "batch_per_rank": 64}))
    sqrt = rate(rule="sqrt", ratio=4.0)
    (group,) = build_optimizer([nn.Parameter(torch.zeros(1))], settings, sqrt, Group()).param_groups
    assert group["betas"] == pytest.approx((0.8, 0.996))
    assert group["eps"] == pytest.approx(0.5e-8)
    (group,) = build_optimizer([nn.Parameter(torch.zeros(1))], settings, rate(rule="none"), Group()).param_groups
    assert group["betas"] == (0.95, 0.999)

    # beta^(1/batch), what one sample leaves of the average, hardly changes: Malladi et al. 2022.
    for ratio in (0.5, 2.0, 8.0):
        (_, second), eps = scale_moments((0.9, 0.999), 1e-8, ratio)
        assert math.log(second) / ratio == pytest.approx(math.log(0.999), rel=0.01)
        assert eps == pytest.approx(1e-8 / math.sqrt(ratio))


@pytest.mark.parametrize(("rule", "scaled", "decay"), [("sqrt", 0.2, 0.02), ("linear", 0.4, 0.01), ("none", 0.1, 0.04)])
def test_weight_decay_of_adamw_follows_the_batch_where_it_is_asked_to(rule, scaled, decay):
    """Rate x decay grows with the batch, so that a pass over the data fades as much: Wang & Aitchison 2024."""

    def of(optimizer, **more):
        settings = settings_of(spec_of(params={"optimizer": optimizer, "weight_decay": 0.01}, training=more))
        scaled_rate = rate(rule=rule, scaled=scaled, ratio=4.0)
        (group,) = build_optimizer([nn.Parameter(torch.zeros(1))], settings, scaled_rate, Group()).param_groups
        return group["weight_decay"]

    assert of("adamw") == 0.01
    assert of("adamw", scale_weight_decay=True) == pytest.approx(decay)
    assert of("adam", scale_weight_decay=True) == of("sgd", scale_weight_decay=True) == 0.01


def test_decays_of_averaged_weights_and_steps_of_a_warm_up_are_as_asked_for():
    def decay(**more):
        spec = spec_of(params={"batch_per_rank": 32}, training={"ema": 0.9, **more})
        return Trainer(spec, Blobs(), group=Group())._state.average._decay

    assert decay() == 0.9
    assert decay(scale_ema=True) == pytest.approx(0.81)
    trainer = Trainer(spec_of(training={"warmup_epochs": 2, "warmup_steps": 5}), Blobs(), group=Group())
    assert trainer._rate.warmup_steps == 5
    assert Trainer(spec_of(training={"warmup_epochs": 2}), Blobs(), group=Group())._rate.warmup_steps == 8


def test_the_noise_scale_of_known_gradients():
    """Gradients of n samples are drawn from N(G, S / n): both parts come out without bias."""
    generator = torch.Generator().manual_seed(0)
    true, deviation, small, batches = torch.full((50,), 0.3), 2.0, 4, 8
    moments = Moments(1.0)
    for _ in range(2000):
        noise = torch.randn(batches, 50, generator=generator) * deviation / math.sqrt(small)
        gradients = true + noise
        mean = gradients.mean(dim=0)
        moments.add(gradients.square().sum(1).mean().item(), mean.square().sum().item(), small=small, big=32)
    assert moments.true == pytest.approx(50 * 0.09, rel=0.05)
    assert moments.variance == pytest.approx(50 * 4.0, rel=0.05)
    assert moments.noise_scale() == pytest.approx(4.0 / 0.09, rel=0.08)

    moments = Moments(1.0)  # noise that hides the gradient has no scale
    moments.add(8.0, 0.5, small=1, big=8)
    assert moments.noise_scale() is None


def test_the_gain_of_adascale_which_with_one_batch_a_step_is_plain_sgd():
    assert gain(true=1.0, variance=0.0, scale=8.0) == 1.0
    assert gain(true=0.0, variance=1.0, scale=8.0) == 8.0
    assert gain(true=-1.0, variance=1.0, scale=8.0) == 8.0
    assert gain(true=1.0, variance=1.0, scale=4.0) == pytest.approx(2.0 / 1.25)
    assert gain(true=0.0, variance=0.0, scale=4.0) == 1.0
    alone = AdaScale(1, 16, 16)
    alone.add(5.0, 1.0)
    assert alone.gain == 1.0
    assert distance(trained(), trained(training={"lr_scaling": "adascale"})) == 0.0


def test_patience_counts_from_the_best_epoch_and_ends_with_a_checkpoint(tmp_path):
    patience = Patience(2)
    assert [patience.runs_out(loss) for loss in (3.0, 2.0, 2.5, 1.0, 1.0, 0.9, math.nan, 1.5)] == [False] * 7 + [True]
    endless = Patience(None)
    assert not any(endless.runs_out(1.0) for _ in range(100))
    # Nothing is learned at this rate: the first epoch stays the best.
    make = partial(spec_of, params={"learning_rate": 1e-30}, checkpoint_folder=str(tmp_path))
    measurements = trained(training={"epochs": 9, "early_stop_patience": 3}, params={"learning_rate": 1e-30})
    assert [(m.epoch, m.complete, m.ended) for m in measurements["measurements"]] == [
        (1, False, False), (2, False, False), (3, False, False), (4, True, False),
    ]  # fmt: skip
    last = run_trial(Group(), make(training={"epochs": 9, "early_stop_patience": 1}))["measurements"][-1]
    assert (last.epoch, last.complete) == (2, True)
    assert read_checkpoint(last.checkpoint)["position"]["epoch"] == 2
    improving = trained(training={"epochs": 9, "early_stop_patience": 1}, params={"learning_rate": 0.01})
    assert [m.complete for m in improving["measurements"]] == [False] * 9


@pytest.mark.parametrize("samples_per_epoch", [16, 40, 1000])
def test_a_cut_pass_is_the_same_training(samples_per_epoch):
    """50 samples are 4 steps of at most 16: in parts of 1, 2, 3 or 4 of them."""
    steps = math.ceil(min(samples_per_epoch, 50) / 16)
    per_pass = math.ceil(4 / steps)
    warmup = {"warmup_epochs": 0, "schedule": "constant"}
    whole = trained(training={"epochs": 2, **warmup})
    parts = trained(training={"epochs": 2 * per_pass, "samples_per_epoch": samples_per_epoch, **warmup})
    assert distance(whole, parts) == 0.0
    for first in (0, per_pass):
        one_pass = [sample for epoch in parts["seen"][first : first + per_pass] for sample in epoch]
        assert one_pass == permutation(50, seed=0, epoch=1 + (first > 0)).tolist()


def test_the_order_of_a_pass_is_drawn_once_and_schedules_count_partial_epochs(monkeypatch):
    """A pass over large data would cost the square of its epochs."""
    drawn = []

    def noted(samples, *, seed, epoch):
        drawn.append(epoch)
        return permutation(samples, seed=seed, epoch=epoch)

    monkeypatch.setattr(sample_order, "permutation", noted)
    trained(training={"epochs": 8, "samples_per_epoch": 16})  # of 50 samples: four epochs a pass
    assert drawn == [1, 2]
    cut = epoch_layout(50, 16, 40)
    assert (cut.steps_per_pass, cut.steps_per_epoch) == (4, 3)
    assert [cut.steps(epochs) for epochs in range(6)] == [0, 3, 4, 7, 8, 11]
    assert [cut.place(epoch) for epoch in range(1, 5)] == [(1, 0), (1, 48), (2, 0), (2, 48)]
    trainer = Trainer(spec_of(training={"epochs": 5, "samples_per_epoch": 40}), Blobs(), group=Group())
    assert (trainer._rate.total_steps, trainer._rate.warmup_steps) == (11, 3)


class Squares(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return {"number": torch.tensor([float(index)])}, index * index + torch.randint(0, 1000, ()).item() * 1000


class Numbers(BaseTask):
    def __init__(self, data):
        self.data = data

    def train_data(self, params):
        return self.data


@pytest.mark.medium
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_gives_what_it_was_asked_for(workers):
    samples = load_samples(Numbers(Squares()), "train", {}, CPU, workers)
    assert isinstance(samples, DatasetSamples)
    for indices in ([[3, 1], [2]], [[19]]):
        batches = list(samples.batches([torch.tensor(one) for one in indices]))
        assert [inputs["number"].flatten().tolist() for inputs, _ in batches] == indices
        assert [(targets % 1000).tolist() for _, targets in batches] == [[i * i for i in one] for one in indices]
        torch.manual_seed(7)
        first = [targets.tolist() for _, targets in samples.batches([torch.tensor(one) for one in indices])]
        torch.manual_seed(7)
        assert first == [t.tolist() for _, t in samples.batches([torch.tensor(one) for one in indices])]


@pytest.mark.medium
def test_workers_train_like_none_and_a_dataset_of_two_tensors_is_indexed_at_once():
    alone = trained(options={"dataset": True})
    assert distance(alone, trained(options={"dataset": True}, training={"data_workers": 1})) == 0.0
    pair = TensorDataset(torch.randn(20, 3), torch.arange(20))
    assert isinstance(load_samples(Numbers(pair), "train", {}, CPU), TensorSamples)


def test_what_is_always_measured_adds_up_and_seconds_go_where_they_were_spent(monkeypatch):
    for measurement in trained()["measurements"]:
        metrics = measurement.metrics
        assert set(ALWAYS_MEASURED) - {"cost_usd", "wall_seconds"} <= set(metrics)
        parts = metrics["data_seconds"] + metrics["compute_seconds"] + metrics["communication_seconds"]
        assert metrics["train_seconds"] == pytest.approx(parts)
        assert metrics["train_seconds"] + metrics["evaluation_seconds"] <= measurement.wall_seconds
        assert metrics["samples_per_second"] == pytest.approx(50 / metrics["train_seconds"])
        assert metrics["peak_memory_bytes"] > 1e6

    class Slow(Blobs):
        def train_data(self, params):
            class Sleepy(Dataset):
                def __len__(self):
                    return 10

                def __getitem__(self, index):
                    time.sleep(0.01)
                    return torch.zeros(5, dtype=torch.float64), 0

            return Sleepy()

        def metrics(self, outputs, targets):
            time.sleep(0.05)
            return super().metrics(outputs, targets)

    (one,) = Trainer(spec_of(), Slow(), group=Group()).advance(1)
    assert one.metrics["data_seconds"] >= 0.1
    assert one.metrics["data_seconds"] > one.metrics["compute_seconds"]
    assert one.metrics["evaluation_seconds"] >= 0.05
    # A GPU computes on after the last of its kernels was launched.
    monkeypatch.setattr("trainers.loop.epoch_metrics.seconds_to_compute", lambda _: time.sleep(0.2))

    class Weighed(Blobs):
        def weights(self, targets):
            return {"loss": torch.ones(len(targets)), "val_error": torch.ones(len(targets))}

    *_, second = Trainer(spec_of(), Weighed(), group=Group()).advance(2)
    assert second.metrics["evaluation_seconds"] >= 0.2


def test_peak_memory_starts_anew():
    torch.ones(2**25)  # 128 MiB
    high = peak_memory_bytes(CPU)
    forget_peak_memory(CPU)
    low = peak_memory_bytes(CPU)
    assert low <= high - 2**26
    kept = torch.ones(2**25)
    assert peak_memory_bytes(CPU) >= low + 2**26
    del kept


GIVEN = {
    "samples_per_epoch": 1000, "lr_scaling": "adascale", "schedule": "one_cycle", "decay_every_epochs": 2.5,
    "decay_factor": 0.5, "precision": "bf16", "accumulate": 4, "clip_norm": 1.0, "compress": "fp16",
    "powersgd_rank": 4, "shard": "optimizer", "bucket_mb": 5.0, "find_unused_parameters": True,
    "sync_batch_norm": True, "activation_checkpointing": True, "compile": True, "ema": 0.99, "label_smoothing": 0.1,
    "data_workers": 2, "single_sample_batches": "drop", "warmup_steps": 10,
    "scale_weight_decay": True, "scale_ema": True, "shard_offload": True, "init_by_module": True,
}  # fmt: skip


@pytest.mark.parametrize(("key", "value"), GIVEN.items())
def test_an_option_can_be_given_and_searched(key, value):
    given = parse_spec({"task": "digits", "training": {key: value}})
    assert getattr(given.training, key) == value
    assert parse_spec(spec_to_mapping(given)) == given
    choices = {key: {"type": "categorical", "choices": [DEFAULTS[key], value]}}
    searched = check_against_task(parse_spec({"task": "digits", "space": choices}), (), ("val_error",), Space({}))
    assert key in searched.space.names()
    assert key not in spec_to_mapping(searched)["training"]
    spec = spec_of(training=given.training.model_dump(), device="cuda")
    assert getattr(settings_of(spec), key) == value


TYPES = {"whole": int, "number": float}


@pytest.mark.parametrize("name", sorted(TRAINER_PARAMETERS))
def test_type_default_and_range_of_an_option_agree(name: str) -> None:
    parameter, annotation = TRAINER_PARAMETERS[name], get_type_hints(TrainerOptions)[name]
    assert parameter.problem(parameter.default) is None
    allowed = {one for part in (get_args(annotation) or (annotation,)) for one in (get_args(part) or (part,))}
    words = {type(None) if word is None else word for word in parameter.choices}
    if parameter.kind == "choice":
        types = {one if isinstance(one, type) else type(one) for one in allowed}
        assert types == {type(choice) for choice in parameter.choices}
    else:
        assert allowed == {TYPES[parameter.kind], *words}


def test_spec_settings_and_trials_without_options_have_the_one_declaration_and_its_defaults() -> None:
    keys = [name for name, parameter in TRAINER_PARAMETERS.items() if not parameter.only_in_space]
    assert list(TrainingSpec.model_fields) == ["epochs", *keys]
    assert {name: TrainingSpec.model_fields[name].default for name in keys} == {
        name: TRAINER_PARAMETERS[name].default for name in keys
    }
    assert {option.name for option in fields(Settings)} == {"epochs", *TRAINER_PARAMETERS}
    settings = settings_of(spec_of(params={"batch_per_rank": 64}, training={"reference_batch": 64}))
    defaults = TrainerOptions()
    assert {name: getattr(settings, name) for name in TRAINER_PARAMETERS} == {
        name: getattr(defaults, name) for name in TRAINER_PARAMETERS
    }


def test_checkpoints_are_written_in_the_background_on_a_gpu_whose_host_has_room() -> None:
    assert Settings().writes_in_background("cuda")
    assert not Settings(shard_offload=True).writes_in_background("cuda")
    assert not Settings().writes_in_background("cpu")
    assert Settings(checkpoint_async=True, shard_offload=True).writes_in_background("cpu")
    assert not Settings(checkpoint_async=False).writes_in_background("cuda")
