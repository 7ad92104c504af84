"""Studies on a GPU from the spec to the answer: Ray's slots, the built-in tasks, loops of one's own, exported models.

They need what a study needs, so they are left out where torch alone is installed.
"""

import csv
import io
import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.gpu.gpu_trials import DEVICE, KIND, needs_gpu, on_gpu
from tests.gpu.studies_on_gpus import Folder, write_images, write_table, write_texts
from tests.support.paths import EXAMPLES
from tests.support.served import free_port
from tests.support.waiting import wait_until

for needed in ("ray", "optuna", "sqlalchemy", "pydantic"):
    pytest.importorskip(needed)
pytestmark = needs_gpu

RATE: dict[str, Any] = {"learning_rate": {"type": "float", "low": 0.003, "high": 0.03, "log": True}}


def space(**choices: Any) -> dict[str, Any]:
    """Return a space in which these parameters have one value each."""
    choices = {"batch_per_rank": 64, "optimizer": "adamw"} | choices
    return RATE | {name: {"type": "categorical", "choices": [value]} for name, value in choices.items()}


MLP = space(architecture="mlp", width=32, depth=2, dropout=0.1, embedding=4, bins=0)
FEW_TREES = {
    "trees": 30, "tree_rate": 0.1, "leaves": 8, "leaf_rows": 5, "row_share": 1.0, "column_share": 1.0, "l2": 1.0,
}  # fmt: skip
SMALL = {"width": 32, "depth": 2, "dropout": 0.0}
IMAGES = {"channels": 8, "depth": 2, "dropout": 0.0}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "tabm": ("tabular", {}, space(architecture="tabm", embedding=4, bins=8, **SMALL)),
    "mlp": ("tabular", {"folds": 1}, MLP),
    "trees": ("tabular", {"folds": 1}, space(architecture="trees", **FEW_TREES)),
    "ngrams": ("text", {}, space(architecture="ngrams", width=16, dropout=0.0, token_dropout=0.1, longest_ngram=2)),
    "tfidf": ("text", {}, space(architecture="tfidf", longest_ngram=2, l2=1.0)),
    "transformer": ("text", {}, space(architecture="transformer", heads=4, pooling="both", token_dropout=0.0, **SMALL)),
    "cnn": ("vision", {}, space(architecture="cnn", shift=1, operations=2, mixup=0.2, **IMAGES)),
    "residual": ("vision", {}, space(architecture="residual", shift=0, **IMAGES)),
    "language_model": ("language_model", {"length": 16, "vocabulary": 300}, space(heads=4, **SMALL)),
}
"""Task, task options, and space of each model."""
FILES = {"tabular": "table.csv", "text": "texts.tsv", "vision": "images", "language_model": "texts.txt"}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def write_data(path: Path, task: str) -> str:
    """Write what a task trains on, and return the name of a file or folder of new rows."""
    if task == "tabular":
        write_table(path / "table.csv", 600, 0)
        write_table(path / "new.csv", 40, 1)
        return "new.csv"
    if task == "vision":
        write_images(path / "images", 300, 0)
        write_images(path / "new", 20, 1)
        return "new"
    write_texts(path / "texts.tsv", 600, 0)
    write_texts(path / "new.tsv", 40, 1)
    for name in ("texts", "new"):
        lines = (path / f"{name}.tsv").read_text().splitlines()[1:]
        separator = "\n\n" if name == "texts" else "\n"
        (path / f"{name}.txt").write_text(separator.join(line.split("\t")[0] for line in lines) + "\n")
    return "new.tsv" if task == "text" else "new.txt"


def exported(folder: Folder, model: str) -> str:
    """Search with one model, export the best one as `model`, and return the name of new rows."""
    task, options, of_model = MODELS[model]
    rows = write_data(folder.path, task)
    options = {"train": FILES[task], **options}
    folder.launch({"task": task, "task_options": options, "space": of_model, "baselines": []})
    folder.run("export", "gpu", "best", "--out", "model")
    return rows


def answers(text: str) -> list[dict[str, str]]:
    """Return the rows of what `automl predict` printed."""
    return list(csv.DictReader(io.StringIO(text)))


def is_number(text: str) -> bool:
    """Whether a cell holds a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("model", MODELS)
def test_a_built_in_task_is_searched_and_its_model_answers_alike_on_both_devices(folder: Folder, model: str) -> None:
    rows = exported(folder, model)
    cpu, gpu = (answers(folder.run("predict", "model", rows, "--device", device)) for device in ("cpu", KIND))
    assert len(cpu) == len(gpu) > 0
    for one, other in zip(cpu, gpu, strict=True):
        for name, value in one.items():
            if is_number(value) and name not in {"token", "label"}:
                assert float(other[name]) == pytest.approx(float(value), abs=2e-3), (name, one, other)


EXAMPLE = """
import torch

