"""Programs that log their metrics to TensorBoard or Weights & Biases, as trials that wait at each epoch."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.command_trials import Grants, run, script, spec_of
from trainers.protocol import TaskError

pytestmark = pytest.mark.medium

BOARD = """
    from tensorboardX import SummaryWriter
    with SummaryWriter("board") as writer:
        for step in range(50, 450, 50):
            writer.add_scalar("loss", 1 / step, step)
            writer.add_scalar("val/error", 10 / step, step)
            if step % 100 == 0:
                writer.add_scalar("val/loss", 100 / step, step)
    open("finished", "w").close()
"""
RUN = """
class Run:
    def log(self, data, step=None, commit=None):
        with open("logged", "a") as file:
            file.write(f"{data}\\\\n")
"""
LOGS = """
    import os, pathlib, wandb
    run = wandb.init()
    folder = pathlib.Path(os.environ["AUTOML_CHECKPOINT_FOLDER"])
    done = int((folder / "done").read_text()) if (folder / "done").exists() else 0
    for epoch in range(done, 4):
        (folder / "done").write_text(str(epoch + 1))
        run.log({"train_loss": 9.0})
        run.log({"val_loss": 1 / (epoch + 1), "epoch": epoch}, step=100 * epoch)
"""


BOTH = """
    import wandb
    from tensorboardX import SummaryWriter
    run = wandb.init()
    with SummaryWriter("board") as writer:
        for epoch in range(4):
            writer.add_scalar("val_loss", 9.0, epoch)
            run.log({"val_loss": epoch})
"""


@pytest.fixture
def wandb(tmp_path: Path) -> None:
    """Stands in for the package, which loads the class of its runs from this module."""
    (tmp_path / "wandb" / "sdk").mkdir(parents=True)
    (tmp_path / "wandb" / "sdk" / "wandb_run.py").write_text(RUN.replace("\\\\", "\\"))
    (tmp_path / "wandb" / "sdk" / "__init__.py").touch()
    (tmp_path / "wandb" / "__init__.py").write_text("from wandb.sdk.wandb_run import Run as init\n")


@pytest.mark.parametrize("preload", [[], ["tensorboardX"]], ids=["cold", "warm"])
def test_an_epoch_is_complete_once_each_name_was_logged_and_a_trial_that_is_over_logs_no_more(tmp_path, preload):
    script(tmp_path, BOARD)
    spec = spec_of(tmp_path, {"metrics": {"tensorboard": ["val/loss", "val/error"]}, "preload": preload})
    grants = run(spec)
    assert grants.epochs == [1, 2, 3, 4]
    assert [one.metrics for one in grants.measurements] == [
        {"val_loss": 100 / step, "val_error": 10 / step} for step in (100, 200, 300, 400)
    ]
    assert all(one.checkpoint is None for one in grants.measurements), "files of an unnumbered epoch cannot be resumed"
    (tmp_path / "finished").unlink()
    assert run(spec, Grants(until=2)).epochs == [1, 2]
    assert not (tmp_path / "finished").exists()


@pytest.mark.usefixtures("wandb")
def test_numbered_epochs_resume_from_the_folder_and_are_logged_as_well(tmp_path):
    script(tmp_path, LOGS)
    spec = spec_of(tmp_path, {"metrics": {"wandb": ["val_loss"]}, "epoch_from": "epoch + 1"})
    first = run(spec, Grants(until=2))
    assert (first.epochs, first.measurements[1].metrics) == ([1, 2], {"val_loss": 0.5})
    second = run(replace(spec, attempt=2, resume_from=first.measurements[-1].checkpoint))
    assert second.epochs == [3, 4]
    assert len((tmp_path / "logged").read_text().splitlines()) == 8
    script(
        tmp_path, LOGS.replace(', "epoch": epoch}, step', "}, step").replace('{"train_loss": 9.0}', '{"epoch": epoch}')
    )
    assert run(spec).epochs == [1, 2, 3, 4], "the number may be logged in an earlier call"
    steps = run(spec_of(tmp_path, {"metrics": {"wandb": ["val_loss"]}, "epoch_from": "step // 100 + 1"}))
    assert steps.epochs == [1, 2, 3, 4], "W&B's step counts where no value has the name"


@pytest.mark.usefixtures("wandb")
def test_only_the_named_logger_counts_in_a_program_that_has_both(tmp_path):
    script(tmp_path, BOTH)
    grants = run(spec_of(tmp_path, {"metrics": {"wandb": ["val_loss"]}}))
    assert [one.metrics["val_loss"] for one in grants.measurements] == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.usefixtures("wandb")
def test_a_name_that_is_never_logged_is_in_the_error_and_a_hidden_sitecustomize_is_imported(tmp_path):
    script(tmp_path, LOGS)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("open('customized', 'w').close()")
    options = {"metrics": {"wandb": ["val_eror"]}, "environment": {"PYTHONPATH": str(tmp_path / "own")}}
    with pytest.raises(TaskError, match="values of val_eror for each epoch, which a Python program logs") as caught:
        run(spec_of(tmp_path, options))
    assert "not logged to wandb: val_eror; logged: train_loss, val_loss, epoch" in str(caught.value)
    assert (tmp_path / "customized").exists()


@pytest.mark.parametrize("times", [2, 5])
def test_values_that_are_logged_after_the_last_epoch_are_no_epoch(tmp_path, times):
    """A test at the end often logs the name of the validation metric; a program that trains on is ended."""
    script(
        tmp_path,
        BOARD.replace(
            '    open("fin', f'        for _ in range({times}): writer.add_scalar("val/loss", 9.0, 50)\n    open("fin'
        ),
    )
    assert run(spec_of(tmp_path, {"metrics": {"tensorboard": ["val/loss"]}})).epochs == [1, 2, 3, 4]
    assert (tmp_path / "finished").exists() == (times == 2)


def test_only_names_that_are_missing_are_named_and_an_exception_comes_first(tmp_path):
    options = {"metrics": {"tensorboard": ["val/loss", "val/acc"]}}
    script(tmp_path, BOARD)
    with pytest.raises(TaskError, match="not logged to tensorboard: val/acc; logged: loss, val/error, val/loss"):
        run(spec_of(tmp_path, options))
    script(tmp_path, f"{BOARD}    raise ValueError('the file has no column y')")
    with pytest.raises(TaskError, match=r"ended with exit status 1 .*: ValueError: the file has no column y"):
        run(spec_of(tmp_path, options))
