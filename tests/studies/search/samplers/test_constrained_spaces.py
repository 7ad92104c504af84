"""Every sampler keeps the constraints of the space, also where hardly any configuration does."""

from pathlib import Path
from typing import Any

import pytest

from search_spaces.space import Space
from studies.money.budget import Limits
from studies.search.policy import Policy
from studies.search.pruners.none import NoPruner
from studies.search.samplers.optuna_suggester import OptunaSuggester
from tests.support.simulated_study import SimulatedStudy

SPACE = Space.from_dict(
    {
        "learning_rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
        "width": (16, 256),
        "layers": (1, 8),
        "optimizer": ["sgd", "adam"],
        "momentum": {"type": "float", "low": 0.0, "high": 0.99, "when": {"optimizer": "sgd"}},
        "constraints": ["layers * width <= 96", "momentum < 0.9", "learning_rate * width < 2"],
    }
)


def keeps(params: Any) -> bool:
    """Computed by hand, not by what is tested."""
    return (
        params["layers"] * params["width"] <= 96
        and params.get("momentum", 0.0) < 0.9
        and params["learning_rate"] * params["width"] < 2
    )


@pytest.mark.medium
@pytest.mark.parametrize(
    ("sampler", "trials"), [("random", 24), ("tpe", 24), ("nsga2", 24), ("gp", 13), ("cokriging", 14)]
)
def test_no_suggestion_violates_a_constraint(tmp_path: Path, sampler: str, trials: int) -> None:
    """Optuna's `gp` takes seconds for each suggestion after its first ten."""
    study = SimulatedStudy(tmp_path, space=SPACE, sampler=sampler, policy=Policy(pruner=NoPruner()), epochs=3, slots=2)
    study.run(Limits(trials=trials))
    tried = [trial.params for trial in study.record().started]
    assert len(tried) == trials
    assert all(map(keeps, tried))
    assert len({str(sorted(params.items())) for params in tried}) > trials - 4, "they differ all the same"


def test_hardly_any_configuration_is_allowed_and_yet_all_suggestions_are() -> None:
    """One configuration in 60 is: an Optuna sampler alone would need hundreds of draws."""
    space = Space.from_dict({"x": (1, 60), "y": (1, 60), "constraints": ["x == y"]})
    suggester = OptunaSuggester(space=space, directions=("minimize",), sampler="tpe", seed=0, study_attributes={})
    assert all(one["x"] == one["y"] for one in (suggester.suggest(n, ()).params for n in range(5)))
