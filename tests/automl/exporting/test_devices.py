"""Exported models on another device than the CPU, on which they were traced."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from automl.exporting.formats import save_program
from automl.standalone.errors import ModelError
from automl.standalone.model import load
from automl.standalone.programs import TorchProgram
from tests.support import optional
from tests.support.task_files import HEADER, people, write
from tests.trainers.tasks.test_text import reviews
from trainers.model.traced_program import example_call, traced
from trainers.tasks.language_model import LanguageModel
from trainers.tasks.pictures.augmentation import Augmentation
from trainers.tasks.pictures.picture_networks import VisionNetwork, plain_body
from trainers.tasks.tabular import Tabular
from trainers.tasks.text import Text

Made = tuple[nn.Module, Tensor, int | None]
"""A network, rows that it takes, and their greatest length where lengths differ."""


def of_table(folder: Path, architecture: str) -> Made:
    task = Tabular(write(folder / "people.csv", [HEADER, *people(100)]), "rich")
    params = {"architecture": architecture, "width": 8, "trees": 3, "leaves": 4, "bins": 4}
    return task.model(params), task.encode(write(folder / "new.csv", [HEADER, *people(3)])), None


def of_texts(folder: Path, architecture: str) -> Made:
    optional.module("tokenizers")
    task = Text(write(folder / "reviews.tsv", reviews(100), "\t"), longest=16)
    params = {"architecture": architecture, "width": 8, "heads": 2}
    return task.model(params), task.encode(["the film was lovely", "dull"]), 16


def of_language(folder: Path, _: str) -> Made:
    optional.module("tokenizers")
    (folder / "text.txt").write_text("\n\n".join(text for text, _ in reviews(100)))
    task = LanguageModel(str(folder / "text.txt"), length=8, vocabulary=300)
    return task.model({"width": 8, "heads": 2, "depth": 1}), task.validation_data({})[0][:2], 8


def of_images(_folder: Path, _: str) -> Made:
    body, features = plain_body(1, 4, 1, (8, 8))
    network = VisionNetwork(
        mean=[1.0], deviation=[1.0], body=body, features=features, outputs=2, dropout=0.0, mixup=None, meaning="x",
        augmentation=Augmentation(shift=0, flip=False, operations=0, magnitude=0.0),
    )  # fmt: skip
    return network, torch.zeros(2, 1, 8, 8, dtype=torch.uint8), None


@pytest.mark.medium
@pytest.mark.parametrize(
    ("made", "architecture"),
    [
        *((of_table, name) for name in ("mlp", "residual", "tabm", "trees")),
        *((of_texts, name) for name in ("transformer", "ngrams", "tfidf")),
        (of_language, "decoder"),
        (of_images, "cnn"),
    ],
)
def test_no_step_of_a_built_in_model_stays_on_the_cpu(tmp_path, made, architecture):
    network, rows, longest = made(tmp_path, architecture)
    save_program(traced(example_call(network.eval(), (rows,)), longest=longest), {}, tmp_path / "model.pt2")
    module = TorchProgram(tmp_path / "model.pt2", "meta")._module
    named = {str(node.kwargs["device"]) for node in module.graph.nodes if node.kwargs.get("device") is not None}
    assert named <= {"meta"}
    assert module(rows.to("meta")).device.type == "meta"


@pytest.mark.medium
def test_a_file_for_onnx_runtime_refuses_another_device() -> None:
    with pytest.raises(ModelError, match=r"^model\.onnx: found the device cuda, allowed: cpu for an \.onnx file"):
        load("model.onnx", "cuda")
