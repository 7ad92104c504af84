"""What commands have in common: exit codes, options, and how they say things."""

from __future__ import annotations

import json

import click

FAILED, WRONG_INPUT, NOTHING_COMPLETE, INTERRUPTED = 1, 2, 3, 130

store_option = click.option("--store", metavar="URL", help="The database; AUTOML_STORE or sqlite:///automl.db.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")


def warn(line: str) -> None:
    """Say on stderr what did not keep the command from its work."""
    click.echo(f"warning: {line}", err=True)


def print_json(document: object) -> None:
    """Print a document in one line of strict JSON: NaN and infinity have no place in it."""
    click.echo(json.dumps(document, allow_nan=False))
