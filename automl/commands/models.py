"""`automl models`."""

import json
from typing import Any

import click

from automl.registry.registered import Registry, Version
from automl.terminal.echo import echo
from automl.terminal.options import json_option
from automl.terminal.output import console, print_json


@click.command()
@click.argument("name", required=False)
@click.option("--mlflow", help="Tracking URI of MLflow; MLFLOW_TRACKING_URI or sqlite:///mlflow.db by default.")
@json_option
def models(name: str | None, mlflow: str | None, as_json: bool) -> None:
    """List all registered models, or the versions of the model NAME."""
    rows = [_row(one) for one in Registry(mlflow, makes=False).versions(name)]
    if as_json:
        print_json(rows)
    elif not rows:
        echo("No model is registered yet. Register one with `automl promote STUDY`")
    else:
        console().print(_table(rows))


def _row(one: Version) -> dict[str, Any]:
    confirmed = json.loads(one.tags.get("automl.confirmed", "null"))
    return {
        "model": one.name,
        "version": one.number,
        "aliases": list(one.aliases),
        "study": one.tags.get("automl.study"),
        "trial": int(one.tags["automl.trial"]) if "automl.trial" in one.tags else None,
        "epoch": int(one.tags["automl.epoch"]) if "automl.epoch" in one.tags else None,
        "seeds": json.loads(one.tags.get("automl.seeds", "null")),
        "metrics": {} if confirmed is None else {key: value["mean"] for key, value in confirmed["metrics"].items()},
        "forced": one.tags.get("automl.forced"),
    }


def _table(rows: list[dict[str, Any]]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE)
    for column in ("model", "version", "alias", "from", "confirmed"):
        made.add_column(column)
    for row in rows:
        seeds = "" if row["seeds"] is None else f", {len(row['seeds'])} seeds"
        point = "" if row["trial"] is None else f"{row['study']} {row['trial']}@{row['epoch']}{seeds}"
        figures = "  ".join(f"{key} {value:.4g}" for key, value in row["metrics"].items())
        note = f"forced: {row['forced']}" if row["forced"] else "not confirmed"
        cells = (row["model"], str(row["version"]), " ".join(row["aliases"]), point, figures or note)
        made.add_row(*map(Text, cells))
    return made
