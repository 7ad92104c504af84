"""Mixup of images: what is drawn, what is mixed, and that ranks and pauses change nothing."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import betaincinv
from torch.nn.functional import cross_entropy

from tests.support.task_files import metrics_of, trained
from tests.trainers.tasks.test_vision import (
    PARAMS,
    bars,
    check_two_ranks_and_a_resumed_trial,
    folder,  # noqa: F401 - a fixture
)
from trainers.protocol import TaskError
from trainers.tasks.pictures.augmentation import Mixup, Partners, beta_quantiles, mixed_loss
from trainers.tasks.vision import Vision

N = 200


@pytest.fixture
def partners() -> Partners:
    pixels, labels = bars(N)
    return Partners(torch.from_numpy(pixels)[:, None], torch.from_numpy(labels).long())


def test_partners_are_training_images_with_their_classes_and_shares_are_of_the_beta_distribution(partners) -> None:
    mixup = Mixup(0.4, partners, 2)
    mixup.set_epoch_seed(3)
    others, shares, counts = mixup.draw(partners.pixels)
    assert others.dtype == torch.uint8
    places = [int((partners.pixels == one).flatten(1).all(1).nonzero()[0]) for one in others]
    assert len(set(places)) > N / 2  # of all images, and not of a few
    kept = 1 - shares[:, 0, 0, 0]
    expected = torch.zeros(N, 2)
    expected[torch.arange(N), partners.labels[places]] = kept
    assert torch.allclose(counts, expected)
    assert kept.mean().item() == pytest.approx(0.5, abs=0.1)
    assert kept.var().item() == pytest.approx(1 / (4 * (2 * 0.4 + 1)), rel=0.2)


@pytest.mark.parametrize("alpha", [0.001, 0.1, 0.5, 1.0, 2.5, 10.0])
def test_shares_are_quantiles_of_the_beta_distribution(alpha: float) -> None:
    found = beta_quantiles(alpha, 512)
    assert np.allclose(found, betaincinv(alpha, alpha, (np.arange(512) + 0.5) / 512), atol=1e-4)


def test_an_image_is_mixed_alike_in_any_batch_and_the_loss_is_that_of_both_classes(partners: Partners) -> None:
    mixup = Mixup(1.0, partners, 2)
    mixup.set_epoch_seed(3)
    whole = mixup.draw(partners.pixels)
    part = mixup.draw(partners.pixels[7:30])
    assert all(torch.equal(one[7:30], other) for one, other in zip(whole, part, strict=True))
    mixup.set_epoch_seed(4)
    assert not torch.equal(mixup.draw(partners.pixels)[1], whole[1])
    logits, targets = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    others, kept = torch.tensor([2, 1, 0, 0, 2]), torch.tensor([1.0, 0.3, 0.5, 0.2, 0.0])
    counts = torch.zeros(5, 3)
    counts[torch.arange(5), others] = 1 - kept
    for smoothing in (0.0, 0.1):
        first, second = (
            cross_entropy(logits, one, reduction="none", label_smoothing=smoothing) for one in (targets, others)
        )
        found = mixed_loss(torch.stack([logits, counts], dim=1), targets, smoothing)
        assert torch.allclose(found, kept * first + (1 - kept) * second, atol=1e-6)


def test_mixup_is_for_training_only_and_can_be_learned_from(folder: Path) -> None:  # noqa: F811 - a fixture
    task = Vision(str(folder))
    torch.manual_seed(0)
    plain = task.model(PARAMS)
    torch.manual_seed(0)
    mixed: Any = task.model({**PARAMS, "mixup": 0.5})
    assert plain.state_dict().keys() == mixed.state_dict().keys()
    rows, targets = (one[:20] for one in task.train_data({}))
    outputs = mixed(rows)
    assert outputs.shape == (20, 2, 2)
    assert task.loss(outputs, targets).shape == task.smoothed_loss(outputs, targets, 0.1).shape == (20,)
    assert torch.equal(mixed.eval()(rows), plain.eval()(rows))
    assert copy.deepcopy(mixed).mixup._partners is mixed.mixup._partners  # the data are there once
    task, trainer = trained("vision", {"train": str(folder)}, {**PARAMS, "mixup": 0.3, "label_smoothing": 0.05}, 8)
    assert metrics_of(task, trainer, "validation")["val_accuracy"] > 0.9


@pytest.mark.parametrize("value", [-0.1, 11, True, "much"])
def test_another_value_is_one_line(folder: Path, value: object) -> None:  # noqa: F811 - a fixture
    with pytest.raises(TaskError, match=r"^mixup: found .*, allowed: a number from 0 to 10$"):
        Vision(str(folder)).model({"mixup": value})  # type: ignore[dict-item]


def test_two_ranks_and_a_resumed_trial_mix_as_one_rank_does(
    folder: Path,  # noqa: F811 - a fixture
    tmp_path: Path,
    ranks: Any,
) -> None:
    check_two_ranks_and_a_resumed_trial(folder, tmp_path, ranks, {"shift": 1, "mixup": 0.8})
