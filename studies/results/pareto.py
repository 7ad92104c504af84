"""Pareto dominance, fronts and hypervolume of points whose coordinates are all to be minimised.

Callers negate maximised objectives (`Objective.signed`); coordinates are finite. With one objective, each distinct
value is a layer.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from studies.records.records import EpochRecord, Objective, StudyRecord, TrialRecord
from studies.results.extrapolation import extrapolated_metric
from trainers.protocol import CUMULATIVE_METRICS

Point: TypeAlias = tuple[float, ...]


def dominates(a: Sequence[float], b: Sequence[float]) -> bool:
    """Return whether `a` is at least as good as `b` everywhere and better somewhere."""
    is_better = False
    for x, y in zip(a, b, strict=True):  # a loop is faster than `all` and `any`: resuming compares 100,000 times
        if not x <= y:
            return False
        is_better = is_better or x < y
    return is_better


def front(points: Sequence[Sequence[float]]) -> list[int]:
    """Return the indices of non-dominated points, ascending, with all equal points."""
    if not points:
        return []
    if len(points[0]) > 2:
        import moocore

        kept = moocore.is_nondominated(np.asarray(points, dtype=float), keep_weakly=True)
        return [int(i) for i in np.flatnonzero(kept)]
    return [i for i, layer in enumerate(layers(points)) if layer == 0]


def archive(points: Sequence[Sequence[float]]) -> list[int]:
    """Return the indices of non-dominated points, ascending, with the first of equal points."""
    seen: set[Point] = set()
    kept = []
    for i in front(points):
        point = tuple(points[i])
        if point not in seen:
            seen.add(point)
            kept.append(i)
    return kept


def grown(archived: Sequence[Point], new: Point) -> list[Point] | None:
    """Return the non-dominated points with a new point; None if it is dominated or equal."""
    if any(old == new or dominates(old, new) for old in archived):
        return None
    return [*(old for old in archived if not dominates(new, old)), new]


def layers(points: Sequence[Sequence[float]]) -> list[int]:
    """Return each point's layer in non-dominated sorting, from 0 (best); equal points share a layer."""
    if not points:
        return []
    if len(points[0]) > 2:
        import moocore

        ranks = moocore.pareto_rank(np.asarray(points, dtype=float))
        return [int(rank) for rank in ranks]
    return _planar_layers([(float(p[0]), float(p[1]) if len(p) > 1 else 0.0) for p in points])


def constrained_layers(points: Sequence[Sequence[float]], violations: Sequence[float]) -> list[int]:
    """Return layers with constraints: the layers of feasible points, then infeasible points by their violation.

    A feasible point dominates an infeasible point; of two infeasible points, the smaller violation dominates (Deb et
    al. 2002, section VI, doi 10.1109/4235.996017).
    """
    feasible = [i for i, violation in enumerate(violations) if violation <= 0]
    inner = dict(zip(feasible, layers([points[i] for i in feasible]), strict=True))
    best = max(inner.values(), default=-1) + 1
    layer_of = {violation: best + k for k, violation in enumerate(sorted({v for v in violations if v > 0}))}
    return [inner[i] if i in inner else layer_of[violation] for i, violation in enumerate(violations)]


