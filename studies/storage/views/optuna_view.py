"""The copy of a study in Optuna's tables of the same database, for Optuna Dashboard and `optuna.load_study`.

Optuna numbers trials in the order of insertion, and its finished states are final. So trials are inserted by number,
paused trials stay RUNNING, and a change of a finished state rebuilds the study. Intermediate values are left out: TPE
cannot handle them with several objectives.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from search_spaces.parameters import Categorical, Float, Parameter, SpaceError
from search_spaces.space import Space
from search_spaces.suggestions import Constant
from studies.records.records import NANO, Constraint, Objective
from studies.results.constraints import excesses
from studies.search.samplers.optuna_mirror import to_distribution
from studies.storage.schema.engine import connect_args, parse_url
from studies.storage.study_store import Store
from studies.storage.views.cursors import ViewName
from studies.storage.views.view_rows import (
    CHUNK,
    MirroredStudy,
    MirroredTrial,
    Pending,
    ViewDamagedError,
    ViewError,
    load_trials,
)
from trainers.protocol import ParameterValue

if TYPE_CHECKING:
    import optuna

MOST_ATTRIBUTE_CHARS = 1000  # Optuna Dashboard cuts at 1,024 characters, including quotation marks
CONSTRAINTS_KEY = "constraints"
"""Optuna 5 reads a value under `constraints:NAME` for each constraint; Optuna Dashboard reads the earlier form, a list.
In both, values of at most 0 are feasible."""
UID_ATTRIBUTE = "automl_study_uid"
OPTUNA_STATES = {
    "running": "RUNNING", "paused": "RUNNING", "complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL",
}  # fmt: skip
OPEN_STATES = frozenset({"RUNNING", "WAITING"})
_TRIALS = sa.table("trials", sa.column("study_id"))
_ATTRIBUTES = sa.table("trial_user_attributes", sa.column("trial_id"), sa.column("key"), sa.column("value_json"))
"""Optuna's tables, used directly where its functions take a transaction per value or read all trials to count."""
_warning_filters = threading.Lock()


