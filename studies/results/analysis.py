"""Results and costs of a study. Costs are whole nano-dollars, so that sums are exact."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from search_spaces.drawing import untried_choices
from search_spaces.messages import UserError, shown, significant
from search_spaces.parameters import Value
from search_spaces.space import Space
from studies.money.budget import WORTH_DECISIONS
from studies.records.records import (
    CHARGE_KINDS,
    NANO,
    NEXT_10_USD_PERCENT,
    OF_SAVED_MODELS,
    OWN_CHARGES,
    TRIAL_STATES,
    BudgetLine,
    ChargeRecord,
    EpochRecord,
    Objective,
    StudyRecord,
    TrialRecord,
    TrialState,
)
from studies.results import pareto
from studies.results.baselines import baseline_trials
from studies.results.confirmations import confirmation_of
from studies.results.constraints import bounded, columns, is_trial_feasible, violators
from studies.results.constraints import hypervolume as hypervolume  # noqa: PLC0414 - readers look for results here
from studies.results.constraints import milestones as milestones  # noqa: PLC0414
from studies.results.pareto import point, reference_of
from trainers.protocol import CUMULATIVE_METRICS, ParameterValue

BUDGET_LINES = ("usd", "hours", "trials")
MOST_PERCENT = 100.0
"""Largest growth of the hypervolume shown as a number: the estimate holds for small steps only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontPoint:
    """A feasible complete trial that no feasible complete trial dominates."""

    trial: int
    values: Mapping[str, float]
    params: Mapping[str, ParameterValue]


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchivePoint:
    """A feasible saved epoch that no feasible saved epoch of any trial dominates."""

    trial: int
    epoch: int
    state: TrialState
    values: Mapping[str, float]  # objectives at this epoch
    checkpoint: str | None  # absolute path of the kept model; None if it was not kept


@dataclass(frozen=True, kw_only=True, slots=True)
class CurvePoint:
    """Hypervolume of the archive after the search had cost `cost_usd` dollars."""

    cost_usd: float
    hypervolume: float


def front(study: StudyRecord) -> list[FrontPoint]:
    """Return the front, sorted by number, including all equal trials."""
    found: list[TrialRecord] = []
    points: list[pareto.Point] = []
    for trial in study.started:
        counts = trial.state == "complete" and is_trial_feasible(study, trial)
        values = point(trial.epochs[-1], study.objectives) if counts else None
        if values is not None:
            found.append(trial)
            points.append(values)
    best = (found[i] for i in pareto.front(points))
    return [FrontPoint(trial=t.number or 0, values=t.values(study.objectives), params=dict(t.params)) for t in best]


def archive(study: StudyRecord) -> list[ArchivePoint]:
    """Return the archive, sorted by trial and epoch.

    Of epochs with equal objectives, the earliest with a saved model counts.
    """
    candidates = sorted(milestones(study), key=lambda one: (one[1].checkpoint is None, one[1].measured_at))
    kept = (candidates[i] for i in pareto.archive([values for _, _, values in candidates]))
    return [
        ArchivePoint(
            trial=trial.number or 0,
            epoch=epoch.epoch,
            state=trial.state,
            values={o.metric: epoch.metrics[o.metric] for o in study.objectives},
            checkpoint=epoch.checkpoint,
        )
        for trial, epoch, _ in sorted(kept, key=lambda one: (one[0].number or 0, one[1].epoch))
    ]


def hypervolume_curve(study: StudyRecord) -> list[CurvePoint]:
    """Return how the archive's hypervolume grew with the search's dollars; empty without a reference point."""
    reference = reference_of(study)
    if reference is None:
        return []
    bound = [o.signed(reference[o.metric]) for o in study.objectives]
    curve = [CurvePoint(cost_usd=0.0, hypervolume=0.0)]
    archived: list[pareto.Point] = []
    for spent, values in _milestones_bought(study):
        grown = pareto.grown(archived, values)
        if grown is not None:
            archived, volume = grown, pareto.hypervolume(grown, bound)
            if volume > curve[-1].hypervolume:
                curve.append(CurvePoint(cost_usd=spent / NANO, hypervolume=volume))
    return [*curve, CurvePoint(cost_usd=_search_nano_usd(study) / NANO, hypervolume=curve[-1].hypervolume)]


def last_quarter(study: StudyRecord) -> tuple[float | None, float] | None:
    """Return the best value of `judged_objective` after three quarters of the search's dollars, and at the end.

    The first value is None if no epoch was feasible by then. The result is None without feasible epochs or charges.
    """
    judged = judged_objective(study.objectives)
    column, total = study.objectives.index(judged), _search_nano_usd(study)
    found = [(spent, values[column]) for spent, values in _milestones_bought(study)]
    if not found or not total:
        return None
    before = min((value for spent, value in found if spent <= 0.75 * total), default=None)
    return None if before is None else judged.signed(before), judged.signed(min(value for _, value in found))


def _search_nano_usd(study: StudyRecord) -> int:
    return sum(charge.cost_nano_usd for charge in study.charges if charge.kind not in OF_SAVED_MODELS)


