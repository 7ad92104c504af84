"""Specs: what is read, what is refused and with which words, overrides, and what of a spec may change."""

import dataclasses
import itertools
import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from automl.launching.template import template
from search_spaces.parameters import Categorical, Float, Int
from search_spaces.space import Space
from studies.control.assembly import kept_epochs
from studies.records.records import Constraint, Objective
from studies.results.extrapolation import milestones
from studies.search.pruners.none import NoPruner
from studies.spec.checks import check_against_task, check_world_sizes
from studies.spec.sections import TrainingSpec
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import (
    StudySpec,
    apply_overrides,
    apply_resume_overrides,
    differences,
    load_spec,
    parse_spec,
    spec_to_mapping,
)
from studies.spec.yaml_reader import read_yaml, write_yaml
from trainers.trainer_options import TRAINER_PARAMETERS

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines may be busy

DESIGN = """
study: digits
task: digits
task_options: {}
objectives:
  - {metric: val_error, direction: minimize}
  - {metric: cost_usd, direction: minimize}
reference_point: auto
constraints: []
space:
  learning_rate: {type: float, low: 1.0e-4, high: 1.0, log: true}
  batch_per_rank: {type: int, low: 16, high: 256, log: true}
  world_size: {type: categorical, choices: [1, 2]}
  optimizer: {type: categorical, choices: [sgd, adamw]}
  momentum: {type: float, low: 0.0, high: 0.99, when: {optimizer: sgd}}
training: {epochs: 20, samples_per_epoch: auto, reference_batch: 64, lr_scaling: auto, warmup_epochs: 1,
           schedule: cosine, precision: auto, accumulate: 1, clip_norm: null, compress: none, shard: none}
search: {sampler: auto, pruner: auto, seed: 0}
budget: {usd: 1.0, hours: 1.0, trials: 200, usd_per_trial: null, hours_per_trial: null}
resources: {device: auto, cpus_per_rank: 1, slots: auto, price_per_slot_hour: auto, ray_address: null}
checkpoints: {folder: ./artifacts, every_seconds: 60}
store: sqlite:///automl.db
mlflow: sqlite:///mlflow.db
"""

DEFAULT_SPACE = Space({"learning_rate": Float(low=1e-3, high=1.0, log=True), "width": Int(low=8, high=64)})


def resolve(spec: StudySpec, source: str = "spec") -> StudySpec:
    return check_against_task(spec, ["width", "dropout"], ["val_error", "accuracy"], DEFAULT_SPACE, source)


@pytest.fixture
def load(tmp_path: Path):
    """Write a text as a spec and load it as `launch` does, on two slots."""

    def load_text(text: str | bytes, *overrides: str) -> StudySpec:
        file = tmp_path / "study.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        spec = resolve(load_spec(file, overrides), str(file))
        check_world_sizes(spec, 2, str(file))
        return spec

    return load_text


def test_the_design_and_the_defaults_are_one(load) -> None:
    spec = load(DESIGN)
    assert spec_to_mapping(spec) == spec_to_mapping(
        load("task: digits\nspace:" + DESIGN.partition("space:")[2].partition("training:")[0])
    )
    assert spec.objective_records == (Objective(metric="val_error"), Objective(metric="cost_usd"))
    assert spec.space.parameter("world_size") == Categorical([1, 2])


def test_defaults_of_the_trainer_stand_in_one_place() -> None:
    for key, value in TrainingSpec():
        if key != "epochs":
            assert TRAINER_PARAMETERS[key].default == value


@pytest.mark.parametrize("override", [None, "space.optimizer=adamw"])
def test_a_bare_value_in_the_space_is_a_constant(load, override: str | None) -> None:
    text = "task: d\nspace: {width: {type: int, low: 8, high: 64}" + ("}" if override else ", optimizer: adamw}")
    spec = load(text, *([override] if override else []))
    assert spec.space.parameter("optimizer") == Categorical(["adamw"])
    assert parse_spec(spec_to_mapping(spec)).space == spec.space
    with pytest.raises(SpecError, match=r"space\.optimizer\.choices: found 'adam_w', allowed: .*did you mean 'adamw'"):
        load("task: d\nspace: {optimizer: adam_w}")


CLASHING = [
    ("training: {shard: full, compress: powersgd}", "training.shard",
     ["shard is full and compress is powersgd", "Set compress to none, or choose another shard"]),
    ("space: {compress: {type: categorical, choices: [none, fp16]}}\ntraining: {shard: full}", "space.compress",
     ["shard is full and compress is fp16", "Set compress to none"]),
    ("space: {optimizer: {type: categorical, choices: [sgd, adamw]}}\ntraining: {lr_scaling: adascale}",
     "space.optimizer", ["lr_scaling is adascale and optimizer is adamw", "Set optimizer to sgd"]),
    ("space: {shard: {type: categorical, choices: [none, full]}, bucket_mb: {type: int, low: 1, high: 9}}",
     "space.shard", ["shard is full and bucket_mb is 1", "`when`"]),
    ("training: {precision: fp16}\nresources: {device: cpu}", "training.precision",
     ["precision is fp16 on a CPU", "Choose fp32 or bf16"]),
    ("resources: {device: cpu, backend: nccl}", "resources.backend", ["found nccl on a CPU", "take gloo or auto"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "path", "parts"), CLASHING, ids=[path for _, path, _ in CLASHING])
def test_options_that_do_not_go_together_are_refused_before_a_launch(load, tmp_path, text, path, parts):
    with pytest.raises(SpecError) as caught:
        load(f"task: d\n{text}")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'study.yaml'}: {path}: {parts[0]}")
    assert "\n" not in message
    assert all(part in message for part in parts), message


