"""`automl init`."""

import click

from automl.launching.template import write_first_spec
from automl.terminal.echo import echo


@click.command()
@click.argument("task", default="digits")
def init(task: str) -> None:
    """Write a commented example spec for TASK to NAME.yaml.

    TASK is a built-in task, or module:Class for your own task, which may not be written yet.
    """
    written = write_first_spec(task)
    if written.note:
        echo(written.note, err=True)
    echo(f"Wrote {written.path}. Next: {written.next_step}")
