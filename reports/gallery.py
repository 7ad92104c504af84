"""Which figures a study has: those of its page, and all of them by names for people.

| name | shows |
|---|---|
| trade_off | the trials, the front and the archive |
| hypervolume | hypervolume against dollars |
| curves.METRIC | learning curves of an objective |
| parameters.METRIC.PARAMETER | a parameter against an objective |
| spending.kind, spending.outcome | dollars by kind of charge, and by what became of the trials |
| importance.METRIC | which parameters matter for an objective |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from reports import content, curves, figures
from reports.parameters import parameter_names, parameter_panel, parameter_panels
from reports.plotting import Figure, titled
from reports.redacted import redacted
from search_spaces.errors import UserError
from search_spaces.wording import found, listed, nearest
from studies import analysis
from studies.analysis import ArchivePoint
from studies.records import Objective, StudyRecord


def figures_of_page(study: StudyRecord, archive: Sequence[ArchivePoint]) -> dict[str, dict[str, Figure]]:
    """Return the figures of the page by group and id. Ids are numbered: metrics' names may hold any character."""
    if not any(t.epochs for t in study.started):
        return {}
    drawn = {"trade_off": {"trade-off": figures.trade_off(study, archive)}}
    if analysis.hypervolume(study):
        drawn["hypervolume"] = {"hypervolume": figures.hypervolume(study)}
    shown = curves.chosen(study, archive)
    learned = curves.learned(study)
    if learned:
        drawn["curves"] = {f"curves-{i}": curves.learning_curves(shown, o) for i, o in enumerate(learned)}
    for i, objective in enumerate(study.objectives):
        panels = parameter_panels(study, objective).values()
        drawn[f"parameters-{i}"] = {f"parameter-{i}-{j}": panel for j, panel in enumerate(panels)}
    return drawn


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
        drawers["hypervolume"] = ("Hypervolume by dollars spent", partial(figures.hypervolume, study))
    shown = curves.chosen(study, archive)
    for o in curves.learned(study):
        drawers[f"curves.{o.metric}"] = (f"{o.metric} by epoch", partial(curves.learning_curves, shown, o))
    for o in study.objectives:
        for name in parameter_names(study):
            drawers[f"parameters.{o.metric}.{name}"] = (
                f"{o.metric} by {name}",
                partial(parameter_panel, study, name, o),
            )
    drawers |= spending
    for o in study.objectives:
        drawers[f"importance.{o.metric}"] = (f"Importance for {o.metric}", partial(_importance, study, o))
    return drawers


def _spending(study: StudyRecord, place: int) -> Figure:
    return figures.bar_chart(content.money_bars(study)[place])


def _importance(study: StudyRecord, objective: Objective) -> Figure:
    return figures.bar_chart(content.importance_bars_of(study, objective))
