"""Changes since the latest trial of a study: of code, of data, and of values that a training function reads."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from automl.launching.functions import FOLDER
from search_spaces.wording import listed
from studies.records.records import StudyRecord
from trainers.contract.user_code import hash_of, hash_of_data


def changed_since(record: StudyRecord, folder: Path) -> list[str]:
    """Return a line for each kind of input that changed since the latest trial; paths of code are below `folder`."""
    lines = []
    for kind, hashed in (("code_files", hash_of), ("data_files", hash_of_data)):
        number, files = _latest(record, kind)
        changed = [path for path, then in files.items() if _has_changed(folder / path, then, hashed)]
        saved = [path for path in changed if path.startswith(f"{FOLDER}/")]
        named = [path for path in changed if path not in saved]
        if saved:
            function = str(record.spec.get("task")).rpartition(":")[2]
            named.append(f"the training function {function} or a value that it reads")
        if named:
            lines.append(
                f"{listed(named)} changed after trial {number} had started: values before and after the change may not "
                "be comparable. Another study name starts a new study"
            )
    return lines


def _latest(record: StudyRecord, kind: str) -> tuple[int | None, Mapping[str, str]]:
    """Return the trial of the latest attempt that recorded files of a kind, and their hashes."""
    known = [
        (attempt.started_at, trial.number, attempt.facts[kind])
        for trial in record.started
        for attempt in trial.attempts
        if attempt.facts.get(kind)
    ]
    if not known:
        return None, {}
    _, number, files = max(known, key=lambda one: one[0])
    return number, cast("Mapping[str, str]", files)


def _has_changed(path: Path, then: str, hashed: Callable[[Path], str]) -> bool:
    try:
        return hashed(path) != then
    except OSError:
        return True
