"""Rows of trials in warm processes of ranks, and a task that spoils its process."""

import hashlib
import os
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch

from tests.support.forking import forking_context
from tests.support.trainer_pool import HERE, Blobs
from trainers.checkpoints.checkpoint import read_checkpoint
from trainers.protocol import Measurement, RankAssignment, TrialSpec
from trainers.ranks.group_store_server import StoreServer
from trainers.ranks.rank_messages import Failed
from trainers.ranks.rank_process import RankProcess

SPOILER = "tests.support.trial_rows:Spoiler"
_SECONDS = 240
_numbers = count()


class Spoiler(Blobs):
    """Sets what a task can set for the whole process, and then fails."""

    def model(self, params):
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_float32_matmul_precision("medium")
        torch.set_flush_denormal(True)
        torch.nn.modules.module.register_module_forward_hook(lambda _module, _inputs, outputs: outputs * 2)
        torch.autograd.set_detect_anomaly(True)
        warnings.simplefilter("error")
        os.environ["OMP_NUM_THREADS"] = "7"
        os.chdir("/")
        self.kept = super().model(params)
        raise RuntimeError("spoilt")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedTrial:
    """What rank 0 tells of a trial."""

    weights: dict[str, str]
    peak_memory_bytes: float
    wall_seconds: tuple[float, ...]
    processor_seconds: tuple[float, ...]


def in_new_processes(count: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """Call `work(rank, store, *args)` in so many processes that are new; returns what each rank answers."""
    store, context = StoreServer(), forking_context()
    where = (store.address.host, store.address.port, store.address.secret)
    pipes, processes, answers = [], [], []
    for rank in range(count):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=_answer, args=(theirs, work, rank, where, *args), daemon=True))
        processes[-1].start()
        pipes.append(ours)
    for pipe in reversed(pipes):
        assert pipe.poll(_SECONDS), "a rank does not answer"
        answers.append(pipe.recv())
        assert not isinstance(answers[-1], str), answers[-1]
    for process in processes:
        process.join(_SECONDS)
    store.close()
    return answers[::-1]


def _answer(pipe, work: Callable[..., Any], *args: Any) -> None:
    try:
        pipe.send(work(*args))
    except BaseException:  # noqa: BLE001 - whatever it is has to reach the test
        pipe.send(traceback.format_exc())


def train_row(specs: list[TrialSpec]) -> list[TrainedTrial]:
    """Train the specs one after the other in new processes; returns what is told of those that write a checkpoint."""
    return in_new_processes(max(spec.world_size for spec in specs), _trained, specs, next(_numbers))[0]


def _trained(rank: int, store: Any, specs: list[TrialSpec], row: int) -> list[Any]:
    _import_what_trials_import(compiles=any(spec.training.get("compile") for spec in specs))
    process, found = RankProcess(device="cpu", cpus_per_rank=1), []
    for number, spec in enumerate(specs):
        if rank >= spec.world_size:
            continue
        measurement, seconds = _run(process, spec, rank, f"{row}-{number}", store)
        if measurement is not None and measurement.checkpoint is not None and rank == 0:
            path = Path(measurement.checkpoint)
            found.append(
                TrainedTrial(
                    weights=_digests(read_checkpoint(path)["model"]),
                    peak_memory_bytes=measurement.metrics["peak_memory_bytes"],
                    wall_seconds=tuple(wall for wall, _ in seconds),
                    processor_seconds=tuple(processor for _, processor in seconds),
                )
            )
            path.unlink()
    return found


def _digests(weights: dict[str, torch.Tensor]) -> dict[str, str]:
    return {
        name: hashlib.sha256(value.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
        for name, value in weights.items()
    }


def _import_what_trials_import(*, compiles: bool) -> None:
    """Have modules in memory from the beginning: they stay there, and are not what is measured."""
    import torch.distributed.fsdp

    if compiles:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            import torch._inductor.compile_fx  # noqa: F401


def _run(
    process: RankProcess, spec: TrialSpec, rank: int, key: str, store: Any
) -> tuple[Measurement | None, list[tuple[float, float]]]:
    """Train a trial and let it go on after each epoch."""
    assignment = RankAssignment(key=key, rank=rank, group_id=key, store=store, one_host=True, timeout_seconds=120.0)
    last, seconds, epochs = None, [], int(str(spec.training["epochs"]))
    began = time.perf_counter(), time.process_time()
    for message in process.run(spec, assignment, 1):
        if isinstance(message, Failed):
            assert spec.task == SPOILER, message
        elif isinstance(message, list):
            last = message[-1]
            now = time.perf_counter(), time.process_time()
            seconds.append((now[0] - began[0], now[1] - began[1]))
            began = now
            if last.epoch == epochs:
                process.close(key)
            else:
                process.grant(key, last.epoch + 1)
    assert (last is None) == (spec.task == SPOILER)
    return last, seconds


def spec_with(number: int, training: dict[str, Any], *, folder: str | None = None, task: str, kind: str = "norms",
              world_size: int = 2, samples: int = 40, epochs: int = 2, **params: Any) -> TrialSpec:  # fmt: skip
    """A trial with a model of about 7 MB, in single precision and with dropout; its last epoch is a milestone."""
    options = {"dtype": "float32", "kind": kind, "dropout": 0.3, "n": samples, "n_validation": 12, "width": 768}
    return TrialSpec(
        study="row", trial=number, task=task, task_options=options, world_size=world_size, seed=number,
        params={"learning_rate": 0.01, "batch_per_rank": 4, **params},
        training={"epochs": epochs, "reference_batch": 8, **training},
        milestones=(epochs,) if folder else (), checkpoint_folder=folder, python_path=(HERE,),
    )  # fmt: skip