def test_options_that_a_condition_keeps_apart_go_together(load) -> None:
    """Also where the condition hangs from a parameter of the task."""
    space = {
        "width": {"type": "categorical", "choices": [8, 16, 32]},
        "shard": {"type": "categorical", "choices": ["none", "full"], "when": {"width": [16, 32]}},
        "compress": {"type": "categorical", "choices": ["none", "powersgd"], "when": {"shard": "none"}},
        "compile": {"type": "categorical", "choices": [False, True], "when": {"width": 8}},
    }
    assert load(json.dumps({"task": "d", "space": space})).space == Space.from_dict(space)
    space["compile"]["when"] = {"width": 16}
    with pytest.raises(SpecError, match=r"space\.shard: shard is full and compile is true"):
        load(json.dumps({"task": "d", "space": space}))


def test_what_is_left_out_has_its_default_and_the_space_is_the_tasks_own(load) -> None:
    assert load("task: digits").space == DEFAULT_SPACE
    assert load("task: digits\nbudget:\ntraining:\nsearch:\nmlflow:\n").budget.usd == 1.0
    budget = load("task: digits\nbudget: {usd: 5}").budget
    assert (budget.usd, budget.hours, budget.trials) == (5, 1.0, 200)


def test_a_study_is_named_after_its_task() -> None:
    names = {"digits": "digits", "my_task:MyTask": "my_task-MyTask", "a.b:C.d": "a.b-C.d", "x" * 300: "x" * 100}
    assert {task: parse_spec({"task": task}).study for task in names} == names


def test_a_spec_survives_json(load) -> None:
    text = """
task: my_task:MyTask
task_options: {depth: 3, names: [a, {b: null}], ratio: 5e-1}
objectives: [{metric: accuracy, direction: maximize}, {metric: latency_ms}]
reference_point: {accuracy: 0, latency_ms: 1e2}
constraints: [{metric: model_parameters, max: 1e6}, {metric: val_error, min: 0, max: 0.5}, {metric: accuracy, min: 0.9}]
space:
  learning_rate: {type: float, low: 1e-4, high: 1, log: yes}
  schedule: {type: categorical, choices: [cosine, constant]}
search: {sampler: "my_sampler:Make", pruner: {name: mo_asha, variant: promotion, grace: 2, eta: 4}, seed: 7}
budget: {usd: null, hours: 2, trials: null}
resources: {device: cuda, slots: 2, price_per_slot_hour: 0, ray_temp_folder: /tmp/r}
mlflow: off
"""
    spec = load(text)
    again = parse_spec(json.loads(json.dumps(spec_to_mapping(spec), allow_nan=False)))
    assert again == spec
    assert resolve(again) == spec
    assert spec.mlflow == "off"
    assert spec.budget.usd is None
    assert spec.budget.hours == 2
    assert spec.task_options["ratio"] == 0.5
    assert spec.search.pruner.options["variant"] == "promotion"
    assert spec.constraint_records == (
        Constraint(metric="model_parameters", max=1e6),
        Constraint(metric="val_error", min=0.0, max=0.5),
        Constraint(metric="accuracy", min=0.9),
    )


def test_constraints_can_be_set_for_one_launch(load) -> None:
    spec = load("task: d", "constraints=[{metric: latency_ms, max: 5}]", "constraints.0.max=4")
    assert spec.constraint_records == (Constraint(metric="latency_ms", max=4.0),)
    kept_for_life = differences(spec, load("task: d"))
    assert len(kept_for_life) == 1
    assert kept_for_life[0].startswith("constraints.0: ")


def test_numbers_are_read_as_yaml_1_2_does_and_other_values_are_left_alone() -> None:
    numbers = {"1e-4": 1e-4, "5e3": 5e3, "1.0e-4": 1e-4, "-2E+1": -20.0, ".5": 0.5}
    whole_numbers = {"0": 0, "-16": -16, "1_000": 1000, "0x1F": 31, "0b101": 5, "3": 3}
    others = {text: text for text in ("2026-01-02", "e3", "1.2.3", "1:75")}
    for text, value in {**numbers, **whole_numbers, **others}.items():
        assert read_yaml(f"x: {text}", "f") == {"x": value}


