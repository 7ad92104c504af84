"""`automl serve-model`."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from automl.terminal.echo import echo
from search_spaces.messages import UserError, install_command

_SCHEME = "models:/"


@click.command(name="serve-model")
@click.argument("model", metavar="PATH|models:/NAME@ALIAS")
@click.option("--host", help="Listening address (127.0.0.1); addresses that others reach need a token.")
@click.option("--port", help="Listening port (8000); 0 takes a free port.")
@click.option("--workers", help="Number of worker processes (1).")
@click.option("--threads", help="Threads of torch in each worker; by default its share of the CPUs minus 1.")
@click.option("--device", help="Device that computes, such as cuda; by default the CPU.")
@click.option("--batch-rows", help="Most rows in one forward pass (64).")
@click.option("--batch-wait-ms", help="Most milliseconds that a row waits for rows of other requests (5).")
@click.option("--queue-rows", help="Most rows that wait in a worker (4096); further rows get status 429.")
@click.option("--request-rows", help="Most rows in one request (1000).")
@click.option("--body-mib", help="Largest body of a request in MiB (16); larger gets status 413.")
@click.option("--timeout-seconds", help="Seconds until a request gets status 503 (30).")
@click.option("--poll-seconds", help="Seconds between checks for a replaced model (2).")
@click.option("--token-file", help="File with the token that requests need; or AUTOML_SERVE_TOKEN.")
@click.option("--settings", type=click.Path(path_type=Path), help="File with lines such as AUTOML_SERVE_PORT=8000.")
@click.option(
    "--trust", is_flag=True, default=None, help="Load a .pt2 file of someone else; it runs code that it names."
)
@click.option("--mlflow", help="Tracking URI of the registry, for models:/NAME@ALIAS.")
@click.option("--challenger", hidden=True)
@click.option("--share", hidden=True)
@click.option("--answers", hidden=True)
@click.option("--answers-mib", hidden=True)
def serve_model(model: str, settings: Path | None, mlflow: str | None, **given: Any) -> None:
    """Serve an exported model over HTTP.

    MODEL is a folder, a .pt2 or .onnx file, or the registry's models:/NAME@champion or models:/NAME/VERSION. A replaced
    file or a moved alias loads the new model, and no request is lost.

    Each option is also an environment variable, such as AUTOML_SERVE_PORT. SIGTERM and Ctrl-C answer the received
    requests, then end; SIGHUP loads the model again. GET /docs describes the interface.
    """
    try:
        _serve(model, settings, mlflow, given)
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] not in _PACKAGES:
            raise
        raise UserError(f"serve-model needs the package {error.name}. Install it: {install_command('serve')}") from None


_PACKAGES = ("fastapi", "gunicorn", "prometheus_client", "pydantic_settings", "starlette", "uvicorn", "uvicorn_worker")


def _serve(model: str, file: Path | None, mlflow: str | None, given: dict[str, Any]) -> None:
    from automl.registry.serving import followed
    from automl.standalone.serving.errors import ServeError
    from automl.standalone.serving.serve import serve
    from automl.standalone.serving.settings import settings_of
    from automl.standalone.serving.sources import PathSource

    try:
        settings = settings_of(given, file)
        is_registered = model.startswith(_SCHEME)
        source = followed(model, mlflow, settings.poll_seconds) if is_registered else nullcontext(PathSource(model))
        with source as found:
            serve(settings, found, lambda line: echo(line, err=True))
    except ServeError as error:
        raise UserError(str(error)) from None
