"""Studies launched in notebooks: the cell that shows their progress, interrupts, and a real kernel."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from automl.notebook_cell import FRAME_SECONDS, MOST_LINES, LiveCell, is_notebook, watching
from automl.signals import draining_signals
from search_spaces.messages import UserError
from studies.money.budget import Limits
from studies.storage.schema.engine import StoreError
from tests.support import notebooks, optional
from tests.support.paths import ROOT
from tests.support.simulated_study import SimulatedStudy
from tests.support.waiting import wait_until

SEARCH = """
import os
import automl


def train(trial):
    import time
    state = {"rate": 0.0}
    for epoch in trial.epochs(rate=(state.copy, state.update)):
        time.sleep(0.2)
        trial.report(val_error=abs(trial.params["rate"] - 0.25) + 1 / epoch)


def launched():
    return automl.search(
        train,
        study="by-notebook",
        space={"rate": automl.Float(0.1, 0.5)},
        objectives=[automl.Objective("val_error")],
        training=automl.Training(epochs=4),
        budget=automl.Budget(usd=0.1, trials=int(os.environ["TRIALS"])),
        resources=automl.Resources(slots=1),
        search=automl.Search(sampler="random", pruner=automl.Pruner("none")),
        mlflow="off",
    )
"""


def test_the_cell_shows_a_study_from_its_start_to_its_end(tmp_path: Path) -> None:
    shown: list[str] = []
    cell = LiveCell("small", shown.append)
    assert "small" in shown[-1]
    assert "starting" in shown[-1]
    study = SimulatedStudy(tmp_path, slots=2)
    study.on_commit = cell.on_commit
    cell.warn("two slots want four CPUs")
    study.run(Limits(trials=6))
    assert "6 of 6" in shown[-1]
    assert "warning: two slots want four CPUs" in shown[-1]
    assert "time left" not in shown[-1], "it is over"
    assert "val_error" in shown[-1]


def test_frames_are_apart_and_lines_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    cell = LiveCell("small", shown.append)
    monkeypatch.setattr("automl.notebook_cell.time.monotonic", lambda: 1000.0)
    study = SimulatedStudy(tmp_path, slots=2)
    commits: list[bool] = []
    study.on_commit = lambda machine: (commits.append(machine.finished), cell.on_commit(machine))
    study.run(Limits(trials=6))
    assert len(commits) > 6
    assert len(shown) == 2 + sum(commits), "the start, the first commit, and the end however soon it comes"
    assert FRAME_SECONDS > 0
    for line in range(MOST_LINES + 3):
        cell.say(f"line {line}.")
    assert "line 2." not in shown[-1]
    assert "line 3." in shown[-1]


def test_a_terminal_is_no_notebook() -> None:
    assert not is_notebook()
    with watching("small") as watcher:
        watcher.say("nobody hears this")


def test_wrong_input_is_one_line_where_ipython_would_show_a_traceback() -> None:
    error: UserError = StoreError("study: found 'x'")
    assert error._render_traceback_() == ["StoreError: study: found 'x'"]


@pytest.mark.medium
def test_handlers_are_set_in_the_main_thread_only() -> None:
    before = signal.getsignal(signal.SIGINT)
    during: list[Any] = []

    def drive() -> None:
        with draining_signals(lambda _: None, lambda _: None, "it ends"):
            during.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=drive)
    thread.start()
    thread.join()
    assert during == [before]


class Kernel:
    """A notebook's kernel, whose cells are run one by one.

    Args:
        folder: Folder of the notebook.
        trials: Number of trials of the study.
    """

    def __init__(self, folder: Path, trials: int) -> None:
        import nbclient
        import nbformat

        self._format = nbformat.v4
        self.notebook = nbformat.v4.new_notebook()
        self._client = nbclient.NotebookClient(
            self.notebook, timeout=240, kernel_name="python3", allow_errors=True,
            resources={"metadata": {"path": str(folder)}},
        )  # fmt: skip
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._environment = {**os.environ, "PYTHONPATH": paths, "TRIALS": str(trials)}
        self._environment["PLOTLY_RENDERER"] = "plotly_mimetype"

    def run(self, source: str, meanwhile: Callable[[int], None] = lambda _pid: None) -> list[Any]:
        """Run a cell to its end and return its outputs; `meanwhile` gets the kernel's process id."""
        cell = self._format.new_code_cell(source)
        self.notebook.cells.append(cell)
        helper = threading.Thread(target=meanwhile, args=(self._client.km.provisioner.pid,))
        helper.start()
        self._client.execute_cell(cell, len(self.notebook.cells) - 1)
        helper.join()
        return list(cell.outputs)

    def __enter__(self) -> Kernel:
        self._client.create_kernel_manager()
        self._client.start_new_kernel(env=self._environment)
        self._client.start_new_kernel_client()
        return self

    def __exit__(self, *_: object) -> None:
        self._client._cleanup_kernel()


