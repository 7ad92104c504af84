"""`automl store copy` and `automl store backup`."""

import os
import tempfile
from pathlib import Path

import click

from automl.stored.open_store import open_store
from automl.terminal.echo import echo
from automl.terminal.options import json_option, store_option
from automl.terminal.output import print_json
from reports.phrases import plural
from search_spaces.messages import RunError, UserError
from search_spaces.untrusted_text import redact
from studies.storage.schema.engine import absolute_url
from studies.storage.study_store import Store
from studies.storage.writing.copying import copy_store


@click.group()
def store() -> None:
    """Copy a store to another database, or back it up to a file."""


@store.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@json_option
def copy(source: str, target: str, as_json: bool) -> None:
    """Copy all studies of the store FROM into the empty store TO.

    FROM and TO are database URLs. Copies in one transaction, and compares each row before the commit. TO must have no
    studies.
    """
    counts = copy_store(open_store(source), Store(absolute_url(target, Path.cwd())))
    if as_json:
        print_json({"from": redact(source), "to": redact(target), "rows": counts})
        return
    for table, count in counts.items():
        echo(f"{table:24} {plural(count, 'row')}")
    echo(f"all rows are copied and compared; to list the studies: `automl list --store {redact(target)}`")


@store.command()
@click.argument("file", type=click.Path(path_type=Path))
@store_option
@json_option
def backup(file: Path, store: str | None, as_json: bool) -> None:
    """Write the whole store to FILE, while studies continue.

    FILE is a new SQLite database with all studies, jobs and tokens of one moment, without checkpoints and MLflow's
    database. `automl store copy sqlite:///FILE TO` restores the store.
    """
    counts = back_up(open_store(store), file)
    if as_json:
        print_json({"file": str(file), "rows": counts})
        return
    echo(f"copied {plural(sum(counts.values()), 'row')} to {file}, and compared each row")


def back_up(source: Store, file: Path) -> dict[str, int]:
    """Write a consistent copy of a store in use. Raises UserError for a wrong path, RunError if writing fails."""
    if file.exists():
        raise UserError(f"FILE: {file} exists already. Name a new file")
    if not file.parent.is_dir():
        raise UserError(f"FILE: the folder of {file} does not exist. Create it first")
    try:
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=".backup-") as folder:
            made = Path(folder, "store.db")
            target = Store(f"sqlite:///{made}")
            try:
                counts = copy_store(source, target, while_driven=True)
                with target.engine.connect() as connection:  # one file, without a write-ahead log beside it
                    connection.exec_driver_sql("ROLLBACK")
                    connection.exec_driver_sql("PRAGMA journal_mode=DELETE")
            finally:
                target.close()
            made.chmod(0o600)  # the file has digests of tokens
            os.link(made, file)  # unlike a rename, it fails if somebody has created the file since
    except OSError as error:
        raise RunError(f"FILE: {file} cannot be written ({error.strerror})") from None
    return counts
