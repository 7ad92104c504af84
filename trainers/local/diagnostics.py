"""Diagnostics of a single training: a profile, batch logs, TensorBoard files."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from trainers.local.batch_log import BatchLog, batch_log_path
from trainers.loop.trainer import Trainer
from trainers.protocol import Diagnostics, Measurement, TaskError
from trainers.ranks.process_group import Group


@contextmanager
def diagnosed(
    wanted: Diagnostics, group: Group, trainer: Trainer | None = None
) -> Iterator[Callable[[Measurement], None]]:
    """Write the wanted diagnostics while the block trains; raises TaskError if a file cannot be written."""
    with ExitStack() as stack:
        if trainer is not None and wanted.trace is not None and group.rank == 0:
            from trainers.local.torch_profile import Profiler  # takes a second to load

            profiler = stack.enter_context(Profiler(wanted.trace, trainer.steps_left, group.device))
            trainer.training.on_step = profiler.step
        if trainer is not None and wanted.rank_logs is not None:
            trainer.training.log = stack.enter_context(_rank_log(wanted.rank_logs, trainer, group))
        if wanted.tensorboard is None or group.rank != 0:
            yield lambda _measurement: None
        else:
            yield _to_tensorboard(wanted.tensorboard, stack)


def _rank_log(folder: str, trainer: Trainer, group: Group) -> BatchLog:
    path = batch_log_path(folder, group.rank)
    try:
        return BatchLog(path, group.device, trainer.steps_done)
    except OSError as error:
        raise TaskError(f"--rank-logs: {path} cannot be written ({error.strerror or error})") from None


def _to_tensorboard(folder: str, stack: ExitStack) -> Callable[[Measurement], None]:
    """Return a function that writes each metric as a scalar by epoch, flushed at once."""
    from torch.utils.tensorboard import SummaryWriter

    try:
        writer = SummaryWriter(folder)
    except OSError as error:
        raise TaskError(f"--tensorboard: {folder} cannot be written ({error.strerror or error})") from None
    stack.callback(writer.close)

    def saw(measurement: Measurement) -> None:
        for name, value in measurement.figures.items():
            writer.add_scalar(name, value, measurement.epoch)
        writer.flush()

    return saw