def _milestones_bought(study: StudyRecord) -> Iterator[tuple[int, pareto.Point]]:
    """Yield the search's nano-dollars and signed objectives at each feasible saved epoch, in order of time."""
    # A milestone counts once its trial's start and train charges reach its `cost_usd`, or at the end.
    waiting: dict[int, list[tuple[int, pareto.Point]]] = {}
    for trial, epoch, values in milestones(study):
        waiting.setdefault(trial.number or 0, []).append((_paid_by(trial, epoch), values))
    spent, paid = 0, dict.fromkeys(waiting, 0)
    of_search = (charge for charge in study.charges if charge.kind not in OF_SAVED_MODELS)
    for charge in sorted(of_search, key=lambda c: c.charged_at):
        spent += charge.cost_nano_usd
        if charge.trial not in paid or charge.kind not in OWN_CHARGES:
            continue
        paid[charge.trial] += charge.cost_nano_usd
        queue = waiting[charge.trial]
        while queue and queue[0][0] <= paid[charge.trial] + 1:
            yield spent, queue.pop(0)[1]
    yield from ((spent, values) for queue in waiting.values() for _, values in queue)


def _paid_by(trial: TrialRecord, epoch: EpochRecord) -> int:
    """Return the cost of a trial's starts and epochs up to an epoch, in nano-dollars."""
    cost = epoch.metrics.get("cost_usd", math.nan)
    if math.isfinite(cost):
        return round(cost * NANO)
    return sum(e.cost_nano_usd for e in trial.epochs if e.epoch <= epoch.epoch)


def money_by_kind(study: StudyRecord) -> dict[str, float]:
    """Return dollars by kind of charge, including kinds without charges."""
    return dict.fromkeys(CHARGE_KINDS, 0.0) | _summed((charge.kind, charge) for charge in study.charges)


def money_by_outcome(study: StudyRecord) -> dict[str, float]:
    """Return dollars by the state of the charged trial, and overhead by kind."""
    states = {t.number: t.state for t in study.started}

    def outcome(charge: ChargeRecord) -> str:
        is_of_trial = charge.kind in OWN_CHARGES and charge.trial is not None
        return states.get(charge.trial, charge.kind) if is_of_trial else charge.kind

    return _summed((outcome(charge), charge) for charge in study.charges)


def _summed(charges: Iterable[tuple[str, ChargeRecord]]) -> dict[str, float]:
    totals: dict[str, int] = {}
    for name, charge in charges:
        totals[name] = totals.get(name, 0) + charge.cost_nano_usd
    return {name: total / NANO for name, total in totals.items()}


def next_10_usd_percents(study: StudyRecord) -> list[float]:
    """Return the expected growth of the hypervolume by ten more dollars at each decision, in percent."""
    made = [d for trial in study.started for d in trial.decisions if d.numbers.get(NEXT_10_USD_PERCENT) is not None]
    return [float(d.numbers[NEXT_10_USD_PERCENT] or 0.0) for d in sorted(made, key=lambda d: d.decided_at)]


def next_10_usd_percent(study: StudyRecord) -> float | None:
    """Return the expected growth of the hypervolume by ten more dollars, in percent: the median of latest estimates.

    None without estimates, or if slots are free: estimates are then for ten slot-hours.
    """
    latest = next_10_usd_percents(study)[-WORTH_DECISIONS:]
    is_free = bool(study.charges) and study.charges[-1].usd_per_slot_hour == 0
    return median(latest) if latest and not is_free else None


def growth_in_words(percent: float) -> str:
    """Return a growth of the hypervolume as text, such as `about 3.1 %` or `more than 100 %`."""
    return f"more than {MOST_PERCENT:g} %" if percent > MOST_PERCENT else f"about {significant(percent, 2)} %"


def earlier_names(study: StudyRecord) -> list[str]:
    """Return the names of earlier studies from which this study learns."""
    search = study.spec.get("search")
    return list(search.get("from_studies") or ()) if isinstance(search, Mapping) else []


def summary(study: StudyRecord, *, report: str | None = None) -> dict[str, object]:
    """Return the JSON of `launch --json` and `status --json`; `report` is a path."""
    states = [t.state for t in study.trials]
    document = {
        "study": study.name,
        "state": study.state,
        "driven": study.driven,
        "stop_reason": study.stop_reason,
        "error": study.error,
        "trials": {state: states.count(state) for state in TRIAL_STATES},
        "running": [_running(trial, study) for trial in study.started if trial.state == "running"],
        "front": [{"trial": p.trial, "values": p.values, "params": p.params} for p in front(study)],
        "archive": [
            {"trial": p.trial, "epoch": p.epoch, "state": p.state, "values": p.values, "checkpoint": p.checkpoint}
            | ({"confirmed": confirmation_of(study, p.trial, p.epoch)} if study.confirmations else {})
            for p in archive(study)
        ],
        "hypervolume": hypervolume(study),
        "reference_point": reference_of(study),
        "next_10_usd_percent": next_10_usd_percent(study),
        "cost_usd": study.cost_nano_usd / NANO,
        "charges": money_by_kind(study),
        "budget": {name: _line(study.budget.get(name)) for name in BUDGET_LINES},
        "overshoot_usd": study.overshoot_nano_usd / NANO,
        "wall_seconds": study.alive_seconds,
        "views": {
            one.view: {"behind": one.behind, "error": one.error} | ({"link": one.link} if one.link else {})
            for one in study.views
        },
        "report": report,
        **({"enqueued": [trial.name for trial in study.enqueued]} if study.enqueued else {}),
        **_of_constraints(study),
    }
    return {name: jsonable(value) for name, value in document.items()}


