"""Nothing of one trial in the next: what a trial leaves in its process is undone."""

import functools
import gc
import importlib
import multiprocessing
import os
import random
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, register_optimizer_step_post_hook

from tests.support.trainer_pool import HERE, messages_of, spec_of
from trainers.contract.user_code import code_files, hash_of
from trainers.loop.trainer import Trainer
from trainers.protocol import TaskError, TrialSpec
from trainers.ranks.process import Remains, cpus_of_each_gpu, free_memory
from trainers.ranks.process_group import Group
from trainers.ranks.process_state import ProcessState
from trainers.ranks.rank_messages import Failed
from trainers.ranks.rank_process import RankProcess
from trainers.trial_settings import settings_of


def _hook(*_: object) -> None:
    return


CHANGES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "default dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    "default device": (lambda: torch.set_default_device("meta"), torch.get_default_device),
    "matmul precision": (lambda: torch.set_float32_matmul_precision("medium"), torch.get_float32_matmul_precision),
    "tf32 by its newer name": (
        lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
        lambda: torch.backends.cuda.matmul.fp32_precision,
    ),
    "cudnn.allow_tf32": (
        lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
        lambda: torch.backends.cudnn.allow_tf32,
    ),
    "cudnn.benchmark": (
        lambda: setattr(torch.backends.cudnn, "benchmark", True), lambda: torch.backends.cudnn.benchmark
    ),
    "cudnn.deterministic": (
        lambda: setattr(torch.backends.cudnn, "deterministic", True), lambda: torch.backends.cudnn.deterministic
    ),
    "deterministic algorithms": (
        lambda: torch.use_deterministic_algorithms(True, warn_only=True), torch.are_deterministic_algorithms_enabled
    ),
    "grad mode": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
    "anomaly mode": (lambda: torch.autograd.set_detect_anomaly(True), torch.is_anomaly_enabled),
    "autocast": (lambda: torch.set_autocast_enabled("cpu", True), lambda: torch.is_autocast_enabled("cpu")),
    "denormals": (lambda: torch.set_flush_denormal(True), lambda: sys.float_info.min * random.choice([0.5]) == 0.0),
    "numpy errors": (lambda: np.seterr(all="ignore"), np.geterr),
    "threads": (lambda: torch.set_num_threads(3), torch.get_num_threads),
    "math attention": (lambda: torch.backends.cuda.enable_math_sdp(False), torch.backends.cuda.math_sdp_enabled),
    "cudnn attention": (lambda: torch.backends.cuda.enable_cudnn_sdp(False), torch.backends.cuda.cudnn_sdp_enabled),
    "fp16 sums": (
        lambda: setattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", True),
        lambda: torch.backends.cuda.matmul.allow_fp16_accumulation,
    ),
    "autocast cache": (lambda: torch.set_autocast_cache_enabled(False), torch.is_autocast_cache_enabled),
    "gradients in threads": (
        lambda: torch.autograd.set_multithreading_enabled(False), torch._C._is_multithreading_enabled
    ),
    "uninitialized memory": (
        lambda: setattr(torch.utils.deterministic, "fill_uninitialized_memory", False),
        lambda: getattr(torch.utils.deterministic, "fill_uninitialized_memory"),  # noqa: B009 - a property of a module
    ),
    "compiler": (
        lambda: setattr(torch._dynamo.config, "suppress_errors", True), lambda: torch._dynamo.config.suppress_errors
    ),
    "forward hooks": (
        lambda: nn.modules.module.register_module_forward_hook(_hook),
        lambda: len(nn.modules.module._global_forward_hooks),
    ),
    "optimizer hooks": (
        lambda: register_optimizer_step_post_hook(_hook),
        lambda: len(_global_optimizer_post_hooks),
    ),
    "environment": (lambda: os.environ.update(PATH="/nowhere", OF_A_TRIAL="1"), lambda: dict(os.environ)),
    "removed variable": (lambda: os.environ.pop("PATH"), lambda: dict(os.environ)),
    "working folder": (lambda: os.chdir("/"), os.getcwd),
    "import path": (lambda: sys.path.insert(0, "/of-a-trial"), lambda: list(sys.path)),
    "warning filters": (lambda: warnings.simplefilter("ignore"), lambda: list(warnings.filters)),
    "recursion limit": (lambda: sys.setrecursionlimit(5000), sys.getrecursionlimit),
    "garbage collection": (gc.disable, gc.isenabled),
    "start method": (
        lambda: multiprocessing.set_start_method("spawn", force=True),
        lambda: multiprocessing.get_start_method(allow_none=True),
    ),
}  # fmt: skip
"""What a trial may change: how, and how to look at it."""


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_process_is_undone(name: str) -> None:
    change, look = CHANGES[name]
    state, before = ProcessState(), look()
    try:
        change()
        assert look() != before
    finally:
        state.restore()
    assert look() == before
    assert torch.get_float32_matmul_precision() == "highest", "not refused because older and newer names are mixed"
    assert torch.backends.cudnn.allow_tf32


