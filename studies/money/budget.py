"""Converts the budget to a deadline, and forecasts how long epochs take.

A pool of S slots at price p costs S p per second, busy or idle. The remaining dollars therefore last until a known
deadline, which changes with price and slots, and no trial is promised time beyond it. A limit in hours is a deadline
too. The whole pool is reserved until the latest expected end of a running trial.
"""

import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, median

from studies.records.records import NANO, StopReason

FIRST_GUESS_SECONDS = 60.0
BOUND_FACTOR = 1.5
BOUND_MARGIN_SECONDS = 0.05
OWN_EPOCHS = 5  # number of a trial's latest epochs that its forecast uses
STARTS = 20  # number of latest gang starts from which the duration of a start is forecast
OWN_DEVIATION, TRIALS_DEVIATION = 0.2, 0.66
"""Prior standard deviations of a duration's logarithm, between epochs of a trial and between trials.

Each counts as one observation. The second belongs to a log-uniform distribution over 1:10.
"""
WORTH_DECISIONS = 5
"""Number of consecutive decisions that must promise too little for their cost before they end a study."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits of a study; None means no limit. Hours count while a controller runs; leaders get the share `finish`."""

    usd: float | None = None
    hours: float | None = None
    trials: int | None = None
    usd_per_trial: float | None = None
    hours_per_trial: float | None = None
    least_percent_per_10_usd: float | None = None
    finish: float = 0.0

    def is_worthwhile(self, percents: Sequence[float]) -> bool:
        """Return whether more dollars should improve the study enough.

        Args:
            percents: Hypervolume in percent that ten more dollars would add, at each decision, oldest first.
        """
        least = self.least_percent_per_10_usd
        return least is None or len(percents) < WORTH_DECISIONS or max(percents[-WORTH_DECISIONS:]) >= least

    def trial_reason(self, paid_nano_usd: float, wall_seconds: float) -> str | None:
        """Return why a trial with this cost and duration must end; None if it may continue."""
        if self.usd_per_trial is not None and paid_nano_usd >= self.usd_per_trial * NANO:
            return f"budget.usd_per_trial: {paid_nano_usd / NANO:.6g} of {self.usd_per_trial:g} dollars are used up"
        if self.hours_per_trial is not None and wall_seconds >= self.hours_per_trial * 3600:
            return f"budget.hours_per_trial: {wall_seconds / 3600:.4g} of {self.hours_per_trial:g} hours are used up"
        return None


class BudgetClock:
    """Converts the remaining dollars and hours to a deadline; times are in seconds since 1970.

    Args:
        opened_at: Time from which the pool costs money.
        alive_since: Time at which this controller took the lease.
    """

    def __init__(
        self,
        *,
        limits: Limits,
        nano_usd_per_second: float,
        opened_at: float,
        alive_since: float,
        spent_nano_usd: int,
        alive_seconds: float,
    ) -> None:
        self._limits = limits
        self._hours_deadline = math.inf
        if limits.hours is not None:
            self._hours_deadline = alive_since + limits.hours * 3600 - alive_seconds
        self.go_on(opened_at, spent_nano_usd, nano_usd_per_second)

    def go_on(self, now: float, spent_nano_usd: int, nano_usd_per_second: float) -> None:
        """Change the pool's cost per second from `now`."""
        self.nano_usd_per_second = nano_usd_per_second
        self._usd_deadline = math.inf
        if self._limits.usd is not None and nano_usd_per_second > 0:
            left = self._limits.usd * NANO - spent_nano_usd
            self._usd_deadline = now + max(left, 0.0) / nano_usd_per_second

    @property
    def deadline(self) -> float:
        """Return the time at which dollars or hours are used up; infinite without limits."""
        return min(self._usd_deadline, self._hours_deadline)

    @property
    def binding(self) -> StopReason:
        """Return the limit that is reached first, dollars or hours."""
        return "budget_usd" if self._usd_deadline <= self._hours_deadline else "budget_hours"

    @property
    def total_seconds(self) -> float:
        """Return the time of this pool that the whole budget buys; infinite without dollars or hours."""
        if self.deadline == math.inf:
            return math.inf
        limits = self._limits
        if self.binding == "budget_usd":
            return (limits.usd or 0.0) * NANO / self.nano_usd_per_second
        return (limits.hours or 0.0) * 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochForecast:
    """Forecast durations of a trial's start and next epoch; the epoch's duration is log-normal."""

    start_seconds: float  # expected time from the lease of the slots to the first step
    epoch_seconds: float  # median of the duration of the next epoch
    deviation: float

    def bound(self, epochs: int, *, starting: bool) -> float:
        """Return seconds within which `epochs` epochs and their checkpoint very probably end."""
        start = self.start_seconds if starting else 0.0
        return BOUND_FACTOR * (start + epochs * self.epoch_seconds) + BOUND_MARGIN_SECONDS

    def chance(self, seconds: float, *, epochs: int, starting: bool) -> float:
        """Return the probability that `epochs` equally long epochs end within `seconds`."""
        room = (seconds - (self.start_seconds if starting else 0.0)) / max(epochs, 1)
        if room <= 0:
            return 0.0
        return NormalDist().cdf(math.log(room / self.epoch_seconds) / self.deviation)


