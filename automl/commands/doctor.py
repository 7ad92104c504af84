"""`automl doctor`."""

from __future__ import annotations

import sys

import click

from automl.doctor import examine
from automl.terminal.echo import echo
from automl.terminal.exit_codes import FAILED
from automl.terminal.options import backend_option, json_option, store_option
from automl.terminal.output import print_json
from trainers.group_options import BackendChoice


@click.command()
@store_option
@json_option
@click.option("--bandwidth", is_flag=True, help="Measure how fast ranks exchange tensors, by collective and size.")
@backend_option
def doctor(store: str | None, as_json: bool, bandwidth: bool, backend: BackendChoice) -> None:
    """Check this machine, and say how to fix what does not work."""
    findings = examine(store, bandwidth=bandwidth, backend=backend)
    if as_json:
        print_json(findings)
    else:
        for finding in findings:
            mark = "ok  " if finding["ok"] else "FAIL"
            cure = f"\n     {finding['cure']}" if finding["cure"] else ""
            echo(f"{mark} {finding['what']}: {finding['found']}{cure}")
    if not all(finding["ok"] for finding in findings):
        sys.exit(FAILED)
