"""The model to take, in words."""

import io
import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from rich.console import Console

from automl.terminal.summary import print_summary
from reports.content import archive_rows, bests, constraints_line
from reports.page import render
from reports.phrases import value_in_words
from reports.recommending import command_of, compared_in_words, recommendation_lines
from studies.records.records import (
    NANO,
    ChargeRecord,
    ConfirmationRecord,
    Constraint,
    Objective,
    StudyRecord,
    TrialRecord,
)
from studies.results import analysis, constraints
from studies.results.constraints import milestones
from studies.results.pareto import knee_of, least_ranges
from studies.results.recommendation import best_point, expected_values, knee, ranked_points, recommended, takeable
from tests.reports.test_page import read
from tests.studies.test_analysis import study_of, trial
from tests.support.study_factory import build_study
from trainers.protocol import TEST_PREFIX

ACCURACY = Objective(metric="val_accuracy", direction="maximize")
FRONT = (trial(0, (0.10, 1.0)), trial(1, (0.02, 2.0)), trial(2, (0.01, 9.0)), trial(3, (0.5, 0.9)))


def test_the_best_is_taken_since_its_dollars_are_spent_and_the_cheaper_one_is_told() -> None:
    study = study_of(*FRONT, trial(4, (0.3, 3.0)))
    found = recommended(study)
    assert found.plain() == {
        "trial": 2, "epoch": 1, "values": {"val_error": 0.01, "cost_usd": 9.0}, "params": {"lr": 0.2},
        "confirmed": None, "better": None, "worse": "1@1", "stderr": None, "unbeaten_baseline": None,
    }  # fmt: skip
    assert recommendation_lines(study) == [
        "Take 2@1: val_error 1 %, cost_usd $9.00.",
        "If you train it often, 1@1 is 4.5 times cheaper, with val_error 2 % instead of 1 %.",
        "Its parameters: lr 0.2.",
    ]
    first = replace(study, objectives=(*study.objectives[1:], *study.objectives[:1]))
    assert str(recommended(first)) == "2@1", "what was spent comes second wherever it stands"
    assert str(recommended(replace(study, objectives=study.objectives[1:]))) == "3@1"


def with_noise(study: StudyRecord, **errors: float) -> StudyRecord:
    """The study with standard errors of `val_error` at each epoch of the trials t0, t1, ..."""
    trials = tuple(
        replace(one, epochs=tuple(
            replace(epoch, metrics={**epoch.metrics, "val_error_stderr": errors[f"t{one.number}"]})
            for epoch in one.epochs
        ))
        if f"t{one.number}" in errors else one
        for one in study.trials
    )  # fmt: skip
    return replace(study, trials=trials)


def test_within_the_noise_of_the_best_a_finished_model_is_taken() -> None:
    study = study_of(*FRONT)

    def cut(study: StudyRecord, *numbers: int) -> StudyRecord:
        trials = (replace(one, state="pruned") if one.number in numbers else one for one in study.trials)
        return replace(study, trials=tuple(trials))

    noisy = with_noise(study, t1=0.012, t2=0.011)
    assert recommendation_lines(noisy)[0] == "Take 2@1: val_error 1 % ± 2.16 %, cost_usd $9.00."
    assert str(recommended(cut(noisy, 2))) == "1@1"
    better = "2@1 has val_error 1 %, better by no more than chance, and its training was cut short."
    assert recommendation_lines(cut(noisy, 2))[1] == better
    assert str(recommended(cut(with_noise(study, t2=0.009), 2))) == "2@1", "it is better by more than its noise"
    assert str(recommended(cut(noisy, 1, 2))) == "2@1"
    equal = study_of(trial(0, (0.1, 2.0)), trial(1, (0.1, 2.0)), trial(2, (0.2, 1.0)))
    assert str(recommended(with_noise(equal, t0=0.01))) == "0@1"


