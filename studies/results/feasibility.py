"""Feasible milestones of a study, and their hypervolume."""

from collections.abc import Mapping

from studies.records.records import EpochRecord, StudyRecord, TrialRecord
from studies.results import constraints, pareto
from studies.results.pareto import point, reference_of


def milestones(study: StudyRecord) -> list[tuple[TrialRecord, EpochRecord, pareto.Point]]:
    """Return all feasible milestones with finite objectives, by trial and epoch, signed (smaller is better)."""
    return [
        (trial, epoch, values)
        for trial in study.started
        for epoch in trial.epochs
        if epoch.is_milestone
        and constraints.is_feasible(epoch.metrics, study.constraints)
        and (values := point(epoch, study.objectives)) is not None
    ]


def hypervolume(study: StudyRecord, reference: Mapping[str, float] | None = None) -> float | None:
    """Return the hypervolume of the archive; None until a reference point is known (in the metrics' own signs)."""
    reference = reference or reference_of(study)
    if reference is None:
        return None
    bound = [o.signed(reference[o.metric]) for o in study.objectives]
    return pareto.hypervolume([values for _, _, values in milestones(study)], bound)


def best_values(study: StudyRecord) -> dict[str, float]:
    """Return the best value of each objective among feasible milestones, in its own sign; empty without any."""
    points = [values for _, _, values in milestones(study)]
    columns = zip(study.objectives, zip(*points, strict=True), strict=True) if points else ()
    return {objective.metric: objective.signed(min(column)) for objective, column in columns}


def is_feasible(study: StudyRecord, trial: TrialRecord) -> bool | None:
    """Return whether the trial keeps all constraints at its last epoch; None before the first."""
    return constraints.is_feasible(trial.epochs[-1].metrics, study.constraints) if trial.epochs else None


def feasible_in_words(study: StudyRecord) -> str:
    """Return the number of measured trials that keep all constraints, such as `3 of 12 measured trials`.

    Trials pruned at a bound count too: `0 of 12 measured trials at their last epoch, 2 more at an earlier one`.
    """
    measured = [trial for trial in study.started if trial.epochs]
    kept = {trial.id for trial in measured if is_feasible(study, trial)}
    earlier = {trial.id for trial, _, _ in milestones(study)} - kept
    trials = "measured trial" if len(measured) == 1 else "measured trials"
    more = f" at their last epoch, {len(earlier)} more at an earlier one" if earlier else ""
    return f"{len(kept)} of {len(measured)} {trials}{more}"


def violations(study: StudyRecord, trial: TrialRecord) -> str:
    """Return the constraints that the trial violates at its last epoch, in words; empty without any."""
    return constraints.in_words(trial.epochs[-1].metrics, study.constraints) if trial.epochs else ""


def bounded(study: StudyRecord, trial: TrialRecord) -> dict[str, float]:
    """Return the bounded metrics at the trial's last epoch, by name; empty before the first epoch."""
    last = trial.epochs[-1].metrics if trial.epochs else {}
    return {one.metric: last[one.metric] for one in study.constraints if one.metric in last}


def violators(study: StudyRecord) -> dict[constraints.Bound, list[TrialRecord]]:
    """Return the trials that violate each bound at their last epoch, by number."""
    found: dict[constraints.Bound, list[TrialRecord]] = {one: [] for one in constraints.bounds_of(study.constraints)}
    for trial in study.started:
        for bound in constraints.violated(trial.epochs[-1].metrics, study.constraints) if trial.epochs else ():
            found[bound].append(trial)
    return found


def nothing_feasible(study: StudyRecord) -> str:
    """Return a sentence with the nearest trial if every measured trial violates constraints; else empty."""
    measured = [trial for trial in study.started if trial.epochs]
    if not study.constraints or not measured or milestones(study) or any(is_feasible(study, t) for t in measured):
        return ""
    nearest = min(measured, key=lambda t: constraints.total_violation(t.epochs[-1].metrics, study.constraints))
    wanted, count = constraints.wanted_in_words(study.constraints), len(measured)
    none = "the only measured trial is not feasible" if count == 1 else f"none of {count} measured trials is feasible"
    return f"{none} ({wanted}); nearest is trial {nearest.number}: {violations(study, nearest)}"
