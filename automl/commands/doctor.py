"""`automl doctor`."""

import sys

import click

from automl.doctor_checks import examine
from automl.terminal.echo import FAILED, echo
from automl.terminal.options import backend_option, connection, json_option, store_option
from automl.terminal.output import print_json
from search_spaces.messages import UserError
from trainers.ranks.group_options import BackendChoice


@click.command()
@store_option
@json_option
@click.option("--bandwidth", is_flag=True, help="Measure how fast ranks exchange tensors, by collective and size.")
@backend_option
@click.option("--service", is_flag=True, help="Check the requirements of `automl serve` instead of this machine.")
@click.option(
    "--artifacts", metavar="FOLDER", help="Artifacts folder of the service; the latest job's folder by default."
)
def doctor(
    *, store: str | None, as_json: bool, bandwidth: bool, backend: BackendChoice, service: bool, artifacts: str | None
) -> None:
    """Check this machine, and print how to fix what does not work."""
    if service:
        if bandwidth or backend != "auto":
            given = "--bandwidth" if bandwidth else "--backend"
            raise UserError(f"{given} and --service exclude each other: --service does not test devices")
        from automl.service.service_checks import examine_service

        findings = examine_service(store, client=connection(), artifacts=artifacts)
    else:
        root = click.get_current_context().find_root()
        if root.get_parameter_source("server") is click.core.ParameterSource.COMMANDLINE:
            cure = "To check the service, run `automl --server URL doctor --service`"
            raise UserError(f"automl doctor checks this machine, not a service. {cure}")
        if artifacts is not None:
            raise UserError("--artifacts needs --service")
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
