"""`automl ab`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from automl.registry.ab import ab_of
from automl.registry.registered import registry_of
from automl.stored.opening import open_store
from automl.terminal.echo import echo
from automl.terminal.options import json_option, store_option, study_argument
from automl.terminal.output import console, print_json
from studies.storage.reader import load_study


@click.command()
@study_argument
@click.option("--answers", type=click.Path(path_type=Path, file_okay=False), help="What serve-model --answers wrote.")
@click.option("--outcomes", type=click.Path(path_type=Path), help="A file with the columns id and the true label.")
@click.option("--name", help="Name of the registered model; the study's by default.")
@click.option("--mlflow", help="Tracking URI; that of the study by default.")
@store_option
@json_option
def ab(  # noqa: PLR0917 - click gives each option by name
    study: str, answers: Path | None, outcomes: Path | None, name: str | None, mlflow: str | None,
    store: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Compare the champion of STUDY's model with its challenger.

    Shows what was confirmed of each, and how they compared on the same samples when they were promoted. With --answers
    also what each has answered over HTTP, and with --outcomes whether the challenger is right more often: a CSV, JSON
    lines or Parquet file of the id of each answered row, and the label or value that turned out to be true.
    """
    if outcomes is not None and answers is None:
        raise click.UsageError("--outcomes: found no --answers, allowed: both")
    opened = open_store(store)
    record = load_study(opened, study)
    base_folder = opened.require(study).base_folder
    registry = registry_of(mlflow, record.mlflow_uri, base_folder, makes=False)
    told = ab_of(registry, name or study, record.objectives[0].metric, answers, outcomes)
    if as_json:
        print_json(told)
        return
    console().print(_table(told["versions"], told["metric"]))
    for line in told["lines"]:
        echo(line)


def _table(versions: list[dict[str, Any]], metric: str) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE)
    columns = {"version": "left", "role": "left", f"confirmed {metric}": "right"}
    has_answers = any("rows" in one for one in versions)
    if has_answers:
        columns |= dict.fromkeys(("rows", "p50 ms", "p99 ms", "confidence", "known", "error"), "right")
    for name, side in columns.items():
        table.add_column(Text(name), justify=side)  # type: ignore[arg-type]
    for one in versions:
        cells = [one["version"], one["role"] or "", _figure(one["confirmed"])]
        if has_answers:
            cells += [str(one.get("rows", 0)), _figure(one.get("p50_ms")), _figure(one.get("p99_ms"))]
            cells += [_figure(one.get("mean_confidence")), str(one.get("known_outcomes", 0))]
            cells += [_figure(one.get("error", one.get("rmse")))]
        table.add_row(*map(Text, cells))
    return table


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
