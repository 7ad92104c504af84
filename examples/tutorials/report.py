"""Print the report of a study as numbers: python report.py."""

import sys

import automl


def read(name):
    """Print the recommendation, the archive, what became of the trials, and where the money went."""
    study = automl.load(name)
    best = study.best("val_error")
    print("best", f"{best.trial}@{best.epoch}", best.values, best.params)
    for point in study.archive:
        print(f"{point.trial}@{point.epoch}", point.values)
    trials = study.dataframe("trials")
    print(trials.groupby("state")["cost_usd"].agg(["count", "sum"]))
    print(study.dataframe("charges").groupby("kind")["cost_usd"].sum())
    return study


if __name__ == "__main__":
    figure = read(sys.argv[1]).figures["trade_off"]
    figure.write_html("trade_off.html")
