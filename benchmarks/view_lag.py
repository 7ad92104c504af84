"""How far Optuna's and MLflow's views are behind a study that runs beside busy processes.

    python benchmarks/view_lag.py --json

launches a study in a process of its own, keeps two cores busy meanwhile, and looks at three SQLite files ten times a
second: the store, and the tables of Optuna and of MLflow. What is not the view's fault is counted against it as well:
an epoch's lag begins when it was measured, which is before its commit, and ends when it was seen.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from turnaround import end_left_overs, machine

SPEC_FILE = Path(__file__).with_suffix(".yaml")
LOOK_SECONDS = 0.1
AFTERWARDS_SECONDS = 240.0
"""Longest time for the start and the end of a study on a busy machine."""
VIEWS = ("optuna", "mlflow")
EPOCHS = {
    "store": "SELECT e.rowid, t.number, e.epoch FROM automl_epochs e JOIN automl_trials t ON t.id = e.trial_id",
    "optuna": "SELECT 0, t.number, CAST(a.value_json AS INTEGER) FROM trial_user_attributes a"
    " JOIN trials t ON t.trial_id = a.trial_id WHERE a.key = 'epochs'",
    "mlflow": "SELECT m.rowid, CAST(g.value AS INTEGER), m.step FROM metrics m"
    " JOIN tags g ON g.run_uuid = m.run_uuid AND g.key = 'automl.trial' WHERE m.key = 'val_error'",
}
"""Queries for epochs: a number that grows where rows are only added, trial and epoch."""
ENDS = {
    "store": "SELECT number, ended_at FROM automl_trials WHERE ended_at IS NOT NULL AND state IN"
    " ('complete', 'pruned', 'failed')",
    "optuna": "SELECT number, 0 FROM trials WHERE state IN ('COMPLETE', 'PRUNED', 'FAIL')",
    "mlflow": "SELECT CAST(g.value AS INTEGER), 0 FROM runs r JOIN tags g ON g.run_uuid = r.run_uuid"
    " AND g.key = 'automl.trial' WHERE r.status IN ('FINISHED', 'KILLED', 'FAILED')",
}
Row = tuple[int, int]
"""A trial and its epoch; epoch -1 stands for the trial's end."""


