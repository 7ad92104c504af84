"""Break-even pruning: a trial goes on while no other configuration gives more hypervolume for a dollar.

One index, the break-even price (`search.model.search_model`), serves the trial at its rung, those that wait and the
configuration that would be started next. The largest goes on; nothing is stopped, since what is paused may be thawed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from search_spaces.seeds import derived_uniform
from studies.records import NEXT_10_USD_PERCENT
from studies.search.acquisition.candidate_batch import CandidateBatch
from studies.search.model.gaussian_process import Array
from studies.search.model.search_model import STARTERS, SearchModel
from studies.search.model.threads import in_one_thread
from studies.search.model.trial_table import Rows
from studies.search.policy import Decision, History, Thaw
from trainers.protocol import ParameterValue

if TYPE_CHECKING:
    from studies.search.pruners.by_name import PrunerContext

COIN = 0.1
"""Share of trials that would be paused and go on all the same: they keep the forecasts honest."""
DOUBTING_COINS = (0.3, 0.5, 0.7, 0.9)
"""The same from the first rung on, while no configuration promises anything noticeable: what is still to be found
starts slowly, and the forecasts have seen too few ends to know it."""
EXACT_PAUSED, SHORTLIST, LOOKED_AT_AGAIN = 40, 60, 60
"""Paused trials whose index is worked out exactly; those that were good before and those that were not looked at for
longest are looked at roughly first. So a decision takes as long with many paused trials as with few."""
RECENT = 5
"""Suggestions whose index, when they were first looked at, says what starting something new is worth."""


@dataclass(frozen=True, slots=True)
class _Best:
    """The paused trial with the largest index; nobody at 0."""

    price: float = 0.0
    number: int | None = None


@dataclass(frozen=True, slots=True)
class _Compared:
    """The prices of what a free slot could take, and what was known when they were worked out.

    Attributes:
        history: As it was then.
        judged: The trial that was compared with them; None if a slot was free, or was expected to be.
        paused: The best one that waited.
        untried: The price of the configuration to start next.
    """

    history: History
    judged: int | None
    paused: _Best
    untried: float

    def still_holds(self, history: History) -> bool:
        """Whether there is the same to choose from, but for the trial that was judged meanwhile.

        What runs may have been measured or have ended: that moves all prices a little, and hardly their order. What
        fails moves those of its neighbours a lot.
        """
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


class BreakEven:
    """Decides by the break-even price.

    Args:
        model: Learns and prices; used by this object alone.
        seed: Of the study.
        refits: Whether it fits hyperparameters itself; a sampler that shares them does it ahead of time.
    """

    def __init__(self, model: SearchModel, *, seed: int, refits: bool = True) -> None:
        self._model, self._seed, self._refits = model, seed, refits
        self._untried = 0.0
        self._suggested: Mapping[str, ParameterValue] | None = None
        self._recent: list[float] = []
        self._rough: Array = np.zeros(0)
        self._looked_at: Rows = np.zeros(0, dtype=np.intp)
        self._calls = 0
        self._compared: _Compared | None = None

    @classmethod
    def for_study(cls, context: PrunerContext) -> BreakEven:
        """Returns the pruner of a study; it shares the model with the sampler `cokriging`."""
        return cls(context.model(), seed=context.seed, refits=not context.sampler_fits)

    def rungs(self, epochs: int) -> tuple[int, ...]:  # noqa: ARG002 - the model knows them
        """Where the model's forecasts begin and end, but for the last epoch."""
        return self._model.rungs[:-1]

    @in_one_thread
    def decide(self, history: History, number: int, rung: int) -> Decision:
        """Continue iff the trial's own index is at least that of all others, or by a coin."""
        measured = self._measured(history)
        if measured < STARTERS:
            numbers = {"trials_at_first_rung": measured}
            if self._waits_in_vain(history):
                reason = f"goes on: {measured} trials have been measured, and no more will be started"
                return Decision(action="continue", reason=reason, numbers=numbers)
            return Decision(action="pause", reason="waits until enough trials can be compared", numbers=numbers)
        own, paused, untried = self._prices(history, number)
        is_doubted = history.fresh_allowed and self._model.is_doubtful(max(own, paused.price, untried))
        return self._decision(rung, own, paused, untried, self._coin(number, rung, is_doubted=is_doubted))

    @in_one_thread
    def thaw(self, history: History) -> Thaw | None:
        """The best of the paused trials, if its index is larger than that of the configuration to start next."""
        if not history.paused:
            return None
        if self._measured(history) < STARTERS:
            return _thawed_alone(min(history.paused)) if self._waits_in_vain(history) else None
        paused, untried = self._others(history)
        if paused.number is None:
            return None
        is_worth_it = paused.price > untried if history.fresh_allowed else self._model.is_worthwhile(paused.price)
        if not is_worth_it:
            return None
        reason = f"thawed: {_per_dollar(paused.price)}, the next untried configuration {_per_dollar(untried)}"
        numbers = self._numbers(paused.price, paused, untried)
        return Thaw(number=paused.number, decision=Decision(action="continue", reason=reason, numbers=numbers))

    @in_one_thread
    def prepare(self, history: History) -> None:
        """Price what waits, paused or untried."""
        if self._measured(history) >= STARTERS:
            self._others(history)

    @in_one_thread
    def worth_least(self, history: History) -> int | None:
        """The paused trial whose checkpoint should go first when there is no room for all."""
        self._learn(history, without=None)
        waiting = self._waiting()
        prices = self._indices(waiting, self._paused(waiting), with_nodes=False)
        return self._number(waiting[np.argmin(prices)]) if len(waiting) else None

    # ------------------------------------------------------------------ inside

    def _measured(self, history: History) -> int:
        return len(history.at_rung.get(self._model.rungs[0], {}))

    def _waits_in_vain(self, history: History) -> bool:
        """Whether there will never be enough trials that can be compared."""
        first = self._model.rungs[0]
        coming = sum(trial.state == "running" and first not in trial.at for trial in history.trials)
        return not history.fresh_allowed and self._measured(history) + coming < STARTERS

    def _coin(self, number: int, rung: int, *, is_doubted: bool) -> bool:
        place = min(self._model.rungs.index(rung), len(DOUBTING_COINS) - 1)
        # By the trial and its rung alone: a resumed study, or one whose events came in another order, decides alike.
        return derived_uniform(self._seed, number, rung) < (DOUBTING_COINS[place] if is_doubted else COIN)

    def _prices(self, history: History, number: int | None) -> tuple[float, _Best, float]:
        """The index of a trial at its rung (0 without one), of the best paused one, and of the next untried one."""
        self._learn(history, without=number)
        prices = self._looked_up(history, number)
        if self._model.widened(max(prices[0], prices[1].price, prices[2])):
            prices = self._looked_up(history, number)
        own, paused, untried = prices
        untried = max(untried, self._usual_price(history.upcoming, untried)) if history.fresh_allowed else 0.0
        self._compared = _Compared(replace(history, trials=tuple(history.trials)), number, paused, untried)
        return own, paused, untried

    def _others(self, history: History) -> tuple[_Best, float]:
        """The best paused trial, and the price of the untried one.

        A slot that is free since a trial was told to wait takes what that one was compared with: it was worth less than
        they, and is worth no more now that going on would cost a start. So does one whose trial has ended.
        """
        if self._compared is not None and self._compared.still_holds(history):
            return self._compared.paused, self._compared.untried
        _, paused, untried = self._prices(history, None)
        return paused, untried

    def _learn(self, history: History, *, without: int | None) -> None:
        self._model.learn(history.trials, refit=self._refits)
        self._model.expect_running(without=without)

    def _usual_price(self, upcoming: Mapping[str, ParameterValue] | None, price: float) -> float:
        """What recent suggestions were worth when they came; `price` is that of the one that waits, if one does.

        The one that waits may be worth little: drawn at random, or suggested a while ago. Were it priced alone, it
        would wait for ever, and so would the better ones that are suggested once it has been started.
        """
        if upcoming is not None and upcoming != self._suggested:
            self._suggested = dict(upcoming)
            self._recent = [*self._recent, price][-RECENT:]
        return median(self._recent) if self._recent else 0.0

    def _looked_up(self, history: History, number: int | None) -> tuple[float, _Best, float]:
        own = 0.0 if number is None else self._price_of_running(self._model.table.row_of(number))
        return own, self._best_paused(), self._price_of_untried(history.upcoming)

    def _price_of_running(self, row: int) -> float:
        some = self._model.started(np.array([row]), is_running=True)
        return float(self._model.break_even_prices(some, with_nodes=True)[0])

    def _price_of_untried(self, upcoming: Mapping[str, ParameterValue] | None) -> float:
        """Of the configuration that would be started next; while it is being looked for, that of the one before."""
        if upcoming is not None:
            some = self._model.untried(self._model.describe([upcoming]))
            self._untried = float(self._model.break_even_prices(some, with_nodes=True)[0])
        return self._untried

    def _waiting(self) -> Rows:
        """Paused trials that can be priced."""
        table = self._model.table
        return np.flatnonzero(table.are("paused") & (table.places >= 0))

    def _best_paused(self) -> _Best:
        waiting = self._waiting()
        if not len(waiting):
            return _Best()
        looked_at = self._to_look_at(waiting)
        groups = self._paused(looked_at)
        rough = self._indices(looked_at, groups, with_nodes=False)
        self._rough[looked_at], self._looked_at[looked_at] = rough, self._calls
        chosen = np.sort(looked_at[np.argsort(-rough, kind="stable")[:EXACT_PAUSED]])
        some = [
            (rows[kept], group.rows(np.flatnonzero(kept)))
            for rows, group in groups
            if (kept := np.isin(rows, chosen)).any()
        ]
        exact = self._indices(chosen, some, with_nodes=True)
        best = int(np.argmax(exact))
        return _Best(float(exact[best]), self._number(chosen[best]))

    def _to_look_at(self, waiting: Rows) -> Rows:
        """Those that were worth most when they were last looked at, and those for which that is longest ago."""
        rows = len(self._model.table)
        if (more := rows - len(self._rough)) > 0:
            self._rough = np.append(self._rough, np.full(more, np.inf))
            self._looked_at = np.append(self._looked_at, np.zeros(more, dtype=np.intp))
        self._calls += 1
        if len(waiting) <= SHORTLIST + LOOKED_AT_AGAIN:
            return waiting
        ranked = waiting[np.argsort(-self._rough[waiting], kind="stable")]
        others = ranked[SHORTLIST:]
        again = others[np.argsort(self._looked_at[others], kind="stable")[:LOOKED_AT_AGAIN]]
        return np.sort(np.concatenate([ranked[:SHORTLIST], again]))

    def _paused(self, rows: Rows) -> list[tuple[Rows, CandidateBatch]]:
        """Paused trials by the rung at which they wait."""
        by_place = self._model.table.by_place(rows)
        return [(group, self._model.started(group, is_running=False)) for _, group in by_place]

    def _indices(self, rows: Rows, groups: Sequence[tuple[Rows, CandidateBatch]], *, with_nodes: bool) -> Array:
        """The index of the trials of all groups, in the order of `rows`."""
        prices = np.zeros(len(rows))
        for group, cohort in groups:
            prices[np.isin(rows, group)] = self._model.break_even_prices(cohort, with_nodes=with_nodes)
        return prices

    def _number(self, row: int | np.intp) -> int:
        return self._model.table.trials[int(row)].number

    def _decision(self, rung: int, own: float, paused: _Best, untried: float, coin: bool) -> Decision:
        numbers = self._numbers(own, paused, untried)
        others = f"the best paused trial {_per_dollar(paused.price)}, an untried one {_per_dollar(untried)}"
        if own >= max(paused.price, untried):
            reason = f"worth most at rung {rung}: {_per_dollar(own)}; {others}"
            return Decision(action="continue", reason=reason, numbers=numbers)
        if coin:
            reason = f"goes on by chance at rung {rung}, to keep forecasts honest: {_per_dollar(own)}; {others}"
            return Decision(action="continue", reason=reason, numbers=numbers)
        reason = f"waits at rung {rung}: {_per_dollar(own)}; {others}"
        return Decision(action="pause", reason=reason, numbers=numbers)

    def _numbers(self, own: float, paused: _Best, untried: float) -> dict[str, float | int | str | None]:
        volume = self._model.hypervolume()
        best = max(own, paused.price, untried)
        return {
            "own_price": own,
            "best_paused_price": paused.price,
            "best_paused_trial": paused.number,
            "best_untried_price": untried,
            NEXT_10_USD_PERCENT: 1000.0 * best / volume if volume > 0 else None,
        }


def _thawed_alone(number: int) -> Thaw:
    reason = "thawed: no more trials will be started that it could be compared with"
    return Thaw(number=number, decision=Decision(action="continue", reason=reason))


def _per_dollar(price: float) -> str:
    return f"{price:.3g} hypervolume per dollar"
