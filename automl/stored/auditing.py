"""`automl audit`: finds lost rows, double charges and leftover files of a study.

The audit has its own SQL, because shared code would hide its mistakes.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from automl.stored.pruning import orphans_of
from studies.money.ledger import ABSORBS_ROUNDING
from studies.records.records import IMPORTED, NANO, NOT_TRAINED_HERE, OF_SAVED_MODELS
from studies.storage.leases.processes import is_known_gone, left_behind
from studies.storage.schema import tables as t
from studies.storage.study_store import Store, StoreError
from studies.storage.views.cursors import VIEWS, is_off
from trainers.checkpoints.locations import is_url


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """An inconsistency in a study. `where` names the trial, charge or file."""

    check: str
    where: str
    found: str


class Asker:
    """Runs SQL about one study in one transaction. `study_id` replaces `:study` in the SQL."""

    def __init__(self, connection: sa.Connection, study_id: int) -> None:
        self._connection, self._study_id = connection, study_id

    @property
    def clock(self) -> str:
        """Return SQL for the database's clock in seconds since 1970."""
        if self._connection.dialect.name == "sqlite":
            return "((julianday('now') - 2440587.5) * 86400.0)"
        return "EXTRACT(EPOCH FROM clock_timestamp())"

    def __call__(self, sql: str, **parameters: Any) -> list[sa.Row[Any]]:
        """Return a statement's rows."""
        known = {"study": self._study_id, **parameters} if ":study" in sql else parameters
        return list(self._connection.execute(sa.text(sql), known).all())

    def has_table(self, name: str) -> bool:
        """Return whether a table exists."""
        return sa.inspect(self._connection).has_table(name)


def plain(value: Any) -> Any:
    """Return a JSON column's value, which SQLite returns as text."""
    return json.loads(value) if isinstance(value, str) else value


NANO_SLACK = 1  # allowed difference in nano-dollars between a rounded charge and its formula
SECONDS_SLACK = 1e-3  # allowed difference of two sums of durations; a moment since 1970 is exact to a microsecond
COMMAND_CHARACTERS = 160
PROCESSES_END_SECONDS = 10.0  # time in which processes notice that their command has ended
LIMIT_SLACK_SECONDS = 30.0  # time that controllers may exceed the limit of hours, to end gangs and close the pool


