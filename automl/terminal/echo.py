"""Safe printing of plain lines."""

import click

from search_spaces.untrusted_text import escaped


def echo(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print a text with escaped control characters. Only this function and `console` write to a terminal."""
    click.echo(escaped(str(text)), err=err, nl=nl)