def test_generators_signal_handlers_and_working_folders_are_set_back(tmp_path: Path) -> None:
    import signal

    state = ProcessState()
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    state.restore()
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
    (tmp_path / "gone").mkdir()
    state, before = ProcessState(), Path.cwd()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    state.restore()
    assert Path.cwd() == before

    def drawn() -> tuple[float, float, float]:
        return torch.rand(()).item(), float(np.random.rand()), random.random()

    state = ProcessState()
    state.restore()
    first = drawn()
    state.restore()
    assert drawn() == first


class Cyclic(nn.Linear):
    """A model that is part of a reference cycle."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.__dict__["itself"] = self


def test_models_in_cycles_are_freed_and_nothing_is_collected_without_need(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[int] = []
    collect = gc.collect
    monkeypatch.setattr(gc, "collect", lambda generation=2: collected.append(generation) or collect(generation))
    gone, cyclic = Remains(nn.Linear(2, 2).parameters()), Remains(Cyclic().parameters())
    free_memory(gone)
    assert collected == []
    assert cyclic.remain()
    free_memory(cyclic)
    assert collected == [1]
    assert not cyclic.remain()


def test_a_part_of_a_node_has_the_gpus_that_it_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLURM and Kubernetes give a job twelve CPUs and two of eight GPUs, all of which the driver lists."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    listed, devices, no_quota = tmp_path / "gpus", tmp_path / "dev", tmp_path / "cpu.max"
    devices.mkdir()
    for number in range(8):
        (listed / f"0000:0{number}").mkdir(parents=True)
        # A link to nothing stands for a device that the job's cgroup refuses: not even root has access.
        (devices / f"nvidia{number}").symlink_to(devices if number in (2, 3) else tmp_path / "refused")
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (devices / name).touch()
    assert cpus_of_each_gpu(devices, listed, no_quota) == 6
    assert cpus_of_each_gpu(tmp_path / "none", listed, no_quota) == 1


COMPILABLE = {"kind": "compilable", "dtype": "float32", "n": 32}


def test_processes_that_read_data_take_the_cpus_that_gpus_leave(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / "gpus" / f"0000:0{number}").mkdir(parents=True)
    gpus, none, quota = tmp_path / "gpus", tmp_path / "none", tmp_path / "cpu.max"
    mine = len(os.sched_getaffinity(0))
    assert cpus_of_each_gpu(none, gpus, quota) == max(1, mine // 4)
    quota.write_text("max 100000\n")
    assert cpus_of_each_gpu(none, none, quota) == mine
    quota.write_text("100000 100000\n")
    assert cpus_of_each_gpu(none, none, quota) == 1
    auto, fixed = settings_of(spec_of()), settings_of(spec_of(training={"data_workers": 3}))
    assert [auto.data_processes(cpus) for cpus in (0, 1, 4, 96)] == [0, 0, 3, 8]
    assert [fixed.data_processes(cpus) for cpus in (0, 96)] == [3, 3]


@pytest.mark.large
def test_a_trial_finds_nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch gives up compiling one piece of code after 8 variants in a process."""
    from torch._dynamo.utils import counters

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))  # it counts graphs, too
    graphs = []
    for number in range(2):
        counters.clear()
        spec = spec_of(options=COMPILABLE | {"width": 4 + number}, training={"epochs": 1, "compile": True})
        trainer = Trainer(spec, _task(spec), group=Group())
        list(trainer.advance(1))
        trainer.close()
        graphs.append(counters["stats"]["unique_graphs"])
    assert len(set(graphs)) == 1
    assert graphs[0] >= 1
    assert torch._dynamo.convert_frame.FRAME_COUNTER == 0