@pytest.mark.parametrize("text", ["1:30", "12:30:00", "-1:30", "016", "08", "-010", "0o20", "0_5"])
def test_what_versions_of_yaml_read_differently_is_refused(load, text: str) -> None:
    # In YAML 1.1 1:30 is 90, and 016 is 14.
    told = f"space.width.choices.1: found {text} in line 3, which YAML versions read differently. Write the number"
    with pytest.raises(SpecError, match=re.escape(told)):
        load(f"task: d\nspace:\n  width: {{type: categorical, choices: [8, {text}]}}")
    with pytest.raises(SpecError, match=re.escape(f"budget.hours={text}': found {text} in line 1, which")):
        load("task: d", f"budget.hours={text}")
    assert read_yaml(f"x: '{text}'", "f") == {"x": text}


@pytest.mark.parametrize(
    "text", ["1:30", "016", "08", "1e5", "1e-4", "16", "2026-01-02", "no", "a: b", "x y " * 60, "Umsatz\x85", "a\x85b"]
)
def test_what_is_written_as_yaml_is_read_as_it_was(text: str) -> None:
    value = {"choices": [text, 1e-5, 8, -3, 1e300, True, None]}
    assert read_yaml(write_yaml(value), "f") == value
    line = write_yaml(value, on_one_line=True)
    assert read_yaml(line, "f") == value
    assert line.count("\n") == 1


CIRCLE = """task: d
space:
  width: {type: int, low: 1, high: 2, when: {dropout: 1}}
  dropout: {type: int, low: 1, high: 2, when: {width: 1}}
"""


def _bomb(depth: int) -> str:
    """A text of a few lines in which aliases stand for nine to the power of `depth` values."""
    lists = [f"  a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 9)}]" for i in range(depth)]
    return "\n".join(["task: d", "task_options:", *lists])