@dataclass(kw_only=True, slots=True)
class _Durations:
    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, logarithm: float, sign: int = 1) -> None:
        self.count += sign
        self.total += sign * logarithm
        self.squares += sign * logarithm**2


class Forecaster:
    """Forecasts epoch durations from the trial's own epochs, else from trials of its world size, else from all trials.

    With k of w ranks, an epoch takes w / k times as long.

    Args:
        has_start_in_epoch: A first epoch may hold a program's start. Its excess over the second epoch counts as start.
    """

    def __init__(self, *, has_start_in_epoch: bool = False) -> None:
        self._has_start_in_epoch = has_start_in_epoch
        self._epochs: dict[int, _Durations] = {}
        self._only: dict[int, _Durations] = {} if has_start_in_epoch else self._epochs  # of trials with one epoch
        self._excesses = deque[float](maxlen=STARTS)
        self._starts: dict[int, deque[float]] = {}
        self._steps, self._squared_steps = 1, OWN_DEVIATION**2

    def saw_epoch(self, world_size: int, own_epoch_seconds: Sequence[float]) -> None:
        """Record a trial's latest epoch, the last of `own_epoch_seconds`, and its forecast's error."""
        count = len(own_epoch_seconds)
        if count > 1:
            expected = self._typical(own_epoch_seconds[:-1])
            self._durations(world_size, count - 1).add(math.log(expected), -1)
            if count > 2 or not self._has_start_in_epoch:
                self._steps += 1
                self._squared_steps += _squared_logarithm(own_epoch_seconds[-1], expected)
        if count == 2:
            self._saw_excess(own_epoch_seconds)
        self._durations(world_size, count).add(math.log(self._typical(own_epoch_seconds)))

    def saw_trial(self, world_size: int, own_epoch_seconds: Sequence[float]) -> None:
        """Record the epoch durations of a trial that ran under an earlier controller."""
        count = len(own_epoch_seconds)
        if count > 1:
            self._saw_excess(own_epoch_seconds)
        if count:
            self._durations(world_size, count).add(math.log(self._typical(own_epoch_seconds)))

    def _saw_excess(self, own_epoch_seconds: Sequence[float]) -> None:
        if self._has_start_in_epoch:
            first, second = own = own_epoch_seconds[:2]
            self._excesses.append(first - second if _begins_with_start(own) else 0.0)

    def _durations(self, world_size: int, count: int) -> _Durations:
        return (self._epochs if count > 1 else self._only).setdefault(world_size, _Durations())

    def training(self, own_epoch_seconds: Sequence[float]) -> Sequence[float]:
        """Return a trial's epoch durations, without a first epoch that may hold a program's start."""
        return without_start(own_epoch_seconds) if self._has_start_in_epoch else own_epoch_seconds

    def _typical(self, own_epoch_seconds: Sequence[float]) -> float:
        return _typical(self.training(own_epoch_seconds))

    def saw_start(self, world_size: int, seconds: float) -> None:
        """Record a start: seconds from reserving slots to the first step."""
        self._starts.setdefault(world_size, deque(maxlen=STARTS)).append(seconds)

    def forecast(
        self, world_size: int, own_epoch_seconds: Sequence[float], *, ranks: int | None = None
    ) -> EpochForecast | None:
        """Return the forecast for a trial on `ranks` ranks (default: `world_size`); None before any epoch.

        Args:
            own_epoch_seconds: Durations of the trial's epochs on `world_size` ranks, latest last.
        """
        ranks = ranks or world_size
        excess = median(self._excesses) if self._excesses else 0.0
        start, longer = self.start_seconds(ranks) + excess, world_size / ranks
        if own_epoch_seconds:
            latest = self.training(own_epoch_seconds)[-OWN_EPOCHS:]
            if len(own_epoch_seconds) == 1:
                latest = [max(latest[0] - excess, _LEAST_SHARE * latest[0])]
            typical = _typical(latest)
            squares = sum(_squared_logarithm(one, typical) for one in latest)
            deviation = _predictive_deviation(len(latest), squares, self._squared_steps / self._steps)
            return EpochForecast(start_seconds=start, epoch_seconds=longer * typical, deviation=deviation)
        same = (self._epochs.get(world_size), _sum(self._epochs), self._only.get(world_size), _sum(self._only))
        seen = next((one for one in same if one is not None and one.count), None)
        if seen is None:
            return None
        mean = seen.total / seen.count
        deviation = _predictive_deviation(seen.count, seen.squares - seen.total * mean, TRIALS_DEVIATION**2)
        return EpochForecast(start_seconds=start, epoch_seconds=longer * math.exp(mean), deviation=deviation)

    def start_seconds(self, world_size: int) -> float:
        """Return the expected seconds from reserving slots to the first step; 0 before any start."""
        starts = self._starts.get(world_size) or [one for some in self._starts.values() for one in some]
        return median(starts) if starts else 0.0


