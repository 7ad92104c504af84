"""Describes the recommended model in words."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

from reports.answers_on_page import answer_lines, samples_word
from reports.baselines_on_page import against_baselines
from reports.phrases import CENT, deviation, duration, listed, number, value_in_words
from search_spaces.messages import significant
from studies.records.records import Constraint, Objective, StudyRecord
from studies.results import analysis
from studies.results.analysis import ArchivePoint, judged_objective
from studies.results.baselines import baselines
from studies.results.confirmations import confirmation_of, test_of
from studies.results.constraints import is_feasible, wanted_in_words
from studies.results.recommendation import Recommendation, best_to_train_again, name_of, recommended
from trainers.commands.command import COMMAND, HOW_TO_KEEP
from trainers.protocol import CUMULATIVE_METRICS, STDERR, TEST_SAMPLES

INTERVAL = 1.96  # standard errors on each side of a value in a 95 % interval
_COMPARATIVES: Mapping[str, tuple[str, str, str]] = {
    "_usd": ("cheaper", "more expensive", "as expensive"),
    "wall_seconds": ("faster to train", "slower to train", "as slow to train"),
    "_seconds": ("faster", "slower", "as slow"),
    "_ms": ("faster", "slower", "as slow"),
    "_bytes": ("smaller", "larger", "as large"),
    "_parameters": ("smaller", "larger", "as large"),
}
"""Words for less, for more and for several times as much, by the ending of a metric's name."""


def recommendation_lines(study: StudyRecord) -> list[str]:
    """Describe the recommended model, or the trial to train again."""
    return lines_of(study, recommended(study))


def lines_of(study: StudyRecord, found: Recommendation | None) -> list[str]:
    """Describe a recommendation in sentences, or without it the trial to train again."""
    if found is None:
        return _to_train_again(study)
    lines = [] if found.unbeaten is None else [f"No model beats {found.unbeaten.called} by more than chance."]
    lines += filter(None, (_on_test_part(study, found),))
    lines.append(f"Take {name_of(found.point)}: {_told(study, found)}.")
    lines += filter(None, (
        _confirmed(found, study.objectives), _missed(found, study.constraints), against_baselines(study, found.point),
    ))  # fmt: skip
    if found.instead_of is not None:
        lines.append(f"The search alone would have named {name_of(found.instead_of)}.")
    lines += [
        *_within_noise(study, found),
        *_trade_offs(study, found),
        *answer_lines(study, found.point.trial, found.point.epoch),
    ]
    if params := _params(found.params):
        lines.append(f"Its parameters: {params}.")
    return lines


def _on_test_part(study: StudyRecord, found: Recommendation) -> str:
    """Describe the test values of the recommended model and the baselines; empty if not measured."""
    name, measured = found.judged.metric, found.tested or {}
    if name not in measured:
        return ""
    size = measured.get(TEST_SAMPLES)
    told = [f"{name_of(found.point)} has {name} {tested_value(study, found.point.trial, found.point.epoch)}"]
    if name == "val_rmse" and "val_r2" in measured:
        told[0] += f" (R² {measured['val_r2']:.2f})"
    for one in baselines(study):
        its = None if one.trial is None or one.epoch is None else test_of(study, one.trial, one.epoch)
        if its is not None and name in its and one.trial != found.point.trial:
            told.append(f"{one.called} {value_in_words(name, its[name])}")
    samples = "" if size is None else f"{size:,.0f} "
    return f"On {samples}unseen {samples_word(study)}: {'; '.join(told)}."


def tested_value(study: StudyRecord, trial: int, epoch: int) -> str:
    """Return a model's deciding objective on the test part, with its 95 % interval; empty if not measured."""
    name, measured = judged_of(study), test_of(study, trial, epoch) or {}
    if name not in measured:
        return ""
    return f"{value_in_words(name, measured[name])}{plus_minus(name, measured.get(f'{name}{STDERR}'), measured[name])}"


def judged_of(study: StudyRecord) -> str:
    """Return the name of the objective that decides the recommendation."""
    return judged_objective(study.objectives).metric


