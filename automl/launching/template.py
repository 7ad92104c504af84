"""The commented example spec that `automl init` writes."""

import importlib.machinery
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from automl.launching.prepared_study import TaskFacts, facts_of, quality_of
from search_spaces.space import Space
from studies.spec.metric_names import direction_is_guess, likely_direction
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import parse_spec
from studies.spec.yaml_reader import read_yaml, write_yaml
from trainers.contract.task_loading import built_in_tasks, load_task, path_options
from trainers.protocol import OUR_METRICS

_TEMPLATE = """\
# A study: what to search, for which objectives, and with how much money. Start it with `automl launch FILE`.
# Any key can be set for one launch with --set, for instance --set budget.usd=5

study: {study}
task: {task}             # a built-in task, or module:Class for your own task beside this file
task_options: {options}

objectives:               # always measured: {measured}
  - {{metric: {metric}, direction: {direction}}}{about_metric}
  - {{metric: cost_usd, direction: minimize}}
reference_point: auto     # origin of the hypervolume; or a number for each: {{{metric}: 0.5, cost_usd: 0.02}}
# constraints: [{{metric: {bound}}}]   # bounds on models: min, max or both, inclusive

{space}

baselines: null           # models to compare with; null: the task's own, []: none

training:
  epochs: 20
  reference_batch: 64
  lr_scaling: auto        # auto, linear, sqrt, none or adascale; auto is linear for sgd and sqrt for adam and adamw
  warmup_epochs: 1
  schedule: cosine        # or constant, where a model from mid-training is as good as after a shorter training;
                          # step, one_cycle
  precision: auto         # bf16 on a GPU that has it, else fp32; or bf16, fp32, fp16
  accumulate: 1           # backward passes per optimizer step: a larger batch in the same memory
  clip_norm: null         # the largest norm of the whole gradient, such as 1.0
  early_stop_patience: null   # a trial is complete after this number of epochs without a better val_loss
  # and more: ema, label_smoothing, compress, shard, activation_checkpointing, compile, samples_per_epoch

search:
  sampler: auto           # auto, cokriging, random, tpe, nsga2, gp, or module:Object for any sampler of Optuna
  pruner: auto            # auto, none, or {{name: mo_asha, variant: stopping, grace: 3, eta: 3}}
  seed: 0
  from_studies: []        # earlier studies to learn from: a name of this store, or URL#NAME, also of an Optuna study

budget:                   # the search ends at the first limit reached; null is no limit
  usd: 1.0
  hours: 1.0
  trials: 200
  usd_per_trial: null
  hours_per_trial: null
  least_percent_per_10_usd: null   # close the study once ten more dollars buy less hypervolume than this
  finish: 0.1             # share reserved to train the best stopped trials to their last epoch

resources:
  device: auto            # auto, cpu or cuda
  cpus_per_rank: 1
  slots: auto             # number of ranks that run at once
  price_per_slot_hour: auto   # dollars; auto looks the device up in a table
  backend: auto           # nccl or gloo: communication backend of the ranks
  environment: []         # variables for ranks on other machines, besides NCCL_*, GLOO_*, HF_* and CUDA_*
  on_lost_node: wait      # shrink lets a trial go on with fewer ranks while a node is gone
  ray_address: null       # a cluster to join; null starts Ray here
  autoscale: false        # true: that cluster's autoscaler brings the slots, up to their number

checkpoints: {{folder: ./artifacts, every_seconds: 60, most_paused: null, max_gib: null}}   # or s3://BUCKET/FOLDER, gs://
faults: {{start_seconds: 1800, silence_seconds: 300, attempts: 3, group_seconds: 600}}   # silent ranks
store: sqlite:///automl.db
mlflow: sqlite:///mlflow.db   # a tracking URI, or off
promotion: {{}}                 # bounds of confirmed metrics before `automl promote`, such as {{val_error: 0.05}}
"""

_MEASURED_OF_A_TASK = "cost_usd, wall_seconds, model_parameters, latency_ms, train_loss, val_loss"
_MEASURED_OF_A_FUNCTION = "cost_usd, wall_seconds, peak_memory_bytes, and metrics that the training function reports"

_GENERAL_SPACE = Space.from_dict(
    {
        "learning_rate": {"type": "float", "low": 1e-3, "high": 1.0, "log": True},
        "batch_per_rank": {"type": "int", "low": 16, "high": 256, "log": True},
        "optimizer": {"type": "categorical", "choices": ["sgd", "adamw"]},
        "momentum": {"type": "float", "low": 0.0, "high": 0.99, "when": {"optimizer": "sgd"}},
    }
)
"""Space of a task whose own space is unknown: parameters of the trainer."""

_SPACE_COMMENTS = (
    "  # The learning rate is for a batch of reference_batch samples; it is scaled to the batch size of the trial.",
    "  # A prior says where good values are expected: prior: {center: 0.1, confidence: high}",
)
_WORLD_SIZE = "  world_size: {type: categorical, choices: [1]}       # [1, 2, 4] on a machine with 4 slots"
_SPACE_OF_DATA = (
    "# The space is left out: the task takes one that suits the data; `automl launch FILE --dry-run` shows it.",
    "# Parameters that are written here replace it:",
    "# space: {learning_rate: {type: float, low: 1.0e-4, high: 1.0e-2, log: true}}",
)


