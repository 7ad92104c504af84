"""A study as one HTML page that works offline: texts, tables and figures in a single file.

Three measures keep text of users from becoming code: the template escapes every value, figures escape what plotly would
render, and the page's content security policy runs scripts by their hash and loads nothing.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
from functools import cache
from pathlib import Path

import yaml
from markupsafe import Markup

from reports import content, curves
from reports.gallery import figures_of_page
from reports.recommending import recommendation_lines
from reports.redacted import redacted
from reports.templates import template
from reports.wording import mapping
from studies import analysis
from studies.records import StudyRecord


def write_report(study: StudyRecord, out: Path) -> Path:
    """Write the page; readers see the old file or the new one, never a part.

    Args:
        study: Study as committed, in any state.
        out: File to write; its folder is created if there is none.

    Returns:
        The absolute path of the page.
    """
    out = Path(out).absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        part.write_text(render(study), encoding="utf-8")
        part.replace(out)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
    return out


def render(study: StudyRecord) -> str:
    """Return the page as text; passwords in URLs are hidden wherever they occur."""
    study = redacted(study)
    archive = analysis.archive(study)
    drawn = figures_of_page(study, archive)
    by_kind, by_outcome = content.money_bars(study)
    heads, rows = content.trial_table(study)
    own_script = _own_script()
    return template("page.html").render(
        study=study,
        policy=_policy(plotly_script(), own_script),
        plotly=Markup(plotly_script()),  # noqa: S704 - plotly's own file
        script=Markup(own_script),  # noqa: S704 - our own file
        data=embedded({name: figure for group in drawn.values() for name, figure in group.items()}),
        drawn=drawn,
        archive=content.archive_rows(study, archive),
        lead=content.lead(study, archive),
        recommendation=recommendation_lines(study),
        measured=content.measured_names(study),
        constraints=content.constraints_line(study),
        earlier=content.earlier_line(study),
        bests=content.bests(study, archive),
        facts=content.facts(study),
        failures=content.failure_rows(study),
        by_kind=by_kind,
        by_outcome=by_outcome,
        importance=content.importance_bars(study),
        heads=heads,
        rows=rows,
        learned=curves.learned(study),
        curves_shown=len(curves.chosen(study, archive)),
        trained=sum(1 for t in study.started if t.epochs),
        schedule=mapping(study.spec.get("training")).get("schedule"),
        spec_yaml=yaml.safe_dump(analysis.jsonable(study.spec), sort_keys=False, allow_unicode=True, width=100),
    )


def embedded(value: object) -> Markup:
    """JSON for a script element: nothing in it can end the element or start a comment or an entity."""
    text = json.dumps(analysis.jsonable(value), separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - made safe by the lines above


@cache
def plotly_script() -> str:
    """plotly.js from the installed package, so that the page needs no network."""
    from plotly.offline import get_plotlyjs

    # A script element ends at this word even inside a string.
    return str(get_plotlyjs()).replace("</script", "<\\/script")


@cache
def _own_script() -> str:
    return (Path(__file__).parent / "script.html").read_text(encoding="utf-8").strip()


def _policy(*scripts: str) -> str:
    """A content security policy that runs these scripts alone and fetches nothing."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