_START_FACTOR = 3.0
"""A program's first epoch that takes longer than the shortest later one by this factor holds its start."""
_LEAST_SHARE = 0.1
"""Least part of a trial's only epoch that counts as training, if other trials' first epochs held a start."""
_LEAST_PART = 0.02
"""Least duration of later epochs, relative to a first one with a start: epochs that are printed together take 0 s."""
_LEAST_SECONDS = 1e-6
_LEAST_DEVIATION = 1e-3


def _typical(own_epoch_seconds: Sequence[float]) -> float:
    """Return the median of the last three durations, so that one slow epoch has no effect."""
    return max(median(own_epoch_seconds[-3:]), _LEAST_SECONDS)


def without_start(own_epoch_seconds: Sequence[float]) -> Sequence[float]:
    """Return the durations of a program's epochs in seconds, without a first epoch that holds its start."""
    if not _begins_with_start(own_epoch_seconds):
        return own_epoch_seconds
    return [max(one, _LEAST_PART * own_epoch_seconds[0]) for one in own_epoch_seconds[1:]]


def _begins_with_start(own_epoch_seconds: Sequence[float]) -> bool:
    later = own_epoch_seconds[1:]
    return bool(later) and own_epoch_seconds[0] > _START_FACTOR * min(later)


def _sum(of_sizes: Mapping[int, _Durations]) -> _Durations:
    every = of_sizes.values()
    return _Durations(
        count=sum(one.count for one in every),
        total=sum(one.total for one in every),
        squares=sum(one.squares for one in every),
    )


def _squared_logarithm(seconds: float, expected: float) -> float:
    return math.log(max(seconds, _LEAST_SECONDS) / expected) ** 2


def _predictive_deviation(count: int, squares: float, prior: float) -> float:
    """Return the standard deviation of the next value after `count` values with these squared deviations."""
    # The prior variance counts as one observation, so its weight falls with `count`: equal values soon predict.
    variance = (max(squares, 0.0) + prior / count) / count * (1.0 + 1.0 / count)
    return max(math.sqrt(variance), _LEAST_DEVIATION)


PRICES_DATE = "2025-11"
PRICES_SOURCE = "AWS EC2 on demand, us-east-1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """Price of a slot, and its source."""

    usd_per_slot_hour: float
    source: str


_USD_PER_GPU_HOUR: tuple[tuple[str, float, str], ...] = (
    ("B200", 14.2416, "p6-b200.48xlarge / 8"),
    ("H200", 7.912, "p5en.48xlarge / 8"),
    ("H100", 6.88, "p5.48xlarge / 8"),
    ("A100", 2.7447, "p4d.24xlarge / 8"),
    ("L40S", 1.861, "g6e.xlarge"),
    ("V100", 3.06, "p3.2xlarge"),
    ("A10G", 1.006, "g5.xlarge"),
    ("A10", 1.006, "g5.xlarge"),
    ("L4", 0.8048, "g6.xlarge"),
    ("T4", 0.526, "g4dn.xlarge"),
)
_UNKNOWN_GPU = ("an unknown GPU, taken for an A10G", 1.006, "g5.xlarge")
_SLICE = re.compile(r"\bMIG (?:\d+c\.)?(\d)g\.", re.IGNORECASE)
"""Driver's name of a GPU's part, such as `MIG 3g.40gb` with 3 compute slices."""
_SLICES = 7  # number of compute slices of a whole GPU, the same for each listed GPU with MIG
USD_PER_CPU_HOUR = 0.04463  # price of one vCPU: c7i.large / 2


def price_of(device: str, device_name: str, cpus_per_rank: int) -> Price:
    """Return a slot's list price.

    Args:
        device: "cpu" or "cuda".
        device_name: Name of the GPU in the driver or the cluster, such as "NVIDIA H100 80GB HBM3".
    """
    if device == "cpu":
        usd = USD_PER_CPU_HOUR * cpus_per_rank
        return Price(usd_per_slot_hour=usd, source=f"{cpus_per_rank} vCPU of c7i.large, {PRICES_SOURCE}, {PRICES_DATE}")
    words = re.findall(r"[A-Z0-9]+", device_name.upper())  # "A1000" is no "A100"
    what, usd, instance = next((entry for entry in _USD_PER_GPU_HOUR if entry[0] in words), _UNKNOWN_GPU)
    if slice_ := _SLICE.search(device_name):
        what, usd = f"{slice_[1]}/{_SLICES} of {what}", usd * int(slice_[1]) / _SLICES
    return Price(usd_per_slot_hour=usd, source=f"{what}: {instance}, {PRICES_SOURCE}, {PRICES_DATE}")