BAD = [
    # keys
    ("task: digits\nbugdet: {usd: 1}", "bugdet", ["the unknown key 'bugdet'", "study, task", "did you mean 'budget'?"]),
    ("tsak: digits", "tsak", ["'tsak'", "did you mean 'task'?", "(and 1 more problem)"]),
    ("task: d\ntraining: {learning_rate: 0.1}", "training.learning_rate",
     ["the unknown key 'learning_rate'; put it in `space`", "(space.learning_rate)"]),
    ("task: d\nobjectives: [{metric: a, direction: min}, {metric: b, direction: up}]", "objectives.0.direction",
     ["found 'min', allowed: minimize, maximize; did you mean 'minimize'? (and 1 more problem)"]),
    ("task: digits\nepochs: 3", "epochs", ["'epochs'", "did you mean 'training.epochs'?"]),
    ("task: digits\nbudget: {usdd: 1}", "budget.usdd", ["'usdd'", "usd, hours, trials", "did you mean 'usd'?"]),
    ("task: d\nobjectives: [{metrik: a}]", "objectives.0.metrik", ["'metrik'", "did you mean 'metric'?"]),
    ("task: d\nsearch: {pruner: {name: mo_asha, rate: 3}}", "search.pruner.rate", ["'rate'", "grace, eta"]),
    ("study: x", "task", ["found nothing", "a built-in task"]),
    ("task: digits\ntask: text", "task", ["'task' in line 2 and in line 1", "once"]),
    ("task: d\nspace:\n  a: {low: 1, low: 2}", "space.a.low", ["'low' in line 3", "once"]),
    ("task: d\n1: 2", "", ["the key '1'", "text"]),
    ("task: d\nbudget: {on: 2}", "budget", ["the key 'on'", "text"]),
    ("? [a]\n: 1", "", ["a list or mapping as a key in line 1", "text"]),
    # types
    ("task: digits\ntraining: {epochs: 2.5}", "training.epochs", ["found 2.5", "a whole number of at least 1"]),
    ("task: digits\ntraining: {epochs: '20'}", "training.epochs", ["found '20'", "a whole number of at least 1"]),
    ("task: digits\ntraining: {epochs: 0}", "training.epochs", ["found 0", "at least 1"]),
    ("task: digits\ntraining: [1]", "training", ["found [1]", "a mapping with the keys epochs"]),
    ("task: 5", "task", ["found 5", "a built-in task"]),
    ("task: 'a b'", "task", ["found 'a b'", "module:Class"]),
    ("task: d\ntask_options: [1]", "task_options", ["found [1]", "a mapping"]),
    ("task: d\ntask_options: {a: .nan}", "task_options.a", ["found nan", "JSON"]),
    ("task: d\ntask_options: {a: !!binary aGk=}", "task_options.a", ["found b'hi'", "JSON"]),
    ("task: d\ntask_options: {a: &x [*x]}", "", ["not YAML", "contains itself, in line 2"]),
    ("task: d\nobjectives: []", "objectives", ["found []", "at least one"]),
    ("task: d\nspace: 5", "space", ["found 5", "a mapping"]),
    ("task: d\nresources: {device: gpu}", "resources.device", ["found 'gpu'", "auto, cpu, cuda"]),
    ("task: d\nresources: {device: cudaa}", "resources.device", ["did you mean 'cuda'?"]),
    ("task: d\nresources: {slots: all}", "resources.slots", ["found 'all'", "auto or a whole number"]),
    ("task: d\nresources: {slots: 0}", "resources.slots", ["found 0", "at least 1"]),
    ("task: d\nresources: {autoscale: 1}", "resources.autoscale", ["found 1", "true or false"]),
    ("task: d\nresources: {autoscale: true}", "resources.autoscale",
     ["found true", "needs ray_address (of a cluster with an autoscaler) and slots as a number and device as"]),
    ("task: d\nresources: {autoscale: true, slots: 2, device: cpu}", "resources.autoscale",
     ["found true, which also needs ray_address (of a cluster with an autoscaler)"]),
    ("task: d\nresources: {autoscale: true, slots: auto, device: cuda, ray_address: 'a:1'}", "resources.autoscale",
     ["found true, which also needs slots as a number"]),
    ("task: d\nresources: {price_per_slot_hour: -1}", "resources.price_per_slot_hour", ["found -1", "at least 0"]),
    ("task: d\ncheckpoints: {every_seconds: 0}", "checkpoints.every_seconds", ["found 0", "above 0"]),
    ("task: d\nstore: automl.db", "store", ["found 'automl.db'", "a database's URL"]),
    ("task: d\nmlflow: true", "mlflow", ["found true", "a tracking URI, or off"]),
    ("task: d\nsearch: {seed: -1}", "search.seed", ["found -1", "4294967295"]),
    # space
    ("task: d\nspace: {width: {type: int, low: 9, high: 9}}", "space.width.low", ["found 9", "below high (9)"]),
    ("task: d\nspace: {learning_rate: {type: float, low: 0, high: 1, log: true}}", "space.learning_rate.low",
     ["found 0.0", "above 0, because log is true"]),
    ("task: d\nspace: {width: {type: float, low: .nan, high: 1}}", "space.width.low", ["found nan", "finite"]),
    ("task: d\nspace: {width: {type: categorical, choices: []}}", "space.width.choices", ["found []", "at least one"]),
    ("task: d\nspace: {width: {type: categorical, choices: [1, 1]}}", "space.width.choices",
     ["found 1 twice", "differ"]),
    ("task: d\nspace: {width: {type: categorical, choices: [1, on]}}", "space.width.choices", ["found true twice"]),
    ("task: d\nspace: {width: {type: int, low: 1, high: 2, when: {widht: 1}}}", "space.width.when.widht",
     ["found 'widht'", "a parent among"]),
    (CIRCLE, "space.width.when.dropout", ["need each other: width -> dropout -> width", "Remove `when` from one"]),
    ("task: d\nspace: {learningrate: {type: float, low: 0, high: 1}}", "space.learningrate",
     ["neither the trainer nor the task", "allowed: width, dropout, learning_rate, batch_per_rank",
      "did you mean 'learning_rate'?"]),
    ("task: d\nspace: {epochs: {type: int, low: 1, high: 9}}", "space.epochs", ["'epochs'", "training.epochs"]),
    ("task: d\nspace: {learning_rate: {type: float, low: 0, high: 1}}", "space.learning_rate.low",
     ["found 0.0", "above 0"]),
    ("task: d\nspace: {momentum: {type: float, low: 0, high: 1}}", "space.momentum.high", ["found 1.0", "below 1"]),
    ("task: d\nspace: {batch_per_rank: {type: int, low: 0, high: 9}}", "space.batch_per_rank.low",
     ["found 0", "at least 1"]),
    ("task: d\nspace: {world_size: {type: float, low: 1, high: 2}}", "space.world_size.type", ["found float", "int"]),
    ("task: d\nspace: {world_size: {type: categorical, choices: [1, 1.5]}}", "space.world_size.choices", ["found 1.5"]),
    ("task: d\nspace: {world_size: {type: categorical, choices: [1, 8]}}", "space.world_size.choices",
     ["found 8", "at most 2"]),
    ("task: d\nspace: {world_size: {type: int, low: 1, high: 4}}", "space.world_size.high", ["found 4", "at most 2"]),
    ("task: d\nspace: {optimizer: {type: categorical, choices: [sgd, rmsprop]}}", "space.optimizer.choices",
     ["found 'rmsprop'", "sgd, adam, adamw"]),
    ("task: d\nspace: {optimizer: {type: int, low: 0, high: 1}}", "space.optimizer.type", ["found int", "categorical"]),
    ("task: d\nspace: {precision: {type: categorical, choices: [fp32, bf61]}}", "space.precision.choices",
     ["found 'bf61'", "auto, fp32, bf16, fp16", "did you mean 'bf16'?"]),
    ("task: d\nspace: {early_stop_patience: {type: int, low: 0, high: 4}}", "space.early_stop_patience.low",
     ["found 0", "null or a whole number of at least 1"]),
    ("task: d\nspace: {schedule: {type: categorical, choices: [cosine, constant]}}\ntraining: {schedule: cosine}",
     "training.schedule", ["found 'cosine'", "is in both", "one of the two"]),
    # objectives
    ("task: d\nobjectives: [{metric: val_eror}]", "objectives.0.metric",
     ["found 'val_eror'", "accuracy", "did you mean 'val_error'?"]),
    ("task: d\nobjectives: [{metric: cost_usd}, {metric: cost_usd, direction: maximize}]", "objectives.1.metric",
     ["found 'cost_usd' twice", "each metric once"]),
    ("task: d\nobjectives: [{metric: cost_usd, direction: minimise}]", "objectives.0.direction",
     ["found 'minimise'", "minimize, maximize", "did you mean 'minimize'?"]),
    ("task: d\nreference_point: {val_error: 1}", "reference_point.cost_usd", ["found nothing", "a finite number"]),
    ("task: d\nreference_point: {val_err: 1}", "reference_point.val_err", ["found 1", "did you mean 'val_error'?"]),
    ("task: d\nreference_point: {val_error: .inf, cost_usd: 1}", "reference_point.val_error", ["found inf", "finite"]),
    ("task: d\nreference_point: worst", "reference_point", ["found 'worst'", "auto, or a finite number"]),
    # budget
    ("task: d\nbudget: {usd: 0}", "budget.usd", ["found 0", "above 0 and up to 1e9, or null"]),
    ("task: d\nbudget: {hours: -1.5}", "budget.hours", ["found -1.5", "above 0 and up to 1e9"]),
    ("task: d\nbudget: {usd: .nan}", "budget.usd", ["found nan", "a finite number"]),
    ("task: d\nbudget: {usd: 9223372036854775808}", "budget.usd", ["up to 1e9"]),
    ("task: d\nfaults: {group_seconds: 1e300}", "faults.group_seconds", ["up to 1e9"]),
    ("task: d\nbudget: {usd: '5'}", "budget.usd", ["found '5'", "a finite number"]),
    ("task: d\nbudget: {trials: 1.5}", "budget.trials", ["found 1.5", "a whole number"]),
    ("task: d\nbudget: {usd: null, hours: null, trials: null}", "budget",
     ["found null for usd, hours and trials", "at least one"]),
    # names
    ("task: d\nstudy: ../x", "study", ["found '../x'", "letters, digits"]),
    ("task: d\nstudy: .hidden", "study", ["found '.hidden'", "no . in front"]),
    ("task: d\nstudy: " + "x" * 101, "study", ["found 'xxx", "at most 100"]),
    ('task: d\nstudy: "a\\nb"', "study", ["found 'a\\nb'", "letters"]),
    ("task: d\nsearch: {sampler: tpee}", "search.sampler",
     ["found 'tpee'", "auto, random, tpe", "did you mean 'tpe'?"]),
    ("task: d\nsearch: {pruner: asha}", "search.pruner",
     ["found 'asha'", "auto, none, mo_asha", "did you mean 'mo_asha'?"]),
    ("task: d\nsearch: {pruner: {name: mo_asha, grace: 0}}", "search.pruner.grace", ["found 0", "at least 1"]),
    ("task: d\nsearch: {pruner: {name: mo_asha, eta: 1}}", "search.pruner.eta", ["found 1", "at least 2"]),
    ("task: d\nsearch: {pruner: {name: none, eta: 3}}", "search.pruner.eta",
     ["'eta'", "no option with the pruner none"]),
    ("task: d\nsearch: {pruner: {name: mo_asha, variant: stoping}}", "search.pruner.variant",
     ["did you mean 'stopping'?"]),
    ("task: d\ntraining: {schedule: cosin}", "training.schedule", ["found 'cosin'", "did you mean 'cosine'?"]),
    *(
        (f"task: d\ntraining: {{{key}: {value}}}", f"training.{key}", [f"found {value}", allowed])
        for key, value, allowed in [
            ("precision", "true", "auto, fp32, bf16, fp16"),
            ("accumulate", "0", "a whole number of at least 1"),
            ("clip_norm", "0", "null or a finite number above 0"),
            ("shard", "null", "none, optimizer, full"),
            ("bucket_mb", "-1", "auto or a finite number above 0"),
            ("find_unused_parameters", "1", "false, true"),
            ("ema", "1", "null or a finite number above 0 and below 1"),
            ("samples_per_epoch", "0.5", "auto or a whole number of at least 1"),
            ("decay_factor", "1", "a finite number above 0 and below 1"),
            ("data_workers", "-1", "auto or a whole number of at least 0"),
        ]
    ),
    # constraints
    ("task: d\nconstraints: 5", "constraints", ["found 5", "a list of {metric, min, max}"]),
    ("task: d\nconstraints: [latency_ms]", "constraints.0", ["found 'latency_ms'", "keys metric, min, max"]),
    ("task: d\nconstraints: [{max: 5}]", "constraints.0.metric", ["found nothing", "the name of a metric"]),
    ("task: d\nconstraints: [{metric: latency, max: 5}]", "constraints.0.metric",
     ["found 'latency'", "val_error", "cost_usd", "did you mean 'latency_ms'?"]),
    ("task: d\nconstraints: [{metric: latency_ms, max: 5}, {metric: latency_ms, min: 1}]", "constraints.1.metric",
     ["found 'latency_ms' twice", "Name each metric once"]),
    ("task: d\nconstraints: [{metric: latency_ms}]", "constraints.0", ["found neither min nor max", "at least one"]),
    ("task: d\nconstraints: [{metric: latency_ms, max: .inf}]", "constraints.0.max", ["found inf", "a finite number"]),
    ("task: d\nconstraints: [{metric: latency_ms, max: 5, min: 5}]", "constraints.0.min", ["found 5", "below max, 5"]),
    ("task: d\nconstraints: [{metric: latency_ms, most: 5}]", "constraints.0.most", ["unknown key 'most'", "max"]),
    # not built yet
    ("task: {command: python train.py}", "task.command", ["found 'python train.py'", "a list of texts"]),
    # not YAML
    ("", "", ["the file is empty", "a mapping"]),
    ("- 1\n- 2\n", "", ["found [1, 2]", "a mapping"]),
    ("task: [", "", ["not YAML", "line 1", "Correct it"]),
    ("task: d\n\tx: 1", "", ["not YAML", "line 2"]),
    ("task: d\n---\ntask: e", "", ["not YAML"]),
    ("task: !!python/object/apply:os.getcwd []", "", ["not YAML", "python/object"]),
    ("task: !!int x", "", ["not YAML"]),
    ("a: " + "[" * 5000, "", ["not YAML", "nested too deeply"]),
    ("a: " + "9" * 5000, "", ["not YAML"]),
    ("task: d\ntask_options: {a: " + "[" * 101 + "]" * 101 + "}", "task_options.a", ["found [[[", "at most 100"]),
    (_bomb(9), "", ["more than 1,000,000 characters with aliases written out"]),
    ("task: d\ntask_options: {a: &a " + "x" * 5000 + ", b: [" + "*a, " * 200 + "]}", "", ["more than 1,000,000"]),
    ("task: \x00", "", ["not YAML"]),
    (b"\xff\xfe\x00\x01", "", ["is not UTF-8 text", "a readable YAML file"]),
]  # fmt: skip


