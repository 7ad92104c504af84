"""Live progress of a study in the notebook cell that launched it. Updates do not need the blocked event loop."""

import logging
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from automl.launching.study_run import Watcher
from automl.terminal.progress import Pace, machine_picture
from reports.notebook_cell import progress_cell
from studies.control.machine.state import StudyMachine

log = logging.getLogger(__name__)
FRAME_SECONDS = 0.5
"""Least seconds between updates, since each stays in the notebook's queue until the browser has drawn it."""
MOST_LINES = 6  # most lines for the user in the cell; older lines disappear

Show = Callable[[str], None]  # function that replaces the shown HTML


def hide_widget_advice() -> None:
    """Keep advice of Ray and tqdm to install ipywidgets out of the cell; both must not be imported before."""
    if not is_notebook():
        return
    logging.getLogger("ray.widgets.util").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tqdm.auto  # noqa: F401 - Ray and Optuna import it, in threads where its warning cannot be silenced


@contextmanager
def watching(study: str) -> Iterator[Watcher]:
    """Return a watcher, with live progress in a notebook."""
    if not is_notebook():
        yield Watcher(warn=partial(log.warning, "%s"))
        return
    cell = LiveCell(study, _displayed())
    yield Watcher(on_commit=cell.on_commit, say=cell.say, warn=cell.warn, leave=_interrupt)


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook. IPython in a terminal is not."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class LiveCell:
    """The progress of one study. Lines may come from any thread."""

    def __init__(self, study: str, show: Show) -> None:
        self._show = show
        self._pace = Pace()
        self._figures = {"study": study, "slots": "starting"}
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._shown_at = -FRAME_SECONDS
        self._lock = threading.Lock()
        self._draw()

    def on_commit(self, machine: StudyMachine) -> None:
        """Show the study after a commit."""
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
    """End a study at the second interrupt, but not its kernel."""
    raise KeyboardInterrupt
