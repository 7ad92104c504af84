"""Counts parameters and FLOPs of a new study's models in another process, while devices start."""

import json
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from automl.launching.prepared_study import PROBE, Prepared
from search_spaces.space import Space
from search_spaces.untrusted_text import last_line
from studies.control.assembly import has_model
from studies.search.model.size_model import Counted, SizeModel, examples_of
from studies.spec.study_spec import StudySpec
from studies.storage.study_store import Store

log = logging.getLogger(__name__)


class Counting:
    """Counts models during the `with` block, unless the counts are stored or not needed (`process` is None)."""

    def __init__(self, store: Store, row: sa.Row[Any], prepared: Prepared) -> None:
        self._store, self._study_id, self._spec = store, row.id, prepared.spec
        self._is_of_use = prepared.has_countable_models and has_model(prepared.spec.search)
        self._space = prepared.spec.space or Space({})
        self._sizes: SizeModel | None = None
        self._python_path, self._is_over = [str(prepared.base_folder)], False
        self._thread: threading.Thread | None = None
        self.process: subprocess.Popen[str] | None = None
        if row.counted_examples is not None:
            self._sizes = SizeModel(self._space, [Counted.from_plain(one) for one in row.counted_examples])

    def sizes(self) -> SizeModel | None:
        """Return the regression of model sizes, or None if nothing was counted."""
        return self._sizes

    def wait(self) -> None:
        """Wait for the counts."""
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> "Counting":
        if self._sizes is None and self._is_of_use:
            question = json.dumps(_question(self._spec, self._space, self._python_path))
            self.process = _started()
            self._thread = threading.Thread(target=self._take, args=(self.process, question), daemon=True)
            self._thread.start()
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        """End the process and its children."""
        self._is_over = True
        if self.process is not None and self._thread is not None and self._thread.is_alive():
            # The thread reads until the last process of the group, such as a worker of the task, has closed the pipes.
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.wait()

    def _take(self, process: subprocess.Popen[str], question: str) -> None:
        out, err = process.communicate(question)
        if self._is_over:
            return
        counted = _read(out, err)
        self._sizes = SizeModel(self._space, counted)
        try:
            self._store.keep_counted(self._study_id, [one.to_plain() for one in counted])
        except SQLAlchemyError as error:
            log.warning(
                "the counted parameters and operations of models could not be stored, so the next start of the study "
                "counts them again: %s",
                str(error).splitlines()[0],
            )


def _question(spec: StudySpec, space: Space, python_path: Sequence[str]) -> dict[str, Any]:
    return {
        "task": spec.task,
        "task_options": dict(spec.task_options),
        "python_path": list(python_path),
        "examples": examples_of(space),
        "training": {"samples_per_epoch": spec.training.samples_per_epoch},
    }


def _started() -> subprocess.Popen[str]:
    # The counting has its own process group, so that Ctrl-C drains the study without interrupting the counting.
    return subprocess.Popen(  # noqa: S603 - a module of this project
        PROBE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )


def _read(out: str, err: str) -> list[Counted]:
    """Return the counts that the process printed; empty if it died."""
    try:
        answer = json.loads(out)
    except ValueError:
        log.info("models were not counted: %s", last_line(err, "no answer"))
        return []
    if answer["error"]:
        log.info("models were not counted: %s", answer["error"])
    return [Counted.from_plain(one) for one in answer["counted"]]