def _of_constraints(study: StudyRecord) -> dict[str, object]:
    if not study.constraints:
        return {}
    count = {bound: len(trials) for bound, trials in violators(study).items()}
    return {
        "constraints": [
            {"metric": one.metric, "min": one.min, "max": one.max}
            | {"violated_by": sum(number for bound, number in count.items() if bound.metric == one.metric)}
            for one in study.constraints
        ],
        "feasible_trials": sum(is_trial_feasible(study, trial) is True for trial in study.started),
    }


def _running(trial: TrialRecord, study: StudyRecord) -> dict[str, object]:
    attempt = trial.attempts[-1] if trial.attempts else None
    return {
        "trial": trial.number,
        "params": trial.params,
        "epochs": len(trial.epochs),
        "world_size": trial.world_size,
        "slots": attempt.slots if attempt else (),
        "values": trial.values(study.objectives),
        "started_at": attempt.started_at.isoformat(timespec="milliseconds") if attempt else None,
    }


def _line(line: BudgetLine | None) -> dict[str, float | None]:
    line = line or BudgetLine(limit=None, spent=0.0)
    return {"limit": line.limit, "spent": line.spent, "reserved": line.reserved}


def trial_rows(study: StudyRecord) -> list[dict[str, object]]:
    """Return the JSON of `trials --json`: a row for each started trial, sorted by number."""
    named = baseline_trials(study)
    rows = (trial_row(study, trial, named) for trial in study.started)
    return [{name: jsonable(value) for name, value in row.items()} for row in rows]


def trial_row(study: StudyRecord, trial: TrialRecord, named: Mapping[int, str]) -> dict[str, object]:
    """Return a trial's columns for tables; `named` has the baselines' names by trial number."""
    row: dict[str, object] = {
        "trial": trial.number,
        "state": trial.state,
        "failure": trial.failure,
        "params": trial.params,
        "values": trial.values(study.objectives),
        "epochs": len(trial.epochs),
        "world_size": trial.world_size,
        "cost_usd": trial.paid_nano_usd / NANO,
        "reason": trial.reason,
    }
    if named:
        row["baseline"] = None if trial.number is None else named.get(trial.number)
    if study.confirmations:
        row["confirmed"] = _confirmed(study, trial)
    if study.constraints:
        row |= {"feasible": is_trial_feasible(study, trial), "bounded": bounded(study, trial)}
    return row


def measured_names(study: StudyRecord) -> list[str]:
    """Return the metrics for tables: objectives, then other metrics with constraints."""
    return [column.metric for column in columns(study.objectives, study.constraints)]


def _confirmed(study: StudyRecord, trial: TrialRecord) -> dict[str, object]:
    """Return the latest confirmation of a trial in a flat mapping; {} if not confirmed."""
    found = confirmation_of(study, trial.number or 0)
    if found is None:
        return {}
    flat = {name: found[name] for name in ("epoch", "seeds", "measured_on")}
    for name in (objective.metric for objective in study.objectives):
        if name in found["metrics"]:
            flat |= {name: found["metrics"][name]["mean"], f"{name}.deviation": found["metrics"][name]["deviation"]}
    return flat


def jsonable(value: object) -> object:
    """Return a value as JSON data: NaN and infinity become None, unknown types text."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [jsonable(item) for item in value]
    return str(value)


def judged_objective(objectives: Sequence[Objective]) -> Objective:
    """Return the first objective that is no cumulative metric, else the first objective.

    Cumulative metrics are spent once a model is trained, so they do not matter for choosing it.
    """
    return next((one for one in objectives if one.metric not in CUMULATIVE_METRICS), objectives[0])


MOST_LISTED = 6  # most choices of one parameter that a sentence lists


def never_tried(study: StudyRecord) -> dict[str, list[Value]]:
    """Return the choices that no trial has, by parameter, for parameters that some trial has."""
    form = study.spec.get("space")
    if not isinstance(form, Mapping):
        return {}
    try:
        space = Space.from_dict(form)
    except UserError:  # a space that a later version wrote
        return {}
    tried = [trial.params for trial in study.started]
    asked = {name for params in tried for name in params}
    return {name: values for name, values in untried_choices(space, tried).items() if name in asked}


def never_tried_in_words(study: StudyRecord) -> str:
    """Return `never_tried` as text, such as `architecture 'residual'; optimizer 'sgd'`."""
    return "; ".join(f"{name} {_listed(values)}" for name, values in never_tried(study).items())


def _listed(values: list[Value]) -> str:
    more = len(values) - MOST_LISTED
    listed = ", ".join(map(shown, values[:MOST_LISTED]))
    return f"{listed} and {more} more" if more > 0 else listed
