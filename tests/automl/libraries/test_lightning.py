"""A Lightning module as a trial, in real ranks."""

import pytest
import torch

from tests.support import optional
from tests.support.function_trials import in_attempts, trained
from tests.support.library_trials import gang_is_usable, serve_one_trial_after_another, spec_of, with_equal_bits
from trainers.functions.trial import Trial
from trainers.loop.step_counter import StepCounter
from trainers.protocol import TaskError
from trainers.ranks.process_group import Group
from trainers.trial_settings import settings_of

optional.installed("lightning")
pytestmark = pytest.mark.filterwarnings("default")  # what Lightning warns of is its own


@pytest.mark.large
def test_a_trial_that_is_paused_after_each_epoch_ends_with_the_bits_of_one_that_is_not(ranks, tmp_path):
    spec = spec_of("by_lightning", 2, task_options={"precision": "bf16-mixed"}, checkpoint_folder=str(tmp_path))
    whole, paused = with_equal_bits(ranks, spec)
    seen = [one.metrics for one in paused]
    for metric in ("val_error", "train_loss"):
        assert [one[metric] for one in seen] == [one.metrics[metric] for one in whole]
    assert seen[0]["model_parameters"] == 4 * 8 + 8 + 8 + 8 + 8 * 3 + 3


@pytest.mark.medium
def test_a_data_loader_with_worker_processes_goes_on_with_the_same_order(tmp_path):
    spec = spec_of("by_lightning", task_options={"workers": 2}, checkpoint_folder=str(tmp_path))
    whole = trained(Group(), spec)["measurements"]
    seen = [one["measurements"][0].metrics["train_loss"] for one in in_attempts(None, spec)]
    assert seen == [one.metrics["train_loss"] for one in whole]


@pytest.mark.medium
def test_one_rank_goes_on_with_the_same_bits_and_metrics_are_reported_for_the_epochs_that_have_logged_them(tmp_path):
    whole, paused = with_equal_bits(None, spec_of("by_lightning", checkpoint_folder=str(tmp_path)))
    assert [one.metrics.get("of_every_second_epoch") for one in whole] == [0.0, None, 2.0]
    assert [one.metrics.keys() for one in paused] == [one.metrics.keys() for one in whole]


def test_loaders_of_the_trial_go_on_with_the_same_bits_and_ranks_serve_one_trial_after_another(ranks, tmp_path):
    spec = spec_of("by_lightning", 2, task_options={"loaders": "the trial's"}, checkpoint_folder=str(tmp_path))
    whole, _ = with_equal_bits(ranks, spec)
    for one in whole:
        assert one.metrics["seen"] == 29
        assert one.metrics["exact_error"] == pytest.approx(one.metrics["wrong"] / 29)
        # Lightning takes the mean number of samples of a rank for a whole number, here 14 for 14.5: not exact.
        assert one.metrics["val_error"] == pytest.approx(one.metrics["wrong"] / 29, rel=0.05)
    # A trial that is cut, one that fails, and wider and narrower ones: Lightning remembers ranks in globals.
    ends = [(2, 1, ""), (1, 1, ""), (2, None, "raises"), (2, 1, "tests"), (1, None, "")]
    serve_one_trial_after_another(ranks, "by_lightning", ends)
    assert all(ranks.run(2, gang_is_usable, spec_of("by_lightning", 2))), "Lightning neither forms nor leaves the group"


@pytest.mark.parametrize(("visible", "device"), [(1, 0), (2, 1)], ids=["a study's rank", "automl train"])
def test_ranks_on_gpus_see_as_many_as_they_do(monkeypatch, visible, device):
    """A rank of a study sees one GPU; ranks of `automl train` see all, and share them where there are too few."""
    import lightning

    from automl.libraries import lightning as trial_lightning

    for name, answer in (("is_available", True), ("device_count", visible), ("get_device_capability", (8, 0))):
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    spec, group = spec_of("by_lightning", 3), Group(rank=1, world_size=3, device=torch.device("cuda", device))
    trial = Trial(spec, settings_of(spec), group, learning_rate=0.05, counter=StepCounter())
    trainer = lightning.Trainer(**trial_lightning.options(trial))
    assert (trainer.world_size, trainer.global_rank, trainer.strategy.root_device) == (3, 1, trial.device)
    assert trainer.distributed_sampler_kwargs == {"num_replicas": 3, "rank": 1}


def test_a_module_that_has_enough_ends_its_trial():
    done = trained(Group(), spec_of("by_lightning", task_options={"fault": "has enough"}))
    assert [(one.epoch, one.complete) for one in done["measurements"]] == [(1, True)]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("path", "the trial chooses the checkpoint"),
        ("logs nothing", "epoch 1: Lightning's self.log measured nothing"),
        ("raises", "the user's own mistake"),
    ],
)
def test_what_is_wrong_is_said(fault, words):
    with pytest.raises(TaskError, match=words):
        trained(Group(), spec_of("by_lightning", task_options={"fault": fault}))


def test_a_trainer_with_other_ranks_is_refused(ranks):
    for one in ranks.run(2, trained, spec_of("by_lightning", 2, task_options={"fault": "other ranks"})):
        assert "lightning.Trainer has rank 0 of 1" in str(one)
