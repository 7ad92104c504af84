"""Lets another framework ask this project's pruners about its trials.

    policy.started(number, params)
    policy.measured(number, epoch, metrics, paid_usd=...)  ->  a decision at rungs, else None
    policy.thaw(...)                                       ->  the paused trial to continue, else None
    policy.ended(number)

The other framework runs the trials, and owns the store, the devices and the budget.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from search_spaces.messages import found, nearest
from search_spaces.space import Space
from studies.control.assembly import PoolSpec, assemble
from studies.records.records import Objective
from studies.results.constraints import bounds_of, columns, total_violation
from studies.search.model.encoding import Encoder
from studies.search.observations import Columns, Observation, Outcome, Snapshot, decision_rungs
from studies.search.policy import Decision, History, Thaw, stop_for_good
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import parse_spec
from trainers.protocol import CUMULATIVE_METRICS, ParameterValue


class ExternalPolicy:
    """Decides from reported metrics whether trials of another framework continue, pause or stop.

    Args:
        objectives: Objectives of the search. `cost_usd` is a trial's cost so far in dollars.
        epochs: Epochs of a full training. The last epoch is not judged.
        constraints: As in a spec: `[{"metric": "latency_ms", "max": 5}]`.
        pruner: As `search.pruner` of a spec.
        space: Space that trials are drawn from, needed by `break_even` and `suggestion`.
        sampler: As `search.sampler` of a spec.
        slots: Number of trials that run at the same time.

    Raises:
        SpecError: An argument is wrong.
    """

    def __init__(
        self,
        *,
        objectives: Sequence[Objective],
        epochs: int,
        constraints: Sequence[Mapping[str, object]] = (),
        pruner: str | Mapping[str, object] = "mo_asha",
        space: Space | None = None,
        sampler: str = "random",
        slots: int = 1,
        usd_per_slot_hour: float = 1.0,
        seed: int = 0,
    ) -> None:
        spec = parse_spec(
            {
                "task": "elsewhere",
                "objectives": [{"metric": o.metric, "direction": o.direction} for o in objectives],
                "constraints": constraints,
                "training": {"epochs": epochs},
                "search": {"sampler": sampler, "pruner": pruner, "seed": seed},
                **({} if space is None else {"space": space}),
            },
            "adapter",
        )
        if spec.search.chosen.pruner.name == "break_even" and space is None:
            raise SpecError("adapter", ("space",), found(None, "a Space, which the pruner break_even needs"))
        pool = PoolSpec(device="cpu", slots=slots, usd_per_slot_hour=usd_per_slot_hour)
        assembled = assemble(spec, pool, source="adapter")
        self._policy = assembled.policy
        self._space = space
        self._suggester = None if space is None else assembled.suggester
        self._objectives, self._constraints = spec.objective_records, spec.constraint_records
        self._columns, self._epochs = columns(self._objectives, self._constraints), epochs
        self._trials: dict[int, Snapshot] = {}
        self._history = History()
        self._encoder = None if space is None else Encoder(space)
        self._rng = np.random.default_rng(seed)
        self.rungs = self._policy.pruner.rungs(epochs)
        self._watched = sorted({*self.rungs, *decision_rungs(epochs)})

    @property
    def paused(self) -> frozenset[int]:
        """Return the paused trials."""
        return frozenset(self._history.paused)

    def started(self, number: int, params: Mapping[str, ParameterValue], *, world_size: int = 1) -> None:
        """Record that a trial with `world_size` ranks starts or resumes. Repeated calls are harmless.

        Raises:
            SpaceError: The parameters violate a constraint of the space.
        """
        if number not in self._trials:
            (self._space or Space({})).check_constraints(params)
            self._trials[number] = Snapshot(number=number, params=dict(params), state="running", world_size=world_size)
        self._history.paused.pop(number, None)
        self._change(number, state="running")

    def measured(
        self, number: int, epoch: int, metrics: Mapping[str, float], *, paid_usd: float = 0.0
    ) -> Decision | None:
        """Record a trial's metrics after an epoch, and return the pruner's decision.

        Args:
            epoch: Ended epoch, from 1.
            metrics: Every objective and bounded metric, by name; `cost_usd` is optional.
            paid_usd: Cost of the trial so far, in dollars.

        Returns:
            The decision if the pruner judges this epoch (see `rung_of`), else None. A trial also stops if a metric is
                not finite or, before the last epoch, if the constraints cannot be satisfied.

        Raises:
            ValueError: An objective or a bounded metric is missing, or the epoch does not exist.
        """
        if epoch not in range(1, self._epochs + 1):
            raise ValueError(f"epoch: {found(epoch, f'a whole number from 1 to {self._epochs}')}")
        known = self._known({"cost_usd": paid_usd} | dict(metrics))
        bad = next((name for name, value in known.items() if not math.isfinite(value)), None)
        if bad is not None:
            self.ended(number, failed=True)
            return Decision(action="stop", reason=f"{bad} was {known[bad]} at epoch {epoch}")
        rung = self.rung_of(number, epoch)
        self._note(number, epoch, known, paid_usd)
        if epoch < self._epochs and (never := stop_for_good(known, self._constraints)):
            self.ended(number)
            return never
        return None if rung is None else self._decided(number, rung)

    def rung_of(self, number: int, epoch: int) -> int | None:
        """Return the decision epoch (rung) for which this epoch counts, or None if it is not judged.

        The first report after a rung counts for the rung, and a report after several rungs for the last of them.
        """
        rung = max((one for one in self.rungs if one <= epoch < self._epochs), default=None)
        is_judged = rung is not None and number in self._history.at_rung.get(rung, {})
        return None if is_judged and rung != epoch else rung

    def _known(self, metrics: Mapping[str, float]) -> dict[str, float]:
        missing = next((one.metric for one in self._columns if one.metric not in metrics), None)
        if missing is not None:
            section = "objectives" if any(o.metric == missing for o in self._objectives) else "constraints"
            near = f". Did you mean {name!r}?" if (name := nearest(missing, metrics)) else ""
            raise ValueError(f"{section}: the trial did not report the metric {missing!r}{near}")
        return {one.metric: float(metrics[one.metric]) for one in self._columns}

    def _note(self, number: int, epoch: int, known: Mapping[str, float], paid_usd: float) -> None:
        """Record a report, also at skipped decision epochs."""
        trial = self._trials[number]
        passed = [one for one in self._watched if one <= epoch and one not in trial.at]
        counted = {one: self._as_at(known, epoch, one) for one in (*passed, epoch)}
        end = self._signed(self._as_at(known, epoch, self._epochs))
        self._change(
            number,
            epochs=epoch,
            at={**trial.at, **{one: self._signed(values) for one, values in counted.items()}},
            ends={**trial.ends, **dict.fromkeys(counted, end)},
            paid_usd=paid_usd,
            usd_per_epoch=paid_usd / epoch if paid_usd > 0 else None,
        )
        for rung in counted.keys() & {*self.rungs} if epoch < self._epochs else ():
            self._history.at_rung.setdefault(rung, {})[number] = self._trials[number].at[rung][: len(self._objectives)]
            if violation := total_violation(counted[rung], self._constraints):
                self._history.violations.setdefault(rung, {})[number] = violation

    def _as_at(self, known: Mapping[str, float], epoch: int, to_epoch: int) -> dict[str, float]:
        """Estimate metrics at another epoch; cumulative metrics, such as cost, are proportional to the epoch."""
        share = to_epoch / epoch
        return {name: value * share if name in CUMULATIVE_METRICS else value for name, value in known.items()}

    def _signed(self, known: Mapping[str, float]) -> Columns:
        return tuple(one.signed(known[one.metric]) for one in self._columns)

    def _decided(self, number: int, rung: int) -> Decision:
        history = self._up_to_date()
        history.upcoming, history.fresh_allowed = self._drawn(), True
        decision = self._policy.at_rung(history, number, rung)
        if decision.action == "stop":
            self.ended(number)
        elif decision.action == "pause":
            self._history.paused[number] = rung
            self._change(number, state="paused")
        return decision

    def thaw(self, *, upcoming: Mapping[str, ParameterValue] | None = None, fresh_allowed: bool = True) -> Thaw | None:
        """Return the paused trial that should continue on a free device, or None.

        Args:
            upcoming: Configuration that would start instead. None draws one from the space.
            fresh_allowed: Whether a new configuration may start instead.
        """
        history = self._up_to_date()
        history.upcoming, history.fresh_allowed = upcoming or self._drawn(), fresh_allowed
        return self._policy.pruner.thaw(history)

    def ended(self, number: int, *, failed: bool = False) -> None:
        """Record that a trial is complete, was stopped, or has failed without another attempt."""
        if number in self._trials and self._trials[number].state != "failed":
            self._history.paused.pop(number, None)
            self._change(number, state="failed" if failed else "ended")

    def suggestion(self) -> dict[str, ParameterValue]:
        """Return the parameters for a new trial. Raises ValueError without a space."""
        if self._suggester is None:
            raise ValueError("space: suggestions need a search space. Pass space=... to the adapter")
        history = tuple(self._observation(self._trials[number]) for number in sorted(self._trials))
        return dict(self._suggester.suggest(len(history), history).params)

    def _observation(self, trial: Snapshot) -> Observation:
        end = self._end(trial)
        outcome: Outcome = "finished" if trial.state in {"ended", "paused"} and end else "running"
        return Observation(
            trial_id=trial.number,
            params=trial.params,
            outcome="failed" if trial.state == "failed" else outcome,
            values=tuple(end[o.metric] for o in self._objectives) if end else None,
            snapshot=trial,
            excesses={
                bound.name: bound.relative_excess(end[bound.metric]) if end else None
                for bound in bounds_of(self._constraints)
            },
        )

    def _end(self, trial: Snapshot) -> dict[str, float]:
        """Return a trial's latest metrics; cumulative metrics are extrapolated to the last epoch."""
        if not trial.ends:
            return {}
        return {c.metric: c.signed(v) for c, v in zip(self._columns, trial.ends[max(trial.ends)], strict=True)}

    def _drawn(self) -> Mapping[str, ParameterValue] | None:
        if self._encoder is None:
            return None
        return self._encoder.decode(self._rng.random(self._encoder.parameters))

    def _up_to_date(self) -> History:
        self._history.trials = [self._trials[number] for number in sorted(self._trials)]
        return self._history

    def _change(self, number: int, **changes: object) -> None:
        self._trials[number] = replace(self._trials[number], **changes)  # type: ignore[arg-type]
