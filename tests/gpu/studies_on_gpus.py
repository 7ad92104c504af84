"""Whole studies for the tests on GPUs: a folder with data, and the `automl` command in processes of its own."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.gpu.gpu_trials import KIND
from tests.support.paths import ROOT

SECONDS = 200.0
"""Time in which a command ends; more of it is a hang."""

STUDY: dict[str, Any] = {
    "objectives": [{"metric": "val_loss", "direction": "minimize"}, {"metric": "cost_usd", "direction": "minimize"}],
    "training": {"epochs": 3, "warmup_epochs": 0.5},
    "search": {"sampler": "random", "seed": 1, "pruner": {"name": "none"}},
    "budget": {"usd": 5.0, "hours": 0.1, "trials": 3, "finish": 0},
    "resources": {"device": KIND, "slots": 1},
    "mlflow": "off",
}
"""A short study, in which every trial is trained to its end."""


class Folder:
    """A folder with the files of a study, in which commands run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def spec(self, sections: Mapping[str, Any]) -> str:
        """Write a spec, JSON being YAML, and return the name of its file."""
        (self.path / "spec.yaml").write_text(json.dumps(STUDY | {"study": "gpu"} | dict(sections)))
        return "spec.yaml"

    def launch(self, sections: Mapping[str, Any], complete: int | None = 3) -> None:
        """Run a study; unless `complete` is None so many trials have to be complete, and no other begun."""
        summary = self.json("launch", self.spec(sections))
        found = {state: count for state, count in summary["trials"].items() if count}
        assert complete is None or found == {"complete": complete}, summary

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command; the output goes to this process's unless the options say otherwise."""
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "160"}
        words = (sys.executable, "-m", "automl", *words)
        return subprocess.Popen(words, cwd=self.path, env=environment, text=True, **options)

    def run(self, *words: str) -> str:
        """Run a command that has to succeed, and return what it printed."""
        with self.start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                out, err = process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
        assert process.returncode == 0, f"{words}: {process.returncode}\n{out[-3000:]}\n{err[-4000:]}"
        return out

    def json(self, *words: str) -> Any:
        """Return what a command answers with --json."""
        return json.loads(self.run(*words, "--json"))


def write_table(path: Path, rows: int, seed: int) -> None:
    """Write a CSV in which `rich` follows from `age` and `city`."""
    draw, lines = random.Random(seed), ["age,city,score,rich"]
    for _ in range(rows):
        age, city = draw.randint(18, 80), draw.choice(["Rome", "Oslo", "Lima"])
        rich = "yes" if (age > 45) != (city == "Oslo") else "no"
        lines.append(f"{age},{city},{draw.gauss(0, 1):.3f},{rich}")
    path.write_text("\n".join(lines) + "\n")


def write_texts(path: Path, rows: int, seed: int) -> None:
    """Write a TSV of sentences with a mood that two words of each tell."""
    draw, lines = random.Random(seed), ["sentence\tmood"]
    words = {"glad": ["bright", "kind", "warm", "merry"], "sad": ["dull", "grim", "cold", "bleak"]}
    plain = ["the", "film", "was", "of", "a", "day", "with", "people", "and", "music"]
    for _ in range(rows):
        mood = draw.choice(list(words))
        said = draw.choices(plain, k=6) + draw.choices(words[mood], k=2)
        draw.shuffle(said)
        lines.append(f"{' '.join(said)}\t{mood}")
    path.write_text("\n".join(lines) + "\n")


def write_images(folder: Path, images: int, seed: int) -> None:
    """Write images of 16 x 16 pixels in a folder for each of two classes, which differ in where they are bright."""
    from PIL import Image

    draw = random.Random(seed)
    for number in range(images):
        kind = ("left", "right")[number % 2]
        bright = range(8) if kind == "left" else range(8, 16)
        pixels = bytes(draw.randint(0, 120) + 100 * (column in bright) for _ in range(16) for column in range(16))
        (folder / kind).mkdir(parents=True, exist_ok=True)
        Image.frombytes("L", (16, 16), pixels).save(folder / kind / f"{number}.png")
