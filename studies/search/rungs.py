"""Decision rungs: the epochs at which a trial may be paused, and between which learning curves are forecast."""

RUNG_RATIO = 2.2
"""Ratio of a rung to the previous rung."""
FIRST_RUNG = 2
"""Smallest epoch that may be a rung before the first trials are known, unless the full training is shorter."""


def decision_rungs(epochs: int, ratio: float = RUNG_RATIO, least: int = FIRST_RUNG) -> tuple[int, ...]:
    """Return the epochs at which to make forecasts, ascending by a constant ratio from `least` to the last epoch."""
    found, epoch = [epochs], float(epochs)
    while (epoch := epoch / ratio) >= least - 0.5 and round(epoch) < found[-1]:
        found.append(max(round(epoch), 1))
    return tuple(sorted(set(found)))
