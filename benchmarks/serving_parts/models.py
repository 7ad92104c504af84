"""Models, trained and exported by the command line as a user would, and rows to ask them about."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_WORDS = {
    "money": ("market", "bank", "price", "shares", "profit", "rate", "trade", "stock", "growth", "debt"),
    "science": ("study", "planet", "cell", "energy", "theory", "data", "lab", "light", "atom", "climate"),
    "sports": ("match", "team", "goal", "season", "coach", "player", "league", "final", "score", "cup"),
}
_COMMON = ("the", "a", "of", "and", "in", "new", "after", "says", "will", "with", "over", "for", "at", "last", "two")
AUTOML = (sys.executable, "-m", "automl")


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """A model in the forms that are served.

    Attributes:
        package: Folder of the package.
        mlflow: Folder of the model as MLflow has it.
        rows: Rows of data that training did not see.
    """

    package: Path
    mlflow: Path
    rows: list[Any]


def people(count: int, seed: int) -> list[tuple[str, dict[str, Any]]]:
    """Return labels and made-up rows of twelve numbers and four categories, which tell most of the label."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        row: dict[str, Any] = {f"number_{one}": round(draw.gauss(0, 1), 4) for one in range(12)}
        row |= {f"kind_{one}": draw.choice("abcdefgh") for one in range(4)}
        score = sum(row[f"number_{one}"] for one in range(4)) + "abcdefgh".index(row["kind_0"]) - 3.5 + draw.gauss(0, 1)
        made.append((("low", "middle", "high")[(score > -1) + (score > 1)], row))
    return made


def sentences(count: int, seed: int) -> list[tuple[str, str]]:
    """Return labels and made-up sentences of 8 to 40 words, of which a few tell the label."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        label = draw.choice(sorted(_WORDS))
        length = draw.randint(8, 40)
        words = [draw.choice(_WORDS[label] if draw.random() < 0.2 else _COMMON) for _ in range(length)]
        made.append((label, " ".join(words)))
    return made


def exported(folder: Path, task: str, width: int | None = None) -> Exported:
    """Train a model for two epochs, and export it.

    Args:
        folder: Where all files go.
        task: "tabular", a residual network of 4 blocks, or "text", a transformer of 2 small layers.
        width: Number of units of a layer; by default 128 and 64.
    """
    make, options, parameters = _TASKS[task]
    parameters |= {} if width is None else {"width": width}
    made = make(2400, seed=1)
    if task == "text":
        lines = ["label\ttext", *("\t".join(one) for one in made)]
    else:
        lines = [",".join([*made[0][1], "label"]), *(",".join(map(str, [*row.values(), label])) for label, row in made)]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    spec = {
        "study": "served",
        "task": task,
        "task_options": {"train": "rows.csv", **options},
        "objectives": [{"metric": "val_error", "direction": "minimize"}],
        "space": {"learning_rate": 1e-3, "batch_per_rank": 32, "optimizer": "adamw", **parameters},
        "training": {"epochs": 2},
        "search": {"sampler": "random", "pruner": "none"},
        "budget": {"trials": 1},
        "resources": {"slots": 1},
        "mlflow": "off",
    }
    (folder / "served.yaml").write_text(json.dumps(spec))
    _run(folder, "launch", "served.yaml")
    for form in ("package", "mlflow"):
        _run(folder, "export", "served", "best", "--out", form, "--format", form)
    rows = [row for _, row in make(512, seed=2)]
    return Exported(package=folder / "package", mlflow=folder / "mlflow", rows=rows)


_TASKS: dict[str, tuple[Callable[..., list[tuple[str, Any]]], dict[str, Any], dict[str, Any]]] = {
    "tabular": (people, {"target": "label"}, {"architecture": "residual", "width": 128, "depth": 4, "dropout": 0.0}),
    "text": (sentences, {"vocabulary": 500}, {"width": 64, "depth": 2, "heads": 4}),
}


def _run(folder: Path, *arguments: str) -> None:
    done = subprocess.run([*AUTOML, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"automl {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
