#!/usr/bin/env python
"""How long `cokriging`, `break_even` and `sampler: tpe` take as a study grows.

    python benchmarks/search_latency.py --json [--trials 100 1000 10000] [--epochs 50] [--crossed 1.2]

Trials are made up: curves of 50 epochs over six parameters, pruned at all rungs. Each repeat changes one trial, as a
measurement does, and times what follows in this process; fits are timed with the suggestion, as in a study, where they
happen ahead of time in a thread of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import psutil

from search_spaces.drawing import complete
from search_spaces.space import Space
from studies.control.assembly import PoolSpec, assemble
from studies.records.records import Objective
from studies.results.extrapolation import milestones
from studies.search.arrays import in_one_thread
from studies.search.model.curve_model import CurveModel
from studies.search.model.problem import Problem
from studies.search.observations import Observation, Snapshot
from studies.search.policy import History
from studies.search.pruners.break_even import BreakEven
from studies.search.samplers.model_suggester import AcquisitionOptimizer
from studies.spec.study_spec import parse_spec
from trainers.protocol import Params

NAMES = ("suggest", "decide", "free_slot")
SPACE = Space.from_dict(
    {
        "learning_rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
        "width": {"type": "int", "low": 8, "high": 512, "log": True},
        "batch_per_rank": {"type": "int", "low": 16, "high": 512, "log": True},
        "optimizer": {"type": "categorical", "choices": ["sgd", "adamw"]},
        "momentum": {"type": "float", "low": 0.0, "high": 0.99, "when": {"optimizer": "sgd"}},
        "world_size": {"type": "categorical", "choices": [1, 2, 4]},
    }
)


def made_up(model: CurveModel, number: int, epochs: int, crossed: float, rng: np.random.Generator) -> Snapshot:
    """A trial that was pruned at some rung, or is complete; `crossed` is how many rungs it would cross in the mean."""
    params = model.encoder.decode(rng.random(model.encoder.parameters))
    x = model.encoder.encode(params)
    rungs = model.rungs
    reached = rungs[min(int(rng.exponential(crossed)), len(rungs) - 1)]
    usd = float(np.exp(x[1] + 0.2 * x[2])) / 100.0
    floor = 0.02 + 0.3 * (x[0] - 0.6) ** 2 + 0.1 * (x[1] - 0.8) ** 2
    errors = [floor + 0.5 / (1 + (0.2 + x[2]) * e) + 0.002 * rng.standard_normal() for e in range(1, epochs + 1)]
    kept = [e for e in range(1, reached + 1) if e in {*rungs, rungs[0] - 1, *milestones(epochs)}]
    return Snapshot(
        number=number,
        params=params,
        state="ended" if reached == rungs[-1] else "paused",
        epochs=reached,
        at={e: (float(errors[e - 1]), usd * (e + 0.3)) for e in kept},
        usd_per_epoch=usd,
        paid_usd=usd * (reached + 0.3),
    )


def measured(trials: int, epochs: int, crossed: float, repeats: int) -> dict[str, Any]:
    """Percentiles of one size of study, in milliseconds."""
    rng = np.random.default_rng(0)
    objectives = (Objective(metric="val_error"), Objective(metric="cost_usd"))
    problem = Problem(
        space=SPACE, objectives=objectives, epochs=epochs, milestones=milestones(epochs), usd_per_slot_hour=1.0
    )
    asker = CurveModel(problem)
    decider = asker.sharing_fits()
    optimizer, pruner = AcquisitionOptimizer(asker), BreakEven(decider, seed=0, refits=False)
    seen = [made_up(asker, number, epochs, crossed, rng) for number in range(trials)]
    times: dict[str, list[float]] = {name: [] for name in NAMES}
    for repeat in range(-3, repeats):  # the first ones build what later ones bring up to date
        seen.append(replace(made_up(asker, len(seen), epochs, crossed, rng), state="running"))
        suggest = in_one_thread(lambda: optimizer.choose(seen, seed=len(seen)))
        spent = _seconds(suggest)
        upcoming = suggest.result  # type: ignore[attr-defined]
        history = _history(asker, seen, upcoming)
        rung = max(set(seen[-1].at) & set(decider.rungs))
        if rung == decider.rungs[-1]:
            continue
        decided = _seconds(lambda: pruner.decide(history, seen[-1].number, rung))  # noqa: B023
        pruner.prepare(history)  # as the controller does whenever nothing is free
        seen[-1] = replace(seen[-1], state="paused")
        history = _history(asker, seen, upcoming)
        freed = _seconds(lambda: pruner.thaw(history))  # noqa: B023
        if repeat >= 0:
            for name, seconds in zip(NAMES, (spent, decided, freed), strict=True):
                times[name].append(1000.0 * seconds)
    percentiles = {name: np.percentile(values, [50, 99]).tolist() for name, values in times.items()}
    figures: dict[str, Any] = {"trials": trials, "measurements": sum(trial.epochs for trial in seen)}
    figures |= {f"{name}_ms": {"p50": p50, "p99": p99} for name, (p50, p99) in percentiles.items()}
    figures["tpe_ms"] = tpe_ms(trials, repeats)
    return figures | {"memory_mib": psutil.Process().memory_info().rss / 2**20}


def tpe_ms(trials: int, repeats: int) -> dict[str, float]:
    """Percentiles of a suggestion by `sampler: tpe` after this many finished trials, in milliseconds."""
    search = {"sampler": "tpe", "pruner": "none", "seed": 0}
    form = {"task": "digits", "objectives": ["val_error"], "space": SPACE.to_dict(), "search": search}
    pool = PoolSpec(device="cpu", slots=2, usd_per_slot_hour=1.0)
    suggester = assemble(parse_spec(form, "benchmark"), pool).suggester
    drawer = random.Random(0)

    def finished(number: int, params: Params) -> Observation:
        value = (abs(math.log10(float(str(params["learning_rate"]))) + 2.0) + drawer.random(),)
        return Observation(trial_id=number, params=params, outcome="finished", values=value)

    history = [finished(number, complete(SPACE, {}, drawer)) for number in range(trials)]
    times = []
    for _ in range(3 + repeats):
        suggest = in_one_thread(lambda: suggester.suggest(len(history), tuple(history)))
        times.append(1000.0 * _seconds(suggest))
        history.append(finished(len(history), suggest.result.params))  # type: ignore[attr-defined]
    p50, p99 = np.percentile(times[3:], [50, 99]).tolist()
    return {"p50": p50, "p99": p99}


def _history(model: CurveModel, seen: list[Snapshot], upcoming: Any) -> History:
    first = model.rungs[0]
    return History(
        at_rung={first: {trial.number: trial.at[first] for trial in seen if first in trial.at}},
        paused={trial.number: trial.epochs for trial in seen if trial.state == "paused"},
        trials=list(seen),
        upcoming=upcoming,
    )


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call.result = call()  # type: ignore[attr-defined]
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Milliseconds of the search as a study grows.")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object and nothing else")
    parser.add_argument("--trials", type=int, nargs="+", default=[100, 1000, 10000])
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--crossed", type=float, default=1.2, help="rungs that a trial crosses in the mean")
    parser.add_argument("--repeats", type=int, default=100)
    given = parser.parse_args()
    sizes = [measured(trials, given.epochs, given.crossed, given.repeats) for trials in given.trials]
    if given.as_json:
        print(json.dumps({"sizes": sizes}, indent=1))
        return
    for size in sizes:
        times = {name: size[f"{name}_ms"] for name in (*NAMES, "tpe")}
        parts = [f"{name} {found['p50']:.1f} / {found['p99']:.1f} ms" for name, found in times.items()]
        print(f"{size['trials']:6} trials: {', '.join(parts)} (p50 / p99), {size['memory_mib']:.0f} MiB")


if __name__ == "__main__":
    main()
