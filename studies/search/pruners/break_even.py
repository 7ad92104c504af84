"""Break-even pruning: a trial continues while no other configuration promises more hypervolume per dollar.

The trial at its rung, the paused trials and the next configuration compete for the slot by their index
(`acquisition.break_even`). Trials are paused instead of stopped, so that they can resume.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from search_spaces.drawing import derived_uniform
from studies.records.records import NEXT_10_USD_PERCENT, Action, Forecasts
from studies.search.acquisition.acquisition import INITIAL_TRIALS, Acquisition, BatchValues, build_acquisition
from studies.search.arrays import Array, Rows, in_one_thread
from studies.search.model.batch_forecast import BatchForecast, told_forecast
from studies.search.model.candidate_batch import CandidateBatch
from studies.search.model.curve_model import CurveModel
from studies.search.policy import Decision, History, PrunerContext, Thaw
from trainers.protocol import ParameterValue

RANDOM_CONTINUATION = 0.1
"""Share of trials that continue at random instead of pausing, so that forecasts do not learn only from trials expected
to be good."""
STAGNATION_CONTINUATION = (0.3, 0.5, 0.7, 0.9)
"""`RANDOM_CONTINUATION` by rung while the search stagnates: better configurations may start slowly, which forecasts
from few full trainings cannot predict."""
EXACT_PAUSED = 40
"""Number of paused trials whose index is computed exactly."""
SHORTLIST, REVISITED = 60, 60
"""Numbers of paused trials with the largest and with the oldest approximate index, which are approximated again. The
time of a decision is thus limited."""
RECENT = 5
"""Number of recent suggestions whose median index is the value of a new trial."""


@dataclass(frozen=True, slots=True)
class _Best:
    index: float = 0.0
    number: int | None = None


@dataclass(frozen=True, slots=True)
class _Values:
    acquisition: Acquisition
    own: float
    paused: _Best
    untried: float
    forecast: BatchForecast | None = None

    @property
    def largest(self) -> float:
        return max(self.own, self.paused.index, self.untried)


@dataclass(frozen=True, slots=True)
class _Compared:
    """Indices of possible uses of a free slot, with the history from which they were computed."""

    history: History
    judged: int | None
    paused: _Best
    untried: float

    def still_holds(self, history: History) -> bool:
        """Return whether the indices are still valid: new results hardly change them, new failures do."""
        before = self.history
        return (
            len(history.trials) == len(before.trials)
            and history.upcoming == before.upcoming
            and history.fresh_allowed == before.fresh_allowed
            and all(
                now is then
                or (now.state != "failed" and (now.number == self.judged or "paused" not in {now.state, then.state}))
                for now, then in zip(history.trials, before.trials, strict=True)
            )
        )


class _RoughIndices:
    """Approximate indices, which choose the paused trials whose index is computed exactly."""

    def __init__(self) -> None:
        self._indices: Array = np.zeros(0)
        self._updated_at: Rows = np.zeros(0, dtype=np.intp)
        self._calls = 0

    def chosen(self, waiting: Rows, trials: int) -> Rows:
        if (more := trials - len(self._indices)) > 0:
            self._indices = np.append(self._indices, np.full(more, np.inf))
            self._updated_at = np.append(self._updated_at, np.zeros(more, dtype=np.intp))
        self._calls += 1
        if len(waiting) <= SHORTLIST + REVISITED:
            return waiting
        ranked = waiting[np.argsort(-self._indices[waiting], kind="stable")]
        others = ranked[SHORTLIST:]
        oldest = others[np.argsort(self._updated_at[others], kind="stable")[:REVISITED]]
        return np.sort(np.concatenate([ranked[:SHORTLIST], oldest]))

    def update(self, rows: Rows, indices: Array) -> None:
        self._indices[rows], self._updated_at[rows] = indices, self._calls


class BreakEven:
    """The break-even pruner; `refits` is False if a sampler fits the shared hyperparameters."""

    def __init__(self, model: CurveModel, *, seed: int, refits: bool = True) -> None:
        self._model, self._seed, self._refits = model, seed, refits
        self._acquisition: Acquisition | None = None
        self._untried = 0.0
        self._suggested: Mapping[str, ParameterValue] | None = None
        self._recent: list[float] = []
        self._rough = _RoughIndices()
        self._compared: _Compared | None = None

    @classmethod
    def for_study(cls, context: PrunerContext) -> "BreakEven":
        """Build a study's pruner, which shares fitted hyperparameters with the sampler `cokriging`."""
        return cls(context.model(), seed=context.seed, refits=not context.sampler_fits)

    def rungs(self, epochs: int) -> tuple[int, ...]:  # noqa: ARG002 - the model knows them
        """Return all epochs of forecasts except the last."""
        return self._model.all_rungs[:-1]

    @in_one_thread
    def decide(self, history: History, number: int, rung: int) -> Decision:
        """Continue if the trial's index is the largest, or by chance; otherwise pause.

        A trial that cannot resume is stopped instead, and continues until enough trials can be compared.
        """
        made = self._decided(history, number, rung)
        if made.action != "pause" or not history.trials[number].keeps_nothing:
            return made
        action: Action = "continue" if "trials_at_first_rung" in made.numbers else "stop"
        return replace(made, action=action, reason=f"saves nothing to resume from, so no pause; {made.reason}")

    def _decided(self, history: History, number: int, rung: int) -> Decision:
        measured = self._measured(history)
        if rung not in self._model.rungs:
            return Decision(action="continue", reason=f"continues: epoch {rung} is too early to compare trials")
        if measured < INITIAL_TRIALS:
            numbers = {"trials_at_first_rung": measured}
            if self._waits_in_vain(history):
                reason = f"continues: only {measured} trials have been measured, and no more will be started"
                return Decision(action="continue", reason=reason, numbers=numbers)
            return Decision(action="pause", reason="waits until enough trials can be compared", numbers=numbers)
        values = self._values(history, number)
        is_stagnating = history.fresh_allowed and values.acquisition.is_stagnating(values.largest)
        is_random_continuation = self._is_random_continuation(number, rung, is_stagnating=is_stagnating)
        made = _decision(rung, values, is_random_continuation=is_random_continuation)
        return replace(made, forecasts=self._told(values.forecast))

    @in_one_thread
    def thaw(self, history: History) -> Thaw | None:
        """Return the best paused trial if its index is larger than the next configuration's."""
        if not history.paused:
            return None
        if self._measured(history) < INITIAL_TRIALS:
            return _thawed_alone(min(history.paused)) if self._waits_in_vain(history) else None
        acquisition, paused, untried = self._others(history)
        if paused.number is None:
            return None
        is_worth_it = paused.index > untried if history.fresh_allowed else acquisition.is_worthwhile(paused.index)
        if not is_worth_it:
            return None
        reason = f"thawed: {_per_dollar(paused.index)}, the next untried configuration {_per_dollar(untried)}"
        made = Decision(
            action="continue",
            reason=reason,
            numbers=_numbers(_Values(acquisition, paused.index, paused, untried)),
            forecasts=self._told(self._forecast_of(paused.number, is_running=False)),
        )
        return Thaw(number=paused.number, decision=made)

    @in_one_thread
    def prepare(self, history: History) -> None:
        """Compute the indices for the next free slot in advance."""
        if self._measured(history) >= INITIAL_TRIALS:
            self._others(history)

    @in_one_thread
    def worth_least(self, history: History) -> int | None:
        """Return the paused trial with the smallest index, whose checkpoint may be deleted first."""
        acquisition = self._build(history, without=None)
        # Trials paused by a fault or a lost node are left out: they continue first, at any value.
        waiting = np.array([row for row in self._waiting() if self._number(row) in history.paused], dtype=int)
        batches = self._paused(waiting)
        found = acquisition.where_it_tells(
            lambda one: BatchValues(one, self._indices(one, waiting, batches, exact=False))
        )
        return self._number(waiting[np.argmin(found.values)]) if len(waiting) else None

    def _measured(self, history: History) -> int:
        self._model.settle_rungs(history.trials)
        return len(history.at_rung.get(self._model.rungs[0], {}))

    def _waits_in_vain(self, history: History) -> bool:
        first = self._model.rungs[0]
        coming = sum(trial.state == "running" and first not in trial.at for trial in history.trials)
        return not history.fresh_allowed and self._measured(history) + coming < INITIAL_TRIALS

    def _is_random_continuation(self, number: int, rung: int, *, is_stagnating: bool) -> bool:
        at_rung = min(self._model.rungs.index(rung), len(STAGNATION_CONTINUATION) - 1)
        # Depends only on the trial and its rung, so that a resumed study decides the same.
        share = STAGNATION_CONTINUATION[at_rung] if is_stagnating else RANDOM_CONTINUATION
        return derived_uniform(self._seed, number, rung) < share

    def _build(self, history: History, *, without: int | None) -> Acquisition:
        self._acquisition = build_acquisition(self._model, history.trials, refit=self._refits, without=without)
        return self._acquisition

    def _values(self, history: History, number: int | None) -> _Values:
        """Return the indices of this trial, the best paused trial and the next configuration."""
        built = self._build(history, without=number)
        values = built.where_it_tells(lambda one: self._valued(one, history, number))
        self._acquisition = values.acquisition
        usual = self._usual_index(history.upcoming, values.untried)
        untried = max(values.untried, usual) if history.fresh_allowed else 0.0
        self._compared = _Compared(replace(history, trials=tuple(history.trials)), number, values.paused, untried)
        return replace(values, untried=untried)

    def _others(self, history: History) -> tuple[Acquisition, _Best, float]:
        """Return the acquisition function, the best paused trial and the next configuration's index."""
        if self._acquisition is None or self._compared is None or not self._compared.still_holds(history):
            values = self._values(history, None)
            return values.acquisition, values.paused, values.untried
        return self._acquisition, self._compared.paused, self._compared.untried

    def _usual_index(self, upcoming: Mapping[str, ParameterValue] | None, index: float) -> float:
        """Return the median index (gain per dollar) of recent suggestions: one poor suggestion stops no trial."""
        if upcoming is not None and upcoming != self._suggested:
            self._suggested = dict(upcoming)
            self._recent = [*self._recent, index][-RECENT:]
        return median(self._recent) if self._recent else 0.0

    def _valued(self, acquisition: Acquisition, history: History, number: int | None) -> _Values:
        forecast = None if number is None else self._forecast_of(number, is_running=True)
        own = 0.0 if forecast is None else float(acquisition.index(forecast, exact=True)[0])
        best = self._best_paused(acquisition)
        return _Values(acquisition, own, best, self._index_of_untried(acquisition, history.upcoming), forecast)

    def _forecast_of(self, number: int, *, is_running: bool) -> BatchForecast:
        row = self._model.table.row_of(number)
        return self._model.forecast(self._model.started(np.array([row]), is_running=is_running))

    def _told(self, forecast: BatchForecast | None) -> Forecasts:
        return {} if forecast is None else told_forecast(self._model.problem.objectives, forecast)

    def _index_of_untried(self, acquisition: Acquisition, upcoming: Mapping[str, ParameterValue] | None) -> float:
        """Return the index of the next configuration; of the previous configuration while the next is computed."""
        if upcoming is not None:
            forecast = self._model.forecast(self._model.untried(self._model.features([upcoming])))
            self._untried = float(acquisition.index(forecast, exact=True)[0])
        return self._untried

    def _waiting(self) -> Rows:
        table = self._model.table
        return np.flatnonzero(table.are("paused") & (table.last_rungs >= 0))

    def _best_paused(self, acquisition: Acquisition) -> _Best:
        waiting = self._waiting()
        if not len(waiting):
            return _Best()
        screened = self._rough.chosen(waiting, len(self._model.table))
        batches = self._paused(screened)
        rough = self._indices(acquisition, screened, batches, exact=False)
        self._rough.update(screened, rough)
        chosen = np.sort(screened[np.argsort(-rough, kind="stable")[:EXACT_PAUSED]])
        some = [
            (rows[kept], batch.rows(np.flatnonzero(kept)))
            for rows, batch in batches
            if (kept := np.isin(rows, chosen)).any()
        ]
        exact = self._indices(acquisition, chosen, some, exact=True)
        best = int(np.argmax(exact))
        return _Best(float(exact[best]), self._number(chosen[best]))

    def _paused(self, rows: Rows) -> list[tuple[Rows, CandidateBatch]]:
        by_rung = self._model.table.by_rung(rows)
        return [(group, self._model.started(group, is_running=False)) for _, group in by_rung]

    def _indices(
        self, acquisition: Acquisition, rows: Rows, batches: Sequence[tuple[Rows, CandidateBatch]], *, exact: bool
    ) -> Array:
        indices = np.zeros(len(rows))
        for group, batch in batches:
            indices[np.isin(rows, group)] = acquisition.index(self._model.forecast(batch), exact=exact)
        return indices

    def _number(self, row: int | np.intp) -> int:
        return self._model.table.trials[int(row)].number


