"""`automl --server URL confirm`."""

from __future__ import annotations

import sys

import click

from automl.remote.client import study_path
from automl.remote.connection import service
from automl.remote.following import Telling, follow_job
from automl.remote.records import record_of
from automl.terminal.echo import echo
from automl.terminal.options import Number, json_option, study_argument
from automl.terminal.output import print_json, say_on_stderr
from automl.terminal.summary import document_of
from reports.recommending import recommendation_lines
from search_spaces.errors import UserError


@click.command()
@study_argument
@click.argument("points", metavar="[TRIAL[@EPOCH]|best|cheapest|knee]...", nargs=-1)
@click.option("--seeds", type=click.IntRange(1, 20), default=3, show_default=True, help="Trainings of each point.")
@click.option("--usd", type=Number(0, min_open=True), help="Dollars that it may cost, beside the study's budget.")
@json_option
def confirm(study: str, points: tuple[str, ...], *, seeds: int, usd: float | None, as_json: bool) -> None:
    """Train models of STUDY again, with fresh seeds, and measure them.

    Without --usd it says what that will probably cost. With --json it prints the study's summary afterwards.
    """
    client, question = service(), {"points": list(points), "seeds": seeds}
    plan = client.post(study_path(study, "confirm", "check"), question)
    if usd is None:
        raise UserError(f"--usd: found nothing, allowed: the dollars that it may cost; {plan['message']}")
    say_on_stderr(plan["message"])
    job = client.post(study_path(study, "confirm"), question | {"usd": usd})
    code = follow_job(client, job["study"], Telling(as_json=as_json))
    record = record_of(client, plan["study"])
    if as_json:
        print_json(document_of(record, report=None))
    else:
        for line in recommendation_lines(record):
            echo(line)
    if code:
        sys.exit(code)
