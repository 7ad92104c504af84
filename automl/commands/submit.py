"""`automl submit`."""

from pathlib import Path
from typing import Any

import click

from automl.backend import backend_of
from automl.clusters.allocation_options import slurm_options
from automl.clusters.slurm_submission import submit_to_slurm
from automl.terminal.echo import echo
from automl.terminal.options import (
    StoreOption,
    code_option,
    file_type,
    json_option,
    priority_option,
    set_option,
    store_option,
)
from automl.terminal.output import print_json


@click.command()
@click.argument("spec", type=file_type)
@priority_option
@set_option
@code_option
@click.option("--slurm", is_flag=True, cls=StoreOption, help="Submit to SLURM instead of the queue of the store.")
@click.option("--follow", is_flag=True, help="Print the progress of job and study until both end. Needs --slurm.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Script to write (--slurm); STUDY.sbatch by default."
)
@slurm_options
@store_option
@json_option
def submit(
    spec: Path, priority: int, overrides: tuple[str, ...], store: str | None, *, code: str | None, as_json: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Add a study to the queue of a service, a store or SLURM.

    `automl worker` runs queued studies, and `automl queue` lists them. --slurm writes the script of `automl
    export-cluster slurm` and submits it with sbatch. If the store has the study already, it continues.
    """
    slurm, follow, out = given.pop("slurm"), given.pop("follow"), given.pop("out")
    _check(slurm=slurm, follow=follow, out=out, as_json=as_json, queueing=bool(priority or overrides))
    if slurm:
        submit_to_slurm(spec, out, store, follow=follow, as_json=as_json, allocation=given)
        return
    job = backend_of(store).submit_file(spec, overrides, code=code, priority=priority)
    print_json(job) if as_json else echo(f"the study {job['study']} is {job['state']}; `automl queue` shows its place")


def _check(*, slurm: bool, follow: bool, out: Path | None, as_json: bool, queueing: bool) -> None:
    context = click.get_current_context()
    if not slurm and (follow or out is not None):
        raise click.UsageError("--follow and --out need --slurm", context)
    if slurm and queueing:
        raise click.UsageError("--slurm takes neither --priority nor --set", context)
    if follow and as_json:
        raise click.UsageError("--follow and --json exclude each other", context)
