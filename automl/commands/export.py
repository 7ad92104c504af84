"""`automl export`."""

from __future__ import annotations

from pathlib import Path

import click

from automl.exporting.exports import Target, export_point
from automl.stored.opening import open_store
from automl.terminal.export_options import HELP, export_options, say_exported, target_of
from automl.terminal.options import json_option, store_option
from studies.storage.reader import load_study


@click.command(help=HELP)
@export_options
@store_option
@json_option
def export(  # noqa: PLR0917 - click gives each option by name
    study: str, point: str, out: Path | None, docker: Path | None, form: Target | None,
    model: str | None, ensemble: bool, licence: str | None, store: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Write a model of a study of a store."""
    out, form = target_of(out, docker, form)
    opened = open_store(store)
    base_folder = opened.require(study).base_folder
    written = export_point(
        load_study(opened, study), point, out, base_folder=base_folder, form=form, model=model, licence=licence,
        ensemble=ensemble,
    )  # fmt: skip
    say_exported(written, as_json=as_json)