@pytest.mark.medium
@pytest.mark.parametrize(("text", "path", "parts"), BAD, ids=[str(text)[:60] for text, _, _ in BAD])
def test_a_wrong_spec_is_refused_in_one_line(load, tmp_path, text, path, parts):
    with pytest.raises(SpecError) as caught:
        load(text)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'study.yaml'}: {path + ': ' if path else ''}")
    assert re.search(r", allowed: |[.;:] (Add|Correct|Give|Name|Put|put|Remove|Set|set|Write|or make) ", message + " ")
    assert message.isprintable()  # which a line break is not
    assert len(message) < 900
    assert "pydantic" not in message.lower()
    assert "Input should" not in message
    for part in parts:
        assert part in message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "wine.yaml").touch()
    with pytest.raises(SpecError, match=r"wine\.yml: no such file; did you mean 'wine\.yaml'\?"):
        load_spec(tmp_path / "wine.yml")
    with pytest.raises(SpecError, match=r"nothing\.yaml: no such file\. Name a readable YAML file"):
        load_spec(tmp_path / "nothing.yaml")
    with pytest.raises(SpecError, match="this is a folder"):
        load_spec(tmp_path)
    with pytest.raises(SpecError, match="cannot be read"):
        load_spec("a\0b")
    with pytest.raises(SpecError) as caught:
        load_spec("a\nb")
    assert str(caught.value).isprintable()


