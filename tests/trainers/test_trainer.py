"""The trainer in one process: errors, settings, learning rates, tasks."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import signal
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from automl.launching import prepared_study
from search_spaces.drawing import draw_number, example_params
from search_spaces.parameters import Float, Int
from search_spaces.space import Space
from tests.support.paths import EXAMPLES
from tests.support.trainer_pool import HERE, Blobs, run_trial, spec_of
from trainers.contract.task import declared_metrics
from trainers.contract.task_loading import TaskLoadError, load_task
from trainers.data.epoch_plan import plan_epoch
from trainers.data.samples import DatasetSamples, load_samples
from trainers.data.seeds import permutation
from trainers.failures import CheckpointError, classify
from trainers.local.try_out_task import probe
from trainers.loop.trainer import Trainer
from trainers.model.learning_rate import LearningRate, resolve_rule, scale, scale_moments
from trainers.protocol import DivergedError, LostError, OutOfMemoryError, TaskError, TrialSpec
from trainers.ranks.process_group import Group
from trainers.tasks.digits import Digits, _table

CPU = torch.device("cpu")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("exception", "expected"),
    [
        (MemoryError(), OutOfMemoryError),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), OutOfMemoryError),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), OutOfMemoryError),
        (torch.distributed.DistBackendError("NCCL error in: unhandled system error"), LostError),
        (RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1"), LostError),
        (RuntimeError("[gloo/transport/tcp/buffer.cc] Timed out waiting 1800000ms for recv operation"), LostError),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), LostError),
        (RuntimeError("CUDA error: device-side assert triggered"), TaskError),
        (RuntimeError("CUDA error: no kernel image is available for execution on the device"), TaskError),
        (RuntimeError("CUDA error: invalid configuration argument"), TaskError),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx`"), TaskError),
        (RuntimeError("CUDA error: invalid device ordinal"), TaskError),
        (RuntimeError("CUDA error: initialization error"), TaskError),
        (RuntimeError("CUDA error: the provided PTX was compiled with an unsupported toolchain."), TaskError),
        (RuntimeError("DataLoader worker (pid(s) 28, 29) exited unexpectedly"), LostError),
        (RuntimeError("DataLoader worker (pid 28) is killed by signal: Killed. "), LostError),
        (RuntimeError("DataLoader worker (pid 28) is killed by signal: Segmentation fault. "), TaskError),
        (RuntimeError("DataLoader worker (pid 28) is killed by signal: Bus error. It is possible that"), TaskError),
        (RuntimeError("FIND was unable to find an engine to execute this computation"), OutOfMemoryError),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), OutOfMemoryError),
        (ConnectionResetError("Connection reset by peer"), TaskError),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), TaskError),
        (DivergedError("loss"), DivergedError),
        (CheckpointError("damaged"), CheckpointError),
    ],
)
def test_an_exception_is_sorted_by_what_to_do_about_it_and_crosses_processes(exception, expected):
    error = classify(exception)
    assert type(error) is expected
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.failure) == (expected, str(error), expected.failure)


class Ended(Dataset):
    """Samples whose reading process is ended, as the kernel does where the host's memory runs out."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.medium
def test_a_killed_reader_is_lost_and_a_failed_allocation_is_out_of_memory():
    with pytest.raises(RuntimeError) as caught:
        next(DatasetSamples(Ended(), CPU, workers=1).batches([torch.tensor([0, 1])]))
    assert isinstance(classify(caught.value), LostError)
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert isinstance(classify(caught.value), OutOfMemoryError)


def test_the_users_error_keeps_its_traceback_and_a_loss_that_is_none_per_sample_is_explained():
    class Broken(Blobs):
        def model(self, params):
            raise KeyError("no such layer")

    with pytest.raises(TaskError, match=r"(?s)Traceback.*in model.*KeyError: 'no such layer'"):
        Trainer(spec_of(), Broken(), group=Group())
    words = r"loss must have one value per sample, shape \[16\], but is a tensor of shape \[\]"
    with pytest.raises(TaskError, match=words):
        run_trial(Group(), spec_of(options={"fault": "mean loss"}))


