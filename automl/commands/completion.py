"""`automl completion`."""

import click
from click.shell_completion import get_completion_class

from automl.terminal.echo import echo

PROGRAM, VARIABLE = "automl", "_AUTOML_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes automl's commands in a shell.

    For bash, add eval "$(automl completion bash)" to ~/.bashrc; for zsh, the same with zsh to ~/.zshrc. For fish, run
    automl completion fish > ~/.config/fish/completions/automl.fish.
    """
    made = get_completion_class(shell)
    assert made is not None  # noqa: S101 - click knows all of SHELLS
    echo(made(context.find_root().command, {}, PROGRAM, VARIABLE).source())
