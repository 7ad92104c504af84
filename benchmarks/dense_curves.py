#!/usr/bin/env python
"""Emulates more configurations than were recorded, since a search soon exhausts tables of 116 to 240 rows.

    python benchmarks/dense_curves.py --out FOLDER
    python benchmarks/search.py --curves FOLDER --slots 2 --full-trials 10,30 --seconds none --prices uniform

A forest of random trees learns each table's curves, seconds and model sizes, in logarithms, from the parameters. Curves
of configurations that are drawn from the space are its forecasts, times the chance of a random repeated training:
exp(difference of two trainings / sqrt(2)), if --chance is 1. Test metrics have no chance, so that they show what a
model is worth when it is trained again. Forests shrink differences, so that good configurations
are rarer and closer to the median than in reality.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import ExtraTreesRegressor

from search_spaces.space import Space
from studies.search.model.encoding import Encoder

TABLES = Path(__file__).resolve().parent / "curves"
TREES, LEAST = 300, 1e-9


def emulated(table: dict[str, Any], rows: int, rng: np.random.Generator, chance: float) -> dict[str, Any]:
    """Return a table with new configurations."""
    encoder = Encoder(Space.from_dict(json.loads(str(table["meta_json"]))["space"]))
    kinds = ["seconds", *(name for name in table if name.startswith("metric_"))]
    logs = np.stack([np.log(np.maximum(table[kind], LEAST)) for kind in kinds], axis=1)  # [n, kinds, epochs]
    again = np.stack([np.log(np.maximum(table[f"again_{kind}"], LEAST)) for kind in kinds], axis=1)
    known = np.array([encoder.units(json.loads(str(text))) for text in table["params_json"]])
    size = np.log(np.maximum(table["static_model_size"], 1.0))
    targets = np.column_stack([logs.reshape(len(logs), -1), size])
    is_finite = np.isfinite(targets).all(axis=1)
    forest = ExtraTreesRegressor(TREES, random_state=0, min_samples_leaf=2)
    forest.fit(np.nan_to_num(known[is_finite], nan=-1.0), targets[is_finite])
    params = [encoder.decode(point) for point in rng.random((rows, encoder.parameters))]
    found = forest.predict(np.nan_to_num(np.array([encoder.units(one) for one in params]), nan=-1.0))
    luck = chance * (again - logs[table["again_rows"]]) / np.sqrt(2.0)
    luck[:, [kind == "seconds" or kind.startswith("metric_test") for kind in kinds]] = 0.0
    luck = luck[np.isfinite(luck).all(axis=(1, 2))]
    curves = np.exp(found[:, :-1].reshape(rows, *logs.shape[1:]) + luck[rng.integers(len(luck), size=rows)])
    return {
        "meta_json": table["meta_json"],
        "row_numbers": np.arange(rows),
        "params_json": np.array([json.dumps(one) for one in params]),
        "static_model_size": np.exp(found[:, -1]),
    } | {kind: curves[:, place].astype(np.float32) for place, kind in enumerate(kinds)}


def main() -> int:
    """Emulate each table of a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, default=TABLES, help="a folder with tables of the format curves-v2")
    parser.add_argument("--rows", type=int, default=3000, help="configurations of each table")
    parser.add_argument("--chance", type=float, default=1.0, help="share of the chance between trainings; 0 for none")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for path in sorted(arguments.curves.glob("*.npz")):
        with np.load(path, allow_pickle=False) as table:
            dense = emulated(dict(table), arguments.rows, np.random.default_rng(1), arguments.chance)
        np.savez_compressed(arguments.out / path.name, **dense)
        print(path.name, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