def open_storage(store_url: str) -> optuna.storages.RDBStorage:
    """Return Optuna's storage in the store's database; creates missing tables."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    url = parse_url(store_url)
    # Optuna treats the URL as a template: braces in a password would be taken for a placeholder.
    text = url.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}")
    waits: dict[str, Any] = {"connect_args": connect_args(url)}
    if url.get_backend_name() != "sqlite":
        return optuna.storages.RDBStorage(text, engine_kwargs={"pool_pre_ping": True, **waits})
    storage = optuna.storages.RDBStorage(text, engine_kwargs=waits)
    # Losing the view's latest writes is harmless, and the cursor's commit syncs all earlier ones in the log.
    sa.event.listen(storage.engine, "connect", lambda c, _: c.execute("PRAGMA synchronous=NORMAL").close())
    storage.engine.dispose()
    return storage


class OptunaView:
    """Copies stored rows to Optuna's tables."""

    name: ViewName = "optuna"

    def __init__(self, store_url: str) -> None:
        self._url = store_url
        self._open: optuna.storages.RDBStorage | None = None
        self._study: optuna.Study | None = None
        self._study_id = -1
        self._known: dict[int, _KnownTrial] | None = None

    def mirror(self, store: Store, pending: Pending, renew: Callable[[], None]) -> None:
        """Insert new trials, and update changed trials."""
        study = self._studied(pending.study)
        writer = _Writer(study, self._storage, self._remembered(study), pending)
        ids = [trial_id for _, trial_id in pending.trials]
        for start in range(0, len(ids), CHUNK):
            for trial in load_trials(store, ids[start : start + CHUNK]):
                writer.put(trial)
                renew()

    def clear(self, study: MirroredStudy) -> None:
        """Delete the Optuna study if automl made it."""
        self.forget()
        study_id = self._find(study.name)
        if study_id is not None:
            self._refuse_foreign(study_id, study)
            self._storage.delete_study(study_id)

    def link(self, study: MirroredStudy) -> str:  # noqa: ARG002 - the interface of a view
        """Return an empty text: only `automl dashboard` serves Optuna Dashboard."""
        return ""

    def forget(self) -> None:
        """Make the next update read Optuna's trials again."""
        self._study = self._known = None

    def close(self) -> None:
        """Close the connections to the database."""
        self.forget()
        if self._open is not None:
            self._open.remove_session()
            self._open.engine.dispose()
            self._open = None

    @property
    def _storage(self) -> optuna.storages.RDBStorage:
        if self._open is None:
            self._open = open_storage(self._url)
        return self._open

    def _remembered(self, study: optuna.Study) -> dict[int, _KnownTrial]:
        """Return Optuna's trials, read again only if another process changed their number."""
        mine = sa.select(sa.func.count()).select_from(_TRIALS).where(_TRIALS.c.study_id == self._study_id)
        with self._storage.engine.connect() as connection:
            count = connection.execute(mine).scalar_one()
        if self._known is None or len(self._known) != count:
            self._known = {trial.number: _KnownTrial.of(trial) for trial in study.get_trials(deepcopy=False)}
        return self._known

    def _find(self, name: str) -> int | None:
        try:
            return self._storage.get_study_id_from_name(name)
        except KeyError:
            return None

    def _studied(self, study: MirroredStudy) -> optuna.Study:
        import optuna

        study_id = self._find(study.name)
        if self._study is not None and study_id == self._study_id:
            return self._study
        if study_id is not None:
            self._refuse_foreign(study_id, study)
        made = optuna.create_study(
            study_name=study.name,
            storage=self._storage,
            directions=[objective.direction for objective in study.objectives],
            # `tell` calls the sampler, whose kind does not matter here: this is the cheapest.
            sampler=optuna.samplers.RandomSampler(),
            load_if_exists=True,
        )
        if made.user_attrs.get(UID_ATTRIBUTE) != study.uid:
            with _warning_filters, warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                made.set_metric_names([objective.metric for objective in study.objectives])
            made.set_user_attr(UID_ATTRIBUTE, study.uid)
        self._study, self._study_id = made, self._storage.get_study_id_from_name(study.name)
        return made

    def _refuse_foreign(self, study_id: int, study: MirroredStudy) -> None:
        uid = self._storage.get_study_user_attrs(study_id).get(UID_ATTRIBUTE)
        if uid == study.uid:
            return
        # Our own study, if its creation was interrupted, has neither this attribute nor trials.
        if uid is not None or self._storage.get_all_trials(study_id, deepcopy=False):
            raise ViewError(
                f"the database already holds an Optuna study {study.name!r} that automl did not make. Rename one of "
                "the two studies"
            )


@dataclass(slots=True)
class _KnownTrial:
    trial_id: int
    state: str
    params: dict[str, Any]
    distributions: dict[str, Any]
    attributes: dict[str, Any]

    @classmethod
    def of(cls, trial: optuna.trial.FrozenTrial) -> _KnownTrial:
        distributions = dict(trial.distributions)
        return cls(trial._trial_id, trial.state.name, trial.params, distributions, dict(trial.user_attrs))  # noqa: SLF001


