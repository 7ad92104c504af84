"""Exported models in processes that have neither the project nor the training code: the recorded metrics come again."""

import csv
import importlib
import json
import random
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from automl.exporting.manifest import manifest_of
from automl.exporting.source import Source, source_of, with_data
from automl.exporting.writers import WRITERS
from automl.standalone.model import load
from automl.standalone.table_rows import TableRows
from tests.support import function_trials, optional
from tests.support.alone import run_alone
from tests.support.paths import ROOT
from tests.support.task_files import HEADER, people, write
from tests.support.trainer_pool import run_trial
from trainers.contract.task_loading import built_in_tasks, load_task, load_trainable
from trainers.contract.training_function import TrainingFunction
from trainers.model.traced_program import traced
from trainers.protocol import Measurement, TrialSpec
from trainers.ranks.process_group import Group

PREDICT = "from predictor.model import load\nprint(json.dumps(load('.').predict(given)))"
RUN = """
from predictor.model import load
import torch
model = torch.export.load("model.pt2").module()
inputs = torch.load("inputs.pt", weights_only=True)
print(json.dumps([model(inputs).tolist(), load(".").predict(given)]))
"""
RUN_ONNX = """
import numpy, onnxruntime
from predictor.model import load
session = onnxruntime.InferenceSession("model.onnx")
outputs = session.run(None, {session.get_inputs()[0].name: numpy.load("inputs.npy")})[0].tolist()
print(json.dumps([outputs, load("model.onnx").predict(given)]))
assert "torch" not in sys.modules
"""
PARAMS = {"learning_rate": 0.01, "batch_per_rank": 16, "optimizer": "adamw"}
PREDICT_ONNX = PREDICT.replace("'.'", "'model.onnx'") + "\nassert 'torch' not in sys.modules"
WORDS = ("good", "bad", "fine", "awful", "film", "plot", "the", "a")


@dataclass(frozen=True)
class Trained:
    """A model that was trained, and what the export makes of it."""

    spec: TrialSpec
    measured: Measurement
    source: Source

    def written(self, out: Path, form: str = "package") -> Path:
        origin = {"study": "t", "trial": 0, "epoch": self.measured.epoch, "cost_usd": 0.1}
        manifest = manifest_of([self.source], origin)
        WRITERS[form]([copy(self.program)], manifest, out)
        return out

    @cached_property
    def program(self) -> Any:
        """What is written, which takes seconds to trace."""
        return traced(self.source.call, longest=self.source.longest)

    @property
    def validation(self) -> tuple[Any, Any]:
        task = load_task(self.spec.task, self.spec.task_options, self.spec.python_path)
        return task.validation_data(self.spec.params)


def trained(
    tmp_path: Path, task: str, options: dict[str, Any], params: dict[str, Any], python_path: str = ""
) -> Trained:
    spec = TrialSpec(
        study="t", trial=0, task=task, task_options=options, params=PARAMS | params, training={"epochs": 2},
        milestones=(2,), checkpoint_folder=str(tmp_path / "checkpoints"),
        python_path=(python_path,) if python_path else (),
    )  # fmt: skip
    if isinstance(load_trainable(task, options, spec.python_path), TrainingFunction):
        measured = function_trials.trained(Group(), spec)["measurements"][-1]
    else:
        measured = run_trial(Group(), spec)["measurements"][-1]
    return Trained(spec, measured, source_of(measured.checkpoint, task, spec.python_path))


def by_onnx(model: Trained, rows: Sequence[Any], *packages: str) -> list[dict[str, Any]]:
    """Answers of the ONNX file, by the predictor, where there are ONNX Runtime and some packages alone."""
    optional.module("onnxscript")
    optional.module("onnxruntime")
    out = model.written(Path(model.spec.checkpoint_folder).parent / "by onnx")
    (out / "model.pt2").unlink()
    model.written(out / "model.onnx", "onnx")
    answers: list[dict[str, Any]] = run_alone(PREDICT_ONNX, out, rows, "onnxruntime", *packages)
    return answers


