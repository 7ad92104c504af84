"""Whether a study's code logs to MLflow by itself, and the experiment that it logs to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from studies.control.own_logging import OwnLogging
from studies.spec.study_spec import StudySpec
from trainers.commands.command import COMMAND, Command

_PROGRAM = (sys.executable, "-P", "-m", "studies.storage.mlflow_experiment")
_SECONDS = 60.0
_WORD = b"mlflow"
_MOST_BYTES = 2**24


def own_logging(spec: StudySpec, study_uid: str, folder: Path) -> tuple[OwnLogging, str]:
    """Return where the code of a study logs, and a warning, empty if there is none.

    Args:
        spec: Spec in force, with absolute paths.
        study_uid: Identity of the study.
        folder: Folder in which the code is.
    """
    wanted = spec.mlflow != "off" and "MLFLOW_TRACKING_URI" not in os.environ and uses_mlflow(spec, folder)
    problem = _made(spec.mlflow, spec.study) if wanted else ""
    uri = spec.mlflow if wanted and not problem else ""
    warning = f"the code's own calls of MLflow are left alone: {problem}" if problem else ""
    return OwnLogging(study=spec.study, study_uid=study_uid, mlflow=uri), warning


def uses_mlflow(spec: StudySpec, folder: Path) -> bool:
    """Return whether the files that a command names, or the module of a training function, contain the word."""
    for path in _files(spec, folder):
        with suppress(OSError):
            if path.is_file() and path.stat().st_size <= _MOST_BYTES and _WORD in path.read_bytes():
                return True
    return False


def _files(spec: StudySpec, folder: Path) -> Iterator[Path]:
    if spec.task == COMMAND:
        command = Command.of(spec.task_options)
        for part in command.parts:
            yield from (folder / command.folder / text for text in (part if isinstance(part, tuple) else (part,)))
    elif ":" in spec.task:
        module = folder.joinpath(*spec.task.partition(":")[0].split("."))
        yield from (module.with_name(f"{module.name}.py"), module / "__init__.py")


def _made(uri: str, study: str) -> str:
    """Make the experiment in a process of its own, which loads MLflow; returns why that failed, empty if it did not."""
    question = json.dumps({"uri": uri, "study": study})
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            _PROGRAM, input=question, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"MLflow has given no answer within {_SECONDS:g} s"
    return done.stdout.strip() or (f"exit status {done.returncode}" if done.returncode else "")
