"""The Python API: functions that launch and read studies."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automl.adapters.tune_trainable import is_param_space, own_trainable, parameters_and_constants
from automl.launching.foreign_objectives import (
    function_of_trainable,
    is_optuna_objective,
    is_tune_trainable,
    training_function_of,
    with_space_of,
)
from automl.launching.functions import name_of, plain_function
from automl.launching.launch_or_resume import launch_prepared
from automl.launching.prepared_study import Prepared, TaskFacts, prepare
from automl.launching.quickstart import HOURS, USD, budget_note
from automl.launching.spec_reading import parse_with_overrides, read_spec, with_options_of_new_studies
from automl.notebook_cell import hide_widget_advice, report_link, study_cell, watching
from automl.stored.open_store import kept_checkpoint, open_store
from automl.stored.reporting import report_path
from reports.gallery import Gallery
from reports.phrases import study_sentence
from reports.recommending import recommendation_lines
from search_spaces.messages import UserError, found, install_command, listed, nearest
from search_spaces.parameters import SpaceError
from search_spaces.space import Space
from studies.records.plain_rows import TABLES, flattened
from studies.records.records import StudyRecord, TrialRecord
from studies.results import analysis
from studies.results.recommendation import BestPoint, Recommendation, best_point, recommended
from studies.spec.checks import check_against_task
from studies.spec.sections import BudgetSpec
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import StudySpec
from studies.storage.reading.reader import load_study
from studies.storage.schema.engine import StoreError
from studies.storage.study_store import Store
from trainers.contract.training_function import is_training_function, reported_by, space_of_function
from trainers.protocol import TaskError

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go
    from torch import nn


class DataFrameError(UserError, ValueError):
    """There is no such table, or pandas is not installed."""


def dataframe(record: StudyRecord, what: str) -> pd.DataFrame:
    """Return a study's table as a DataFrame. Inactive parameters are missing values. Raises DataFrameError."""
    if what not in TABLES:
        raise DataFrameError(f"dataframe: {found(what, listed(TABLES), nearest(what, TABLES))}")
    try:
        import pandas as pd
    except ImportError:
        raise DataFrameError(f"dataframe needs the package pandas. Install it: {install_command('pandas')}") from None
    table = TABLES[what]
    columns, lines = flattened(table.rows(record), table.columns)
    values = {name: [line.get(name) for line in lines] for name in columns}
    return pd.DataFrame({name: pd.Series(column, dtype=_type_of(name, column)) for name, column in values.items()})


def _type_of(name: str, column: list[object]) -> str | None:
    """Return pandas' nullable type for a column of integers or booleans with missing values, else None."""
    kinds = {type(value) for value in column if value is not None}
    if name in {"trial", "attempt"} or (kinds == {int} and None in column):  # a charge may have neither
        return "Int64"
    return "boolean" if kinds == {bool} and None in column else None


_SEARCH = "automl.search"
_UNSAVED = "automl_functions:unsaved"  # task name in a spec that is checked before its function is saved


