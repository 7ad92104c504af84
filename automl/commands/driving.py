"""Commands that start studies, stop them, and train for them."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from automl.commands.common import FAILED, INTERRUPTED, NOTHING_COMPLETE, json_option, print_json, store_option, warn

if TYPE_CHECKING:
    from automl.launching.preparing import Prepared
    from automl.launching.running import Outcome

set_option = click.option("--set", "overrides", metavar="PATH=VALUE", multiple=True, help="Set a key of the spec.")


@click.command()
@click.argument("task", default="digits")
def init(task: str) -> None:
    """Write a commented example spec for TASK to NAME.yaml.

    TASK is a built-in one, or module:Class for your own, which need not be written yet.
    """
    from automl.first_spec import unwritten_module, write_first_spec

    path = write_first_spec(task)
    missing = unwritten_module(task)
    if missing:
        click.echo(f"{missing} cannot be imported yet: it is to be written beside {path}", err=True)
    click.echo(f"{path} is written. Next: automl launch {path}")


@click.command()
@click.argument("spec", type=click.Path(path_type=Path), required=False)
@click.option("--task", help="A built-in task, in place of SPEC: tabular, text, vision or digits.")
@click.option("--data", metavar="PATH", help="With --task: the file or folder to train on.")
@click.option("--target", metavar="COLUMN", help="With --task tabular: the column to learn; the last one by default.")
@click.option("--text", metavar="COLUMN", help="With --task text: the column of texts.")
@click.option("--label", metavar="COLUMN", help="With --task text: the column of classes.")
@click.option("--checkpoint", metavar="PATH", help="With --task text: a model to fine-tune, a folder or a hub's name.")
@click.option("--test-data", metavar="PATH", help="With --task: data that the search never sees.")
@click.option("--validation-data", metavar="PATH", help="With --task: validation data, in place of a share of --data.")
@click.option("--save-spec", metavar="FILE", type=click.Path(path_type=Path), help="With --task: write the spec, too.")
@set_option
@click.option(
    "--from-study",
    "from_studies",
    metavar="NAME_OR_URL",
    multiple=True,
    help="Learn from an earlier study: its name, or URL#NAME.",
)
@store_option
@json_option
@click.option("--dry-run", is_flag=True, help="Show what would run; no study is written.")
def launch(
    spec: Path | None,
    overrides: tuple[str, ...],
    from_studies: tuple[str, ...],
    *,
    store: str | None,
    as_json: bool,
    dry_run: bool,
    **quick: Any,
) -> None:
    """Run the study that SPEC describes, or one picked for --task.

    A second launch of an equal spec goes on with it.
    """
    from automl.api import launch_prepared

    if from_studies:
        overrides = (*overrides, f"search.from_studies={json.dumps(from_studies)}")
    prepared = _prepared(spec, overrides, store, quick)
    if dry_run:
        from automl.launching.dry_run import show

        show(prepared, as_json=as_json)
        return
    for warning in prepared.warnings:
        warn(warning)
    _run(lambda watcher: launch_prepared(prepared, watcher)[0], as_json)


def _prepared(spec: Path | None, overrides: tuple[str, ...], store: str | None, quick: dict[str, Any]) -> Prepared:
    """Read the spec, or pick one; what was picked is said on stderr."""
    from automl.launching.preparing import prepare, read_spec

    task, save_spec = quick.pop("task"), quick.pop("save_spec")
    if task is None:
        stray = [f"--{name.replace('_', '-')}" for name, value in (*quick.items(), ("save_spec", save_spec)) if value]
        if stray:
            raise click.UsageError(f"found {stray[0]}, allowed: beside --task only", click.get_current_context())
        if spec is None:
            raise click.UsageError("found neither SPEC nor --task, allowed: one of them", click.get_current_context())
        return prepare(read_spec(spec, overrides, store), source=str(spec), base_folder=spec.absolute().parent)
    if spec is not None:
        raise click.UsageError(f"found SPEC {spec} and --task, allowed: one of them", click.get_current_context())
    from automl.launching.quickstart import quickstart, shown_notes, write_spec

    picked = quickstart(task, quick, overrides, store)
    prepared = prepare(picked.spec, source=picked.source, base_folder=Path.cwd())
    if save_spec is not None:
        write_spec(save_spec, picked)
    click.echo(shown_notes(picked), err=True)
    return prepared


@click.command()
@click.argument("study")
@set_option
@store_option
@json_option
def resume(study: str, overrides: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Go on with STUDY after any end, or with more budget.

    More budget is given by --set budget.usd=5; resources and checkpoints can be changed, too.
    """
    from automl import api

    opened = api.open_store(store)
    opened.require(study)
    _run(lambda watcher: api.resume(opened, study, overrides, watcher), as_json)


