"""`automl serve`."""

import os
import shlex
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from automl.signals import private_files
from automl.stored.open_store import open_or_create
from automl.terminal.echo import echo
from automl.terminal.options import Number, file_type, folder_type, store_option
from search_spaces.messages import UserError, install_command
from studies.records.records import MOST_PRICE

DEFAULT_PORT = 8765


@click.command()
@store_option
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Listening address; public addresses need a token."
)
@click.option("--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="0: a free port.")
@click.option("--open", "is_open", is_flag=True, help="Make every user of this machine an admin, even if tokens exist.")
@click.option("--token-file", type=file_type, help="File with the token of an admin, for example a mounted secret.")
@click.option("--code", metavar="[NAME=]FOLDER", multiple=True, help="Folder with tasks that studies may run.")
@click.option("--package", "packages", metavar="NAME", multiple=True, help="Package with tasks that studies may run.")
@click.option("--allow-commands", is_flag=True, help="Allow studies to run any command on the workers.")
@click.option(
    "--advisor", "advisors", metavar="COMMAND", multiple=True,
    help="Program that proposes configurations, with its arguments. Specs may name it in search.advisor.command.",
)  # fmt: skip
@click.option("--data", "data", type=folder_type, multiple=True, help="Folder that built-in tasks may read.")
@click.option("--uploads", type=folder_type, help="Folder for uploaded data. Without it, users cannot upload.")
@click.option("--uploads-mib", type=click.IntRange(1), default=1024, show_default=True, help="Limit for each project.")
@click.option("--artifacts", default="artifacts", show_default=True, help="Folder or URL for checkpoints and reports.")
@click.option("--mlflow", default="off", show_default=True, help="Tracking URI of MLflow for all studies, or off.")
@click.option("--mlflow-server", metavar="URL", help="MLflow server that the service shows to admins at /mlflow/.")
@click.option(
    "--price-per-slot-hour", "price", type=Number(0, MOST_PRICE),
    help="Price of a slot (one device) in dollars per hour; the device's list price by default.",
)  # fmt: skip
@click.option(
    "--worker", "worker_slots", type=click.IntRange(0), help="Also run a worker on this number of devices (0: all)."
)
def serve(store: str | None, host: str, port: int, token_file: Path | None, **given: Any) -> None:
    """Serve a queue of studies over HTTP: pages for people, an API for programs.

    Accepts only built-in tasks, and tasks that --code or --package allows. `automl worker` runs the submitted studies,
    on this machine or on others.
    """
    try:
        from automl.service.http.context import ServiceContext
        from automl.service.http.uvicorn_run import Listening, take_token
        from automl.service.http.uvicorn_run import serve as run
    except ImportError as error:
        raise UserError(f"serve needs the package {error.name}. Install it: {install_command('serve')}") from None
    worker_slots, is_open = given.pop("worker_slots"), given.pop("is_open")
    context = ServiceContext(store=open_or_create(store), policy=_policy(given))
    if token_file is not None:
        take_token(context, token_file)
    listening = Listening(host=host, port=port, is_open=is_open, worker_slots=worker_slots)
    with private_files():
        run(context, listening, lambda line: echo(line, err=True))
    sys.stdout.flush()
    os._exit(0)  # a thread that waits for a database or a program would keep the process alive


def _policy(given: dict[str, Any]) -> Any:
    from automl.service.operator_policy import Policy

    uploads = given["uploads"]
    return Policy(
        code_folders=dict(_named(one) for one in given["code"]),
        packages=frozenset(given["packages"]),
        commands=given["allow_commands"],
        advisors=frozenset(tuple(shlex.split(one)) for one in given["advisors"]),
        data_folders=tuple(folder.absolute() for folder in given["data"]),
        uploads=None if uploads is None else uploads.absolute(),
        upload_bytes=given["uploads_mib"] * 2**20,
        artifacts=given["artifacts"],
        mlflow=given["mlflow"],
        mlflow_server=_server(given["mlflow_server"]),
        usd_per_slot_hour=given["price"],
    )


def _named(text: str) -> tuple[str, Path]:
    """Read `[NAME=]FOLDER`. The default name is the folder's own."""
    name, equals, folder = text.partition("=")
    path = Path(folder if equals else text).absolute()
    if not path.is_dir():
        raise UserError(f"--code {text}: there is no such folder. The form is [NAME=]FOLDER")
    return (name if equals else path.name), path


def _server(url: str | None) -> str:
    parts = urlsplit(url or "")
    if url and (parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/") or parts.query):
        raise UserError(
            f"--mlflow-server {url}: not the address of a server. Start `mlflow server --static-prefix /mlflow`, "
            "and pass http://HOST:PORT"
        )
    return (url or "").rstrip("/")
