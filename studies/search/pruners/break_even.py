"""Break-even pruning: a trial goes on while no other configuration gives more hypervolume for a dollar.

One index, the break-even price (`studies.search.search_model`), serves the trial at its rung, those that wait and the
configuration that would be started next. The largest goes on; nothing is stopped, since what is paused may be thawed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from studies import pareto
from studies.search.policy import Decision, History, Thaw
from studies.search.search_model import SearchModel
from studies.search.seen import Seen
from studies.search.threads import in_one_thread
from trainers.protocol import ParameterValue

STARTERS = 4
"""Trials that go on unasked until as many have been measured at the first rung."""
COIN = 0.1
"""Share of trials that would be paused and go on all the same: they keep the forecasts honest."""
EXACT_PAUSED, SHORTLIST, FULL_PASS_EVERY = 40, 120, 4
RECENT = 5
"""Suggestions whose index, when they were first looked at, says what starting something new is worth."""
VANISHING = 1e-12
WORTHWHILE = 0.02
"""Share of the hypervolume that doubling the money has to buy for a study to go on once no fresh trial is allowed."""


@dataclass(frozen=True, slots=True)
class _Best:
    """The paused trial with the largest index; nobody at 0."""

    price: float = 0.0
    number: int | None = None


class BreakEven:
    """Decides by the break-even price.

    Args:
        model: Learns and prices; used by this object alone.
        slots: Of the pool.
        seed: Of the study.
        refits: Whether it fits hyperparameters itself; a sampler that shares them does it ahead of time.
    """

    def __init__(self, model: SearchModel, *, slots: int, seed: int, refits: bool = True) -> None:
        self._model, self._slots, self._seed, self._refits = model, slots, seed, refits
        self._untried = 0.0
        self._suggested: Mapping[str, ParameterValue] | None = None
        self._recent: list[float] = []
        self._rough: dict[int, float] = {}
        self._calls = 0

    def rungs(self, epochs: int) -> tuple[int, ...]:  # noqa: ARG002 - the model knows them
        """Where the model's forecasts begin and end, but for the last epoch."""
        return self._model.rungs[:-1]

    @in_one_thread
    def decide(self, history: History, number: int, rung: int) -> Decision:
        """Continue iff the trial's own index is at least that of all others, or by a coin."""
        trial = next(one for one in history.trials if one.number == number)
        measured = self._measured(history)
        if measured < STARTERS:
            numbers = {"trials_at_first_rung": measured}
            if self._slots <= STARTERS:
                reason = f"goes on unasked: {measured} of the first {STARTERS} trials have been measured"
                return Decision(action="continue", reason=reason, numbers=numbers)
            return Decision(action="pause", reason="waits until enough trials can be compared", numbers=numbers)
        prices = self._prices(history, trial)
        return self._decision(rung, *prices, self._coin(number, rung))

    @in_one_thread
    def thaw(self, history: History) -> Thaw | None:
        """The best of the paused trials, if its index is larger than that of the configuration to start next."""
        if not history.paused or self._measured(history) < STARTERS:
            return None
        _, paused, untried = self._prices(history, None)
        if paused.number is None:
            return None
        is_worth_it = paused.price > untried if history.fresh_allowed else self._is_worthwhile(paused.price)
        if not is_worth_it:
            return None
        reason = f"thawed: {_per_dollar(paused.price)}, the next untried configuration {_per_dollar(untried)}"
        numbers = self._numbers(paused.price, paused, untried)
        return Thaw(number=paused.number, decision=Decision(action="continue", reason=reason, numbers=numbers))

    @in_one_thread
    def worth_least(self, history: History) -> int | None:
        """The paused trial whose checkpoint should go first when there is no room for all."""
        self._learn(history, without=None)
        waiting = [trial for trial in history.trials if trial.state == "paused" and self._model.rung_of(trial) >= 0]
        prices = self._indices(waiting, with_nodes=False)
        return min(prices, key=lambda number: (prices[number], -number), default=None)

    def _is_worthwhile(self, price: float) -> bool:
        """Whether as much money again as was spent would buy a noticeable part of the hypervolume at this price."""
        spent_usd = sum(trial.paid_usd for trial in self._model.trials)
        return price * spent_usd >= WORTHWHILE * self._hypervolume()

    def _hypervolume(self) -> float:
        model = self._model
        return pareto.hypervolume([tuple(p) for p in model.archive.tolist()], model.reference.tolist())

    # ------------------------------------------------------------------ inside

    def _measured(self, history: History) -> int:
        return len(history.at_rung.get(self._model.rungs[0], {}))

    def _coin(self, number: int, rung: int) -> bool:
        # By the trial and its rung alone: a resumed study, or one whose events came in another order, decides alike.
        return random.Random(f"{self._seed} {number} {rung}").random() < COIN

    def _prices(self, history: History, trial: Seen | None) -> tuple[float, _Best, float]:
        """The index of a trial at its rung (0 without one), of the best paused one, and of the next untried one."""
        self._learn(history, without=None if trial is None else trial.number)
        prices = self._looked_up(history, trial)
        if max(prices[0], prices[1].price, prices[2]) <= VANISHING:
            self._model.widen()
            prices = self._looked_up(history, trial)
        own, paused, untried = prices
        untried = max(untried, self._usual_price(history.upcoming, untried)) if history.fresh_allowed else 0.0
        return own, paused, untried

    def _usual_price(self, upcoming: Mapping[str, ParameterValue] | None, price: float) -> float:
        """What recent suggestions were worth when they came; `price` is that of the one that waits, if one does.

        The one that waits may be worth little: drawn at random, or suggested a while ago. Were it priced alone, it
        would wait for ever, and so would the better ones that are suggested once it has been started.
        """
        if upcoming is not None and upcoming != self._suggested:
            self._suggested = dict(upcoming)
            self._recent = [*self._recent, price][-RECENT:]
        return median(self._recent) if self._recent else 0.0

    def _looked_up(self, history: History, trial: Seen | None) -> tuple[float, _Best, float]:
        own = 0.0 if trial is None else self._price_of_running(trial, self._model.rung_of(trial))
        return own, self._best_paused(history.trials), self._price_of_untried(history.upcoming)

    def _learn(self, history: History, *, without: int | None) -> None:
        model = self._model
        model.learn(history.trials, refit=self._refits)
        model.expect(expected_points(model, history.trials, without=without))

    def _price_of_running(self, trial: Seen, place: int) -> float:
        some = self._model.started([trial], place, is_running=True)
        return float(self._model.break_even_prices(some, with_nodes=True)[0])

    def _price_of_untried(self, upcoming: Mapping[str, ParameterValue] | None) -> float:
        """Of the configuration that would be started next; while it is being looked for, that of the one before."""
        if upcoming is not None:
            some = self._model.untried(self._model.describe([upcoming]))
            self._untried = float(self._model.break_even_prices(some, with_nodes=True)[0])
        return self._untried

    def _best_paused(self, trials: Sequence[Seen]) -> _Best:
        prices = self._prices_of_paused(trials)
        number = max(prices, key=lambda one: (prices[one], -one), default=None)
        return _Best() if number is None else _Best(prices[number], number)

    def _prices_of_paused(self, trials: Sequence[Seen]) -> dict[int, float]:
        """The index of the paused trials that may have the largest one.

        All are looked at roughly every few calls, in between those that were good then, and those that are new.
        """
        waiting = [trial for trial in trials if trial.state == "paused" and self._model.rung_of(trial) >= 0]
        if self._calls % FULL_PASS_EVERY:
            best = set(sorted(self._rough, key=self._rough.__getitem__, reverse=True)[:SHORTLIST])
            waiting = [trial for trial in waiting if trial.number in best or trial.number not in self._rough]
        self._calls += 1
        rough = self._indices(waiting, with_nodes=False)
        self._rough |= rough
        chosen = sorted(waiting, key=lambda trial: (-rough[trial.number], trial.number))[:EXACT_PAUSED]
        return self._indices(chosen, with_nodes=True)

    def _indices(self, waiting: Sequence[Seen], *, with_nodes: bool) -> dict[int, float]:
        places: dict[int, list[Seen]] = {}
        for trial in waiting:
            places.setdefault(self._model.rung_of(trial), []).append(trial)
        prices: dict[int, float] = {}
        for place, group in places.items():
            some = self._model.started(group, place, is_running=False)
            found = self._model.break_even_prices(some, with_nodes=with_nodes)
            prices |= {trial.number: float(price) for trial, price in zip(group, found, strict=True)}
        return prices

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
        volume = self._hypervolume()
        best = max(own, paused.price, untried)
        return {
            "own_price": own,
            "best_paused_price": paused.price,
            "best_paused_trial": paused.number,
            "best_untried_price": untried,
            "next_10_usd_percent": 1000.0 * best / volume if volume > 0 else None,
        }


def expected_points(
    model: SearchModel, trials: Sequence[Seen], *, without: int | None = None
) -> list[tuple[float, ...]]:
    """What the running trials are about to reach at their next rungs, so that others are not judged by the same gain.

    Args:
        model: Has learned.
        trials: All that were started.
        without: The number of a trial that stands at its rung and is judged itself.
    """
    places: dict[int, list[Seen]] = {}
    for trial in trials:
        if trial.state == "running" and trial.number != without:
            places.setdefault(model.rung_of(trial), []).append(trial)
    found: list[tuple[float, ...]] = []
    for place, running in sorted(places.items()):
        if place == len(model.rungs) - 1:
            continue
        if place < 0:
            some = model.untried(model.describe([trial.params for trial in running]))
        else:
            some = model.started(running, place, is_running=True)
        found += model.next_points(some)
    return found


def _per_dollar(price: float) -> str:
    return f"{price:.3g} hypervolume per dollar"
