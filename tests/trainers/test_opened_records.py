"""What a training function opens for its records ends with its trial, in a process that trains many."""

import atexit
import importlib.util
import logging
import os
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import optional
from tests.support.function_trials import Granted
from tests.support.trainer_pool import HERE
from trainers.contract.training_function import TrainingFunction
from trainers.functions.function_trainer import FunctionTrainer
from trainers.protocol import TaskError, TrialSpec
from trainers.ranks.process_group import Group
from trainers.ranks.process_state import own_environment

WANDB = "AUTOML_TESTS_WANDB"
"""Environment variable with a folder that holds the package wandb."""


def trained(function, trial=0, **environment):
    spec = TrialSpec(
        study="test", trial=trial, task="unused", params={}, training={"epochs": 2}, world_size=1, python_path=(HERE,)
    )
    with own_environment(environment):
        FunctionTrainer(spec, TrainingFunction(function=function), group=Group()).run(Granted())


def test_handlers_of_loggers_end_with_their_trial_except_a_librarys_own(tmp_path):
    log, library = logging.getLogger("mine.training"), logging.getLogger("torch.of_this_test")
    kept = logging.NullHandler()

    def train(trial):
        for logger in (logging.root, log):
            logger.addHandler(logging.FileHandler(tmp_path / f"{logger.name}-{trial.number}.log"))
        if trial.number == 0:
            library.addHandler(kept)
        for epoch in trial.epochs():
            log.error("epoch %d", epoch)
            trial.report(val_error=1.0)

    before = list(logging.root.handlers)
    for number in range(2):
        trained(train, number)
    texts = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert texts == dict.fromkeys(
        ("root-0.log", "root-1.log", "mine.training-0.log", "mine.training-1.log"), "epoch 1\nepoch 2\n"
    )
    assert (logging.root.handlers, log.handlers, library.handlers) == (before, [], [kept])
    library.removeHandler(kept)


@pytest.mark.medium
def test_a_writer_of_tensorboard_that_stays_open_is_written(tmp_path):
    optional.module("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    kept = []

    def train(trial):
        kept.append(SummaryWriter(tmp_path))
        for epoch in trial.epochs():
            kept[-1].add_scalar("loss", 1 / epoch, epoch)
            trial.report(val_error=1.0)

    before = threading.active_count()
    trained(train)
    assert threading.active_count() == before
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert [one.step for one in read.Scalars("loss")] == [1, 2]


def test_exit_handlers_of_the_users_code_are_called_at_the_end_of_their_trial():
    called = []

    def train(trial):
        atexit.register(called.append, "first")
        assert atexit.register(lambda: called.append("second")) is not None
        atexit.register(lambda: 1 / 0)
        for _ in trial.epochs():
            assert called == []
            trial.report(val_error=1.0)

    register = atexit.register
    trained(train)
    assert called == ["second", "first"]
    assert atexit.register is register


def test_a_run_of_neptune_ends_by_the_call_that_its_client_has_registered(tmp_path):
    file = tmp_path / "site-packages" / "neptune" / "run.py"
    file.parent.mkdir(parents=True)
    file.write_text("import atexit\nstopped = []\ndef init_run(n):\n    atexit.register(stopped.append, n)\n")
    source = importlib.util.spec_from_file_location("run_of_neptune", file)
    client = importlib.util.module_from_spec(source)
    source.loader.exec_module(client)

    def train(trial):
        client.init_run(trial.number)
        for _ in trial.epochs():
            trial.report(val_error=float(len(client.stopped)))

    for number in range(2):
        trained(train, number)
        assert client.stopped == list(range(number + 1))


@dataclass
class LikeWandb:
    """What wandb does in one process: it reads its environment once, and `init` returns a run that is still open."""

    run: SimpleNamespace | None = None
    name: str | None = None
    runs: list[SimpleNamespace] = field(default_factory=list)

    def init(self):
        self.name = self.name or os.environ["WANDB_NAME"]
        if self.run is None:
            self.run = SimpleNamespace(name=self.name, points=[], exit_code=None)
            self.runs.append(self.run)
        return self.run

    def finish(self, exit_code=None):
        if self.run is not None:
            self.run.exit_code = exit_code
        self.run = None

    def teardown(self):
        self.name = None


def test_each_trial_has_a_run_of_its_own(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", wandb := LikeWandb())
    monkeypatch.delenv("WANDB_NAME", raising=False)

    def train(trial):
        for epoch in trial.epochs():
            wandb.init().points.append(epoch)
            trial.report(val_error=1.0)
        if trial.number == 1:
            raise ValueError("the user's own")

    trained(train, 0, WANDB_NAME="trial 0")
    with pytest.raises(TaskError, match="the user's own"):
        trained(train, 1, WANDB_NAME="trial 1")
    found = [(one.name, one.points, one.exit_code) for one in wandb.runs]
    assert found == [("trial 0", [1, 2], 0), ("trial 1", [1, 2], 1)]


@pytest.mark.large
def test_wandb_itself_makes_a_run_of_each_trial(tmp_path, monkeypatch):
    if WANDB not in os.environ:
        pytest.skip(f"{WANDB} names no folder with the package wandb")
    monkeypatch.syspath_prepend(os.environ[WANDB])
    import wandb  # type: ignore[import-not-found]

    named = []

    def train(trial):
        run = wandb.init(dir=str(tmp_path), mode="offline")
        named.append((run.name, run.group))
        for epoch in trial.epochs():
            run.log({"loss": 1 / epoch})
            trial.report(val_error=1.0)

    for number in range(3):
        trained(train, number, WANDB_NAME=f"trial {number}", WANDB_RUN_GROUP="mine")
    assert named == [(f"trial {number}", "mine") for number in range(3)]
    assert len(list(Path(tmp_path).glob("wandb/offline-run-*"))) == 3