def _decision(rung: int, values: _Values, *, is_random_continuation: bool) -> Decision:
    numbers, own = _numbers(values), _per_dollar(values.own)
    others = f"the best paused trial {_per_dollar(values.paused.index)}, an untried one {_per_dollar(values.untried)}"
    if values.own >= max(values.paused.index, values.untried):
        reason = f"worth most at rung {rung}: {own}; {others}"
        return Decision(action="continue", reason=reason, numbers=numbers)
    if is_random_continuation:
        reason = f"random continuation at rung {rung}, which keeps forecasts unbiased: {own}; {others}"
        return Decision(action="continue", reason=reason, numbers=numbers)
    return Decision(action="pause", reason=f"waits at rung {rung}: {own}; {others}", numbers=numbers)


def _numbers(values: _Values) -> dict[str, float | int | str | None]:
    volume = values.acquisition.hypervolume
    return {
        "own_price": values.own,
        "best_paused_price": values.paused.index,
        "best_paused_trial": values.paused.number,
        "best_untried_price": values.untried,
        NEXT_10_USD_PERCENT: 1000.0 * values.largest / volume if volume > 0 else None,
    }


def _thawed_alone(number: int) -> Thaw:
    reason = "thawed: no more trials will be started that it could be compared with"
    return Thaw(number=number, decision=Decision(action="continue", reason=reason))


def _per_dollar(index: float) -> str:
    return f"{index:.3g} hypervolume per dollar"
