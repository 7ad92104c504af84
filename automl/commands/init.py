"""`automl init`."""

import click

from automl.launching.template import write_first_spec
from automl.terminal.echo import echo


@click.command()
@click.argument("task", default="digits")
def init(task: str) -> None:
    """Write an example spec with comments for TASK to a YAML file.

    TASK is a built-in task such as digits, or module:Class for your own task, which you may write later.
    """
    written = write_first_spec(task)
    if written.note:
        echo(written.note, err=True)
    echo(f"Wrote {written.path}. Next: {written.next_step}")