class _Writer:
    """Writes the trials of one update to Optuna, and updates `known`."""

    def __init__(
        self, study: optuna.Study, storage: optuna.storages.RDBStorage, known: dict[int, _KnownTrial], pending: Pending
    ) -> None:
        self._study, self._storage, self._known = study, storage, known
        self._study_id = storage.get_study_id_from_name(pending.study.name)
        self._objectives, self._constraints = pending.study.objectives, pending.study.constraints
        learns = bool((pending.study.spec.get("search") or {}).get("learn_space"))
        present = [trial.distributions for _, trial in sorted(known.items())] if learns else []
        self._params = OptunaParams(Space.from_dict(pending.study.spec.get("space") or {}), present)
        if len(known) > pending.started:
            raise ViewDamagedError(f"the Optuna view has {len(known)} trials, but the study has {pending.started}")

    def put(self, trial: MirroredTrial) -> None:
        if trial.number > len(self._known):
            raise ViewDamagedError(f"the Optuna view lacks trial {len(self._known)}")
        if trial.number == len(self._known):
            frozen = self._frozen(trial)
            self._study.add_trial(frozen)
            trial_id = self._storage.get_trial_id_from_study_id_trial_number(self._study_id, trial.number)
            frozen._trial_id = trial_id  # noqa: SLF001 - Optuna's ids have no public name
            self._known[trial.number] = _KnownTrial.of(frozen)
        else:
            self._update(trial, self._known[trial.number])

    def _update(self, trial: MirroredTrial, found: _KnownTrial) -> None:
        import optuna

        state = OPTUNA_STATES[trial.state]
        self._add_params(trial, found)
        if found.state not in OPEN_STATES:
            if found.state != state or found.attributes.get("automl_state") != trial.state:
                raise ViewDamagedError(f"trial {trial.number} is {found.state} in the Optuna view")
            return
        # Attributes first: attributes of a finished trial can no longer be set.
        wanted = _attributes(trial, self._objectives)
        _change_attributes(self._storage, found, {k: v for k, v in wanted.items() if found.attributes.get(k) != v})
        if state != "RUNNING":
            for key, excess in _system_attributes(trial, self._constraints).items():
                self._storage.set_trial_system_attr(found.trial_id, key, excess)
            values = _values(trial, self._objectives)
            self._storage.set_trial_state_values(found.trial_id, optuna.trial.TrialState[state], values)
            found.state = state

    def _add_params(self, trial: MirroredTrial, found: _KnownTrial) -> None:
        """Add parameters that the trial requested at run time; others must be unchanged."""
        wanted = self._params.distributions(trial)
        new = {name: distribution for name, distribution in wanted.items() if name not in found.params}
        may_add = found.state in OPEN_STATES and new.keys() <= trial.asked.keys()
        is_same = found.params == {name: trial.params[name] for name in wanted if name not in new}
        if not is_same or (new and not may_add):
            raise ViewDamagedError(f"trial {trial.number} has different parameters in the Optuna view")
        for name, distribution in new.items():
            value = trial.params[name]
            self._storage.set_trial_param(found.trial_id, name, distribution.to_internal_repr(value), distribution)
            found.params[name], found.distributions[name] = value, distribution

    def _frozen(self, trial: MirroredTrial) -> optuna.trial.FrozenTrial:
        import optuna

        state = optuna.trial.TrialState[OPTUNA_STATES[trial.state]]
        distributions = self._params.distributions(trial)
        return optuna.trial.FrozenTrial(
            number=-1,  # Optuna assigns the next number, and a new id
            trial_id=-1,
            state=state,
            value=None,
            values=_values(trial, self._objectives),
            datetime_start=_local(trial.started_at),
            datetime_complete=_local(trial.ended_at) if state.is_finished() else None,
            params={name: trial.params[name] for name in distributions},
            distributions=distributions,
            user_attrs=_attributes(trial, self._objectives),
            system_attrs=_system_attributes(trial, self._constraints) if state.is_finished() else {},
            intermediate_values={},
        )


def _change_attributes(storage: optuna.storages.RDBStorage, found: _KnownTrial, changed: Mapping[str, Any]) -> None:
    """Change several user attributes of an unfinished trial in one transaction."""
    for key in changed.keys() - found.attributes.keys():
        storage.set_trial_user_attr(found.trial_id, key, changed[key])
    rows = [{"name": key, "value": json.dumps(changed[key])} for key in changed.keys() & found.attributes.keys()]
    if rows:
        a = _ATTRIBUTES.c
        one = sa.update(_ATTRIBUTES).where(a.trial_id == found.trial_id, a.key == sa.bindparam("name"))
        with storage.engine.begin() as connection:
            connection.execute(one.values(value_json=sa.bindparam("value")), rows)
    found.attributes |= changed


