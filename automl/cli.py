"""The command line: imports only the command that runs, and prints errors together with their cures."""

import importlib
import logging
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import click
from click.shell_completion import CompletionItem

from automl.signals import interrupting_signals, lasting_streams
from automl.terminal.echo import FAILED, INTERRUPTED, WRONG_INPUT, echo
from search_spaces.messages import RunError, StoppedError, UserError, nearest, problem_and_cure
from search_spaces.untrusted_text import escaped

GROUPS: Mapping[str, Mapping[str, str]] = {
    "First day": {
        "launch": "Search for good models, as described by a spec, by a data file (--task) or by your own code.",
        "status": "Show a study's state, budget, best models and running trials.",
        "report": "Write a report of a study: one HTML page that works offline.",
        "export": "Write a model of a study to a file or a folder.",
        "predict": "Predict each row of DATA with an exported model.",
    },
    "Start and steer a search": {
        "init": "Write an example spec with comments for TASK to a YAML file.",
        "train": "Train TASK once with DDP, without a search.",
        "compare": "Train TASK at several world sizes and compare their speed.",
        "resume": "Continue a stopped study, or give a study more budget.",
        "stop": "Stop a study at the end of its running epochs.",
        "enqueue": "Add a trial with the given parameters to a study.",
        "cancel": "End a trial for good, while its study continues.",
        "price": "Change the price of a device while a study runs.",
        "import": "Import runs of W&B, MLflow, Ray Tune, Optuna or a table as STUDY, to learn from.",
        "simulate": "Run studies over recorded learning curves in virtual time.",
    },
    "Watch and understand": {
        "list": "List all studies of the store.",
        "trials": "List trials with their parameters, metrics, state, epochs and cost.",
        "explain": "Explain why a trial continued, was paused, stopped or failed.",
        "logs": "Print the output of one rank (training process) of a trial.",
        "dashboard": "Serve web pages of studies, with Optuna Dashboard, on 127.0.0.1.",
    },
    "Take a model": {
        "confirm": "Train models again with new seeds and measure them on test data.",
        "ensemble": "Combine saved models of a study into one model.",
        "promote": "Register a model in MLflow as champion or challenger.",
        "models": "List all registered models, or the versions of the model NAME.",
        "serve-model": "Serve an exported model over HTTP.",
    },
    "Service and clusters": {
        "serve": "Serve a queue of studies over HTTP: pages for people, an API for programs.",
        "worker": "Run the studies that wait in the queue of a store.",
        "submit": "Add a study to the queue of a service, a store or SLURM.",
        "queue": "List the running and the waiting studies of a queue.",
        "limit": "Limit what users and projects spend on all their studies.",
        "token": "Create, list, rotate and revoke access tokens of the service.",
        "mcp": "Serve studies to AI agents through the Model Context Protocol (MCP).",
        "export-cluster": "Write files that run studies on SLURM, Kubernetes or Docker Compose.",
    },
    "Maintenance": {
        "doctor": "Check this machine, and print how to fix what does not work.",
        "audit": "Check a study's rows, money, checkpoints and processes.",
        "gc": "List or delete checkpoints that no trial of a study needs.",
        "prune-checkpoints": "List or delete checkpoints that are not among a study's best models.",
        "delete": "Delete a study: its rows, checkpoints, report, and copies in Optuna and MLflow.",
        "store": "Copy a store to another database, or back it up to a file.",
        "sync": "Rebuild a study's copies in Optuna and MLflow.",
        "completion": "Print the script that completes automl's commands in a shell.",
    },
}
"""Commands with the first line of their help, in the order of `automl --help`, which imports no command."""
COMMANDS: Mapping[str, str] = {name: line for group in GROUPS.values() for name, line in group.items()}

MODULES: Mapping[str, str] = {
    "export-cluster": "export_cluster",
    "import": "import_history",
    "list": "list_studies",
    "prune-checkpoints": "prune_checkpoints",
    "serve-model": "serve_model",
}
"""Commands whose module and function have another name."""
OVER_HTTP = frozenset(
    {"cancel", "confirm", "delete", "enqueue", "explain", "export", "launch", "list", "logs", "mcp", "queue", "report",
     "resume", "status", "stop", "submit", "train", "trials"}
)  # fmt: skip
"""Commands that can call a service (`--server`)."""
HERE = frozenset({"compare", "completion", "init", "predict", "serve", "serve-model", "simulate", "store", "worker"})
"""Commands that need no studies, or name their own store. They ignore AUTOML_SERVER and refuse `--server`."""
BESIDE = frozenset({"doctor"})
"""Local commands that call the service only with a further option; without that option they refuse `--server`."""

REMOVED_OPTIONS: Mapping[str, str] = {
    "--share-on": "join the machines by `ray start`, and name the cluster with --set resources.ray_address=HOST:PORT"
}
"""Options of earlier versions, each with its replacement."""

REMOVED: Mapping[str, str] = {"ab": "`automl promote` compares champion and challenger on the same samples"}
"""Commands of earlier versions, each with its replacement."""

