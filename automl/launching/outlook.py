"""What a study will probably cost, and how many full trainings its budget pays, before it is launched."""

from __future__ import annotations

import math

from automl.launching.earlier_costs import EarlierCost
from automl.launching.preparing import Prepared
from reports.wording import duration, plural, usd

HOUR = 3600.0


def expected_cost(prepared: Prepared, earlier: EarlierCost | None) -> str:
    """Return the expected cost in one line, or why it is not known, with what the study costs at most.

    Args:
        prepared: Study as it would be launched.
        earlier: What trials of this task took before; None if that is not known.
    """
    budget, place = prepared.spec.budget, prepared.place
    most = most_slot_seconds(prepared)
    ceiling = f"at most {_amount(prepared, most)}" if math.isfinite(most) else "no limit but the number of trials"
    if earlier is None:
        return f"not known before the first epoch, since no study of this store has trained this task; {ceiling}"
    if earlier.other_slots:
        source = f"trials of {earlier.study} ran on {earlier.other_slots}"
        return f"not known before the first epoch, since {source}; {ceiling}"
    scale = prepared.spec.training.epochs / earlier.epochs
    by_trials = math.inf if budget.trials is None else budget.trials * earlier.slot_seconds_per_trial * scale
    likely = min(by_trials, most)
    if not math.isfinite(likely):
        return f"not known: {ceiling}"
    ends = "when all trials are started" if by_trials <= most else "when the budget is used up"
    time = duration(likely / place.slots)
    return f"about {_amount(prepared, likely)} in {time}, {ends} ({ceiling}); {_trainings(prepared, earlier, most)}"


def _trainings(prepared: Prepared, earlier: EarlierCost, most: float) -> str:
    """How many full trainings the budget pays, and by which study that is said."""
    full = earlier.slot_seconds_per_epoch * prepared.spec.training.epochs
    source = f"by {plural(earlier.trials, 'trial')} of {earlier.study}"
    each = f"{_amount(prepared, full)} each, {source}"
    if not math.isfinite(most) or full <= 0:
        return f"a full training costs about {_amount(prepared, full)}, {source}"
    count = most / full
    shown = plural(math.floor(count), "full training") if count >= 1 else f"{count:.2g} of a full training"
    return f"the budget pays about {shown} of {prepared.spec.training.epochs} epochs, {each}"


def most_slot_seconds(prepared: Prepared, set_price: float | None = None) -> float:
    """Return the slot time that dollars and hours pay, in seconds; infinite without such a limit.

    Args:
        prepared: Study with its budget and its slots.
        set_price: Dollars per slot and hour that `automl price set` has set; None takes those of the spec.
    """
    budget, price = prepared.spec.budget, prepared.price.usd_per_slot_hour if set_price is None else set_price
    by_usd = math.inf if budget.usd is None or price <= 0 else budget.usd / price * HOUR
    by_hours = math.inf if budget.hours is None else budget.hours * HOUR * prepared.place.slots
    return min(by_usd, by_hours)


def _amount(prepared: Prepared, slot_seconds: float) -> str:
    """Slot time in dollars; of slots that cost nothing, the time of one slot."""
    price = prepared.price.usd_per_slot_hour
    return usd(slot_seconds / HOUR * price) if price > 0 else f"{duration(slot_seconds)} of one slot"
