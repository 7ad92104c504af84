"""Shared options and argument types of commands, and the connection to a service."""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from search_spaces.messages import UserError
from trainers.checkpoints.locations import (
    ALLOWED_FOLDER,
    MissingLibraryError,
    absolute_folder,
    check_library,
    is_url,
    problem_of_folder,
)
from trainers.ranks.group_options import GROUP_SECONDS

if TYPE_CHECKING:
    from automl.remote.client import ServiceClient


class Number(click.FloatRange):
    """Option type: a finite number in a range."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert a value to a number. Refuses NaN and infinity."""
        converted = super().convert(value, param, ctx)
        if not math.isfinite(converted):
            self.fail(f"found {value}, allowed: a finite number", param, ctx)
        return converted


class CheckpointsFolder(click.ParamType):  # type: ignore[type-arg]
    """Option type: a folder, or a URL of an object store whose library is installed."""

    name = "folder"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the folder or URL, and return it unchanged."""
        if problem := problem_of_folder(value):
            self.fail(problem, param, ctx)
        folder = absolute_folder(value, Path.cwd())
        if is_url(folder):
            try:
                check_library(folder)
            except MissingLibraryError as error:
                self.fail(str(error), param, ctx)
        elif Path(folder).is_file():
            self.fail(f"found {value!r}, which is a file, allowed: {ALLOWED_FOLDER}", param, ctx)
        return str(value)


class _BoundOption(click.Option):
    """Option that works either with stores or with services, and is refused otherwise."""

    is_of_service: bool
    place: str

    def __init__(self, *args: Any, **attributes: Any) -> None:
        attributes["help"] = f"{attributes.get('help', '')} [{self.place}]".strip()
        super().__init__(*args, **attributes)

    def handle_parse_result(self, ctx: click.Context, opts: Any, args: list[str]) -> tuple[Any, list[str]]:
        done = super().handle_parse_result(ctx, opts, args)
        is_typed = ctx.get_parameter_source(str(self.name)) is click.core.ParameterSource.COMMANDLINE
        if is_typed and bool(ctx.find_root().params.get("server")) is not self.is_of_service:
            problem = "needs --server" if self.is_of_service else "has no effect with --server: leave it out"
            raise click.UsageError(f"{self.opts[0]} {problem}", ctx)
        return done


class StoreOption(_BoundOption):
    """Option that is refused with `--server`."""

    is_of_service, place = False, "not with --server"


class ServiceOption(_BoundOption):
    """Option that is refused without `--server`."""

    is_of_service, place = True, "with --server only"


file_type = click.Path(path_type=Path, dir_okay=False)
folder_type = click.Path(path_type=Path, file_okay=False)


def complete_study(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the studies that begin with the typed text, for shell completion."""
    from automl.stored.open_store import names_of  # loads SQLAlchemy, which no help needs

    return [name for name in names_of(context.params.get("store")) if name.startswith(incomplete)]


study_argument = click.argument("study", shell_complete=complete_study)
store_option = click.option(
    "--store", metavar="URL",
    help="URL of the database with the studies; AUTOML_STORE or sqlite:///automl.db by default.",
)  # fmt: skip
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")
set_option = click.option(
    "--set", "overrides", metavar="PATH=VALUE", multiple=True,
    help="Set a key of the spec, such as budget.usd=5; repeatable.",
)  # fmt: skip
quiet_option = click.option("--quiet", is_flag=True, help="Print warnings and errors only.")
verbose_option = click.option(
    "--verbose", is_flag=True, cls=StoreOption, help="Print a line when a trial starts, pauses or ends."
)
log_file_option = click.option(
    "--log-file", metavar="FILE", type=click.Path(path_type=Path), cls=StoreOption,
    help="Append a line with time and text to FILE for each event of the study.",
)  # fmt: skip
code_option = click.option(
    "--code", metavar="NAME", cls=ServiceOption,
    help="Name of the service's code folder that holds the task and its data.",
)  # fmt: skip
detach_option = click.option(
    "--detach", is_flag=True, cls=ServiceOption, help="Queue the study and exit at once, without printing its progress."
)
docker_option = click.option(
    "--docker", type=click.Path(path_type=Path), metavar="DIR",
    help="Folder to write, from which `docker build` makes an image that serves the model.",
)  # fmt: skip
param_option = click.option(
    "--param", "given", metavar="NAME=VALUE", multiple=True,
    help="Parameter of the trainer or the task, such as learning_rate=0.01; repeatable.",
)  # fmt: skip
task_option_option = click.option(
    "--option", "task_options", metavar="NAME=VALUE", multiple=True,
    help="Argument of the task's constructor (task_options in a spec); repeatable.",
)  # fmt: skip
seed_option = click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Random seed.")
device_option = click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True,
    help="Kind of device; auto takes GPUs if there are any.",
)  # fmt: skip
backend_option = click.option(
    "--backend", type=click.Choice(["auto", "nccl", "gloo"]), default="auto", show_default=True,
    help="Library through which the ranks communicate; auto is nccl if each rank has a GPU, else gloo.",
)  # fmt: skip
group_seconds_option = click.option(
    "--group-seconds", type=Number(0, min_open=True), default=GROUP_SECONDS, show_default=True,
    help="Seconds until a rank stops waiting for the other ranks, for example in an all-reduce.",
)  # fmt: skip
_priority = partial(
    click.option,
    "--priority",
    type=click.IntRange(-100, 100),
    default=0,
    show_default=True,
    help="Priority in the queue. Studies of higher priority start first, and pause studies of lower priority.",
)
priority_option = _priority()
priority_at_service_option = _priority(cls=ServiceOption)


TOKEN = "AUTOML_TOKEN"  # noqa: S105 - the name of the variable
_OTHERS = 0o077


def only_docker(docker: Path, out: Path | None, form: str | None) -> Path:
    """Return the folder of --docker, beside which no other output may be given."""
    if form is not None or out is not None:
        raise click.UsageError("--docker DIR sets folder and format itself. Leave out --out and --format")
    return docker


def connection(store: str | None = None) -> ServiceClient | None:
    """Return the client of the service (`automl --server`), or None. Raises UserError if a store is named, too."""
    context = click.get_current_context(silent=True)
    server = None if context is None else context.find_root().params.get("server")
    if not server:
        return None
    if store is not None:
        raise UserError("--store and --server exclude each other. Name a database or a service")
    from automl.remote.client import ServiceClient  # loads requests, which commands on a store do not need

    return ServiceClient(server, token())


def token() -> str | None:
    """Return AUTOML_TOKEN, or the token in `~/.config/automl/token`. Raises UserError if others can read the file."""
    if given := os.environ.get(TOKEN):
        return given.strip()
    path = Path.home() / ".config" / "automl" / "token"
    try:
        if path.stat().st_mode & _OTHERS:
            raise UserError(f"token: other users may read {path}. Run `chmod 600 {path}`")
        return path.read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"token: {path} cannot be read ({error})") from None
