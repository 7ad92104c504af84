"""Greedy selection of an ensemble with replacement, against examples by hand."""

from collections.abc import Sequence

from automl.exporting.ensembles import selected

TARGETS = (0.0, 0.0, 0.0)
A, B, C = (1.0, 1.0, 0.0), (-2.0, -2.0, 0.0), (3.0, 3.0, 3.0)


def mean(answers: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(sum(values) / len(answers) for values in zip(*answers, strict=True))


def squares(answers: tuple[float, ...]) -> tuple[float]:
    return (sum((one - target) ** 2 for one, target in zip(answers, TARGETS, strict=True)),)


def test_examples_by_hand() -> None:
    """Errors alone: A 2, B 8, C 27. A first; A + B has 2 (-0.5)² = 0.5; A + B + A has 0, since 1 - 2 + 1 = 0."""
    assert selected([B, A, C], mean, squares, 1) == [0, 1, 0]
    assert selected([B, A, C], mean, squares, 2) == [1, 1, 0]
    assert selected([B, A, C], mean, squares, 3) == [1, 2, 0]
    assert selected([B, A, C], mean, squares, 20) == [1, 2, 0], "the best beginning, and the smaller of equal ones"
    assert selected([(0.0, 0.0, 0.0), A], mean, squares, 5) == [1, 0]
    assert selected([A, A], mean, squares, 1) == [1, 0], "of equal members the first"
