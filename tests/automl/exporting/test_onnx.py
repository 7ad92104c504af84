"""Models as ONNX files: ONNX Runtime alone gives the recorded metrics, and a file that does not is never written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from automl.exporting.export_errors import ExportError
from automl.exporting.formats import write_onnx
from tests.automl.exporting.test_standalone import PREDICT, Trained, pictures, table_of_numbers, texts, trained
from tests.support import optional
from tests.support.alone import run_alone
from tests.support.task_files import HEADER, people, write

PREDICT_ONNX = PREDICT.replace("'.'", "'model.onnx'") + "\nassert 'torch' not in sys.modules"
RUN_ONNX = """
import numpy, onnxruntime
session = onnxruntime.InferenceSession("model.onnx")
print(json.dumps(session.run(None, {session.get_inputs()[0].name: numpy.asarray(given)})[0].tolist()))
"""


@pytest.fixture(autouse=True)
def _needs_onnx() -> None:
    optional.module("onnxscript")
    optional.module("onnxruntime")


class Noisy(nn.Module):
    """Answers otherwise at each call."""

    def forward(self, rows: Tensor) -> Tensor:
        """Return the rows with noise."""
        return rows + torch.rand_like(rows)


PLAIN: dict[str, Any] = {
    "study": "s", "trial": 0, "epoch": 1, "task": "own:Task", "licence": None, "data": {}, "environment": {},
    "programs": ["model.pt2"], "metrics": {}, "params": {}, "rows": None, "answers": {"kind": "outputs"},
}  # fmt: skip
"""The manifest of a model of whose rows nothing is known."""


class Choosing(nn.Module):
    """Has an operation that ONNX knows and ONNX Runtime does not: Where of booleans."""

    def forward(self, rows: Tensor) -> Tensor:
        """Return whether each number is in a range that depends on its sign."""
        return torch.where(rows > 0, rows < 1, rows > -1).float()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Noisy(), r"--format onnx: found answers that differ from the program's by .*, allowed: 0.0001"),
        (Choosing(), "--format onnx: ONNX Runtime cannot run the file: .*Where"),
    ],
)
def test_a_file_that_answers_otherwise_is_not_written(tmp_path: Path, model: nn.Module, words: str) -> None:
    program = torch.export.export(model, (torch.randn(2, 5),))
    with pytest.raises(ExportError, match=words) as caught:
        write_onnx([program], PLAIN, tmp_path / "model.onnx")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def answers_of(model: Trained, rows: list[Any], *packages: str) -> list[dict[str, Any]]:
    """Return the answers of the file, by the predictor, where there are ONNX Runtime and some packages alone."""
    out = model.written(Path(model.spec.checkpoint_folder).parent / "out")
    (out / "model.pt2").unlink()
    model.written(out / "model.onnx", "onnx")
    answers: list[dict[str, Any]] = run_alone(PREDICT_ONNX, out, rows, "onnxruntime", *packages)
    return answers


def gives_the_recorded_metrics(model: Trained, answers: list[dict[str, Any]], labels: list[str]) -> None:
    wrong = sum(one["label"] != label for one, label in zip(answers, labels, strict=True))
    assert wrong / len(labels) == pytest.approx(model.measured.metrics["val_error"], abs=1e-9)
    chances = torch.tensor([one["probabilities"][label] for one, label in zip(answers, labels, strict=True)])
    assert -chances.double().log().mean().item() == pytest.approx(model.measured.metrics["val_loss"], rel=1e-4)


@pytest.mark.large
def test_rows_with_categories(tmp_path: Path) -> None:
    train, held = tmp_path / "train.csv", tmp_path / "held.csv"
    write(train, [HEADER, *people(300)])
    rows = [*people(90, seed=1), [300, "Ulan Bator", "", "no"]]
    write(held, [HEADER, *rows])
    options = {"train": str(train), "validation": str(held)}
    model = trained(tmp_path, "tabular", options, {"architecture": "tabm"})
    cells = [dict(zip(HEADER[:-1], map(str, row), strict=False)) for row in rows]
    gives_the_recorded_metrics(model, answers_of(model, cells), [str(row[-1]) for row in rows])


@pytest.mark.medium
def test_a_number(tmp_path: Path) -> None:
    train, held = tmp_path / "train.csv", tmp_path / "held.csv"
    table_of_numbers(train, 300, 0)
    rows = table_of_numbers(held, 80, 1)
    options = {"train": str(train), "validation": str(held)}
    model = trained(tmp_path, "tabular", options, {"architecture": "trees", "trees": 40})
    answers = answers_of(model, rows)
    errors = [(one["value"] - float(row["price"])) ** 2 for one, row in zip(answers, rows, strict=True)]
    assert sum(errors) / len(errors) == pytest.approx(model.measured.metrics["val_mse"], rel=1e-4)


@pytest.mark.large
@pytest.mark.parametrize("params", [{"heads": 2}, {"architecture": "tfidf"}])
def test_texts(tmp_path: Path, params: dict[str, Any]) -> None:
    optional.module("tokenizers")
    train, held = tmp_path / "train.tsv", tmp_path / "held.tsv"
    texts(train, 200, 0)
    rows = texts(held, 60, 1)
    options = {"train": str(train), "validation": str(held), "vocabulary": 200, "longest": 24}
    model = trained(tmp_path, "text", options, {"width": 32, **params})
    answers = answers_of(model, [text for _, text in rows], "tokenizers")
    gives_the_recorded_metrics(model, answers, [label for label, _ in rows])


@pytest.mark.large
def test_images(tmp_path: Path) -> None:
    pictures(tmp_path / "train", 80, 0)
    rows = pictures(tmp_path / "held", 30, 1)
    options = {"train": str(tmp_path / "train"), "validation": str(tmp_path / "held"), "size": 16}
    model = trained(tmp_path, "vision", options, {"architecture": "residual", "channels": 8})
    answers = answers_of(model, [path for path, _ in rows], "pillow")
    gives_the_recorded_metrics(model, answers, [label for _, label in rows])


@pytest.mark.large
def test_the_next_token(tmp_path: Path) -> None:
    optional.module("tokenizers")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join("one two three four five six seven eight nine ten" for _ in range(200)))
    options = {"train": str(corpus), "length": 12, "vocabulary": 300}
    model = trained(tmp_path, "language_model", options, {"width": 32, "depth": 1, "heads": 2})
    (answer,) = answers_of(model, ["one two three four"], "tokenizers")
    assert answer["token"].strip() in "five"
    inputs, targets = model.validation
    outputs = run_alone(RUN_ONNX, tmp_path / "out", inputs.tolist(), "onnxruntime")
    loss = cross_entropy(torch.tensor(outputs).flatten(0, 1).double(), targets.flatten())
    assert loss.item() == pytest.approx(model.measured.metrics["val_loss"], rel=1e-4)
