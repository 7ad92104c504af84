"""Runs in the environment of FLAML: one question per line in, one line of answers out."""

from __future__ import annotations

import json
import sys
from typing import Any

import pandas as pd
from flaml import AutoML


def answers(question: dict[str, Any]) -> list[Any]:
    """What FLAML's model says to the test rows, after a search of some seconds."""
    train, test = pd.read_csv(question["train"]), pd.read_csv(question["test"])
    search = AutoML()
    search.fit(
        dataframe=train,
        label=question["target"],
        task="regression" if question["is_regression"] else "classification",
        metric="mse" if question["is_regression"] else "accuracy",
        time_budget=question["seconds"],
        n_jobs=question["threads"],
        seed=question["seed"],
        verbose=0,
    )
    return list(search.predict(test.drop(columns=question["target"])).tolist())


def main() -> None:
    """Answer until there are no more questions; what libraries print goes to stderr."""
    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        print(json.dumps(answers(json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main()
