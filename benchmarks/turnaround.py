#!/usr/bin/env python
"""Turnaround: how long a pool of slots takes per trial, and what of that is not training.

    python benchmarks/turnaround.py --json [--trials N] [--rival-trials M] [--blocks B] [--only NAME...]

The same short training (turnaround.yaml) by the same code, as a trial of ours and of others; README.md has the rules.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from rivals.workload import BENCHMARKS, SPEC_FILE, gaps, study_spec

NAMES = (
    "tune_torchtrainer", "torchtrainer", "torchrun", "ours_command", "ours_command_warm", "ours_function", "ours",
    "floor",
)  # fmt: skip
OURS = {
    "ours": None,
    "ours_function": "turnaround_function:train",
    "ours_command": "{command: [python, turnaround_command.py]}",
    "ours_command_warm": (
        "{command: [python, turnaround_command.py], preload: [trainers.local.local_training, rivals.workload, "
        "studies.spec.study_spec, torch._dynamo, torch.onnx, torch.distributed.optim, scipy.optimize]}"
    ),
}
"""Our contestants, with the task that replaces that of turnaround.yaml."""
DEADLINE_SECONDS = (300.0, 180.0)
"""Time limits of a contestant's start and of each of its trials. Generous, since they are for hangs only."""
LEFT_OVER_SECONDS = 15.0


@dataclass(kw_only=True)
class Series:
    """A contestant's trials.

    Attributes:
        seconds: Duration of each trial that counts.
        cold: Seconds from the start of the contestant's process to the end of its first trial, one for each start.
        more: What else goes into the result.
    """

    seconds: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)

    def figures(self) -> dict[str, Any]:
        """Return the result of this contestant."""
        ordered = sorted(self.seconds)
        figures = {
            "seconds_per_trial": statistics.median(ordered),
            "trials": len(ordered),
            "p99_seconds": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
            "max_seconds": ordered[-1],
        }
        return figures | self.more


# ---------------------------------------------------------------------- contestants as processes


def contestant(name: str, trials: int) -> dict[str, Any]:
    """Run a module of `rivals` in a fresh process and folder, and return what it hands in."""
    with _folder() as folder:
        command = [sys.executable, "-m", f"rivals.{name}", "--trials", str(trials), "--folder", str(folder)]
        _run([*command, "--started-at", repr(time.time())], folder, trials)
        return dict(json.loads((folder / "times.json").read_text()))


def _run(command: list[str], folder: Path, trials: int) -> None:
    """Run a process to its end; afterwards nothing that it started lives.

    Raises:
        SystemExit: It failed or hung; the message holds the end of what it said.
    """
    log = folder / "log.txt"
    first, each = DEADLINE_SECONDS
    with log.open("w") as output:
        # A session of its own: what it starts can be found and ended together.
        process = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=folder, env=_environment(), start_new_session=True
        )
        try:
            code = process.wait(first + each * trials)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            end_left_overs(process.pid, folder)
    if code != 0:
        said = log.read_text(errors="replace")[-3000:]
        raise SystemExit(f"{' '.join(command)}: {'hung' if code == -1 else f'exit code {code}'}\n{said}")