def plus_minus(name: str, stderr: float | None, value: float) -> str:
    """Return ` ± ` and half the 95 % interval of a metric; empty without a standard error."""
    return "" if stderr is None else f" ± {deviation(name, INTERVAL * stderr, value)}"


def _told(study: StudyRecord, found: Recommendation) -> str:
    """Return the recommended model's objectives, with a 95 % interval of the deciding objective unless confirmed."""
    judged, point = found.judged.metric, found.point
    noise = "" if found.confirmed else plus_minus(judged, found.stderr, point.values[judged])
    names = [one.metric for one in study.objectives]
    return ", ".join(f"{named_value(study, point, name)}{noise if name == judged else ''}" for name in names)


def _within_noise(study: StudyRecord, found: Recommendation) -> list[str]:
    """Describe why a better model by the deciding objective was not chosen; empty without such a model."""
    other = found.lowest
    if other is None:
        return []
    name = found.judged.metric
    told = f"{name_of(other)} has {name} {value_in_words(name, other.values[name])}, better by no more than chance"
    if other.state != "complete":
        return [f"{told}, and its training was cut short."]
    compared = _compared(study, other, found)
    return [f"{told}, and is {listed(compared)}."] if compared else [f"{told}."]


def _compared(study: StudyRecord, other: ArchivePoint, found: Recommendation) -> list[str]:
    rest = [one for one in study.objectives if one != found.judged]
    words = Counter(_COMPARATIVES.get(_ending(one)) for one in rest)
    return [
        compared_in_words(
            one, other.values[one.metric], found.point.values[one.metric],
            is_named=words[_COMPARATIVES.get(_ending(one))] > 1,
        )
        for one in rest
    ]  # fmt: skip


def _trade_offs(study: StudyRecord, found: Recommendation) -> list[str]:
    judged = found.judged
    only_costs = all(one.metric in CUMULATIVE_METRICS for one in study.objectives if one != judged)
    lines = []
    for other in found.trade_offs:
        its, taken = (value_in_words(judged.metric, one.values[judged.metric]) for one in (other, found.point))
        confirmed = confirmed_on_part(study, other.trial, other.epoch)
        told = f"{judged.metric} {its}{f' (confirmed: {confirmed})' if confirmed else ''} instead of {taken}"
        which = "If you train it often, {0} is {1}" if only_costs else "{1}: {0}"
        lines.append(f"{which.format(name_of(other), listed(_compared(study, other, found)))}, with {told}.")
    return lines


def _to_train_again(study: StudyRecord) -> list[str]:
    """Describe the best trial of a study without saved models; empty without trials."""
    best = best_to_train_again(study)
    if best is None:
        return []
    told = ", ".join(named_value(study, best, one.metric) for one in study.objectives)
    lines = [f"No model was kept. Of the epochs at which automl saves models, {name_of(best)} is the best: {told}."]
    params = _params(study.started[best.trial].params)
    lines += [f"Train again with: {params}."] if params else []
    if study.spec.get("task") == COMMAND:
        lines.append(HOW_TO_KEEP)
    return lines


def _params(params: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in params.items())


def command_of(study: StudyRecord, point: ArchivePoint) -> str:
    """Return the export command for a model, or "" if it was not saved. Only torch modules have a folder."""
    if not point.checkpoint or study.not_trained_here:
        return ""
    facts = [attempt.facts for attempt in study.started[point.trial].attempts]
    known = [cast("Sequence[str]", one["models"]) for one in facts if "models" in one]
    models = list(known[-1]) if known else None
    out = "model.pt" if study.spec.get("task") == COMMAND or models == [] else "model"
    command = f"automl export {shlex.quote(study.name)} {name_of(point)} --out {out}"
    return (
        f"{command} --model {shlex.quote(models[0])}"
        if models and len(models) > 1 and "model" not in models
        else command
    )


def named_value(study: StudyRecord, point: ArchivePoint, name: str) -> str:
    """Return an objective's name and value. A cost below a cent becomes `trained in 43 s`."""
    seconds = _seconds(study, point)
    if name == "cost_usd" and 0 <= point.values[name] < CENT and seconds is not None:
        return f"trained in {duration(seconds)}"
    return f"{name} {value_of(study, point, name)}"


