"""What a search may know of a trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trainers.protocol import ParameterValue

Values = tuple[float, ...]
"""Objectives in the spec's order, turned so that smaller is better."""
Columns = tuple[float, ...]
"""Objectives as in `Values`, then each metric that is bounded and no objective: `studies.constraints.columns`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """A trial as far as it got.

    Attributes:
        number: Its own.
        state: "ended" if it was stopped or is complete, "failed" if its training cannot be repeated with success.
        epochs: Epochs that are recorded.
        at: Values at the epochs that a search looks at: rungs, milestones, the epoch before the first rung.
        ends: The same values with cumulative metrics extrapolated to the last epoch, where any is cumulative.
        usd_per_epoch: Mean over its epochs; None before the first.
        paid_usd: Start and train charges.
        starts: How often it was dispatched.
        world_size: Ranks.
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
