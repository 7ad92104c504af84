"""Output: a console for people, JSON for programs, warnings on stderr."""

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from automl.terminal.echo import echo
from search_spaces.untrusted_text import escaped
from trainers.ranks.printed_output import stdout_diverted

PIPE_COLUMNS = 1000


class SafeConsole(Console):
    """Console that escapes control characters in texts, but keeps its own colours and cursor movements."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield segments with escaped control characters."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(escaped(segment.text), segment.style)


def console() -> Console:
    """Return a console as wide as the terminal, or for pipes and files as wide as any line."""
    made = SafeConsole()
    return made if made.is_terminal or "COLUMNS" in os.environ else SafeConsole(width=PIPE_COLUMNS)


def warn(line: str) -> None:
    """Print a warning on stderr."""
    echo(f"warning: {line}", err=True)


def say_on_stderr(line: str) -> None:
    """Print a line of progress on stderr."""
    echo(line, err=True)


def print_json(document: object) -> None:
    """Print a document as one line of strict JSON."""
    echo(json.dumps(document, allow_nan=False))


@contextlib.contextmanager
def counted(*, shown: bool) -> Iterator[Callable[[int], None]]:
    """Show a number of rows on stderr if it is a terminal, until the end of the `with` block."""
    with SafeConsole(stderr=True, quiet=not shown).status("0 rows") as status:
        yield lambda rows: status.update(f"{rows} rows")


@contextlib.contextmanager
def only_json_on_stdout(as_json: bool) -> Iterator[None]:
    """Divert prints of libraries and other threads to stderr if stdout is JSON."""
    with stdout_diverted() if as_json else contextlib.nullcontext():
        yield