def text_of(outputs: list[Any], kind: str = "text/plain") -> str:
    """All texts of a cell's outputs; `kind` picks the form of those that have several."""
    return "\n".join(
        str(one.get("text") or one.get("data", {}).get(kind) or f"{one.get('ename')}: {one.get('evalue')}")
        for one in outputs
    )


def interrupting(folder: Path, times: int, beyond: int) -> Callable[[int], None]:
    """Interrupt a kernel once a study has more trials with epochs than `beyond`, as its stop button does."""

    def interrupt(pid: int) -> None:
        wait_until(lambda: trained_trials(folder) > beyond, seconds=120)
        for _ in range(times):
            os.kill(pid, signal.SIGINT)
            time.sleep(0.1)

    return interrupt


def trained_trials(folder: Path) -> int:
    from automl.stored.open_store import open_store
    from studies.storage.reading.reader import load_study

    try:
        store = open_store(f"sqlite:///{folder}/automl.db")
    except StoreError:
        return 0
    try:
        return sum(bool(trial.epochs) for trial in load_study(store, "by-notebook").started)
    except StoreError:
        return 0
    finally:
        store.close()


@pytest.mark.large
@pytest.mark.ray
def test_a_kernel_runs_the_example_shows_a_study_drains_it_and_lives_on(tmp_path: Path, ray_address: str) -> None:
    """The committed outputs are those of any machine; here the search has fewer trials, on the cluster of the tests."""
    optional.module("nbclient")
    optional.module("ipykernel")
    import nbformat

    committed = nbformat.read(notebooks.EXAMPLE, as_version=4)
    assert notebooks.machine_paths_in(committed) == []
    assert notebooks.machine_paths_in({"a": [f"at {tmp_path}/x"]}) == [f"{tmp_path}/x"], "it finds some"
    on_cluster = f"resources=automl.Resources(ray_address={ray_address!r}, "
    with Kernel(tmp_path, trials=5) as kernel:
        kernel.run("import logging\nlogging.getLogger('ray.widgets').setLevel('ERROR')  # it misses ipywidgets")
        for cell in (one for one in committed.cells if one.cell_type == "code"):
            said = kernel.run(
                cell.source.replace("resources=automl.Resources(", on_cluster).replace("trials=12", "trials=6")
            )
            assert notebooks.forms_of(said) == notebooks.forms_of(cell.outputs), text_of(said)
        assert float(text_of(said).split()[-1]) < 0.3, "the model that was read back"

        kernel.run(SEARCH.replace("resources=automl.Resources(", on_cluster))
        running = kernel.run("import asyncio\nasyncio.get_running_loop().is_running()")
        assert text_of(running) == "True", "a notebook's cells run within an event loop"

        drained = kernel.run("study = launched()\nstudy", interrupting(tmp_path, times=1, beyond=1))
        assert [one["output_type"] for one in drained] == ["display_data", "execute_result"], text_of(drained)
        assert "draining" in text_of(drained[:1], "text/html")
        assert "drained" in text_of(drained[1:])
        assert "It is drained: it was interrupted" in text_of(drained[1:], "text/html")

        ended = kernel.run("study = launched()", interrupting(tmp_path, times=2, beyond=trained_trials(tmp_path)))
        assert ended[-1]["ename"] == "KeyboardInterrupt", text_of(ended)

        closed = kernel.run("study = launched()\nstudy")
        assert "closed" in text_of(closed[1:])
        assert "5 of 5" in text_of(closed[:1], "text/html")
        refused = kernel.run("study.best('val_eror')")
        assert refused[0]["traceback"] == [f"BestPointError: {refused[0]['evalue']}"]
        thread = "import threading\nt = threading.Thread(target=launched); t.start(); t.join()\n'ended'"
        assert "ended" in text_of(kernel.run(thread)), "outside the main thread no handler is set"
