"""Shows a model's mistakes on validation samples, and the columns of the data that it needs.

See `trainers.loop.epoch_metrics`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports.figures import Bar
from reports.phrases import NOTHING, listed, number, percent, plural, value_in_words
from reports.plotting import COLOURS, Figure, Trace, axis, cut, escape, figure, markers
from search_spaces.messages import shown
from studies.records.records import Objective, StudyRecord
from studies.results.analysis import ArchivePoint, judged_objective
from studies.results.confirmations import answers_of

MOST_CLASSES = 10  # most classes that have a column in the table
_MOST_NAMED, _MOST_BARS = 3, 12
_LEAST = 0.02  # smallest effect with a bar, as a share of the largest effect
_LONGEST = 24
SAMPLES: Mapping[str, str] = {"tabular": "rows", "text": "texts", "vision": "images"}


def samples_word(study: StudyRecord) -> str:
    """Return the noun for a task's samples, such as rows."""
    return SAMPLES.get(str(study.spec.get("task")), "samples")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassRow:
    """A class, with the predictions for its samples and the most common mistake."""

    label: str
    samples: int
    recall: float  # infinite without samples
    recognised: str  # recall in percent
    counts: Sequence[int]
    mistake: str


def answers_on_page(study: StudyRecord, point: ArchivePoint | None) -> dict[str, object]:
    """Return the template's values for the section on a model's predictions; empty if none are stored."""
    found = {} if point is None else answers_of(study, point.trial, point.epoch)
    if point is None or not found:
        return {}
    classes, importance = class_rows(found), found.get("importance", {})
    is_wide = len(classes) > MOST_CLASSES
    objective, more = judged_objective(study.objectives), importance.get("left_out", 0)
    return {
        "model": f"{point.trial}@{point.epoch}",
        "samples": f"{found['samples']:,} {samples_word(study)}",
        "classes": sorted(classes, key=lambda one: one.recall)[:MOST_CLASSES] if is_wide else classes,
        "labels": [] if is_wide else [cut(one.label, _LONGEST) for one in classes],
        "judged": objective.metric,
        "columns": _column_bars(importance, objective),
        "base": value_in_words(objective.metric, importance.get("metrics", {}).get(objective.metric)),
        "left_out": f"{plural(more, 'further column')} would have taken too long." if more else "",
    }


def answer_lines(study: StudyRecord, trial: int, epoch: int) -> list[str]:
    """Return sentences about a model's mistakes and the columns that it needs."""
    found = answers_of(study, trial, epoch)
    lines = [_recognised(class_rows(found), samples_word(study)), _distances(found)]
    return [line for line in (*lines, _needed(found, judged_objective(study.objectives))) if line]


def class_rows(found: Mapping[str, Any]) -> list[ClassRow]:
    """Return a row for each class; empty if the model predicts numbers."""
    labels, rows = found.get("labels", []), []
    for place, counts in enumerate(found.get("counts", [])):
        total, wrong = sum(counts), [*counts[:place], 0, *counts[place + 1 :]]
        usual = max(range(len(wrong)), key=wrong.__getitem__)
        recall = counts[place] / total if total else math.inf
        rows.append(ClassRow(
            label=labels[place], samples=total, recall=recall, recognised=percent(recall) if total else NOTHING,
            counts=counts, mistake=f"{shown(labels[usual])} ({wrong[usual]:,})" if wrong[usual] else "",
        ))  # fmt: skip
    return rows


def residuals(found: Mapping[str, Any]) -> Figure | None:
    """Plot predicted against actual numbers; None without numbers."""
    points = found.get("points", [])
    if not points:
        return None
    actual, estimates = zip(*points, strict=True)
    ends = [min(*actual, *estimates), max(*actual, *estimates)]
    texts = [f"actual {number(one)}<br>estimate {number(other)}" for one, other in points]
    dots = markers(actual, estimates, texts, name="a validation sample", color=COLOURS["complete"], opacity=0.5, size=6)
    line = {"color": COLOURS["pruned"], "dash": "dot", "width": 1.5}
    exact: Trace = {"type": "scatter", "mode": "lines", "x": ends, "y": ends, "name": "exact", "hoverinfo": "skip"}
    name = escape(cut(str(found.get("column", "")), _LONGEST))
    return figure(
        [dots, {**exact, "line": line}], height=380, xaxis=axis(f"actual {name}"), yaxis=axis(f"estimated {name}")
    )


def _effects(importance: Mapping[str, Any], objective: Objective) -> dict[str, tuple[float, float]]:
    """Return how much worse the objective is with each column shuffled, largest first, and its value then."""
    name, base = objective.metric, importance.get("metrics", {}).get(objective.metric)
    if base is None:
        return {}
    values = {column: one[name] for column, one in importance["columns"].items() if name in one}
    worse = {column: (objective.signed(one) - objective.signed(base), one) for column, one in values.items()}
    return dict(sorted(worse.items(), key=lambda one: -one[1][0]))


def _column_bars(importance: Mapping[str, Any], objective: Objective) -> list[Bar]:
    effects = _effects(importance, objective)
    most = max((worse for worse, _ in effects.values()), default=0.0)
    if most <= 0:
        return []
    told = [name for name, (worse, _) in effects.items() if worse >= _LEAST * most][:_MOST_BARS]
    bars = [
        Bar(
            name=cut(name, _LONGEST), text=value_in_words(objective.metric, effects[name][1]),
            share=100 * effects[name][0] / most, colour=COLOURS["complete"],
        )
        for name in told
    ]  # fmt: skip
    if others := len(effects) - len(told):
        text = f"at most {value_in_words(objective.metric, list(effects.values())[len(told)][1])}"
        bars.append(Bar(name=plural(others, "other column"), text=text, share=0.0, colour=COLOURS["pruned"]))
    return bars


def _recognised(rows: Sequence[ClassRow], samples: str) -> str:
    known = [one for one in rows if one.samples]
    if not known:
        return ""
    is_short = len(known) <= _MOST_NAMED + 1
    known = known if is_short else sorted(known, key=lambda one: one.recall)[:_MOST_NAMED]
    told = [f"{one.recognised} of {one.samples:,} of {shown(one.label)}" for one in known]
    samples += ", taking the more probable class" if len(rows) == 2 else ""  # an export may have another threshold
    return f"Of the validation {samples}, it recognises {'' if is_short else 'least: '}{listed(told)}."


def _distances(found: Mapping[str, Any]) -> str:
    if not found.get("within"):
        return ""
    half, most = (number(one, 3) for one in found["within"])
    name = shown(found["column"])
    return f"Half of its estimates of {name} are at most {half} from the actual number, and 9 of 10 at most {most}."


def _needed(found: Mapping[str, Any], objective: Objective) -> str:
    effects = _effects(found.get("importance", {}), objective)
    most = [(name, value) for name, (worse, value) in effects.items() if worse > 0][:_MOST_NAMED]
    if not most:
        return "It depends on no single column: shuffling any of them does not make it worse." if effects else ""
    names, left_out = listed([shown(name) for name, _ in most]), found["importance"]["left_out"]
    if left_out > len(effects):
        return ""  # the largest may be among them
    tried = f", of {len(effects)} tried" if left_out else ""
    metric = objective.metric
    base = value_in_words(metric, found["importance"]["metrics"][metric])
    return (
        f"The columns that it needs most{tried}: {names}. With shuffled {shown(most[0][0])}, {metric} is "
        f"{value_in_words(metric, most[0][1])} instead of {base}."
    )
