"""Small files for the built-in tasks' tests, and where the real data lie."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.paths import SHARED
from trainers.contract.task import Task
from trainers.contract.task_loading import load_task
from trainers.loop.evaluation import evaluate
from trainers.loop.trainer import Trainer
from trainers.protocol import TrialSpec
from trainers.ranks.process_group import Group

REAL = SHARED / "data"


def real(*parts: str) -> str:
    """A file of the real data; the test is skipped without it."""
    path = REAL.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return str(path)


def write(path: Path, rows: Sequence[Sequence[object]], delimiter: str = ",") -> str:
    path.write_text("".join(delimiter.join(map(str, row)) + "\n" for row in rows))
    return str(path)


def people(count: int, seed: int = 0) -> list[list[object]]:
    """Rows of age, city, score, rich: rich depends on age and city; score is noise with holes."""
    draw = random.Random(seed)
    rows: list[list[object]] = []
    for _ in range(count):
        age, city = draw.randint(18, 80), draw.choice(["Rome", "Oslo", "Lima"])
        score = "?" if draw.random() < 0.1 else f"{draw.gauss(0, 1):.3f}"
        rich = (age > 45) != (city == "Oslo")
        rows.append([age, city, score, "yes" if rich else "no"])
    return rows


HEADER = ["age", "city", "score", "rich"]


def trained(name: str, options: dict[str, Any], params: dict[str, Any], epochs: int) -> tuple[Any, Trainer]:
    """A task and its trainer after `epochs` epochs in this process."""
    task = load_task(name, options)
    training = {"epochs": epochs}
    spec = TrialSpec(study="t", trial=0, task=name, task_options=options, params=params, training=training)
    trainer = Trainer(spec, task, group=Group(device=torch.device("cpu")))
    for _ in trainer.advance(epochs):
        pass
    return task, trainer


def metrics_of(task: Task, trainer: Trainer, part: str) -> dict[str, float]:
    return evaluate(trainer.module, task, {}, part=part)
