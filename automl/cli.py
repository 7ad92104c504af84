"""The command line: gathers the commands, and turns errors into one line and an exit code.

Every command is a few lines: what they do lives elsewhere, and is imported when they run.
Exit codes: 0 done, 1 failed, 2 the input is wrong, 3 the study ended but no trial completed, 130 interrupted.
"""

from __future__ import annotations

import sys

import click

from automl.commands import driving, looking, standalone
from automl.commands.common import FAILED, INTERRUPTED, WRONG_INPUT


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="automl-search", prog_name="automl")
def cli() -> None:
    """Hyperparameter search for PyTorch that accounts for every cent."""


for command in (
    *(driving.init, driving.launch, driving.resume, driving.stop, driving.enqueue, driving.confirm),
    *(looking.list_studies, looking.status, looking.trials, looking.explain),
    *(looking.export, looking.report, looking.dashboard, looking.sync),
    *(standalone.train, standalone.compare, standalone.simulate, standalone.doctor),
):
    cli.add_command(command)


def main() -> None:
    """Run the command line; what users can mend is one line on stderr and exit code 2."""
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as ended:
        sys.exit(ended.exit_code)
    except click.Abort:
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        click.echo(f"automl: {_one_line(error)}", err=True)
        sys.exit(WRONG_INPUT)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        code = _code_of(error)
        if code is None:
            raise
        click.echo(f"automl: {_in_one_line(error)}", err=True)
        sys.exit(code)


def _in_one_line(error: Exception) -> str:
    """What is wrong; of a database, without the statement."""
    cause = getattr(error, "orig", None)
    text = str(error) if cause is None else f"the store: {cause}"
    return " ".join(text.split())


def _one_line(error: click.ClickException) -> str:
    """What is wrong with the arguments, and where help is."""
    problem = " ".join(error.format_message().split())
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None or isinstance(error, click.BadParameter):
        return problem
    return f"{problem}; see `{context.command_path} --help`"


_USERS_TO_MEND = {
    "SpecError",
    "SpaceError",
    "StoreError",
    "PoolError",
    "TaskLoadError",
    "DashboardError",
    "CurvesError",
}
"""By name, since importing them would load what `automl --help` does without."""


def _code_of(error: Exception) -> int | None:
    """The exit code of an error that a user can understand; None for a mistake in this program."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & _USERS_TO_MEND:
        return WRONG_INPUT
    if names & {"LeaseLostError", "TrainingError", "OperationalError"}:
        return FAILED
    return None