def _seconds(study: StudyRecord, point: ArchivePoint) -> float | None:
    return study.started[point.trial].epochs[point.epoch - 1].metrics.get("wall_seconds")


def value_of(study: StudyRecord, point: ArchivePoint, name: str) -> str:
    """Format an objective of a saved model, as `value_in_words` does."""
    return value_in_words(name, point.values[name], _seconds(study, point))


def last_quarter_in_words(study: StudyRecord) -> str:
    """Describe the gain of the last quarter of the search's money; empty if unknown."""
    found = analysis.last_quarter(study)
    if found is None or study.state == "running":
        return ""
    name = judged_of(study)
    before, after = (value_in_words(name, value) for value in found)
    if found[0] == found[1]:
        return f"did not improve {name}"
    return f"improved {name} from {before} to {after}" if before else "found the first model"


def _confirmed(found: Recommendation, objectives: Sequence[Objective]) -> str:
    """Describe the objectives from trainings with new seeds; empty without such trainings."""
    if found.confirmed is None:
        return ""
    told = [
        f"{name} {text}"
        for name in (one.metric for one in objectives)
        if (text := confirmed_value(found.confirmed, name))
    ]
    if not told:
        return ""
    seeds, part = found.confirmed["seeds"], found.confirmed["measured_on"]
    trainings = "with a fresh seed" if seeds == 1 else f"with {seeds} fresh seeds (mean ± standard deviation)"
    return f"Trained again {trainings}, its configuration has {', '.join(told)} on the {part} part."


def _missed(found: Recommendation, constraints: Sequence[Constraint]) -> str:
    """Name the constraints that a model violates on average over new seeds."""
    measured = {} if found.confirmed is None else found.confirmed["metrics"]
    broken = [
        f"{one.metric} {confirmed_value(found.confirmed, one.metric)}, where {wanted_in_words([one])} is wanted"
        for one in constraints
        if one.metric in measured and not is_feasible({one.metric: measured[one.metric]["mean"]}, [one])
    ]
    return f"With fresh seeds it misses a constraint: {listed(broken)}." if broken else ""


def confirmed_value(confirmed: Mapping[str, Any] | None, name: str) -> str:
    """Format a confirmed metric as `mean ± deviation`; empty if it was not confirmed."""
    one = None if confirmed is None else confirmed["metrics"].get(name)
    if one is None:
        return ""
    spread = "" if one["deviation"] is None else f" ± {deviation(name, one['deviation'], one['mean'])}"
    return f"{value_in_words(name, one['mean'])}{spread}"


def confirmed_on_part(study: StudyRecord, trial: int, epoch: int | None = None) -> str:
    """Return a model's confirmed first objective, such as `4 % ± 1.4 %, test`, or ""."""
    confirmed = confirmation_of(study, trial, epoch)
    text = confirmed_value(confirmed, study.objectives[0].metric)
    return f"{text}, {confirmed['measured_on']}" if confirmed is not None and text else ""


def _ending(objective: Objective) -> str:
    is_minimized = objective.direction == "minimize"  # less profit is not cheaper
    return next((end for end in _COMPARATIVES if is_minimized and objective.metric.endswith(end)), "")


def compared_in_words(objective: Objective, value: float, base: float, *, is_named: bool = False) -> str:
    """Compare two values in words: `5 times cheaper`, `39 % slower`, `4 times as large`."""
    name = objective.metric
    if value == base:
        return f"the same in {name}"
    if value <= 0 or base <= 0:
        return f"at {name} {value_in_words(name, value)}"
    ending = _ending(objective)
    less, more, as_much = _COMPARATIVES[ending] if ending else ("lower", "higher", "as high")
    ratio = max(value / base, base / value)
    if ratio < 2:
        said = f"{significant(100 * abs(value / base - 1), 2)} % {more if value > base else less}"
    else:
        said = f"{significant(ratio, 2)} times {as_much if value > base else less}"
    return said if ending and not is_named else f"{said} in {name}"
