"""Which figures a study has: those of its page, and all of them by names for people.

| name | shows |
|---|---|
| trade_off | the trials, the front and the archive |
| hypervolume | hypervolume against dollars, in percent of the best known |
| curves.METRIC | learning curves of an objective |
| parameters.METRIC.PARAMETER | a parameter against an objective |
| spending.kind, spending.outcome | dollars by kind of charge, and by what became of the trials |
| importance.METRIC | which parameters matter for an objective |
| calibration | how often what was forecast came true |
| timeline | which trial trained on which device, idle time and faults |
| surface.METRIC | an objective over the two numeric parameters that matter most for it |
| parallel.METRIC | each trial as a line through its parameters to an objective |
| learning_rates | learning rates by effective batch, with the rule that scales them |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from reports import bars, curves, figures
from reports.calibration import calibration
from reports.hypervolume import hypervolume
from reports.learning_rates import learning_rates
from reports.parameters import parameter_names, parameter_panel, parameter_panels
from reports.plotting import Figure, figure, titled
from reports.redacted import redacted
from reports.surfaces import parallel_coordinates, surface
from reports.timeline import timeline
from search_spaces.errors import UserError
from search_spaces.wording import found, listed, nearest
from studies import analysis
from studies.analysis import ArchivePoint
from studies.baselines import baselines
from studies.importance import Effects, effects, importance
from studies.recommendation import Recommendation, recommended
from studies.records import Objective, StudyRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """A figure of the page, and what a screen reader says of it."""

    figure: Figure
    label: str


Groups: TypeAlias = dict[str, dict[str, Drawn]]


def figures_of_page(
    study: StudyRecord,
    archive: Sequence[ArchivePoint],
    known: Mapping[str, Effects | None] | None = None,
    taken: Recommendation | None = None,
) -> Groups:
    """Return the figures of the page by group and id. Ids are numbered: metrics' names may hold any character.

    Args:
        study: Study as committed, without passwords.
        archive: Its archive.
        known: What each objective depends on, by its metric; worked out if it is not given.
        taken: The recommended model, None if there is none.
    """
    if not any(t.epochs for t in study.started):
        return {}
    known = effects_of(study) if known is None else known
    names = listed([o.metric for o in study.objectives])
    drawn: Groups = {"trade_off": {"trade-off": _drawn(figures.trade_off(study, archive), f"{names} of all trials")}}
    if analysis.hypervolume(study):
        label = "Hypervolume in percent of the best known, by dollars of the search"
        drawn["hypervolume"] = {"hypervolume": _drawn(hypervolume(study), label)}
    calibrated = calibration(study)
    if calibrated is not None:
        drawn["calibration"] = {"calibration": _drawn(calibrated, "Share of forecasts that came true")}
    rows = timeline(study)
    if rows is not None:
        drawn["timeline"] = {"timeline": _drawn(rows, "What each device did, from the first charge to the last")}
    shown = curves.chosen(study, archive)
    learned, compared = curves.learned(study), baselines(study)
    if learned:
        drawn["curves"] = {
            f"curves-{i}": _drawn(
                curves.learning_curves(shown, o, compared), f"Learning curves of {o.metric}, by epoch"
            )
            for i, o in enumerate(learned)
        }
    for i, objective in enumerate(study.objectives):
        panels = parameter_panels(study, objective)
        drawn[f"parameters-{i}"] = {
            f"parameter-{i}-{j}": _drawn(panel, f"{objective.metric} by {name}")
            for j, (name, panel) in enumerate(panels.items())
        }
        drawn[f"effects-{i}"] = _effects_drawn(study, objective, known.get(objective.metric), taken, i)
    rates = learning_rates(study, taken)
    if rates is not None:
        drawn["learning_rates"] = {"learning-rates": _drawn(rates, "Learning rates by effective batch")}
    return drawn


def effects_of(study: StudyRecord) -> dict[str, Effects | None]:
    """Return what each objective depends on, by its metric; None where that is not known."""
    return {objective.metric: effects(study, objective) for objective in study.objectives}


def _drawn(plain: Figure, label: str) -> Drawn:
    return Drawn(figure=plain, label=label)


def _effects_drawn(
    study: StudyRecord, objective: Objective, known: Effects | None, taken: Recommendation | None, place: int
) -> dict[str, Drawn]:
    """The surface and the parallel coordinates of an objective, as far as there are any."""
    over_two = surface(study, objective, known, taken) if known else None
    lines = parallel_coordinates(study, objective, known.shares if known else {})
    name = objective.metric
    drawn = {
        f"surface-{place}": (over_two, f"Expected {name} over the two numbers that matter most"),
        f"parallel-{place}": (lines, f"Parameters and {name} of each trial as a line"),
    }
    return {key: _drawn(plain, label) for key, (plain, label) in drawn.items() if plain is not None}


class FigureError(UserError, KeyError):
    """There is no such figure."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show it quoted


