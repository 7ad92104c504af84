"""`automl ab`: champion and challenger side by side, by what was confirmed and by what they have answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from automl.exporting.errors import ExportError
from automl.registry.registered import COMPARED_WITH, Registry, Version, numbers_of
from automl.registry.served_answers import Answered, answered, outcomes_in
from automl.registry.significance import FEWEST, LossDifference, compare_losses
from automl.standalone.serving.roles import CHALLENGER, CHAMPION


def ab_of(registry: Registry, name: str, metric: str, answers: Path | None, outcomes: Path | None) -> dict[str, Any]:
    """Compare the versions of a model that requests are shared between.

    Args:
        registry: The registry.
        name: Name of the model.
        metric: The study's first objective.
        answers: Folder with what was answered over HTTP; None compares what was confirmed.
        outcomes: File with what turned out to be true; None if nothing is known yet.

    Returns:
        Plain values: `model`, `metric`, `versions` (one for each version that has an alias or has answered),
        `comparison` (of what was answered; None if that is too little) and `lines`, what it means in words.

    Raises:
        ExportError: There is no champion or no challenger, or a file cannot be read.
    """
    registered = registry.versions(name)
    known = {} if outcomes is None else outcomes_in(outcomes)
    served = {} if answers is None else answered(answers, known)
    champion = _with_alias(registered, CHAMPION, name)
    challenger = _with_alias(registered, CHALLENGER, name)
    shown = {one.label: one for one in registered if one in (champion, challenger) or one.label in served}
    rows = [_row(one, metric, served.get(one.label)) for one in shown.values()]
    rows += [{"confirmed": None, **one.plain()} for label, one in served.items() if label not in shown]
    comparison = None
    lines = _offline(challenger)
    if answers is not None:
        ours, theirs = (served.get(one.label) or Answered(version=one.label, role="") for one in (challenger, champion))
        comparison = compare_losses(ours.losses, theirs.losses)
        lines.append(_online(ours, theirs, comparison))
    return {
        "model": name,
        "metric": metric,
        "versions": rows,
        "comparison": None if comparison is None else comparison.plain(),
        "lines": lines,
    }


def _with_alias(versions: list[Version], alias: str, name: str) -> Version:
    for one in versions:
        if alias in one.aliases:
            return one
    have = f"its versions are {numbers_of(versions)}" if versions else "it has no versions"
    raise ExportError(f"STUDY: found no {alias} of the model {name!r} ({have}); `automl promote` makes one")


def _row(version: Version, metric: str, one: Answered | None) -> dict[str, Any]:
    confirmed = json.loads(version.tags.get("automl.confirmed", "null"))
    figures = {} if confirmed is None else confirmed["metrics"]
    role = next((alias for alias in (CHAMPION, CHALLENGER) if alias in version.aliases), None)
    found = {} if one is None else one.plain()
    mean = figures[metric]["mean"] if metric in figures else None
    return {**found, "version": version.label, "role": role, "confirmed": mean}


def _offline(challenger: Version) -> list[str]:
    told, other = challenger.tags.get("automl.comparison"), challenger.tags.get(COMPARED_WITH)
    against = f", with version {other} as champion" if other else ""
    return [f"When {challenger.label} was promoted{against}: {told}."] if told else []


def _online(ours: Answered, theirs: Answered, found: LossDifference | None) -> str:
    counts = f"{len(ours.losses)} outcomes of {ours.version} and {len(theirs.losses)} of {theirs.version}"
    if found is None:
        return (
            f"{counts} are known, which is too little to compare what they answered: "
            f"{FEWEST} of each are needed (--outcomes FILE)."
        )
    verdict = {
        "better": f"{ours.version} is better than {theirs.version}",
        "worse": f"{ours.version} is worse than {theirs.version}",
        "undecided": f"neither {ours.version} nor {theirs.version} is better beyond chance",
    }[found.verdict]
    what = "error" if ours.counts_errors else "mean squared error"
    return (
        f"On what was answered {verdict}: the difference of the {what} is {found.difference:+.4g} "
        f"[{found.low:+.4g}, {found.high:+.4g}], by {counts}, two-sided p = {found.chance:.3g} "
        "(Welch's test; it holds for one look, not for looking until it suits)."
    )
