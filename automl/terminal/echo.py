"""Printing of plain lines, whatever stands in them."""

from __future__ import annotations

import click

from search_spaces.outside_text import escaped


def echo(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print a text, its control characters escaped: the only way to a terminal beside `console`."""
    click.echo(escaped(str(text)), err=err, nl=nl)
