"""Models that tests serve, and what they answer."""

import json
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import torch

from automl.exporting.formats import save_program
from automl.exporting.manifest import manifest_of
from automl.exporting.writers import WRITERS
from automl.standalone.model import load
from tests.automl.exporting.test_standalone import Trained
from tests.support.served import Reply
from trainers.model.traced_program import example_call, traced

Row = Mapping[str, Any]


def write_model(model: Trained, out: Path, trial: int, form: str = "package") -> Path:
    """Export a trained model under another trial's number, which its version shows."""
    manifest = manifest_of([model.source], {"study": "t", "trial": trial, "epoch": 2, "cost_usd": 0.1})
    WRITERS[form]([copy(model.program)], manifest, out)
    return out


class Cubes(torch.nn.Module):
    """Takes as long as the client likes: the work grows with the cube of a row's length."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        rows = rows.clamp(-1, 1)  # of any finite numbers the answer is finite
        square = rows.unsqueeze(2) * rows.unsqueeze(1)
        return (square @ square @ square).mean(dim=(1, 2))


def cubes(path: Path) -> Path:
    manifest = {
        "format": 1, "programs": [path.name], "rows": {"kind": "array", "dtype": "float32", "shape": [-1]},
        "answers": {"kind": "array"},
    }  # fmt: skip
    save_program(traced(example_call(Cubes(), (torch.rand(3, 5),)), longest=20_000), manifest, path)
    return path


def lasting(length: int) -> dict[str, Any]:
    """A request that takes the longer the longer its row is."""
    return {"row": [0.01] * length}


class Expected:
    """What each version of a model answers to each of some rows."""

    def __init__(self, models: Mapping[str, Path], rows: Sequence[Row]) -> None:
        self._answers = {
            version: dict(zip(map(json.dumps, rows), load(path).predict(rows), strict=True))
            for version, path in models.items()
        }
        assert len({json.dumps(one, sort_keys=True) for one in self._answers.values()}) == len(models)

    def check(self, replies: Sequence[Reply]) -> None:
        """Compare answers to single rows with those of the version that they name."""
        assert replies
        for reply in replies:
            assert reply.status == 200, reply
            answer = self._answers[reply.body["model"]][json.dumps(reply.asked["row"])]
            assert reply.body["label"] == answer["label"], reply
            assert abs(reply.body["confidence"] - answer["confidence"]) < 1e-5, reply
