"""Kills a study with SIGKILL while it trains, lets it continue, and checks that nothing is lost."""

import subprocess
import time

import automl
from search_spaces.messages import UserError


def epochs():
    """Return the number of measured epochs by trial. Empty until the study is stored."""
    try:
        return {trial.number: len(trial.epochs) for trial in automl.load("crash").trials}
    except UserError:
        return {}


if __name__ == "__main__":
    study = subprocess.Popen(["automl", "launch", "crash.yaml", "--quiet"])
    while sum(epochs().values()) < 4 and study.poll() is None:
        time.sleep(0.2)
    study.kill()  # SIGKILL, which no program can catch
    study.wait()
    print("killed: ", automl.load("crash").record.state, epochs(), flush=True)

    subprocess.run(["automl", "resume", "crash", "--quiet"], check=True)
    print("resumed:", automl.load("crash").record.state, epochs(), flush=True)
    subprocess.run(["automl", "audit", "crash"], check=False)
