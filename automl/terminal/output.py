"""Where output goes: the console for people, JSON for programs, warnings on stderr."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator

import click
from rich.console import Console

from trainers.streams import stdout_diverted

PIPE_COLUMNS = 1000


def console() -> Console:
    """A console as wide as the terminal; in a pipe or a file it is so wide that no line is cut."""
    made = Console()
    return made if made.is_terminal or "COLUMNS" in os.environ else Console(width=PIPE_COLUMNS)


def warn(line: str) -> None:
    """Print a warning on stderr: the command does its work nevertheless."""
    click.echo(f"warning: {line}", err=True)


def say_on_stderr(line: str) -> None:
    """Print a line of progress on stderr, where it stays out of the result."""
    click.echo(line, err=True)


def print_json(document: object) -> None:
    """Print a document as one line of strict JSON, which has neither NaN nor infinity."""
    click.echo(json.dumps(document, allow_nan=False))


@contextlib.contextmanager
def only_json_on_stdout(as_json: bool) -> Iterator[None]:
    """Divert to stderr what libraries and other threads print on stdout, if a program reads a JSON document there."""
    with stdout_diverted() if as_json else contextlib.nullcontext():
        yield
