"""Each data set, each contestant, one after the other, for the same time."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from bridge import Environment, bridge

from accuracy_parts.data_sets import TARGET, DataSet, prepared
from accuracy_parts.ours import ours
from accuracy_parts.scores import error, error_of_nothing, score
from accuracy_parts.tuned import histogram_boosting, lightgbm

THREADS = 2
FLAML = Environment(name="flaml-2.7.0", installs=(("flaml[automl]==2.7.0",),))
OURS, NETWORKS = "ours", "ours_networks"
PEERS = ("lightgbm", "histogram_boosting", "flaml")
CONTESTANTS = (OURS, NETWORKS, *PEERS)
TUNED = ("lightgbm", "histogram_boosting")


def flaml(data_set: DataSet, seconds: float, seed: int, threads: int) -> np.ndarray:
    """Answers of FLAML after some seconds, in an environment of its own."""
    peer = bridge(Path(__file__).with_name("flaml_bridge.py"), FLAML)
    question = {"train": str(data_set.train), "test": str(data_set.test), "target": TARGET, "seconds": seconds,
                "seed": seed, "threads": threads, "is_regression": data_set.is_regression}  # fmt: skip
    return np.asarray(peer.ask(question))


_PEERS: dict[str, Callable[[DataSet, float, int, int], np.ndarray]] = {
    "lightgbm": lightgbm, "histogram_boosting": histogram_boosting, "flaml": flaml,
}  # fmt: skip


def compare(
    names: Iterable[str], contestants: Iterable[str], *, minutes: float, seeds: int, folder: Path, data: Path
) -> list[dict[str, Any]]:
    """Return a row for each data set, seed and contestant; those that do not fit the task have none."""
    rows = []
    for seed in range(seeds):
        for name in names:
            place = folder / f"{name}-{seed}"
            place.mkdir()
            data_set = prepared(name, place, seed=seed, data=data)
            for who in contestants:
                if data_set.task != "tabular" and who != OURS:
                    continue
                row = {"data": name, "seed": seed, "contestant": who}
                row |= _one(data_set, who, 60.0 * minutes, seed, place / who)
                print(row, file=sys.stderr, flush=True)
                rows.append(row)
    return rows


def _one(data_set: DataSet, who: str, seconds: float, seed: int, folder: Path) -> dict[str, Any]:
    began = time.monotonic()
    if who in {OURS, NETWORKS}:
        row = ours(data_set, seconds, seed, folder, trees=who == OURS)
    else:
        row = {"error": error(data_set, _PEERS[who](data_set, seconds, seed, THREADS))}
    row["seconds"] = round(time.monotonic() - began, 1)
    if data_set.task == "tabular":
        row["score"] = score(row["error"], error_of_nothing(data_set))
    return row


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean scores over the tables that all contestants had, and how ours stands to the better of the tuned trees."""
    scores: dict[str, dict[tuple[str, int], float]] = {}
    for row in rows:
        if "score" in row:
            scores.setdefault(row["contestant"], {})[row["data"], row["seed"]] = row["score"]
    everywhere = set.intersection(*(set(one) for one in scores.values())) if scores else set()
    means = {who: statistics.fmean(one[key] for key in everywhere) for who, one in scores.items() if everywhere}
    tuned = [means[who] for who in TUNED if who in means]
    return {
        "tables": sorted({name for name, _ in everywhere}),
        "mean_score": means,
        "over_best_tuned": {who: means[who] - max(tuned) for who in (OURS, NETWORKS) if tuned and who in means},
    }
