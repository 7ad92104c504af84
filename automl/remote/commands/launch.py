"""`automl --server URL launch`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from automl.remote.commands.submit import code_option, submission
from automl.remote.connection import service
from automl.remote.following import Telling, take_leave_or_follow
from automl.terminal.echo import echo
from automl.terminal.options import json_option, priority_option, quiet_option, set_option
from automl.terminal.output import print_json

detach_option = click.option("--detach", is_flag=True, help="Do not follow it: print its turn, and end.")


@click.command()
@click.argument("spec", type=click.Path(path_type=Path))
@set_option
@code_option
@priority_option
@click.option("--dry-run", is_flag=True, help="Show what would run and what it may cost; queue nothing.")
@detach_option
@json_option
@quiet_option
def launch(
    spec: Path,
    overrides: tuple[str, ...],
    *,
    code: str | None,
    priority: int,
    dry_run: bool,
    detach: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Submit the study that SPEC describes, and follow it until it ends.

    Ctrl-C leaves it, and it goes on.
    """
    client, body = service(), submission(spec, overrides, code=code, priority=priority)
    if dry_run:
        plan = client.post("/studies/check", body)
        print_json(plan) if as_json else _show(plan)
        return
    job = client.post("/studies", body)
    take_leave_or_follow(client, job, Telling(as_json=as_json, quiet=quiet), detach=detach)


def _show(plan: Mapping[str, Any]) -> None:
    """Print a plan as `automl launch --dry-run` does, as far as the service tells it."""
    rungs = ", ".join(map(str, plan["rungs"])) or "none"
    lines = {"study": plan["study"], "slots": f"{plan['slots']}, {plan['price']}", "rungs": rungs}
    for name, text in (lines | {"cost": plan["expected_cost"]}).items():
        echo(f"{name:<11} {text}")
    for number, params in enumerate(plan["first_params"]):
        echo(f"trial {number:<5} " + " ".join(f"{name}={value}" for name, value in params.items()))
    echo("nothing is queued; --json shows the whole spec")