def by_both(
    model: Trained, out: Path, inputs: torch.Tensor, rows: Sequence[Any], *packages: str
) -> Iterator[tuple[torch.Tensor, list[dict[str, Any]], float]]:
    """Outputs and answers by torch alone and by ONNX Runtime alone, and how far its outputs may be off."""
    optional.module("onnxscript")
    optional.module("onnxruntime")
    torch.save(inputs.contiguous(), out / "inputs.pt")
    optional.module("numpy").save(out / "inputs.npy", inputs.numpy())
    outputs, answers = run_alone(RUN, out, rows, "torch", *packages)
    yield torch.tensor(outputs), answers, 1e-6
    model.written(out / "model.onnx", "onnx")
    outputs, answers = run_alone(RUN_ONNX, out, rows, "onnxruntime", *packages)
    yield torch.tensor(outputs), answers, 1e-4


def gives_the_recorded_metrics(model: Trained, answers: list[dict[str, Any]], labels: Sequence[str]) -> None:
    wrong = sum(one["label"] != label for one, label in zip(answers, labels, strict=True))
    assert wrong / len(labels) == pytest.approx(model.measured.metrics["val_error"], abs=1e-9)
    chances = torch.tensor([one["probabilities"][label] for one, label in zip(answers, labels, strict=True)])
    assert -chances.double().log().mean().item() == pytest.approx(model.measured.metrics["val_loss"], rel=1e-4)


def texts(path: Path, count: int, seed: int) -> list[list[str]]:
    draw = random.Random(seed)
    rows = [["label", "sentence"]]
    for _ in range(count):
        words = draw.choices(WORDS, k=draw.randint(1, 40))
        rows.append(["good" if words.count("good") >= words.count("bad") else "bad", " ".join(words)])
    write(path, rows, "\t")
    return rows[1:]


def table_of_numbers(path: Path, count: int, seed: int) -> list[dict[str, str]]:
    draw = random.Random(seed)
    rows: list[list[object]] = [["when", "size", "kind", "price"]]
    for _ in range(count):
        day, size, kind = draw.randint(1, 28), draw.choice(["", f"{draw.gauss(5, 2):.4f}"]), draw.choice("abc")
        price = day + 3 * "abc".index(kind) + (float(size) if size else 5.0) + draw.gauss(0, 0.1)
        rows.append([f"2024-02-{day:02d} 10:20:30.5", size, kind, f"{price:.5f}"])
    write(path, rows)
    return list(csv.DictReader(path.read_text().splitlines()))


def pictures(folder: Path, count: int, seed: int) -> list[tuple[str, str]]:
    image = optional.module("PIL.Image")
    draw, made = random.Random(seed), []
    for number in range(count):
        label = ("dark", "light")[number % 2]
        level = draw.randint(0, 140) if label == "dark" else draw.randint(115, 255)
        (folder / label).mkdir(parents=True, exist_ok=True)
        path = folder / label / f"{number}.png"
        image.new("RGB", (20 + number % 3, 24), (level, draw.randint(0, 255), 40)).save(path)
        made.append((str(path), label))
    return made


@pytest.mark.large
def test_a_classifier_of_rows_needs_torch_or_onnx_runtime_alone(tmp_path: Path) -> None:
    train, held = tmp_path / "train.csv", tmp_path / "held.csv"
    write(train, [HEADER, *people(300)])
    write(held, [HEADER, *people(90, seed=1), [300, "Ulan Bator", "", "no"]])
    model = trained(tmp_path, "tabular", {"train": str(train), "validation": str(held)}, {"architecture": "tabm"})
    rows = list(csv.DictReader(held.read_text().splitlines()))
    answers = run_alone(PREDICT, model.written(tmp_path / "out"), rows, "torch")
    for some in (answers, by_onnx(model, rows)):
        gives_the_recorded_metrics(model, some, [row["rich"] for row in rows])
    for answer in answers:
        assert answer["probabilities"][answer["label"]] == answer["confidence"] == max(answer["probabilities"].values())
        assert sum(answer["probabilities"].values()) == pytest.approx(1)


@pytest.mark.large
def test_an_estimate_of_a_number_comes_with_an_interval(tmp_path: Path) -> None:
    train, held = tmp_path / "train.csv", tmp_path / "held.csv"
    table_of_numbers(train, 300, 0)
    rows = table_of_numbers(held, 80, 1)
    options = {"train": str(train), "validation": str(held)}
    model = trained(tmp_path, "tabular", options, {"architecture": "trees", "trees": 40})
    answers = run_alone(PREDICT, model.written(tmp_path / "out"), rows, "torch")
    prices = [float(row["price"]) for row in rows]
    for some, far in ((answers, 1e-6), (by_onnx(model, rows), 1e-4)):
        errors = [(answer["value"] - price) ** 2 for answer, price in zip(some, prices, strict=True)]
        assert sum(errors) / len(errors) == pytest.approx(model.measured.metrics["val_mse"], rel=far)
    covered = sum(answer["low"] <= price <= answer["high"] for answer, price in zip(answers, prices, strict=True))
    assert 0.85 <= covered / len(rows) <= 1
    train.unlink()  # what another model of the study has read is not read again
    again = source_of(str(model.measured.checkpoint), "tabular", (), like=model.source)
    assert (again.rows, again.answers, again.data) == (model.source.rows, model.source.answers, {})
    assert with_data(again).data == model.source.data


