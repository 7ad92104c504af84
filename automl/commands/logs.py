"""`automl logs`."""

import click

from automl.backend import backend_of
from automl.terminal.echo import echo
from automl.terminal.options import StoreOption, store_option, study_argument


@click.command()
@study_argument
@click.argument("trial", type=click.IntRange(min=0))
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True, help="Rank whose output to print.")
@click.option(
    "--attempt", type=click.IntRange(min=1), help="Attempt (run of the trial) to print; the latest by default."
)
@click.option(
    "--seed", type=click.IntRange(min=0), help="Print the log of the training that `automl confirm` ran with this seed."
)
@click.option("--follow", "-f", is_flag=True, cls=StoreOption, help="Print new output until the trial pauses or ends.")
@store_option
def logs(  # noqa: PLR0917 - click passes each option by name
    study: str, trial: int, rank: int, attempt: int | None, seed: int | None, follow: bool, store: str | None
) -> None:
    """Print the output of one rank (training process) of a trial.

    Only the last 8 MiB are kept; a task that is a command can set another size, task.log_mib. A service sends the
    last million characters.
    """
    if follow and seed is not None:
        raise click.UsageError("--follow and --seed exclude each other")
    for text in backend_of(store).output(study, trial, rank=rank, attempt=attempt, seed=seed, follow=follow):
        echo(text, nl=False)