def test_what_each_answer_costs_is_traded_and_training_is_not() -> None:
    def sized(number: int, error: float, size: float, usd: float) -> TrialRecord:
        one = trial(number, (error, usd))
        return replace(one, epochs=[replace(e, metrics={**e.metrics, "model_parameters": size}) for e in one.epochs])

    objectives = (*study_of().objectives[:1], Objective(metric="model_parameters"), *study_of().objectives[1:])
    study = replace(
        study_of(
            sized(0, 0.015, 3e6, 1.0), sized(1, 0.02, 2.9e6, 1.0), sized(2, 0.104, 1e6, 0.5), sized(3, 0.5, 1e3, 0.1)
        ),
        objectives=objectives,
    )
    lines = recommendation_lines(study)
    assert lines[0] == "Take 0@1: val_error 1.5 %, model_parameters 3 M, cost_usd $1.00."
    assert lines[1].endswith(": 1@1, with val_error 2 % instead of 1.5 %.")
    assert lines[2] == "3 times smaller and 2 times cheaper: 2@1, with val_error 10.4 % instead of 1.5 %."
    assert lines[3].endswith(": 3@1, with val_error 50 % instead of 1.5 %.")
    assert str(recommended(with_noise(study, t0=0.01))) == "1@1", "it is smaller, and as good for all that is known"
    told = recommendation_lines(with_noise(study, t0=0.01))[1]
    assert told.startswith("0@1 has val_error 1.5 %, better by no more than chance, and is 3.4 % larger")


def test_a_model_that_no_more_than_chance_sets_apart_from_a_baseline_is_said_to_be_so_first() -> None:
    known = {"name": "always the most frequent class", "metrics": {"val_error": 0.0115}}
    study = replace(study_of(*FRONT), spec={"baselines": [known]})
    assert recommendation_lines(study)[0].startswith("Take 2@1")
    unbeaten = "No model beats always the most frequent class by more than chance."
    assert recommendation_lines(with_noise(study, t2=0.002))[0] == unbeaten
    assert recommended(with_noise(study, t2=0.002)).plain()["unbeaten_baseline"] == known["name"]
    worse = replace(study, spec={"baselines": [{**known, "metrics": {"val_error": 0.009}}]})
    assert recommendation_lines(worse)[0] == unbeaten
    trained = replace(study, spec={"baselines": [{"name": "default trees", "params": {"lr": 0.1}}]})
    assert recommendation_lines(trained)[0].startswith("Take 2@1")
    assert (
        recommendation_lines(with_noise(trained, t1=0.0105, t2=0.0095))[0]
        == "No model beats default trees by more than chance."
    )


def confirmed(number: int, *errors: float) -> tuple[ConfirmationRecord, ...]:
    return tuple(
        ConfirmationRecord(
            trial=number, seed=seed, epoch=1, epochs=1, metrics={"val_error": 0.02, f"{TEST_PREFIX}val_error": error},
            cost_nano_usd=1, checkpoint=None, confirmed_at=datetime(2026, 1, 1, tzinfo=UTC),
        )
        for seed, error in enumerate(errors)
    )  # fmt: skip


def test_what_was_confirmed_stands_beside_the_model() -> None:
    first, expected, *_ = recommendation_lines(replace(study_of(*FRONT), confirmations=confirmed(2, 0.035, 0.045)))
    assert first == "Take 2@1: val_error 1 %, cost_usd $9.00."
    assert expected == (
        "Trained again with 2 fresh seeds (mean ± standard deviation), its configuration has val_error 4 % ± 0.707 % "
        "on the test part."
    )
    other = recommendation_lines(replace(study_of(*FRONT), confirmations=confirmed(1, 0.01, 0.03)))[1]
    assert other.endswith(", with val_error 2 % (confirmed: 2 % ± 1.41 %, test) instead of 1 %.")


