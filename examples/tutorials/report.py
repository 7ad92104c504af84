"""Prints the results of a study as numbers: python report.py."""

import sys

import automl


def read(name):
    """Print a study's recommended model, its best models, the states of its trials, and its costs."""
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
