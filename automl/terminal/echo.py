"""Prints lines safely, and defines the exit codes of the command line."""

import click

from search_spaces.untrusted_text import escaped


def echo(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print a text with escaped control characters. Only `echo` and `console` may print to a terminal."""
    click.echo(escaped(str(text)), err=err, nl=nl)


FAILED = 1  # the work failed
WRONG_INPUT = 2  # the input was wrong, and nothing was written
NOTHING_COMPLETE = 3  # the study ended, and no trial is complete
INTERRUPTED = 130  # Ctrl-C, a signal or `automl stop` ended the study; `automl resume` continues it
