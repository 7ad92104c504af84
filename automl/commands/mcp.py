"""`automl mcp`."""

from pathlib import Path

import click

from automl.backend import QueueBackend, ServiceBackend
from automl.stored.open_store import open_or_create
from automl.terminal.options import Number, connection, folder_type, store_option
from search_spaces.messages import UserError, install_command
from studies.records.records import MOST_PRICE


@click.command()
@store_option
@click.option("--read-only", is_flag=True, help="Refuse tool calls that start or stop something, or spend money.")
@click.option("--code", type=folder_type, multiple=True, help="Folder with tasks that may run; by default this folder.")
@click.option("--artifacts", default="artifacts", show_default=True, help="Folder or URL for checkpoints and reports.")
@click.option(
    "--price-per-slot-hour", "price", type=Number(0, MOST_PRICE),
    help="Price of a slot (one device) in dollars per hour; the device's list price by default.",
)  # fmt: skip
def mcp(store: str | None, *, read_only: bool, code: tuple[Path, ...], artifacts: str, price: float | None) -> None:
    """Serve studies to AI agents through the Model Context Protocol (MCP).

    Speaks MCP on stdin and stdout, for a store on this machine, or with --server for a service. `automl worker` runs
    the studies that agents launch. `automl serve` offers the same tools at /mcp.
    """
    try:
        from automl.mcp_server.server import serve_stdio
    except ImportError as error:
        raise UserError(f"mcp needs the package {error.name}. Install it: {install_command('mcp')}") from None
    serve_stdio(_backend(store, code, artifacts, price), read_only=read_only)


def _backend(
    store: str | None, code: tuple[Path, ...], artifacts: str, price: float | None
) -> QueueBackend | ServiceBackend:
    if (client := connection(store)) is not None:
        return ServiceBackend(client)
    from automl.mcp_server.launched_studies import LaunchedStudies
    from automl.service.http.gate import local_identity
    from automl.service.operator_policy import Policy

    folders = {folder.name: folder.absolute() for folder in code or (Path.cwd(),)}
    policy = Policy(code_folders=folders, artifacts=artifacts, usd_per_slot_hour=price)
    return QueueBackend(LaunchedStudies(open_or_create(store), policy, local_identity()), is_own_process=True)
