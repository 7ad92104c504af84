"""The command line. Every command is a few lines: what they do lives elsewhere, and is imported when they run.

Exit codes: 0 done, 1 failed, 2 the input is wrong, 3 the study ended but no trial completed, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from automl.preparing import Prepared
    from automl.running import Outcome
    from studies.records import StudyRecord, TrialRecord

FAILED, WRONG_INPUT, NOTHING_COMPLETE, INTERRUPTED = 1, 2, 3, 130

store_option = click.option("--store", metavar="URL", help="The database; AUTOML_STORE or sqlite:///automl.db.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
param_option = click.option(
    "--param", "given", metavar="NAME=VALUE", multiple=True, help="A parameter of the trainer or the task."
)
option_option = click.option(
    "--option", "task_options", metavar="NAME=VALUE", multiple=True, help="One of the spec's task_options."
)
folder_type = click.Path(path_type=Path, file_okay=False)
seed_option = click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
device_option = click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
set_option = click.option("--set", "overrides", metavar="PATH=VALUE", multiple=True, help="Set a key of the spec.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="automl-search", prog_name="automl")
def cli() -> None:
    """Hyperparameter search for PyTorch that accounts for every cent."""


# ---------------------------------------------------------------------- running studies


@cli.command()
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


@cli.command()
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
        from automl.dry_run import show

        show(prepared, as_json=as_json)
        return
    for warning in prepared.warnings:
        _warn(warning)
    _run(lambda watcher: launch_prepared(prepared, watcher)[0], as_json)


def _prepared(spec: Path | None, overrides: tuple[str, ...], store: str | None, quick: dict[str, Any]) -> Prepared:
    """Read the spec, or pick one; what was picked is said on stderr."""
    from automl.preparing import prepare, read_spec

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
    from automl.quickstart import quickstart, shown_notes, write_spec

    picked = quickstart(task, quick, overrides, store)
    prepared = prepare(picked.spec, source=picked.source, base_folder=Path.cwd())
    if save_spec is not None:
        write_spec(save_spec, picked)
    click.echo(shown_notes(picked), err=True)
    return prepared


@cli.command()
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
    from automl.progress import Progress
    from automl.running import Watcher
    from automl.show import console as make_console
    from automl.show import late_views_text, print_summary
    from studies.analysis import summary
    from trainers.streams import stdout_diverted

    console = None if as_json else make_console()
    # Ray prints on stdout when a worker dies, from a thread of its own; there a program expects one document.
    aside = stdout_diverted() if as_json else contextlib.nullcontext()
    with aside, Progress(console) as progress:
        outcome = drive(Watcher(on_commit=progress.on_commit, say=progress.say, warn=_warn))
    report = str(outcome.report)
    if outcome.views_behind:
        late = late_views_text(outcome.views_behind)
        click.echo(f"{late}; see `automl sync {outcome.record.name}`", err=True)
    if console is None:
        _print_json(summary(outcome.record, report=report))
    else:
        print_summary(console, outcome.record, report=report)
    sys.exit(_exit_code(outcome))


def _warn(line: str) -> None:
    click.echo(f"warning: {line}", err=True)


def _exit_code(outcome: Outcome) -> int:
    record = outcome.record
    if record.state == "failed":
        return FAILED
    if record.state == "drained":
        return INTERRUPTED
    return 0 if any(trial.state == "complete" for trial in record.trials) else NOTHING_COMPLETE


@cli.command()
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
    _print_json(outcome) if as_json else click.echo(outcome["message"])


@cli.command()
@click.argument("study")
@click.option("--param", "given", metavar="NAME=VALUE", multiple=True, required=True, help="A value to try.")
@store_option
@json_option
def enqueue(study: str, given: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Try these parameters next.

    Active parameters that are not given are drawn at random.
    """
    from automl.api import open_store
    from automl.enqueueing import enqueue_trial

    queued = enqueue_trial(open_store(store), study, given)
    if as_json:
        _print_json(queued)
    else:
        params = " ".join(f"{name}={value}" for name, value in queued["params"].items())
        click.echo(f"queued for {study}: {params}")


@cli.command()
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
        _print_json(confirmed)
    else:
        console().print(table(confirmed))
        cost, whole = money(confirmed["cost_usd"]), money(confirmed["study_cost_usd"])
        click.echo(f"It cost {cost}; {study} has cost {whole} in all.")
    if confirmed["measured_on"] == "validation":
        _warn("the task has no test part: the search has seen the data that this was measured on")
    if any(all(run["failure"] for run in row["runs"]) for row in confirmed["trials"]):
        sys.exit(FAILED)


# ---------------------------------------------------------------------- looking at studies


