"""Draws a study as one HTML file that works offline.

Users' text cannot become code: the template escapes values, figures escape text for plotly, and the content security
policy runs scripts by hash and loads nothing.
"""

import base64
import contextlib
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from markupsafe import Markup

from reports import content, curve_figures, figures
from reports.answers_on_page import answers_on_page
from reports.expected import calibration_lines, savings_lines
from reports.front_picture import front_picture
from reports.gallery import effects_of, figures_of_page
from reports.page_templates import Packed, packed, redacted, template
from reports.parameter_figures import MOST_DOTS
from reports.phrases import is_share, mapping, number, usd
from reports.recommending import command_of, judged_of, lines_of
from reports.timeline import timeline_line
from studies.records.records import StudyRecord
from studies.results import analysis
from studies.results.analysis import ArchivePoint, never_tried_in_words
from studies.results.constraints import columns
from studies.results.pareto import reference_of
from studies.results.recommendation import recommended, takeable
from studies.spec.yaml_reader import write_yaml

_UNITS: Mapping[str, Mapping[str, float]] = {
    "_usd": {"$": 1.0},
    "_ms": {"ms": 1.0},
    "_seconds": {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 0.001},
    "_bytes": {"GB": 1e9, "MB": 1e6, "kB": 1e3, "bytes": 1.0},
    "model_parameters": {"M": 1e6, "": 1.0},
}
"""Units, largest first, with their size in the metric's own unit, by the ending of its name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """A limit that readers may set: the "most" or "least" of a metric in units of `scale`: 0.01 is percent."""

    name: str
    column: int
    side: str
    unit: str
    scale: float
    hint: str


def limits(study: StudyRecord, archive: Sequence[ArchivePoint]) -> list[Limit]:
    """Return a limit per metric except the first objective; empty below two models."""
    if len(archive) < 2:
        return []
    trials = {trial.number: trial for trial in study.started}
    models = [trials[point.trial].epochs[point.epoch - 1].metrics for point in archive]
    found = []
    for column, one in enumerate(columns(study.objectives, study.constraints)):
        values = [value for metrics in models if math.isfinite(value := metrics.get(one.metric, math.nan))]
        if column and len(set(values)) > 1:
            unit, scale = _unit(one.metric, values)
            shown = usd if unit == "$" else number
            found.append(
                Limit(
                    name=one.metric,
                    column=column,
                    side="least" if one.direction == "maximize" else "most",
                    unit=unit,
                    scale=scale,
                    hint=f"{shown(min(values) / scale)} to {shown(max(values) / scale)}",
                )
            )
    return found


def _unit(name: str, values: Sequence[float]) -> tuple[str, float]:
    sizes = next((sizes for ending, sizes in _UNITS.items() if name.endswith(ending)), None)
    if sizes is None:
        return ("%", 0.01) if all(is_share(name, value) for value in values) else ("", 1.0)
    largest, units = max(map(abs, values)), list(sizes.items())
    return next((one for one in units if one[1] <= largest), units[-1])


FIRST_ROWS = 150
"""Most table rows in plain HTML. Other rows are packed, because a browser that lays out a thousand rows draws its first
chart a second later."""
MOST_ROWS = 1000  # most trials that the table shows at once; beyond, a button shows the packed rows


def write_report(study: StudyRecord, out: Path) -> Path:
    """Write a study's page, completely or not at all."""
    return replace_file(out, render(study))


def replace_file(out: Path, text: str) -> Path:
    """Replace a file's text completely or not at all. Returns the absolute path."""
    out = Path(out).absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(out)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
    return out


def render(study: StudyRecord) -> str:
    """Return the page as text, without passwords."""
    study = redacted(study)
    study = replace(study, reference_point=reference_of(study))  # worked out once
    archive = analysis.archive(study)
    taken = recommended(study)
    known = effects_of(study)
    drawn = figures_of_page(study, archive, known, taken)
    by_kind, by_outcome = figures.money_bars(study)
    return template("page.html").render(
        study=study,
        data=packed(as_json({name: one.figure for group in drawn.values() for name, one in group.items()})),
        drawn=drawn,
        still=front_picture(drawn["trade_off"]["trade-off"].figure) if drawn else "",
        archive=content.archive_rows(study, archive),
        has_models=bool(takeable(study)),
        baselines=content.baseline_rows(study),
        answers=answers_on_page(study, None if taken is None else taken.point),
        never_tried=never_tried_in_words(study),
        limits=limits(study, archive),
        lead=content.lead(study, archive),
        recommendation=lines_of(study, taken),
        taking=command_of(study, taken.point) if taken else "",
        measured=analysis.measured_names(study),
        more=[content.MORE[name] for name in content.more_names(study)],
        judged=judged_of(study),
        constraints=content.constraints_line(study),
        earlier=content.earlier_line(study),
        bests=content.bests(study, archive),
        facts=content.facts(study),
        mattered=content.mattered_lines(
            {name: one for name, one in known.items() if one}, None if taken is None else taken.params
        ),
        failures=content.failure_rows(study),
        by_kind=by_kind,
        by_outcome=by_outcome,
        savings=savings_lines(study, archive),
        calibration=calibration_lines(study),
        timeline=timeline_line(study),
        importance={name: figures.importance_bars_of(one.shares) if one else [] for name, one in known.items()},
        dots=MOST_DOTS,
        learned=curve_figures.learned(study),
        curves_shown=len(curve_figures.chosen(study, archive)),
        trained=sum(1 for t in study.started if t.epochs),
        schedule=mapping(study.spec.get("training")).get("schedule"),
        spec_yaml=write_yaml(analysis.jsonable(study.spec)),
        **_table(study),
        **page_parts(),
    )


def page_parts() -> dict[str, object]:
    """Return the template values of every page: content security policy and scripts."""
    own_script = _own_script()
    return {
        "policy": _policy(plotly_script(), own_script),
        "plotly": _packed_plotly(),
        "script": Markup(own_script),  # noqa: S704 - our own file
    }


def _table(study: StudyRecord) -> dict[str, object]:
    heads, rows = content.trial_table(study)
    more = [[(cell.text, cell.sort, cell.css, cell.full) for cell in row] for row in rows[FIRST_ROWS:]]
    return {
        "heads": heads,
        "rows": rows[:FIRST_ROWS],
        "more_on_demand": len(rows) > MOST_ROWS,
        "more_count": f"{len(more):,}",
        "more_rows": packed(as_json(more)) if more else None,
        "states": list(dict.fromkeys(trial.state for trial in study.started)),
    }


def as_json(value: object) -> str:
    """Return compact JSON. NaN and infinity become null."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):  # rare, and the way around it is slow
        return json.dumps(analysis.jsonable(value), separators=(",", ":"), allow_nan=False)


@cache
def plotly_script() -> str:
    """Return plotly.js from the installed package."""
    from plotly.offline import get_plotlyjs

    # A script element ends at this word even inside a string.
    return str(get_plotlyjs()).replace("</script", "<\\/script")


@cache
def _packed_plotly() -> Packed:
    return packed(plotly_script())


@cache
def _own_script() -> str:
    return (Path(__file__).parent / "script.html").read_text(encoding="utf-8").strip()


def _policy(*scripts: str) -> str:
    """Return a policy that runs only these scripts and fetches nothing."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
