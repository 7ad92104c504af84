"""Models for MLflow: their signature and example are there, and rows go through them as through a package."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from automl.standalone.model import load
from tests.automl.exporting.test_standalone import Trained, pictures, texts, trained
from tests.support import optional
from tests.support.task_files import HEADER, people, write


def loaded(model: Trained, folder: Path) -> tuple[Any, Any]:
    """Return the model as MLflow loads it, and the package that is in it."""
    mlflow = optional.module("mlflow")  # a second of every worker's time, whichever tests it has
    out = model.written(folder / "mlflow", "mlflow")
    return mlflow.pyfunc.load_model(str(out)), load(out / "artifacts" / "model")


@pytest.mark.medium
def test_rows_of_a_table(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", [HEADER, *people(200)])
    model, package = loaded(trained(tmp_path, "tabular", {"train": train}, {}), tmp_path)
    assert model.metadata.signature.inputs.input_names() == ["age", "score", "city"]
    assert model.metadata.signature.outputs.input_names() == ["label", "confidence", "probabilities"]
    rows: list[dict[str, Any]] = [
        {"age": 39, "city": "Oslo", "score": None}, {"age": "41", "city": None, "score": 0.5},
    ]  # fmt: skip
    assert model.predict(rows) == package.predict(rows)
    assert len(model.predict(model.input_example)) == 1
    with pytest.raises(optional.module("mlflow.exceptions").MlflowException, match=r"missing inputs .*'score'"):
        model.predict([{"age": 39, "city": "Oslo"}])


@pytest.mark.medium
def test_texts(tmp_path: Path) -> None:
    optional.module("tokenizers")
    texts(tmp_path / "train.tsv", 120, 0)
    options = {"train": str(tmp_path / "train.tsv"), "vocabulary": 200, "longest": 24}
    model, package = loaded(trained(tmp_path, "text", options, {"architecture": "ngrams"}), tmp_path)
    assert [one.type.name for one in model.metadata.signature.inputs.inputs] == ["string"]
    assert model.predict(["good film", "bad"]) == package.predict(["good film", "bad"])
    assert len(model.predict(model.input_example)) == 1


@pytest.mark.medium
def test_images_by_their_files_and_their_content(tmp_path: Path) -> None:
    made = pictures(tmp_path / "train", 40, 0)
    options = {"train": str(tmp_path / "train"), "size": 16}
    model, package = loaded(trained(tmp_path, "vision", options, {"architecture": "cnn", "channels": 8}), tmp_path)
    assert [one.type.name for one in model.metadata.signature.inputs.inputs] == ["binary"]
    paths = [path for path, _ in made[:3]]
    assert model.predict(paths) == package.predict(paths)
    assert model.predict([Path(path).read_bytes() for path in paths]) == package.predict(paths)
    example = tmp_path / "mlflow" / "artifacts" / "model" / "input_example.png"
    assert model.predict(model.input_example) == package.predict([str(example)])


def test_numbers(tmp_path: Path) -> None:
    model, package = loaded(trained(tmp_path, "digits", {}, {}), tmp_path)
    (tensor,) = model.metadata.signature.inputs.inputs
    assert (tensor.type, tensor.shape) == (np.dtype("float32"), (-1, 64))
    rows = np.linspace(0, 1, 128, dtype="float32").reshape(2, 64)
    assert model.predict(rows) == package.predict(rows.tolist())
    assert model.predict(model.input_example) == package.predict([[0.0] * 64])
