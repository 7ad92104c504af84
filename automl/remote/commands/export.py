"""`automl --server URL export`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile

import click

from automl.exporting.archive import unpack
from automl.exporting.exports import Target, check_target
from automl.exporting.outputs import told_as_output
from automl.remote.client import study_path
from automl.remote.connection import service
from automl.terminal.export_options import HELP, export_options, say_exported, target_of
from automl.terminal.options import json_option


@click.command(help=HELP)
@export_options
@json_option
def export(  # noqa: PLR0917 - click gives each option by name
    study: str, point: str, out: Path | None, docker: Path | None, form: Target | None,
    model: str | None, ensemble: bool, licence: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Write a model of a study of the service here."""
    out, form = target_of(out, docker, form)
    check_target(out, form)
    asked = {
        "point": point, "format": form, "model": model, "licence": licence, "ensemble": ensemble or None,
        "place": str(out.absolute()),
    }  # fmt: skip
    # Beside the model, where there has to be room for it in any case.
    with told_as_output(out), TemporaryFile(dir=out.absolute().parent) as archive:
        service().download(study_path(study, "model"), archive, **asked)
        written = unpack(archive, out)
    say_exported(written, as_json=as_json)
