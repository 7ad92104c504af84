"""`automl delete`."""

import sys

import click

from automl.backend import backend_of
from automl.stored.study_deletion import by_hand
from automl.terminal.echo import FAILED, echo
from automl.terminal.options import StoreOption, json_option, store_option, study_argument
from automl.terminal.output import print_json, warn
from search_spaces.untrusted_text import escaped
from studies.storage.study_store import StoreError


@click.command()
@study_argument
@store_option
@json_option
@click.option("--yes", is_flag=True, help="Delete without asking first.")
@click.option("--keep-files", is_flag=True, cls=StoreOption, help="Keep the files of checkpoints, report and logs.")
def delete(study: str, store: str | None, as_json: bool, *, yes: bool, keep_files: bool) -> None:
    """Delete a study: its rows, checkpoints, report, and copies in Optuna and MLflow.

    Refuses a study that runs or waits for a worker. Keeps exported and registered models, copies made by `automl store
    copy`, and the study's cost in the limits of users and projects.
    """
    question, act = backend_of(store).deletion(study, keep_files=keep_files)
    if not yes and not _consents(f"{question}. Delete it?"):
        echo("nothing is deleted", err=True)
        sys.exit(FAILED)
    done = act()
    for line in by_hand(done["study"], done.get("views", {})):
        warn(line)
    print_json(done) if as_json else echo(done["message"])


def _consents(question: str) -> bool:
    try:
        return click.confirm(escaped(question), err=True)
    except click.Abort:
        if sys.stdin is not None and sys.stdin.isatty():
            raise
        echo("", err=True)
        raise StoreError("Nothing was deleted: stdin gave no answer. Pass --yes to delete without a question") from None
