"""`automl trials`."""

from collections.abc import Sequence
from dataclasses import dataclass

import click

from automl.backend import backend_of
from automl.terminal.echo import echo
from automl.terminal.options import json_option, store_option, study_argument
from automl.terminal.output import console, print_json
from automl.terminal.summary import print_trials
from search_spaces.messages import found, nearest
from studies.records.plain_rows import TRIAL_COLUMNS, flattened, to_csv
from studies.records.records import StudyRecord, known_space
from studies.results.analysis import trial_rows
from studies.storage.schema.engine import StoreError


@click.command()
@study_argument
@store_option
@json_option
@click.option("--format", "form", type=click.Choice(["table", "json", "csv"]), default="table", help="Output format.")
@click.option(
    "--sort", metavar="COLUMN[:desc]",
    help="Column of the CSV to sort by, such as val_error; val_error:desc puts the largest value first.",
)  # fmt: skip
@click.option("--top", metavar="N", type=click.IntRange(1), help="List only the first N trials.")
def trials(study: str, store: str | None, as_json: bool, form: str, *, sort: str | None, top: int | None) -> None:
    """List trials with their parameters, metrics, state, epochs and cost.

    --sort takes a column of --format csv, with or without its prefix (params.width or width). Trials without a value
    come last.
    """
    record = backend_of(store).record(study)
    places = listed_places(record, sort, top)
    if as_json or form != "table":
        every = trial_rows(record)
        rows = [every[place] for place in places]
        print_json(rows) if as_json or form == "json" else echo(to_csv(rows), nl=False)
        return
    started = [record.started[place] for place in places]
    queued = record.enqueued if top is None else record.enqueued[: top - len(started)]
    print_trials(console(), record, (*started, *queued))


ASCENDING, DESCENDING = "asc", "desc"
_GROUPS = ("values.", "params.", "bounded.")
"""Prefixes of columns, in the order in which a bare name is looked up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """Sort order of a table."""

    column: str
    descending: bool


def listed_places(record: StudyRecord, sort: str | None, top: int | None) -> list[int]:
    """Return the indices in `record.started` to list. Raises StoreError for an unknown column.

    Args:
        sort: `COLUMN`, `COLUMN:asc` or `COLUMN:desc`; None sorts by trial number.
    """
    rows = trial_rows(record)
    columns, lines = flattened(rows, TRIAL_COLUMNS)
    places = list(range(len(rows)))
    if sort is not None:
        order = parse_order(sort, known_columns(record, columns))
        values = [line.get(order.column) for line in lines]
        there = [place for place, value in enumerate(values) if value is not None and value != ""]
        missing = sorted(set(range(len(values))) - set(there))  # they come last
        places = [*sorted(there, key=lambda place: _key(values[place]), reverse=order.descending), *missing]
    return places[:top]


def known_columns(record: StudyRecord, seen: Sequence[str]) -> list[str]:
    """Return the columns that can sort trials, with those that have no values yet."""
    space = known_space(record)
    wanted = [*TRIAL_COLUMNS, *(f"values.{one.metric}" for one in record.objectives)]
    wanted += [f"params.{name}" for name in space]
    if record.constraints:
        wanted += ["feasible", *(f"bounded.{one.metric}" for one in record.constraints)]
    return list(dict.fromkeys([*wanted, *seen]))


def parse_order(text: str, columns: Sequence[str]) -> Order:
    """Read `COLUMN[:asc|:desc]`. The prefix of the column is optional. Raises StoreError for an unknown column."""
    name, sign, direction = text.rpartition(":")
    if not sign or direction not in {ASCENDING, DESCENDING}:
        name, direction = text, ASCENDING
    for candidate in (name, *(f"{group}{name}" for group in _GROUPS)):
        if candidate in columns:
            return Order(column=candidate, descending=direction == DESCENDING)
    allowed = f"a column of the table ({', '.join(columns)}), with :{DESCENDING} for the largest first"
    raise StoreError(f"--sort: {found(name, allowed, _meant(name, columns))}")


def _meant(name: str, columns: Sequence[str]) -> str | None:
    """Return the column most similar to an unknown name; a name without prefix is compared without prefixes."""
    bare = [column for column in columns if "." not in column]
    bare += [column.partition(".")[2] for column in columns if column.startswith(_GROUPS)]
    return nearest(name, columns if "." in name else bare)


def _key(value: object) -> tuple[int, float, str]:
    """Return a sort key that puts numbers before texts."""
    if isinstance(value, int | float):
        return 0, float(value), ""
    return 1, 0.0, str(value)
