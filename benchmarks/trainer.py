#!/usr/bin/env python
"""Throughput of the trainer: samples a second with two ranks on the CPU, beside what others reach with the same work.

    python benchmarks/trainer.py --json [--epochs E] [--only NAME...]

The same model, data, batch and epochs for all (trainer_rivals/workload.py); README.md has the rules.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

BENCHMARKS = Path(__file__).resolve().parent
ROOT = BENCHMARKS.parent
CONSTRAINTS = ROOT / "constraints.txt"
WORLD_SIZE = 2
RIVALS = {"torchrun": "torchrun", "lightning": "with_lightning", "accelerate": "with_accelerate"}
OURS = {"ours_dataset": "0", "ours_tensors": "1"}
NAMES = (*RIVALS, *OURS)
PACKAGES = ("lightning==2.6.6", "accelerate==1.15.0")
START_SECONDS, EPOCH_SECONDS, END_SECONDS = 300.0, 300.0, 30.0
"""Deadlines, for hangs only."""


@dataclass(kw_only=True)
class Series:
    """A contestant's epochs that count."""

    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    measuring: list[float] = field(default_factory=list)

    def add(self, epoch: dict[str, float]) -> None:
        """Take over what rank 0 handed in. Ours says how much of its epoch was training: others do nothing else."""
        self.seconds.append(epoch.get("train_seconds", epoch["seconds"]))
        self.losses.append(epoch["loss"])
        if "measuring_seconds" in epoch:
            self.measuring.append(epoch["measuring_seconds"])


def environment_of_rivals(folder: Path | None) -> Path:
    """Return the interpreter of an environment that has the rivals, and make it if it is not there.

    The rivals have torch in the version that we have, and are held to the same constraints.
    """
    wanted = [f"torch=={version('torch').partition('+')[0]}", *PACKAGES]
    if folder is None:
        name = hashlib.sha256(" ".join(wanted).encode()).hexdigest()[:12]
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = cache / "automl-search" / f"trainer-rivals-{name}"
    python = folder / "bin" / "python"
    complete = folder / "complete"
    if not complete.exists():
        print(f"making {folder} with {', '.join(wanted)}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(CONSTRAINTS), *wanted]
        subprocess.run(install, check=True, stdout=sys.stderr)
        complete.touch()
    return python


class Contestant:
    """The ranks of one contestant, which wait for their turn.

    Args:
        name: Name of the contestant.
        process: Process of torchrun.
        log: File with the output of the process.
    """

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name, self._process, self._log = name, process, log
        self.ranks: dict[int, tuple[socket.socket, Any]] = {}

    def epoch(self) -> dict[str, float]:
        """Let it train for an epoch and return what rank 0 hands in.

        Raises:
            SystemExit: It died.
        """
        for connection, _ in self.ranks.values():
            connection.sendall(b"go\n")
        lines = {rank: reader.readline() for rank, (_, reader) in self.ranks.items()}
        if not all(lines.values()):
            self.fail("died")
        answer: dict[str, float] = json.loads(lines[0])
        return answer

    def fail(self, how: str) -> NoReturn:
        """Say what it said last."""
        raise SystemExit(f"{self.name} {how}\n{self._log.read_text(errors='replace')[-3000:]}")

    def check(self) -> None:
        """Notice if it is gone."""
        if self._process.poll() is not None:
            self.fail(f"ended with exit code {self._process.returncode}")

    def end(self) -> None:
        """Let the ranks go; they end when nobody gives them a turn any more."""
        for connection, reader in self.ranks.values():
            reader.close()
            connection.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()


def launch(name: str, python_of_rivals: Path, port: int, folder: Path, arguments: argparse.Namespace) -> Contestant:
    """Start a contestant under torchrun."""
    is_ours = name in OURS
    python, module = (sys.executable, "ours") if is_ours else (str(python_of_rivals), RIVALS[name])
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (BENCHMARKS, ROOT) if is_ours else (BENCHMARKS,))),
        "OMP_NUM_THREADS": "1",
        "BENCHMARK_NAME": name,
        "BENCHMARK_PORT": str(port),
        "BENCHMARK_IN_MEMORY": OURS.get(name, "0"),
        "BENCHMARK_SAMPLES": str(arguments.samples),
        "BENCHMARK_EPOCHS": str(arguments.epochs + 1),
        "BENCHMARK_WORKERS": str(arguments.workers),
    }
    if sys.platform.startswith("linux"):
        environment["GLOO_SOCKET_IFNAME"] = "lo"  # containers often cannot resolve their own name
    command = [
        *(python, "-m", "torch.distributed.run"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"),
        *("--nproc-per-node", str(WORLD_SIZE), "-m", f"trainer_rivals.{module}"),
    ]
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=output, stderr=output)
    return Contestant(name, process, log)


