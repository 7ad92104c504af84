"""`automl serve-model`."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from automl.terminal.echo import echo
from search_spaces.user_errors import UserError
from search_spaces.wording import install_command

_SCHEME = "models:/"


@click.command(name="serve-model")
@click.argument("model", metavar="PATH|models:/NAME@ALIAS")
@click.option("--host", help="Address to listen on (127.0.0.1); any that others reach needs a token.")
@click.option("--port", help="Port to listen on (8000); 0 takes a free one.")
@click.option("--workers", help="Number of worker processes (1).")
@click.option("--threads", help="Threads of torch in a worker; by default its share of the CPUs less one.")
@click.option("--device", help="Where to compute (cpu), such as cuda.")
@click.option("--batch-rows", help="Number of rows that go through the model at once (64).")
@click.option("--batch-wait-ms", help="How long a row may wait for others when requests overlap (5).")
@click.option("--queue-rows", help="Number of rows that may wait in a worker (4096); more get status 429.")
@click.option("--request-rows", help="Number of rows that one request may have (1000).")
@click.option("--body-mib", help="Size of a request's body in MiB (16); more gets status 413.")
@click.option("--timeout-seconds", help="How long a request may take (30); after that it gets status 503.")
@click.option("--poll-seconds", help="How often it is looked whether the model was replaced (2).")
@click.option("--token-file", help="File with the token that requests have to bring; or AUTOML_SERVE_TOKEN.")
@click.option("--settings", type=click.Path(path_type=Path), help="File with lines such as AUTOML_SERVE_PORT=8000.")
@click.option("--mlflow", help="Tracking URI of the registry, for models:/NAME@ALIAS.")
@click.option("--challenger", hidden=True)
@click.option("--share", hidden=True)
@click.option("--answers", hidden=True)
@click.option("--answers-mib", hidden=True)
def serve_model(model: str, settings: Path | None, mlflow: str | None, **given: Any) -> None:
    """Serve an exported model over HTTP.

    MODEL is a folder, a .pt2 or .onnx file, or the registry's models:/NAME@champion or models:/NAME/VERSION. When the
    file is replaced, or the alias moves, the new model is loaded, and no request is lost.

    Each option is also an environment variable, such as AUTOML_SERVE_PORT. SIGTERM and Ctrl-C answer what has come and
    end; SIGHUP loads the model again. GET /docs describes the interface.
    """
    try:
        _serve(model, settings, mlflow, given)
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] not in _PACKAGES:
            raise
        raise UserError(f"serve-model needs the package {error.name}: {install_command('serve')}") from None


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
