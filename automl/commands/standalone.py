"""Commands that need no study: one training, world sizes beside each other, simulations, and what works here."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import click

from automl.commands.common import FAILED, json_option, print_json, store_option, warn

MOST_SLOTS = 4096


class Number(click.FloatRange):
    """A number in a range; NaN and infinity are none."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number, or the usual complaint."""
        converted = super().convert(value, param, ctx)
        if not math.isfinite(converted):
            self.fail(f"found {value}, allowed: a finite number", param, ctx)
        return converted


param_option = click.option(
    "--param", "given", metavar="NAME=VALUE", multiple=True, help="A parameter of the trainer or the task."
)
option_option = click.option(
    "--option", "task_options", metavar="NAME=VALUE", multiple=True, help="One of the spec's task_options."
)
folder_type = click.Path(path_type=Path, file_okay=False)
seed_option = click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
device_option = click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)


@click.command()
@click.argument("task")
@param_option
@option_option
@click.option("--world-size", type=click.IntRange(1), default=1, show_default=True, help="Ranks.")
@click.option("--epochs", type=click.IntRange(1), default=10, show_default=True)
@seed_option
@device_option
@click.option("--checkpoints", type=folder_type, help="Keep the latest checkpoint in this folder.")
@click.option(
    "--checkpoint-every",
    "every_seconds",
    type=Number(0),
    default=60.0,
    show_default=True,
    help="Seconds after which an epoch's end writes one; the last epoch's always does.",
)
@click.option("--resume", is_flag=True, help="Go on from the checkpoint in --checkpoints, if there is one.")
@click.option("--profile", is_flag=True, help="Profile some steps of rank 0: a trace, and the ten dearest operations.")
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False),
    default="trace.json",
    show_default=True,
    help="With --profile: the file of the trace.",
)
@click.option("--tensorboard", type=folder_type, help="Write each epoch's metrics to this folder.")
@json_option
def train(
    task: str,
    given: tuple[str, ...],
    *,
    as_json: bool,
    checkpoints: Path | None,
    every_seconds: float,
    resume: bool,
    profile: bool,
    trace: Path,
    tensorboard: Path | None,
    **options: Any,
) -> None:
    """Train TASK once with DDP, without a study."""
    from automl.training import Keeping, train_once

    if resume and checkpoints is None:
        raise click.UsageError("found --resume, allowed: beside --checkpoints only", click.get_current_context())
    keeping = Keeping(
        checkpoints=checkpoints,
        every_seconds=every_seconds,
        resume=resume,
        trace=trace if profile else None,
        tensorboard=tensorboard,
    )
    with _training_errors(as_json):
        say = (lambda _line: None) if as_json else click.echo
        result = train_once(task, given, keeping=keeping, say=say, **options)
    if as_json and result is not None:
        print_json(result)


@contextlib.contextmanager
def _training_errors(as_json: bool) -> Iterator[None]:
    """End with the line that matters when a training fails; what ranks print stays out of a JSON document."""
    from trainers.protocol import TrainingError
    from trainers.streams import stdout_diverted
    from trainers.task import TaskLoadError

    try:
        with stdout_diverted() if as_json else contextlib.nullcontext():
            yield
    except TaskLoadError:
        raise
    except TrainingError as error:
        _fail_with_traceback(str(error))


def _world_sizes(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Ranks of each training, ascending, from a text such as 1,2,4."""
    parts = value.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"found {value!r}, allowed: whole numbers of at least 1 with commas between, as 1,2,4")
    return tuple(sorted({int(part) for part in parts}))


@click.command()
@click.argument("task")
@click.option(
    "--world-sizes",
    metavar="N,N",
    callback=_world_sizes,
    default="1,2",
    show_default=True,
    help="Ranks of each training.",
)
@param_option
@option_option
@click.option("--epochs", type=click.IntRange(1), default=5, show_default=True, help="The first warms up.")
@seed_option
@device_option
@click.option("--price-per-slot-hour", "usd_per_slot_hour", type=Number(0), help="Dollars; else a list price.")
@click.option("--min-efficiency", type=Number(0), help="Exit with 1 if a world size has less, such as 0.8.")
@json_option
def compare(task: str, given: tuple[str, ...], as_json: bool, min_efficiency: float | None, **options: Any) -> None:
    """Train TASK at several world sizes, and compare.

    All take the same steps: fewer ranks take more passes for each. Efficiency is the speed-up for each rank.
    """
    from automl.comparing import compare as train_and_compare
    from automl.comparing import table, too_inefficient
    from automl.show import console

    with _training_errors(as_json):
        compared = train_and_compare(task, given=given, say=warn, **options)
    if as_json:
        print_json(compared)
    else:
        console().print(table(compared))
    problem = "" if min_efficiency is None else too_inefficient(compared, min_efficiency)
    if problem:
        click.echo(f"error: {problem}", err=True)
        sys.exit(FAILED)


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
    "--price",
    type=Number(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Dollars per hour of a slot.",
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
    help="Of each doubling of the world size.",
)
@click.option("--study", default="simulated", show_default=True, help="With --store: how names of studies begin.")
@click.option("--store", metavar="URL", help="Keep the studies in this database; they can be reported like real ones.")
@json_option
def simulate(curves: tuple[str, ...], store: str | None, as_json: bool, **options: Any) -> None:
    """Studies over recorded curves in virtual time.

    CURVES are files or folders of the format curves-v1. Controller, policy, prices and budget are the real ones.
    """
    from automl.simulate import Simulations, run

    document = run(Simulations(paths=curves, store=store, **options), say=lambda line: click.echo(line, err=as_json))
    if as_json:
        print_json(document)


@click.command()
@store_option
@json_option
@click.option("--bandwidth", is_flag=True, help="Measure how fast ranks exchange gradients, by size.")
def doctor(store: str | None, as_json: bool, bandwidth: bool) -> None:
    """What works here, and how to mend what does not."""
    from automl.doctor import examine

    findings = examine(store, bandwidth=bandwidth)
    if as_json:
        print_json(findings)
    else:
        for finding in findings:
            mark = "ok  " if finding["ok"] else "FAIL"
            cure = f"\n     {finding['cure']}" if finding["cure"] else ""
            click.echo(f"{mark} {finding['what']}: {finding['found']}{cure}")
    if not all(finding["ok"] for finding in findings):
        sys.exit(FAILED)


def _fail_with_traceback(message: str) -> NoReturn:
    """End with the one line that matters, and below it all there is to know."""
    from trainers.blame import blamed

    line = blamed(message)
    click.echo(f"error: {line}", err=True)
    if message.strip() != line:
        click.echo(f"\n{message.strip()}", err=True)
    sys.exit(FAILED)
