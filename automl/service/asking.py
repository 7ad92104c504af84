"""A question to a program of ours in a process of its own, which reads what users have sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from automl.service.errors import ConflictError
from search_spaces.errors import UserError

CHECK_SECONDS = 120.0
"""Longest time for a task's code to say what it is."""


def answer_of(module: str, arguments: Sequence[str], **environment: str) -> dict[str, Any]:
    """Return the last line that a module prints, read as JSON.

    Args:
        module: Module with a `main`, which ends with exit code 0, or with one line about what is wrong.
        arguments: Its arguments.
        environment: Further variables of its environment.

    Raises:
        UserError: It ended otherwise; the message is the last line on its standard error.
        ConflictError: It took too long.
    """
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-m", module, *arguments],
            capture_output=True, text=True, timeout=CHECK_SECONDS, check=False, env={**os.environ, **environment},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ConflictError(f"check: the task's code took longer than {CHECK_SECONDS:g} s") from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise UserError(lines[-1] if lines else f"check: ended with exit code {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