def _run(drive: Callable[[Any], Outcome], as_json: bool) -> None:
    """Drive a study with live progress, print its summary, and exit with the code that says how it ended."""
    from automl.launching.progress import Progress
    from automl.launching.running import Watcher
    from automl.show import console as make_console
    from automl.show import late_views_text, print_summary
    from studies.analysis import summary
    from trainers.streams import stdout_diverted

    console = None if as_json else make_console()
    # Ray prints on stdout when a worker dies, from a thread of its own; there a program expects one document.
    aside = stdout_diverted() if as_json else contextlib.nullcontext()
    with aside, Progress(console) as progress:
        outcome = drive(Watcher(on_commit=progress.on_commit, say=progress.say, warn=warn))
    report = str(outcome.report)
    if outcome.views_behind:
        late = late_views_text(outcome.views_behind)
        click.echo(f"{late}; see `automl sync {outcome.record.name}`", err=True)
    if console is None:
        print_json(summary(outcome.record, report=report))
    else:
        print_summary(console, outcome.record, report=report)
    sys.exit(_exit_code(outcome))


def _exit_code(outcome: Outcome) -> int:
    record = outcome.record
    if record.state == "failed":
        return FAILED
    if record.state == "drained":
        return INTERRUPTED
    return 0 if any(trial.state == "complete" for trial in record.trials) else NOTHING_COMPLETE


@click.command()
@click.argument("study")
@store_option
@json_option
@click.option("--wait", "wait_seconds", default=60.0, show_default=True, help="Wait so many seconds for the drain.")
def stop(study: str, store: str | None, as_json: bool, wait_seconds: float) -> None:
    """Let STUDY drain and pause its trials.

    Every trial ends its epoch and writes a checkpoint; automl resume goes on.
    """
    from automl.api import open_store
    from automl.stopping import stop_study

    outcome = stop_study(open_store(store), study, wait_seconds=wait_seconds)
    print_json(outcome) if as_json else click.echo(outcome["message"])


@click.command()
@click.argument("study")
@click.option("--param", "given", metavar="NAME=VALUE", multiple=True, required=True, help="A value to try.")
@store_option
@json_option
def enqueue(study: str, given: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Try these parameters next.

    Active parameters that are not given are drawn at random, parents so that what is given exists.
    """
    from automl.api import open_store
    from automl.enqueueing import enqueue_trial

    queued = enqueue_trial(open_store(store), study, given)
    if as_json:
        print_json(queued)
    else:
        params = " ".join(f"{name}={value}" for name, value in queued["params"].items())
        click.echo(f"queued for {study}: {params}")
        if queued["waits"]:
            click.echo(queued["waits"])


@click.command()
@click.argument("study")
@click.argument("trials", metavar="[TRIAL]...", type=int, nargs=-1)
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Trainings of each trial.")
@store_option
@json_option
def confirm(study: str, trials: tuple[int, ...], seeds: int, store: str | None, as_json: bool) -> None:
    """Train the front of STUDY again, or TRIALs, and measure it.

    It is charged to the study, whatever is left of its budget.
    """
    from automl.api import open_store
    from automl.confirming import confirm as train_again
    from automl.confirming import table
    from automl.show import console, money
    from trainers.streams import stdout_diverted

    def say(line: str) -> None:
        click.echo(line, err=True)

    with stdout_diverted() if as_json else contextlib.nullcontext():
        confirmed = train_again(open_store(store), study, trials, seeds=seeds, say=say)
    if as_json:
        print_json(confirmed)
    else:
        console().print(table(confirmed))
        cost, whole = money(confirmed["cost_usd"]), money(confirmed["study_cost_usd"])
        click.echo(f"It cost {cost}; {study} has cost {whole} in all.")
    if confirmed["measured_on"] == "validation":
        warn("the task has no test part: the search has seen the data that this was measured on")
    if any(all(run["failure"] for run in row["runs"]) for row in confirmed["trials"]):
        sys.exit(FAILED)
