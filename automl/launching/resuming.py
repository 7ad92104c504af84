"""Going on with a study: what a second launch cannot change, and limits that would leave nothing to go on with."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from search_spaces.wording import shown
from studies.records import StudyRecord
from studies.spec.errors import SpecError
from studies.spec.overrides import split_override
from studies.spec.study_spec import CHANGEABLE, NOT_COMPARED, StudySpec, differing_keys


def ignored_changes(name: str, given: StudySpec, launched: StudySpec, in_force: StudySpec) -> str:
    """What a second launch gives anew and does not get: a study goes on with the spec that it has in force.

    Args:
        name: The study.
        given: This time.
        launched: At the first time; one that was changed by `automl resume` since may be given unchanged.
        in_force: As stored.

    Returns:
        One line, empty if nothing is ignored.
    """
    sections = [section for section in NOT_COMPARED if section != "store"]
    again = differing_keys(launched, given, sections)
    ignored = [key for key in differing_keys(in_force, given, sections) if key in again]
    if not ignored:
        return ""
    changeable = [key for key in ignored if key.partition(".")[0] in CHANGEABLE]
    cure = f"; `automl resume {shlex.quote(name)} --set {changeable[0]}=...` changes it" if changeable else ""
    verb = "differs and is" if len(ignored) == 1 else "differ and are"
    return f"{name} is stored already, and its stored spec holds: {', '.join(ignored)} {verb} ignored{cure}"


def check_budget(record: StudyRecord, spec: StudySpec, overrides: Sequence[str]) -> None:
    """Refuse limits, among those that are set now, below what the study has used up already.

    Args:
        record: As committed.
        spec: With the overrides in force.
        overrides: `path=value` each.

    Raises:
        SpecError: One of them leaves nothing; the message says what is used up.
    """
    for override in overrides:
        path, _ = split_override(override)
        if path[0] != "budget":
            continue
        for name in path[1:2] or record.budget:
            problem = _problem(record, str(name), getattr(spec.budget, str(name), None))
            if problem:
                raise SpecError(f"--set {shown(override)}", ("budget", name), problem)


def _problem(record: StudyRecord, name: str, limit: float | None) -> str:
    """What is wrong with a limit, empty if it is none or leaves something. As many trials as have begun may end."""
    line = record.budget.get(name)
    if line is None or limit is None:
        return ""
    if name == "trials":
        least = f"at least the {line.spent:g} trials that have been started"
        return f"found {limit:g}, allowed: {least}" if limit < line.spent else ""
    spent = f"${line.spent:.6g}" if name == "usd" else f"{line.spent:.4g} hours"
    return f"found {limit:g}, allowed: more than what is spent ({spent})" if limit <= line.spent else ""
