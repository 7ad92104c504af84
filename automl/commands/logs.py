"""`automl logs`."""

from __future__ import annotations

import click

from automl.stored.opening import open_store, started_trial
from automl.stored.rank_logs import followed, log_of, text_of
from automl.terminal.echo import echo
from automl.terminal.options import seed_of_log_option, store_option, study_argument
from studies.storage.reader import load_study


@click.command()
@study_argument
@click.argument("trial", type=click.IntRange(min=0))
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True, help="Whose output.")
@click.option("--attempt", type=click.IntRange(min=1), help="Which attempt's; the latest one's if left out.")
@seed_of_log_option
@click.option("--follow", "-f", is_flag=True, help="Go on as it grows, until the trial waits or has ended.")
@store_option
def logs(  # noqa: PLR0917 - click gives each option by name
    study: str, trial: int, rank: int, attempt: int | None, seed: int | None, follow: bool, store: str | None
) -> None:
    """Print what TRIAL has printed on a rank.

    Of long output the end is kept: 8 MiB, or task.log_mib of a command.
    """
    if follow and seed is not None:
        raise click.UsageError("--follow: found --seed beside it, allowed: one of them")
    opened = open_store(store)
    started_trial(load_study(opened, study), trial)
    path = log_of(opened, study, trial, rank, attempt=attempt, seed=seed)
    if not follow:
        for text in text_of(path):
            echo(text, nl=False)
        return

    study_id = opened.require(study).id

    def is_running() -> bool:
        row = opened.find_trial(study_id, number=trial)
        return row is not None and row.state == "running"

    for text in followed(path, is_running):
        echo(text, nl=False)