@pytest.mark.parametrize("data", [[1, 2], (torch.zeros(3, 2), torch.zeros(4)), (torch.zeros(0, 2), torch.zeros(0))])
def test_data_that_cannot_be_trained_on_is_explained(data):
    class Odd(Blobs):
        def train_data(self, params):
            return data

    with pytest.raises(TaskError, match=r"must be a pair|3 inputs have 4 targets|no samples"):
        load_samples(Odd(), "train", {}, CPU)


@pytest.mark.parametrize(("name", "value"), [("optimizer", "sgdd"), ("shard", "fsdp"), ("epochs", 0)])
def test_a_setting_that_is_not_allowed_is_named(name, value):
    with pytest.raises(TaskError, match=name):
        run_trial(Group(), spec_of(training={name: value}))


def test_a_loss_that_is_not_finite_ends_the_trial_as_diverged(tmp_path):
    spec = spec_of(
        params={"learning_rate": 1e38}, options={"dtype": "float32"}, milestones=(3,), checkpoint_folder=str(tmp_path)
    )
    with pytest.raises(DivergedError, match=r"training loss of epoch \d is (nan|inf)"):
        run_trial(Group(), spec)


def test_a_stretch_ends_where_it_was_told_to_and_the_next_goes_on():
    whole = run_trial(Group(), spec_of())
    trainer = Trainer(spec_of(), Blobs(), group=Group())
    assert [m.epoch for m in trainer.advance(1)] == [1]
    assert [m.epoch for m in trainer.advance(99)] == [2, 3]
    for name, value in trainer.module.state_dict().items():
        assert torch.equal(value, whole["weights"][name])
    trainer.close()


def test_the_plan_of_an_epoch_holds_every_sample_once_and_as_many_steps_on_each_rank():
    for samples, size in product((1, 7, 24, 50), (1, 2, 3, 4)):
        order = permutation(samples, seed=1, epoch=1)
        plans = [plan_epoch(order, batch_per_rank=3, accumulate=2, rank=rank, world_size=size) for rank in range(size)]
        used = [i for plan in plans for one in plan if not one.is_empty for i in one.indices.tolist()]
        assert sorted(used) == list(range(samples))
        assert len({sum(one.ends_step for one in plan) for plan in plans}) == 1
        assert all(1 <= len(one.indices) <= 3 for plan in plans for one in plan)


def test_the_learning_rate_follows_the_effective_batch_and_is_warmed_up_to():
    assert scale(0.1, 4.0, resolve_rule("auto", "sgd")) == pytest.approx(0.4)
    assert scale(0.1, 4.0, resolve_rule("auto", "adamw")) == pytest.approx(0.2)
    assert scale(0.1, 4.0, resolve_rule("none", "sgd")) == 0.1
    assert scale_moments((0.9, 0.999), 1e-8, 1000.0)[0] == (0.0, 0.9)

    def rate(**more):
        given = {"base": 0.1, "scaled": 0.4, "rule": "linear", "ratio": 4.0, "warmup_steps": 10.0, "total_steps": 30}
        return LearningRate(**{**given, "schedule": "cosine", **more})

    assert [rate().at(step) for step in (0, 5, 10, 20, 30)] == pytest.approx([0.1, 0.25, 0.4, 0.2, 0.0])
    assert rate(schedule="constant").at(29) == 0.4
    assert rate(warmup_steps=0.0, schedule="constant").at(0) == 0.4
    assert rate(scaled=0.05, schedule="constant").at(0) == 0.05  # below the reference batch nothing needs a warm-up
    assert rate(warmup_steps=60.0).at(29) < 0.4
    facts = run_trial(Group(), spec_of(params={"batch_per_rank": 32}), until=0)["facts"]
    assert (facts.base_learning_rate, facts.scaled_learning_rate, facts.lr_scaling) == (0.1, 0.2, "linear")
    assert (facts.reference_batch, facts.effective_batch, facts.samples, facts.samples_per_rank) == (16, 32, 50, 50)
    assert facts.model_parameters == 4 * 16 + 16 + 16 * 3 + 3


