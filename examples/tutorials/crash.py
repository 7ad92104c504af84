"""Kills a study with SIGKILL in the middle of its trainings, lets it go on, and checks that nothing is lost."""

import json
import signal
import subprocess
import time


def automl(*words):
    """Run a command and return its JSON; None where the study is not there yet."""
    done = subprocess.run(["automl", *words, "--json"], capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.stdout else None


def epochs():
    """Number of measured epochs by trial."""
    return {trial["trial"]: trial["epochs"] for trial in automl("trials", "crash") or []}


if __name__ == "__main__":
    study = subprocess.Popen(["automl", "launch", "crash.yaml", "--quiet"])
    while sum(epochs().values()) < 4 and study.poll() is None:
        time.sleep(0.5)
    study.send_signal(signal.SIGKILL)
    study.wait()
    before = epochs()
    print("killed: driven", automl("status", "crash")["driven"], "epochs", before)

    subprocess.run(["automl", "resume", "crash", "--quiet"], check=True)
    after = epochs()
    print("resumed: state", automl("status", "crash")["state"], "epochs", after)
    assert all(after[trial] >= count for trial, count in before.items())

    print("audit: findings", automl("audit", "crash")["findings"])
