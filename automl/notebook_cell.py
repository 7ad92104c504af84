"""Shows the progress of a study that Python code launched: in its notebook cell, else as lines on standard error.

A cell is updated even while the event loop is blocked.
"""

import logging
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

from automl.launching.study_run import Watcher
from automl.terminal.output import PIPE_COLUMNS, SafeConsole
from automl.terminal.progress import Pace, Progress, machine_picture
from reports import content
from reports.page_templates import redacted, template
from reports.recommending import recommendation_lines
from search_spaces.untrusted_text import escaped
from studies.control.machine.state import StudyMachine
from studies.records.records import StudyRecord
from studies.results import analysis

log = logging.getLogger(__name__)
FRAME_SECONDS = 0.5
"""Least seconds between updates, because each waits in the notebook's queue until the browser has drawn it."""
MOST_LINES = 6  # most lines for the user in the cell; older lines disappear

Show = Callable[[str], None]  # function that replaces the shown HTML


def hide_widget_advice() -> None:
    """Hide the advice to install ipywidgets. Call this before the first import of Ray or tqdm."""
    if not is_notebook():
        return
    logging.getLogger("ray.widgets.util").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tqdm.auto  # noqa: F401 - Ray and Optuna import it, in threads where its warning cannot be silenced


@contextmanager
def watching(study: str) -> Iterator[Watcher]:
    """Yield a study's callbacks, which show its progress."""
    if not is_notebook():
        lines = Progress(SafeConsole(stderr=True, width=PIPE_COLUMNS))
        yield Watcher(on_commit=lines.on_commit, warn=partial(log.warning, "%s"))
        return
    cell = LiveCell(study, _displayed())
    yield Watcher(on_commit=cell.on_commit, say=cell.say, warn=cell.warn, leave=_interrupt)


def is_notebook() -> bool:
    """Return whether this process is a notebook's kernel; False for IPython in a terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class LiveCell:
    """Progress of a study in a notebook cell. Any thread may add lines."""

    def __init__(self, study: str, show: Show) -> None:
        self._show = show
        self._pace = Pace()
        self._figures = {"study": study, "slots": "starting"}
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._shown_at = -FRAME_SECONDS
        self._lock = threading.Lock()
        self._draw()

    def on_commit(self, machine: StudyMachine) -> None:
        """Redraw the figures after a commit."""
        self._pace.saw(machine)
        now = time.monotonic()
        if now - self._shown_at < FRAME_SECONDS and not machine.finished:
            return
        self._shown_at = now
        self._figures = machine_picture(machine, self._pace).figures
        self._draw()

    def say(self, line: str) -> None:
        """Show a line below the figures."""
        self._lines.append(line)
        self._draw()

    def warn(self, line: str) -> None:
        """Show a warning below the figures."""
        self.say(f"warning: {line}")

    def _draw(self) -> None:
        with self._lock:
            self._show(progress_cell(self._figures, tuple(self._lines)))


def _displayed() -> Show:
    from IPython.display import HTML, display

    handle = display(HTML(""), display_id=True)
    return lambda html: handle.update(HTML(html))


def _interrupt() -> None:
    """At the second interrupt, end the study, not the notebook's kernel."""
    raise KeyboardInterrupt


MOST_ROWS = 10  # most points of the archive that a cell shows


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportLink:
    """Link to a study's report. `href` is empty if a notebook cannot open the file."""

    text: str
    href: str = ""


def report_link(report: Path, folder: Path) -> ReportLink:
    """Return the link to a report. Notebooks open only files below their folder."""
    if not report.is_relative_to(folder):
        return ReportLink(text=str(report))
    path = report.relative_to(folder).as_posix()
    return ReportLink(text=path, href=quote(path))


def study_cell(study: StudyRecord, report: ReportLink | None = None) -> str:
    """Return a study as HTML: results, cost, the best models and the report."""
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
