"""`automl dashboard`."""

import click

from automl.dashboard_server import serve
from automl.stored.open_store import open_store
from automl.terminal.options import store_option


@click.command()
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Port to listen on; 8080 by default, or a free port if 8080 is taken."
)
@store_option
def dashboard(port: int | None, store: str | None) -> None:
    """Serve web pages of studies, with Optuna Dashboard, on 127.0.0.1."""
    serve(open_store(store).url, port)
