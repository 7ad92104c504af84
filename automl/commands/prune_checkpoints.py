"""`automl prune-checkpoints`."""

import shlex
import sys
from typing import Any

import click

from automl.stored.open_store import open_store
from automl.stored.pruning import prune
from automl.terminal.echo import FAILED, echo
from automl.terminal.options import json_option, store_option, study_argument
from automl.terminal.output import print_json
from reports.phrases import plural
from search_spaces.messages import listed


@click.command(name="prune-checkpoints")
@study_argument
@click.option(
    "--keep", metavar="NAME", multiple=True,
    help="What to keep: archive (the default), a model such as 2@6, a trial such as 2, best, cheapest or knee.",
)  # fmt: skip
@store_option
@json_option
@click.option("--yes", is_flag=True, help="Delete the listed checkpoints.")
def prune_checkpoints(study: str, keep: tuple[str, ...], store: str | None, as_json: bool, *, yes: bool) -> None:
    """List or delete checkpoints that are not among a study's best models.

    Keeps the best models of any epoch (the archive), checkpoints that paused trials need to continue, and models that
    `automl confirm` kept. Refuses a running study.
    """
    done = prune(open_store(store), study, keep, delete=yes)
    if as_json:
        print_json(done)
    else:
        _print(done, keep, yes=yes)
    if yes and _left(done):
        sys.exit(FAILED)


def _print(done: dict[str, Any], keep: tuple[str, ...], *, yes: bool) -> None:
    for one in done["freed"]:
        echo(f"{_mib(one['bytes'])}  {one['path']}  ({one['what']})")
    for one in done["orphans"]:
        echo(f"{_mib(one['bytes'])}  {one['path']}{'/' * one['folder']}  (no trial needs it)")
    files = [*done["freed"], *(one for one in done["orphans"] if not one["folder"])]
    options = "".join(f" --keep {shlex.quote(name)}" for name in keep)
    command = f"automl prune-checkpoints {shlex.quote(done['study'])}{options} --yes"
    offer = f"; `{command}` deletes them" if files else ""
    then = (f"; {_left(done)} could not be deleted" if _left(done) else "; deleted") if yes and files else offer
    kept = plural(done["kept"], "checkpoint")
    echo(f"unneeded: {plural(len(files), 'file')}, {done['bytes'] / 2**20:.2f} MiB; kept: {kept}{then}")
    if done["not_reopened"]:
        trials, verb = listed(map(str, done["not_reopened"])), "lose" if not yes else "have lost"
        echo(f"the paused trials {trials} {verb} their checkpoints, so they cannot continue, even with more budget")


def _left(done: dict[str, Any]) -> int:
    return len(done["freed"]) + len(done["orphans"]) - int(done["deleted"])


def _mib(size: int) -> str:
    return f"{size / 2**20:10.2f} MiB"
