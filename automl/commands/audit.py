"""`automl audit`."""

import sys

import click

from automl.stored.auditing import audit as look
from automl.stored.open_store import open_store
from automl.terminal.echo import FAILED, echo
from automl.terminal.options import json_option, store_option, study_argument
from automl.terminal.output import print_json
from reports.phrases import plural


@click.command()
@study_argument
@store_option
@json_option
def audit(study: str, store: str | None, as_json: bool) -> None:
    """Check a study's rows, money, checkpoints and processes.

    Looks for lost rows, double charges and leftover files. Exits with code 1 if it finds a problem.
    """
    found = look(open_store(store), study)
    if as_json:
        print_json(found)
    else:
        for one in found["findings"]:
            echo(f"{one['check']}: {one['where']}: {one['found']}")
        echo(f"{study} is {found['state']}: {plural(len(found['findings']), 'finding')}")
    if found["findings"]:
        sys.exit(FAILED)
