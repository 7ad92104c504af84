"""benchmarks/search.py: the figures are what they are said to be, the contestants do what their names say."""

import importlib
import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from search_scoring import share_at, steps, yardstick

from studies.records.records import Objective
from studies.search.policy import History
from studies.simulation.recorded_curves import CurveTable, read_table
from studies.simulation.setting import START_EPOCHS
from studies.simulation.simulated_study import SimulatedStudy, simulate
from tests.support.curve_tables import arrays, table, write
from tests.support.foreign_histories import ForeignRun

OBJECTIVES = (Objective(metric="val_error"), Objective(metric="model_size"))
DOLLARS = (Objective(metric="val_error"), Objective(metric="cost_usd"))
ELSEWHERE = ("syne_moasha", "botorch_momf", "smac_mf", "smac_parego", "dehb", "ax", "neps_primo",
             "neps_mo_hyperband", "tpe_multi_metric")  # fmt: skip
"""Contestants whose environment has to be installed first."""


def line(policy: str, curve: list[list[float]], task: str = "a", seed: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "policy": policy, "task": task, "second": "size", "prices": "uniform", "slots": 4, "seed": seed,
        "full_trials": 20.0, "budget_usd": 10.0, "validation": curve, "test": curve, "seconds": 1.0,
        "calibration": [], "suggest_ms": [], "decide_ms": [], "free_slot_ms": [],
    } | more  # fmt: skip


def compared(*lines: dict[str, Any]) -> dict[int, dict[str, Any]]:
    from search_peers.figures import figures

    return {
        one["at"]: one for one in figures(list(lines), "ours")["comparisons"] if one["scored_on"] == "validation"
    }  # fmt: skip


def test_times_cheaper_is_a_ratio_of_dollars_where_both_have_something() -> None:
    theirs = line("they", [[0, 0], [2, 0.2], [4, 0.5], [8, 0.9]])
    ours = line("ours", [[0, 0], [1, 0.4], [2, 0.95]])
    found = compared(ours, theirs)
    assert found[25]["geo_mean_x_cheaper"] == pytest.approx(2 / 1)  # 0.2: at 2 dollars and at 1
    assert found[50]["geo_mean_x_cheaper"] == pytest.approx(4 / 2)  # 0.5: at 4 and at 2
    assert found[100]["geo_mean_x_cheaper"] == pytest.approx(8 / 2)  # 0.9: at 8 and at 2
    found = compared(line("ours", [[0, 0], [1, 0.4]]), line("they", [[0, 0], [2, 0.2], [6, 0.5]]))
    assert found[100]["geo_mean_x_cheaper"] == pytest.approx(6 / 15)
    found = compared(line("ours", [[0, 0], [1, 0.4]]), line("they", [[0, 0], [6, 0.4]]))
    assert set(found) == {100}
    assert found[100]["geo_mean_x_cheaper"] == pytest.approx(6.0)


def test_tasks_weigh_alike_and_the_worst_is_named() -> None:
    lines = []
    for task, seed, usd in (("good", 0, 8.0), ("good", 1, 8.0), ("good", 2, 8.0), ("bad", 0, 0.5)):
        lines += [line("ours", [[0, 0], [1, 0.5]], task, seed), line("they", [[0, 0], [usd, 0.5]], task, seed)]
    found = compared(*lines)[100]
    assert found["geo_mean_x_cheaper"] == pytest.approx(math.sqrt(8.0 * 0.5))
    assert (found["worst_task"], found["tasks"], found["seeds"]) == ("bad", 2, 3)
    assert found["worst_x"] == pytest.approx(0.5)
    # Tasks are drawn first: an interval over four studies as if they were alike would not reach either end.
    assert found["low"] == pytest.approx(0.5)
    assert found["high"] == pytest.approx(8.0)


def test_mean_curves_do_not_make_the_luck_of_one_study_the_target() -> None:
    """Both have the same two curves, by different seeds."""
    slow, quick = [[0, 0], [8, 0.8]], [[0, 0], [2, 0.8]]
    found = compared(
        line("ours", slow, seed=0), line("they", quick, seed=0),
        line("ours", quick, seed=1), line("they", slow, seed=1),
        line("ours", slow, seed=2), line("they", [[0, 0], [1, 0.9]], seed=2),
    )[100]  # fmt: skip
    assert found["geo_mean_x_cheaper"] == pytest.approx((0.25 * 4.0 * (1 / 15)) ** (1 / 3))
    same = compared(
        line("ours", slow, seed=0), line("they", quick, seed=0), line("ours", quick, seed=1), line("they", slow, seed=1)
    )
    assert [same[at]["x_cheaper_by_mean_curves"] for at in (25, 50, 100)] == [1.0, 1.0, 1.0]


