"""Commands that look at studies, and at what was kept of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from automl.commands.common import FAILED, json_option, print_json, store_option

if TYPE_CHECKING:
    from studies.records import StudyRecord, TrialRecord


@click.command(name="list")
@store_option
@json_option
def list_studies(store: str | None, as_json: bool) -> None:
    """All studies of the store."""
    from automl.api import open_store
    from automl.show import money, state_text
    from studies.records import NANO
    from studies.storage.reader import list_studies as load_lines

    lines = load_lines(open_store(store))
    rows = [
        {
            "study": line.name,
            "state": line.state,
            "driven": line.driven,
            "trials": line.trials,
            "cost_usd": line.cost_nano_usd / NANO,
            "created_at": line.created_at.isoformat(timespec="seconds"),
        }
        for line in lines
    ]
    if as_json:
        print_json(rows)
        return
    for line, row in zip(lines, rows, strict=True):
        state = state_text(line.name, line.state, driven=line.driven)
        cost, created = money(line.cost_nano_usd / NANO), row["created_at"]
        click.echo(f"{line.name:30} {line.trials:5} trials  {cost:>10}  {created}  {state}")


@click.command()
@click.argument("study", required=False)
@store_option
@json_option
def status(study: str | None, store: str | None, as_json: bool) -> None:
    """State, budget, archive and running trials of STUDY.

    Without a name it is the newest study of the store.
    """
    from automl.show import console, print_summary
    from studies.analysis import summary

    record = _record(study, store)
    report = _existing_report(record)
    if as_json:
        print_json(summary(record, report=report))
    else:
        print_summary(console(), record, report=report)


@click.command()
@click.argument("study")
@store_option
@json_option
@click.option("--format", "form", type=click.Choice(["table", "json", "csv"]), default="table")
def trials(study: str, store: str | None, as_json: bool, form: str) -> None:
    """Every trial: parameters, values, state, epochs, cost, reason."""
    from automl.show import console, print_trials
    from studies.analysis import to_csv, trial_rows

    record = _record(study, store)
    if as_json or form == "json":
        print_json(trial_rows(record))
    elif form == "csv":
        click.echo(to_csv(trial_rows(record)), nl=False)
    else:
        print_trials(console(), record)


@click.command()
@click.argument("study")
@click.argument("trial", type=int)
@store_option
@json_option
def explain(study: str, trial: int, store: str | None, as_json: bool) -> None:
    """Why TRIAL went on, was paused, stopped or failed.

    With the numbers that were compared, its attempts, and the traceback of a failure.
    """
    from automl import show

    record = _record(study, store)
    found = _trial(record, trial)
    if as_json:
        print_json(show.explain(record, found))
    else:
        show.print_explanation(show.console(), record, found)


@click.command()
@click.argument("study")
@click.argument("point", metavar="TRIAL[@EPOCH]")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The file to write.")
@store_option
@json_option
def export(study: str, point: str, out: Path, store: str | None, as_json: bool) -> None:
    """Write the model of an archive point to a file.

    With its weights, parameters and spec; says how to load it.
    """
    from automl.exporting import export_point

    written = export_point(_record(study, store), point, out)
    if as_json:
        print_json(written)
    else:
        click.echo(f"{written['out']} holds trial {written['trial']} after epoch {written['epoch']}. To load it:\n")
        click.echo(written["how_to_load"])


@click.command()
@click.argument("study")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The file to write.")
@store_option
@json_option
def report(study: str, out: Path | None, store: str | None, as_json: bool) -> None:
    """Write STUDY as one HTML page that works offline."""
    from automl.launching.running import report_path
    from reports.page import write_report

    record = _record(study, store)
    path = out or report_path(record, Path.cwd())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        written = str(write_report(record, path).absolute())
    except OSError as error:
        raise click.FileError(str(path), error.strerror or str(error)) from None
    print_json({"report": written}) if as_json else click.echo(written)


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), help="8080, or a free one if that is taken.")
@store_option
def dashboard(port: int | None, store: str | None) -> None:
    """Serve Optuna Dashboard on the store, on 127.0.0.1."""
    from automl.api import open_store
    from automl.dashboard import serve

    serve(open_store(store).url, port)


@click.command()
@click.argument("study")
@store_option
@json_option
def sync(study: str, store: str | None, as_json: bool) -> None:
    """Rebuild the Optuna and MLflow views of STUDY."""
    from automl.api import open_store
    from studies.storage.views import rebuild

    opened = open_store(store)
    opened.require(study)
    errors = rebuild(opened, study)
    if as_json:
        print_json(errors)
    for view, error in errors.items():
        if not as_json:
            click.echo(f"{view}: {error or 'rebuilt'}")
    if any(errors.values()):
        sys.exit(FAILED)


def _record(study: str | None, store: str | None) -> StudyRecord:
    from automl.api import open_store
    from studies.storage.engine import StoreError
    from studies.storage.reader import load_study

    opened = open_store(store)
    if study is None:
        names = opened.study_names()
        if not names:
            raise StoreError("study: the store holds none yet; `automl launch SPEC` makes one")
        study = names[-1]
    return load_study(opened, study)


def _trial(record: StudyRecord, number: int) -> TrialRecord:
    from studies.storage.engine import StoreError

    for trial in record.started:
        if trial.number == number:
            return trial
    raise StoreError(f"trial: found {number}, allowed: 0 to {len(record.started) - 1}")


def _existing_report(record: StudyRecord) -> str | None:
    from automl.launching.running import report_path

    path = report_path(record, Path.cwd())
    return str(path) if path.exists() else None
