"""What a study would do and cost, worked out in a process of its own: the user's code is imported for that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from automl.service.errors import ConflictError
from automl.stored.specs import stored_form
from search_spaces.errors import UserError
from studies.spec.study_spec import StudySpec

CHECK_SECONDS = 120.0
"""Longest time for a task's code to say what it is."""


def plan(spec: StudySpec, base_folder: str) -> dict[str, Any]:
    """Return the JSON of `automl launch --dry-run --json`.

    Args:
        spec: Spec that was admitted.
        base_folder: Folder in which relative paths and code start.

    Raises:
        UserError: The spec cannot be launched; the message names the key.
        ConflictError: The task's code took too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "spec.yaml")
        path.write_text(yaml.safe_dump(stored_form(spec)))
        command = [sys.executable, "-m", "automl.service.checking", str(path), base_folder]
        environment = {**os.environ, "AUTOML_STORE": spec.store}
        try:
            done = subprocess.run(  # noqa: S603 - our own program
                command, capture_output=True, text=True, timeout=CHECK_SECONDS, check=False, env=environment
            )
        except subprocess.TimeoutExpired:
            raise ConflictError(f"check: the task's code took longer than {CHECK_SECONDS:g} s") from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise UserError(lines[-1] if lines else f"check: ended with exit code {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print the plan of a spec as one line of JSON."""
    from automl.launching.dry_run import plan_of
    from automl.launching.earlier_studies import with_earlier
    from automl.launching.preparing import prepare
    from automl.launching.reading import read_spec

    path, base_folder = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        prepared = with_earlier(prepare(read_spec(path), source="spec", base_folder=base_folder))
        text = json.dumps(plan_of(prepared), allow_nan=False)
    except UserError as error:
        sys.exit(" ".join(str(error).split()))
    print(text)


if __name__ == "__main__":
    main()
