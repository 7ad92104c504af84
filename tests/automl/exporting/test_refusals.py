"""Models that cannot leave, and those that leave without rows of their own."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from automl.exporting import exports
from automl.exporting.atomic_outputs import ExportError
from automl.exporting.formats import write_onnx, write_package, write_torch_export
from automl.exporting.source import _rows
from automl.standalone.errors import ModelError
from automl.standalone.model import load
from tests.automl.exporting.test_onnx import PLAIN
from tests.support import function_trials, optional
from trainers.contract.task_loading import load_trainable
from trainers.model.traced_program import example_call, model_of_function, traced
from trainers.protocol import TaskError, TrialSpec
from trainers.ranks.process_group import Group

MODELS = """
import torch
from torch import nn


def two(trial, *, how="calls"):
    first, second = trial.prepare(nn.Linear(3, 4)), trial.prepare(nn.Linear(4, 1))
    state = {"second": second, "first": first} if how != "none" else {"x": (lambda: {}, lambda _: None)}
    for _epoch in trial.epochs(**state):
        rows = torch.ones(8, 3)
        if how != "no call" or trial.max_epochs == 0:
            rows = second(first(rows))
        trial.report(val_error=0.5)
"""


class Branches(nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows if rows.sum() > 0 else -rows


class Random(nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + torch.rand_like(rows)


class Nested(nn.Module):
    def forward(self, rows: dict[str, torch.Tensor], *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": rows["a"].sum(dim=1) + rows["b"], "scaled": rows["a"] * scale}


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Branches(), "torch.export cannot export the model: "),
        (Random(), "the exported program's outputs differ from the model's by up to 0."),
    ],
)
def test_a_model_that_is_no_program_is_refused(model: nn.Module, words: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TaskError) as caught:
        traced(example_call(model, (torch.rand(4, 3),)))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_nested_inputs_and_outputs_leave_as_a_program(tmp_path: Path) -> None:
    rows = {"a": torch.rand(4, 3), "b": torch.rand(4)}
    scale = torch.tensor(2.0)
    program = traced(example_call(Nested(), (rows,), {"scale": scale}))
    manifest = PLAIN | {"format": 1, "answers": {"kind": "array"}}
    write_torch_export([program], manifest, tmp_path / "m.pt2")
    many = {"a": torch.rand(9, 3), "b": torch.rand(9)}
    outputs = torch.export.load(str(tmp_path / "m.pt2")).module()(many, scale=scale)
    assert torch.equal(outputs["scaled"], many["a"] * 2)
    with pytest.raises(ModelError, match="only its training code can encode rows"):
        load(tmp_path / "m.pt2")


class Two(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class Several(nn.Module):
    def __init__(self, container: Any) -> None:
        super().__init__()
        self.container = container

    def forward(self, rows: torch.Tensor) -> Any:
        return self.container(rows.sum(dim=1), rows)


@pytest.mark.medium
@pytest.mark.parametrize(("container", "ending"), [
    (lambda *both: both, ".onnx"), (lambda *both: dict(zip("ab", both, strict=True)), ".onnx"),
    (lambda *both: dict(zip("ab", both, strict=True)), ".pt2"), (lambda *both: list(both), ".pt2"),
])  # fmt: skip
def test_a_model_of_several_outputs_leaves_without_rows(tmp_path: Path, container: Any, ending: str) -> None:
    call = example_call(Several(container), (torch.rand(4, 3),))
    assert _rows(Rowless(), call) is None  # type: ignore[arg-type]
    manifest = PLAIN | {"format": 1, "rows": None, "answers": {"kind": "array"}, "programs": [f"m{ending}"]}
    if ending == ".onnx":
        optional.module("onnxruntime")
    (write_onnx if ending == ".onnx" else write_torch_export)([traced(call)], manifest, tmp_path / f"m{ending}")
    with pytest.raises(ModelError, match="only its training code can encode rows"):
        load(tmp_path / f"m{ending}")


@pytest.mark.parametrize("form", ["mlflow", "docker"])
def test_what_answers_rows_takes_no_model_without_rows(tmp_path, monkeypatch, form):
    """It was written, and could never be loaded."""
    call = example_call(Several(lambda *both: both), (torch.rand(4, 3),))
    source = SimpleNamespace(call=call, rows=_rows(Rowless(), call), longest=None)  # type: ignore[arg-type]
    monkeypatch.setattr(exports, "opened_sources", lambda *_given, **_options: [source])
    with pytest.raises(ExportError, match=f"--format {form}: the model takes or returns several tensors"):
        exports._write_programs(
            None, 0, ["c.pt"], tmp_path / "out", "out", seeds=None, form=form, base_folder="", model=None, licence=None
        )  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_model_of_one_output_has_rows() -> None:
    rows = _rows(Rowless(), example_call(nn.Linear(3, 2), (torch.rand(4, 3),)))  # type: ignore[arg-type]
    assert rows == {"kind": "array", "dtype": "float32", "shape": [3]}


def test_a_named_tuple_is_refused_in_one_line(tmp_path: Path) -> None:
    program = traced(example_call(Several(Two), (torch.rand(4, 3),)))
    with pytest.raises(ExportError, match=r"cannot write the model's inputs or outputs: .*Two") as caught:
        write_torch_export([program], PLAIN | {"format": 1, "answers": {"kind": "array"}}, tmp_path / "m.pt2")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


class Rowless:
    """A task that says nothing of its rows."""


def function_call(tmp_path: Path, how: str, name: str | None = None, then: str | None = None) -> Any:
    (tmp_path / "models_of_mine.py").write_text(MODELS)
    spec = TrialSpec(
        study="t", trial=0, task="models_of_mine:two", task_options={"how": how}, params={"learning_rate": 0.1},
        training={"epochs": 1}, milestones=(1,), checkpoint_folder=str(tmp_path / "c"), python_path=(str(tmp_path),),
    )  # fmt: skip
    path = function_trials.trained(Group(), spec)["measurements"][-1].checkpoint
    content = torch.load(path, weights_only=True)
    function = load_trainable(spec.task, {"how": then or how}, spec.python_path)
    return model_of_function(function, spec, content, path, name), content


def test_of_several_models_the_named_one_leaves_with_its_weights(tmp_path: Path) -> None:
    call, content = function_call(tmp_path, "calls", "second")
    assert call.args[0].shape == (2, 4)
    assert torch.equal(call.model.weight, content["function"]["second"]["weight"])
    assert call.outputs().shape == (2, 1)


@pytest.mark.parametrize(
    ("how", "name", "words"),
    [
        ("calls", None, "found no name, allowed: a model that the function gave to trial.epochs: second, first"),
        ("calls", "third", "--model: found 'third', allowed: "),
        ("none", None, "the training function gave trial.epochs no torch.nn.Module to export. Use --out FILE"),
        ("no call", "first", "ended without calling the model"),
    ],
)
def test_a_function_without_such_a_model_is_refused(tmp_path: Path, how: str, name: str | None, words: str) -> None:
    with pytest.raises(TaskError) as caught:
        function_call(tmp_path, how, name)
    assert words in str(caught.value)


def test_an_export_takes_its_place_at_once_and_never_another_ones(tmp_path: Path) -> None:
    program = traced(example_call(nn.Linear(3, 2), (torch.rand(4, 3),)))
    manifest: dict[str, Any] = {
        "format": 1, "rows": None, "answers": {"kind": "array"}, "programs": ["model.pt2"], "study": "s", "trial": 0,
        "epoch": 1, "task": "t", "metrics": {}, "params": {}, "data": {}, "licence": None,
        "environment": {"torch": torch.__version__},
    }  # fmt: skip
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("keep")
    with pytest.raises(Exception, match=r"exists already\. Name a folder that is new or empty"):
        write_package([program], manifest, tmp_path / "full")
    assert [one.name for one in (tmp_path / "full").iterdir()] == ["mine.txt"]
    with pytest.raises(KeyError):
        write_package([program], {"format": 1, "rows": None, "programs": ["model.pt2"]}, tmp_path / "new")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["full"]