def test_passwords_are_never_shown_and_long_values_are_cut() -> None:
    for wrong in (
        {"store": "postgresql://me:se/cret@host/db x"},
        {"mlflow": ["http://me:se@cret@host/?password=cret"]},
    ):
        with pytest.raises(SpecError) as caught:
            parse_spec({"task": "d", **wrong})
        assert "cret" not in str(caught.value)
        assert "://***@host" in str(caught.value)
    with pytest.raises(SpecError) as caught:
        parse_spec({"task": "d", "budget": {"usd": "y" * 10_000}})
    assert len(str(caught.value)) < 200


def test_what_is_no_mapping_is_refused() -> None:
    for raw in (None, [], "task: d", 5, {1: 2}):
        with pytest.raises(SpecError, match=r"^here: found .*, allowed: "):
            parse_spec(raw, source="here")


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["auto", "none", "off", "", "a b", "é\n"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "type", "low", "when", "usd", "x", ""]), inner, max_size=3)
    ),
    max_leaves=6,
)


@patient
@given(st.dictionaries(st.sampled_from([*StudySpec.model_fields, "taks"]), json_like, max_size=4), st.booleans())
def test_whatever_is_given_there_is_a_spec_or_one_line(raw: dict[str, object], with_task: bool) -> None:
    try:
        spec = parse_spec({**raw, "task": "digits"} if with_task else raw)
    except SpecError as error:
        message = str(error)
    else:
        message = ", allowed: "
        assert parse_spec(json.loads(json.dumps(spec_to_mapping(spec), allow_nan=False))) == spec
    assert message.isprintable()
    assert ", allowed: " in message


