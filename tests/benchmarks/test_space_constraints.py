"""A small part of `benchmarks/space_constraints.py`; test_constrained_spaces.py has the other samplers."""

import pytest
import space_constraints as benchmark


@pytest.mark.medium
@pytest.mark.parametrize("sampler", ["auto", "tpe"])
def test_no_suggestion_violates_a_constraint(sampler: str) -> None:
    tried = benchmark.study(sampler, seed=0, trials=14)
    assert tried[0]["layers"] == 8, "a first trial of the spec"
    assert (tried[1]["optimizer"], tried[1]["width"]) == ("sgd", 64)
    assert len({str(params) for params in tried}) > 10
    assert all(map(benchmark.keeps, tried))
