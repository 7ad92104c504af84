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
    "--objective", "objectives", metavar="METRIC:min", multiple=True, required=True,
    help="Objective and direction, such as val_error:min; a validation metric, cost_usd, wall_seconds or static:NAME.",
)  # fmt: skip
@click.option(
    "--constraint", "constraints", metavar="METRIC:max:NUMBER", multiple=True,
    help="Upper bound of a metric; METRIC:min:NUMBER is a lower bound.",
)  # fmt: skip
@click.option(
    "--pool", is_flag=True,
    help="Join all files of curves to one task, which has the file as a further parameter, `table`.",
)  # fmt: skip
@click.option("--slots", type=click.IntRange(1, MOST_SLOTS), default=4, show_default=True, help="Number of devices.")
@click.option(
    "--budget-full-trials", type=Number(0, min_open=True), default=20.0, show_default=True,
    help="Budget of each study, as a multiple of the mean cost of a full training.",
)  # fmt: skip
@click.option(
    "--seeds", metavar="FROM:TO", default="0", show_default=True,
    help="One seed, or a range of seeds FROM:TO, such as 0:3 for 0, 1 and 2. Each seed makes one study.",
)  # fmt: skip
@click.option("--sampler", default="auto", show_default=True, help="Sampler, named as in search.sampler of a spec.")
@click.option(
    "--pruner", default="auto", show_default=True, help="Pruner, as in search.pruner of a spec: a name or a mapping."
)
@click.option(
    "--price", type=Number(0, min_open=True), default=1.0, show_default=True,
    help="Price of a slot (one device) in dollars per hour.",
)  # fmt: skip
@click.option(
    "--start-epochs", type=Number(0), default=0.3, show_default=True,
    help="Time of each start or restart of a trial, as a multiple of the trial's mean time per epoch.",
)  # fmt: skip
@click.option(
    "--faults", type=Number(0, 1), default=0.0, show_default=True,
    help="Probability of a fault in each of a trial's first two attempts (runs).",
)  # fmt: skip
@click.option(
    "--price-factors", metavar="F,F",
    help="Multiples of --price, one for each type of device. Each configuration gets a random type. Factor 2 is "
    "simulated as training that takes twice as long.",
)  # fmt: skip
@click.option(
    "--world-sizes", metavar="N,N", help="World sizes (numbers of ranks) to search over, as a further parameter."
)
@click.option(
    "--efficiency", type=Number(0, 1, min_open=True), default=0.9, show_default=True,
    help="Parallel efficiency of 2 ranks. 4 ranks have its square, 8 ranks its cube.",
)  # fmt: skip
@click.option("--study", default="simulated", show_default=True, help="Prefix of the studies' names in --store.")
@click.option("--store", metavar="URL", help="Database to store the studies in, for example for `automl report`.")
@json_option
def simulate(curves: tuple[str, ...], store: str | None, as_json: bool, **options: Any) -> None:
    """Run studies over recorded learning curves in virtual time.

    CURVES are files or folders of recorded curves. Only training is simulated; the rest is as in a real study.
    """
    document = run(Simulations(paths=curves, store=store, **options), say=lambda line: echo(line, err=as_json))
    if as_json:
        print_json(document)
