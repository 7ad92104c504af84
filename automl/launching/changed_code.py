"""A task whose code has changed since a study's trials were trained: whoever goes on with the study hears of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from search_spaces.wording import listed
from studies.records import StudyRecord
from trainers.code_files import hash_of


def changed_code(record: StudyRecord, folder: Path) -> str:
    """Say which files of the task are not what the latest trial was trained with.

    Args:
        record: Study as committed.
        folder: Folder from which the task is imported.

    Returns:
        One line; empty if nothing has changed, or no trial has loaded code of the user's own.
    """
    known = [
        (attempt.started_at, trial.number, attempt.facts["code_files"])
        for trial in record.started
        for attempt in trial.attempts
        if attempt.facts.get("code_files")
    ]
    if not known:
        return ""
    _, number, files = max(known, key=lambda one: one[0])
    then = cast("Mapping[str, str]", files)
    changed = [path for path in then if _has_changed(folder / path, then[path])]
    if not changed:
        return ""
    verb = "has" if len(changed) == 1 else "have"
    return (
        f"{listed(changed)} {verb} changed since trial {number} was started: "
        "values before and after may not be comparable; another study name starts anew"
    )


def _has_changed(path: Path, then: str) -> bool:
    try:
        return hash_of(path) != then
    except OSError:
        return True