class Gallery(Mapping[str, Any]):
    """All figures of a study by name, as plotly figures with titles; each is drawn when it is asked for.

    Args:
        study: Study as committed.
    """

    def __init__(self, study: StudyRecord) -> None:
        self._drawers = _drawers(redacted(study))

    def __getitem__(self, name: str) -> Any:
        """Return a `plotly.graph_objects.Figure`.

        Raises:
            FigureError: There is no such figure; the message names those that there are.
        """
        if name not in self._drawers:
            allowed = listed(self._drawers) or "none yet, since no trial has trained an epoch"
            raise FigureError(f"figures: {found(name, allowed, nearest(name, self._drawers))}")
        title, draw = self._drawers[name]
        return figures.as_plotly(titled(draw(), title))

    def __iter__(self) -> Iterator[str]:
        return iter(self._drawers)

    def __len__(self) -> int:
        return len(self._drawers)

    def __repr__(self) -> str:
        return f"<figures: {listed(self._drawers) or 'none yet'}>"

    def _ipython_key_completions_(self) -> list[str]:
        """Names that IPython offers after `figures["`."""
        return list(self._drawers)


_Drawers = dict[str, tuple[str, Callable[[], Figure]]]


def _drawers(study: StudyRecord) -> _Drawers:
    """By name the title of each figure, and what draws it."""
    spending: _Drawers = {
        f"spending.{name}": (f"Dollars by {words}", partial(_spending, study, place))
        for place, (name, words) in enumerate((("kind", "kind of charge"), ("outcome", "outcome of their trials")))
    }
    if not any(t.epochs for t in study.started):
        return spending if study.charges else {}
    archive = analysis.archive(study)
    drawers: _Drawers = {"trade_off": ("Trials and archive", partial(figures.trade_off, study, archive))}
    if analysis.hypervolume(study):
        drawers["hypervolume"] = ("Hypervolume by dollars of the search", partial(hypervolume, study))
    shown, compared = curves.chosen(study, archive), baselines(study)
    for o in curves.learned(study):
        drawers[f"curves.{o.metric}"] = (f"{o.metric} by epoch", partial(curves.learning_curves, shown, o, compared))
    for o in study.objectives:
        for name in parameter_names(study):
            drawers[f"parameters.{o.metric}.{name}"] = (
                f"{o.metric} by {name}",
                partial(parameter_panel, study, name, o),
            )
    drawers |= spending
    for o in study.objectives:
        drawers[f"importance.{o.metric}"] = (f"Importance for {o.metric}", partial(_importance, study, o))
        drawers[f"surface.{o.metric}"] = (f"{o.metric} over two parameters", partial(_surface, study, o))
        drawers[f"parallel.{o.metric}"] = (f"Parameters and {o.metric}", partial(_parallel, study, o))
    drawers["calibration"] = ("Forecasts that came true", partial(_calibration, study))
    drawers["timeline"] = ("What each device did", partial(_timeline, study))
    drawers["learning_rates"] = ("Learning rate by effective batch", partial(_learning_rates, study))
    return drawers


def _spending(study: StudyRecord, place: int) -> Figure:
    return figures.bar_chart(bars.money_bars(study)[place])


def _importance(study: StudyRecord, objective: Objective) -> Figure:
    return figures.bar_chart(bars.importance_bars_of(importance(study, objective)))


def _surface(study: StudyRecord, objective: Objective) -> Figure:
    known = effects(study, objective)
    return (surface(study, objective, known, recommended(study)) if known else None) or figure([])


def _parallel(study: StudyRecord, objective: Objective) -> Figure:
    return parallel_coordinates(study, objective, importance(study, objective)) or figure([])


def _calibration(study: StudyRecord) -> Figure:
    return calibration(study) or figure([])


def _timeline(study: StudyRecord) -> Figure:
    return timeline(study) or figure([])


def _learning_rates(study: StudyRecord) -> Figure:
    return learning_rates(study, recommended(study)) or figure([])