@cli.command(name="list")
@store_option
@json_option
def list_studies(store: str | None, as_json: bool) -> None:
    """All studies of the store."""
    from automl.api import open_store
    from automl.show import money, state_text
    from studies.records import NANO
    from studies.storage.reader import list_studies as load_lines

    lines = load_lines(open_store(store))
    rows = [
        {
            "study": line.name,
            "state": line.state,
            "driven": line.driven,
            "trials": line.trials,
            "cost_usd": line.cost_nano_usd / NANO,
            "created_at": line.created_at.isoformat(timespec="seconds"),
        }
        for line in lines
    ]
    if as_json:
        _print_json(rows)
        return
    for line, row in zip(lines, rows, strict=True):
        state = state_text(line.name, line.state, driven=line.driven)
        cost, created = money(line.cost_nano_usd / NANO), row["created_at"]
        click.echo(f"{line.name:30} {line.trials:5} trials  {cost:>10}  {created}  {state}")


@cli.command()
@click.argument("study", required=False)
@store_option
@json_option
def status(study: str | None, store: str | None, as_json: bool) -> None:
    """State, budget, archive and running trials of STUDY.

    Without a name it is the newest study of the store.
    """
    from automl.show import console, print_summary
    from studies.analysis import summary

    record = _record(study, store)
    report = _existing_report(record)
    if as_json:
        _print_json(summary(record, report=report))
    else:
        print_summary(console(), record, report=report)


@cli.command()
@click.argument("study")
@store_option
@json_option
@click.option("--format", "form", type=click.Choice(["table", "json", "csv"]), default="table")
def trials(study: str, store: str | None, as_json: bool, form: str) -> None:
    """Every trial: parameters, values, state, epochs, cost, reason."""
    from automl.show import console, print_trials
    from studies.analysis import to_csv, trial_rows

    record = _record(study, store)
    if as_json or form == "json":
        _print_json(trial_rows(record))
    elif form == "csv":
        click.echo(to_csv(trial_rows(record)), nl=False)
    else:
        print_trials(console(), record)


@cli.command()
@click.argument("study")
@click.argument("trial", type=int)
@store_option
@json_option
def explain(study: str, trial: int, store: str | None, as_json: bool) -> None:
    """Why TRIAL went on, was paused, stopped or failed.

    With the numbers that were compared, its attempts, and the traceback of a failure.
    """
    from automl import show

    record = _record(study, store)
    found = _trial(record, trial)
    if as_json:
        _print_json(show.explain(record, found))
    else:
        show.print_explanation(show.console(), record, found)


@cli.command()
@click.argument("study")
@click.argument("point", metavar="TRIAL[@EPOCH]")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The file to write.")
@store_option
@json_option
def export(study: str, point: str, out: Path, store: str | None, as_json: bool) -> None:
    """Write the model of an archive point to a file.

    With its weights, parameters and spec; says how to load it.
    """
    from automl.exporting import export_point

    written = export_point(_record(study, store), point, out)
    if as_json:
        _print_json(written)
    else:
        click.echo(f"{written['out']} holds trial {written['trial']} after epoch {written['epoch']}. To load it:\n")
        click.echo(written["how_to_load"])


@cli.command()
@click.argument("study")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The file to write.")
@store_option
@json_option
def report(study: str, out: Path | None, store: str | None, as_json: bool) -> None:
    """Write STUDY as one HTML page that works offline."""
    from automl.running import report_path
    from reports.page import write_report

    record = _record(study, store)
    path = out or report_path(record, Path.cwd())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        written = str(write_report(record, path).absolute())
    except OSError as error:
        raise click.FileError(str(path), error.strerror or str(error)) from None
    _print_json({"report": written}) if as_json else click.echo(written)


@cli.command()
@click.option("--port", type=click.IntRange(1, 65535), help="8080, or a free one if that is taken.")
@store_option
def dashboard(port: int | None, store: str | None) -> None:
    """Serve Optuna Dashboard on the store, on 127.0.0.1."""
    from automl.api import open_store
    from automl.dashboard import serve

    serve(open_store(store).url, port)


@cli.command()
@click.argument("study")
@store_option
@json_option
def sync(study: str, store: str | None, as_json: bool) -> None:
    """Rebuild the Optuna and MLflow views of STUDY."""
    from automl.api import open_store
    from studies.storage.views import rebuild

    opened = open_store(store)
    opened.require(study)
    errors = rebuild(opened, study)
    if as_json:
        _print_json(errors)
    for view, error in errors.items():
        if not as_json:
            click.echo(f"{view}: {error or 'rebuilt'}")
    if any(errors.values()):
        sys.exit(FAILED)


# ---------------------------------------------------------------------- without a study


@cli.command()
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
    type=click.FloatRange(0),
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
        _print_json(result)


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


@cli.command()
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
@click.option(
    "--price-per-slot-hour", "usd_per_slot_hour", type=click.FloatRange(0), help="Dollars; else a list price."
)
@click.option("--min-efficiency", type=click.FloatRange(0), help="Exit with 1 if a world size has less, such as 0.8.")
@json_option
def compare(task: str, given: tuple[str, ...], as_json: bool, min_efficiency: float | None, **options: Any) -> None:
    """Train TASK at several world sizes, and compare.

    All take the same steps: fewer ranks take more passes for each. Efficiency is the speed-up for each rank.
    """
    from automl.comparing import compare as train_and_compare
    from automl.comparing import table, too_inefficient
    from automl.show import console

    with _training_errors(as_json):
        compared = train_and_compare(task, given=given, say=_warn, **options)
    if as_json:
        _print_json(compared)
    else:
        console().print(table(compared))
    problem = "" if min_efficiency is None else too_inefficient(compared, min_efficiency)
    if problem:
        click.echo(f"error: {problem}", err=True)
        sys.exit(FAILED)