@pytest.mark.medium
def test_tasks_and_protocol_load_no_torch():
    code = "import sys, trainers.contract.task, trainers.protocol, trainers.tasks.digits as it; it.Digits().space()"
    check = "; assert not {'torch', 'sklearn', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code + check], check=True)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("digit", {}, "unknown task 'digit', allowed: digits, .*; did you mean 'digits'\\?$"),
        ("own_task:Moon", {}, "own_task.py has no 'Moon'; did you mean 'Moons'\\?"),
        ("own_tsk:Moons", {}, "no module 'own_tsk' in .*; did you mean 'own_task'\\?"),
        ("own-task:Moons", {}, 'not of the form "module:Class"'),
        ("own_task:math", {}, "math is a module. Name a class"),
        ("digits", {"size": 3}, "task 'digits': task_options: found the unknown key 'size'"),
        ("own_task:Space", {"parameters": {}}, "lacks train_data, validation_data, model, loss, metrics"),
    ],
)
def test_a_task_that_cannot_be_loaded_is_explained_in_one_line(name, options, words):
    with pytest.raises(TaskLoadError, match=words) as caught:
        load_task(name, options, [str(EXAMPLES)])
    assert "\n" not in str(caught.value)


def test_modules_that_stand_in_for_ours_are_named_and_namesakes_not_confused(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # the folder must not stand in for ours in later rank processes
    (tmp_path / "reports").mkdir()
    load_task("digits", {}, [str(tmp_path)])
    (tmp_path / "trainers").mkdir()
    (tmp_path / "trainers" / "__init__.py").touch()
    with pytest.raises(TaskLoadError, match=str(tmp_path / "trainers" / "__init__.py")):
        load_task("digits", {}, [str(tmp_path)])
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        text = f"from tests.support.trainer_pool import Blobs\nclass Mine(Blobs):\n    number = {number}\n"
        (folder / "namesake_task.py").write_text(text)
        assert load_task("namesake_task:Mine", {}, [str(folder)]).number == number  # type: ignore[attr-defined]


def test_a_task_without_a_base_class_works():
    class Plain:
        train_data = validation_data = staticmethod(lambda params: (torch.randn(20, 2), torch.randn(20)))
        model = staticmethod(lambda params: torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Flatten(0)))
        loss = staticmethod(lambda outputs, targets: (outputs - targets) ** 2)
        metrics = staticmethod(lambda outputs, targets: {"mae": (outputs - targets).abs()})

    assert declared_metrics(Plain()) is None
    spec = TrialSpec(study="s", trial=0, task="plain", params={}, training={"epochs": 2})
    first, last = Trainer(spec, Plain(), group=Group()).advance(2)
    assert math.isfinite(last.metrics["mae"])
    assert last.metrics["train_loss"] < first.metrics["train_loss"]


@pytest.mark.medium
def test_the_probe_answers_in_json_whatever_the_task_prints(tmp_path):
    (tmp_path / "loud_task.py").write_text(
        "import os\nfrom trainers.tasks.digits import Digits\nprint('hello')\nos.write(1, b'from C')\n"
        "class Loud(Digits):\n    pass\n"
    )
    question = {"task": "loud_task:Loud", "task_options": {}, "python_path": [str(tmp_path)], "params": None}
    answer = subprocess.run(
        list(prepared_study.PROBE), input=json.dumps(question), capture_output=True, text=True, check=True
    )
    found = json.loads(answer.stdout)
    assert "hello" in answer.stderr
    assert "from C" in answer.stderr
    assert found["error"] is None
    assert (found["metrics"], found["samples"]) == (["val_accuracy", "val_error"], 1197)
    assert found["parameters"] == ["architecture", "width", "depth", "channels"]
    assert found["space"]["momentum"]["when"] == {"optimizer": "sgd"}