def _values(trial: MirroredTrial, objectives: tuple[Objective, ...]) -> list[float] | None:
    """Return a complete trial's values as floats, because TPE fails on integers."""
    if trial.state != "complete":
        return None
    values = _last_values(trial, objectives)
    return [values[objective.metric] for objective in objectives]


def _last_values(trial: MirroredTrial, objectives: tuple[Objective, ...]) -> dict[str, float]:
    if not trial.epochs:
        return {}
    metrics = trial.epochs[-1].metrics
    found = ((objective.metric, metrics.get(objective.metric)) for objective in objectives)
    return {name: float(value) for name, value in found if value is not None}


def _attributes(trial: MirroredTrial, objectives: tuple[Objective, ...]) -> dict[str, Any]:
    """Return user attributes, with the last values, which Optuna stores only for complete trials."""
    attributes: dict[str, Any] = {
        "automl_state": trial.state,
        "reason": trial.reason[:MOST_ATTRIBUTE_CHARS],
        "epochs": trial.epochs[-1].epoch if trial.epochs else 0,
        "cost_usd": trial.paid_nano_usd / NANO,
        "world_size": trial.world_size,
        "origin": trial.origin,
    }
    if trial.failure is not None:
        attributes["failure"] = trial.failure
    values = _last_values(trial, objectives)
    if values and len(json.dumps(values)) <= MOST_ATTRIBUTE_CHARS:
        attributes["values"] = values
    return attributes


def _system_attributes(trial: MirroredTrial, constraints: tuple[Constraint, ...]) -> dict[str, Any]:
    if not constraints or not trial.epochs:
        return {}
    found = excesses(trial.epochs[-1].metrics, constraints)
    return {CONSTRAINTS_KEY: list(found.values())} | {f"{CONSTRAINTS_KEY}:{name}": one for name, one in found.items()}


def _local(seconds: float | None) -> datetime | None:
    """Convert seconds since 1970 to local time without time zone, as Optuna stores it."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, tz=UTC).astimezone().replace(tzinfo=None)


class OptunaParams:
    """Selects the parameters of a trial that Optuna can store."""

    def __init__(self, space: Space, present: Iterable[Mapping[str, Any]]) -> None:
        self._space = space
        self._first: dict[str, Any] = {}
        for distributions in present:
            self._first = {**distributions, **self._first}

    def distributions(self, trial: MirroredTrial) -> dict[str, Any]:
        """Return the distributions of a trial's parameters that fit the Optuna study."""
        declared = {name: value for name, value in trial.params.items() if name not in trial.asked}
        return _declared(self._space, declared) | self._asked(trial)

    def _asked(self, trial: MirroredTrial) -> dict[str, Any]:
        """Return distributions of parameters requested at run time; the first trial decides their kind."""
        from optuna.distributions import check_distribution_compatibility

        found: dict[str, Any] = {}
        for name, one in trial.asked.items():
            if isinstance(one.domain, Constant):
                continue
            distribution = to_distribution(one.domain)
            try:
                check_distribution_compatibility(self._first.setdefault(name, distribution), distribution)
            except ValueError:
                continue
            found[name] = distribution
        return found


def _declared(space: Space, params: Mapping[str, ParameterValue]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in params.items():
        try:
            parameter = space.parameter(name)
        except SpaceError:
            continue
        distribution = to_distribution(parameter) if parameter.contains(value) else _widened(parameter, value)
        if distribution is not None:
            found[name] = distribution
    return found


def _widened(parameter: Parameter, value: ParameterValue) -> optuna.distributions.BaseDistribution | None:
    """Return a range extended to a number outside the space: Optuna allows one kind and scale per name."""
    import optuna

    if isinstance(parameter, Categorical) or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if parameter.log and value <= 0:
        return None
    low, high = min(parameter.low, value), max(parameter.high, value)
    if isinstance(parameter, Float):
        return optuna.distributions.FloatDistribution(low, high, log=parameter.log)
    if not isinstance(value, int):
        return None
    return optuna.distributions.IntDistribution(int(low), int(high), log=parameter.log)
