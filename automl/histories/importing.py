"""Stores another tool's runs as a finished study, from which new studies learn (`automl import`)."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from automl.given_parameters import read_params
from automl.histories.trackers import read_mlflow, read_optuna, read_ray, read_tables
from automl.histories.translation import History, Translator, Trial, columns_of, metrics_of
from automl.launching.from_code import code_of, prepared_from_code
from automl.launching.prepared_study import prepare
from automl.launching.spec_reading import read_spec
from automl.signals import private_files
from automl.stored.open_store import stored_form
from reports.phrases import plural, usd
from search_spaces.untrusted_text import redact
from studies.records.records import IMPORTED, NANO
from studies.search.model.transfer import ENOUGH_TO_FIT
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import parse_spec, spec_to_mapping
from studies.storage.leases import lease as leases
from studies.storage.study_store import Store
from studies.storage.views.mirror import catch_up
from studies.storage.writing.changes import Change, EpochMeasured, StudyChanged, TrialChanged, TrialColumns
from studies.storage.writing.deletion import delete_rows

_READERS = {"mlflow": read_mlflow, "optuna": read_optuna, "ray": read_ray}


def import_history(
    study: str, sources: Sequence[str], spec_file: Path, *, price: float, names: Sequence[str] = (),
    fixed: Sequence[str] = (), store: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Store the runs of `sources` as a closed study. Raises SpecError, and writes nothing, for a wrong argument.

    Args:
        spec_file: Spec or code of the study that will learn, with space, objectives and directions.
        price: Dollars per slot-hour.
        names: Columns of the runs and names of the spec, `THEIRS=OURS[:min|max][:UNIT]`.
        fixed: Parameters `NAME=VALUE` that all runs had but did not record.

    Returns:
        A summary as plain values, with `lines` for people, and in `views` an error or None for each view.
    """
    code, folder = code_of(spec_file), spec_file.absolute().parent
    if code is None:
        spec = prepare(read_spec(spec_file, (), store), source=str(spec_file), base_folder=folder).spec
    else:
        spec = prepared_from_code(code, (), store)[0].spec
    columns = columns_of(names, spec)
    history = _read(sources, [*metrics_of(spec), *(one.theirs for one in columns.values())])
    translator = Translator(history, spec, columns, read_params(fixed))
    trials = translator.trials()
    form = {name: one for name, one in spec_to_mapping(spec).items() if name in {"objectives", "constraints", "space"}}
    form |= {"study": study, "task": IMPORTED, "task_options": {"from": [redact(one) for one in sources]}}
    form |= {"training": {"epochs": max(len(one.epochs) for one in trials)}, "budget": f"{len(trials)} trials"}
    form = stored_form(parse_spec({**form, "mlflow": "off"}))
    with private_files():
        opened = Store(spec.store)
    cost = _write(opened, form, trials, price) / NANO
    counts = {"runs": len(history.runs), "trials": len(trials), "complete": sum(t.state == "complete" for t in trials)}
    taken = f"{plural(len(trials), 'trial')} of {plural(len(history.runs), 'run')} taken, {counts['complete']} complete"
    lines = [f"{history.source}: {taken}", *(f"left out: {one}" for one in translator.left_out), *translator.notes]
    lines.append(f"cost: {usd(cost)} at {usd(price)} per slot-hour, paid elsewhere, in no budget here")
    few = f"too few to learn from: at least {ENOUGH_TO_FIT} trials are needed"
    lines += [few] if len(trials) < ENOUGH_TO_FIT else []
    lines.append(f"stored as {study}. To learn from it: automl launch SPEC --from-study {shlex.quote(study)}")
    return {"study": study, **counts, "cost_usd": cost, "lines": lines, "views": dict(catch_up(opened, study))}


def _read(sources: Sequence[str], curves_of: Sequence[str]) -> History:
    kind, _, place = sources[0].partition(":")
    if kind not in _READERS:
        return read_tables(sources)
    if len(sources) > 1:
        raise SpecError("--from", (), f"found {len(sources)} sources, allowed: one source, or several CSV files")
    return _READERS[kind](place, curves_of)


def _write(store: Store, form: dict[str, Any], trials: Sequence[Trial], usd_per_slot_hour: float) -> int:
    """Write the finished study without charges. Returns its trials' cost in nano-dollars."""
    at = time.time()
    study_id = store.create_study(form["study"], form, ".", at)
    try:
        return _fill(store, study_id, trials, usd_per_slot_hour, at)
    except BaseException:
        lease = leases.acquire(store, study_id)
        if isinstance(lease, leases.Lease):
            delete_rows(store, study_id, lease.token)
        raise


def _fill(store: Store, study_id: int, trials: Sequence[Trial], usd_per_slot_hour: float, at: float) -> int:
    total, changes = 0, list[Change]()
    for number, trial in enumerate(trials):
        world_size = int(trial.params.get("world_size", 1))
        trial_id = store.enqueue(study_id, trial.params, world_size=world_size, origin=IMPORTED)
        row = TrialColumns(number=number, state=trial.state, reason=IMPORTED, started_at=at, ended_at=at)
        changes.append(TrialChanged(trial_id=trial_id, columns=row))
        nano_usd = round(trial.seconds * world_size * usd_per_slot_hour / 3600 * NANO)
        total += nano_usd * len(trial.epochs)
        known = {"wall_seconds": trial.seconds, "cost_usd": nano_usd / NANO} if trial.seconds else {}
        for epoch, metrics in enumerate(trial.epochs, start=1):
            so_far = {name: epoch * one for name, one in known.items()}
            is_last = epoch == len(trial.epochs)
            changes.append(
                EpochMeasured(
                    trial_id=trial_id, epoch=epoch, metrics=so_far | dict(metrics), wall_seconds=trial.seconds,
                    cost_nano_usd=nano_usd, checkpoint=None, is_milestone=is_last, at=at,
                )
            )  # fmt: skip
    ended = StudyChanged(columns={"state": "closed", "stop_reason": IMPORTED, "ended_at": at})
    store.commit(study_id, None, [*changes, ended])
    return total
