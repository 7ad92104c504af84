"""`automl simulate`."""

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
    help="Upper bound of a metric of the models; with :min: a lower bound.",
)
@click.option("--pool", is_flag=True, help="Search all tables as one task; the table becomes a parameter.")
@click.option("--slots", type=click.IntRange(1, MOST_SLOTS), default=4, show_default=True)
@click.option(
    "--budget-full-trials",
    type=Number(0, min_open=True),
    default=20.0,
    show_default=True,
    help="Budget, as a multiple of the mean cost of a full training.",
)
@click.option("--seeds", metavar="FROM:TO", default="0", show_default=True, help="Seeds; TO is left out.")
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
    help="Cost of a start or a restart from a checkpoint, in mean epochs of the configuration.",
)
@click.option(
    "--faults",
    type=Number(0, 1),
    default=0.0,
    show_default=True,
    help="Probability that one of a trial's first two attempts is lost.",
)
@click.option("--price-factors", metavar="F,F", help="Price multiples of the devices that configurations run on.")
@click.option("--world-sizes", metavar="N,N", help="Values of world size, which becomes a parameter.")
@click.option(
    "--efficiency",
    type=Number(0, 1, min_open=True),
    default=0.9,
    show_default=True,
    help="Parallel efficiency kept at each doubling of the world size.",
)
@click.option("--study", default="simulated", show_default=True, help="With --store: prefix of the studies' names.")
@click.option("--store", metavar="URL", help="Keep the studies in this database, where reports can be made of them.")
@json_option
def simulate(curves: tuple[str, ...], store: str | None, as_json: bool, **options: Any) -> None:
    """Run studies over recorded learning curves in virtual time.

    CURVES are files or folders of recorded curves. Controller, policy, prices and budget are the real components.
    """
    document = run(Simulations(paths=curves, store=store, **options), say=lambda line: echo(line, err=as_json))
    if as_json:
        print_json(document)