def _environment() -> dict[str, str]:
    environment = os.environ | {"PYTHONPATH": str(BENCHMARKS), "RAY_USAGE_STATS_ENABLED": "0"}
    for name in ("AUTOML_STORE", "RAY_ADDRESS"):
        environment.pop(name, None)
    if sys.platform.startswith("linux"):
        environment["GLOO_SOCKET_IFNAME"] = "lo"  # containers often cannot resolve their own name
    return environment


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A folder for all files of a contestant, Ray's too; its path is short since Ray's sockets are below it."""
    folder = Path(tempfile.mkdtemp(prefix="turn-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def end_left_overs(session: int, folder: Path) -> None:
    """Wait for the processes of a session, and those that name its folder, to be gone; then end them."""
    deadline = time.monotonic() + LEFT_OVER_SECONDS
    while (left := _left_overs(session, folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)
    psutil.wait_procs(left, timeout=5.0)


def _left_overs(session: int, folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            ours = os.getsid(process.pid) == session or any(str(folder) in part for part in process.cmdline())
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


# ---------------------------------------------------------------------- ours


def launch(trials: int, task: str | None = None) -> Series:
    """Launch the study in a fresh process with its views on; the first trial warms up and does not count.

    Another task may replace its own.

    A trial's seconds go from the end of the one before to its own, as committed to the store: forming the gang, asking
    the sampler, deciding at the rung, checkpoints and commits are in.
    """
    with _folder() as folder:
        store = f"sqlite:///{folder}/automl.db"
        began = time.time()
        _run(_launch_command(folder, store, trials + 1, task), folder, trials + 1)
        record, behind = _finished_record(store, trials + 1)
        ends = [trial.attempts[-1].ended_at.timestamp() for trial in record.started]
        starts = [trial.attempts[0].started_at.timestamp() for trial in record.started]
        kept = sum(epoch.checkpoint is not None for trial in record.started for epoch in trial.epochs)
    between = [start - end for start, end in zip(starts[1:], ends, strict=False)]
    more = {
        "views": "on",
        "events_that_views_lack": behind,
        "checkpoints_per_trial": kept / len(ends),
        "seconds_between_trials": statistics.median(between),
    }
    return Series(seconds=gaps(ends), cold=[ends[0] - began], more=more)


def _launch_command(folder: Path, store: str, trials: int, task: str | None) -> list[str]:
    settings = {
        "mlflow": f"sqlite:///{folder}/mlflow.db",
        "checkpoints.folder": f"{folder}/artifacts",
        "resources.ray_temp_folder": f"{folder}/ray",
        "budget.trials": str(trials),
        **({} if task is None else {"task": task}),
    }
    command = [sys.executable, "-P", "-m", "automl", "launch", str(SPEC_FILE), "--json", "--store", store]
    for path, value in settings.items():
        command += ["--set", f"{path}={value}"]
    return command


def _finished_record(store_url: str, trials: int) -> tuple[Any, dict[str, int]]:
    """Return the study's record, after checking that every trial did all that this benchmark counts.

    Returns:
        The record, and how many events each view lacks that has not caught up, as on a machine that is too busy.

    Raises:
        SystemExit: A trial was not complete.
    """
    from automl import api
    from automl.stored.open_store import open_store
    from studies.storage.views.cursors import lag

    store = open_store(store_url)
    spec = study_spec()
    record = api.load(spec.study, store_url).record
    behind = {str(view): late for view, late in lag(store, spec.study).items() if late}
    store.close()
    whole = [t for t in record.started if t.state == "complete" and len(t.epochs) == spec.training.epochs]
    if len(whole) != trials or any(len(trial.attempts) != 1 for trial in whole):
        others = "".join(f"\n{_story(trial)}" for trial in record.started if trial not in whole or trial.attempts[1:])
        raise SystemExit(f"ours: {len(whole)} of {trials} trials are whole{others}")
    return record, behind


def _story(trial: Any) -> str:
    """Return what became of a trial that is not whole, for a message."""
    attempts = ", ".join(one.outcome for one in trial.attempts)
    said = trial.error.strip().splitlines()[-1] if trial.error else "no error"
    return f"trial {trial.number}: {trial.reason}; {len(trial.epochs)} epochs; attempts: {attempts}; {said}"


# ---------------------------------------------------------------------- the match


def floor_and_ours(trials: int, names: set[str], blocks: int) -> dict[str, Series]:
    """Measure all in turns, block by block, so that a machine that slows down slows all of them down."""
    loops: dict[str, list[float]] = {}
    results: dict[str, Series] = {}
    for block in range(blocks):
        share = trials // blocks + (block < trials % blocks)
        if share and "floor" in names:
            _say(f"floor, {share} trials")
            for loop, seconds in contestant("floor", share)["more"].items():
                loops.setdefault(loop, []).extend(seconds)
        for name, task in OURS.items():
            if share and name in names:
                _say(f"{name}, {share} trials")
                one, before = launch(share, task), results.get(name, Series())
                results[name] = Series(seconds=before.seconds + one.seconds, cold=before.cold + one.cold, more=one.more)
    if "floor" in names:
        medians = {loop: statistics.median(seconds) for loop, seconds in loops.items()}
        best = min(medians, key=medians.__getitem__)
        results["floor"] = Series(seconds=loops[best], more={"loop": best, "seconds_by_loop": medians})
    return results


def rival(name: str, trials: int) -> Series:
    """Measure one of the others."""
    _say(f"{name}, {trials} trials")
    handed_in = contestant(name, trials)
    cold = handed_in["more"].get("cold_first_trial_seconds")
    return Series(seconds=handed_in["seconds"], cold=[] if cold is None else [cold])


def summary(series: dict[str, Series]) -> dict[str, Any]:
    """Return the result: medians, cold starts, and what is left after the floor is taken away."""
    result: dict[str, Any] = {name: series[name].figures() for name in NAMES if name in series}
    for name in (*OURS, "torchtrainer", "tune_torchtrainer"):
        if name in series and series[name].cold:
            result[f"{name}_cold_first_trial_seconds"] = series[name].cold[0]
    if {"floor", "ours_function"} <= series.keys():
        own = result["ours_function"]["seconds_per_trial"] - result["floor"]["seconds_per_trial"]
        result["ours_function_overhead_ms"] = 1000 * own
    if {"ours_function", "ours_command_warm"} <= series.keys():
        own = result["ours_command_warm"]["seconds_per_trial"] - result["ours_function"]["seconds_per_trial"]
        result["ours_command_warm_over_function_ms"] = 1000 * own
    if {"torchrun", "ours_command"} <= series.keys():
        own = result["ours_command"]["seconds_per_trial"] - result["torchrun"]["seconds_per_trial"]
        result["ours_command_over_torchrun_ms"] = 1000 * own
    if {"floor", "ours"} <= series.keys():
        floor = result["floor"]["seconds_per_trial"]
        own = result["ours"]["seconds_per_trial"] - floor
        result["overhead_ms"] = 1000 * own
        for name in ("tune_torchtrainer", "torchtrainer", "torchrun"):
            if name in result and own > 0:
                result[f"{name}_overhead_ratio"] = (result[name]["seconds_per_trial"] - floor) / own
    return result


def machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    return {
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processor": _processor(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "load_average_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": version("torch"),
        "ray": version("ray"),
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def table(result: dict[str, Any]) -> str:
    """Return the result for people."""
    lines = [f"{'':20}{'s / trial':>12}{'p99':>10}{'max':>10}{'trials':>8}"]
    for name in NAMES:
        if name in result:
            one = result[name]
            seconds = "".join(f"{one[key]:>{width}.3f}" for key, width in _COLUMNS)
            lines.append(f"{name:20}{seconds}{one['trials']:>8}")
    lines += [f"{key}: {value:.1f}" for key, value in result.items() if isinstance(value, float)]
    return "\n".join(lines)


_COLUMNS = (("seconds_per_trial", 12), ("p99_seconds", 10), ("max_seconds", 10))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Seconds per trial of ours and of others, on the same training.")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object and nothing else")
    parser.add_argument("--trials", type=_at_least(1), default=40, help="of ours and of the floor (40)")
    parser.add_argument("--rival-trials", type=_at_least(1), default=3, help="of each of the others (3)")
    parser.add_argument(
        "--blocks", type=_at_least(1), default=4, help="studies that the trials of ours are shared out to (4)"
    )
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help=", ".join(NAMES))
    return parser.parse_args()


def _at_least(least: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"found {text}, allowed: at least {least}")
        return int(text)

    return whole


def main() -> None:
    """Measure and print."""
    given = _arguments()
    facts, names = machine(), set(given.only)
    series = floor_and_ours(given.trials, names, given.blocks)
    for name in ("torchrun", "torchtrainer", "tune_torchtrainer"):
        if name in names:
            series[name] = rival(name, given.rival_trials)
    result = summary(series) | {"machine": facts}
    print(json.dumps(result, indent=1, allow_nan=False) if given.as_json else table(result))


if __name__ == "__main__":
    main()