def all_ready(contestant: Contestant, server: socket.socket) -> None:
    """Wait until each rank has come.

    Raises:
        SystemExit: One does not.
    """
    deadline = time.monotonic() + START_SECONDS
    server.settimeout(1.0)
    while len(contestant.ranks) < WORLD_SIZE:
        contestant.check()
        if time.monotonic() > deadline:
            contestant.fail("did not begin in time")
        try:
            connection, _ = server.accept()
        except TimeoutError:
            continue
        connection.settimeout(EPOCH_SECONDS)
        reader = connection.makefile("r")
        contestant.ranks[json.loads(reader.readline())["rank"]] = (connection, reader)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Start all contestants; then each trains an epoch in turn, round by round, each round in another order."""
    names = [name for name in NAMES if name in arguments.only]
    needs_rivals = any(name in RIVALS for name in names)
    python = environment_of_rivals(arguments.environment) if needs_rivals else Path(sys.executable)
    series = {name: Series() for name in names}
    contestants: dict[str, Contestant] = {}
    with tempfile.TemporaryDirectory(prefix="trainer-") as folder, socket.create_server(("127.0.0.1", 0)) as server:
        try:
            for name in names:
                contestants[name] = launch(name, python, server.getsockname()[1], Path(folder), arguments)
                all_ready(contestants[name], server)
            for number in range(arguments.epochs + 1):
                turn = number % len(names)
                for name in names[turn:] + names[:turn]:
                    epoch = contestants[name].epoch()
                    if number:  # the first one warms up
                        series[name].add(epoch)
        finally:
            for contestant in contestants.values():
                contestant.end()
    return result(series, arguments)


def result(series: dict[str, Series], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the figures and their ratios."""
    figures: dict[str, Any] = {
        name: {
            "samples_per_second": arguments.samples / statistics.median(one.seconds),
            "epoch_seconds": statistics.median(one.seconds),
            "least_epoch_seconds": min(one.seconds),
            "epochs": len(one.seconds),
            "train_loss": one.losses[-1],
        }
        for name, one in series.items()
    }
    rates = {name: one["samples_per_second"] for name, one in figures.items()}
    best = max((name for name in RIVALS if name in rates), key=lambda name: rates[name], default=None)
    ratios = {}
    if best is not None:
        ratios = {f"{name}_ratio": rates[name] / rates[best] for name in OURS if name in rates}
    measuring = [seconds for one in series.values() for seconds in one.measuring]
    return {
        "world_size": WORLD_SIZE,
        "samples": arguments.samples,
        "workers": arguments.workers,
        "contestants": figures,
        "best_rival": best,
        **ratios,
        "measuring_ms_per_epoch": 1e3 * statistics.median(measuring) if measuring else None,
        "python": platform.python_version(),
        "torch": version("torch"),
        "rivals": list(PACKAGES),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def table(measured: dict[str, Any]) -> str:
    """Return the figures for people."""
    lines = [f"{'':14} {'samples/s':>10} {'epoch':>9} {'loss':>7}"]
    for name, one in measured["contestants"].items():
        lines.append(
            f"{name:14} {one['samples_per_second']:10,.0f} {one['epoch_seconds']:7.3f} s {one['train_loss']:7.3f}"
        )
    ratios = {name: measured[f"{name}_ratio"] for name in OURS if f"{name}_ratio" in measured}
    lines += [f"{name} is {ratio:.2f} times {measured['best_rival']}" for name, ratio in ratios.items()]
    if measured["measuring_ms_per_epoch"] is not None:
        lines.append(f"measuring takes {measured['measuring_ms_per_epoch']:.2f} ms of an epoch")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--epochs", type=int, default=20, help="of each contestant, and one more that warms up")
    parser.add_argument("--samples", type=int, default=40000)
    parser.add_argument("--workers", type=int, default=0, help="of each rival's DataLoader")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--environment", type=Path, help="where the rivals are, or are to be installed")
    arguments = parser.parse_args()
    measured = measure(arguments)
    print(json.dumps(measured) if arguments.json else table(measured))


if __name__ == "__main__":
    main()