def test_dollars_that_are_little_beside_what_was_spent_move_the_knee_little() -> None:
    """Half a dollar of the four that were spent counts in full, and of four hundred hardly."""
    points = (trial(0, (0.10, 0.1)), trial(1, (0.06, 0.2)), trial(2, (0.05, 0.6)))
    names = ["val_error", "cost_usd"]
    values = [[0.10, 0.1], [0.06, 0.2], [0.05, 0.6]]
    assert knee_of(values, least_ranges(names, 4.0)) == 1
    assert knee_of(values, least_ranges(names, 400.0)) == 2
    assert knee_of(values, least_ranges(["val_error", "latency_ms"], 400.0)) == 1, "latency is paid at each answer"
    for spent, taken in ((4, 1), (400, 2)):
        charge = ChargeRecord(
            kind="train", trial=0, attempt=1, slots=1, seconds=1.0, usd_per_slot_hour=1.0, cost_nano_usd=spent * NANO,
            charged_at=datetime(2026, 1, 1, tzinfo=UTC),
        )  # fmt: skip
        study = replace(study_of(*points), charges=(charge,))
        assert knee(study, takeable(study)).trial == taken


def test_report_and_terminal_have_one_order_that_of_what_is_expected() -> None:
    """1@1 looked better than 0@1 in the search, and is worse by what was confirmed."""
    study = replace(
        study_of(trial(0, (0.03, 1.0)), trial(1, (0.02, 2.0)), trial(2, (0.5, 0.5))),
        confirmations=(*confirmed(0, 0.03, 0.03), *confirmed(1, 0.30, 0.30), *confirmed(2, 0.5, 0.5)),
    )
    points = analysis.archive(study)
    order = [one.trial for one in ranked_points(study, points)]
    assert order[0] == 0
    assert [row.trial for row in archive_rows(study, points)] == order
    lowest = bests(study, points)[0]
    assert lowest[2].startswith("trial 0 after epoch 1")
    assert lowest[2].endswith("; val_error confirmed: 3 % ± 0 %, test")
    console = Console(file=io.StringIO(), width=200)
    print_summary(console, study, report=None)
    assert "val_error 3 % (0@1)" in console.file.getvalue()  # type: ignore[attr-defined]


def test_winners_by_luck_are_not_recommended_and_means_count_beyond_noise() -> None:
    """2@1 looked best and was not; 1@1 and 0@1 held what they promised."""
    lucky = replace(
        study_of(*FRONT),
        confirmations=(*confirmed(0, 0.10, 0.10), *confirmed(1, 0.02, 0.02), *confirmed(2, 0.11, 0.13)),
    )
    found = recommended(lucky)
    assert (str(found), found.instead_of is not None and found.instead_of.trial) == ("1@1", 2)
    assert recommendation_lines(lucky)[2] == "The search alone would have named 2@1."
    assert "2@1" not in recommendation_lines(lucky)[3], "it is dominated by now"
    assert found.plain()["instead_of"] == "2@1"
    # Lost were 0.02 and 0.04, with deviations of nothing, and then of more than the two differ by.
    sure = replace(study_of(*FRONT), confirmations=(*confirmed(1, 0.04, 0.04), *confirmed(2, 0.05, 0.05)))
    values = expected_values(sure, takeable(sure))
    assert [row[0] for row in values] == pytest.approx([0.1 + 0.03, 0.04, 0.05, 0.5 + 0.03])
    assert [row[1] for row in values] == [1.0, 2.0, 9.0, 0.9], "costs are not measured again"
    assert best_point(sure, "val_error").trial == 1
    assert best_point(replace(sure, confirmations=()), "val_error").trial == 2
    noisy = replace(sure, confirmations=(*confirmed(1, 0.0, 0.08), *confirmed(2, 0.0, 0.10)))
    assert [row[0] for row in expected_values(noisy, takeable(noisy))] == pytest.approx([0.13, 0.05, 0.04, 0.53])
    assert best_point(noisy, "val_error").trial == 2
    once = replace(sure, confirmations=(*confirmed(1, 0.04), *confirmed(2, 0.05)))
    assert [row[0] for row in expected_values(once, takeable(once))] == pytest.approx([0.13, 0.045, 0.045, 0.53])
    alone = replace(sure, confirmations=confirmed(2, 0.05, 0.07))
    assert best_point(alone, "val_error").trial == 2, "one confirmation alone says nothing about the others"