def test_only_studies_of_both_with_as_much_money_are_compared() -> None:
    found = compared(
        line("ours", [[0, 0], [1, 0.5]]), line("they", [[0, 0], [2, 0.5]]), line("they", [[0, 0], [9, 0.5]], "other")
    )
    assert found[100]["tasks"] == 1
    assert found[100]["geo_mean_x_cheaper"] == pytest.approx(2.0)
    # A study with little money is compared with studies of as much money.
    from search_peers.figures import figures

    lines = [
        line(policy, [[0, 0], [usd, 0.5]], full_trials=full, slots=1)
        for policy, full, usd in (("ours", 6.0, 1.0), ("they", 6.0, 2.0), ("ours", 20.0, 1.0), ("they", 20.0, 5.0))
    ]
    found = {
        one["problem"]: one["geo_mean_x_cheaper"]
        for one in figures(lines, "ours")["comparisons"]
        if one["at"] == 100 and one["scored_on"] == "test"
    }
    assert found == {"size, 1 slots, 6 full trainings": pytest.approx(2.0), "size, 1 slots": pytest.approx(5.0)}


def test_regret_calibration_and_latency() -> None:
    from search_peers.figures import figures, printed

    rng = np.random.default_rng(0)
    mean, sd = rng.normal(size=4000), np.full(4000, 0.3)
    forecasts = np.stack([np.zeros(4000), mean, sd, mean + sd * rng.normal(size=4000)], axis=-1).tolist()
    forecasts += [[3, 0.0, 0.1, 0.2]] * 3
    document = figures(
        [
            line("ours", [[0, 0], [5, 0.75]], calibration=forecasts, suggest_ms=[[3, 2.0], [7, 4.0], [60, 9.0]]),
            line("they", [[0, 0], [10, 0.5]]),
        ],
        "ours",
    )
    regrets = {(r["policy"], r["at"]): r["regret"] for r in document["regret"] if r["scored_on"] == "test"}
    assert (regrets["ours", 25], regrets["ours", 50], regrets["they", 100]) == (1.0, 0.25, 0.5)
    ahead, calibrated = document["calibration"]
    assert (ahead["to"], ahead["within_95"], calibrated["to"]) == ("next rung", 0.0, "last epoch")
    assert ahead["bias_in_sd"] == pytest.approx(2.0)
    for part in (50, 80, 95):
        assert calibrated[f"within_{part}"] == pytest.approx(part / 100, abs=0.03)
    assert [(row["trials_from"], row["p50_ms"]) for row in document["latency"]] == [(0, 3.0), (50, 9.0)]
    assert "| size | validation | they |" in printed(document)
    json.dumps(document, allow_nan=False)


def contest(folder: Path, name: str, **changes: Any) -> SimulatedStudy:
    from search_peers.policies import CONTESTANTS

    contestant = CONTESTANTS[name]
    settings = {"objectives": OBJECTIVES, "slots": 4, "budget_full_trials": 15} | changes
    return simulate(
        table(folder, count=300), **settings, sampler=contestant.sampler, pruner=contestant.pruner
    )  # fmt: skip


@pytest.mark.medium
def test_every_contestant_plays(tmp_path: Path) -> None:
    from search_peers.policies import CONTESTANTS, available

    played = []  # some differ only in the studies that they have seen before
    for name, contestant in CONTESTANTS.items():
        if name in ELSEWHERE or not available(name) or (contestant.sampler, contestant.pruner) in played:
            continue
        played.append((contestant.sampler, contestant.pruner))
        study = contest(tmp_path, name, budget_full_trials=4)
        assert study.milestones, name
        assert study.record.state == "closed", name


