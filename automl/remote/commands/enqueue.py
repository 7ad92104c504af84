"""`automl --server URL enqueue`."""

from __future__ import annotations

import click

from automl.given_parameters import read_params
from automl.remote.client import study_path
from automl.remote.connection import service
from automl.terminal.echo import echo
from automl.terminal.options import json_option, study_argument
from automl.terminal.output import print_json


@click.command()
@study_argument
@click.option("--param", "given", metavar="NAME=VALUE", multiple=True, required=True, help="A value to try.")
@json_option
def enqueue(study: str, given: tuple[str, ...], *, as_json: bool) -> None:
    """Try these parameters next.

    Active parameters that are not given are drawn at random, parents so that what is given exists.
    """
    queued = service().post(study_path(study, "enqueue"), {"params": read_params(given)})
    if as_json:
        print_json(queued)
        return
    params = " ".join(f"{name}={value}" for name, value in queued["params"].items())
    echo(f"queued for {queued['study']} as {queued['name']}: {params}")
    if queued["waits"]:
        echo(queued["waits"])
