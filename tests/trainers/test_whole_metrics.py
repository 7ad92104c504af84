"""Metrics that are no means over samples: on 1, 2 and 4 ranks with uneven shares as scikit-learn's on all samples."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAUROC, MulticlassF1Score

from tests.support.trainer_pool import Blobs, run_trial, spec_of
from trainers.ddp import Group
from trainers.evaluate import evaluate
from trainers.protocol import TaskError
from trainers.task import load_task

TASK = "tests.trainers.test_whole_metrics:Scored"


class Largest:
    """The largest output, by hand."""

    def __init__(self):
        self.value = float("-inf")

    def update(self, outputs, _targets):
        self.value = max(self.value, outputs.max().item())

    def merge_state(self, other):
        self.value = max(self.value, other.value)

    def compute(self):
        return self.value


class OfBatches(Metric):
    """Cannot be merged, since its updates look at the whole state."""

    full_state_update = True

    def update(self, outputs, targets):
        pass

    def compute(self):
        return torch.tensor(0.0)


class Scored(Blobs):
    def __init__(self, which="good", **options):
        super().__init__(**options)
        self.which = which

    def whole_metrics(self, _params):
        return {
            "good": lambda: {
                "val_f1": MulticlassF1Score(3, average="macro"),
                "val_auroc": MulticlassAUROC(3),
                "val_largest": Largest(),
            },
            "list": lambda: [Largest()],
            "object": lambda: {"val_f1": object()},
            "ours": lambda: {"val_loss": Largest()},
            "unmergeable": lambda: {"val_odd": OfBatches()},
            "vector": lambda: {"val_f1": MulticlassF1Score(3, average="none")},
        }[self.which]()  # fmt: skip


def scored(world_size=1, *, n_validation=31, which="good", training=None):
    options = {"n": 53, "n_validation": n_validation, "which": which}
    return replace(spec_of(world_size, options=options, training=training), task=TASK)


def trained(ranks, spec):
    return run_trial(Group(), spec) if spec.world_size == 1 else ranks.run(spec.world_size, run_trial, spec)[0]


@pytest.mark.parametrize("n_validation", [31, 3])
@pytest.mark.parametrize(("world_size", "training"), [(1, {}), (2, {}), (4, {}), (2, {"shard": "full"})])
def test_f1_and_auroc_are_those_of_the_whole_part(ranks, world_size, training, n_validation):
    spec = scored(world_size, n_validation=n_validation, training=training)
    done = trained(ranks, spec)
    task = load_task(TASK, spec.task_options)
    model = task.model({})
    model.load_state_dict(done["weights"])
    model.eval()
    inputs, targets = task.validation_data({})
    with torch.no_grad():
        outputs = model(inputs)
    metrics = done["measurements"][-1].metrics
    assert metrics["val_f1"] == pytest.approx(f1_score(targets, outputs.argmax(dim=1), average="macro"), abs=1e-6)
    auroc = roc_auc_score(targets, outputs.softmax(dim=1), multi_class="ovr", average="macro")
    assert metrics["val_auroc"] == pytest.approx(auroc, abs=1e-6)
    assert metrics["val_largest"] == pytest.approx(outputs.max().item())
    assert evaluate(model, task, {})["val_auroc"] == pytest.approx(auroc, abs=1e-6)


@pytest.mark.parametrize(
    ("which", "world_size", "words"),
    [
        ("list", 1, "whole_metrics: found a list, allowed: a mapping"),
        ("object", 1, "'val_f1' lacks update, compute, merge_state"),
        ("ours", 1, "found 'val_loss', allowed: any other name"),
        ("vector", 1, "'val_f1' computes a Tensor, allowed: one number"),
        ("unmergeable", 2, "'val_odd' cannot be merged"),
    ],
)
def test_what_is_no_such_metric_is_refused_in_one_line(ranks, which, world_size, words):
    spec = scored(world_size, which=which)
    if world_size == 1:
        with pytest.raises(TaskError) as refused:
            run_trial(Group(), spec)
        said = str(refused.value)
    else:
        said = str(trained(ranks, spec))
    assert words in said