class Study:
    """A study as it was in the store when it was last read."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self.record: StudyRecord = load_study(store, name)

    def refresh(self) -> Study:
        """Read the study again from the store. Returns this object."""
        self.record = load_study(self._store, self._name)
        return self

    @property
    def trials(self) -> tuple[TrialRecord, ...]:
        """Return all started trials by number."""
        return self.record.started

    @property
    def front(self) -> list[analysis.FrontPoint]:
        """Return the Pareto front: the feasible complete trials that no complete trial dominates."""
        return analysis.front(self.record)

    @property
    def archive(self) -> list[analysis.ArchivePoint]:
        """Return the non-dominated saved models of all trials and epochs."""
        return analysis.archive(self.record)

    def best(
        self,
        metric: str | None = None,
        *,
        under: Mapping[str, float] | None = None,
        over: Mapping[str, float] | None = None,
    ) -> BestPoint:
        """Return the saved model that is best in one objective; without arguments the recommended model.

        Args:
            metric: Objective; by default the first that is not a training cost.
            under: Largest allowed values of minimized objectives, by name.
            over: Smallest allowed values of maximized objectives, by name.

        Raises:
            BestPointError: The objective or a bound is wrong, or no model satisfies the bounds. The message lists valid
                values, or names the nearest model.
        """
        return best_point(self.record, metric, under=under, over=over)

    def dataframe(self, what: str = "trials") -> pd.DataFrame:
        """Return a table of the study as a pandas DataFrame. Each parameter has its own column (`params.width`).

        Args:
            what: "trials" has the columns of `automl trials --format csv`, "epochs" one row for each trial and epoch,
                "charges" the ledger.

        Raises:
            DataFrameError: There is no such table, or pandas is not installed.
        """
        return dataframe(self.record, what)

    @property
    def recommendation(self) -> Recommendation | None:
        """Return the recommended model and its neighbours on the Pareto front; None if no model is saved."""
        return recommended(self.record)

    @property
    def figures(self) -> Mapping[str, go.Figure]:
        """Return the report's figures by name, such as `study.figures["trade_off"]`."""
        return Gallery(self.record)

    @property
    def report(self) -> Path:
        """Return the path of the study's HTML report, which `launch`, `search` and `automl report` write."""
        return report_path(self.record, Path(self._store.require(self._name).base_folder))

    def __repr__(self) -> str:
        return f"<study {self._name}: {self.record.state}, {len(self.trials)} trials>"

    def __str__(self) -> str:
        """Return the summary that `automl launch` prints at its end."""
        return "\n".join([repr(self)[1:-1], *(recommendation_lines(self.record) or [study_sentence(self.record)])])

    def _repr_html_(self) -> str:
        return study_cell(self.record, report_link(self.report, Path.cwd()) if self.report.exists() else None)

    def checkpoint(self, trial: int, epoch: int | None = None) -> str:
        """Return the path or URL of the checkpoint file that holds a trial's model.

        Args:
            epoch: Epoch whose model is saved, from 1. None takes the last such epoch.

        Raises:
            StoreError: No such model is saved. The message lists the saved models.
        """
        return kept_checkpoint(self.record, trial, epoch)

    def load_model(self, trial: int, epoch: int | None = None) -> nn.Module:
        """Return the trained model of a trial, in evaluation mode. Arguments and errors: see `checkpoint`."""
        from trainers.checkpoints.checkpoint import load_model  # loads torch, which only models need

        path, row = self.checkpoint(trial, epoch), self._store.require(self._name)
        return load_model(path, str(row.spec["task"]), (str(row.base_folder),))

    def load_state(self, trial: int, epoch: int | None = None) -> dict[str, Any]:
        """Return the state dicts and values that a training function passed to `trial.epochs`, by name.

        Arguments and errors: see `checkpoint`. Raises StoreError too if the study trains a task: use `load_model`.
        """
        from trainers.checkpoints.checkpoint import read_checkpoint

        state = read_checkpoint(self.checkpoint(trial, epoch)).get("function")
        if state is None:
            task = self.record.spec["task"]
            raise StoreError(f"load_state() needs a training function, but {task!r} is a task. Use load_model()")
        return dict(state)


def launch(spec: str | Path | StudySpec | Mapping[str, Any], overrides: Sequence[str] = ()) -> Study:
    """Run a study to its end, or continue the study of an equal spec.

    Args:
        spec: YAML file, a mapping of the same form, which may contain typed objects, or a parsed spec.
        overrides: Strings `path=value`, as for `--set`.

    Raises:
        SpecError: The spec or an override is wrong, or the study exists with another spec.
        StoreError: The store cannot be opened.
    """
    hide_widget_advice()
    if isinstance(spec, str | Path):
        parsed, source, folder = read_spec(spec, overrides), str(spec), Path(spec).absolute().parent
    else:
        parsed, source, folder = parse_with_overrides(spec, overrides), "spec", Path.cwd()
    return _launched(prepare(with_options_of_new_studies(parsed), source=source, base_folder=folder))


