"""`automl sync`."""

from __future__ import annotations

import sys

import click

from automl.stored.opening import open_store
from automl.terminal.echo import echo
from automl.terminal.exit_codes import FAILED
from automl.terminal.options import json_option, store_option, study_argument
from automl.terminal.output import print_json
from studies.storage.views import rebuild


@click.command()
@study_argument
@store_option
@json_option
def sync(study: str, store: str | None, as_json: bool) -> None:
    """Rebuild the Optuna and MLflow views of STUDY."""
    opened = open_store(store)
    opened.require(study)
    errors = rebuild(opened, study)
    if as_json:
        print_json(errors)
    else:
        for view, error in errors.items():
            echo(f"{view}: {error or 'rebuilt'}")
    if any(errors.values()):
        sys.exit(FAILED)
