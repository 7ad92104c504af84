"""Tables of learning curves: what is read, what is refused, and tables made of tables."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from search_spaces.space import Space
from studies.records.records import Objective
from studies.simulation.recorded_curves import (
    CurvesError,
    find_tables,
    pooled,
    read_table,
    with_price_factors,
    with_world_sizes,
)
from studies.simulation.simulated_study import simulate
from tests.support.curve_tables import arrays, table, write


def test_a_table_is_what_was_written(tmp_path: Path) -> None:
    content = arrays(count=20, epochs=5)
    read = read_table(write(tmp_path, content))
    assert (read.name, len(read), read.epochs) == ("made-up", 20, 5)
    for params, row in zip(read.params, content["params"], strict=True):
        read.space.check(params)
        assert list(params.values()) == list(row)
    assert read.params[0]["width"].__class__ is int
    assert np.array_equal(read.metrics["val_loss"], content["metric_val_loss"])
    assert np.array_equal(read.statics["model_size"], content["static_model_size"])
    assert read.notes == ()


def test_an_accuracy_has_an_error_beside_it_and_each_validation_metric_its_test_twin(tmp_path: Path) -> None:
    read = table(tmp_path)
    assert np.allclose(read.metrics["val_error"], 1 - read.metrics["val_accuracy"] / 100)
    assert np.allclose(read.metrics["test_error"], 1 - read.metrics["test_accuracy"])
    assert read.about["val_error"].direction == "minimize"
    assert read.about["test_error"].split == "test"
    content = arrays()
    meta = json.loads(content["meta_json"])
    meta["metrics"]["test_balanced_accuracy"] = meta["metrics"].pop("test_accuracy")
    content["metric_test_balanced_accuracy"] = content.pop("metric_test_accuracy")
    read = read_table(write(tmp_path, content | {"meta_json": json.dumps(meta)}))
    assert read.test_metric("val_loss") == "test_loss"
    assert read.test_metric("val_error") == "test_balanced_error"
    assert read.test_metric("model_size") is None


def test_huge_values_are_clipped_and_said_and_infinite_ones_diverge(tmp_path: Path) -> None:
    content = arrays()
    content["metric_val_loss"][3, 4:] = 1e19
    content["metric_val_loss"][5, 2:] = np.inf
    content["metric_val_loss"][6, 2:] = np.nan
    read = read_table(write(tmp_path, content))
    losses = read.metrics["val_loss"]
    assert 3 < losses[3, 4] < 1000
    assert np.isnan(losses[5, 2:]).all()
    assert np.isnan(losses[6, 2:]).all()
    assert np.array_equal(losses[:3], content["metric_val_loss"][:3])
    assert len(read.notes) == 1
    assert "val_loss: 8 values" in read.notes[0]


def broken(**changes: Any) -> dict[str, Any]:
    return arrays() | changes


def other_meta(**changes: Any) -> dict[str, Any]:
    return broken(meta_json=json.dumps(json.loads(arrays()["meta_json"]) | changes))


def branching(*, space: Any = None, row: Any = None) -> dict[str, Any]:
    """Three configurations of a space with a choice and its child."""
    form = {
        "optimizer": ["sgd", "adam"],
        "momentum": {"type": "float", "low": 0.0, "high": 0.99, "when": {"optimizer": "sgd"}},
    }
    rows = [{"optimizer": "sgd", "momentum": 0.5}, {"optimizer": "adam"}, {"optimizer": "sgd", "momentum": 0.0}]
    texts = [json.dumps(one) for one in rows]
    if row is not None:
        texts[1] = row if isinstance(row, str) else json.dumps(row)
    meta = {
        "format": "curves-v2",
        "name": "branching",
        "space": form if space is None else space,
        "metrics": {"val_loss": {"direction": "minimize", "split": "validation"}},
    }
    return {
        "meta_json": json.dumps(meta),
        "params_json": np.array(texts),
        "seconds": np.cumsum(np.ones((3, 4)), axis=1),
        "metric_val_loss": np.linspace(1.0, 0.5, 12).reshape(3, 4),
        "again_rows": np.array([0]),
    }


def test_a_table_may_have_choices_and_children_of_them(tmp_path: Path) -> None:
    content = branching()
    read = read_table(write(tmp_path, content))
    assert read.space == Space.from_dict(json.loads(content["meta_json"])["space"])
    assert [dict(one) for one in read.params] == [json.loads(one) for one in content["params_json"].tolist()]
    study = simulate(read, objectives=[Objective(metric="val_loss")], slots=1, budget_full_trials=6.0)
    assert {tuple(sorted(trial.params)) for trial in study.record.started} == {
        ("momentum", "optimizer"),
        ("optimizer",),
    }


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"x": np.zeros(2)}, "it has no array meta_json"),
        (broken(meta_json="{"), "not JSON"),
        (other_meta(format="curves-v3"), "found 'curves-v3', allowed: curves-v1, curves-v2"),
        (other_meta(format="curves-v2"), "it has no array params_json, which the format curves-v2 requires"),
        (branching(space={"rate": {"type": "float", "low": 2.0, "high": 1.0}}), "space: rate.low: found 2.0"),
        (branching(space=["rate"]), "meta_json: space: found"),
        (branching(row={"optimizer": "adam", "momentum": 0.9}), "params_json: row 1: momentum: found 0.9, but"),
        (branching(row={"optimizer": "lion"}), "params_json: row 1: optimizer: found 'lion'"),
        (branching(row=[1]), "params_json: row 1: "),
        (branching(row="{"), "params_json: row 1: "),
        (other_meta(params={"rate": {"type": "text"}}), "params.rate.type"),
        (other_meta(params={"rate": {"type": "float", "low": 0.1}}), "it has no high"),
        (
            other_meta(params={"rate": {"type": "float", "low": 2.0, "high": 1.0}}),
            "meta_json: params.rate: low: found 2.0",
        ),
        (broken(seconds=np.zeros((60, 12))), "seconds: a full training takes 0 seconds"),
        (other_meta(metrics={}), "metrics.val_loss.direction"),
        (broken(params=np.zeros((60, 3))), "params: the shape is (60, 3) instead of (60, 2)"),
        (broken(params=np.zeros((60, 2))), "row 0, rate: found 0.0"),
        (broken(seconds=np.zeros((60, 12)) - 1), "seconds"),
        (broken(seconds=np.tile(np.arange(12)[::-1], (60, 1))), "seconds"),
        (broken(metric_val_loss=np.zeros((60, 11))), "metric_val_loss: the shape is (60, 11)"),
        (broken(metric_val_loss=np.full((60, 12), np.nan)), "no finite value"),
        (broken(static_model_size=np.full(60, np.nan)), "static_model_size"),
        (broken(static_cost_usd=np.ones(60)), "cost_usd"),
    ],
)
def test_a_wrong_table_is_refused_in_one_line(tmp_path: Path, content: dict[str, Any], says: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(CurvesError) as refused:
        read_table(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_nothing_is_unpickled_and_what_is_no_file_of_arrays_is_refused(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (pytest.fail, ("it was unpickled",))

    path = tmp_path / "bomb.npz"
    np.savez(path, **(arrays() | {"params": np.array([Bomb()], dtype=object)}))
    with pytest.raises(CurvesError):
        read_table(path)
    (tmp_path / "text.npz").write_text("no table")
    with pytest.raises(CurvesError, match="cannot be read"):
        read_table(tmp_path / "text.npz")
    with pytest.raises(CurvesError, match="no such file"):
        find_tables([tmp_path / "absent.npz"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(CurvesError, match=r"no \.npz file"):
        find_tables([tmp_path / "empty"])


def test_folders_are_searched_in_the_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    for file in ("b.npz", "a.npz", "inner/c.npz"):
        write(tmp_path, arrays(), file)
    assert [path.name for path in find_tables([tmp_path])] == ["a.npz", "b.npz", "c.npz"]


def test_pooled_tables_are_one_whose_rows_say_where_they_are_from(tmp_path: Path) -> None:
    one, other = table(tmp_path, name="one"), table(tmp_path, name="other", seed=1, count=30)
    both = pooled([one, other])
    assert len(both) == 90
    assert [params["table"] for params in both.params] == ["one"] * 60 + ["other"] * 30
    for params in both.params:
        both.space.check(params)
    assert np.array_equal(both.metrics["val_loss"][60:], other.metrics["val_loss"])
    assert np.array_equal(both.statics["model_size"][60:], other.statics["model_size"])
    assert pooled([one]) is one
    with pytest.raises(CurvesError, match="Give each table its own name"):
        pooled([one, one])
    with pytest.raises(CurvesError, match="epochs"):
        pooled([one, table(tmp_path, name="short", epochs=5)])


def test_a_dearer_device_costs_more_and_more_ranks_are_faster_and_cost_more(tmp_path: Path) -> None:
    plain = table(tmp_path)
    dear = with_price_factors(plain, (1.0, 4.0))
    ratio = dear.full_trial_usd(1.0) / plain.full_trial_usd(1.0)
    assert set(ratio.round(9)) == {1.0, 4.0}
    assert np.array_equal(with_price_factors(plain, (1.0, 4.0)).seconds, dear.seconds)
    assert dear.metrics is plain.metrics
    plain = table(tmp_path)
    wide = with_world_sizes(plain, (1, 2, 4), 0.9)
    assert len(wide) == 3 * len(plain)
    assert list(wide.world_sizes[::60]) == [1, 2, 4]
    assert np.allclose(wide.seconds[60:120] * 1.8, plain.seconds)
    assert np.allclose(wide.full_trial_usd(1.0)[120:], plain.full_trial_usd(1.0) / 0.81)
    for params in wide.params:
        wide.space.check(params)
