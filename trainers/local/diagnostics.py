"""Writes diagnostics of a single training: a profile, logs of batches, TensorBoard files."""

import json
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile, schedule

from trainers.local.batch_log import BatchLog, batch_log_path
from trainers.loop.trainer import Trainer
from trainers.protocol import Diagnostics, Measurement, TaskError, operations_path
from trainers.ranks.process_group import Group


@contextmanager
def diagnosed(
    wanted: Diagnostics, group: Group, trainer: Trainer | None = None
) -> Iterator[Callable[[Measurement], None]]:
    """Write diagnostics while the block trains. Raises TaskError if a file cannot be written.

    A training function has no `trainer`: each step of any torch optimizer in this process counts.
    """
    with ExitStack() as stack:
        if wanted.trace is not None and group.rank == 0:
            steps = _STEPS_IF_UNKNOWN if trainer is None else trainer.steps_left
            profiler = stack.enter_context(Profiler(wanted.trace, steps, group.device))
            if trainer is None:
                stack.callback(register_optimizer_step_post_hook(lambda *_: profiler.step()).remove)
            else:
                trainer.training.on_step = profiler.step
        if trainer is not None and wanted.rank_logs is not None:
            trainer.training.log = stack.enter_context(_rank_log(wanted.rank_logs, trainer, group))
        if wanted.tensorboard is None or group.rank != 0:
            yield lambda _measurement: None
        else:
            yield _to_tensorboard(wanted.tensorboard, stack, _gpu_monitor() if group.device.type == "cuda" else None)


def _rank_log(folder: str, trainer: Trainer, group: Group) -> BatchLog:
    path = batch_log_path(folder, group.rank)
    try:
        return BatchLog(path, group.device, trainer.steps_done)
    except OSError as error:
        raise TaskError(f"--rank-logs: {path} cannot be written ({error.strerror or error})") from None


def _gpu_monitor() -> Any:
    """Return MLflow's monitor of the load of this machine's GPUs; None if NVIDIA's library is missing."""
    with suppress(Exception):
        from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor

        return GPUMonitor()  # type: ignore[no-untyped-call]


def _to_tensorboard(folder: str, stack: ExitStack, gpus: Any) -> Callable[[Measurement], None]:
    from torch.utils.tensorboard import SummaryWriter

    try:
        writer = SummaryWriter(folder)
    except OSError as error:
        raise TaskError(f"--tensorboard: {folder} cannot be written ({error.strerror or error})") from None
    stack.callback(writer.close)

    def saw(measurement: Measurement) -> None:
        load: dict[str, float] = {}
        if gpus is not None:
            with suppress(Exception):  # a GPU that gives no figures does not end the training
                gpus.collect_metrics()
            load = {f"system/{name}": value for name, value in gpus.aggregate_metrics().items()}
            gpus.clear_metrics()
        for name, value in (measurement.figures | load).items():
            writer.add_scalar(name, value, measurement.epoch)
        writer.flush()

    return saw


MOST_OPERATIONS = 10
_STEPS = 20
_SKIPPED_STEPS = 5
_STEPS_IF_UNKNOWN = _STEPS + 2  # skips one step and warms up in one, since the training may be short
_OUR_MARK = "ProfilerStep"
_OF_THE_PROFILER = {
    "Activity Buffer Request", "Buffer Flush", "Command Buffer Full", "Driver Compiler", "Instrumentation",
    "Lazy Function Loading", "Resource", "Runtime Triggered Module Loading", "UVM Activity Init", "Unknown",
}  # fmt: skip
"""CUDA's own events (`CUpti_ActivityOverheadKind`), such as loading a kernel."""


class Profiler:
    """Profiles 20 steps after the first few. Writes a trace for ui.perfetto.dev, and `operations_path`.

    `steps` is the expected number of steps of the training, which may end earlier.
    """

    def __init__(self, trace: str | Path, steps: int, device: torch.device) -> None:
        self._trace, self._on_gpu = Path(trace), device.type == "cuda"
        warm_up = min(1, steps - 1)
        self._steps, self._most_steps = 0, min(_STEPS, steps - warm_up)
        skipped = min(_SKIPPED_STEPS, steps - warm_up - self._most_steps)
        self._before = skipped + warm_up
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_gpu else [])]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a single step without a warm-up
            plan = schedule(wait=skipped, warmup=warm_up, active=self._most_steps, repeat=1)
        self._profile: Any = profile(activities=activities, schedule=plan, on_trace_ready=self._keep, acc_events=True)

    def __enter__(self) -> "Profiler":
        self._profile.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._profile.__exit__(kind, error, where)
        if kind is None and self._steps <= self._before:
            print(
                f"warning: --profile needs more than {self._before} steps of a torch optimizer: no trace. Train longer",
                file=sys.stderr,
            )

    def step(self) -> None:
        """Count an optimizer step."""
        self._steps += 1
        self._profile.step()

    def _keep(self, found: Any) -> None:
        if self._steps <= self._before:
            return
        self._trace.parent.mkdir(parents=True, exist_ok=True)
        found.export_chrome_trace(str(self._trace))
        steps = min(self._steps - self._before, self._most_steps)
        plain = {"trace": str(self._trace), "steps": steps, "operations": self._operations(found.key_averages())}
        operations_path(self._trace).write_text(json.dumps(plain), encoding="utf-8")

    def _operations(self, rows: Iterable[Any]) -> list[dict[str, Any]]:
        """Return operations, most expensive first, with `seconds` without nested operations, and `share` of all."""
        time_of = "self_device_time_total" if self._on_gpu else "self_cpu_time_total"
        rows = [row for row in rows if not row.key.startswith(_OUR_MARK) and row.key not in _OF_THE_PROFILER]
        if self._on_gpu:  # kernels have their own rows, beside the operations that launched them
            rows = [row for row in rows if row.device_type.name == "CPU"]
        total = sum(getattr(row, time_of) for row in rows) or 1.0
        longest = sorted(rows, key=lambda row: getattr(row, time_of), reverse=True)[:MOST_OPERATIONS]
        return [
            {
                "name": row.key,
                "calls": row.count,
                "seconds": 1e-6 * getattr(row, time_of),
                "share": getattr(row, time_of) / total,
            }
            for row in longest
        ]
