"""Make a study's experiment in MLflow, and its database if need be, before the user's code logs to it.

    echo '{"uri": "sqlite:////home/me/mlflow.db", "study": "moons"}' | python -P -m studies.storage.mlflow_experiment

prints nothing, or why it cannot be done, as one line. Programs of several trials that made a database at once would
break each other's migrations.
"""

from __future__ import annotations

import json
import sys

from studies.storage.mlflow_connect import check_database, experiment_id, in_one_line, open_client


def main() -> None:
    """Read where, and make the experiment."""
    question = json.load(sys.stdin)
    try:
        check_database(question["uri"])
        experiment_id(open_client(question["uri"]), question["uri"], question["study"])
    except Exception as error:  # noqa: BLE001 - MLflow and drivers raise what they like; the user gets one line
        sys.stdout.write(in_one_line(error))


if __name__ == "__main__":
    main()
