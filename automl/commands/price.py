"""`automl price set`."""

import click

from automl.stored.open_store import open_store
from automl.stored.requests import set_price
from automl.terminal.echo import echo
from automl.terminal.options import json_option, store_option, study_argument
from automl.terminal.output import print_json


@click.group()
def price() -> None:
    """Change the price of a device while a study runs."""


@price.command(name="set")
@study_argument
@click.argument("usd_per_slot_hour", metavar="USD", type=float)
@store_option
@json_option
def set_(study: str, usd_per_slot_hour: float, store: str | None, as_json: bool) -> None:
    """Set the price of a slot to USD dollars per hour.

    A slot is one device of STUDY. The price holds from now on, or from the next start if STUDY is not running.
    """
    outcome = set_price(open_store(store), study, usd_per_slot_hour)
    print_json(outcome) if as_json else echo(outcome["message"])