@pytest.mark.large
@pytest.mark.parametrize(
    "params",
    [{"heads": 2, "pooling": "both"}, {"architecture": "ngrams", "longest_ngram": 3}, {"architecture": "tfidf"}],
)
def test_a_classifier_of_texts_needs_tokenizers_and_torch_or_onnx_runtime(tmp_path, params):
    optional.module("tokenizers")
    train, held = tmp_path / "train.tsv", tmp_path / "held.tsv"
    texts(train, 200, 0)
    rows = texts(held, 60, 1)
    options = {"train": str(train), "validation": str(held), "vocabulary": 200, "longest": 24}
    model = trained(tmp_path, "text", options, {"width": 32, **params})
    code = "from predictor.model import load\nm = load('.')\none_by_one = [m.predict([one])[0] for one in given[:9]]"
    labels, sentences = zip(*rows, strict=True)
    if "longest_ngram" not in params:
        gives_the_recorded_metrics(model, by_onnx(model, sentences, "tokenizers"), labels)
    if params.get("architecture") == "tfidf":
        return
    answers, one_by_one = run_alone(
        f"{code}\nprint(json.dumps([m.predict(given), one_by_one]))",
        model.written(tmp_path / "out"), sentences, "torch", "tokenizers",
    )  # fmt: skip
    gives_the_recorded_metrics(model, answers, labels)
    for alone, together in zip(one_by_one, answers, strict=False):
        assert alone["label"] == together["label"]
        assert alone["confidence"] == pytest.approx(together["confidence"], abs=1e-5)


def test_texts_are_answered_by_several_models_of_a_study(tmp_path: Path) -> None:
    optional.module("tokenizers")
    file = tmp_path / "train.tsv"
    texts(file, 100, 0)
    one, other = (
        trained(tmp_path / name, "text", {"train": str(file)}, {"architecture": "tfidf"}) for name in ("one", "other")
    )
    assert other.measured.checkpoint is not None
    like = source_of(other.measured.checkpoint, "text", (), like=one.source)
    assert like.rows == one.source.rows


@pytest.mark.large
def test_a_classifier_of_images_needs_pillow_and_torch_or_onnx_runtime(tmp_path: Path) -> None:
    pictures(tmp_path / "train", 80, 0)
    rows = pictures(tmp_path / "held", 30, 1)
    options = {"train": str(tmp_path / "train"), "validation": str(tmp_path / "held"), "size": 16}
    model = trained(tmp_path, "vision", options, {"architecture": "residual", "channels": 8})
    paths, labels = zip(*rows, strict=True)
    answers = run_alone(PREDICT, model.written(tmp_path / "out"), paths, "torch", "pillow")
    gives_the_recorded_metrics(model, answers, labels)
    gives_the_recorded_metrics(model, by_onnx(model, paths, "pillow"), labels)


@pytest.mark.large
def test_a_language_model_goes_on_with_a_text(tmp_path: Path) -> None:
    optional.module("tokenizers")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join("one two three four five six seven eight nine ten" for _ in range(200)))
    options = {"train": str(corpus), "length": 12, "vocabulary": 300}
    model = trained(tmp_path, "language_model", options, {"width": 32, "depth": 1, "heads": 2})
    out = model.written(tmp_path / "out")
    inputs, targets = model.validation
    prompts = ["one two three four", "one two three four five six seven", ""]
    for outputs, answers, far in by_both(model, out, inputs, prompts, "tokenizers"):
        loss = cross_entropy(outputs.flatten(0, 1).double(), targets.flatten())
        assert loss.item() == pytest.approx(model.measured.metrics["val_loss"], rel=far)
        assert answers[0]["token"].strip() in "five"
        assert answers[1]["token"].strip() in "eight"


