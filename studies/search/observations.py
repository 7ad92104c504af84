"""What a search may know of a trial: a `Snapshot` for policy and model, an `Observation` for samplers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from search_spaces.suggestions import Asked
from trainers.protocol import ParameterValue

Values = tuple[float, ...]
"""Objectives in the spec's order, turned so that smaller is better."""
Columns = tuple[float, ...]
"""Objectives as in `Values`, then each bounded metric that is no objective (`studies.results.constraints.columns`)."""
Outcome = Literal["running", "finished", "infeasible", "failed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """A trial as far as it got.

    Attributes:
        state: "ended" if the trial was stopped or is complete, "failed" if training it again would fail again.
        epochs: Number of recorded epochs.
        at: Values at the epochs that a search looks at: rungs, milestones, the epoch before the first rung.
        ends: The same values with cumulative metrics extrapolated to the last epoch, where any is cumulative.
        paid_usd: Start and train charges in dollars.
        last_model: Epoch of a complete training's last model, also before the planned last epoch; else None.
    """

    number: int
    params: Mapping[str, ParameterValue]
    state: Literal["running", "paused", "ended", "failed"]
    epochs: int = 0
    at: Mapping[int, Columns] = field(default_factory=dict)
    ends: Mapping[int, Columns] = field(default_factory=dict)
    usd_per_epoch: float | None = None
    paid_usd: float = 0.0
    starts: int = 1
    world_size: int = 1
    last_model: int | None = None

    def at_rung(self, rung: int) -> Columns | None:
        """Return the values at a rung; None if the trial has not reached it.

        A training that was complete earlier keeps its last values: otherwise late rungs would learn only from the
        trainings that go on improving.
        """
        if rung not in self.at and self.last_model is not None and rung > self.last_model:
            return self.at[self.last_model]
        return self.at.get(rung)


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """A trial as a sampler sees it.

    Attributes:
        trial_id: Identity of the trial; a history is sorted by it.
        outcome: "running"; "finished" with values; "infeasible" (out of memory, the user's code raised); "failed", from
            which nothing is learned.
        values: Objectives in the spec's order, each in its own direction, cumulative ones extrapolated to the last
            epoch; None before any measurement. Values of a diverged trial are not finite.
        attributes: Optuna's system attributes of the trial, as its suggestion left them.
        snapshot: The trial as far as it got; `cokriging` learns only from this.
        excesses: Violation of each constraint bound, in units of the bound, at most 0 where it is kept, since Optuna's
            samplers add them up; None before the first epoch.
    """

    trial_id: int
    params: Mapping[str, ParameterValue]
    outcome: Outcome
    values: tuple[float, ...] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    snapshot: Snapshot | None = None
    excesses: Mapping[str, float | None] = field(default_factory=dict)
    asked: Mapping[str, Asked] = field(default_factory=dict)
