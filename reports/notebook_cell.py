"""Notebook cell of a study or its progress, in the notebook's own colours; the template escapes every value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from reports import content
from reports.page_templates import template
from reports.recommending import recommendation_lines
from reports.redacted import redacted
from search_spaces.untrusted_text import escaped
from studies.records.records import StudyRecord
from studies.results import analysis

MOST_ROWS = 10  # most points of the archive that a cell shows


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportLink:
    """Link to a study's report; `href` is empty where a notebook could not open it."""

    text: str
    href: str = ""


def report_link(report: Path, folder: Path) -> ReportLink:
    """Return the link to a report. Notebooks open files below their own folder only."""
    if not report.is_relative_to(folder):
        return ReportLink(text=str(report))
    path = report.relative_to(folder).as_posix()
    return ReportLink(text=path, href=quote(path))


def study_cell(study: StudyRecord, report: ReportLink | None = None) -> str:
    """Return a study as HTML: results, cost, the best points of its archive, and its report."""
    study = redacted(study)
    archive = analysis.archive(study)
    rows = content.archive_rows(study, archive)
    return template("study_cell.html").render(
        study=study,
        state=f"{study.state}, driven" if study.state == "running" and study.driven else study.state,
        lead=content.lead(study, archive),
        recommendation=recommendation_lines(study),
        constraints=content.constraints_line(study),
        facts=content.facts(study),
        measured=analysis.measured_names(study),
        rows=rows[:MOST_ROWS],
        left_out=max(len(rows) - MOST_ROWS, 0),
        report=report,
    )


def progress_cell(figures: Mapping[str, str], said: Sequence[str]) -> str:
    """Return the progress of a study as HTML."""
    return template("progress_cell.html").render(
        figures=[(name, escaped(value)) for name, value in figures.items() if value],
        said=[escaped(line) for line in said],
    )