import automl
import {example}


def train(trial: automl.Trial) -> None:
    {example}.train(trial)
    if "{kind}" == "cuda" and not torch.cuda.max_memory_allocated():
        raise RuntimeError("nothing was on the GPU")
"""


@pytest.mark.parametrize(
    ("example", "library"),
    [
        ("training_function", "torch"), ("gan", "torch"), ("with_lightning", "lightning"),
        ("with_hugging_face", "accelerate"), ("with_accelerate", "accelerate"),
    ],
)  # fmt: skip
def test_a_loop_of_ones_own_computes_on_the_gpu(folder: Folder, example: str, library: str) -> None:
    """A loop beside which nothing was ever on the GPU fails."""
    pytest.importorskip(library)
    for name in ("own_task.py", f"{example}.py"):
        (folder.path / name).write_text((EXAMPLES / name).read_text())
    (folder.path / "wrapped.py").write_text(EXAMPLE.format(example=example, kind=KIND))
    given = yaml.safe_load((EXAMPLES / f"{example}.yaml").read_text())
    folder.launch({"task": "wrapped:train", "space": given["space"], "objectives": given["objectives"]})


SCRIPT = """
import os

import torch

import automl

device = "cuda" if torch.cuda.is_available() else "cpu"
print("visible", os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count())
automl.report(epoch=1, val_loss=8 - torch.ones(8, device=device).sum().item(), on_gpu=float(device == "cuda"))
"""


@on_gpu
def test_a_script_sees_the_gpu_of_its_slot_alone(folder: Folder) -> None:
    (folder.path / "script.py").write_text(SCRIPT)
    command = {"command": [sys.executable, "script.py", "{learning_rate}"]}
    folder.launch({"task": command, "space": RATE, "training": {"epochs": 1}})
    assert "visible 0 1" in folder.run("logs", "gpu", "0")


@on_gpu
def test_a_configuration_too_large_for_the_gpu_fails_and_the_next_one_trains(folder: Folder) -> None:
    of_task = space() | {"grab": {"type": "categorical", "choices": [0, 4096]}}
    budget = {"usd": 5.0, "trials": 6, "finish": 0}
    folder.launch({"task": "tests.gpu.gpu_trials:Stripes", "space": of_task, "budget": budget}, complete=None)
    trials = folder.json("trials", "gpu")
    assert {one["state"] for one in trials} == {"complete", "failed"}
    for one in trials:
        assert (one["params"]["grab"] == 4096) == (one["state"] == "failed"), one
        assert one["state"] == "complete" or "memory" in json.dumps(one), one


@on_gpu
def test_nothing_holds_the_gpu_after_a_controller_was_killed(folder: Folder) -> None:
    """The GPU may be another program's next: what a study took of it is given back without its controller, too."""
    before = torch.cuda.mem_get_info(DEVICE)[0]
    task = {"task": "tests.gpu.gpu_trials:Stripes", "space": RATE | {"grab": {"type": "categorical", "choices": [8]}}}
    controller = folder.start("launch", folder.spec(task | {"training": {"epochs": 100000}}), "--json")
    try:
        wait_until(lambda: torch.cuda.mem_get_info(DEVICE)[0] < before - 7 * 2**30, seconds=120)
    finally:
        controller.kill()
        controller.wait()
    wait_until(lambda: torch.cuda.mem_get_info(DEVICE)[0] > before - 2**30, seconds=30)


def test_a_server_answers_from_the_gpu(folder: Folder) -> None:
    for module in ("fastapi", "uvicorn", "pydantic_settings", "prometheus_client"):
        pytest.importorskip(module)
    rows = exported(folder, "mlp")
    wanted = answers(folder.run("predict", "model", rows))
    asked = list(csv.DictReader((folder.path / rows).read_text().splitlines()))
    body = json.dumps({"rows": [row | {"age": int(row["age"]), "score": float(row["score"])} for row in asked]})
    url = f"http://127.0.0.1:{(port := free_port())}/predict/batch"
    request = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
    answered: list[dict[str, Any]] = []

    def has_answered() -> bool:
        try:
            with urllib.request.urlopen(request, timeout=20) as reply:
                answered.extend(json.load(reply)["answers"])
        except OSError:
            return False
        return True

    server = folder.start("serve-model", "model", "--port", str(port), "--device", KIND)
    try:
        wait_until(has_answered, seconds=90)
    finally:
        server.terminate()
        server.wait(30)
    assert [one["label"] for one in answered] == [one["label"] for one in wanted]