class Database:
    """A SQLite file that others write, once it is there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: sqlite3.Connection | None = None

    def rows(self, query: str, *values: float) -> list[tuple[Any, ...]]:
        """Rows of a query; none as long as the file or the table is missing, or locked."""
        if self._open is None:
            if not self._path.exists():
                return []
            self._open = sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=0.05)
        try:
            return self._open.execute(query, values).fetchall()
        except sqlite3.OperationalError:
            return []


@dataclass(kw_only=True)
class Lookout:
    """Notes when rows of the store appear in the views.

    Attributes:
        happened: Time of each row of the store, in seconds since 1970.
        seen: Time at which each view was seen to hold it.
    """

    store: Database
    mlflow: Database
    happened: dict[Row, float] = field(default_factory=dict)
    seen: dict[str, dict[Row, float]] = field(default_factory=lambda: {view: {} for view in VIEWS})

    def look(self) -> None:
        """Look at all three."""
        now = time.time()
        self._look_at_optuna(now)
        for trial, epoch in self._new("mlflow", self.mlflow):
            self.seen["mlflow"].setdefault((trial, epoch), now)
        for trial, _ in self.mlflow.rows(ENDS["mlflow"]):
            self.seen["mlflow"].setdefault((trial, -1), now)
        query = EPOCHS["store"].replace("e.epoch", "e.epoch, e.measured_at")
        for row, trial, epoch, at in self.store.rows(f"{query} WHERE e.rowid > ?", self._last["store"]):
            self.happened[trial, epoch] = at
            self._last["store"] = max(self._last["store"], row)
        for trial, at in self.store.rows(ENDS["store"]):
            self.happened[trial, -1] = at

    def lags(self, view: str) -> list[float]:
        """Seconds of each row from the store into the view."""
        return [self.seen[view][row] - at for row, at in self.happened.items() if row in self.seen[view]]

    def missing(self, view: str) -> int:
        """Number of rows that the view does not hold."""
        return sum(row not in self.seen[view] for row in self.happened)

    def _look_at_optuna(self, now: float) -> None:
        # The view has the number of a trial's epochs: whichever it passed over have become visible as well.
        for _, trial, epochs in self.store.rows(EPOCHS["optuna"]):
            for epoch in range(self._shown.get(trial, 0) + 1, epochs + 1):
                self.seen["optuna"].setdefault((trial, epoch), now)
            self._shown[trial] = epochs
        for trial, _ in self.store.rows(ENDS["optuna"]):
            self.seen["optuna"].setdefault((trial, -1), now)

    def _new(self, name: str, database: Database) -> Iterator[Row]:
        for row, trial, epoch in database.rows(f"{EPOCHS[name]} AND m.rowid > ?", self._last[name]):
            self._last[name] = max(self._last[name], row)
            yield trial, epoch

    _last: dict[str, int] = field(default_factory=lambda: {"store": 0, "mlflow": 0})
    _shown: dict[int, int] = field(default_factory=dict)


class ViewsWatch:
    """Processor time of the processes that mirror, as long as they live."""

    def __init__(self) -> None:
        self._used: dict[int, float] = {}
        self._began: float | None = None
        self._ended = 0.0

    def look(self, root: int) -> None:
        """Look at the descendants of a process."""
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(root).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if any("views_program" in part for part in process.cmdline()):
                        times = process.cpu_times()
                        self._used[process.pid] = times.user + times.system
                        self._began = self._began or process.create_time()
                        self._ended = time.time()

    def figures(self) -> dict[str, float]:
        """Seconds of a core, and the share of one over the time in which there was such a process."""
        used, alive = sum(self._used.values()), self._ended - (self._began or 0.0)
        return {"views_core_seconds": used, "views_share_of_a_core": used / alive if self._began else 0.0}


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that never rest."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


def measure(minutes: float, processes: int) -> dict[str, Any]:
    """Launch the study, and watch its views to the end."""
    with tempfile.TemporaryDirectory(prefix="lag-") as name, busy(processes):
        folder = Path(name)
        lookout = Lookout(store=Database(folder / "automl.db"), mlflow=Database(folder / "mlflow.db"))
        watch, loads = ViewsWatch(), []
        with (folder / "log.txt").open("w") as log:
            study = subprocess.Popen(
                _command(folder, minutes), stdout=log, stderr=log, cwd=folder, start_new_session=True
            )
            try:
                deadline, looks = time.monotonic() + 60 * minutes + AFTERWARDS_SECONDS, 0
                while study.poll() is None and time.monotonic() < deadline:
                    lookout.look()
                    if looks % 5 == 0:
                        watch.look(study.pid)
                    if looks % 100 == 0:
                        loads.append(os.getloadavg()[0])
                    looks += 1
                    time.sleep(LOOK_SECONDS)
                returned = time.time()
            finally:
                end_left_overs(study.pid, folder)
        lookout.look()
        if study.returncode != 0:
            raise SystemExit((folder / "log.txt").read_text()[-3000:])
        (ended,) = lookout.store.rows("SELECT ended_at FROM automl_studies")[0]
        figures = {view: _figures(lookout, view, ended) for view in VIEWS}
        trials = sum(epoch == -1 for _, epoch in lookout.happened)
    rows = {"trials": trials, "epochs": len(lookout.happened) - trials}
    load = {"load_average": statistics.median(loads), "busy_processes": processes}
    return figures | watch.figures() | rows | load | {"seconds_from_end_to_return": returned - ended}


def _figures(lookout: Lookout, view: str, ended: float) -> dict[str, float]:
    lags = sorted(lookout.lags(view))
    return {
        "p50_seconds": statistics.median(lags),
        "p99_seconds": lags[min(len(lags) - 1, int(0.99 * len(lags)))],
        "max_seconds": lags[-1],
        "rows": len(lags),
        "missing_rows": lookout.missing(view),
        "complete_after_end_seconds": max(max(lookout.seen[view].values()) - ended, 0.0),
    }


def _command(folder: Path, minutes: float) -> list[str]:
    settings = {
        "mlflow": f"sqlite:///{folder}/mlflow.db",
        "checkpoints.folder": f"{folder}/artifacts",
        "resources.ray_temp_folder": f"{folder}/ray",
        "budget.hours": str(minutes / 60),
    }
    store = f"sqlite:///{folder}/automl.db"
    command = [sys.executable, "-P", "-m", "automl", "launch", str(SPEC_FILE), "--json", "--store", store]
    for path, value in settings.items():
        command += ["--set", f"{path}={value}"]
    return command


def table(result: dict[str, Any]) -> str:
    """Return the result for people."""
    lines = [f"{view}: " + ", ".join(f"{key} {value:.3g}" for key, value in result[view].items()) for view in VIEWS]
    return "\n".join([*lines, *(f"{key}: {value}" for key, value in result.items() if key not in VIEWS)])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Seconds by which the views are behind a running study.")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object and nothing else")
    parser.add_argument("--minutes", type=_positive(float), default=5.0, help="budget of the study (5)")
    parser.add_argument("--busy", type=int, default=2, help="processes that never rest (2)")
    return parser.parse_args()


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def number(text: str) -> float:
        if not kind(text) > 0:
            raise argparse.ArgumentTypeError(f"found {text}, allowed: more than 0")
        return kind(text)

    return number


def main() -> None:
    """Measure and print."""
    given, facts = _arguments(), machine()
    result = measure(given.minutes, given.busy) | {"machine": facts}
    print(json.dumps(result, indent=1, allow_nan=False) if given.as_json else table(result))


if __name__ == "__main__":
    main()