def template(task: str, facts: TaskFacts | None = None) -> str:
    """Return a commented example spec.

    Args:
        facts: None if unknown: the task is not written yet, or depends on its data.

    Raises:
        SpecError: No task can have this name.
    """
    study = parse_spec({"task": task}, source="automl init").study
    needs_data = facts is None and "train" in path_options(task)[0]
    is_function = facts is not None and facts.parameters is None
    metric = "val_error" if facts is None else quality_of(facts)
    return _TEMPLATE.format(
        study=word(study),
        task=word(task),
        options=_options(needs_data),
        measured=_MEASURED_OF_A_FUNCTION if is_function else _MEASURED_OF_A_TASK,
        bound="peak_memory_bytes, max: 8.0e+9" if is_function else "latency_ms, max: 5",
        metric=metric,
        direction=likely_direction(metric),
        about_metric=_about_metric(facts, metric, needs_data=needs_data),
        space="\n".join(_SPACE_OF_DATA if needs_data else _space_lines(facts)),
    )


def _options(needs_data: bool) -> str:
    if needs_data:
        return "{train: PATH}   # the path of your data; docs/tasks.md lists all options of the task"
    return "{}          # arguments of the task's constructor"


def _about_metric(facts: TaskFacts | None, chosen: str, *, needs_data: bool) -> str:
    if needs_data:
        return "   # of classes; if the target is a number: val_rmse, val_mae or val_r2"
    named = () if facts is None else facts.metrics or facts.reported
    others = [one for one in named if one != chosen and one not in OUR_METRICS]
    said = ["the direction is a guess"] if direction_is_guess(chosen) else []
    said += [f"the task also measures {', '.join(others)}"] if others else []
    return f"   # {'; '.join(said)}" if said else ""


def _space_lines(facts: TaskFacts | None) -> list[str]:
    """Return the section `space`. Its world size is 1, which fits every machine."""
    own = facts.space if facts is not None else None
    parameters = {name: form for name, form in (own or _GENERAL_SPACE).to_dict().items() if name != "world_size"}
    lines = ["space:                    # leave it out to use the task's own space", *_SPACE_COMMENTS]
    lines += [*parameter_lines(parameters), _WORLD_SIZE]
    if own is None and facts is not None:
        lines += [
            f"  # {name}: {flow({'type': 'int', 'low': 1, 'high': 8})}   # a parameter of the task: set its range"
            for name in facts.parameters or ()
        ]
    return lines


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstSpec:
    """A written spec. `note` explains why its space is general, not the task's own, or is empty."""

    path: Path
    note: str
    next_step: str


def write_first_spec(task: str) -> FirstSpec:
    """Write a spec with the task's own space and metrics to a new file TASK.yaml in this folder.

    A user's task is tried out in another process.

    Raises:
        TaskLoadError: There is no such built-in task.
        SpecError: No task can have this name, or the file exists.
    """
    if ":" not in task and task not in built_in_tasks():
        load_task(task)  # raises, and lists the existing tasks
    template(task)  # raises if no task can have this name
    path = Path(f"{task.rpartition(':')[0].rpartition('.')[2] or task}.yaml")
    if path.exists():
        raise _exists(path)
    facts, note = _facts(task, path)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(template(task, facts))
    except FileExistsError:
        raise _exists(path) from None
    data = " --set task_options.train=PATH" if _needs_data(task) else ""
    return FirstSpec(path=path, note=note, next_step=f"automl launch {path}{data}")


def _exists(path: Path) -> SpecError:
    return SpecError(str(path), (), "this file exists already, and is left unchanged")


def _needs_data(task: str) -> bool:
    return "train" in path_options(task)[0]


def _facts(task: str, path: Path) -> tuple[TaskFacts | None, str]:
    missing = _missing_module(task)
    if missing:
        return None, f"{missing} cannot be imported yet. Write it beside {path}"
    if _needs_data(task):
        return None, ""
    try:
        return facts_of(task, {}, source=str(path), folder=Path.cwd()), ""
    except SpecError as error:
        reason = f"the task did not return its space and metrics ({error.problem})"
        return None, f"{reason}, so {path} has general values: adapt `space` and `objectives`"


def _missing_module(task: str) -> str | None:
    module, colon, _ = task.partition(":")
    folders: list[str] | None = [str(Path.cwd()), *sys.path]
    for part in module.split(".") if colon else ():
        found = importlib.machinery.PathFinder.find_spec(part, folders)
        if found is None:
            return module
        folders = list(found.submodule_search_locations or ())
    return None


def flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    return write_yaml(value, on_one_line=True).strip()


def parameter_lines(space: Mapping[str, Any]) -> list[str]:
    """Return each parameter of a space as an indented line."""
    return [f"  {name}: {flow(parameter)}" for name, parameter in space.items()]


def word(text: str) -> str:
    """Return a text as YAML, in quotes if needed."""
    try:
        return text if read_yaml(text, source="") == text else json.dumps(text)
    except SpecError:
        return json.dumps(text)
