"""Studies over recorded curves: that they are the table's, cost what it says, and are scored on its scale."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from search_scoring import share_at, steps, usd_to_reach, yardstick

from automl.cli import cli
from search_spaces.space import Space
from studies.records.records import NANO, Constraint, Objective
from studies.search.acquisition.acquisition import INITIAL_TRIALS
from studies.simulation.recorded_curves import CurvesError, CurveTable, read_table, with_world_sizes
from studies.simulation.setting import Candidates, shared_milestones
from studies.simulation.simulated_study import SimulatedStudy, simulate
from studies.spec.spec_errors import SpecError
from studies.storage.study_store import Store
from tests.support.command_line import InProcess
from tests.support.curve_tables import arrays, table, write
from tests.support.simulated_study import check_epochs, essence

ERROR, SIZE, DOLLARS = Objective(metric="val_error"), Objective(metric="model_size"), Objective(metric="cost_usd")


def study(of: CurveTable, **changes: Any) -> SimulatedStudy:
    settings: dict[str, Any] = {
        "objectives": (ERROR, SIZE), "slots": 3, "budget_full_trials": 8, "sampler": "random", "pruner": "mo_asha",
    }  # fmt: skip
    return simulate(of, **(settings | changes))


def row_of(of: CurveTable, params: Any) -> int:
    return of.params.index(dict(params))


# ---------------------------------------------------------------------- it is the table that is replayed


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_every_trial_is_a_row_of_its_own_and_measures_what_the_row_has(tmp_path: Path, sampler: str) -> None:
    made_up = table(tmp_path)
    record = study(made_up, sampler=sampler).record
    check_epochs(record)
    assert len(record.started) > 8
    rows = [row_of(made_up, trial.params) for trial in record.started]
    assert len(set(rows)) == len(rows)
    for row, trial in zip(rows, record.started, strict=True):
        for epoch in trial.epochs:
            assert epoch.metrics["val_error"] == made_up.metrics["val_error"][row, epoch.epoch - 1]
            assert epoch.metrics["model_size"] == made_up.statics["model_size"][row]
            assert not [name for name in epoch.metrics if name.startswith("test")]


def test_a_trial_costs_its_seconds_and_its_start_at_the_price_of_its_slots(tmp_path: Path) -> None:
    made_up = with_world_sizes(table(tmp_path), (1, 2), 0.9)
    record = study(made_up, objectives=(ERROR, DOLLARS), usd_per_slot_hour=3.0, start_epochs=0.5).record
    sizes = set()
    for trial in (trial for trial in record.started if len(trial.attempts) == 1 and trial.epochs):
        row = row_of(made_up, trial.params)
        sizes.add(trial.world_size)
        assert trial.world_size == trial.params["world_size"] == len(trial.attempts[0].slots)
        for epoch in trial.epochs:
            seconds = made_up.seconds[row, epoch.epoch - 1] + 0.5 * made_up.mean_epoch_seconds[row]
            assert epoch.metrics["cost_usd"] == pytest.approx(seconds * trial.world_size * 3.0 / 3600, rel=1e-6)
    assert sizes == {1, 2}


def test_a_small_table_is_used_up_and_larger_ones_have_a_budget_of_mean_trainings_which_is_kept(tmp_path: Path) -> None:
    made_up = table(tmp_path)
    done = study(made_up, usd_per_slot_hour=2.0)
    assert done.budget_usd == pytest.approx(8 * made_up.seconds[:, -1].mean() * 2.0 / 3600)
    assert 0.8 * done.budget_usd < done.record.cost_nano_usd / NANO <= done.budget_usd
    assert done.record.stop_reason == "budget_usd"
    assert done.wall_seconds * 3 * 2.0 / 3600 == pytest.approx(done.record.cost_nano_usd / NANO, rel=1e-6)
    done = study(table(tmp_path, count=5), budget_full_trials=50, pruner="none")
    assert [trial.state for trial in done.record.trials] == ["complete"] * 5
    assert done.record.stop_reason == "budget_trials"


def test_a_configuration_that_has_no_number_diverges(tmp_path: Path) -> None:
    content = arrays()
    content["metric_val_loss"][::2, 4:] = np.nan
    made_up = read_table(write(tmp_path, content))
    record = study(made_up, objectives=(Objective(metric="val_loss"), SIZE), pruner="none").record
    diverged = [trial for trial in record.started if trial.failure == "diverged"]
    assert diverged
    assert {row_of(made_up, trial.params) % 2 for trial in diverged} == {0}
    assert {len(trial.epochs) for trial in diverged} == {4}
    assert all(row_of(made_up, trial.params) % 2 for trial in record.started if trial.state == "complete")


def test_faults_are_paid_and_survived(tmp_path: Path) -> None:
    made_up = table(tmp_path)
    calm, stormy = study(made_up), study(made_up, fault_rate=1.0)
    end = max(charge.charged_at for charge in calm.record.charges)
    lost = [charge for charge in calm.record.charges if charge.kind == "lost" and charge.trial is not None]
    assert not [charge for charge in lost if charge.charged_at < end], "only the end of the budget cuts epochs"
    assert [charge for charge in stormy.record.charges if charge.kind == "lost" and charge.trial is not None]
    assert any(len(trial.attempts) > 1 for trial in stormy.record.started)
    assert not [trial for trial in stormy.record.started if trial.state == "failed"]


# ---------------------------------------------------------------------- it can be had again, and kept


@pytest.mark.medium
def test_a_seed_gives_the_same_study_and_another_seed_another(tmp_path: Path) -> None:
    made_up = table(tmp_path)
    for sampler in ("random", "nsga2"):
        one, same, other = (essence(study(made_up, sampler=sampler, seed=seed).record) for seed in (1, 1, 2))
        assert one == same
        assert one != other


@pytest.mark.medium
def test_a_study_in_a_store_is_the_one_in_memory(tmp_path: Path) -> None:
    made_up = table(tmp_path)
    store = Store(f"sqlite:///{tmp_path}/kept.db")
    # Halves of seconds that are whole 256ths: exact, whatever the clock shows at first.
    kept = study(made_up, store=store, study="kept", sampler="tpe", start_epochs=0.5)
    brief = study(made_up, sampler="tpe", start_epochs=0.5)
    assert essence(kept.record) == essence(brief.record)
    assert kept.record.state == brief.record.state == "closed"
    assert kept.record.cost_nano_usd == brief.record.cost_nano_usd
    assert kept.record.reference_point == brief.record.reference_point is not None
    assert [(m.trial, m.epoch, m.values) for m in kept.milestones] == [
        (m.trial, m.epoch, m.values) for m in brief.milestones
    ]
    assert kept.record.alive_seconds == pytest.approx(kept.wall_seconds)
    with pytest.raises(CurvesError, match="exists already in the store"):
        study(made_up, store=store, study="kept")


def test_wrong_objectives_and_names_are_refused(tmp_path: Path) -> None:
    made_up = table(tmp_path)
    with pytest.raises(CurvesError, match="did you mean 'val_error'"):
        study(made_up, objectives=(Objective(metric="val_eror"),))
    with pytest.raises(CurvesError, match="test_error"):  # the search must not see it
        study(made_up, objectives=(Objective(metric="test_error"),))
    with pytest.raises(CurvesError, match="each metric once"):
        study(made_up, objectives=(ERROR, ERROR))
    with pytest.raises(SpecError, match=r"search\.sampler"):
        study(made_up, sampler="rundom")


# ---------------------------------------------------------------------- candidates


def test_a_suggestion_becomes_the_nearest_configuration_that_is_left(tmp_path: Path) -> None:
    made_up = table(tmp_path)
    candidates = Candidates(made_up.space, made_up.params)
    for row, params in enumerate(made_up.params):
        assert candidates.nearest(params) == candidates.row_of(params) == row
    candidates.take(7)
    second = candidates.nearest(made_up.params[7])
    assert second != 7
    logs = np.array(
        [[math.log(p["rate"]) / math.log(1e4), math.log(p["width"]) / math.log(32)] for p in made_up.params]
    )
    distance = ((logs - logs[7]) ** 2).sum(axis=1)
    distance[7] = np.inf
    assert second == int(np.argmin(distance))


def test_another_choice_is_farther_than_any_number_that_differs_little() -> None:
    space = Space.from_dict(
        {"x": {"type": "float", "low": 0.0, "high": 1.0}, "kind": {"type": "categorical", "choices": ["a", "b"]}}
    )
    rows = [{"x": 0.5, "kind": "a"}, {"x": 0.1, "kind": "b"}]
    assert Candidates(space, rows).nearest({"x": 0.5, "kind": "b"}) == 1


# ---------------------------------------------------------------------- scores


def test_the_milestones_of_all_policies_are_one_set() -> None:
    assert shared_milestones(52) == (2, 3, 4, 5, 6, 9, 11, 13, 19, 24, 27, 28, 41, 52)
    assert shared_milestones(4)[-1] == 4


def test_a_study_that_trains_everything_has_all_of_the_hypervolume(tmp_path: Path) -> None:
    made_up = table(tmp_path)
    done = study(made_up, budget_full_trials=200, pruner="none")
    for scored_on in ("validation", "test"):
        by = yardstick(made_up, (ERROR, SIZE), scored_on=scored_on)
        found = steps(done, by)
        assert found[-1].share == pytest.approx(1.0)
        assert found[0].share == 0.0
        assert [step.share for step in found] == sorted(step.share for step in found)
    reached = usd_to_reach(found, 0.5)
    assert reached is not None
    assert share_at(found, reached) >= 0.5 > share_at(found, reached * 0.999)
    assert usd_to_reach(found, 1.5) is None


def test_test_scores_are_those_of_the_test_metrics_and_the_reference_point_holds_full_trainings(tmp_path: Path) -> None:
    made_up = table(tmp_path)
    done = study(made_up, objectives=(ERROR, DOLLARS))
    spent = [milestone.spent_usd for milestone in done.milestones]
    assert spent == sorted(spent)
    assert spent[-1] <= done.budget_usd
    assert {milestone.epoch for milestone in done.milestones} <= set(shared_milestones(12))
    for milestone in done.milestones:
        assert milestone.test_values[0] == made_up.metrics["test_error"][milestone.row, milestone.epoch - 1]
        assert milestone.values[0] == made_up.metrics["val_error"][milestone.row, milestone.epoch - 1]
        assert milestone.test_values[1] == milestone.values[1] > 0
    made_up = table(tmp_path)
    by = yardstick(made_up, (ERROR, DOLLARS), usd_per_slot_hour=2.0, start_epochs=0.3)
    dollars = (made_up.seconds[:, -1] + 0.3 * made_up.mean_epoch_seconds) * 2.0 / 3600
    assert by.reference[1] == pytest.approx(dollars.max() + 0.1 * (dollars.max() - dollars.min()))


# ---------------------------------------------------------------------- the command


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["simulate", *arguments])


def test_the_command_prints_one_document(tmp_path: Path) -> None:
    path = write(tmp_path, arrays())
    ran = invoke(
        str(path), "--objective", "val_error:min", "--objective", "static:model_size:min", "--sampler", "random",
        "--pruner", "{name: mo_asha, variant: promotion}", "--seeds", "0:3", "--slots", "2", "--json",
    )  # fmt: skip
    assert ran.exit_code == 0, ran.output
    document = json.loads(ran.stdout)
    assert [row["seed"] for row in document["studies"]] == [0, 1, 2]
    for row in document["studies"]:
        assert row["archive"]
        assert sum(row["charges"].values()) == pytest.approx(row["cost_usd"])


@pytest.mark.medium
def test_the_command_pools_and_keeps(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path, arrays(name=name, seed=len(name)), f"{name}.npz")
    url = f"sqlite:///{tmp_path}/kept.db"
    ran = invoke(
        str(tmp_path), "--pool", "--objective", "val_accuracy:max", "--objective", "cost_usd:min", "--sampler",
        "random", "--store", url, "--study", "mine", "--price-factors", "1,2", "--world-sizes", "1,2",
    )  # fmt: skip
    assert ran.exit_code == 0, ran.output
    shown = CliRunner().invoke(cli, ["status", "mine-pooled-2-0", "--store", url, "--json"])
    document = json.loads(shown.stdout)
    assert document["state"] == "closed"
    assert document["budget"]["usd"]["limit"] >= document["cost_usd"] > 0
    assert {point["values"]["val_accuracy"] > 1 for point in document["archive"]} == {True}
    page = CliRunner().invoke(cli, ["report", "mine-pooled-2-0", "--store", url, "--out", str(tmp_path / "page.html")])
    assert page.exit_code == 0, page.output


@pytest.mark.medium
def test_nothing_is_simulated_if_one_of_the_studies_is_there_already(tmp_path: Path) -> None:
    path, url = write(tmp_path, arrays()), f"sqlite:///{tmp_path}/kept.db"
    wanted = (str(path), "--objective", "val_error:min", "--sampler", "random", "--store", url)
    assert invoke(*wanted, "--seeds", "1").exit_code == 0
    again = invoke(*wanted, "--seeds", "0:2")
    assert "exists already in the store" in str(again.exception)
    assert Store(url).study_names() == ["simulated-made-up-1"]
    twice = invoke(str(path), *wanted)
    assert "two tables are named" in str(twice.exception)


@pytest.mark.medium
def test_what_was_simulated_cannot_go_on(tmp_path: Path) -> None:
    url, name = f"sqlite:///{tmp_path}/kept.db", "simulated-made-up-0"
    invoke(str(write(tmp_path, arrays())), "--objective", "val_error:min", "--sampler", "random", "--store", url)
    for command, *more in (["resume"], ["confirm"], ["enqueue", "--param", "rate=0.1"], ["export", "0", "--out", "m"]):
        ran = CliRunner().invoke(cli, [command, name, *more, "--store", url])
        assert str(ran.exception).startswith(
            f"'{name}' was simulated, so it cannot run. Name a study that was launched"
        )
    shown = CliRunner().invoke(cli, ["status", name, "--store", url]).output
    assert "nothing to export" in shown
    assert "automl export" not in shown
    assert "automl sync" not in shown
    out = tmp_path / "page.html"
    assert CliRunner().invoke(cli, ["report", name, "--store", url, "--out", str(out)]).exit_code == 0
    assert "The study was simulated" in out.read_text()
    assert "automl export" not in out.read_text()
    assert "automl launch spec.yaml" not in out.read_text()


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (("--objective", "val_error"), "--objective: found 'val_error', allowed: METRIC:min"),
        (("--objective", "val_error:least"), "--objective: found"),
        (("--objective", "static:val_error:min"), "found 'static:val_error:min', allowed: static:model_size"),
        (("--seeds", "3:3"), "--seeds: found '3:3'"), (("--seeds", "x"), "--seeds: found 'x'"),
        (("--seeds", "0:5000000000"), "--seeds: found '0:5000000000'"),
        (("--price-factors", "1,-2"), "--price-factors: found '1,-2'"),
        (("--world-sizes", "8"), "--world-sizes: 8 ranks need more than the 4 slots. Set --slots"),
        (("--world-sizes", "1.5"), "--world-sizes: found '1.5'"), (("--world-sizes", ""), "--world-sizes: found ''"),
        (("--price", "nan"), "'--price': found nan, allowed: a finite number"),
        (("--faults", "nan"), "'--faults': found nan"), (("--start-epochs", "inf"), "'--start-epochs': found inf"),
        (("--pruner", "{name"), "--pruner: the text is not YAML"), (("--pruner", "{name: mo_asha, etta: 3}"), "etta"),
        (("--constraint", "model_size:5"), "--constraint: found 'model_size:5', allowed: METRIC:min:NUMBER"),
        (("--constraint", "model_size:most:5"), "allowed: METRIC:min:NUMBER"),
        (("--constraint", "model_size:max:nan"), "allowed: METRIC:min:NUMBER"),
        (("--constraint", "model_sise:max:5"), "constraint: found 'model_sise', allowed: val_loss"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(tmp_path, capsys, monkeypatch, option, says):
    objective = () if option[0] == "--objective" else ("--objective", "val_error:min")
    words = ("simulate", str(write(tmp_path, arrays())), *objective, *option)
    assert says in InProcess(tmp_path, capsys, monkeypatch).refused(*words)


# ---------------------------------------------------------------------- constraints


@pytest.mark.medium
@pytest.mark.parametrize(
    ("search", "side"), [(("cokriging", "break_even"), "max"), (("tpe", "mo_asha"), "min"), (("random", "none"), "max")]
)
def test_only_models_that_keep_the_constraints_count(tmp_path: Path, search: tuple[str, str], side: str) -> None:
    made_up = table(tmp_path)
    bound = float(np.median(made_up.statics["model_size"]))
    constraints = (Constraint(metric="model_size", **{side: bound}), Constraint(metric="val_error", max=0.5))
    found = study(made_up, sampler=search[0], pruner=search[1], objectives=(ERROR, DOLLARS), constraints=constraints)
    assert found.record.constraints == constraints
    assert found.milestones
    for one in found.milestones:
        size = made_up.statics["model_size"][one.row]
        assert size <= bound if side == "max" else size >= bound
        assert one.values[0] <= 0.5
    by = yardstick(made_up, (ERROR, DOLLARS), constraints=constraints)
    assert by.hypervolume < yardstick(made_up, (ERROR, DOLLARS)).hypervolume
    assert 0 < steps(found, by)[-1].share <= 1 + 1e-9


@pytest.mark.medium
def test_a_constant_may_be_maximised_and_ours_starts_what_is_known_to_keep_a_constraint(tmp_path: Path) -> None:
    """Sizes are known before training here, so beyond the first ones and random ones nobody breaks the bound."""
    made_up = table(tmp_path)
    bound = float(np.median(made_up.statics["model_size"]))
    found = study(
        made_up, sampler="cokriging", pruner="break_even", objectives=(ERROR, DOLLARS),
        constraints=(Constraint(metric="model_size", min=bound),),
    )  # fmt: skip
    sizes = [made_up.statics["model_size"][row_of(made_up, trial.params)] for trial in found.record.started[4:]]
    assert np.mean([size >= bound for size in sizes]) > 0.75, "half of the table keeps it"
    made_up = table(tmp_path)
    larger = (ERROR, Objective(metric="model_size", direction="maximize"))
    found = study(made_up, sampler="cokriging", pruner="break_even", objectives=larger)
    assert steps(found, yardstick(made_up, larger))[-1].share > 0.8


@pytest.mark.parametrize(("least", "second"), [(0.0, "skipped"), (-3.0, "cost_usd")])
def test_a_constant_that_is_not_positive_everywhere_is_as_good_as_any(tmp_path, least, second):
    content = arrays(count=40)
    content["static_skipped"] = np.arange(40.0) + least
    of = read_table(write(tmp_path, content))
    found = study(of, objectives=(ERROR, Objective(metric=second)), budget_full_trials=3, sampler="auto", pruner="auto")
    assert found.record.state == "closed"
    assert len(found.record.started) > INITIAL_TRIALS