@pytest.mark.parametrize("name", ELSEWHERE)
def test_contestants_of_other_environments_play(tmp_path: Path, name: str) -> None:
    from search_peers.policies import CONTESTANTS

    pruner: Any = CONTESTANTS[name].pruner
    environment = getattr(pruner, "environment", None) or importlib.import_module(pruner.__module__).ENVIRONMENT
    lacks_code = name == "tpe_multi_metric" and "OPTUNAHUB_REGISTRY" not in os.environ
    if lacks_code or not environment.is_complete:
        pytest.skip("its environment was not made yet")
    objectives = OBJECTIVES[:1] if CONTESTANTS[name].scalar else OBJECTIVES
    study = contest(tmp_path, name, objectives=objectives, budget_full_trials=4)
    assert study.record.state == "closed"
    assert len({len(trial.epochs) for trial in study.record.started}) > 1


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "objectives"),
    [
        ("gp_unpruned", OBJECTIVES),
        pytest.param("gp_unpruned", DOLLARS, marks=pytest.mark.slow),
        pytest.param("gp_unpruned_prices_known", OBJECTIVES, marks=pytest.mark.slow),
        pytest.param("gp_unpruned_prices_known", DOLLARS, marks=pytest.mark.slow),
    ],
)
def test_the_unpruned_gp_is_a_rival_to_be_reckoned_with(tmp_path, name, objectives) -> None:
    by = yardstick(table(tmp_path, count=300), objectives)
    shares = {
        policy: [steps(contest(tmp_path, policy, objectives=objectives, seed=seed), by)[-1].share for seed in range(4)]
        for policy in (name, "random")
    }
    assert np.mean(shares[name]) > np.mean(shares["random"]) + 0.02


def test_i_epoch_trains_half_of_its_budget_for_one_epoch_and_then_the_best_to_the_end(tmp_path: Path) -> None:
    record = contest(tmp_path, "i_epoch_1", budget_full_trials=12).record
    lengths = [len(trial.epochs) for trial in record.started]
    assert set(lengths) - {0} <= {1, 12, *range(2, 12)}
    assert lengths.count(1) > 20
    ended = [trial for trial in record.started if trial.state == "complete"]
    assert ended
    last_start = max(trial.started_at for trial in record.started if trial.started_at)
    first_end = min(trial.ended_at for trial in ended if trial.ended_at)
    assert first_end > last_start
    errors = [trial.epochs[0].metrics["val_error"] for trial in record.started if trial.epochs]
    assert np.mean([trial.epochs[0].metrics["val_error"] for trial in ended]) < np.mean(errors)


class GoesOn:
    """Chooses as the process of MOMF might: what was trained already, to the end, else the first offer for 5 epochs."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def __call__(self, question: Mapping[str, Any]) -> list[int] | None:
        if "best" not in question:
            return None
        asked = question["best"]
        self.asked.append(asked)
        return next(([row, 12] for row, trained in asked["offers"] if trained), [asked["offers"][0][0], 5])


def momf_study(made_up: CurveTable, ask: GoesOn) -> SimulatedStudy:
    from search_peers.botorch_momf import BotorchMomf, OneForBoth

    both = OneForBoth(lambda setting: BotorchMomf(setting, ask))
    return simulate(
        made_up, objectives=OBJECTIVES, slots=2, budget_full_trials=12, sampler=both, pruner=both, finish=0.0
    )


def test_momf_starts_with_random_pairs_then_trains_as_chosen_and_thaws(tmp_path: Path) -> None:
    ask = GoesOn()
    study = momf_study(table(tmp_path), ask)
    trials = study.record.started
    first = {row: epoch for row, epoch, *_ in [*ask.asked[0]["observed"], *ask.asked[0]["running"]]}
    full = 12 + START_EPOCHS
    assert full < sum(epoch + START_EPOCHS for epoch in first.values()) <= 2 * full
    thawed = [trial for trial in trials if len(trial.attempts) > 1]
    assert thawed
    begun_at = [trial.attempts[1].start_epoch for trial in thawed]
    assert sum(epoch not in {2, 5} for epoch in begun_at) <= 2  # single epochs that the rest of the budget was used for
    lengths = [len(trial.epochs) for trial in trials]
    assert lengths.count(12) >= len(thawed) - 2  # the last ones may have met the end of the budget
    assert set(lengths[len(first) : -4]) <= {5, 12}
    for asked in ask.asked:  # a running trial goes to a fidelity, and is observed at lower ones alone
        until = dict(asked["running"])
        assert set(until.values()) <= {2, 5, 12}
        assert all(epoch < until.get(row, 13) for row, epoch, *_ in asked["observed"])
        assert all(trained in {0, 2, 5} for _, trained in asked["offers"])


def test_momf_learns_that_diverged_trials_are_as_bad_as_can_be(tmp_path: Path) -> None:
    content = arrays()
    for metric in ("metric_val_loss", "metric_val_accuracy"):
        content[metric][::3, 3:] = np.nan
    ask = GoesOn()
    made_up = read_table(write(tmp_path, content))
    study = momf_study(made_up, ask)
    failed = {trial.params["rate"] for trial in study.record.started if trial.failure == "diverged"}
    assert failed
    last = ask.asked[-1]
    worst = [one for one in last["observed"] if one[2] == last["reference"][0]]
    assert {made_up.params[row]["rate"] for row, *_ in worst} <= failed
    assert worst
    assert all(size == content["static_model_size"][int(row)] for row, _, _, size in worst)


HALVES = """
import sys
sys.path.insert(0, {peers!r})
from ask_tell_bridge import serve

