"""Hypervolume by dollars, in percent of the best known."""

from reports.baselines_on_page import hypervolumes, with_lines_at
from reports.plotting import ARCHIVE, Figure, Trace, axis, figure, short
from search_spaces.messages import significant
from studies.records.records import StudyRecord
from studies.results import analysis


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
    drawn = figure(
        [trace],
        height=320,
        showlegend=False,
        xaxis=axis("dollars of the search", tickprefix="$", rangemode="tozero"),
        yaxis=axis("hypervolume, % of the best known", ticksuffix=" %", rangemode="tozero"),
    )
    return with_lines_at(drawn, [(name, 100 * value / known) for name, value in hypervolumes(study) if value > 0])


def hypervolume_in_words(study: StudyRecord) -> str:
    """Return the figure in a line, such as `half of the money reached 93 % of it; usual trees alone 61 %`."""
    curve = analysis.hypervolume_curve(study)
    if not curve or not curve[-1].hypervolume > 0:
        return ""
    known, half = curve[-1].hypervolume, curve[-1].cost_usd / 2
    by_half = max(one.hypervolume for one in curve if one.cost_usd <= half)
    alone = [f"{name} alone {significant(100 * value / known, 3)} %" for name, value in hypervolumes(study)]
    return "; ".join([f"half of the money reached {100 * by_half / known:.3g} % of it", *alone])
