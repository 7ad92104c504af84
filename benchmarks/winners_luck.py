#!/usr/bin/env python
"""Winner's luck: is what confirmed values recommend at least as good as the model of the lowest validation error?

    python benchmarks/winners_luck.py --json                    digits, trained here
    python benchmarks/winners_luck.py --curves FOLDER --json    what `budget.finish` costs and finishes

README.md says what is done.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from search_scoring import steps

from automl.confirming import chosen_points
from search_spaces.parameters import Float, Int
from search_spaces.space import Space
from studies.records.records import NANO, ConfirmationRecord, Objective, StudyRecord
from studies.results.pareto import archive, knee_of, least_ranges
from studies.results.recommendation import ranked_points, recommended, takeable
from studies.simulation.recorded_curves import read_table
from studies.simulation.simulated_study import SimulatedStudy, simulate
from trainers.contract.task_loading import load_task
from trainers.loop.trainer import Trainer
from trainers.protocol import TEST_PREFIX, Measurement, TrialSpec
from trainers.ranks.process_group import Group

EPOCHS = 6
CONFIGURATIONS, OF_A_STUDY = 48, 24
BUDGET = 10.0
"""Full trainings of a study."""
LEADERS, REPEATED_SHARE = 3, 0.3
"""Models that are trained again within the budget, and the share of the budget that is kept for it."""
SEARCHED, CONFIRMED, JUDGED = 1, 3, 3
"""Seeds with which a study trains, confirms, and with which this benchmark judges what was chosen."""
SEEDS = SEARCHED + CONFIRMED + JUDGED
SPACE = Space(
    {
        "learning_rate": Float(low=1e-3, high=1.0, log=True),
        "batch_per_rank": Int(low=16, high=128, log=True),
        "width": Int(low=16, high=256, log=True),
    }
)
OBJECTIVES = (Objective(metric="val_error"), Objective(metric="cost_usd"))
ERROR = "val_error"
SHARES = (0.0, 0.05, 0.1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Leader:
    """How the training of a leader of the archive ended.

    Attributes:
        finished: Whether it came to its last epoch.
        cut_short: Whether it did not, and had just measured its best: more epochs might have made it better.
    """

    finished: bool
    cut_short: bool


Curves = dict[tuple[int, int], list[Measurement]]
"""Epochs by configuration and seed."""


# ---------------------------------------------------------------------- digits


def configurations() -> list[dict[str, Any]]:
    """Draw what is trained."""
    rng = random.Random(0)
    return [
        {
            "learning_rate": 10 ** rng.uniform(-3, 0),
            "batch_per_rank": round(2 ** rng.uniform(4, 7)),
            "width": round(2 ** rng.uniform(4, 8)),
        }
        for _ in range(CONFIGURATIONS)
    ]


def trained(params: dict[str, Any], seed: int) -> list[Measurement]:
    """Train one configuration, and measure validation and test part after each epoch."""
    spec = TrialSpec(
        study="luck", trial=0, task="digits", params=params, training={"epochs": EPOCHS}, seed=seed,
        test_at=tuple(range(1, EPOCHS + 1)),
    )  # fmt: skip
    return list(Trainer(spec, load_task("digits"), group=Group()).advance(EPOCHS))


def searched(
    drawn: Sequence[dict[str, Any]], rows: Sequence[int], curves: Curves, number: int, full_trials: float = BUDGET
) -> SimulatedStudy:
    """Search among some configurations with the controller, sampler and pruner of any study, over what was trained."""
    runs = [curves[row, number % SEEDS] for row in rows]
    seconds = [list(itertools.accumulate(one.wall_seconds for one in run)) for run in runs]
    meta = {
        "format": "curves-v1",
        "name": f"digits-{number}",
        "params": SPACE.to_dict(),
        "metrics": {ERROR: {"direction": "minimize", "split": "validation"}},
        "static": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.npz"
        values = np.array([[one.metrics[ERROR] for one in run] for run in runs])
        params = np.array([[drawn[row][name] for name in SPACE.to_dict()] for row in rows])
        arrays = {"params": params, "seconds": np.array(seconds), f"metric_{ERROR}": values}
        np.savez(path, meta_json=json.dumps(meta), **arrays)  # type: ignore[arg-type]
        table = read_table(path)
    return simulate(table, objectives=OBJECTIVES, slots=2, budget_full_trials=full_trials, seed=number)


def confirmed(
    record: StudyRecord, points: Sequence[tuple[int, int]], seeds: Sequence[int], rows: dict[int, int], curves: Curves
) -> StudyRecord:
    """Train models, by trial and epoch, again with seeds."""
    runs = [
        ConfirmationRecord(
            trial=trial,
            seed=seed,
            epoch=epoch,
            epochs=epoch,
            metrics=curves[rows[trial], seed][epoch - 1].metrics,
            cost_nano_usd=0,
            checkpoint=None,
            confirmed_at=datetime.now(UTC),
        )
        for trial, epoch in points
        for seed in seeds
    ]
    return replace(record, confirmations=tuple(runs))


def rows_of(record: StudyRecord, drawn: Sequence[dict[str, Any]], chosen: Sequence[int]) -> dict[int, int]:
    """The configuration of each trial."""
    by_rate = {drawn[row]["learning_rate"]: row for row in chosen}
    return {
        trial.number or 0: by_rate[min(by_rate, key=lambda rate: abs(rate - float(trial.params["learning_rate"])))]  # type: ignore[arg-type]
        for trial in record.started
    }


def seeds_of(number: int) -> list[int]:
    """The seeds of a study: the one of its search first, then those that confirm, then those that judge."""
    return [(number + shift) % SEEDS for shift in range(SEEDS)]


def study(drawn: Sequence[dict[str, Any]], curves: Curves, number: int) -> dict[str, Any]:
    """Search, confirm, and judge on the test part with seeds that nobody has seen.

    Once more for the same budget, of which `REPEATED_SHARE` trains the leaders again before one is recommended.
    """
    chosen = sorted(random.Random(number).sample(range(len(drawn)), OF_A_STUDY))
    fresh, unseen = seeds_of(number)[SEARCHED : SEARCHED + CONFIRMED], seeds_of(number)[SEARCHED + CONFIRMED :]
    record = searched(drawn, chosen, curves, number).record
    rows = rows_of(record, drawn, chosen)
    points = [(one.trial, one.epoch) for one in chosen_points(record, [], EPOCHS)]
    after = confirmed(record, points, fresh, rows, curves)

    def judged(point: Any, rows: dict[int, int], name: str = TEST_PREFIX + ERROR) -> float:
        return fmean(curves[rows[point.trial], seed][point.epoch - 1].metrics[name] for seed in unseen)

    lowest, best = (ranked_points(one, takeable(one))[0] for one in (record, after))
    taken = [found.point for one in (record, after) if (found := recommended(one)) is not None]
    short = searched(drawn, chosen, curves, number, (1.0 - REPEATED_SHARE) * BUDGET).record
    short_rows = rows_of(short, drawn, chosen)
    leader, epochs = recommended(short), dict[int, int]()
    assert leader is not None
    for point in (leader.point, *ranked_points(short, takeable(short))):
        epochs.setdefault(point.trial, point.epoch)
    repeated = recommended(confirmed(short, list(epochs.items())[:LEADERS], fresh[:1], short_rows, curves))
    assert repeated is not None
    told = repeated.confirmed["metrics"][ERROR]["mean"] if repeated.confirmed else math.nan
    return {
        "study": number,
        "lowest_validation": f"{lowest.trial}@{lowest.epoch}",
        "best_confirmed": f"{best.trial}@{best.epoch}",
        "validation_error": lowest.values[ERROR],
        "lowest_validation_test_error": judged(lowest, rows),
        "best_confirmed_test_error": judged(best, rows),
        "recommended_test_error": judged(taken[0], rows),
        "recommended_confirmed_test_error": judged(taken[1], rows),
        "recommended_luck": judged(taken[0], rows, ERROR) - taken[0].values[ERROR],
        "repeated_test_error": judged(repeated.point, short_rows),
        "repeated_luck": judged(repeated.point, short_rows) - told,
        "best_was_confirmed": any(one.trial == best.trial and one.epoch == best.epoch for one in after.confirmations),
        "best_is_finished": record.started[best.trial].state == "complete",
    }


def luck(studies: int) -> dict[str, Any]:
    """Train all configurations with all seeds, then search `studies` times."""
    torch.set_num_threads(1)
    drawn = configurations()
    curves: Curves = {}
    for row, seed in itertools.product(range(len(drawn)), range(SEEDS)):
        curves[row, seed] = trained(drawn[row], seed)
    found = [study(drawn, curves, number) for number in range(studies)]
    gains = [one["lowest_validation_test_error"] - one["best_confirmed_test_error"] for one in found]
    names = [name for name in found[0] if name.endswith(("_error", "_luck"))]
    return {
        "studies": len(found),
        **{name: fmean(one[name] for one in found if math.isfinite(one[name])) for name in names},
        "gain": fmean(gains),
        "gain_standard_error": stdev(gains) / len(gains) ** 0.5,
        "changed": sum(one["lowest_validation"] != one["best_confirmed"] for one in found),
        "best_finished": fmean(one["best_is_finished"] for one in found),
        "each": found,
    }


# ---------------------------------------------------------------------- recorded curves


def ends(folder: Path, seeds: int, shares: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Yield, for each share of the budget, what studies found and whether their leaders are finished."""
    import search  # beside this file

    for share in shares:
        rows: list[tuple[SimulatedStudy, float, float]] = []
        for seed, task, (slots, full), second in itertools.product(
            range(seeds), search.tasks_in(folder, "even")[::2], ((1, 6.0), (4, 20.0)), ("size", "dollars")
        ):
            table = search.table_of(task.files, "uniform")
            objectives = search.objectives_of(table, second)
            made = simulate(table, objectives=objectives, slots=slots, budget_full_trials=full, seed=seed, finish=share)
            on_validation, on_test = search.yardsticks(task.files, "uniform", second)
            rows.append((made, steps(made, on_validation)[-1].share, steps(made, on_test)[-1].share))
        leaders = {name: [_leader(one[0], name) for one in rows] for name in ("knee", "best")}
        yield {
            "finish": share,
            "studies": len(rows),
            "validation": fmean(one[1] for one in rows),
            "test": fmean(one[2] for one in rows),
            **{
                f"{name}_{what}": fmean(getattr(one, what) for one in found)
                for name, found in leaders.items()
                for what in ("finished", "cut_short")
            },
        }


