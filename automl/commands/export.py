"""`automl export`."""

from __future__ import annotations

from pathlib import Path

import click

from automl.stored.exporting import export_point
from automl.stored.opening import read_study
from automl.terminal.echo import echo
from automl.terminal.options import file_type, json_option, store_option
from automl.terminal.output import print_json


@click.command()
@click.argument("study")
@click.argument("point", metavar="TRIAL[@EPOCH]")
@click.option("--out", type=file_type, required=True, help="The file to write.")
@store_option
@json_option
def export(study: str, point: str, out: Path, store: str | None, as_json: bool) -> None:
    """Write the model of an archive point to a file.

    With its weights, parameters and spec; says how to load it.
    """
    written = export_point(read_study(study, store), point, out)
    if as_json:
        print_json(written)
        return
    echo(f"{written['out']} holds trial {written['trial']} after epoch {written['epoch']}. To load it:\n")
    echo(written["how_to_load"])
