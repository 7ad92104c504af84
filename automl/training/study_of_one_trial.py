"""Runs a single training on this machine as a study of one trial."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from automl.given_parameters import is_spec_file, read_params
from automl.launching.launch_or_resume import launch_prepared
from automl.launching.prepared_study import Prepared, TaskFacts, facts_of, prepare, quality_of
from automl.launching.spec_reading import absolute_task_options
from automl.launching.study_run import Outcome, Watcher
from automl.stored.open_store import from_store, store_url
from automl.terminal.echo import INTERRUPTED
from automl.terminal.study_run_output import exit_code_of
from automl.training.request import check_backend, check_diagnostics, check_params, training_spec
from automl.training.results import document, epoch_line, rank_line, shares_of, summary_lines
from studies.control.machine.state import StudyMachine
from studies.records.records import NANO, EpochRecord, StudyRecord, TrialRecord
from studies.spec.metric_names import likely_direction
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import StudySpec, differences, load_spec, parse_spec, spec_to_mapping
from studies.storage.reading.reader import load_study
from studies.storage.schema.engine import absolute_url, exists
from studies.storage.study_store import Store
from trainers.commands.command import COMMAND
from trainers.protocol import Diagnostics, TrainingError
from trainers.ranks.group_options import GroupOptions

_SUMS = ("cost_usd", "wall_seconds")  # metrics that the controller adds to a trial's metrics


def train_as_study(
    task: str,
    given: Sequence[str],
    *,
    task_options: Sequence[str],
    name: str | None,
    store: str | None,
    resume: bool,
    checkpoints: str | None,
    mlflow: str | None,
    diagnostics: Diagnostics,
    say: Callable[[str], None],
    warn: Callable[[str], None],
    **options: Any,
) -> tuple[dict[str, Any] | None, int]:
    """Train a task once. Returns a document (None if nothing started) and an exit code."""
    params = read_params(given)
    if is_spec_file(task):
        form, facts, here = _of_spec(task, params, name, **options), None, Path(task).absolute().parent
    else:
        form, facts, here = *_of_task(task, params, task_options, name, options), Path.cwd()
    form |= {"store": absolute_url(store_url(store), Path.cwd()), "mlflow": mlflow or "off"}
    if checkpoints is not None:
        form["checkpoints"]["folder"] = checkpoints
    prepared = prepare(parse_spec(form, task), source=task, base_folder=here, facts=facts)
    is_command = prepared.spec.is_command
    check_diagnostics(diagnostics, task, has_own_loop=not prepared.has_countable_models, is_command=is_command)
    check_backend(GroupOptions(backend=options["backend"]), prepared.places, prepared.place.slots)
    chosen, is_there = _chosen(prepared.spec, is_named=name is not None, resume=resume)
    spec = prepared.spec.model_copy(update={"study": chosen})
    prepared = replace(prepared, spec=spec, diagnostics=diagnostics)
    if resume:
        say(f"continues {chosen}" if is_there else f"no training with the same settings to continue: starting {chosen}")
    for warning in prepared.warnings:
        warn(warning)
    say(f"{chosen} on {prepared.place.slots} x {prepared.places.device_name}")
    began = time.monotonic()
    with closing(_Lines(prepared, say)) as lines:
        outcome, opened = launch_prepared(prepared, Watcher(on_commit=lines.on_commit, say=say, warn=warn))
    opened.close()
    return _ended(outcome, prepared, time.monotonic() - began, say)


def _of_task(
    task: str, params: Mapping[str, Any], task_options: Sequence[str], name: str | None, options: Mapping[str, Any]
) -> tuple[dict[str, Any], TaskFacts]:
    made_with = absolute_task_options(task, read_params(task_options, "--option"), Path.cwd(), source=task)
    if task == COMMAND:
        raise SpecError(task, (), "a command can be trained only from a spec. Name a spec such as command.yaml")
    facts = facts_of(task, made_with, source=task, folder=Path.cwd())
    check_params(params, facts.parameters)
    own_name = f"train-{re.sub(r'[^A-Za-z0-9._-]+', '-', task)}"[:90]
    form = training_spec(name or own_name, task, made_with, params, metric=_metric(facts), **options)
    form["objectives"][0]["direction"] = likely_direction(form["objectives"][0]["metric"])
    return form, facts


def _of_spec(
    path: str, params: Mapping[str, Any], name: str | None, *, epochs: int | None, usd: float | None, **options: Any
) -> dict[str, Any]:
    """Return a study of one trial: the spec's first or a random trial, with these parameters."""
    form = spec_to_mapping(load_spec(path))
    first: dict[str, Any] = next(iter(form["search"]["first_trials"]), {})
    form["training"] |= {"epochs": epochs} if epochs is not None else {}
    form["search"] |= {
        "sampler": "random",
        "pruner": "none",
        "advisor": None,
        "seed": options["seed"],
        "first_trials": [first | dict(params)],
    }
    form["resources"] |= {"device": options["device"], "backend": options["backend"]}
    budget = {"usd": usd, "hours": None, "trials": 1, "finish": 0.0}
    return form | {"study": name or f"train-{form['study']}"[:90], "baselines": [], "budget": budget}


