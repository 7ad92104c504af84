"""What is printed to take a model out of a study: for each library it gives that library's own model."""

import random
import shlex
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from automl.exporting.source import source_of
from reports.recommending import command_of
from search_spaces.drawing import complete
from search_spaces.space import Space
from studies.results.recommendation import recommended
from tests.support import optional
from tests.support.function_trials import Granted
from tests.support.paths import EXAMPLES
from tests.support.study_factory import build_study
from trainers.checkpoints.model_export import export_model
from trainers.contract.task_loading import load_trainable
from trainers.functions.function_trainer import FunctionTrainer
from trainers.protocol import TaskError, TrialFacts, TrialSpec
from trainers.ranks.process_group import Group

pytestmark = pytest.mark.filterwarnings("default")  # what libraries warn of is their own


def printed_command(facts: TrialFacts) -> list[str]:
    study = build_study(20)
    point = (found := recommended(study)) and found.point
    assert point is not None
    trials = [replace(one, attempts=[replace(a, facts=asdict(facts)) for a in one.attempts]) for one in study.trials]
    return shlex.split(command_of(replace(study, trials=trials), point))


@pytest.mark.medium
@pytest.mark.parametrize(
    ("example", "library", "options"),
    [
        ("with_lightning", "lightning", ["--out", "model.pt"]),
        ("with_hugging_face", "transformers", ["--out", "model.pt"]),
        ("with_accelerate", "accelerate", ["--out", "model"]), ("with_keras", "keras", ["--out", "model.pt"]),
        ("with_scikit_learn", "skops", ["--out", "model.pt"]), ("with_xgboost", "xgboost", ["--out", "model.pt"]),
        ("with_lightgbm", "lightgbm", ["--out", "model.pt"]),
        ("gan", "torch", ["--out", "model", "--model", "generator"]),
    ],
)  # fmt: skip
def test_the_printed_command_and_its_lines_give_the_trained_model(tmp_path, monkeypatch, example, library, options):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.chdir(tmp_path)
    optional.module(library)
    space = Space.from_dict(yaml.safe_load((EXAMPLES / f"{example}.yaml").read_text())["space"])
    params = complete(space, {}, random.Random(0))
    params.pop("world_size", None)
    task, folders = f"{example}:train", (str(EXAMPLES),)
    spec = TrialSpec(
        study="test", trial=0, task=task, params=params, training={"epochs": 1}, python_path=folders,
        checkpoint_folder=str(tmp_path), milestones=(1,),
    )  # fmt: skip
    trainer, course = FunctionTrainer(spec, load_trainable(task, {}, folders), group=Group()), Granted()
    trainer.run(course)
    trainer.close()
    checkpoint, modules = course.measurements[-1].checkpoint, trainer._trial.modules
    command = printed_command(course.facts)
    assert command[4:] == options
    if options[1] == "model":
        assert source_of(checkpoint, task, folders, None if len(options) < 4 else options[3]).call.outputs() is not None
        return
    with pytest.raises(TaskError, match=r"no torch.nn.Module to export. Use --out FILE.pt, which writes its"):
        source_of(checkpoint, task, folders)
    lines = export_model(checkpoint, "model.pt", of_task=task)["how_to_load"]
    names: dict[str, Any] = {"model": modules[0], "module": modules[0]} if modules else {}
    trained = [value.clone() for value in modules[0].parameters()] if modules else []
    for parameter in modules[0].parameters() if modules else ():
        nn.init.zeros_(parameter)
    exec(compile(lines, "how_to_load", "exec"), names)
    if modules:
        assert all(map(torch.equal, trained, modules[0].parameters()))
    else:
        assert type(names["model"]).__module__.partition(".")[0] in {"sklearn", "xgboost", "lightgbm"}
