"""Models as ONNX files: ONNX Runtime alone gives the recorded metrics, and a file that does not is never written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from automl.exporting.export_errors import ExportError
from automl.exporting.formats import write_onnx
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
        (Noisy(), r"--format onnx: answers of the file differ from the model's by .*, more than 0.0001"),
        (Choosing(), "--format onnx: ONNX Runtime cannot run the file: .*Where"),
    ],
)
def test_a_file_that_answers_otherwise_is_not_written(tmp_path: Path, model: nn.Module, words: str) -> None:
    program = torch.export.export(model, (torch.randn(2, 5),))
    with pytest.raises(ExportError, match=words) as caught:
        write_onnx([program], PLAIN, tmp_path / "model.onnx")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
