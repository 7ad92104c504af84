"""TensorFlow's MultiWorkerMirroredStrategy on two ranks, in an environment of its own: a study of the example."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import optional
from tests.support.command_line import Workplace, finish
from tests.support.paths import EXAMPLES, ROOT

pytestmark = [pytest.mark.ray, pytest.mark.slow]

PYTHON = "AUTOML_TESTS_TENSORFLOW_PYTHON"
"""Environment variable that names a Python with tensorflow-cpu and tf-keras; without it the test installs them."""
_LIBRARIES = ("tensorflow-cpu", "tf-keras")
_CURE = f"python -m venv FOLDER && FOLDER/bin/pip install {' '.join(_LIBRARIES)}, then {PYTHON}=FOLDER/bin/python"
_INSTALL_SECONDS = 1800
EPOCHS = 6


@pytest.fixture(scope="module")
def tensorflow_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that imports TensorFlow."""
    python = os.environ.get(PYTHON)
    if python is None:
        folder = tmp_path_factory.mktemp("tensorflow")
        python = str(folder / "bin" / "python")
        for command in ([sys.executable, "-m", "venv", folder], [python, "-m", "pip", "install", "-q", *_LIBRARIES]):
            if subprocess.run(command, capture_output=True, timeout=_INSTALL_SECONDS, check=False).returncode:
                optional.missing("TensorFlow", _CURE)
    found = subprocess.run([python, "-c", "import tensorflow, tf_keras"], capture_output=True, check=False)
    if found.returncode:
        optional.missing("TensorFlow", _CURE)
    return python


@pytest.fixture(autouse=True)
def _example(tmp_path: Path) -> None:
    (tmp_path / "with_tensorflow.py").write_text((EXAMPLES / "with_tensorflow.py").read_text())


def spec_of(python: str, **sections: Any) -> dict[str, Any]:
    spec = yaml.safe_load((EXAMPLES / "with_tensorflow.yaml").read_text())
    task = spec["task"]
    task["command"][0] = python
    task["environment"] = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}  # it does not have automl installed
    return spec | {"budget": {"usd": 10.0, "hours": 1.0, "trials": 3}, "resources": {"slots": 2}} | sections


def errors_by_epoch(place: Workplace) -> dict[int, list[float]]:
    return {
        one.number: [epoch.metrics["val_error"] for epoch in one.epochs]
        for one in place.record("with-tensorflow").started
    }


@pytest.mark.medium
def test_a_study_on_two_workers_is_paused_and_pruned_and_goes_on(place: Workplace, tensorflow_python: str) -> None:
    search = {
        "sampler": "random", "seed": 1, "pruner": {"name": "mo_asha", "variant": "promotion", "grace": 1, "eta": 2},
    }  # fmt: skip
    place.json("launch", place.spec(spec_of(tensorflow_python, search=search)))
    record = place.record("with-tensorflow")
    assert not [trial.error for trial in record.started if trial.error]
    assert [trial for trial in record.started if len(trial.attempts) > 1], "a paused trial has gone on"
    assert {trial.state for trial in record.started} == {"complete", "pruned"}
    assert not [charge for charge in record.charges if charge.kind == "lost"]
    place.audit("with-tensorflow")
    complete = next(trial.number for trial in record.started if trial.state == "complete")
    printed = place.run("logs", "with-tensorflow", str(complete), "--rank", "1").stdout
    assert f"epoch {EPOCHS - 1}: error" in printed, "both workers train"


@pytest.mark.medium
def test_a_killed_controller_is_resumed_with_the_same_figures(place: Workplace, tensorflow_python: str) -> None:
    sections: dict[str, Any] = {
        "search": {"sampler": "random", "seed": 1, "pruner": {"name": "none"}},
        "budget": {"trials": 1},
    }
    sections["checkpoints"] = {"every_seconds": 0.1}
    process = place.start("launch", place.spec(spec_of(tensorflow_python, **sections)))
    place.wait_for(lambda rows: any(len(row.epochs) >= 2 for row in rows), "with-tensorflow")
    os.kill(process.pid, signal.SIGKILL)
    finish(process)
    place.run("resume", "with-tensorflow")
    (trial,) = place.record("with-tensorflow").started
    assert (trial.state, len(trial.attempts)) == ("complete", 2)
    assert [epoch.epoch for epoch in trial.epochs] == list(range(1, EPOCHS + 1))
    place.audit("with-tensorflow")
    resumed = errors_by_epoch(place)
    (place.folder / "automl.db").unlink()
    place.json("launch", place.spec(spec_of(tensorflow_python, **sections)))
    assert errors_by_epoch(place) == resumed, "what was restored is what a training without a break has"