_MISREADING = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions that unexpected values in a store can raise."""


class LazyGroup(click.Group):
    """Command group that imports `automl.commands.NAME` only to run the command NAME or to print its help."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click calls it so
        """Return all names."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None if there is no such command."""
        if cmd_name in REMOVED:
            raise UserError(f"the command {cmd_name} was removed: {REMOVED[cmd_name]}")
        if cmd_name not in COMMANDS:
            return None
        module = MODULES.get(cmd_name, cmd_name)
        if ctx.params.get("server"):
            _check_goes_with_server(ctx, cmd_name)
        command: click.Command = getattr(importlib.import_module(f"automl.commands.{module}"), module)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return matching commands, and the options, without importing a command."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=COMMANDS[name]) for name in names]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. If a damaged store causes an error, its message names the damage."""
        try:
            return super().invoke(ctx)
        except _MISREADING as error:
            from automl.stored.open_store import damage_in_stores

            found = ""
            with suppress(_database_error()):
                found = damage_in_stores(ctx)
            if found:
                raise RunError(found) from error
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. The error for a mistyped name suggests the most similar command."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if near := nearest(args[0], COMMANDS):
                raise click.UsageError(f"No such command {args[0]!r}. Did you mean `automl {near}`?", ctx) from error
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as click has it
        """Write the commands for `--help`, without importing a command."""
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="automl-search", prog_name="automl")
@click.option("--server", metavar="URL", envvar="AUTOML_SERVER", help="Use a service, not a store; or AUTOML_SERVER.")
def cli(server: str | None) -> None:
    """Hyperparameter search for PyTorch that accounts for every cent."""
    del server  # commands read it from the context: `automl.backend.backend_of`


def _check_goes_with_server(ctx: click.Context, command: str) -> None:
    """Raise UserError if a service is named for a command that runs only on this machine."""
    is_typed = ctx.get_parameter_source("server") is click.core.ParameterSource.COMMANDLINE
    if command in OVER_HTTP | BESIDE or (command in HERE and not is_typed):
        return
    given = "--server" if is_typed else "AUTOML_SERVER"
    raise UserError(
        f"automl {command} cannot use a service, but {given} is set. Pass --store for a database, or use one of these "
        f"commands: {', '.join(sorted(OVER_HTTP))}"
    )


def main() -> None:
    """Run the command line. Prints an expected error as problem and cure on stderr, and sets the exit code."""
    with lasting_streams() as files:
        try:
            with interrupting_signals():
                _run()
        except SystemExit as ended:
            code = ended.code
        else:
            code = 0
        lost = next((file.problem for file in files if file.problem is not None), None)
        if lost is not None:
            echo(f"automl: some of the output could not be written ({lost.strerror})", err=True)
    sys.exit(code or (0 if lost is None else FAILED))


def _run() -> None:
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_EscapingFormatter())
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as ended:
        sys.exit(ended.exit_code)
    except click.Abort:
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        _print_error(_usage_problem(error))
        sys.exit(WRONG_INPUT)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - its traceback is printed
        if isinstance(error, UserError | RunError | _database_error()):
            _print_error(_in_one_line(error))
        else:
            echo(traceback.format_exc(), err=True, nl=False)
        is_input = isinstance(error, UserError)
        sys.exit(WRONG_INPUT if is_input else INTERRUPTED if isinstance(error, StoppedError) else FAILED)


class _EscapingFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record))


def _database_error() -> type[Exception]:
    """Return SQLAlchemy's error for an unreachable database, without importing SQLAlchemy, which is slow."""
    loaded = sys.modules.get("sqlalchemy.exc")
    found: type[Exception] = RunError if loaded is None else loaded.OperationalError
    return found


def _print_error(message: str) -> None:
    """Print a message's first sentence, the problem, and below it the rest, the cure."""
    problem, cure = problem_and_cure(message)
    echo(f"automl: {problem}", err=True)
    if cure:
        echo(cure, err=True)


def _in_one_line(error: Exception) -> str:
    """Return the message on one line; for a database error the driver's message, without the SQL statement."""
    cause = getattr(error, "orig", None)
    text = str(error) if cause is None else f"the store: {cause}"
    return " ".join(text.split())


def _spec_key(option: str, context: click.Context | None) -> str | None:
    """Return `--set KEY=...` for the spec key most similar to an unknown option, if the command has `--set`."""
    if context is None or not any("--set" in parameter.opts for parameter in context.command.params):
        return None
    from studies.spec.spec_errors import inner_keys  # both take long to load, and only a wrong option needs them
    from studies.spec.study_spec import StudySpec

    keys = inner_keys(StudySpec) | {name: name for name in StudySpec.model_fields}
    near = nearest(option.lstrip("-").replace("-", "_"), keys)
    return near and f"--set {keys[near]}=..."


def _usage_problem(error: click.ClickException) -> str:
    problem = " ".join(error.format_message().split()).rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    if isinstance(error, click.NoSuchOption):
        name = error.option_name
        if name in REMOVED_OPTIONS:
            return f"{name} does not exist any more: {REMOVED_OPTIONS[name]}"
        problem = f"No such option {name!r}"
        if name == "--server" and context is not None and context.info_name in OVER_HTTP:
            return f"{problem} here. Name the service before the command: `automl --server URL {context.info_name}`"
        options = {one.lstrip("-"): one for one in error.possibilities or ()}
        if near := nearest(name.lstrip("-"), options) or _spec_key(name, context):
            return f"{problem}. Did you mean {options.get(near, near)}?"
    if isinstance(error, click.MissingParameter) and context is not None:
        return f"{problem}. {' '.join(context.get_usage().split())}"
    if context is None or isinstance(error, click.BadParameter) or problem.endswith("?"):
        return problem
    return f"{problem}. See `{context.command_path} --help`"