class Halves:
    # Two epochs of three new configurations each, then the best of them to the end, twice: nothing is left to train.
    def __init__(self, order, near):
        self.near, self.told, self.epochs = near, [], order["epochs"]

    def ask(self):
        if len(self.told) >= 3:
            best, self.told = min(self.told), []
            self.again = best[1]
            return self.again, self.epochs, None
        if getattr(self, "again", None) is not None:
            row, self.again = self.again, None
            return row, self.epochs, None
        row, _ = self.near({{"rate": 0.03, "width": 100}})
        return row, 2, row

    def tell(self, job, values, usd):
        if job is not None:
            self.told.append((values[0], job))

serve(Halves)
"""


class ThisInterpreter:
    """The environment of the tests."""

    def python(self) -> Path:
        return Path(sys.executable)


def test_a_rival_with_ask_and_tell_trains_what_is_near_and_goes_on_from_there(tmp_path: Path) -> None:
    import bridge
    from search_peers import ask_tell

    script = tmp_path / "halves_bridge.py"
    script.write_text(HALVES.format(peers=str(ask_tell.HERE)))
    process = bridge.Bridge(script, ThisInterpreter())
    questions: list[dict[str, Any]] = []
    asked: dict[int, tuple[int, int]] = {}

    def ask(question: Mapping[str, Any]) -> Any:
        questions.append(dict(question))
        answer = process.ask(question)
        if "job" in answer:
            asked[answer["job"][2]] = tuple(answer["job"][:2])
        return answer

    made_up, both = table(tmp_path), ask_tell.Rival("dehb")
    both.ask = ask
    study = simulate(
        made_up, objectives=(Objective(metric="val_error"),), slots=2, budget_full_trials=8, sampler=both, pruner=both,
        finish=0.0,
    )  # fmt: skip
    process.close()
    trained = [trial.params for trial in study.record.started]
    rows = [question["row"] for question in questions if "row" in question]
    assert trained == [made_up.params[row] for row in rows[: len(trained)]]
    assert len(set(rows)) == len(rows), "each row is used once"
    told = [question["tell"] for question in questions if "tell" in question]
    assert len({number for number, *_ in told}) == len(told)
    for number, values, _usd in told:
        row, epochs = asked[number]
        assert values == [made_up.metrics["val_error"][row, epochs - 1]]
    thawed = [trial for trial in study.record.started if len(trial.attempts) > 1 and len(trial.epochs) == 12]
    assert thawed
    assert all(trial.attempts[1].start_epoch == 2 for trial in thawed), "a promotion costs the epochs that are missing"
    twice = [job for job in asked.values() if job[1] == 12]
    assert len(twice) >= 2 * len(thawed)


def test_scalarised_asha_keeps_a_third_and_never_stops_a_trial_that_is_best_in_all() -> None:
    from search_peers.scalarised_asha import ScalarisedAsha

    rng = np.random.default_rng(0)
    at_rung = {number: (float(a), float(b)) for number, (a, b) in enumerate(rng.random((90, 2)))}
    at_rung[90] = (-1.0, -1.0)
    pruner = ScalarisedAsha(seed=0)
    assert pruner.decide(History(at_rung={3: at_rung}), 90, 3).action == "continue"
    goes_on = sum(pruner.decide(History(at_rung={3: at_rung}), number, 3).action == "continue" for number in at_rung)
    assert 20 <= goes_on <= 42


def test_tpe_told_of_finished_trials_hears_of_no_others(tmp_path: Path) -> None:
    from search_peers.policies import ToldOfFinished

    from studies.simulation.setting import RandomCandidate, Setting

    heard: list[set[int]] = []

    class Listens:
        def __init__(self, setting: Setting) -> None:
            self._setting, self._random = setting, RandomCandidate(setting.candidates, 0)

        def suggest(self, number: int, history: Any) -> Any:
            states = {trial.id: trial.state for trial in self._setting.record().trials}
            heard.append({told.trial_id for told in history})
            assert {states[told.trial_id] for told in history} <= {"complete", "running"}
            return self._random.suggest(number, history)

    study = simulate(
        table(tmp_path), objectives=OBJECTIVES, slots=4, budget_full_trials=10, pruner="mo_asha",
        sampler=lambda setting: ToldOfFinished(Listens(setting), setting),
    )  # fmt: skip
    pruned = {trial.id for trial in study.record.started if trial.state == "pruned"}
    assert pruned
    assert heard[-1]


@pytest.mark.medium
def test_forecasts_are_compared_with_what_would_have_come(tmp_path: Path) -> None:
    from search_peers.calibration import Calibration

    made_up = table(tmp_path, count=300)
    calibration = Calibration(made_up, "val_error")
    study = simulate(
        made_up, objectives=OBJECTIVES, slots=4, budget_full_trials=10, sampler="random", pruner="break_even",
        on_decision=calibration.look,
    )  # fmt: skip
    assert len(calibration.forecasts) > len(study.record.started)
    for ahead, _mean, deviation, value in calibration.forecasts:
        assert 0 <= ahead < 12
        assert deviation > 0
        assert np.isclose(np.log(made_up.metrics["val_error"]), value, atol=1e-3).any()
    # Curves without noise, a floor and a rate for all: after some trials a forecast is close.
    late = np.array(calibration.forecasts[-40:])
    assert np.median(np.abs(late[:, 1] - late[:, 3])) < 0.1


def folder_of_curves(folder: Path) -> Path:
    for kind, names in (("lcbench", ("1", "2", "3")), ("taskset", ("x", "y"))):
        (folder / "curves" / kind).mkdir(parents=True)
        for name in names:
            content = arrays(name=name, count=80, seed=len(names) + ord(name[0]))
            write(folder / "curves" / kind, content, f"{name}.npz")
    return folder / "curves"


def test_tasks_are_single_tables_and_a_pooled_one(tmp_path: Path) -> None:
    import search

    curves = folder_of_curves(tmp_path)
    chosen = {
        text: [task.name for task in search.tasks_in(curves, text)] for text in ("all", "even", "odd", "2,taskset")
    }
    assert chosen == {
        "all": ["1", "2", "3", "taskset"], "even": ["1", "3"], "odd": ["2", "taskset"], "2,taskset": ["2", "taskset"],
    }  # fmt: skip
    assert len(search.tasks_in(curves, "taskset")[0].files) == 2
    with pytest.raises(SystemExit, match="found 9"):
        search.tasks_in(curves, "9")


@pytest.mark.large
def test_who_has_studied_other_tasks_starts_with_what_was_good_there(tmp_path: Path) -> None:
    import search
    from search_peers.policies import CONTESTANTS

    curves = folder_of_curves(tmp_path)
    asked = search.arguments_of(["--curves", str(curves), "--seeds", "0", "--slots", "2", "--seconds", "size",
                                 "--prices", "uniform", "--policies", "ours,ours_after_two",
                                 "--full-trials", "4"])  # fmt: skip
    jobs = search.jobs_of(asked, search.tasks_in(curves, "all"))
    before = {job.task: [Path(file).stem for (file,) in job.before] for job in jobs if job.policy != "ours"}
    assert before == {"1": ["2", "3"], "2": ["3", "1"], "3": ["1", "2"]}, "a pooled task has no siblings"
    assert CONTESTANTS["ours_after_two"].earlier == 2
    warm = next(job for job in jobs if job.before)
    earlier = [search.studied(files, "size", "uniform", 2, 0) for files in warm.before]
    assert [one.name for one in earlier] == ["2", "3"]
    assert all(len(one.trials) > 4 for one in earlier)
    assert search.simulated(warm)["validation"] != search.simulated(jobs[0])["validation"]


@pytest.mark.medium
def test_what_is_there_is_not_simulated_again(tmp_path, monkeypatch, capsys) -> None:
    import search

    arguments = [
        "search.py", "--curves", str(folder_of_curves(tmp_path)), "--seeds", "3", "--slots", "2", "--prices",
        "uniform,vary", "--tasks", "1,taskset", "--jobs", "1", "--results", str(tmp_path / "results"), "--json",
        "--ours", "mo_asha_stop_random", "--policies", "mo_asha_stop_random,random",
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", arguments)
    for name in search.THREADS:  # which it sets for processes to come
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(search, "ProcessPoolExecutor", InThisProcess)
    assert search.main() == 0
    first = json.loads(capsys.readouterr().out)
    lines = (tmp_path / "results" / "random.jsonl").read_text().splitlines()
    assert len(lines) == 2 * 2 * 2  # prices, second objectives, tasks
    (tmp_path / "results" / "random.jsonl").write_text("\n".join(lines[:-1]) + '\n{"cut sho')
    InThisProcess.ran = 0
    assert search.main() == 0
    assert InThisProcess.ran == 1
    again = json.loads(capsys.readouterr().out)
    assert again["comparisons"] == first["comparisons"]
    assert again["regret"] == first["regret"]
    problems = {one["problem"] for one in first["comparisons"]}
    assert problems == {f"{s}, 2 slots{v}" for s in ("size", "dollars") for v in ("", ", prices vary")}
    for one in first["comparisons"]:
        assert one["low"] <= one["geo_mean_x_cheaper"] <= one["high"]
        assert one["tasks"] == 2


class InThisProcess:
    """An executor without processes, so that the test sees what runs."""

    ran = 0

    def __init__(self, processes: int, mp_context: Any) -> None:
        pass

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, work: Any, job: Any) -> Any:
        from concurrent.futures import Future

        InThisProcess.ran += 1
        future: Future[Any] = Future()
        future.set_result(work(job))
        return future


def test_a_study_scores_what_its_line_says_and_one_that_raised_is_no_result(tmp_path, monkeypatch) -> None:
    import search

    job = search.Job(
        policy="random", task="1", files=(str(write(tmp_path, arrays())),), second="size", prices="uniform", slots=4,
        seed=0, full_trials=20,
    )  # fmt: skip
    kept = search.simulated(job)
    made_up = search.table_of(job.files, "uniform")
    study = simulate(
        made_up, objectives=OBJECTIVES, slots=4, budget_full_trials=20, sampler="random", pruner="none", seed=0
    )  # fmt: skip
    found = steps(study, yardstick(made_up, OBJECTIVES))
    assert kept["validation"][-1][1] == pytest.approx(share_at(found, study.budget_usd), abs=1e-6)
    assert search.key_of(kept) == job.key
    import search
    from search_peers.policies import CONTESTANTS, Contestant

    class Raises:
        def suggest(self, number: int, history: Any) -> Any:
            raise ValueError("on purpose")

    monkeypatch.setitem(CONTESTANTS, "random", Contestant(sampler=lambda setting: Raises(), pruner="none"))
    with pytest.raises(RuntimeError, match="study failed"):
        search.simulated(job)


def test_wrong_histories_have_the_runs_of_right_ones_with_other_results() -> None:
    from search_peers.histories import _made

    runs = [ForeignRun(params={"lr": 0.1 * k}, curve=[0.9, 0.1 * k], seconds=10.0 + k) for k in range(1, 5)]
    turned = _made("inverted", runs, 0)
    assert [one.params for one in turned] == [one.params for one in runs]
    assert [one.curve[-1] for one in turned] == pytest.approx([one.curve[-1] for one in reversed(runs)])
    assert [one.seconds for one in turned] == pytest.approx([one.seconds for one in reversed(runs)])
    mixed = _made("shuffled", runs, 0)
    assert [one.params for one in mixed] == [one.params for one in runs]
    assert sorted(one.seconds for one in mixed) == [one.seconds for one in runs]
    assert [one.seconds for one in mixed] != [one.seconds for one in runs]
    assert _made("wandb", runs, 0) == runs
