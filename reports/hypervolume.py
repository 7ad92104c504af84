"""Hypervolume by dollars, in percent of the best known, and the search's forecast for more dollars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reports.baselines_on_page import hypervolumes, with_lines_at
from reports.phrases import usd
from reports.plotting import ARCHIVE, Figure, Trace, axis, figure, short
from search_spaces.wording import significant
from studies.records.records import StudyRecord
from studies.results import analysis
from studies.results.analysis import CurvePoint

NEXT_SHARE = 0.25
"""Further dollars of the forecast, as a share of the dollars spent."""
MOST_NEXT_USD = 10.0
"""Most dollars of the forecast: the search estimates the gain from this amount."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """Growth expected from `usd` more dollars, and of the last `usd`, in percent of the present hypervolume."""

    usd: float
    percent: float
    last_percent: float


def outlook(study: StudyRecord) -> Outlook | None:
    """Return the growth that a quarter more dollars, at most ten, would buy; None without or beyond an estimate."""
    rate = analysis.next_10_usd_percent(study)
    curve = analysis.hypervolume_curve(study) if rate is not None and rate > 0 else []
    if rate is None or not curve:
        return None
    more = min(NEXT_SHARE * curve[-1].cost_usd, MOST_NEXT_USD)
    if more <= 0:
        return None
    percent = rate * more / 10
    if percent > analysis.MOST_PERCENT:
        return None
    return Outlook(usd=more, percent=percent, last_percent=_bought_last(curve, more))


def _bought_last(curve: Sequence[CurvePoint], dollars: float) -> float:
    """Return the growth of the hypervolume over the last dollars, in percent of its present value."""
    known, since = curve[-1].hypervolume, curve[-1].cost_usd - dollars
    before = max((one.hypervolume for one in curve if one.cost_usd <= since), default=0.0)
    return 100 * (known - before) / known if known > 0 else 0.0


def outlook_in_words(study: StudyRecord) -> str:
    """Return the dashed forecast of the figure as a sentence; empty without a forecast."""
    found = outlook(study)
    if found is None:
        return ""
    growth = significant(found.percent, 2)
    return f"The dashed line is the search's forecast: {usd(found.usd)} more would buy about {growth} %."


def hypervolume(study: StudyRecord) -> Figure:
    """Return the archive's hypervolume by dollars in percent of its present value; dotted lines are the baselines'."""
    curve = analysis.hypervolume_curve(study)
    known = curve[-1].hypervolume
    trace: Trace = {
        "type": "scatter",
        "mode": "lines",
        "name": "found",
        "x": [short(p.cost_usd) for p in curve],
        "y": [short(100 * p.hypervolume / known) for p in curve],
        "customdata": [short(p.hypervolume) for p in curve],
        "line": {"color": ARCHIVE, "width": 2, "shape": "hv"},
        "fill": "tozeroy",
        "fillcolor": "rgba(194, 89, 27, 0.10)",
        "hovertemplate": "$%{x:.4g}<br>%{y:.4g} % of the best known<br>hypervolume %{customdata:.4g}<extra></extra>",
    }
    ahead = outlook(study)
    data = [trace] if ahead is None else [trace, _forecast(curve[-1].cost_usd, ahead)]
    drawn = figure(
        data,
        height=320,
        showlegend=ahead is not None,
        xaxis=axis("dollars of the search", tickprefix="$", rangemode="tozero"),
        yaxis=axis("hypervolume, % of the best known", ticksuffix=" %", rangemode="tozero"),
    )
    return with_lines_at(drawn, [(name, 100 * value / known) for name, value in hypervolumes(study) if value > 0])


def hypervolume_in_words(study: StudyRecord) -> str:
    """Return the figure in a line, such as `93 % of the best known by half of the dollars; usual trees alone 61 %`."""
    curve = analysis.hypervolume_curve(study)
    if not curve or not curve[-1].hypervolume > 0:
        return ""
    known, half = curve[-1].hypervolume, curve[-1].cost_usd / 2
    by_half = max(one.hypervolume for one in curve if one.cost_usd <= half)
    alone = [f"{name} alone {significant(100 * value / known, 3)} %" for name, value in hypervolumes(study)]
    return "; ".join([f"{100 * by_half / known:.3g} % of the best known by half of the dollars", *alone])


def _forecast(spent: float, ahead: Outlook) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "forecast",
        "x": [short(spent), short(spent + ahead.usd)],
        "y": [100, short(100 + ahead.percent)],
        "line": {"color": ARCHIVE, "width": 2, "dash": "dash"},
        "hovertemplate": "$%{x:.4g}<br>forecast: %{y:.4g} % of the best known<extra></extra>",
    }