_Rate = tuple[float, int, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Study:
    row: sa.Row[Any]
    is_driven: bool
    rates: dict[int, list[_Rate]]


def audit(store: Store, name: str) -> dict[str, Any]:
    """Check a study. Returns `study`, `state`, `checks` and `findings`. Raises StoreError for an unknown study."""
    findings: list[Finding] = []
    made: list[str] = []
    with store.snapshot() as connection:
        row = connection.execute(sa.select(t.studies).where(t.studies.c.name == name)).first() or store.require(name)
        ask = Asker(connection, row.id)
        study = _Study(row=row, is_driven=_is_driven(ask), rates=_rates(ask))
        for check, look in _CHECKS.items():
            made.append(check)
            findings += [Finding(check=check, where=where, found=found) for where, found in look(ask, study)]
        made.append("views")
        findings += view_findings(ask, row, is_driven=study.is_driven)
        files = _mentioned_files(ask)
    if row.spec.get("task") not in NOT_TRAINED_HERE:
        made += ["checkpoints", "orphans"]
        findings += _checkpoint_findings(store, row.id, files)
        try:
            _, orphans = orphans_of(store, name)
        except StoreError as error:
            orphans = []
            findings.append(Finding(check="orphans", where=str(name), found=str(error)))
        made.append("processes")
        findings += _process_findings(row.uid)
        # A missing folder is no loss; `automl gc` may have removed it.
        left = [one for one in orphans if not one.is_folder]
        findings += [Finding(check="orphans", where=str(one.path), found="no row mentions it") for one in left]
    return {"study": name, "state": row.state, "checks": made, "findings": [asdict(one) for one in findings]}


_Found = Iterator[tuple[str, str]]


def _is_driven(ask: Asker) -> bool:
    """Return whether a controller may be running, because its lease has not expired by the database's clock."""
    return any(
        not row.has_run_out and not is_known_gone(row.process_space, row.pid, row.process_started_at)
        for row in ask(
            f"SELECT process_space, pid, process_started_at, {ask.clock} >= expires_at AS has_run_out "  # noqa: S608 - a constant
            "FROM automl_leases WHERE study_id = :study AND released_at IS NULL"
        )
    )


def _numbers(ask: Asker, _: _Study) -> _Found:
    (row,) = ask(
        "SELECT COUNT(number) AS started, COUNT(DISTINCT number) AS numbers, MIN(number) AS least, MAX(number) AS most "
        "FROM automl_trials WHERE study_id = :study"
    )
    if row.started and (row.numbers != row.started or row.least != 0 or row.most != row.started - 1):
        yield "trials", f"{row.started} started trials have {row.numbers} numbers from {row.least} to {row.most}"


def _epochs(ask: Asker, _: _Study) -> _Found:
    rows = ask(
        "SELECT t.number, COUNT(*) AS found, COUNT(DISTINCT e.epoch) AS epochs, MIN(e.epoch) AS least, "
        "MAX(e.epoch) AS most FROM automl_epochs e JOIN automl_trials t ON t.id = e.trial_id "
        "WHERE t.study_id = :study GROUP BY t.id, t.number "
        "HAVING COUNT(*) <> COUNT(DISTINCT e.epoch) OR MIN(e.epoch) <> 1 OR MAX(e.epoch) <> COUNT(*)"
    )
    for row in rows:
        yield f"trial {row.number}", f"{row.found} rows hold {row.epochs} epochs from {row.least} to {row.most}"


def _charges(ask: Asker, _: _Study) -> _Found:
    rows = ask(
        "SELECT id, kind, slots, seconds, usd_per_slot_hour, cost_nano_usd FROM automl_charges WHERE study_id = :study"
    )
    # Overhead absorbs the rounding of the other charges, at most half a nano-dollar each. Confirmations charge
    # overhead as the kind of their trainings.
    absorbed: dict[str, float] = {kind: len(rows) / 2 for kind in (*ABSORBS_ROUNDING, *OF_SAVED_MODELS)}
    for row in rows:
        due = row.slots * row.seconds * row.usd_per_slot_hour / 3600 * NANO
        slack = NANO_SLACK + absorbed.get(row.kind, 0.0) + 1e-9 * abs(due)
        if row.seconds < 0 or abs(due - row.cost_nano_usd) > slack:
            yield f"charge {row.id}", f"{row.cost_nano_usd} nano-dollars, but slots x seconds x price are {due:.0f}"


def _slot_seconds(ask: Asker, study: _Study) -> _Found:
    """Check that the charges of a pool are its number of slots times its time."""
    rows = ask(
        "SELECT l.id, l.pool_slots, l.usd_per_slot_hour, l.pool_opened_at, l.pool_closed_at, l.heartbeat_at, "
        "COALESCE(SUM(c.slots * c.seconds), 0) AS charged, MAX(c.charged_at) AS charged_at "
        "FROM automl_leases l LEFT JOIN automl_charges c ON c.lease_id = l.id "
        "WHERE l.study_id = :study AND l.pool_opened_at IS NOT NULL "
        "GROUP BY l.id, l.pool_slots, l.usd_per_slot_hour, l.pool_opened_at, l.pool_closed_at, l.heartbeat_at"
    )
    for row in rows:
        is_closed = row.pool_closed_at is not None
        until = row.pool_closed_at if is_closed else max(row.heartbeat_at, row.charged_at or 0.0)
        owed = sum(slots * (end - begin) for begin, end, slots, _ in _spans(row, study.rates.get(row.id, []), until))
        off = row.charged - owed
        if off > SECONDS_SLACK * max(row.pool_slots, 1) or (is_closed and -off > SECONDS_SLACK * row.pool_slots):
            yield f"lease {row.id}", f"{row.charged:.3f} slot-seconds are charged, but its slots cost {owed:.3f}"
        if not is_closed and not study.is_driven:
            yield f"lease {row.id}", "its pool was never closed: `automl resume` charges its last seconds"


def _prices(ask: Asker, study: _Study) -> _Found:
    """Check that each charge has the price of its time."""
    leases = {
        row.id: row
        for row in ask(
            "SELECT id, pool_slots, usd_per_slot_hour, pool_opened_at FROM automl_leases WHERE study_id = :study "
            "AND pool_opened_at IS NOT NULL"
        )
    }
    spans = {id_: list(_spans(lease, study.rates.get(id_, []), math.inf)) for id_, lease in leases.items()}
    rows = ask(
        "SELECT id, lease_id, usd_per_slot_hour, since, until FROM automl_charges "
        "WHERE study_id = :study AND since IS NOT NULL ORDER BY id"
    )
    for row in rows:
        for begin, end, _slots, price in spans[row.lease_id]:
            wrong = min(end, row.until) - max(begin, row.since)
            if wrong > SECONDS_SLACK and row.usd_per_slot_hour != price:
                yield f"charge {row.id}", f"{wrong:.3f} s cost {row.usd_per_slot_hour} dollars an hour, not {price}"


def _rates(ask: Asker) -> dict[int, list[_Rate]]:
    rates: dict[int, list[_Rate]] = {}
    rows = ask(
        "SELECT r.lease_id, r.since, r.slot_numbers, r.usd_per_slot_hour FROM automl_pool_rates r "
        "JOIN automl_leases l ON l.id = r.lease_id WHERE l.study_id = :study ORDER BY r.id"
    )
    for row in rows:
        rates.setdefault(row.lease_id, []).append((row.since, len(plain(row.slot_numbers)), row.usd_per_slot_hour))
    return rates


def _spans(lease: sa.Row[Any], rates: list[_Rate], until: float) -> Iterator[tuple[float, float, int, float]]:
    """Yield periods of constant rate: begin, end, charged slots, price of a slot."""
    rates = [(lease.pool_opened_at, lease.pool_slots, lease.usd_per_slot_hour), *rates]
    for (begin, slots, price), following in zip(rates, [*rates[1:], (until, 0, 0.0)], strict=True):
        end = min(following[0], until)
        if end > begin:
            yield begin, end, slots, price


def _intervals(ask: Asker, _: _Study) -> _Found:
    """Check that charges of a slot do not overlap."""
    rows = ask(
        "SELECT id, lease_id, slot_numbers, since, until FROM automl_charges "
        "WHERE study_id = :study AND since IS NOT NULL ORDER BY lease_id, since, id"
    )
    charged_until: dict[tuple[int, int], float] = {}
    for row in rows:
        for slot in plain(row.slot_numbers):
            key = (row.lease_id, slot)
            again = charged_until.get(key, row.since) - row.since
            if again > SECONDS_SLACK:
                yield f"lease {row.lease_id}, slot {slot}", f"charge {row.id} charges {again:.3f} s again"
            charged_until[key] = max(charged_until.get(key, row.until), row.until)


def _trial_costs(ask: Asker, study: _Study) -> _Found:
    """Check that a trial's epochs cost no more than its training charges."""
    if study.row.spec.get("task") == IMPORTED:  # paid elsewhere
        return
    rows = ask(
        "SELECT t.number, e.cost, COALESCE(c.cost, 0) AS charged FROM automl_trials t "
        "JOIN (SELECT trial_id, SUM(cost_nano_usd) AS cost FROM automl_epochs GROUP BY trial_id) e "
        "ON e.trial_id = t.id "
        "LEFT JOIN (SELECT trial_id, SUM(cost_nano_usd) AS cost FROM automl_charges WHERE kind = 'train' "
        "GROUP BY trial_id) c ON c.trial_id = t.id WHERE t.study_id = :study AND e.cost > COALESCE(c.cost, 0)"
    )
    for row in rows:
        yield f"trial {row.number}", f"its epochs cost {row.cost} nano-dollars, the charges only {row.charged}"


def _budget(ask: Asker, study: _Study) -> _Found:
    """Check the limits of dollars, hours and trials, except confirmations and the recorded overshoot."""
    limits = study.row.spec.get("budget") or {}
    (spent,) = ask(
        "SELECT COALESCE(SUM(CASE WHEN kind <> 'confirm' THEN cost_nano_usd END), 0) AS cost, "
        "COUNT(CASE WHEN kind = 'confirm' THEN 1 END) AS confirms "
        "FROM automl_charges WHERE study_id = :study"
    )
    if limits.get("usd") is not None and spent.cost > limits["usd"] * NANO + study.row.overshoot_nano_usd + NANO_SLACK:
        yield "budget.usd", f"{spent.cost / NANO:.9f} dollars are spent of {limits['usd']}"
    (alive,) = ask(
        "SELECT COALESCE(SUM(COALESCE(pool_closed_at, released_at, heartbeat_at) - acquired_at), 0) AS seconds, "
        "COUNT(*) AS leases FROM automl_leases WHERE study_id = :study"
    )
    hours = limits.get("hours")
    if hours is not None and not spent.confirms and alive.seconds > hours * 3600 + LIMIT_SLACK_SECONDS * alive.leases:
        yield "budget.hours", f"{alive.seconds / 3600:.4f} hours are used of {hours}"
    (trials,) = ask("SELECT COUNT(number) AS started FROM automl_trials WHERE study_id = :study")
    if limits.get("trials") is not None and trials.started > limits["trials"]:
        yield "budget.trials", f"{trials.started} trials are started of {limits['trials']}"


def _left_running(ask: Asker, study: _Study) -> _Found:
    """Check that a study without controller has no running trials and no lease."""
    if study.is_driven:
        return
    if study.row.state == "running":
        yield "study", "it should run, but has no controller: `automl resume` continues it"
    for row in ask("SELECT number FROM automl_trials WHERE study_id = :study AND state = 'running' ORDER BY number"):
        yield f"trial {row.number}", "it is running, but the study has no controller"
    rows = ask(
        "SELECT t.number, a.attempt FROM automl_attempts a JOIN automl_trials t ON t.id = a.trial_id "
        "WHERE t.study_id = :study AND a.outcome = 'running' AND t.state <> 'running' ORDER BY t.number"
    )
    for row in rows:
        yield f"trial {row.number}", f"attempt {row.attempt} is running, but the trial is not"
    for row in ask("SELECT id, host, pid FROM automl_leases WHERE study_id = :study AND released_at IS NULL"):
        yield f"lease {row.id}", f"process {row.pid} on {row.host} never released it"


def _states(ask: Asker, _: _Study) -> _Found:
    """Check each trial's number, failure and attempts. Trials that are queued, or were cancelled so, have no number."""
    rows = ask(
        "SELECT id, number, state, failure FROM automl_trials WHERE study_id = :study "
        "AND (number IS NULL AND state NOT IN ('queued', 'pruned') OR number IS NOT NULL AND state = 'queued' "
        "OR (failure IS NOT NULL) <> (state = 'failed'))"
    )
    for row in rows:
        yield f"trial row {row.id}", f"state {row.state}, number {row.number}, failure {row.failure}"
    rows = ask(
        "SELECT t.number, COUNT(*) AS running FROM automl_attempts a JOIN automl_trials t ON t.id = a.trial_id "
        "WHERE t.study_id = :study AND a.outcome = 'running' GROUP BY t.id, t.number HAVING COUNT(*) > 1"
    )
    for row in rows:
        yield f"trial {row.number}", f"{row.running} attempts are running"
    (leases,) = ask("SELECT COUNT(*) AS held FROM automl_leases WHERE study_id = :study AND released_at IS NULL")
    if leases.held > 1:
        yield "leases", f"{leases.held} are held at the same time"


def _data(ask: Asker, _: _Study) -> _Found:
    """Check that all trials have read the same data."""
    rows = ask(
        "SELECT t.number, a.facts FROM automl_attempts a JOIN automl_trials t ON t.id = a.trial_id "
        "WHERE t.study_id = :study ORDER BY t.number, a.attempt"
    )
    trials: dict[str, dict[str, list[int]]] = {}
    for row in rows:
        for path, digest in plain(row.facts).get("data_files", {}).items():
            trials.setdefault(path, {}).setdefault(digest, []).append(row.number)
    for path, found in trials.items():
        if len(found) > 1:
            first, *others = (f"trial {min(numbers)}" for numbers in found.values())
            yield path, f"{first} has read other data than {', '.join(others)}: their values are not comparable"


_CHECKS: dict[str, Callable[[Asker, _Study], _Found]] = {
    "numbers": _numbers,
    "states": _states,
    "epochs": _epochs,
    "charges": _charges,
    "slot_seconds": _slot_seconds,
    "intervals": _intervals,
    "prices": _prices,
    "trial_costs": _trial_costs,
    "budget": _budget,
    "left_running": _left_running,
    "data": _data,
}


def _mentioned_files(ask: Asker) -> list[tuple[str, str]]:
    """Return the owner and the path of each checkpoint of a saved model or a resumable trial."""
    kept = ask(
        "SELECT t.number, e.epoch, e.checkpoint FROM automl_epochs e JOIN automl_trials t ON t.id = e.trial_id "
        "WHERE t.study_id = :study AND e.checkpoint IS NOT NULL ORDER BY t.number, e.epoch"
    )
    resumable = ask(
        "SELECT number, resume_epoch, resume_checkpoint FROM automl_trials "
        "WHERE study_id = :study AND resume_checkpoint IS NOT NULL ORDER BY number"
    )
    confirmed = ask(
        "SELECT t.number, c.seed, c.checkpoint FROM automl_confirmations c JOIN automl_trials t ON t.id = c.trial_id "
        "WHERE c.study_id = :study AND c.checkpoint IS NOT NULL ORDER BY t.number, c.id"
    )
    found = [(f"trial {row.number} @ {row.epoch}", str(row.checkpoint)) for row in kept]
    found += [(f"trial {row.number}, seed {row.seed}", str(row.checkpoint)) for row in confirmed]
    return found + [(f"trial {row.number} @ {row.resume_epoch}", str(row.resume_checkpoint)) for row in resumable]


def _checkpoint_findings(store: Store, study_id: int, files: list[tuple[str, str]]) -> Iterator[Finding]:
    """Report missing and unreadable checkpoints. Reads the rows twice, because files may change during the check."""
    wheres: dict[str, str] = {}
    for where, path in files:
        wheres.setdefault(path, where)
    problems = {path: problem for path in wheres if (problem := _problem_of(path))}
    if not problems:
        return
    with store.snapshot() as connection:
        still_mentioned = {path for _, path in _mentioned_files(Asker(connection, study_id))}
    for path, problem in problems.items():
        if path in still_mentioned:
            yield Finding(check="checkpoints", where=wheres[path], found=problem)


def _process_findings(study_uid: str) -> Iterator[Finding]:
    """Find the study's processes on this machine that outlived their command."""
    end = time.monotonic() + PROCESSES_END_SECONDS
    while (left := left_behind(study_uid)) and time.monotonic() < end:
        time.sleep(0.2)
    for pid, command in sorted(left.items()):
        yield Finding(
            check="processes", where=f"process {pid}", found=f"its command has ended: {command[:COMMAND_CHARACTERS]}"
        )


def _problem_of(path: str) -> str:
    if not is_url(path) and not Path(path).is_file():
        return f"{path} is missing"
    from trainers.checkpoints.checkpoint import check_checkpoint  # loads torch, which takes seconds
    from trainers.failures import CheckpointError

    try:
        check_checkpoint(path)
    except CheckpointError as error:
        return str(error)
    return ""


OPTUNA_STATES: Mapping[str, str] = {"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}
"""Optuna's states of ended trials. Other trials are RUNNING."""


def view_findings(ask: Asker, row: sa.Row[Any], *, is_driven: bool) -> Iterator[Finding]:
    """Check a study's copies in Optuna and MLflow, which may be late while the study runs."""
    cursors = ask("SELECT view, revision, rebuild, error FROM automl_view_cursors WHERE study_id = :study")
    if not set(VIEWS) <= {one.view for one in cursors}:
        yield Finding(check="views", where="cursors", found=f"{sorted(one.view for one in cursors)}")
    for cursor in cursors:
        if cursor.view not in VIEWS or (cursor.view == "mlflow" and is_off(row.spec.get("mlflow"))):
            continue
        if cursor.revision > row.revision:
            found = f"it has seen revision {cursor.revision} of {row.revision}"
            yield Finding(check="views", where=cursor.view, found=found)
        elif cursor.rebuild or cursor.revision < row.revision:
            if not is_driven:
                found = f"{row.revision - cursor.revision} revisions behind: `automl sync` rebuilds it"
                yield Finding(check="views", where=cursor.view, found=found)
        elif cursor.view == "optuna":
            yield from (
                Finding(check="views", where=f"optuna, {where}", found=found) for where, found in _optuna(ask, row)
            )


def _optuna(ask: Asker, row: sa.Row[Any]) -> Iterator[tuple[str, str]]:
    if not ask.has_table("trial_values"):
        yield "tables", "there are none, although the view counts as complete"
        return
    theirs = _their_trials(ask, row.name)
    ours = {one.number: one for one in ask(
        "SELECT id, number, state, params FROM automl_trials WHERE study_id = :study AND number IS NOT NULL"
    )}  # fmt: skip
    if theirs.keys() != ours.keys():
        yield "trials", f"{len(theirs)} in the view, {len(ours)} in the store"
        return
    values, params = _their_values(ask, row.name), _their_params(ask, row.name)
    last = _last_metrics(ask)
    objectives = [one["metric"] for one in row.spec["objectives"]]
    for number, trial in ours.items():
        state = OPTUNA_STATES.get(trial.state, "RUNNING")
        if theirs[number] != state:
            yield f"trial {number}", f"{theirs[number]} in the view, {trial.state} in the store"
        mine = [last.get(trial.id, {}).get(metric) for metric in objectives]
        if state == "COMPLETE" and not _are_equal(values.get(number, []), mine):
            yield f"trial {number}", f"values {values.get(number)} in the view, {mine} in the store"
        if unknown := params.get(number, set()) - set(plain(trial.params)):
            yield f"trial {number}", f"the view has parameters {sorted(unknown)} that the trial lacks"


def _are_equal(theirs: list[float], ours: list[float | None]) -> bool:
    return len(theirs) == len(ours) and all(
        one is not None and abs(other - one) <= 1e-12 * max(1.0, abs(one))
        for other, one in zip(theirs, ours, strict=True)
    )


def _their_trials(ask: Asker, name: str) -> dict[int, str]:
    sql = "SELECT t.number, t.state FROM trials t JOIN studies s ON s.study_id = t.study_id WHERE s.study_name = :name"
    return {row.number: str(row.state) for row in ask(sql, name=name)}


def _their_values(ask: Asker, name: str) -> dict[int, list[float]]:
    rows = ask(
        "SELECT t.number, v.value FROM trial_values v JOIN trials t ON t.trial_id = v.trial_id "
        "JOIN studies s ON s.study_id = t.study_id WHERE s.study_name = :name ORDER BY t.number, v.objective",
        name=name,
    )
    return {number: [float(row.value) for row in of_trial] for number, of_trial in _by_trial(rows).items()}


def _their_params(ask: Asker, name: str) -> dict[int, set[str]]:
    rows = ask(
        "SELECT t.number, p.param_name FROM trial_params p JOIN trials t ON t.trial_id = p.trial_id "
        "JOIN studies s ON s.study_id = t.study_id WHERE s.study_name = :name",
        name=name,
    )
    return {number: {row.param_name for row in of_trial} for number, of_trial in _by_trial(rows).items()}


def _by_trial(rows: Sequence[sa.Row[Any]]) -> dict[int, list[sa.Row[Any]]]:
    found: dict[int, list[sa.Row[Any]]] = {}
    for row in rows:
        found.setdefault(row.number, []).append(row)
    return found


def _last_metrics(ask: Asker) -> dict[int, Mapping[str, float | None]]:
    rows = ask(
        "SELECT e.trial_id, e.metrics FROM automl_epochs e JOIN automl_trials t ON t.id = e.trial_id "
        "JOIN (SELECT trial_id, MAX(epoch) AS epoch FROM automl_epochs GROUP BY trial_id) l "
        "ON l.trial_id = e.trial_id AND l.epoch = e.epoch WHERE t.study_id = :study AND t.state = 'complete'"
    )
    return {row.trial_id: plain(row.metrics) for row in rows}
