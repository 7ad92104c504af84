"""Options and types of arguments that several commands share."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from trainers.checkpoint_urls import (
    ALLOWED_FOLDER,
    MissingLibraryError,
    absolute_folder,
    check_library,
    is_url,
    problem_of_folder,
)
from trainers.group_options import GROUP_SECONDS


class Number(click.FloatRange):
    """A finite number in a range."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or refuse NaN and infinity as click refuses a number out of range."""
        converted = super().convert(value, param, ctx)
        if not math.isfinite(converted):
            self.fail(f"found {value}, allowed: a finite number", param, ctx)
        return converted


class CheckpointsFolder(click.ParamType):  # type: ignore[type-arg]
    """A folder of this machine, or a URL of an object store whose library is installed."""

    name = "folder"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the folder as it was given."""
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


file_type = click.Path(path_type=Path, dir_okay=False)
folder_type = click.Path(path_type=Path, file_okay=False)


def complete_study(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of studies that begin with what was typed, for the completion of a shell."""
    from automl.stored.study_names import names_of  # loads SQLAlchemy, which no help needs

    return [name for name in names_of(context.params.get("store")) if name.startswith(incomplete)]


study_argument = click.argument("study", shell_complete=complete_study)
store_option = click.option("--store", metavar="URL", help="The database; AUTOML_STORE or sqlite:///automl.db.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
set_option = click.option("--set", "overrides", metavar="PATH=VALUE", multiple=True, help="Set a key of the spec.")
seed_of_log_option = click.option(
    "--seed", type=click.IntRange(min=0), help="Of the training that has confirmed it with this seed."
)
quiet_option = click.option("--quiet", is_flag=True, help="Print warnings and errors only.")
verbose_option = click.option("--verbose", is_flag=True, help="Tell each start, pause and end of a trial.")
log_file_option = click.option(
    "--log-file", metavar="FILE", type=click.Path(path_type=Path), help="Append what happens to FILE, with the time."
)
param_option = click.option(
    "--param", "given", metavar="NAME=VALUE", multiple=True, help="A parameter of the trainer or the task."
)
task_option_option = click.option(
    "--option", "task_options", metavar="NAME=VALUE", multiple=True, help="One of the spec's task_options."
)
seed_option = click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
device_option = click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
backend_option = click.option(
    "--backend",
    type=click.Choice(["auto", "nccl", "gloo"]),
    default="auto",
    show_default=True,
    help="What carries the messages between ranks.",
)
group_seconds_option = click.option(
    "--group-seconds",
    type=Number(0, min_open=True),
    default=GROUP_SECONDS,
    show_default=True,
    help="Seconds after which ranks give up waiting for one that is gone, or slow in an exchange.",
)
priority_option = click.option(
    "--priority",
    type=click.IntRange(-100, 100),
    default=0,
    show_default=True,
    help="Jobs of a higher priority go first, and displace lower ones.",
)
