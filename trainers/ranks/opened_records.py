"""Closes what a training function opened, which would otherwise record the next trial of this process, too.

Runs of trackers, TensorBoard's writers, handlers of loggers, exit handlers of the user's code, and a process group.
"""

import atexit
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch.distributed as dist

from trainers.ranks.process_group import destroy_group

_ENDS: dict[str, Callable[[Any, bool], object]] = {
    "mlflow": lambda mlflow, failed: [
        mlflow.end_run(("FINISHED", "FAILED")[failed]) for _ in iter(mlflow.active_run, None)
    ],
    # It reads its environment, which names group and trial, once until it is torn down.
    "wandb": lambda wandb, failed: (wandb.finish(exit_code=int(failed)), wandb.teardown()),
    "comet_ml": lambda comet, _: comet.end(),
    "clearml": lambda clearml, failed: _end_clearml(clearml.Task.current_task(), failed=failed),
}
_WRITER = "_AsyncWriterThread"
"""Class of the thread of a TensorBoard writer, which keeps its last points for two minutes."""


@contextmanager
def closing_records(folders: Sequence[str]) -> Iterator[None]:
    """Close what the block opens; `folders` have the user's code."""
    threads, handlers, had_group = set(threading.enumerate()), _handlers(), dist.is_initialized()
    exits, register = list[Callable[[], object]](), atexit.register

    def registered(call: Callable[..., object], *arguments: Any, **named: Any) -> Callable[..., object]:
        file = sys._getframe(1).f_code.co_filename  # noqa: SLF001 - the caller's file
        if "site-packages" in file or not file.startswith(tuple(folders)):
            return register(call, *arguments, **named)
        exits.append(partial(call, *arguments, **named))
        return call

    atexit.register = registered  # type: ignore[assignment]
    try:
        yield
    finally:
        atexit.register = register
        failed = sys.exc_info()[0] is not None
        ends = [partial(end, sys.modules[name], failed) for name, end in _ENDS.items() if name in sys.modules]
        new = (one for one in set(threading.enumerate()) - threads if type(one).__name__ == _WRITER)
        closing: list[Callable[[], object]] = [*reversed(exits), *ends, *(partial(_close_writer, one) for one in new)]
        for close in closing:
            with suppress(Exception):  # an error of a record must not fail the training, which has ended
                close()
        for logger, handler in _handlers() - handlers:
            if not _is_of_library(logger):
                logger.removeHandler(handler)
                handler.close()
        if not had_group:
            destroy_group()


def _end_clearml(task: Any, *, failed: bool) -> None:
    if task is not None:
        (task.mark_failed if failed else task.mark_completed)()
        task.close()


def _close_writer(thread: Any) -> None:
    thread.stop()
    thread._record_writer.flush()  # noqa: SLF001 - nothing else leads to the file
    thread._record_writer.close()  # noqa: SLF001


def _handlers() -> set[tuple[logging.Logger, logging.Handler]]:
    loggers = (logging.root, *logging.root.manager.loggerDict.values())
    return {(one, handler) for one in loggers if isinstance(one, logging.Logger) for handler in one.handlers}


def _is_of_library(logger: logging.Logger) -> bool:
    """Return whether an installed library owns a logger; it sets its handlers up only once in a process."""
    module = sys.modules.get(logger.name.partition(".")[0])
    return "site-packages" in str(getattr(module, "__file__", ""))
