"""`automl ensemble`: combines a study's saved models, chosen greedily by validation score."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from automl.exporting.atomic_outputs import as_a_line, check_new_folder
from automl.exporting.ensemble_scores import Part, check_kind, mean, meaning, measured, part_of, part_of_test, weighted
from automl.exporting.exports import opened_sources, traced_program
from automl.exporting.manifest import manifest_of
from automl.exporting.source import Source, with_data
from automl.exporting.writers import WRITERS, Writer
from reports.phrases import plural
from studies.records.records import NANO, Objective, StudyRecord
from studies.results.recommendation import takeable
from studies.storage.schema.engine import StoreError
from trainers.data.samples import load_samples
from trainers.loop.evaluation import latency_ms

Outputs = TypeVar("Outputs")
Score = tuple[float, ...]
_LOSS = "val_loss"
_CPU = torch.device("cpu")
WHAT = "ensemble"


def selected(
    members: Sequence[Outputs],
    mean: Callable[[Sequence[Outputs]], Outputs],
    score: Callable[[Outputs], Score],
    size: int,
) -> list[int]:
    """Return each model's count in the best ensemble. Ties prefer fewer models, then the first model."""
    chosen: list[int] = []
    best: tuple[Score, int] | None = None
    for _ in range(size):
        inside = [members[place] for place in chosen]
        scores = [score(mean([*inside, one])) for one in members]
        place = min(range(len(members)), key=scores.__getitem__)
        chosen.append(place)
        if best is None or scores[place] < best[0]:
            best = scores[place], len(chosen)
    kept = chosen[: best[1]] if best else []
    return [kept.count(place) for place in range(len(members))]


@dataclass(frozen=True, kw_only=True)
class Member:
    """A saved model. `training` is its trial and its seed, which is None unless it confirms the trial."""

    name: str
    source: Source
    training: tuple[int, int | None]
    cost_nano_usd: int


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The best combination of saved models.

    Attributes:
        instead_of: The study's first objective, if predictions do not determine it (a price), else None.
        counts: Weight of each model; 0 if left out.
    """

    objective: Objective
    instead_of: str | None
    validation: Part
    counts: Sequence[int]
    best: int


def write_ensemble(
    record: StudyRecord, out: Path, *, base_folder: str, size: int, usd_per_slot_hour: float, form: str = "package"
) -> dict[str, Any]:
    """Write an ensemble of up to `size` saved models. Raises StoreError below two, ExportError for unfit models."""
    check_new_folder(out)
    members = _members(record, base_folder)
    best_together = choose(record.objectives, members, size)
    objective, counts, best = best_together.objective, best_together.counts, best_together.best
    chosen = [(member, count) for member, count in zip(members, counts, strict=True) if count]
    test = part_of_test(_sources(members))
    told: dict[str, Any] = {
        "validation": _told(members, objective, best_together.validation, counts, best),
        "test": None if test is None else _told(members, objective, test, counts, best),
    }
    metrics = measured(
        members[0].source, weighted(best_together.validation.answers, counts), best_together.validation.targets
    )
    seconds = sum(_seconds(member.source) for member, _ in chosen)
    price = seconds * usd_per_slot_hour / 3600.0
    _write(record, WRITERS[form], out, chosen, metrics, told, objective.metric, price)
    return {
        "study": record.name,
        "metric": objective.metric,
        "instead_of": best_together.instead_of,
        "best_member": members[best].name,
        **told,
        "candidates": len(members),
        "members": [{"model": member.name, "weight": count} for member, count in chosen],
        "seconds_per_prediction": seconds,
        "usd_per_prediction": price,
        "out": str(out.absolute()),
        "format": form,
    }


def choose(objectives: Sequence[Objective], members: Sequence[Member], size: int) -> Choice:
    """Choose models by the first objective that predictions determine, else by the loss, on the validation part."""
    validation, source = part_of(_sources(members), "validation"), members[0].source
    known = measured(source, validation.answers[0], validation.targets)
    objective = next((one for one in objectives if one.metric in known), Objective(metric=_LOSS))
    first = objectives[0].metric

    def score(answers: Tensor) -> tuple[float, ...]:
        found = measured(source, answers, validation.targets)
        signed, loss = objective.signed(found[objective.metric]), found[_LOSS]
        return math.inf if math.isnan(signed) else signed, math.inf if math.isnan(loss) else loss

    return Choice(
        objective=objective,
        instead_of=None if objective.metric == first else first,
        validation=validation,
        counts=selected(validation.answers, mean, score, size),
        best=min(range(len(members)), key=lambda place: score(validation.answers[place])),
    )


def _members(record: StudyRecord, base_folder: str) -> list[Member]:
    """Return the saved models of search and confirmations with equal forms of rows and predictions."""
    named: list[tuple[str, str | None, tuple[int, int | None], int]] = [
        (f"{point.trial}@{point.epoch}", point.checkpoint, (point.trial, None), _cost(record, point.trial, point.epoch))
        for point in takeable(record)
    ]
    named += [
        (f"{run.trial}@{run.epoch}, seed {run.seed}", run.checkpoint, (run.trial, run.seed), run.cost_nano_usd)
        for run in record.confirmations
    ]
    kept = [(name, path, training, cost) for name, path, training, cost in named if path]
    if len(kept) < 2:
        raise StoreError(
            f"ensemble: {record.name} has {plural(len(kept), 'saved model')}, but needs at least 2. Train more: "
            f"`automl confirm {record.name} --keep-models`"
        )
    sources = opened_sources(record, [path for _, path, _, _ in kept], base_folder, None, what=WHAT)
    found = [
        Member(name=name, source=source, training=training, cost_nano_usd=cost)
        for (name, _, training, cost), source in zip(kept, sources, strict=True)
    ]
    first = found[0].source
    check_kind(first)
    wanted = first.rows, meaning(first.answers)
    alike = [one for one in found if (one.source.rows, meaning(one.source.answers)) == wanted]
    if len(alike) < 2:
        raise StoreError(f"ensemble: the {len(found)} saved models need different inputs, so they cannot be averaged")
    return alike


def _cost(record: StudyRecord, trial: int, epoch: int) -> int:
    return sum(one.cost_nano_usd for one in record.started[trial].epochs[:epoch])


def cost_of(members: Sequence[Member]) -> int:
    """Return the trainings' cost in nano-dollars. A training counts once, up to its latest epoch."""
    costs: dict[tuple[int, int | None], int] = {}
    for one in members:
        costs[one.training] = max(one.cost_nano_usd, costs.get(one.training, 0))
    return sum(costs.values())


