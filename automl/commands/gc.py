"""`automl gc`."""

import sys

import click

from automl.stored.open_store import open_store
from automl.stored.pruning import collect
from automl.terminal.echo import FAILED, echo
from automl.terminal.options import json_option, store_option, study_argument
from automl.terminal.output import print_json
from reports.phrases import plural


@click.command()
@study_argument
@store_option
@json_option
@click.option("--yes", is_flag=True, help="Delete the listed checkpoints.")
def gc(study: str, store: str | None, as_json: bool, yes: bool) -> None:
    """List or delete checkpoints that no trial of a study needs.

    Such checkpoints are left behind by processes that died. Searches only the study's own folder, and skips recent
    files while the study runs.
    """
    found = collect(open_store(store), study, delete=yes)
    orphans = found["orphans"]
    if as_json:
        print_json(found)
    else:
        for one in orphans:
            echo(f"{one['bytes'] / 2**20:10.2f} MiB  {one['path']}{'/' * one['folder']}")
        done = (
            f"; {found['deleted']} deleted" if yes else f"; `automl gc {study} --yes` deletes them" if orphans else ""
        )
        echo(f"{plural(len(orphans), 'orphan')} that no trial needs, {found['bytes'] / 2**20:.2f} MiB{done}")
    if yes and found["deleted"] < len(orphans):
        sys.exit(FAILED)
