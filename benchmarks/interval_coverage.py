"""Do the intervals of predicted numbers contain 90 % of the true values, everywhere: rows that no training saw.

    python benchmarks/interval_coverage.py [--data ../shared/data] [--sets diabetes,cars,diamonds,adult_hours] [--json]

Each table trains boosted trees with the parameters of a study's first trial. The intervals are those of an exported
model, and beside them one width for all rows (1.96 roots of the validation error, as before). Printed are the shares of
test values inside, in all rows and in each third of the rows by predicted value, and the mean widths.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accuracy_parts.data_sets import DataSet, prepared

from automl.exporting.manifest import intervals_of
from automl.standalone.answers import NumberAnswers
from trainers.contract.task_loading import options_of_new_studies
from trainers.loop.trainer import Trainer
from trainers.protocol import TrialSpec
from trainers.ranks.process_group import Group
from trainers.tasks.table.table_space import tabular_first_trials
from trainers.tasks.tabular import Tabular

SETS = ("diabetes", "cars", "diamonds", "adult_hours")
EPOCHS = 5


def measured(data_set: DataSet) -> dict[str, Any]:
    """Train on a table, and return shares of test values inside intervals, and widths of these."""
    options: dict[str, Any] = options_of_new_studies("tabular") | {
        "train": str(data_set.train), "test": str(data_set.test), "target": "target", "kind": "regression",
    }  # fmt: skip
    task = Tabular(**options)
    params = tabular_first_trials(task.training_samples)[0]
    spec = TrialSpec(study="s", trial=0, task="tabular", task_options=options, params=params,
                     training={"epochs": EPOCHS}, seed=0)  # fmt: skip
    trainer = Trainer(spec, task, group=Group(device=torch.device("cpu")))
    for _ in trainer.advance(EPOCHS):
        pass
    model = trainer.module.eval()
    with torch.no_grad():
        outputs = {part: (model(inputs), targets) for part, (inputs, targets) in (
            ("validation", task.validation_data({})), ("test", task.test_data({})))}  # fmt: skip
    values, truth = (np.asarray(task.decode(one)) for one in outputs["validation"])
    form = task.postprocessing() | {"mse": float(((values - truth) ** 2).mean())}
    true = np.asarray(task.decode(outputs["test"][1]))
    thirds = np.array_split(np.argsort(outputs["test"][0].numpy(), kind="stable"), 3)
    found: dict[str, Any] = {"validation_rows": len(values), "test_rows": len(true)}
    for name, more in (("by value", {"intervals": intervals_of(values, truth)}), ("one width", {})):
        answers = [NumberAnswers(form | more, [1]).answer([one]) for one in outputs["test"][0].tolist()]
        low, high = (np.array([one[end] for one in answers]) for end in ("low", "high"))
        inside = (low <= true) & (true <= high)
        found[name] = {
            "inside": float(inside.mean()),
            "inside_by_third": [float(inside[rows].mean()) for rows in thirds],
            "mean_width": float((high - low).mean()),
            "width_by_third": [float((high - low)[rows].mean()) for rows in thirds],
        }
    return found


def main() -> None:
    """Print the shares of each table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = {name: measured(prepared(name, Path(folder), seed=0, data=given.data)) for name in given.sets.split(",")}
    if given.json:
        print(json.dumps(rows, indent=1))
        return
    for name, row in rows.items():
        print(f"{name}: {row['validation_rows']} validation rows, {row['test_rows']} test rows")
        for kind in ("by value", "one width"):
            one = row[kind]
            shares = ", ".join(f"{share:.1%}" for share in one["inside_by_third"])
            widths = ", ".join(f"{width:.4g}" for width in one["width_by_third"])
            print(f"  {kind}: {one['inside']:.1%} inside (by third {shares}); width {one['mean_width']:.4g} ({widths})")


if __name__ == "__main__":
    main()
