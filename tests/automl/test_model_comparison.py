"""The paired comparison of two models: with the weights that the study's own metrics have."""

from pathlib import Path

import pytest

from automl.exporting.ensemble_scores import measured, part_of, weighted
from automl.exporting.manifest import manifest_of
from automl.exporting.writers import WRITERS
from automl.registry.comparison import Comparison, chance_of, compared
from tests.automl.exporting.test_standalone import Trained, trained
from tests.support.paths import ROOT
from tests.support.task_files import HEADER, people, write
from trainers.model.traced_program import traced

WEIGHTED = f"""
import sys
sys.path.insert(0, {str(ROOT / "examples")!r})
from own_task import Moons

class Weighted(Moons):
    def weights(self, targets):
        return {{"val_error": 1.0 + 99.0 * targets, "loss": 1.0 + targets}}
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trained, Trained]:
    folder = tmp_path_factory.mktemp("two")
    (folder / "weighted_moons.py").write_text(WEIGHTED)

    def one(name: str, rate: float) -> Trained:
        params = {"width": 8, "learning_rate": rate}
        return trained(folder / name, "weighted_moons:Weighted", {}, params, str(folder))

    return one("good", 0.1), one("poor", 1e-4)


@pytest.mark.parametrize("metric", ["val_error", "val_loss"])
def test_samples_count_as_in_the_study(two: tuple[Trained, Trained], tmp_path: Path, metric: str) -> None:
    good, poor = two
    assert good.source.task is not None
    champion = poor.written(tmp_path / "champion")
    found = compared([good.source], good.source.task, champion, metric, smaller_is_better=True)
    assert isinstance(found, Comparison)
    assert (found.metric, found.part) == (metric, "validation")
    assert found.new == pytest.approx(good.measured.metrics[metric], rel=1e-5)
    assert found.old == pytest.approx(poor.measured.metrics[metric], rel=1e-5)
    assert found.is_better


NUMBERS: list[list[object]] = [["a", "b"], *([one % 13, one % 7] for one in range(60))]


@pytest.mark.medium
@pytest.mark.parametrize(("rows", "target"), [([HEADER, *people(60)], "rich"), (NUMBERS, "b")])
def test_a_table_is_compared_with_its_own_package(tmp_path: Path, rows: list[list[object]], target: str) -> None:
    options = {"train": write(tmp_path / "people.csv", rows), "target": target}
    model = trained(tmp_path, "tabular", options, {"architecture": "mlp", "width": 8})
    task = model.source.task
    assert task is not None
    found = compared([model.source], task, model.written(tmp_path / "out"), "val_loss", smaller_is_better=True)
    assert isinstance(found, Comparison), found
    assert found.new == found.old == pytest.approx(model.measured.metrics["val_loss"], rel=1e-5)
    assert not found.is_better


@pytest.mark.medium
def test_an_ensemble_answers_by_its_mean_on_both_sides(two: tuple[Trained, Trained], tmp_path: Path) -> None:
    good, poor = two
    task = good.source.task
    assert task is not None
    both = [good.source, poor.source]
    origin = {"study": "t", "trial": 0, "epoch": 2, "cost_usd": 0.1}
    champion = tmp_path / "champion"
    WRITERS["package"]([traced(one.call) for one in both], manifest_of(both, origin | {"weights": [3, 1]}), champion)

    def loss(*counts: int) -> float:
        part = part_of(both, "validation")
        return measured(good.source, weighted(part.answers, counts), part.targets)["val_loss"]

    even = compared(both, task, champion, "val_loss", smaller_is_better=True)
    alone = compared([good.source], task, champion, "val_loss", smaller_is_better=True)
    assert isinstance(even, Comparison)
    assert isinstance(alone, Comparison)
    assert even.old == alone.old == pytest.approx(loss(3, 1), rel=1e-5)
    assert even.new == pytest.approx(loss(1, 1), rel=1e-5)
    assert alone.new == pytest.approx(good.measured.metrics["val_loss"], rel=1e-5)
    assert len({round(one, 6) for one in (even.old, even.new, alone.new)}) == 3


def test_whole_weights_are_repeated_samples_and_even_ones_change_nothing() -> None:
    differences = [-0.4, 0.1, -0.2, 0.3, -0.1, -0.3]
    assert chance_of(differences, [7.0] * 6) == pytest.approx(chance_of(differences), rel=1e-12)
    assert chance_of([*differences, 5.0], [1.0] * 6 + [0.0]) == pytest.approx(chance_of(differences), rel=1e-12)
    assert chance_of([-1.0, 1.0, -1.0], [1.0, 9.0, 1.0]) > 0.5
