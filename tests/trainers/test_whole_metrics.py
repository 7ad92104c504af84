"""Metrics that are no means over samples: on 1, 2 and 4 ranks with uneven shares as scikit-learn's on all samples."""

from dataclasses import replace

import pytest
import torch
from sklearn.metrics import f1_score, recall_score, roc_auc_score
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAUROC, MulticlassF1Score, MulticlassRecall
from torchmetrics.regression import PearsonCorrCoef

from tests.support.trainer_pool import Blobs, on_ranks, run_trial, spec_of
from trainers.contract.task_loading import load_task
from trainers.loop.evaluation import evaluate
from trainers.protocol import TaskError
from trainers.ranks.process_group import Group

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


class Tally(Metric):
    """As users write them: `full_state_update` is not said, so torchmetrics refuses to merge it."""

    outputs: list[torch.Tensor]
    number: torch.Tensor
    largest: torch.Tensor
    spread: torch.Tensor
    scale: torch.Tensor

    def __init__(self):
        super().__init__()
        self.add_state("outputs", default=[], dist_reduce_fx=None)
        self.add_state("number", default=torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("largest", default=torch.tensor(float("-inf"), dtype=torch.float64), dist_reduce_fx="max")
        self.add_state("spread", default=torch.zeros(2), dist_reduce_fx=lambda stacked: stacked.sum(dim=0))
        self.add_state("scale", default=torch.tensor(10.0), dist_reduce_fx="mean")

    def update(self, outputs, targets):
        self.outputs.append(outputs)  # as many rows as the batch has
        self.number += len(targets)
        self.largest = torch.maximum(self.largest, outputs.max())
        self.spread += torch.tensor([1.0, 2.0]) * len(targets)

    def compute(self):
        median = torch.cat(self.outputs).median()
        whole = {"median": median, "number": self.number, "largest": self.largest, "spread": self.spread.sum()}
        return {**whole, "scale": self.scale, "of_columns": torch.cat(self.outputs).mean(dim=0)}


class Counted(Metric):
    """Would be counted once for each rank if `compute` asked the other ranks once more."""

    number: torch.Tensor
    full_state_update = False

    def __init__(self):
        super().__init__()
        self.add_state("number", default=torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, _outputs, targets):
        self.number += len(targets)

    def compute(self):
        return self.number


class Averaged(Metric):
    """Its state is a mean, of which nobody knows over what."""

    average: torch.Tensor

    def __init__(self):
        super().__init__()
        self.add_state("average", default=torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="mean")

    def update(self, outputs, _targets):
        self.average = outputs.mean()

    def compute(self):
        return self.average


class FirstColumn(PearsonCorrCoef):
    def update(self, outputs, targets):
        super().update(outputs[:, 0], targets.to(outputs.dtype))


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
            "states": lambda: {
                "val_tally": Tally(),
                "val_counted": Counted(),
                "val_pearson": FirstColumn().set_dtype(torch.float64),
                "val_some": MetricCollection({"f1": MulticlassF1Score(3), "recall": MulticlassRecall(3)}),
            },
            "mean": lambda: {"val_odd": Averaged()},
            "vector": lambda: {"val_f1": MulticlassF1Score(3, average="none")},
        }[self.which]()  # fmt: skip


def scored(world_size=1, *, n_validation=31, which="good", training=None):
    options = {"n": 53, "n_validation": n_validation, "which": which}
    return replace(spec_of(world_size, options=options, training={"epochs": 1, **(training or {})}), task=TASK)


def trained(ranks, spec):
    return on_ranks(ranks, spec)[0]


def model_of(done, task):
    model = task.model({})
    model.load_state_dict(done["weights"])
    return model.eval()


def outputs_of(done, spec):
    """What the trained model says of the whole validation part, and what is right."""
    task = load_task(TASK, spec.task_options)
    inputs, targets = task.validation_data({})
    with torch.no_grad():
        return model_of(done, task)(inputs), targets


@pytest.mark.parametrize(
    ("world_size", "training", "n_validation"), [(1, {}, 31), (2, {}, 31), (2, {"shard": "full"}, 3)]
)
def test_f1_and_auroc_are_those_of_the_whole_part(ranks, world_size, training, n_validation):
    spec = scored(world_size, n_validation=n_validation, training=training)
    done = trained(ranks, spec)
    outputs, targets = outputs_of(done, spec)
    metrics = done["measurements"][-1].metrics
    assert metrics["val_f1"] == pytest.approx(f1_score(targets, outputs.argmax(dim=1), average="macro"), abs=1e-6)
    auroc = roc_auc_score(targets, outputs.softmax(dim=1), multi_class="ovr", average="macro")
    assert metrics["val_auroc"] == pytest.approx(auroc, abs=1e-6)
    assert metrics["val_largest"] == pytest.approx(outputs.max().item())
    task = load_task(TASK, spec.task_options)
    assert evaluate(model_of(done, task), task, {})["val_auroc"] == pytest.approx(auroc, abs=1e-6)


@pytest.mark.parametrize("n_validation", [31, 1])
def test_states_that_torchmetrics_does_not_merge_are_gathered(ranks, n_validation):
    """With one sample a rank has none."""
    spec = scored(2, n_validation=n_validation, which="states")
    done = trained(ranks, spec)
    outputs, targets = outputs_of(done, spec)
    metrics = done["measurements"][-1].metrics
    tally = {name.removeprefix("val_tally."): metrics[name] for name in metrics if name.startswith("val_tally.")}
    whole = {"median": outputs.median().item(), "number": n_validation, "largest": outputs.max().item()}
    assert tally == pytest.approx({**whole, "spread": 3 * n_validation, "scale": 10})  # a vector is left out
    assert metrics["val_counted"] == n_validation
    if n_validation > 1:  # one sample has no variance
        pearson = torch.corrcoef(torch.stack([outputs[:, 0], targets.double()]))[0, 1].item()
        assert metrics["val_pearson"] == pytest.approx(pearson, abs=1e-6)
    classes, means = outputs.argmax(dim=1), {"average": "macro", "zero_division": 0.0}
    assert metrics["val_some.f1"] == pytest.approx(f1_score(targets, classes, **means), abs=1e-6)
    assert metrics["val_some.recall"] == pytest.approx(recall_score(targets, classes, **means), abs=1e-6)


@pytest.mark.parametrize(
    ("which", "world_size", "words"),
    [
        ("list", 1, "whole_metrics: found a list, allowed: a mapping"),
        ("object", 1, "'val_f1' lacks update, compute, merge_state"),
        ("ours", 1, "every trial has a metric 'val_loss' already"),
        ("vector", 1, "'val_f1' computes a Tensor, allowed: a number"),
        ("mean", 2, "'val_odd' cannot join 'average': dist_reduce_fx='mean' is not the mean of all"),
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
