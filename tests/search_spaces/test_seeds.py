"""Seeds by hashing: they are part of what a stored study means, and must never change."""

from __future__ import annotations

from search_spaces.derived_seeds import derived_seed, derived_uniform, fresh_seed


def test_derived_numbers_tell_their_parts_apart_are_spread_and_never_change() -> None:
    seeds = {derived_seed("ask", a, b) for a in range(30) for b in range(30)}
    assert len(seeds) == 900
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert derived_seed(1, 23) != derived_seed(12, 3)
    assert derived_seed("ask", 0, 0) == 1528054851
    assert derived_seed("candidate", 7, 12) == 2809151448
    assert fresh_seed("confirm", 0, 3, 1) == 1298528258
    assert all(0 <= fresh_seed("confirm", 5, trial, 0) < 2**31 for trial in range(100))
    numbers = [derived_uniform(0, trial, 3) for trial in range(400)]
    assert all(0.0 <= number < 1.0 for number in numbers)
    assert abs(sum(numbers) / len(numbers) - 0.5) < 0.05
    assert derived_uniform(0, 4, 9) == 0.3084699918035769