def test_overrides_reach_every_part(load) -> None:
    spec = load(
        DESIGN, "budget.usd=5", "training.epochs=3", "space.learning_rate.low=1e-5",
        "space.momentum.when.optimizer=adamw", "objectives.0.metric=accuracy", "objectives.0.direction=maximize",
        "search.pruner={name: mo_asha, grace: 2}", "search.pruner.eta=4", "task_options.depth=[1, 2]", "mlflow=off",
        "store=postgresql://me@host/db?a=b", "budget.hours=null", "resources.slots=2", "promotion.val_error=0.1",
        "search.first_trials=[{optimizer: sgd}]", "search.first_trials.0.momentum=0.5",
        "baselines=[{name: plain, params: {optimizer: sgd}}, {name: earlier, metrics: {val_error: 0.5}}]",
        "baselines.0.params.momentum=0.25", "baselines.1.metrics.accuracy=0.5",
    )  # fmt: skip
    assert (spec.budget.usd, spec.budget.hours, spec.training.epochs) == (5, None, 3)
    assert spec.promotion == {"val_error": 0.1}
    assert spec.search.first_trials == ({"optimizer": "sgd", "momentum": 0.5},)
    assert spec.baselines is not None
    assert [baseline.params or baseline.metrics for baseline in spec.baselines] == [
        {"optimizer": "sgd", "momentum": 0.25},
        {"val_error": 0.5, "accuracy": 0.5},
    ]
    assert spec.space.parameter("learning_rate") == Float(low=1e-5, high=1.0, log=True)
    assert "momentum" in spec.space.active({"optimizer": "adamw"})
    assert spec.objective_records[0] == Objective(metric="accuracy", direction="maximize")
    assert (spec.search.pruner.options["grace"], spec.search.pruner.options["eta"]) == (2, 4)
    assert spec.task_options == {"depth": [1, 2]}
    assert (spec.mlflow, spec.store) == ("off", "postgresql://me@host/db?a=b")