def _metric(facts: TaskFacts) -> str:
    """Return a metric that the trial certainly measures."""
    if facts.metrics is not None:
        return "val_loss"
    return quality_of(facts) if facts.reported else "cost_usd"


def _chosen(spec: StudySpec, *, is_named: bool, resume: bool) -> tuple[str, bool]:
    """Return the name of the study to run, and whether it exists.

    With `resume`, returns the latest study with the same settings, otherwise the given or the next free name.
    """
    if not exists(spec.store):
        return spec.study, False
    with closing(Store(spec.store)) as store:
        known = {number: name for name in store.study_names() if (number := _number(name, spec.study))}
        if is_named or not known:
            return spec.study, 1 in known
        for name in (known[number] for number in sorted(known, reverse=True) if resume):
            stored = from_store(store.require(name).launched_spec, name)
            if not differences(stored, spec.model_copy(update={"study": name})) and stored.budget == spec.budget:
                return name, True
    return f"{spec.study}-{max(known) + 1}", False


def _number(study: str, name: str) -> int:
    if study == name:
        return 1
    number = study.removeprefix(f"{name}-")
    return int(number) if number != study and number.isdecimal() else 0


class _Lines:
    """Prints each rank's device and data at its start, and each epoch when it is stored."""

    def __init__(self, prepared: Prepared, say: Callable[[str], None]) -> None:
        self._prepared, self._say = prepared, say
        self._store: Store | None = None
        self._seen = (0, 0)
        self._attempt, self._epochs = 0, -1

    def on_commit(self, machine: StudyMachine) -> None:
        """Print new lines. Epochs come from the store, because the controller knows only the last epoch."""
        trial = next((one for one in machine.trials.values() if one.number == 0), None)
        if trial is None or self._seen == (trial.attempts, trial.epochs_done):
            return
        if trial.attempt is not None and not trial.attempt.started:
            return
        self._seen = (trial.attempts, trial.epochs_done)
        self._store = self._store or Store(self._prepared.spec.store)
        (record,) = load_study(self._store, self._prepared.spec.study).started
        attempt = record.attempts[-1]
        if attempt.facts and attempt.attempt != self._attempt:
            if self._epochs < 0:  # epochs of earlier commands were printed by those commands
                self._epochs = attempt.start_epoch
            self._attempt = attempt.attempt
            shares, of_samples = shares_of(attempt.facts, attempt.world_size), int(str(attempt.facts["samples"]))
            for rank, samples in shares.items():
                self._say(rank_line(int(rank), self._prepared.place.device, samples, of_samples))
        if self._epochs >= 0:
            for one in record.epochs[self._epochs :]:
                self._say(epoch_line(one.epoch, _measured(one), one.wall_seconds))
            self._epochs = len(record.epochs)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


def _measured(epoch: EpochRecord) -> dict[str, float]:
    return {name: value for name, value in epoch.metrics.items() if name not in _SUMS}


def _ended(
    outcome: Outcome, prepared: Prepared, seconds: float, say: Callable[[str], None]
) -> tuple[dict[str, Any] | None, int]:
    record = outcome.record
    code = INTERRUPTED if outcome.interrupted else exit_code_of(record)
    trial = next(iter(record.started), None)
    if record.state == "failed":
        raise TrainingError(record.error or record.why_ended)
    if trial is not None and trial.state == "failed":
        raise TrainingError(trial.error or trial.reason)
    if trial is None or not trial.attempts[-1].facts:
        return None, code
    result = _document(record, trial, prepared, seconds)
    for line in summary_lines(result, prepared.price.source):
        say(line)
    return result, code


def _document(record: StudyRecord, trial: TrialRecord, prepared: Prepared, seconds: float) -> dict[str, Any]:
    kept = [one.checkpoint for one in trial.epochs if one.checkpoint is not None]
    trace = prepared.diagnostics.trace
    link = next((view.link for view in record.views if view.link), None)
    return document(
        prepared.spec.task,
        {name: value for name, value in trial.params.items() if name != "world_size"},
        trial.world_size,
        trial.attempts[-1].facts,
        [(one.epoch, _measured(one), one.wall_seconds) for one in trial.epochs],
        trace=trace,
        wall_seconds=seconds,
        cost_usd=record.cost_nano_usd / NANO,
        checkpoint=trial.resume_checkpoint if trial.state == "paused" else next(reversed(kept), None),
        drained=record.state == "drained",
        mlflow=link and {"experiment": record.name, "link": link},
        study=record.name,
    )
