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
@click.option("--host", help="Listening address (127.0.0.1). Public addresses need a token.")
@click.option("--port", help="Listening port (8000); 0 picks a free port.")
@click.option("--workers", help="Number of worker processes (1).")
@click.option("--threads", help="PyTorch threads per worker process. Default: its share of the CPUs, minus 1.")
@click.option("--device", help="Device that computes the predictions, such as cuda; the CPU by default.")
@click.option("--batch-rows", help="Largest number of rows in one forward pass (64).")
@click.option("--batch-wait-ms", help="Longest wait of a row for rows of other requests, in milliseconds (5).")
@click.option("--queue-rows", help="Rows that may wait in a worker (4096). Further rows get status 429.")
@click.option("--request-rows", help="Largest number of rows in one request (1000).")
@click.option("--body-mib", help="Largest request body in MiB (16). Larger bodies get status 413.")
@click.option("--timeout-seconds", help="Seconds until an unanswered request gets status 503 (30).")
@click.option("--poll-seconds", help="Seconds between checks for a new version of the model (2).")
@click.option("--token-file", help="File with the token that clients must send; AUTOML_SERVE_TOKEN by default.")
@click.option(
    "--settings", type=click.Path(path_type=Path), help="File of options with lines such as AUTOML_SERVE_PORT=8000."
)
@click.option("--trust", is_flag=True, default=None, help="Load a .pt2 file of another author, which can run any code.")
@click.option("--mlflow", help="Tracking URI of the MLflow registry that holds models:/NAME@ALIAS.")
@click.option("--challenger", hidden=True)
@click.option("--share", hidden=True)
@click.option("--answers", hidden=True)
@click.option("--answers-mib", hidden=True)
def serve_model(model: str, settings: Path | None, mlflow: str | None, **given: Any) -> None:
    """Serve an exported model over HTTP.

    The model is a folder, a .pt2 or .onnx file, or in MLflow's registry models:/NAME@champion or models:/NAME/VERSION.
    If the file is replaced or the alias moves, the server loads the new model without losing a request.

    Environment variables such as AUTOML_SERVE_PORT set options, too. On SIGTERM or Ctrl-C, the server answers the
    received requests and exits. On SIGHUP, it loads the model again. GET /docs describes the HTTP API.
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
