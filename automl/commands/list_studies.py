"""`automl list`."""

from __future__ import annotations

import click

from automl.stored.opening import open_store
from automl.terminal.echo import echo
from automl.terminal.options import json_option, store_option
from automl.terminal.output import print_json
from automl.terminal.texts import state_text
from reports.wording import plural, usd
from studies.records import NANO
from studies.storage.reader import list_studies as read_lines


@click.command(name="list")
@store_option
@json_option
def list_studies(store: str | None, as_json: bool) -> None:
    """List all studies of the store."""
    lines = read_lines(open_store(store))
    rows = [
        {
            "study": line.name,
            "state": line.state,
            "driven": line.driven,
            "trials": line.trials,
            "cost_usd": line.cost_nano_usd / NANO,
            "created_at": line.created_at.isoformat(timespec="seconds"),
        }
        for line in lines
    ]
    if as_json:
        print_json(rows)
        return
    for line, row in zip(lines, rows, strict=True):
        state = state_text(line.name, line.state, driven=line.driven)
        cost, trials = usd(line.cost_nano_usd / NANO), plural(line.trials, "trial")
        echo(f"{line.name:30} {trials:>12}  {cost:>10}  {row['created_at']}  {state}")