@cli.command()
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
@click.option("--slots", type=click.IntRange(1), default=4, show_default=True)
@click.option(
    "--budget-full-trials",
    type=click.FloatRange(0, min_open=True),
    default=20.0,
    show_default=True,
    help="The budget, in mean costs of a full training.",
)
@click.option("--seeds", metavar="FROM:TO", default="0", show_default=True, help="The end is left out.")
@click.option("--sampler", default="auto", show_default=True, help="As search.sampler of a spec.")
@click.option("--pruner", default="auto", show_default=True, help="As search.pruner: a name or a mapping.")
@click.option(
    "--price",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Dollars per hour of a slot.",
)
@click.option(
    "--start-epochs",
    type=click.FloatRange(0),
    default=0.3,
    show_default=True,
    help="What a start or a thaw costs, in mean epochs of the configuration.",
)
@click.option(
    "--faults",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="Probability that an attempt is lost, for the first two of each trial.",
)
@click.option("--price-factors", metavar="F,F", help="Configurations run on devices of these multiples of the price.")
@click.option("--world-sizes", metavar="N,N", help="World size becomes a parameter with these values.")
@click.option(
    "--efficiency",
    type=click.FloatRange(0, 1, min_open=True),
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
        _print_json(document)


@cli.command()
@store_option
@json_option
@click.option("--bandwidth", is_flag=True, help="Measure how fast ranks exchange gradients, by size.")
def doctor(store: str | None, as_json: bool, bandwidth: bool) -> None:
    """What works here, and how to mend what does not."""
    from automl.doctor import examine

    findings = examine(store, bandwidth=bandwidth)
    if as_json:
        _print_json(findings)
    else:
        for finding in findings:
            mark = "ok  " if finding["ok"] else "FAIL"
            cure = f"\n     {finding['cure']}" if finding["cure"] else ""
            click.echo(f"{mark} {finding['what']}: {finding['found']}{cure}")
    if not all(finding["ok"] for finding in findings):
        sys.exit(FAILED)


# ---------------------------------------------------------------------- small change


def _record(study: str | None, store: str | None) -> StudyRecord:
    from automl.api import open_store
    from studies.storage.engine import StoreError
    from studies.storage.reader import load_study

    opened = open_store(store)
    if study is None:
        names = opened.study_names()
        if not names:
            raise StoreError("study: the store holds none yet; `automl launch SPEC` makes one")
        study = names[-1]
    return load_study(opened, study)


def _trial(record: StudyRecord, number: int) -> TrialRecord:
    from studies.storage.engine import StoreError

    for trial in record.started:
        if trial.number == number:
            return trial
    raise StoreError(f"trial: found {number}, allowed: 0 to {len(record.started) - 1}")


def _existing_report(record: StudyRecord) -> str | None:
    from automl.running import report_path

    path = report_path(record, Path.cwd())
    return str(path) if path.exists() else None


def _fail_with_traceback(message: str) -> NoReturn:
    """End with the one line that matters, and below it all there is to know."""
    from trainers.blame import blamed

    line = blamed(message)
    click.echo(f"error: {line}", err=True)
    if message.strip() != line:
        click.echo(f"\n{message.strip()}", err=True)
    sys.exit(FAILED)


def _print_json(document: object) -> None:
    click.echo(json.dumps(document, allow_nan=False))


def main() -> None:
    """Run the command line; what users can mend is one line on stderr and exit code 2."""
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as ended:
        sys.exit(ended.exit_code)
    except click.Abort:
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        click.echo(f"automl: {_one_line(error)}", err=True)
        sys.exit(WRONG_INPUT)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        code = _code_of(error)
        if code is None:
            raise
        click.echo(f"automl: {_in_one_line(error)}", err=True)
        sys.exit(code)


def _in_one_line(error: Exception) -> str:
    """What is wrong; of a database, without the statement."""
    cause = getattr(error, "orig", None)
    text = str(error) if cause is None else f"the store: {cause}"
    return " ".join(text.split())


def _one_line(error: click.ClickException) -> str:
    """What is wrong with the arguments, and where help is."""
    problem = " ".join(error.format_message().split())
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None or isinstance(error, click.BadParameter):
        return problem
    return f"{problem}; see `{context.command_path} --help`"


_USERS_TO_MEND = {
    "SpecError",
    "SpaceError",
    "StoreError",
    "SamplerError",
    "PoolError",
    "TaskLoadError",
    "DashboardError",
    "CurvesError",
}
"""By name, since importing them would load what `automl --help` does without."""


def _code_of(error: Exception) -> int | None:
    """The exit code of an error that a user can understand; None for a mistake in this program."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & _USERS_TO_MEND:
        return WRONG_INPUT
    if names & {"LeaseLostError", "TrainingError", "OperationalError"}:
        return FAILED
    return None