@pytest.mark.parametrize(
    ("task", "options", "words"),
    [
        ("tests.support.trainer_pool:Blobs", {"fault": "mean loss"}, "loss must have one value per sample"),
        ("tests.support.trainer_pool:Blobs", {"dtype": "int64"}, "trainer_pool.py:"),
        ("digitss", {}, "did you mean 'digits'"),
    ],
)
def test_the_probe_finds_a_broken_task(task, options, words):
    error = probe(task, options, [HERE])["error"]
    assert words in error
    assert "\n" not in error


class Counted(Blobs):
    """Counts the models that were built with memory."""

    built: list[int] = []  # noqa: RUF012 - a process-wide record is what the test wants

    def model(self, params):
        made = super().model(params)
        self.built.extend(parameter.numel() for parameter in made.parameters() if not parameter.is_meta)
        return made


class Applied(Blobs):
    def model(self, params):
        return super().model(params).apply(lambda part: [parameter.data.zero_() for parameter in part.parameters()])


def test_the_probe_tries_the_example_and_builds_no_whole_model_where_trials_do_not():
    of = f"{__name__}:Counted"
    assert probe(of, {}, [HERE], by_module=True)["error"] is None
    assert Counted.built == []
    assert probe(of, {}, [HERE])["error"] is None
    assert Counted.built
    found = probe(f"{__name__}:Applied", {}, [HERE], by_module=True)["error"]
    assert "init_by_module is true, but 0.weight gets values outside of the reset_parameters() of Linear" in found
    found = probe("own_task:Moons", {}, [str(EXAMPLES)])
    assert (found["error"], found["parameters"], found["samples"]) == (None, ["width"], 600)


@pytest.mark.parametrize(
    "parameter",
    [
        Int(low=1, high=5), Int(low=2, high=12, step=5), Float(low=0.0, high=1.0, step=0.25),
        Int(low=1, high=3, log=True),
    ],
)  # fmt: skip
def test_drawn_numbers_are_all_of_the_allowed_ones(parameter):
    generator = random.Random(0)
    drawn = [draw_number(parameter, generator) for _ in range(500)]
    assert all(parameter.contains(value) for value in drawn)
    step = parameter.step or 1
    assert len(set(drawn)) == 1 + round((parameter.top - parameter.low) / step)
    if not parameter.log:
        assert min(drawn.count(value) for value in set(drawn)) > 0.6 * 500 / len(set(drawn))


def test_drawn_numbers_have_their_share_of_a_log_scale_and_examples_stay_the_same():
    generator = random.Random(0)
    drawn = [draw_number(Int(low=1, high=64, log=True), generator) for _ in range(2000)]
    assert 0.4 < sum(value < 6 for value in drawn) / 2000 < 0.6, "half of the scale from 0.5 to 64.5 lies below 5.7"
    space = Space({"width": Int(low=8, high=64, step=8), "rate": Float(low=1e-3, high=1.0, log=True)})
    assert example_params(space) == example_params(space)


def test_digits_are_scikit_learns_split_without_overlap():
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    assert np.array_equal(_table(), np.column_stack([images, digits]))
    parts = [getattr(Digits(), f"{part}_data")({}) for part in ("train", "validation", "test")]
    assert [len(targets) for _, targets in parts] == [1197, 300, 300]
    assert all(targets.bincount(minlength=10).min() >= 28 for _, targets in parts)
    everything = torch.cat([inputs for inputs, _ in parts])
    assert len(everything.unique(dim=0)) == len(np.unique(images, axis=0))


@pytest.mark.medium
@pytest.mark.parametrize(
    "params",
    [
        {"optimizer": "adamw", "learning_rate": 0.01, "architecture": "mlp", "width": 128, "depth": 2},
        {"optimizer": "sgd", "learning_rate": 0.05, "momentum": 0.9, "architecture": "cnn", "channels": 16},
    ],
)
def test_digits_can_be_learned_in_twelve_epochs(params):
    spec = TrialSpec(study="s", trial=0, task="digits", params=params, training={"epochs": 12})
    *_, last = Trainer(spec, Digits(), group=Group()).advance(12)
    assert last.metrics["val_accuracy"] >= 0.975
