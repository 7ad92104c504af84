"""`automl launch`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from automl.backend import ServiceBackend, backend_of
from automl.launching.dry_run import data_lines, show, show_plan
from automl.launching.from_code import Code, check_place_of_spec, code_of, prepared_from_code
from automl.launching.launch_or_resume import launch_prepared
from automl.launching.prepared_study import Prepared, prepare
from automl.launching.quickstart import quickstart, shown_notes, write_spec
from automl.launching.spec_reading import read_spec, with_options_of_new_studies
from automl.launching.study_run import Outcome, Watcher
from automl.terminal.echo import echo
from automl.terminal.options import (
    StoreOption,
    code_option,
    detach_option,
    json_option,
    log_file_option,
    priority_at_service_option,
    quiet_option,
    set_option,
    store_option,
    verbose_option,
)
from automl.terminal.output import print_json
from automl.terminal.study_run_output import Talk, drive_in_terminal
from search_spaces.messages import UserError
from trainers.tasks.table.file_endings import PARQUET, TEXT


@click.command()
@click.argument("spec", type=click.Path(path_type=Path), required=False)
@click.option(
    "--task", cls=StoreOption,
    help="Built-in task to search without SPEC: tabular, text, vision, language_model or digits.",
)  # fmt: skip
@click.option("--data", cls=StoreOption, metavar="PATH", help="File or folder to train on. Needs --task.")
@click.option(
    "--target", cls=StoreOption, metavar="COLUMN",
    help="Column to predict; the last column by default. Needs --task tabular.",
)  # fmt: skip
@click.option("--text", cls=StoreOption, metavar="COLUMN", help="Column with the texts. Needs --task text.")
@click.option("--label", cls=StoreOption, metavar="COLUMN", help="Column with the classes. Needs --task text.")
@click.option(
    "--checkpoint", cls=StoreOption, metavar="PATH",
    help="Model to fine-tune: a folder, or a name on the Hugging Face hub. Needs --task text.",
)  # fmt: skip
@click.option(
    "--test-data", cls=StoreOption, metavar="PATH",
    help="File or folder of test data, which the search never uses. Needs --task.",
)  # fmt: skip
@click.option(
    "--validation-data", cls=StoreOption, metavar="PATH",
    help="File or folder of validation data; a part of --data by default. Needs --task.",
)  # fmt: skip
@click.option(
    "--save-spec", cls=StoreOption, metavar="FILE", type=click.Path(path_type=Path),
    help="File in which to save the spec that automl chose. Needs --task, or train.py:NAME as SPEC.",
)  # fmt: skip
@set_option
@click.option(
    "--from-study", "from_studies", metavar="NAME_OR_URL", multiple=True,
    help="Earlier study to learn from: NAME in this store, or URL#NAME in another; repeatable.",
)  # fmt: skip
@store_option
@code_option
@priority_at_service_option
@detach_option
@json_option
@click.option(
    "--dry-run", is_flag=True,
    help="Print the plan of the study without storing or starting it; --verbose adds the whole spec.",
)  # fmt: skip
@quiet_option
@verbose_option
@log_file_option
def launch(
    spec: Path | None, overrides: tuple[str, ...], from_studies: tuple[str, ...], *, store: str | None,
    code: str | None, priority: int, detach: bool, as_json: bool, dry_run: bool, quiet: bool, verbose: bool,
    log_file: Path | None, **quick: Any,
) -> None:  # fmt: skip
    """Search for good models, as described by a spec, by a data file (--task) or by your own code.

    SPEC is a YAML file, or a training function or task in your code: train.py:NAME or module:NAME. Launching an equal
    spec again continues its study. With --server, the service queues the study, and the command prints its progress:
    Ctrl-C ends only the command.
    """
    talk = Talk(as_json=as_json, quiet=quiet, verbose=verbose, log_file=log_file)
    talk.check()
    if from_studies:
        overrides = (*overrides, f"search.from_studies={json.dumps(from_studies)}")
    backend = backend_of(store)
    if isinstance(backend, ServiceBackend):
        _launch_there(backend, spec, overrides, talk, dry_run=dry_run, detach=detach, code=code, priority=priority)
        return
    prepared, notes = _prepared(spec, overrides, store, quick)
    for line in [] if as_json or (quiet and not dry_run) else data_lines(prepared.data_check):
        echo(line, err=not dry_run)
    if notes and not quiet:
        echo(notes, err=True)
    if dry_run:
        show(prepared, as_json=as_json, verbose=verbose)
        return
    drive_in_terminal(lambda watcher: _launched(prepared, watcher), talk)


def _launch_there(
    backend: ServiceBackend, spec: Path | None, overrides: tuple[str, ...], talk: Talk, *,
    dry_run: bool, detach: bool, code: str | None, priority: int,
) -> None:  # fmt: skip
    from automl.remote.following import Telling, take_leave_or_follow

    if spec is None:
        raise click.UsageError("Nothing to run. Name a spec (a YAML file)", click.get_current_context())
    if code_of(spec) is not None:
        raise click.UsageError(
            f"A service cannot read {spec}. Name a YAML file as SPEC, and a code folder of the service (--code)",
            click.get_current_context(),
        )
    if dry_run:
        plan = backend.check_file(spec, overrides, code=code)
        print_json(plan) if talk.as_json else show_plan(plan)
        return
    job = backend.submit_file(spec, overrides, code=code, priority=priority)
    take_leave_or_follow(backend.client, job, Telling(as_json=talk.as_json, quiet=talk.quiet), detach=detach)


def _launched(prepared: Prepared, watcher: Watcher) -> Outcome:
    for warning in prepared.warnings:
        watcher.warn(warning)
    return launch_prepared(prepared, watcher)[0]


def _prepared(
    spec: Path | None, overrides: tuple[str, ...], store: str | None, quick: dict[str, Any]
) -> tuple[Prepared, str]:
    """Return the study of the spec, of --task or of code, and notes on the chosen spec."""
    task, save_spec = quick.pop("task"), quick.pop("save_spec")
    if task is None:
        code = None if spec is None else code_of(spec)
        _refuse_stray(quick if code is not None else {**quick, "save_spec": save_spec})
        if spec is None:
            raise click.UsageError("Nothing to run. Name a spec, or --task and --data", click.get_current_context())
        if code is not None:
            return _of_code(code, overrides, store, save_spec)
        _refuse_data(spec)
        parsed, folder = read_spec(spec, overrides, store), spec.absolute().parent
        new = with_options_of_new_studies(parsed)
        return prepare(new, source=str(spec), base_folder=folder), ""
    if spec is not None:
        problem = f"SPEC {spec} and --task exclude each other. Name one of them"
        raise click.UsageError(problem, click.get_current_context())
    picked = quickstart(task, quick, overrides, store)
    prepared = prepare(picked.spec, source=picked.source, base_folder=Path.cwd())
    if save_spec is not None:
        write_spec(save_spec, picked)
    return prepared, shown_notes(picked)


def _refuse_data(spec: Path) -> None:
    """Refuse data in place of SPEC. The message names the command that trains on this data."""
    if spec.is_dir():
        kind, options = "a folder", f"vision --data {spec}"
    elif spec.name.lower().removesuffix(".gz").endswith((*TEXT, *PARQUET)) and spec.is_file():
        kind, options = "a table", f"tabular --data {spec} --target COLUMN"
    else:
        return
    raise UserError(f"{spec} is {kind}, not a spec. To search for a model: `automl launch --task {options}`")


def _refuse_stray(options: Mapping[str, Any]) -> None:
    stray = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if stray:
        raise click.UsageError(f"{stray[0]} needs --task", click.get_current_context())


def _of_code(code: Code, overrides: tuple[str, ...], store: str | None, save_spec: Path | None) -> tuple[Prepared, str]:
    if save_spec is not None:
        check_place_of_spec(save_spec, code)
    prepared, picked = prepared_from_code(code, overrides, store)
    if save_spec is not None:
        write_spec(save_spec, picked)
    return prepared, shown_notes(picked)