def test_better_neighbours_are_above_and_one_objective_has_one_model() -> None:
    def as_accuracy(study: StudyRecord) -> StudyRecord:
        trials = tuple(
            replace(one, epochs=tuple(
                replace(epoch, metrics=dict(epoch.metrics) | {"val_accuracy": 1 - epoch.metrics["val_error"]})
                for epoch in one.epochs
            ))
            for one in study.trials
        )  # fmt: skip
        return replace(study, trials=trials, objectives=(ACCURACY, *study.objectives[1:]))

    found = recommended(with_noise(as_accuracy(study_of(*FRONT)), t2=0.0))
    assert found.point.values["val_accuracy"] > found.worse.values["val_accuracy"]
    near = recommended(as_accuracy(study_of(FRONT[0], FRONT[1], replace(FRONT[2], state="pruned"))))
    assert near.better is None
    alone = replace(study_of(*FRONT), objectives=study_of().objectives[:1])
    assert recommendation_lines(alone)[0] == "Take 2@1: val_error 1 %."
    assert len(recommendation_lines(alone)) == 2
    assert recommendation_lines(study_of()) == []


def test_only_models_that_were_kept_are_recommended_and_others_marked() -> None:
    gone = replace(FRONT[1], epochs=(replace(FRONT[1].epochs[0], checkpoint=None),))
    study = study_of(FRONT[0], gone, FRONT[2])
    assert [point.trial for point in takeable(study)] == [0, 2]
    assert knee(study, takeable(study)).trial in {0, 2}
    console = Console(file=io.StringIO(), width=160)
    print_summary(console, without_models(study_of(*FRONT), 1), report=None)
    rows = [line.split("  ") for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    marked = {row[1].strip() for row in rows if "complete, model not kept" in map(str.strip, row)}
    assert marked == {"1@1"}


def without_models(study: StudyRecord, *numbers: int) -> StudyRecord:
    """The study after the models of these trials were deleted, or had never been kept."""
    trials = (
        replace(one, epochs=tuple(replace(epoch, checkpoint=None) for epoch in one.epochs))
        if one.number in numbers
        else one
        for one in study.trials
    )
    return replace(study, trials=tuple(trials))


def test_a_study_that_has_kept_no_model_says_what_to_train_again() -> None:
    """As one of an objective for Optuna, or after `automl prune-checkpoints`: no model is offered that is not there."""
    study = without_models(study_of(*FRONT), 0, 1, 2, 3)
    assert recommended(study) is None
    saved = "Of the epochs at which automl saves models, 2@1 is the best: val_error 1 %, cost_usd $9.00."
    assert recommendation_lines(study) == [
        f"No model was kept. {saved}",
        "Train again with: lr 0.2.",
    ]
    of_command = replace(study, spec={**study.spec, "task": "command"})
    assert recommendation_lines(of_command) == [
        *recommendation_lines(study),
        "To keep models, save into {checkpoint_folder} before printing or reporting an epoch.",
    ]
    console = Console(file=io.StringIO(), width=160)
    print_summary(console, study, report=None)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "Train again with: lr 0.2." in said
    assert "best epochs: no model was kept" in said
    assert "models to take" not in said
    page = " ".join("".join(read(render(study)).text).split())
    assert "Configurations found; no model was kept" in page
    assert "4 models worth keeping, none of which was kept, from 4 of 4 trials" in page
    assert "Train again with: lr 0.2." in page
    assert "Models to take" not in page
    assert "its command writes the model to a file" not in page


def test_values_have_units_and_little_dollars_their_seconds() -> None:
    assert value_in_words("val_error", 0.01234) == "1.23 %"
    assert value_in_words("latency_ms", 2.5) == "2.5 ms"
    assert value_in_words("cost_usd", 0.0012) == "$0.0012"
    assert value_in_words("wall_seconds", 75.0) == "1 min 15 s"
    assert value_in_words("val_mse", 6.25) == "6.25 (RMSE 2.5)"
    assert value_in_words("model_parameters", 2.6272e9) == "2,627 M"
    assert value_in_words("cost_usd", 0.0012, 43.2) == "$0.0012 (43 s)"
    assert value_in_words("cost_usd", 0.12, 43.2) == "$0.12"
    assert value_in_words("cost_usd", 0.0012, math.nan) == "$0.0012"
    assert value_in_words("profit_usd", 0.0012, 43.2) == "$0.0012", "other dollars are not those of the training"


@pytest.mark.parametrize(
    ("name", "value", "base", "expected"),
    [
        ("cost_usd", 1.0, 5.0, "5 times cheaper"), ("cost_usd", 5.0, 1.0, "5 times as expensive"),
        ("latency_ms", 1.3, 1.0, "30 % slower"), ("wall_seconds", 1.3, 1.0, "30 % slower to train"),
        ("model_parameters", 1e6, 2e6, "2 times smaller"), ("model_parameters", 1e4, 1.2345e6, "120 times smaller"),
        ("cost_usd", 1.997, 1.0, "100 % more expensive"), ("val_loss", 0.9, 1.0, "10 % lower in val_loss"),
        ("val_loss", 1.0, 1.0, "the same in val_loss"), ("score", -1.0, 2.0, "at score -1"),
        ("profit_usd", 0.95, 1.0, "5 % lower in profit_usd"), ("profit_usd", 5.0, 1.0, "5 times as high in profit_usd"),
        ("uptime_seconds", 50.0, 100.0, "2 times lower in uptime_seconds"),
        ("val_accuracy", 0.9, 0.9, "the same in val_accuracy"),
    ],
)  # fmt: skip
def test_comparisons_are_said_as_people_say_them(name: str, value: float, base: float, expected: str) -> None:
    """What is maximized is not called cheaper or slower."""
    direction = "maximize" if name in {"profit_usd", "uptime_seconds", "val_accuracy"} else "minimize"
    assert compared_in_words(Objective(metric=name, direction=direction), value, base) == expected  # type: ignore[arg-type]


def test_objectives_that_are_compared_in_the_same_words_are_named() -> None:
    names = ("val_error", "latency_ms", "answer_seconds", "model_parameters")
    objectives = tuple(Objective(metric=name) for name in names)
    values = ((0.1, 1.0, 4.0, 1e6), (0.02, 2.0, 2.0, 2e6), (0.01, 9.0, 1.0, 4e6))
    measured = []
    for number, own in enumerate(values):
        one = trial(number, (0.5, 0.5))
        metrics = dict(zip(names, own, strict=True))
        measured.append(replace(one, epochs=[replace(epoch, metrics=metrics) for epoch in one.epochs]))
    said = " ".join(recommendation_lines(replace(study_of(*measured), objectives=objectives)))
    assert "as slow in latency_ms" in said or "faster in latency_ms" in said
    assert "in answer_seconds" in said
    assert "in model_parameters" not in said


@pytest.mark.parametrize(("reached", "is_missed"), [(0.74, True), (0.81, False)])
def test_a_confirmed_model_that_misses_a_constraint_is_not_praised(reached: float, is_missed: bool) -> None:
    study = build_study(60, constraints=(Constraint(metric="val_accuracy", min=0.8),))
    found = recommended(study)
    seeds = tuple(
        replace(
            one, epoch=found.point.epoch,
            metrics={f"{TEST_PREFIX}val_error": 1 - reached, f"{TEST_PREFIX}val_accuracy": reached + 0.001 * one.seed},
        )
        for one in confirmed(found.point.trial, 0.1, 0.1, 0.1)
    )  # fmt: skip
    said = " ".join(recommendation_lines(replace(study, confirmations=seeds)))
    assert f"Take {found.point.trial}@{found.point.epoch}" in said
    assert ("misses a constraint: val_accuracy 74.1 % ± 0.1 %, where val_accuracy at least 0.8 is wanted" in said) == (
        is_missed
    ), said


def test_trials_that_kept_a_bound_before_their_last_epoch_are_counted_apart() -> None:
    late = build_study(12, states=("complete",), constraints=(Constraint(metric="cost_usd", max=0.012),))
    assert recommended(late) is not None
    words = constraints.feasible_in_words(late)
    kept = {one.id for one, _, _ in milestones(late)}
    assert words == f"0 of 12 measured trials at their last epoch, {len(kept)} more at an earlier one"
    assert f"kept by {words}." in constraints_line(late)
    console = Console(file=io.StringIO(), width=400)
    print_summary(console, late, report=None)
    assert f"kept by {words};" in console.file.getvalue()  # type: ignore[attr-defined]
    slow = build_study(12, states=("complete",), constraints=(Constraint(metric="latency_ms", max=0.7),))
    assert "last epoch" not in constraints.feasible_in_words(slow)


@pytest.mark.parametrize(("task", "out"), [("digits", "model"), ("command", "model.pt")])
def test_the_command_writes_a_model_that_stands_alone_where_there_can_be_one(task: str, out: str) -> None:
    study = build_study(20)
    study = replace(study, spec={**study.spec, "task": task})
    found = recommended(study)
    assert command_of(study, found.point) == f"automl export digits {found} --out {out}"


def test_what_the_model_gets_wrong_and_needs_is_told_and_drawn() -> None:
    """The study without a test part has no column for it."""

    def of(**answers: object) -> StudyRecord:
        test = ConfirmationRecord(
            trial=2, seed=1, epoch=1, epochs=0, metrics={}, cost_nano_usd=1, checkpoint=None,
            confirmed_at=datetime.now(UTC), answers={"samples": 100, **answers},
        )  # fmt: skip
        return replace(study_of(*FRONT), tests=(test,), spec={**study_of(*FRONT).spec, "task": "tabular"})

    columns = {"id": {"val_error": 0.01}, "<age>": {"val_error": 0.3}, "city": {"val_error": 0.02}}
    classes = of(
        labels=["ja", "nein"], counts=[[8, 2], [0, 90]],
        importance={"metrics": {"val_error": 0.01}, "columns": columns, "left_out": 3},
    )  # fmt: skip
    more_probable = "Of the validation rows, taking the more probable class"
    needed = "The columns that it needs most, of 3 tried: '<age>' and 'city'."
    assert recommendation_lines(classes)[2:4] == [
        f"{more_probable}, it recognises 80 % of 10 of 'ja' and 100 % of 90 of 'nein'.",
        f"{needed} With shuffled '<age>', val_error is 30 % instead of 1 %.",
    ]
    page = render(classes)
    assert "taken for nein" in page
    assert "&lt;age&gt;" in page
    assert "3 further columns" in page
    assert "test val_error" not in page
    many = [[0] * 12 for _ in range(12)]
    many[3][5], many[0][0] = 7, 9
    told = render(of(labels=[f"c{one}" for one in range(12)], counts=many))
    assert "&#39;c5&#39; (7)" in told
    numbers = of(column="price", points=[[1.0, 2.0], [3.0, 2.5]], within=[0.5, 1.0])
    assert "half of its estimates of 'price' are at most 0.5" in " ".join(recommendation_lines(numbers)).lower()
    assert "Estimates against actual numbers" in render(numbers)