@pytest.mark.large
def test_a_task_whose_rows_are_numbers_gives_the_recorded_metrics_from_both_runtimes(tmp_path: Path) -> None:
    model = trained(tmp_path, "digits", {}, {"architecture": "cnn"})
    inputs, targets = model.validation
    out = model.written(tmp_path / "out")
    for outputs, answers, far in by_both(model, out, inputs, inputs.tolist()):
        check_labels(model, answers)
        loss = cross_entropy(outputs.double(), targets).item()
        assert loss == pytest.approx(model.measured.metrics["val_loss"], rel=far)


@pytest.mark.medium
def test_a_task_of_ones_own_gives_the_recorded_metrics(tmp_path: Path) -> None:
    model = trained(tmp_path, "own_task:Moons", {}, {"width": 8}, str(ROOT / "examples"))
    check_labels(model, load(model.written(tmp_path / "out")).predict(model.validation[0].tolist()))


def check_labels(model: Trained, answers: list[dict[str, Any]]) -> None:
    targets = model.validation[1].tolist()
    wrong = sum(answer["label"] != str(target) for answer, target in zip(answers, targets, strict=True))
    assert wrong / len(targets) == pytest.approx(model.measured.metrics["val_error"], abs=1e-9)


def test_every_built_in_task_is_one_of_those_above() -> None:
    assert set(built_in_tasks()) == {"digits", "language_model", "tabular", "text", "vision"}


@pytest.mark.large
def test_a_training_function_leaves_in_every_format(tmp_path: Path) -> None:
    model = trained(tmp_path, "training_function:train", {}, {"width": 8}, str(ROOT / "examples"))
    moons = importlib.import_module("own_task").moons  # the function has put its folder on the path
    inputs, targets = moons(300, seed=1)
    package, onnx, mlflow = (
        model.written(tmp_path / name, form)
        for name, form in (("out", "package"), ("out.onnx", "onnx"), ("for-mlflow", "mlflow"))
    )
    loaded = optional.module("mlflow").pyfunc.load_model(str(mlflow))
    for answers in (*(load(one).predict(inputs.tolist()) for one in (package, onnx)), loaded.predict(inputs.numpy())):
        outputs = torch.tensor([one["outputs"] for one in answers])
        wrong = (outputs.argmax(dim=1) != targets).double().mean().item()
        assert wrong == pytest.approx(model.measured.metrics["val_error"], abs=1e-9)
    papers = {one.key: one.value for one in optional.module("onnx").load(str(onnx)).metadata_props}
    assert '("out.onnx")' in papers["README.md"], "how to load it"
    (row,) = json.loads(papers["input_example.json"])
    assert len(load(onnx).predict([row])) == 1


@pytest.mark.medium
def test_rows_mean_what_they_meant_in_training(tmp_path: Path) -> None:
    """The task's own encoding, by columns, and that of an exported model, row by row, give the same bits."""
    path = tmp_path / "train.csv"
    draw = random.Random(0)
    rows: list[list[object]] = [["n", "holes", "day", "word", "mixed", "y"]]
    rows += [
        [
            f"{draw.choice(['+', '-', ''])}{draw.random() * 10 ** draw.randint(-9, 9):.{draw.randint(0, 9)}e}",
            draw.choice(["", "NA", "?", " 1.5 ", "2."]),
            f"{draw.randint(1890, 2050)}-0{draw.randint(1, 9)}-11{draw.choice(['', ' 10:20', 'T10:20:30.123'])}",
            draw.choice(["a b", " a b", "NULL", "c", "d", f"rare {number}"]),
            draw.choice(["1", "1.0", "true", "no"]),
            draw.choice("xy"),
        ]
        for number in range(200)
    ]
    write(path, rows)
    task = load_task("tabular", {"train": str(path)})
    found = [dict(zip(map(str, rows[0]), row, strict=True)) for row in rows[1:]]
    odd: list[dict[str, Any]] = [
        {"n": 1, "holes": None, "day": None, "word": None, "mixed": True},
        {"n": 1e300, "holes": float("nan"), "day": "1969-12-31 23:59:59.9", "word": "never seen", "mixed": 1},
        {"n": -3.0, "holes": "\u00a02\u2003", "day": "2000-02-29", "word": "\ta b\n", "mixed": 1.0},
    ]
    alone = TableRows(task.preprocessing())  # type: ignore[attr-defined]
    for some in (found, odd):
        expected = task.encode(some)  # type: ignore[attr-defined]
        got = torch.tensor([list(alone.encode(row, number).numbers) for number, row in enumerate(some)])
        assert torch.equal(got, expected)
