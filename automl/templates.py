"""The commented example spec that `automl init` writes."""

from __future__ import annotations

import json

from studies.spec.errors import SpecError
from studies.spec.study_spec import parse_spec
from studies.spec.yaml_reader import read_yaml
from trainers.task import path_options

_TEMPLATE = """\
# A study: what to search, for what, and with how much money. Start it with `automl launch FILE`.
# Any key can be set for one launch with --set, for instance --set budget.usd=5

study: {study}
task: {task}             # a built-in task, or module:Class for your own beside this file
task_options: {options}    # arguments of the task's constructor

objectives:               # always measured: cost_usd, wall_seconds, model_parameters, latency_ms, train_loss, val_loss
  - {{metric: val_error, direction: minimize}}
  - {{metric: cost_usd, direction: minimize}}
reference_point: auto     # of the hypervolume; or one number for each objective: {{val_error: 0.5, cost_usd: 0.02}}
# constraints: [{{metric: latency_ms, max: 5}}]   # what a model has to keep to count: min, max or both, inclusive

space:                    # leave it out to take the task's own
  # The learning rate is the one at reference_batch samples a step; it is scaled to the batch size of the trial.
  # Where good values are expected can be added: prior: {{center: 0.1, confidence: high}}
  learning_rate: {{type: float, low: 1.0e-3, high: 1.0, log: true}}
  batch_per_rank: {{type: int, low: 16, high: 256, log: true}}
  world_size: {{type: categorical, choices: [1]}}       # [1, 2, 4] on a machine with 4 slots
  optimizer: {{type: categorical, choices: [sgd, adamw]}}
  momentum: {{type: float, low: 0.0, high: 0.99, when: {{optimizer: sgd}}}}

training:
  epochs: 20
  reference_batch: 64
  lr_scaling: auto        # auto, linear, sqrt, none or adascale; auto is linear for sgd and sqrt for adam and adamw
  warmup_epochs: 1
  schedule: cosine        # or constant, under which a model from mid-training is as good as one trained that long;
                          # step, one_cycle
  precision: auto         # bf16 on a GPU that has it, else fp32; or bf16, fp32, fp16
  accumulate: 1           # backward passes per optimizer step: a larger batch in the same memory
  clip_norm: null         # the largest norm of the whole gradient, such as 1.0
  early_stop_patience: null   # a trial is complete after so many epochs without a better val_loss
  # and more: ema, label_smoothing, compress, shard, activation_checkpointing, compile, samples_per_epoch

search:
  sampler: auto           # auto, cokriging, random, tpe, nsga2, gp, or module:Object for any sampler of Optuna
  pruner: auto            # auto, none, or {{name: mo_asha, variant: stopping, grace: 3, eta: 3}}
  seed: 0
  from_studies: []        # earlier studies to learn from: a name of this store, or URL#NAME, also of an Optuna study

budget:                   # whichever comes first; null is no limit
  usd: 1.0
  hours: 1.0
  trials: 200
  usd_per_trial: null
  hours_per_trial: null
  least_percent_per_10_usd: null   # close the study once ten more dollars buy less hypervolume than that

resources:
  device: auto            # auto, cpu or cuda
  cpus_per_rank: 1
  slots: auto             # how many ranks run at once
  price_per_slot_hour: auto   # dollars; auto looks the device up in a table
  ray_address: null       # a cluster to join; null starts Ray here

checkpoints: {{folder: ./artifacts, every_seconds: 60, most_paused: null}}
store: sqlite:///automl.db
mlflow: sqlite:///mlflow.db   # a tracking URI, or off
"""


def template(task: str) -> str:
    """A commented example spec for a task, which `load_spec` accepts.

    Args:
        task: A built-in task's name, or "module:Class".

    Raises:
        SpecError: If this cannot be the name of a task.
    """
    options = "{train: PATH}" if "train" in path_options(task)[0] else "{}      "
    study = parse_spec({"task": task}, source="automl init").study
    return _TEMPLATE.format(study=_as_yaml(study), task=_as_yaml(task), options=options)


def _as_yaml(text: str) -> str:
    """The text bare if YAML reads it as the same text, else in quotes."""
    try:
        return text if read_yaml(text, source="") == text else json.dumps(text)
    except SpecError:
        return json.dumps(text)