class Counting(nn.Module):
    """A model whose computation depends on a Python number that changes in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.steps = nn.Linear(5, 3), 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return self.inside(inputs) * self.steps


@pytest.mark.large
def test_a_model_that_is_not_compiled_any_more_fails_its_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainers.model.network.RECOMPILE_LIMIT", 2)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))  # it counts variants, too
    task = _task(spec_of(options={"dtype": "float32"}))
    task.model = lambda params: Counting()
    spec = spec_of(training={"epochs": 2, "compile": True})
    trainer = Trainer(spec, task, group=Group())
    with pytest.raises(TaskError, match=r"compile is true, but the model needs more than 2 variants .* set compile to"):
        list(trainer.advance(2))
    trainer.close()


def _task(spec: TrialSpec) -> Any:
    from trainers.contract.task_loading import load_task

    return load_task(spec.task, spec.task_options, spec.python_path)


GREEDY = """
import os, torch, warnings
from tests.support.trainer_pool import Blobs

os.environ["SET_BY_MODULE"] = "yes"

class Greedy(Blobs):
    def __init__(self, fault=None):
        super().__init__(dtype="float32")
        self.spoils = fault == "spoil"
        torch.set_float32_matmul_precision("high")

    def model(self, params):
        assert torch.get_float32_matmul_precision() == "high", "of the constructor, also where the task is kept"
        assert os.environ["SET_BY_MODULE"] == "yes"
        assert torch.get_default_dtype() == torch.float32
        if params["spoil"]:
            torch.set_default_dtype(torch.float64)
            torch.use_deterministic_algorithms(True)
            os.environ.clear()
            torch.nn.modules.module.register_module_forward_hook(lambda *_: 1 / 0)
            raise RuntimeError("spoilt")
        return super().model(params)
"""


def told(rank: RankProcess, spec: TrialSpec) -> Any:
    """Train to the end and return the last validation loss, or the failure."""
    *_, last = messages_of(rank, spec, 3, f"{spec.trial}-{id(spec)}")
    return last if isinstance(last, Failed) else last[-1].metrics["val_loss"]


@pytest.mark.usefixtures("process_as_before")  # a rank leaves what its kept task has set until its next trial
def test_a_trial_that_spoils_its_process_does_not_spoil_the_next(tmp_path, monkeypatch) -> None:
    (tmp_path / "greedy_task.py").write_text(GREEDY)
    monkeypatch.syspath_prepend(tmp_path)
    good = replace(
        spec_of(params={"spoil": False}), task="greedy_task:Greedy", python_path=(HERE, str(tmp_path)), task_options={}
    )
    bad = replace(good, params=dict(good.params) | {"spoil": True})
    rank = RankProcess(device="cpu", cpus_per_rank=1)
    first = told(rank, good)
    assert isinstance(first, float), first
    assert "spoilt" in told(rank, bad).message
    assert told(rank, good) == first
    assert told(rank, replace(good, task_options={"fault": "other"})) == first, "the module is not run again"


def test_the_users_own_modules_are_known_as_they_were_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "own_task_with_parts.py": "import own_parts.layers\nimport installed_package\n",
        "own_parts/__init__.py": "",
        "own_parts/layers.py": "WIDTH = 3\n",
        "own_parts/unused.py": "",
        ".venv/lib/site-packages/installed_package.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path / ".venv/lib/site-packages")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("own_task_with_parts")
    loaded = code_files([str(tmp_path)])
    assert list(loaded) == ["own_parts/__init__.py", "own_parts/layers.py", "own_task_with_parts.py"]
    layers = tmp_path / "own_parts" / "layers.py"
    assert loaded["own_parts/layers.py"] == hash_of(layers)
    layers.write_text("WIDTH = 4\n")
    assert code_files([str(tmp_path)]) == loaded, "this process still runs what it has loaded"
    assert loaded["own_parts/layers.py"] != hash_of(layers)


def test_our_own_code_is_none_of_the_users_and_the_root_of_a_file_system_is_a_folder() -> None:
    assert not code_files([str(Path(__file__).parents[2] / "trainers")])
    assert code_files([Path(__file__).anchor])
