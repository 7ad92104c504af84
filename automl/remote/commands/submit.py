"""`automl --server URL submit`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from automl.remote.connection import service
from automl.terminal.echo import echo
from automl.terminal.options import json_option, priority_option, set_option
from automl.terminal.output import print_json
from search_spaces.wording import found
from studies.spec.errors import SpecError
from studies.spec.study_spec import apply_overrides
from studies.spec.yaml_reader import read_yaml_file

code_option = click.option("--code", metavar="NAME", help="The service's code folder with the task and its data.")


@click.command()
@click.argument("spec", type=click.Path(path_type=Path))
@set_option
@code_option
@priority_option
@json_option
def submit(spec: Path, overrides: tuple[str, ...], *, code: str | None, priority: int, as_json: bool) -> None:
    """Queue the study that SPEC describes; a worker of the service runs it."""
    job = service().post("/studies", submission(spec, overrides, code=code, priority=priority))
    print_json(job) if as_json else echo(f"{job['study']} is {job['state']}; `automl queue` shows its turn")


def submission(spec: Path, overrides: Sequence[str], *, code: str | None, priority: int) -> dict[str, Any]:
    """Return the body of a submission; the service checks the spec.

    Args:
        spec: YAML file of the spec.
        overrides: `path=value` each, as `--set` takes them.
        code: Name of the service's code folder; None without code.
        priority: Priority of the job.

    Raises:
        SpecError: The file holds no mapping, or an override is wrong.
    """
    read = read_yaml_file(spec)
    if not isinstance(read, dict):
        raise SpecError(str(spec), (), found(read, "a mapping with at least the key task"))
    body = {"spec": apply_overrides(read, overrides), "priority": priority}
    return body if code is None else body | {"code": code}
