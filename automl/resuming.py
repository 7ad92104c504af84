"""`automl resume --set budget...`: a new limit must leave something to go on with."""

from __future__ import annotations

from collections.abc import Sequence

from search_spaces.wording import shown
from studies.records import StudyRecord
from studies.spec import StudySpec
from studies.spec_errors import SpecError
from studies.spec_overrides import split_override


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
