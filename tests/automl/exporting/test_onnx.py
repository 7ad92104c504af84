"""Models as ONNX files: ONNX Runtime alone gives the recorded metrics, and a file that does not is never written."""

import json
import os
import re
import signal
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from automl.exporting.atomic_outputs import ExportError
from automl.exporting.formats import write_onnx
from automl.standalone import onnx_process
from automl.standalone.model import MANIFEST, load
from automl.standalone.onnx_process import OnnxRuntimeError
from automl.standalone.programs import OnnxProgram
from tests.support import optional


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


@pytest.mark.medium
@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Noisy(), r"--format onnx: predictions of file and model differ by .*, more than 0.0001"),
        (Choosing(), "--format onnx: ONNX Runtime cannot run the file: .*Where"),
    ],
)
def test_a_file_that_answers_otherwise_is_not_written(tmp_path: Path, model: nn.Module, words: str) -> None:
    program = torch.export.export(model, (torch.randn(2, 5),))
    with pytest.raises(ExportError, match=words) as caught:
        write_onnx([program], PLAIN, tmp_path / "model.onnx")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def doubling(tmp_path: Path) -> Callable[[], Path]:
    """Write a file that adds initial values `w` to rows of two numbers; a location makes them external data."""

    def write(location: str | None = None) -> Path:
        onnx = optional.module("onnx")
        helper, kind = onnx.helper, onnx.TensorProto
        weights = helper.make_tensor("w", kind.FLOAT, [2], [1.0, 2.0])
        if location is not None:
            weights.ClearField("float_data")
            weights.data_location = kind.EXTERNAL
            for key, value in (("location", location), ("length", "8")):
                weights.external_data.add(key=key, value=value)
        ends = [helper.make_tensor_value_info(name, kind.FLOAT, ["rows", 2]) for name in "xy"]
        graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weights])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        manifest = {"format": 1, "rows": {"kind": "array", "dtype": "float32", "shape": [2]}}
        helper.set_model_props(model, {MANIFEST: json.dumps(manifest | {"answers": {"kind": "array"}})})
        (tmp_path / "m").mkdir(exist_ok=True)
        onnx.save(model, str(tmp_path / "m" / "model.onnx"))
        return tmp_path / "m" / "model.onnx"

    return write


@pytest.mark.medium
@pytest.mark.parametrize("location", ["inside.bin", "../outside.bin", "{folder}/outside.bin", "link.bin"])
def test_external_data_lies_in_the_folder(doubling: Callable[..., Path], tmp_path: Path, location: str) -> None:
    path = doubling(location.format(folder=tmp_path))
    for place in (tmp_path / "outside.bin", path.with_name("inside.bin")):
        place.write_bytes(struct.pack("<2f", 3, 4))
    path.with_name("link.bin").symlink_to(tmp_path / "outside.bin")
    if location == "inside.bin":
        assert load(path).predict([[1.0, 1.0]]) == [{"outputs": [4.0, 5.0]}]
        return
    with pytest.raises(OnnxRuntimeError, match="External data path") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_a_runtime_that_reads_data_outside_the_folder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions before 1.24 read any file that the model names."""
    monkeypatch.setattr("onnxruntime.__version__", "1.23.2")
    with pytest.raises(ImportError, match=r"Install version 1\.24 or later"):
        onnx_process._session("model.onnx")


@pytest.mark.medium
def test_a_model_that_ends_its_process_is_an_error_and_the_next_rows_get_answers(doubling: Callable[..., Path]) -> None:
    model = load(doubling())
    (program,) = model._programs
    assert isinstance(program, OnnxProgram)
    process = program._process._process
    assert process is not None
    (limits,) = re.findall(r"Max data size +(\d+)", Path(f"/proc/{process.pid}/limits").read_text())
    assert int(limits) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    process.send_signal(signal.SIGSTOP)
    killer = threading.Timer(0.2, process.kill)
    killer.start()
    with pytest.raises(OnnxRuntimeError, match="ONNX Runtime ended by SIGKILL"):
        model.predict([[1.0, 1.0]])
    killer.join()
    assert model.predict([[1.0, 1.0]]) == [{"outputs": [2.0, 3.0]}]
    last = program._process._process
    assert last is not None
    del model, program
    assert last.poll() is not None, "the process ends with the model"


@pytest.mark.medium
def test_an_answer_that_would_fill_the_memory_is_refused(doubling, monkeypatch):
    session = onnx_process._session(str(doubling()))
    numbers = onnx_process._written([torch.ones(3, 2).numpy()])
    monkeypatch.setattr(onnx_process, "MOST_ANSWER_BYTES", 20)
    with pytest.raises(ValueError, match="the outputs of these rows have 24 bytes, more than the allowed 20"):
        onnx_process._reply(session, onnx_process.ARRAYS, numbers)