def _planar_layers(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the layers of planar points in O(n log n), by a scan in lexicographic order."""
    result = [0] * len(points)
    lowest: list[float] = []
    previous: tuple[float, float] | None = None
    layer = 0
    for i in sorted(range(len(points)), key=points.__getitem__):
        if points[i] != previous:
            previous = points[i]
            layer = bisect_right(lowest, previous[1])
            lowest[layer : layer + 1] = [previous[1]]
        result[i] = layer
    return result


def epsilon_net_order(
    points: Sequence[Sequence[float]],
    numbers: Sequence[int] | None = None,
    *,
    lows: Sequence[float] | None = None,
    highs: Sequence[float] | None = None,
) -> list[int]:
    """Return the indices of a front's points, ordered so that the first k points cover the front well for any k.

    The first point has the smallest sum of scaled objectives; each next point is the farthest from all earlier points
    (Euclidean, scaled). Ties go to the smaller values, then to the smaller number. After Schmucker et al. 2021
    (MO-ASHA, arXiv 2106.12639). `lows` and `highs` are each objective's extremes, by default of these points.
    """
    if not points:
        return []
    order, scaled = _scaled(points, range(len(points)) if numbers is None else numbers, lows, highs)
    # `order` is sorted by values and number, and argmin and argmax take the first of equal values.
    chosen = [int(np.argmin(scaled.sum(axis=1)))]
    distance = np.full(len(order), np.inf)
    while len(chosen) < len(order):
        distance = np.minimum(distance, ((scaled - scaled[chosen[-1]]) ** 2).sum(axis=1))
        distance[chosen[-1]] = -1.0
        chosen.append(int(np.argmax(distance)))
    return [order[i] for i in chosen]


SHARE_THAT_COUNTS = 0.1
"""Share of a study's dollars from which a cost difference of two trainings counts in full."""


def least_ranges(metrics: Sequence[str], spent_usd: float) -> list[float]:
    """Return each objective's range for `knee_of`: small cost differences do not justify a worse model."""
    return [SHARE_THAT_COUNTS * spent_usd if one == "cost_usd" else 0.0 for one in metrics]


def knee_of(points: Sequence[Sequence[float]], least_ranges: Sequence[float] = ()) -> int:
    """Return the index of the knee: the smallest sum of objectives after scaling each to its range.

    Objectives that vary less than their least range have proportionally less weight.
    """
    values = np.asarray(points, dtype=float)
    lows, highs = values.min(axis=0), values.max(axis=0)
    if least_ranges:
        highs = np.maximum(highs, lows + np.asarray(least_ranges, dtype=float))
    order, scaled = _scaled(points, range(len(points)), lows.tolist(), highs.tolist())
    return order[int(np.argmin(scaled.sum(axis=1)))]


def _scaled(
    points: Sequence[Sequence[float]], ids: Sequence[int], lows: Sequence[float] | None, highs: Sequence[float] | None
) -> tuple[list[int], NDArray[np.float64]]:
    """Return indices sorted by value and id, and the scaled values in this order."""
    order = sorted(range(len(points)), key=lambda i: (tuple(points[i]), ids[i]))
    values = np.asarray([points[i] for i in order], dtype=float) / 2  # differences of halves stay finite
    low = values.min(axis=0) if lows is None else np.asarray(lows, dtype=float) / 2
    high = values.max(axis=0) if highs is None else np.asarray(highs, dtype=float) / 2
    return order, (values - low) / np.where(high > low, high - low, 1.0)


def best_first(
    points: Sequence[Sequence[float]], numbers: Sequence[int] | None = None, violations: Sequence[float] | None = None
) -> Iterator[int]:
    """Yield the indices of all points at a rung, best first: layer by layer, each in the order of `epsilon_net_order`.

    Lazy, so the first indices cost little. Objectives are scaled by the range of all points. With one objective, the
    order is by value, then by number (by default the position).
    """
    if not points:
        return
    ids = list(range(len(points))) if numbers is None else list(numbers)
    lows = [min(column) for column in zip(*points, strict=True)]
    highs = [max(column) for column in zip(*points, strict=True)]
    for _, inside in sorted(_members(points, violations).items()):
        net = epsilon_net_order([points[i] for i in inside], [ids[i] for i in inside], lows=lows, highs=highs)
        yield from (inside[i] for i in net)


def rank_of(
    index: int, points: Sequence[Sequence[float]], numbers: Sequence[int], violations: Sequence[float] | None = None
) -> int:
    """Return a point's position in `best_first`, from 1, without ordering other layers."""
    members = _members(points, violations)
    layer = next(layer for layer, inside in members.items() if index in inside)
    inside = members[layer]
    net = epsilon_net_order(
        [points[i] for i in inside],
        [numbers[i] for i in inside],
        lows=[min(column) for column in zip(*points, strict=True)],
        highs=[max(column) for column in zip(*points, strict=True)],
    )
    better = sum(len(others) for one, others in members.items() if one < layer)
    return better + net.index(inside.index(index)) + 1


def _members(points: Sequence[Sequence[float]], violations: Sequence[float] | None) -> dict[int, list[int]]:
    members: dict[int, list[int]] = {}
    for i, layer in enumerate(layers(points) if violations is None else constrained_layers(points, violations)):
        members.setdefault(layer, []).append(i)
    return members


def hypervolume(points: Sequence[Sequence[float]], reference: Sequence[float]) -> float:
    """Return the volume between points and the reference point; points beyond it add nothing."""
    inside = [p for p in points if all(x < bound for x, bound in zip(p, reference, strict=True))]
    if not inside:
        return 0.0
    import moocore

    return float(moocore.hypervolume(np.asarray(inside, dtype=float), ref=np.asarray(reference, dtype=float)))


def reference_coordinate(values: Sequence[float]) -> float:
    """Return one coordinate of the automatic reference point: worst + 0.1 max(worst - best, 0.1 |worst|).

    Outliers above Q3 + 3 IQR are ignored, since one very poor trial would make all others look alike. If only zeros
    remain, the coordinate is a tenth of the largest value, since no point is better than 0.
    """
    array = np.asarray(values, dtype=float)
    q1, q3 = np.quantile(array, [0.25, 0.75])
    usual = array[array <= q3 + 3.0 * (q3 - q1)]
    worst, best = float(usual.max()), float(usual.min())
    margin = 0.1 * max(worst - best, 0.1 * abs(worst))
    return worst + (margin or 0.1 * (float(np.abs(array).max()) or 1.0))


def last_epoch(spec: Mapping[str, object]) -> int | None:
    """Return the epochs of a full training; None if the spec has none."""
    training = spec.get("training")
    planned = training.get("epochs") if isinstance(training, Mapping) else None
    return int(planned) if isinstance(planned, int | float) else None


def point(epoch: EpochRecord, objectives: Sequence[Objective]) -> tuple[float, ...] | None:
    """Return an epoch's objectives, signed so that smaller is better; None if one is missing or not finite."""
    values = tuple(o.signed(float(epoch.metrics.get(o.metric, math.nan))) for o in objectives)
    return values if all(map(math.isfinite, values)) else None


def reference_point(
    trials: Sequence[TrialRecord], objectives: Sequence[Objective], last_epoch: int | None
) -> dict[str, float] | None:
    """Return the automatic reference point by metric, in its own sign; None without a saved epoch.

    Each coordinate is the `reference_coordinate` of all saved epochs, also of pruned and failed trials. Cumulative
    objectives are extrapolated to `last_epoch` (None: not extrapolated), so that complete trainings do not lie beyond
    the reference point.
    """
    columns: dict[str, list[float]] = {o.metric: [] for o in objectives}
    for trial in trials:
        for epoch in trial.epochs:
            values = point(epoch, objectives) if epoch.is_milestone else None
            for objective, value in zip(objectives, values or (), strict=False):
                if objective.metric in CUMULATIVE_METRICS:
                    end = extrapolated_metric(trial, epoch, objective.metric, last_epoch)
                    value = objective.signed(end)  # noqa: PLW2901
                columns[objective.metric].append(value)
    if not all(columns.values()):
        return None
    return {o.metric: o.signed(reference_coordinate(columns[o.metric])) for o in objectives}


def reference_of(study: StudyRecord) -> dict[str, float] | None:
    """Return the study's reference point: the stored point, else the spec's, else a provisional `reference_point`."""
    given = study.reference_point or study.spec.get("reference_point")
    if isinstance(given, Mapping):
        return {str(metric): float(value) for metric, value in given.items()}
    return reference_point(study.trials, study.objectives, last_epoch(study.spec))
