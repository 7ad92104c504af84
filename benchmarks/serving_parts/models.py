"""A model of texts, trained and exported by the command line as a user would, and sentences to ask it about."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

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
        rows: Sentences.
    """

    package: Path
    mlflow: Path
    rows: list[str]


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


def exported(folder: Path, *, width: int, depth: int) -> Exported:
    """Train a transformer of texts for two epochs, and export it.

    Args:
        folder: Where all files go.
        width: Numbers of each token's vector.
        depth: Number of layers.
    """
    lines = [f"{label}\t{text}" for label, text in sentences(800, seed=1)]
    (folder / "texts.tsv").write_text("\n".join(["label\ttext", *lines]) + "\n")
    fixed = {"width": width, "depth": depth, "heads": 4, "learning_rate": 3e-4, "batch_per_rank": 32}
    spec = {
        "study": "texts",
        "task": "text",
        "task_options": {"train": "texts.tsv", "vocabulary": 500},
        "objectives": [{"metric": "val_error", "direction": "minimize"}],
        "space": {**fixed, "optimizer": "adamw"},
        "training": {"epochs": 2},
        "search": {"sampler": "random", "pruner": "none"},
        "budget": {"trials": 1},
        "resources": {"slots": 1},
        "mlflow": "off",
    }
    (folder / "texts.yaml").write_text(json.dumps(spec))
    _run(folder, "launch", "texts.yaml")
    for place, form in (("package", "package"), ("mlflow", "mlflow")):
        _run(folder, "export", "texts", "best", "--out", place, "--format", form)
    rows = [text for _, text in sentences(512, seed=2)]
    return Exported(package=folder / "package", mlflow=folder / "mlflow", rows=rows)


def _run(folder: Path, *arguments: str) -> None:
    done = subprocess.run([*AUTOML, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"automl {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
