"""Differences of two specs of a study."""

from __future__ import annotations

import pytest

from studies.spec.study_spec import StudySpec, apply_overrides, differences, differing_keys, parse_spec

SPACE = {
    "world_size": {"type": "categorical", "choices": [1, 2]},
    "momentum": {"type": "float", "low": 0.0, "high": 0.99},
}


def spec_with(*overrides: str) -> StudySpec:
    return parse_spec(apply_overrides({"task": "d", "space": SPACE, "training": {"epochs": 20}}, overrides))


def test_differences_leave_out_what_may_differ() -> None:
    spec = spec_with()
    same = spec_with("budget.usd=5", "resources.slots=2", "checkpoints.folder=x", "store=sqlite:///b.db", "mlflow=off")
    other = spec_with("training.epochs=30", "space.momentum.high=0.9")
    assert differences(spec, same) == []
    assert differences(spec, other) == [
        "space.momentum.high: 0.99 in the store, 0.9 given",
        "training.epochs: 20 in the store, 30 given",
    ]
    assert differences(spec, spec_with("space.world_size.choices=[2, 1]")) == [
        "space.world_size.choices.0: 1 in the store, 2 given"
    ]


MANY = "space.width={type: categorical, choices: [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, %d]}"


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (
            "constraints=[{metric: latency_ms, max: 5}, {metric: model_parameters, max: 1000000}]",
            "constraints=[{metric: latency_ms, max: 5}, {metric: model_parameters, max: 5}]",
            "constraints.1.max: 1000000.0 in the store, 5.0 given",
        ),
        (MANY % 65536, MANY % 77777, "space.width.choices.12: 65536 in the store, 77777 given"),
        (
            "search.first_trials=[{optimizer: sgd}]",
            "search.first_trials=[{optimizer: sgd}, {optimizer: adamw}]",
            "search.first_trials.1: nothing in the store, {'optimizer': 'adamw'} given",
        ),
        (
            f"task_options.notes={'a' * 99}, the first",
            f"task_options.notes={'a' * 99}, the second",
            "task_options.notes: ... aaaaaaaaa, the first' in the store, ... aaaaaaaaa, the second' given",
        ),
        ("task_options.rows=[]", "task_options.rows={}", "task_options.rows: [] in the store, {} given"),
    ],
)
def test_a_difference_is_found_wherever_it_stands_in_a_long_value(before: str, after: str, told: str) -> None:
    # `launch` would go on with the stored problem and spend the rest of its budget on it.
    assert differences(spec_with(before), spec_with(after)) == [told]
    assert differences(spec_with(after), spec_with(after)) == []


def test_folders_that_differ_at_their_end_differ() -> None:
    folder = "checkpoints.folder=s3://company-machine-learning-experiments-eu-central-1/team/"
    one, other = spec_with(f"{folder}a"), spec_with(f"{folder}b")
    assert differing_keys(one, other, ["checkpoints"]) == ["checkpoints.folder"]
    assert differing_keys(one, one, ["checkpoints"]) == []


def test_passwords_make_no_difference() -> None:
    one, other = (spec_with(f"task_options.sources=['{'a' * 80}', 'pg://me:{p}@host/db']") for p in ("***", "se@c"))
    assert differences(one, other) == []
