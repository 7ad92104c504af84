"""Figures of a study, by name. docs/python.md lists them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

from reports import curve_figures, figures
from reports.answers_on_page import residuals
from reports.expected import calibration
from reports.figures import hypervolume
from reports.page_templates import redacted
from reports.parameter_figures import learning_rates, parallel_coordinates, parameter_names, parameter_panel, surface
from reports.plotting import Figure, figure, titled
from reports.timeline import timeline
from search_spaces.messages import UserError, found, listed, nearest
from studies.records.records import Objective, StudyRecord
from studies.results import analysis
from studies.results.analysis import ArchivePoint
from studies.results.baselines import baselines
from studies.results.confirmations import answers_of
from studies.results.importance import Effects, effects
from studies.results.recommendation import Recommendation, recommended


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """A figure of the page, with a text for screen readers."""

    figure: Figure
    label: str


@dataclass(frozen=True, slots=True)
class _Entry:
    """A figure's title, drawing function (None without data), and group and id on the page."""

    title: str
    draw: Callable[[], Figure | None]
    group: str = ""
    id: str = ""


Groups: TypeAlias = dict[str, dict[str, Drawn]]


def figures_of_page(
    study: StudyRecord,
    archive: Sequence[ArchivePoint],
    known: Mapping[str, Effects | None] | None = None,
    taken: Recommendation | None = None,
) -> Groups:
    """Return the page's figures by group and id."""
    drawn: Groups = {}
    for one in _entries(study, archive, known, taken).values():
        if one.group and (plain := one.draw()) is not None:
            drawn.setdefault(one.group, {})[one.id] = Drawn(figure=plain, label=one.title)
    if drawn:
        for place in range(len(study.objectives)):
            drawn.setdefault(f"parameters-{place}", {})
            drawn.setdefault(f"effects-{place}", {})
    return drawn


def effects_of(study: StudyRecord) -> dict[str, Effects | None]:
    """Return the parameters' effects on each objective; None if unknown."""
    return {objective.metric: effects(study, objective) for objective in study.objectives}


def _entries(
    study: StudyRecord,
    archive: Sequence[ArchivePoint],
    known: Mapping[str, Effects | None] | None = None,
    taken: Recommendation | None = None,
) -> dict[str, _Entry]:
    """Return all figures by name, in the page's order. Before the first epoch, there is only spending."""
    spending = {
        f"spending.{name}": _Entry(f"Dollars by {words}", partial(_spending, study, place))
        for place, (name, words) in enumerate((("kind", "kind of charge"), ("outcome", "outcome of their trials")))
    }
    if not any(t.epochs for t in study.started):
        return spending if study.charges else {}
    found_effects = cache(lambda objective: effects(study, objective) if known is None else known[objective.metric])
    best = cache(lambda: taken or recommended(study))

    def residuals_of_best() -> Figure | None:
        taken = best()
        return None if taken is None else residuals(answers_of(study, taken.point.trial, taken.point.epoch))

    names, shown = listed([o.metric for o in study.objectives]), curve_figures.chosen(study, archive)
    entries = {
        "trade_off": _Entry(
            f"Trials and archive: {names}", partial(figures.trade_off, study, archive), "trade_off", "trade-off"
        )
    }
    if analysis.hypervolume(study):
        title = "Hypervolume in percent of the best known, by dollars of the search"
        entries["hypervolume"] = _Entry(title, partial(hypervolume, study), "hypervolume", "hypervolume")
    for i, o in enumerate(curve_figures.learned(study)):
        draw = partial(curve_figures.learning_curves, shown, o, baselines(study))
        entries[f"curves.{o.metric}"] = _Entry(f"{o.metric} by epoch", draw, "curves", f"curves-{i}")
    for i, o in enumerate(study.objectives):
        for j, name in enumerate(parameter_names(study)):
            entries[f"parameters.{o.metric}.{name}"] = _Entry(
                f"{o.metric} by {name}",
                partial(parameter_panel, study, name, o),
                f"parameters-{i}",
                f"parameter-{i}-{j}",
            )
    entries |= spending
    for i, o in enumerate(study.objectives):

        def bars_drawn(o: Objective = o) -> Figure:
            return figures.bar_chart(figures.importance_bars_of(_shares(found_effects(o))))

        def over_two(o: Objective = o) -> Figure | None:
            return surface(study, o, over, best()) if (over := found_effects(o)) else None

        def lines(o: Objective = o) -> Figure | None:
            return parallel_coordinates(study, o, _shares(found_effects(o)))

        group, two = f"effects-{i}", f"Expected {o.metric} over the two numbers that matter most"
        entries[f"importance.{o.metric}"] = _Entry(f"Importance for {o.metric}", bars_drawn)
        entries[f"surface.{o.metric}"] = _Entry(two, over_two, group, f"surface-{i}")
        told = f"Parameters and {o.metric} of each trial as a line"
        entries[f"parallel.{o.metric}"] = _Entry(told, lines, group, f"parallel-{i}")
    return entries | {
        "residuals": _Entry(
            "Estimates of the recommended model against actual numbers", residuals_of_best, "answers", "residuals"
        ),
        "calibration": _Entry(
            "Share of forecasts that came true", partial(calibration, study), "calibration", "calibration"
        ),
        "timeline": _Entry("What each device did", partial(timeline, study), "timeline", "timeline"),
        "learning_rates": _Entry(
            "Learning rates by effective batch",
            lambda: learning_rates(study, best()),
            "learning_rates",
            "learning-rates",
        ),
    }


def _spending(study: StudyRecord, place: int) -> Figure:
    return figures.bar_chart(figures.money_bars(study)[place])


def _shares(known: Effects | None) -> Mapping[str, float]:
    return known.shares if known else {}


class FigureError(UserError, KeyError):
    """There is no such figure."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show it quoted


class Gallery(Mapping[str, Any]):
    """All figures of a study by name, as titled plotly figures that are drawn on access."""

    def __init__(self, study: StudyRecord) -> None:
        study = redacted(study)
        self._entries = _entries(study, analysis.archive(study))

    def __getitem__(self, name: str) -> Any:
        if name not in self._entries:
            allowed = listed(self._entries) or "none yet, since no trial has trained an epoch"
            raise FigureError(f"figures: {found(name, allowed, nearest(name, self._entries))}")
        one = self._entries[name]
        return figures.as_plotly(titled(one.draw() or figure([]), one.title))

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<figures: {listed(self._entries) or 'none yet'}>"

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._entries)
