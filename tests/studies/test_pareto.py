import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.results import pareto

grid = st.integers(0, 5).map(float)


def clouds(low: int = 1, high: int = 4) -> st.SearchStrategy[list[tuple[float, ...]]]:
    """Point sets of one dimension, on a small grid so that ties and equal points are common."""
    return st.integers(low, high).flatmap(lambda d: st.lists(st.tuples(*[grid] * d), max_size=30))


def plain_front(points: list[tuple[float, ...]]) -> list[int]:
    return [i for i, p in enumerate(points) if not any(pareto.dominates(q, p) for q in points)]


def plain_layers(points: list[tuple[float, ...]]) -> list[int]:
    result, layer, left = [0] * len(points), 0, list(range(len(points)))
    while left:
        best = [left[i] for i in plain_front([points[i] for i in left])]
        for i in best:
            result[i] = layer
        left, layer = [i for i in left if i not in best], layer + 1
    return result


@given(clouds())
def test_front_and_layers_equal_brute_force(points: list[tuple[float, ...]]) -> None:
    assert pareto.front(points) == plain_front(points)
    assert pareto.layers(points) == plain_layers(points)


@given(clouds())
def test_archive_keeps_the_earliest_of_equal_points(points: list[tuple[float, ...]]) -> None:
    kept = pareto.archive(points)
    assert {points[i] for i in kept} == {points[i] for i in pareto.front(points)}
    assert all(points.index(points[i]) == i for i in kept)


def test_epsilon_net_starts_at_the_knee_and_then_goes_far() -> None:
    points = [(0.0, 1.0), (0.1, 0.2), (0.15, 0.19), (1.0, 0.0)]
    # 0 and 3 are about equally far from 1; 3 is the farther one, and 2, next to the start, comes last.
    assert pareto.epsilon_net_order(points) == [1, 3, 0, 2]
    assert pareto.epsilon_net_order([(1.0, 1.0), (1.0, 1.0)], [7, 3]) == [1, 0], "ties go to the smaller number"
    assert list(pareto.best_first([])) == []


def plain_hypervolume(points: list[tuple[float, float]], reference: tuple[float, float]) -> float:
    volume, top = 0.0, reference[1]
    for x, y in sorted(p for p in points if p[0] < reference[0] and p[1] < reference[1]):
        if y < top:
            volume += (reference[0] - x) * (top - y)
            top = y
    return volume


@given(st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3)), max_size=20))
def test_hypervolume_equals_a_plain_sweep(points: list[tuple[float, float]]) -> None:
    assert pareto.hypervolume(points, (1.0, 2.0)) == pytest.approx(plain_hypervolume(points, (1.0, 2.0)), abs=1e-12)


def test_hypervolume_in_other_dimensions() -> None:
    assert pareto.hypervolume([], (1.0,)) == 0.0
    assert pareto.hypervolume([(3.0,), (1.0,)], (2.0,)) == pytest.approx(1.0)
    assert pareto.hypervolume([(0.0, 0.0, 0.0), (5.0, -9.0, 0.0)], (1.0, 2.0, 3.0)) == pytest.approx(6.0)
    assert pareto.hypervolume([(0.0,) * 5], (2.0,) * 5) == pytest.approx(32.0)
    assert pareto.hypervolume([(1.0, 0.0), (0.0, 1.0)], (1.0, 1.0)) == 0.0, "the border of the box adds nothing"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0, 3.0], 3.2), ([10.0], 10.1), ([-10.0], -9.9), ([1.0, 1.1, 1.2, 1.3, 1000.0], 1.33),
        ([5.0, 5.0], 5.05), ([0.0] * 6 + [3.0], 0.3), ([0.0, 0.0], 0.1),
    ],
)  # fmt: skip
def test_reference_coordinate(values: list[float], expected: float) -> None:
    assert pareto.reference_coordinate(values) == pytest.approx(expected)
    assert math.isfinite(pareto.reference_coordinate(values))
