"""Is the answer true: the recommended model on rows that no search saw, beside the best model found and default trees.

    python benchmarks/answers.py --data ../shared/data [--minutes 3] [--sets iris,adult] [--json]

Each set is searched as `automl launch --task ...` does without further options. Then every model of the archive is
measured on the test part, and three things are counted:

* whether the recommended model is as good there as the best of them, within one standard error;
* whether the interval that was quoted for it (validation value +- 1.96 standard errors) covers its test value;
* its score, 1 - error / (error of an answer that looks at no input), beside LightGBM's and scikit-learn's histogram
  boosting with default options, over all tables of a kind.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from accuracy_parts.data_sets import SHIPPED, TARGET, DataSet, prepared
from accuracy_parts.ours import launched
from accuracy_parts.scores import error, error_of_nothing, score
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from turnaround import machine

import automl
from reports.recommending import INTERVAL
from studies.results.recommendation import name_of
from trainers.contract.task_loading import load_task
from trainers.loop.evaluation import evaluate

SETS = (*SHIPPED, "adult", "adult_hours", "sst2", "mnist")
MOST_MODELS = 12
"""Models of an archive that are measured, the best by validation first."""


def default_trees(data_set: DataSet) -> dict[str, float]:
    """Return the test errors of two libraries of boosted trees with their default options."""
    train, test = data_set.frames()
    x, y = train.drop(columns=TARGET), train[TARGET]
    kinds = (LGBMRegressor, HistGradientBoostingRegressor) if data_set.is_regression else (
        LGBMClassifier, HistGradientBoostingClassifier)  # fmt: skip
    models = (kinds[0](verbosity=-1), kinds[1](categorical_features="from_dtype"))
    answers = [np.asarray(model.fit(x, y).predict(test.drop(columns=TARGET))) for model in models]
    return {name: error(data_set, one) for name, one in zip(("lightgbm", "histogram_boosting"), answers, strict=True)}


def answered(study: automl.Study) -> dict[str, Any]:
    """Return the recommended model's validation and test values beside the best test value of the archive."""
    taken = study.recommendation
    assert taken is not None, f"no model was kept: {study.record.why_ended}"
    spec: Any = study.record.spec
    task, name = load_task(spec["task"], spec["task_options"]), taken.judged.metric
    points = sorted(study.archive, key=lambda point: taken.judged.signed(point.values[name]))[:MOST_MODELS]
    if taken.point not in points:
        points.append(taken.point)
    tested: dict[str, dict[str, float]] = {}
    for point in points:
        if point.checkpoint:
            model, params = study.load_model(point.trial, point.epoch), study.record.started[point.trial].params
            tested[name_of(point)] = evaluate(model, task, params, part="test")
    own = tested[str(taken)]
    best = min(found[name] for found in tested.values())
    lowest = next(name_of(point) for point in points if name_of(point) in tested)
    validation, half = taken.point.values[name], INTERVAL * (taken.stderr or 0.0)
    return {
        "metric": name, "recommended": str(taken), "validation": validation, "half_interval": half, "test": own[name],
        "best_test": best, "lowest_validation": lowest, "its_test": tested[lowest][name],
        "is_best": own[name] <= best + own[f"{name}_stderr"],
        "is_covered": abs(own[name] - validation) <= half,
        "is_covered_with_noise_of_the_test": abs(own[name] - validation)
        <= math.hypot(half, INTERVAL * own[f"{name}_stderr"]),
        "models": len(tested),
        "unbeaten": None if taken.unbeaten is None else taken.unbeaten.name, "trials": len(study.trials),
    }  # fmt: skip


def measured(name: str, seconds: float, folder: Path, data: Path) -> dict[str, Any]:
    """Search one set, and return its row."""
    folder.mkdir()
    data_set = prepared(name, folder, seed=0, data=data)
    row = {"set": name, **answered(launched(data_set, seconds, 0, folder / "ours"))}
    if data_set.task == "tabular":
        nothing = error_of_nothing(data_set)
        own = row["test"] ** (2 if data_set.is_regression else 1)
        row["kind"] = "regression" if data_set.is_regression else "classification"
        row["scores"] = {"ours": score(own, nothing)} | {
            who: score(wrong, nothing) for who, wrong in default_trees(data_set).items()
        }
    return row


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Count what was true, and return mean scores by kind of table."""
    kinds: dict[str, Any] = {}
    for kind in ("classification", "regression"):
        scores = [row["scores"] for row in rows if row.get("kind") == kind]
        kinds[kind] = {who: statistics.fmean(one[who] for one in scores) for who in scores[0]} if scores else {}
    return {
        "sets": len(rows),
        "as_good_as_the_best_found": sum(row["is_best"] for row in rows),
        "test_value_in_the_quoted_interval": sum(row["is_covered"] for row in rows),
        "within_the_noise_of_both_parts": sum(row["is_covered_with_noise_of_the_test"] for row in rows),
        "mean_scores": kinds,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = []
        for one in given.sets.split(","):
            found.append(measured(one, 60 * given.minutes, Path(place, one), given.data.absolute()))
            print(found[-1], file=sys.stderr, flush=True)
    document = {"machine": machine(), "minutes": given.minutes, "rows": found, "summary": summary(found)}
    print(json.dumps(document) if given.json else json.dumps(document["summary"], indent=1))