def _leader(made: SimulatedStudy, name: str) -> Leader:
    """The trial of the knee of the archive, or of its best first objective."""
    values = [one.values for one in made.milestones]
    kept = archive(values)
    ranges = least_ranges([one.metric for one in made.record.objectives], made.record.cost_nano_usd / NANO)
    knee = kept[knee_of([values[one] for one in kept], ranges)]
    leads = made.milestones[knee if name == "knee" else min(kept, key=values.__getitem__)]
    finished = made.record.started[leads.trial].state == "complete"
    latest = max(one.epoch for one in made.milestones if one.trial == leads.trial)
    return Leader(finished=finished, cut_short=not finished and leads.epoch == latest)


def main() -> int:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=20, help="studies of digits (%(default)s)")
    parser.add_argument("--curves", type=Path, help="a folder with lcbench/: simulate studies over it instead")
    parser.add_argument("--seeds", type=int, default=2, help="seeds of each simulated study (%(default)s)")
    parser.add_argument(
        "--shares", type=lambda text: tuple(map(float, text.split(","))), default=SHARES, metavar="LIST",
        help="values of budget.finish of the simulated studies (0,0.05,0.1)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    document: Any = luck(asked.studies) if asked.curves is None else list(ends(asked.curves, asked.seeds, asked.shares))
    if asked.json:
        print(json.dumps(document))
        return 0
    for line in [document] if asked.curves is None else document:
        for name, value in line.items():
            if name != "each":
                print(f"{name:32} {value:.5g}")
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
