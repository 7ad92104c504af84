"""What a study would do and cost, worked out in a process of its own: the user's code is imported for that."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from automl.service.asking import answer_of, telling
from automl.stored.specs import stored_form
from studies.spec.study_spec import StudySpec
from studies.spec.yaml_reader import write_yaml


def plan(spec: StudySpec, base_folder: str) -> dict[str, Any]:
    """Return the JSON of `automl launch --dry-run --json`.

    Args:
        spec: Spec that was admitted.
        base_folder: Folder in which relative paths and code start.

    Raises:
        UserError: The spec cannot be launched; the message names the key.
        ConflictError: The task's code took too long.
        BusyError: Too many checks are worked out now.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "spec.yaml")
        path.write_text(write_yaml(stored_form(spec)), encoding="utf-8")
        return answer_of("automl.service.checking", [str(path), base_folder], AUTOML_STORE=spec.store)


def main() -> None:
    """Print the plan of a spec as one line of JSON."""
    from automl.launching.dry_run import plan_of
    from automl.launching.earlier_studies import with_earlier
    from automl.launching.preparing import prepare
    from automl.launching.reading import read_spec

    path, base_folder = Path(sys.argv[1]), Path(sys.argv[2])
    with telling():
        prepared = with_earlier(prepare(read_spec(path), source="spec", base_folder=base_folder))
        text = json.dumps(plan_of(prepared, project=prepared.spec.study.partition(".")[0]), allow_nan=False)
    print(text)


if __name__ == "__main__":
    main()
