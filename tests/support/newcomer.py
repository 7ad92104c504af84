"""What a newcomer does: the commands of README and docs as they are written, in a folder with the files they name."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import yaml

from automl.terminal.echo import INTERRUPTED
from tests.support.paths import EXAMPLES, ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"(?:^|\s+)# .*$")
SECONDS = 240.0
"""Longest time of a command."""


def commands() -> dict[str, list[str]]:
    """Return every command of a shell block, without its comment, and the pages that have it."""
    found: dict[str, list[str]] = {}
    for page in PAGES:
        for line in commands_of(page):
            pages = found.setdefault(line, [])
            pages += [page.name] if page.name not in pages else []
    return found


def commands_of(page: Path) -> list[str]:
    """Return the commands of a page, in its order."""
    return [line for block in _BLOCK.findall(page.read_text(encoding="utf-8")) for line in _lines(block)]


def _lines(block: str) -> Iterator[str]:
    """Lines of a block: those that a backslash continues are one, and a variable belongs to the lines below it."""
    for line in re.sub(r"\\\n\s*", "", block).splitlines():
        if command := _COMMENT.sub("", line).strip():
            yield command


class Newcomer:
    """Somebody at a terminal in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        programs = str(Path(sys.executable).parent)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AUTOML_", "PYTEST_"))}
        self._variables = kept | {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(folder)}

    def types(self, command: str, *, answer: str = "", instead: Mapping[str, str] | None = None, code: int = 0) -> str:
        """Run a command; return what it prints."""
        line = _replaced(command, instead or {})
        done = subprocess.run(
            ["bash", "-c", line], cwd=self.folder, env=self._variables, input=answer, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS,
        )  # fmt: skip
        assert done.returncode == code, f"{line}\nexit code {done.returncode}:\n{done.stdout[-3000:]}"
        return done.stdout

    def launches_and_leaves(self, command: str) -> str:
        """Run a command that searches for minutes, and press Ctrl-C once a trial is complete; return what it prints."""
        with (self.folder / "said.txt").open("w+", encoding="utf-8") as said:
            running = subprocess.Popen(
                ["bash", "-c", f"exec {command}"], cwd=self.folder, env=self._variables, stdin=subprocess.DEVNULL,
                stdout=said, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                self._wait_for_a_trial(running)
                running.send_signal(signal.SIGINT)
                code = running.wait(SECONDS)
            finally:
                if running.poll() is None:
                    os.killpg(running.pid, signal.SIGKILL)
            said.seek(0)
            text = said.read()
        assert code in (0, INTERRUPTED), f"{command}\nexit code {code}:\n{text[-3000:]}"
        return text

    def _wait_for_a_trial(self, running: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + SECONDS
        while running.poll() is None and time.monotonic() < end:
            time.sleep(2)
            if self._completed():
                return

    def _completed(self) -> bool:
        done = subprocess.run(
            ["automl", "status", "--json"], cwd=self.folder, env=self._variables, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        return done.returncode == 0 and json.loads(done.stdout)["trials"].get("complete", 0) > 0


def _replaced(command: str, instead: Mapping[str, str]) -> str:
    for name, other in instead.items():
        assert name in command, f"{command!r} has no {name!r}"
        command = command.replace(name, other)
    return command


def digits(folder: Path, **budget: object) -> None:
    """`digits.yaml`, that of the demo with a smaller budget."""
    spec = yaml.safe_load((EXAMPLES / "digits.yaml").read_text(encoding="utf-8"))
    spec["budget"] |= budget
    (folder / "digits.yaml").write_text(yaml.safe_dump(spec, sort_keys=False), encoding="utf-8")


def moons(folder: Path, trials: int | None = None) -> None:
    """`own_task.py` and `moons.yaml`, the latter as its page has it, or on two slots with so many trials."""
    shutil.copy(EXAMPLES / "own_task.py", folder)
    (block,) = re.findall(
        r"^```yaml\n(study: moons\n.*?)^```",
        (ROOT / "docs" / "own-task.md").read_text("utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    if trials is not None:
        assert "trials: 20" in block
        block = block.replace("trials: 20", f"trials: {trials}") + "resources: {slots: 2}\n"
    (folder / "moons.yaml").write_text(block, encoding="utf-8")


def tutorials(folder: Path) -> None:
    """Copy the programs and specs of the tutorials."""
    shutil.copytree(EXAMPLES / "tutorials", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


def table(path: Path, rows: int, seed: int) -> None:
    """A table of people, with what they earn."""
    rng = np.random.default_rng(seed)
    ages, hours = rng.integers(18, 80, rows), rng.integers(10, 60, rows)
    jobs = rng.choice(["private", "state", "self"], rows)
    rich = (ages / 40 + hours / 30 + rng.normal(0, 0.4, rows)) > 2.3
    with path.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(["age", "hours", "job", "income"])
        for age, hour, job, more in zip(ages, hours, jobs, rich, strict=True):
            writer.writerow([age, hour, job, ">50K" if more else "<=50K"])


def reviews(path: Path, rows: int = 300) -> None:
    """Sentences with their mood."""
    rng = np.random.default_rng(0)
    words = {"good": ("lovely", "great", "fine", "warm"), "bad": ("dull", "poor", "cold", "weak")}
    lines = ["sentence\tmood"]
    for place in range(rows):
        mood = ("good", "bad")[place % 2]
        lines.append(f"a {rng.choice(words[mood])} film with {rng.choice(['people', 'songs', 'jokes'])}\t{mood}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def mnist(folder: Path) -> None:
    """Images in MNIST's format: scikit-learn's digits, enlarged."""
    from sklearn.datasets import load_digits

    folder.mkdir()
    data = load_digits()
    images = np.kron(data.images, np.ones((1, 3, 3))).astype(np.uint8) * 15
    for name, part in (("train", slice(0, 600)), ("t10k", slice(600, 800))):
        for kind, values in (("images-idx3", images[part]), ("labels-idx1", data.target[part].astype(np.uint8))):
            head = struct.pack(f">I{values.ndim}I", 0x800 + values.ndim, *values.shape)
            with gzip.open(folder / f"{name}-{kind}-ubyte.gz", "wb") as out:
                out.write(head + values.tobytes())


def texts(folder: Path) -> None:
    """Text files of a few thousand words."""
    folder.mkdir()
    source = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    for place in range(4):
        (folder / f"{place}.txt").write_text(source, encoding="utf-8")