def _sources(members: Sequence[Member]) -> list[Source]:
    return [member.source for member in members]


def _told(
    members: Sequence[Member], objective: Objective, part: Part, counts: Sequence[int], best: int
) -> dict[str, float] | None:
    """Return an objective of ensemble and best model on a part of the data, or None if it is not computable."""
    source, metric = members[0].source, objective.metric
    ensemble = measured(source, weighted(part.answers, counts), part.targets)
    best_member = measured(source, part.answers[best], part.targets)
    return {"ensemble": ensemble[metric], "best_member": best_member[metric]} if metric in ensemble else None


def _seconds(source: Source) -> float:
    assert source.task is not None  # noqa: S101 - members have a task
    params = source.content["spec"]["params"]
    with as_a_line(WHAT):
        return latency_ms(source.call.model, load_samples(source.task, "validation", params, _CPU)) / 1000.0


def _write(  # noqa: PLR0917 - one caller passes all of them
    record: StudyRecord, writer: Writer, out: Path, chosen: Sequence[tuple[Member, int]], metrics: Mapping[str, float],
    told: Mapping[str, Any], metric: str, price: float,
) -> None:  # fmt: skip
    sources = _sources([member for member, _ in chosen])
    with as_a_line(WHAT):
        sources[0] = with_data(sources[0])
    spec, position = sources[0].content["spec"], sources[0].content["position"]
    origin = {
        "study": record.name,
        "trial": spec["trial"],
        "epoch": int(position["epoch"]),
        "values": {one.metric: metrics[one.metric] for one in record.objectives if one.metric in metrics},
        "cost_usd": cost_of([member for member, _ in chosen]) / NANO,
        "study_cost_usd": record.cost_nano_usd / NANO,
        "confirmed": None,
        "members": [
            {"model": member.name, "weight": count, "params": dict(member.source.content["spec"]["params"])}
            for member, count in chosen
        ],
        "weights": [count for _, count in chosen],
        "ensemble": {"metric": metric, **told, "usd_per_prediction": price},
    }
    manifest = manifest_of(sources, origin, metrics)
    writer([traced_program(source, what=WHAT) for source in sources], manifest, out)
