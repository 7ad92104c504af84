"""`automl simulate`."""

from __future__ import annotations

from typing import Any

import click

from automl.simulated_search import Simulations, run
from automl.terminal.echo import echo
from automl.terminal.options import Number, json_option
from automl.terminal.output import print_json

MOST_SLOTS = 4096


@click.command()
@click.argument("curves", metavar="CURVES", nargs=-1, required=True)
@click.option(
    "--objective",
    "objectives",
    metavar="METRIC:min",
    multiple=True,
    required=True,
    help="A validation metric, cost_usd, wall_seconds or static:NAME, with :min or :max.",
)
@click.option(
    "--constraint",
    "constraints",
    metavar="METRIC:max:NUMBER",
    multiple=True,
    help="What a model has to keep to count; :min: for a lower bound.",
)
@click.option("--pool", is_flag=True, help="All tables as one task; the table becomes a parameter.")
@click.option("--slots", type=click.IntRange(1, MOST_SLOTS), default=4, show_default=True)
@click.option(
    "--budget-full-trials",
    type=Number(0, min_open=True),
    default=20.0,
    show_default=True,
    help="The budget, in mean costs of a full training.",
)
@click.option("--seeds", metavar="FROM:TO", default="0", show_default=True, help="The end is left out.")
@click.option("--sampler", default="auto", show_default=True, help="As search.sampler of a spec.")
@click.option("--pruner", default="auto", show_default=True, help="As search.pruner: a name or a mapping.")
@click.option(
    "--price", type=Number(0, min_open=True), default=1.0, show_default=True, help="Dollars per hour of a slot."
)
@click.option(
    "--start-epochs",
    type=Number(0),
    default=0.3,
    show_default=True,
    help="What a start or a thaw costs, in mean epochs of the configuration.",
)
@click.option(
    "--faults",
    type=Number(0, 1),
    default=0.0,
    show_default=True,
    help="Probability that an attempt is lost, for the first two of each trial.",
)
@click.option("--price-factors", metavar="F,F", help="Configurations run on devices of these multiples of the price.")
@click.option("--world-sizes", metavar="N,N", help="World size becomes a parameter with these values.")
@click.option(
    "--efficiency",
    type=Number(0, 1, min_open=True),
    default=0.9,
    show_default=True,
    help="Parallel efficiency kept at each doubling of the world size.",
)
@click.option("--study", default="simulated", show_default=True, help="With --store: how names of studies begin.")
@click.option("--store", metavar="URL", help="Keep the studies in this database; they can be reported like real ones.")
@json_option
def simulate(curves: tuple[str, ...], store: str | None, as_json: bool, **options: Any) -> None:
    """Run studies over recorded learning curves in virtual time.

    CURVES are files or folders of the format curves-v1. Controller, policy, prices and budget are the real ones.
    """
    document = run(Simulations(paths=curves, store=store, **options), say=lambda line: echo(line, err=as_json))
    if as_json:
        print_json(document)
