"""`automl confirm`."""

import sys

import click

from automl.backend import ServiceBackend, StoreBackend, backend_of
from automl.terminal.echo import FAILED, echo
from automl.terminal.options import Number, ServiceOption, StoreOption, json_option, store_option, study_argument
from automl.terminal.output import console, only_json_on_stdout, print_json, say_on_stderr, warn
from automl.terminal.summary import confirmed_table, document_of
from reports.phrases import usd as dollars
from reports.recommending import recommendation_lines
from search_spaces.messages import UserError


@click.command()
@study_argument
@click.argument("points", metavar="[TRIAL[@EPOCH]|best|cheapest|knee]...", nargs=-1)
@click.option(
    "--seeds", type=click.IntRange(1), default=3, show_default=True,
    help="Number of trainings of each model, each with a new seed.",
)  # fmt: skip
@click.option(
    "--keep-models", is_flag=True, cls=StoreOption,
    help="Keep the model of each training, for `automl export --ensemble`.",
)  # fmt: skip
@click.option(
    "--usd", type=Number(0, min_open=True), cls=ServiceOption,
    help="Budget of the confirmation in dollars. The study's own budget does not change.",
)  # fmt: skip
@store_option
@json_option
def confirm(  # noqa: PLR0917 - click passes each option by name
    study: str, points: tuple[str, ...], seeds: int, keep_models: bool, usd: float | None, store: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Train models again with new seeds and measure them on test data.

    A model is TRIAL@EPOCH, or TRIAL for the trial's last kept model. By default, trains the recommended model, its
    neighbours on the Pareto front and the best model. Each training runs as in the search, up to the model's epoch.

    The cost is charged to the study, even if its budget is used up. With --server, --usd limits the cost: without
    --usd, the command prints only the expected cost. With --server, --json prints the study's summary.
    """
    backend = backend_of(store)
    if isinstance(backend, ServiceBackend):
        _confirm_there(backend, study, points, seeds, usd, as_json=as_json)
    else:
        _confirm_here(backend, study, points, seeds, keeps_models=keep_models, as_json=as_json)


def _confirm_here(
    backend: StoreBackend, study: str, points: tuple[str, ...], seeds: int, *, keeps_models: bool, as_json: bool
) -> None:
    from automl.confirming import confirm as train_again

    opened = backend.store
    with only_json_on_stdout(as_json):
        confirmed = train_again(opened, study, points, seeds=seeds, keeps_models=keeps_models, say=say_on_stderr)
    if as_json:
        print_json(confirmed)
    else:
        console().print(confirmed_table(confirmed))
        for line in recommendation_lines(backend.record(study)):
            echo(line)
        cost, whole = dollars(confirmed["cost_usd"]), dollars(confirmed["study_cost_usd"])
        echo(f"The trainings cost {cost}, and the whole study {whole}.")
    if confirmed["measured_on"] == "validation":
        warn("the task has no test data, so these values come from data that the search has used")
    if any(all(run["failure"] for run in row["runs"]) for row in confirmed["trials"]):
        sys.exit(FAILED)


def _confirm_there(
    backend: ServiceBackend, study: str, points: tuple[str, ...], seeds: int, usd: float | None, *, as_json: bool
) -> None:
    from automl.remote.following import Telling, follow_job

    plan = backend.check_confirm(study, points, seeds)
    if usd is None:
        raise UserError(f"--usd is missing: a service needs a limit in dollars. {plan['message']}")
    say_on_stderr(plan["message"])
    job = backend.confirm(study, points, seeds, usd)
    code = follow_job(backend.client, job["study"], Telling(as_json=as_json))
    record = backend.record(plan["study"])
    if as_json:
        print_json(document_of(record, report=None))
    else:
        for line in recommendation_lines(record):
            echo(line)
    if code:
        sys.exit(code)