def search(
    train: Callable[..., object],
    *,
    budget: BudgetSpec | Mapping[str, Any] | None = None,
    space: Space | Mapping[str, Any] | None = None,
    study: str | None = None,
    **sections: Any,
) -> Study:
    """Search the hyperparameters of a training function until the budget is spent, or continue an earlier search.

    A function from a notebook or the running script is saved with everything that it refers to, in `automl_functions/`.

    Args:
        train: Training function (docs/training-function.md), Optuna objective, or trainable of Ray Tune. Partials,
            bound methods and objects with `__call__` are functions, too.
        budget: `automl.Budget(usd=1.0)`, or a mapping like the spec's section `budget`. Without a budget, the default
            budget applies and is printed.
        space: `Space`, Ray Tune's `param_space`, or a mapping of names to parameters (`automl.Float(1e-4, 0.5)`, or
            their form in a spec). Not needed for a function that has a space (`space` beside it, or its attribute), nor
            for an Optuna objective: literal `suggest_...` calls are read from its source, other parameters are learned
            as trials run.
        study: Name; by default the function's name.
        sections: Other sections of the spec by name, such as `objectives`, `training` and `resources`, as typed objects
            (`automl.Objective("val_error")`) or in their form in a spec.

    Raises:
        SpecError: The function or a section is wrong, or the study exists with another spec.
        StoreError: The store cannot be opened.
    """
    folder = Path.cwd()
    hide_widget_advice()
    train = plain_function(own_trainable(train))
    name = study or getattr(train, "__name__", "study").strip("_<>").replace("_", "-")
    given = {"hours": HOURS, "usd": USD, "trials": None} if budget is None else budget
    constants: Mapping[str, Any] = {}
    is_trainable = is_tune_trainable(train) or (
        is_param_space(space) and not is_training_function(train) and not is_optuna_objective(train)
    )
    if is_trainable and isinstance(space, Mapping):
        try:
            space, constants = parameters_and_constants(space)
        except SpaceError as error:
            raise SpecError(_SEARCH, ("space",), str(error)) from None
    form = {**sections, "study": name, "task": _UNSAVED, "space": space, "budget": given}
    spec = parse_with_overrides(form, source=_SEARCH)
    if is_trainable:
        if "world_size" in constants or (spec.space is not None and "world_size" in spec.space):
            problem = "a trainable of Ray Tune trains on one rank. Remove world_size from the space"
            raise SpecError(_SEARCH, ("space", "world_size"), problem)
        train = function_of_trainable(train, constants, spec)
    reported = () if is_trainable else reported_by(train)
    facts = TaskFacts(parameters=None, metrics=None, space=None, reported=reported)
    if is_optuna_objective(train):
        spec = with_space_of(train, spec, _SEARCH)
        train = training_function_of(train, spec)
    if spec.space is None and is_training_function(train):
        spec = spec.model_copy(update={"space": _space_of(train)})
    check_against_task(spec, None, None, Space({}), _SEARCH)  # before anything is written
    task, root = name_of(train, folder, name)
    # The function is loaded here already. Trying it out in another process would import torch again.
    prepared = prepare(spec.model_copy(update={"task": task}), source=_SEARCH, base_folder=root, facts=facts)
    notes = [] if budget is not None else [f"automl.search got no budget. Default {budget_note(spec)}"]
    return _launched(prepared, notes)


def _space_of(train: Callable[..., object]) -> Space | None:
    try:
        return space_of_function(train, sys.modules.get(train.__module__))
    except TaskError as error:
        raise SpecError(_SEARCH, (), str(error)) from None


def _launched(prepared: Prepared, notes: Sequence[str] = ()) -> Study:
    with watching(prepared.spec.study) as watcher:
        for warning in (*notes, *prepared.warnings):
            watcher.warn(warning)
        outcome, store = launch_prepared(prepared, watcher)
    return Study(store, outcome.record.name)


def load(name: str, store: str | None = None) -> Study:
    """Read a study from a store.

    Args:
        store: URL of the store. None takes the environment's AUTOML_STORE, or sqlite:///automl.db.

    Raises:
        StoreError: There is no such store or study.
    """
    return Study(open_store(store), name)
