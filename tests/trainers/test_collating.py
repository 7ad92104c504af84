"""Batches whose samples vary in size, as in detection: a task's own `collate`, on 1, 2 and 4 ranks and in workers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset
from torchmetrics import Metric

from tests.support.trainer_pool import run_trial, spec_of
from trainers.contract.task_loading import load_task
from trainers.protocol import TaskError
from trainers.ranks.process_group import Group

TASK = "tests.trainers.test_collating:Boxes"


def scene(number):
    """An image of its own size, and a box for each object in it."""
    generator = torch.Generator().manual_seed(number)
    size, objects = 3 + number % 4, 1 + number % 3
    return torch.rand(size, generator=generator), torch.rand(objects, 4, generator=generator)


class Scenes(Dataset):
    def __init__(self, number):
        self.number = number

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        return scene(index)


class Stream(IterableDataset):
    def __init__(self, number):
        self.number = number

    def __iter__(self):
        return (scene(number) for number in range(self.number))


class Detector(nn.Module):
    """As many boxes as an image has pixels, less two."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 4)

    def forward(self, images):
        return [self.layer(image[2:, None]) for image in images]


class Found(Metric):
    """What is said of all images together: its states are lists of tensors of any length, as those of mAP are."""

    found: list[torch.Tensor]
    true: list[torch.Tensor]

    def __init__(self):
        super().__init__()
        self.add_state("found", default=[], dist_reduce_fx=None)
        self.add_state("true", default=[], dist_reduce_fx=None)

    def update(self, outputs, targets):
        self.found += outputs
        self.true += targets

    def compute(self):
        near = torch.stack([torch.cdist(*both).min() for both in zip(self.found, self.true, strict=True)])
        return {"median": near.median(), "images": len(self.found), "boxes": sum(len(one) for one in self.true)}


class Boxes:
    parameters = ()

    def __init__(self, kind="dataset", good=True):
        self.kind, self.good = kind, good

    def train_data(self, _params):
        return Scenes(13) if self.kind == "dataset" else Stream(13)

    def validation_data(self, _params):
        return Scenes(11) if self.kind == "dataset" else Stream(11)

    def collate(self, samples):
        images, boxes = zip(*samples, strict=True)
        return (list(images), list(boxes)) if self.good else list(images)

    def model(self, _params):
        return Detector()

    def loss(self, outputs, targets):
        return torch.stack([torch.cdist(*both).min(dim=0).values.mean() for both in zip(outputs, targets, strict=True)])

    def metrics(self, outputs, targets):
        return {"val_distance": self.loss(outputs, targets)}

    def whole_metrics(self, _params):
        return {"val_found": Found()}


def boxes(world_size=1, *, training=None, **options):
    training = {"lr_scaling": "none", "reference_batch": 4, **(training or {})}
    spec = spec_of(world_size, options=options, training=training, params={"batch_per_rank": 4 // world_size})
    return replace(spec, task=TASK, params={**spec.params, "batch_per_rank": 4 // world_size})


@pytest.mark.parametrize(
    ("world_size", "options", "training"),
    [
        (1, {}, {"data_workers": 1}),
        (4, {}, {}),
        (2, {"kind": "stream"}, {"schedule": "constant", "warmup_epochs": 0}),
    ],
)
def test_images_of_any_size_are_trained_on_and_judged_together(ranks, world_size, options, training):
    spec = boxes(world_size, training=training, **options)
    done = run_trial(Group(), spec) if world_size == 1 else ranks.run(world_size, run_trial, spec)[0]
    task = load_task(TASK, options)
    model = task.model({})
    model.load_state_dict(done["weights"])
    metric = Found()
    with torch.no_grad():
        for image, true in (scene(number) for number in range(11)):
            metric.update(model([image]), [true])
    metrics = done["measurements"][-1].metrics
    found = {name.removeprefix("val_found."): metrics[name] for name in metrics if name.startswith("val_found.")}
    assert found == pytest.approx({name: float(value) for name, value in metric.compute().items()})
    assert found["images"] == 11


def test_what_is_no_pair_is_refused_in_one_line():
    with pytest.raises(TaskError, match=r"^collate: found a list, allowed: a pair \(inputs, targets\)$"):
        run_trial(Group(), boxes(good=False))
