"""BoTorch's MOMF, in an environment of its own: it chooses configurations and how long to train them, jointly.

Irshad, Karsch and Döpp 2021, Leveraging trust for joint multi-objective and multi-fidelity optimization, arXiv
2112.13901: the fidelity s = epoch / T is one more input of the model and one more objective; the pair (configuration,
fidelity) that is expected to gain most hypervolume per cost is evaluated next. Set up as in BoTorch's tutorial: first
random pairs that cost two full trainings together, their fidelities drawn with probability 1 / cost; then
`SingleTaskGP` with `Standardize`, fitted anew whenever there is something new. The rest is ours:

* The pool is the table, the fidelities are a few of the milestones that count for everybody; all pairs are looked at.
* A trial pauses at its fidelity. At its higher ones it is offered again for each free slot, against the configuration
  that waits; then it is thawed. That one was chosen out of the pool when the one before it started, as anybody's is;
  how long it trains is chosen when it starts.
* The cost is what is known beforehand: epochs still to train, and the start. Dollars per epoch are not known.
* Both objectives are modelled on their own scale, even sizes, which could be known; the fidelity objective is known.
* A trial is observed where it paused or ended. What it had at the fidelities that it passed made fits slower and
  choices no better, on two tasks.
* Values beyond the reference point, which is that of `gp_unpruned`, count as those on it; so does the error of trials
  that diverged.
* Running trials are pending points with the fantasy that they end as forecast.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bridge import Environment, bridge

from search_spaces.drawing import derived_seed
from studies.results.pareto import reference_point
from studies.search.observations import Observation, Snapshot, decision_rungs
from studies.search.policy import Decision, History, Thaw
from studies.search.pruners.none import NoPruner
from studies.search.samplers.suggester import Suggestion
from studies.simulation.setting import RandomCandidate, Setting

VERSION = "0.18.1"
CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"
ENVIRONMENT = Environment(
    name=f"botorch-{VERSION}",
    installs=(
        (
            *("--constraint", str(CONSTRAINTS)),  # it has the version of torch, and of what torch needs
            *("torch", f"botorch=={VERSION}", "gpytorch==1.15.2", "linear_operator==0.6.1"),
        ),
    ),
)
SCRIPT = Path(__file__).with_name("momf_bridge.py")
FIRST_FULL_TRIALS = 2.0
"""What the random pairs cost, in full trainings."""

Ask = Callable[[Mapping[str, Any]], Any]
Pair = tuple[int, int]
"""A row of the table, and an epoch."""


class BotorchMomf(NoPruner):
    """Suggests, pauses and thaws for a study of two objectives: a learned one, and a constant or dollars so far.

    Args:
        setting: The simulated study.
        ask: Answers as `momf_bridge` does.
    """

    def __init__(self, setting: Setting, ask: Ask) -> None:
        self._setting, self._candidates, self._ask = setting, setting.candidates, ask
        self._random = RandomCandidate(setting.candidates, setting.seed)
        self._levels = (*self.rungs(setting.epochs), setting.epochs)
        self._random_trials = self._count_random_trials()
        self._chosen: dict[int, list[int]] = {}
        order = {"points": setting.candidates.points.tolist(), "levels": self._levels}
        ask({"new": order | {"start_epochs": setting.start_epochs, "seed": setting.seed}})

    # ------------------------------------------------------------------ what a study asks

    def suggest(self, number: int, history: tuple[Observation, ...]) -> Suggestion:
        """The configuration that waits for the next free slot."""
        trials = [told.snapshot for told in history if told.snapshot is not None]
        unused = [(int(row), 0) for row in np.flatnonzero(self._candidates.unused)]
        best = self._best(trials, unused) if number >= self._random_trials else None
        if best is None:
            return self._random.suggest(number, history)
        return Suggestion(params=self._candidates.take(best[0]), trial_attributes={}, study_attributes={})

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """The fidelities below the full training: epochs that are milestones, and where ours decides."""
        return decision_rungs(epochs)[:-1]

    def decide(self, history: History, number: int, rung: int) -> Decision:  # noqa: ARG002 - the interface of a pruner
        """Pause at the fidelity that was chosen."""
        until = self._chosen[number][-1]
        return Decision(action="continue" if rung < until else "pause", reason=f"was chosen with {until} epochs")

    def thaw(self, history: History) -> Thaw | None:
        """A paused trial, if a higher fidelity of it gains more per cost than the waiting configuration does."""
        if history.upcoming is None and history.fresh_allowed:
            return None  # it is being looked for; then the same is asked again
        number = len(history.trials)
        waiting = [] if history.upcoming is None else [(self._candidates.row_of(history.upcoming), 0)]
        paused = {self._candidates.row_of(history.trials[other].params): other for other in history.paused}
        offers = [*waiting, *((row, history.paused[other]) for row, other in paused.items())]
        best = self._best(history.trials, offers) if number >= self._random_trials else None
        if best is None:
            self._chosen[number] = [self._random_level(number)]
            return None
        row, until = best
        if row not in paused:
            self._chosen[number] = [until]
            return None
        self._go_on(paused[row], history.paused[paused[row]], until)
        reason = f"gains most per cost with {until} epochs"
        return Thaw(number=paused[row], decision=Decision(action="continue", reason=reason))

    def _go_on(self, number: int, waits_at: int, until: int) -> None:
        """Note a choice; one that was noted when there was no slot after all is forgotten."""
        self._chosen[number] = [*(level for level in self._chosen[number] if level <= waits_at), until]

    # ------------------------------------------------------------------ random pairs

    def _count_random_trials(self) -> int:
        """Those that cost as much as `FIRST_FULL_TRIALS` together."""
        spent = itertools.accumulate(self._cost(self._random_level(number)) for number in itertools.count())
        limit = FIRST_FULL_TRIALS * self._cost(self._setting.epochs)
        return sum(1 for _ in itertools.takewhile(lambda total: total <= limit, spent))

    def _random_level(self, number: int) -> int:
        """The fidelity of a random trial, in epochs."""
        weights = np.array([1.0 / self._cost(level) for level in self._levels])
        rng = np.random.default_rng(derived_seed("fidelity", self._setting.seed, number))
        return int(rng.choice(self._levels, p=weights / weights.sum()))

    def _cost(self, level: int) -> float:
        """Of a fresh trial, in epochs."""
        return self._setting.start_epochs + level

    # ------------------------------------------------------------------ the model's choice

    def _best(self, trials: Sequence[Snapshot], offers: Sequence[Pair]) -> Pair | None:
        """Which row to train up to which epoch; None if nothing is known yet or no gain is expected.

        Args:
            trials: All that were started.
            offers: Rows, and the epochs that they were trained already.
        """
        reference = self._reference()
        observed = [] if reference is None else list(self._observations(trials, reference))
        if not observed or not offers:
            return None
        running = [(self._row(trial), self._chosen[trial.number][-1]) for trial in trials if trial.state == "running"]
        question = {"observed": observed, "running": running, "offers": offers, "reference": reference}
        best = self._ask({"best": question})
        return None if best is None else (best[0], best[1])

    def _reference(self) -> list[float] | None:
        objectives = self._setting.objectives
        found = reference_point(self._setting.record().trials, objectives, self._setting.epochs)
        return None if found is None else [one.signed(found[one.metric]) for one in objectives]

    def _observations(self, trials: Sequence[Snapshot], worst: Sequence[float]) -> Iterator[tuple[float, ...]]:
        """Row, epoch and objectives of each choice that has come to its end."""
        for trial in trials:
            row = self._row(trial)
            for level in self._chosen[trial.number]:
                if level in trial.at:
                    yield row, level, *_no_worse(trial.at[level], worst)
            if trial.state == "failed":
                yield row, self._chosen[trial.number][-1], worst[0], *_no_worse([self._second(trial, row)], worst[1:])

    def _second(self, trial: Snapshot, row: int) -> float:
        """The second objective of a trial that failed: a constant, or what it has cost."""
        second = self._setting.objectives[1]
        known = self._candidates.statics.get(second.metric)
        return trial.paid_usd if known is None else second.signed(float(known[row]))

    def _row(self, trial: Snapshot) -> int:
        return self._candidates.row_of(trial.params)


def _no_worse(values: Sequence[float], worst: Sequence[float]) -> list[float]:
    """Values, or the worst that counts; NaN is the worst."""
    return [float(np.fmin(value, bound)) for value, bound in zip(values, worst, strict=True)]


class OneForBoth:
    """Makes one object that suggests and prunes: the study asks for the suggester and for the pruner in turn.

    Args:
        make: Called once for each study.
    """

    def __init__(self, make: Callable[[Setting], BotorchMomf]) -> None:
        self._make = make
        self._latest: tuple[Setting, BotorchMomf] | None = None

    def __call__(self, setting: Setting) -> BotorchMomf:
        """The one of this study."""
        if self._latest is None or self._latest[0] is not setting:
            self._latest = (setting, self._make(setting))
        return self._latest[1]


momf = OneForBoth(lambda setting: BotorchMomf(setting, bridge(SCRIPT, ENVIRONMENT).ask))