def test_overrides_leave_the_given_mapping_alone() -> None:
    mapping = {"task": "d", "budget": {"usd": 1}}
    changed = apply_overrides(mapping, ["budget.usd=2", "budget.usd=3", "training.epochs=4"])
    assert changed == {"task": "d", "budget": {"usd": 3}, "training": {"epochs": 4}}
    assert mapping == {"task": "d", "budget": {"usd": 1}}


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("budget.usdd=5", ["budget.usdd", "the unknown key 'usdd'", "did you mean 'usd'?"]),
        ("bugdet.usd=5", ["bugdet", "did you mean 'budget'?"]),
        ("budget.usd.x=5", ["budget.usd.x", "without keys inside"]),
        ("budget.usd", ["found 'budget.usd'", "path=value"]), ("=5", ["found '=5'", "path=value"]),
        ("budget..usd=5", ["path=value"]),
        ("budget.usd=-5", ["with --set 'budget.usd=-5'", "budget.usd: found -5", "above 0"]),
        ("budget={usd: -5}", ["with --set", "budget.usd: found -5"]), ("budget.usd=[", ["not YAML"]),
        ("budget.usd={a: 1, a: 2}", ["'a'", "once"]),
        ("objectives.7.metric=x", ["objectives.7", "found '7'", "an index below 2"]),
        ("objectives.0.metrik=x", ["objectives.0.metrik", "did you mean 'metric'?"]),
        ("task.x=1", ["task.x", "without keys inside"]),
        ("space.learning_rate.low.x=1", ["space.learning_rate.low", "found 0.0001", "a mapping or a list"]),
        ("search.pruner.grace=2", ["search.pruner.grace", "'grace'", "mo_asha and median have it"]),
    ],
)  # fmt: skip
def test_a_wrong_override_is_refused(load, override: str, parts: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        load(DESIGN, override)
    assert override in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


def test_resume_changes_what_says_how_far_and_where_a_study_goes_only(load) -> None:
    spec = load(DESIGN)
    overrides = ["budget.usd=5", "resources.slots=4", "checkpoints.every_seconds=1", "faults.silence_seconds=900"]
    changed = apply_resume_overrides(spec, overrides)
    assert (changed.budget.usd, changed.resources.slots, changed.checkpoints.every_seconds) == (5, 4, 1)
    assert changed.faults.silence_seconds == 900
    assert changed.space == spec.space
    with pytest.raises(
        SpecError, match=r"training\.epochs: found a key that cannot change after launch, allowed: keys of budget, res"
    ):
        apply_resume_overrides(spec, ["training.epochs=5"])
    with pytest.raises(SpecError, match=r"budget\.usd: found 0, allowed"):
        apply_resume_overrides(spec, ["budget.usd=0"])


def test_world_sizes_fit_the_slots() -> None:
    check_world_sizes(parse_spec({"task": "d"}), 1)
    spec = parse_spec({"task": "d", "space": {"world_size": {"type": "int", "low": 1, "high": 4, "step": 2}}})
    check_world_sizes(spec, 3)  # 1 and 3
    with pytest.raises(SpecError, match="found 4, allowed: at most 2, the number of slots"):
        check_world_sizes(spec, 2)
    with pytest.raises(SpecError, match=r"resources\.slots: found 0"):
        check_world_sizes(parse_spec({"task": "d"}), 0)


@pytest.mark.parametrize("task", ["digits", "my_task:MyTask", "null", "off", "1e5", "123", "a.b:C.d", "x" * 120])
def test_the_template_is_a_valid_spec(task: str, load) -> None:
    spec = load(template(task))
    assert spec.task == task
    defaults = {**spec_to_mapping(parse_spec({"task": task})), "space": None}
    assert {**spec_to_mapping(spec), "space": None} == defaults


def test_milestones_are_those_of_the_design_and_the_template_mentions_every_key() -> None:
    raw = read_yaml(template("digits"), "template")
    assert isinstance(raw, dict)
    assert set(raw) | {"constraints"} == set(StudySpec.model_fields)
    with pytest.raises(SpecError, match="automl init: task: found 'no task'"):
        template("no task")
    assert milestones(50) == (3, 4, 6, 9, 13, 19, 28, 41, 50)
    assert milestones(50, 3, [9, 27]) == (3, 4, 6, 9, 13, 19, 27, 28, 41, 50)
    assert (milestones(1), milestones(2)) == ((1,), (2,))
    every_eighth = kept_epochs(NoPruner(), 50, every=8)
    assert every_eighth == (3, 4, 6, 8, 9, 13, 16, 19, 24, 28, 32, 40, 41, 48, 50)
    assert kept_epochs(NoPruner(), 50, every=None) == kept_epochs(NoPruner(), 50, every=50) == milestones(50)
    assert milestones(20, 3, [3, 9, 27]) == (3, 4, 6, 9, 13, 20)
    with pytest.raises(ValueError, match="must be at least 1"):
        milestones(0)


@given(st.integers(1, 2000), st.integers(1, 50), st.lists(st.integers(1, 2500), max_size=5))
def test_milestones_keep_their_promises(epochs: int, grace: int, rungs: list[int]) -> None:
    chosen = milestones(epochs, grace, rungs)
    assert chosen == tuple(sorted(set(chosen)))
    assert {epochs, min(grace, epochs), *(rung for rung in rungs if rung <= epochs)} <= set(chosen)
    assert set(milestones(epochs, grace)) <= set(chosen)
    grown = [epoch for epoch in milestones(epochs, grace) if epoch != epochs]
    assert all(epoch <= 0.87 * epochs + 1e-9 for epoch in grown[1:])
    for one, other in itertools.pairwise(grown):
        assert other == max(one + 1, math.floor(1.45 * one + 0.5 + 1e-9))


@pytest.mark.parametrize("name", list(TRAINER_PARAMETERS))
def test_the_trainers_own_defaults_are_allowed(name: str) -> None:
    taker = TRAINER_PARAMETERS[name]
    assert taker.problem(taker.default) is None
    assert taker.description
    assert dataclasses.is_dataclass(taker)
    for wrong in (object(), [], math.nan, math.inf, 10**400, "no such word"):
        problem = taker.problem(wrong)
        assert problem is not None
        assert ", allowed: " in problem


@pytest.mark.parametrize(
    "name",
    ["seed", "study", "trial", "attempt", "scaled_learning_rate", "checkpoint_folder", "trial_folder", "params_file"],
)
def test_a_parameter_of_a_command_with_one_of_our_names_in_braces_is_refused(name: str) -> None:
    task = {"command": ["python", "train.py", f"--of={{{name}}}"]}
    space = {name: {"type": "int", "low": 1, "high": 3}}
    spec = parse_spec({"task": task, "space": space}, "spec")
    with pytest.raises(SpecError, match=rf"task\.command: \{{{name}\}} is a value of every trial, and the space has"):
        check_against_task(spec, None, None, Space({}))
    unnamed = parse_spec({"task": {"command": ["python", "train.py"]}, "space": space}, "spec")
    assert check_against_task(unnamed, None, None, Space({})).space is not None


def test_conditions_that_allow_endless_combinations_of_options_are_checked_in_part() -> None:
    space: dict[str, object] = {"p0": {"type": "int", "low": 1, "high": 2}}
    for number in range(1, 60):
        space[f"p{number}"] = {"type": "int", "low": 1, "high": 2, "when": {f"p{number - 1}": 2}}
    space["shard"] = {"type": "categorical", "choices": ["none", "full"], "when": {"p59": 2}}
    parsed = parse_spec({"task": "digits", "space": space, "objectives": ["val_error"]}, "spec")
    assert check_against_task(parsed, [*space], ["val_error"], DEFAULT_SPACE).space == parsed.space
    always = parse_spec({"task": "digits", "space": space | {"shard": ["full"], "compress": ["fp16"]}}, "spec")
    with pytest.raises(SpecError, match="shard is full and compress is fp16"):
        check_against_task(always, [*space], ["val_error"], DEFAULT_SPACE)
