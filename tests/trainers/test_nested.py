"""Batches and outputs in containers of any class, and batches that a task's own `collate` makes."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import Dataset, IterableDataset
from torchmetrics import Metric

from tests.support import optional
from tests.support.trainer_pool import Blobs, run_trial, spec_of
from trainers.contract.task_loading import load_task
from trainers.data.nested_tensors import in_single_precision, to_device
from trainers.data.samples import DatasetSamples, load_samples
from trainers.loop.trainer import Trainer
from trainers.protocol import TaskError
from trainers.ranks.process_group import Group

CPU = torch.device("cpu")
Named = namedtuple("Named", ["logits", "name"])


class OwnDict(dict):
    """A dict with a method, as encodings of texts have it."""


class Output(OrderedDict):
    """As Hugging Face's outputs, but not registered with torch: an item is an attribute, too."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


def output(logits: torch.Tensor) -> Output:
    made = Output()
    made["logits"] = logits
    return made


CONTAINERS: dict[str, Any] = {
    "dict": lambda logits: {"logits": logits}, "subclass of dict": lambda logits: OwnDict(logits=logits),
    "UserDict": lambda logits: UserDict(logits=logits), "output": output,
    "named tuple": lambda logits: Named(logits, "name"), "nested": lambda logits: {"inside": [OwnDict(logits=logits)]},
}  # fmt: skip


def logits_of(value: Any) -> Any:
    if isinstance(value, Named):
        return value.logits
    return logits_of(value["inside"][0]) if "inside" in value else value["logits"]


@pytest.mark.parametrize("name", CONTAINERS)
def test_tensors_in_containers_are_reached_and_the_containers_keep_their_class(name: str) -> None:
    half = CONTAINERS[name](torch.ones(3, 2, dtype=torch.bfloat16))
    for change, dtype in (
        (in_single_precision, torch.float32),
        (lambda value: to_device(value, torch.device("meta")), torch.bfloat16),
    ):
        changed = change(half)
        assert type(changed) is type(half)
        assert logits_of(changed).dtype == dtype
    assert to_device(half, torch.device("meta")) is not half
    if name == "output":
        assert in_single_precision(half).logits.dtype == torch.float32, "the attribute, too"
    if name == "named tuple":
        assert in_single_precision(half).name == "name"


def test_what_moves_itself_and_outputs_of_hugging_face_are_reached_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    meta = torch.device("meta")
    inside = {"graph": Graph(CPU), "texts": ["a"], "own": OwnDict(graphs=[Graph(CPU)])}
    graph, (packed, moved) = to_device((Graph(CPU), [pack_sequence([torch.ones(3), torch.ones(2)]), inside]), meta)
    assert {graph.device, moved["graph"].device, moved["own"]["graphs"][0].device, packed.data.device} == {meta}
    assert (packed.batch_sizes.tolist(), moved["texts"]) == ([2, 2, 1], ["a"])
    # A copy from a GPU that goes on while the host does would be read too early.
    waits: list[bool] = []
    monkeypatch.setattr(torch.Tensor, "to", lambda self, _, non_blocking: waits.append(not non_blocking) or self)
    to_device([torch.ones(1)], CPU)
    to_device([torch.ones(1)], torch.device("cuda"))
    assert waits == [True, False]
    monkeypatch.undo()
    outputs: Any = optional.module("transformers.modeling_outputs")
    half = outputs.SequenceClassifierOutput(logits=torch.ones(2, dtype=torch.bfloat16))
    whole = in_single_precision(half)
    assert type(whole) is type(half)
    assert whole.logits.dtype == whole["logits"].dtype == torch.float32


class Graph:
    """What has tensors and moves itself, as graphs of PyTorch Geometric do."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def to(self, device: torch.device) -> Graph:
        return Graph(device)


class Mappings(Dataset):
    def __init__(self, task: Blobs, make: Any) -> None:
        self._inputs, self._targets = Blobs.train_data(task, {})
        self._make = make

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, index: int) -> Any:
        return self._make(self._inputs[index]), self._targets[index]


class InContainers(nn.Module):
    def __init__(self, inside: nn.Module, make: Any) -> None:
        super().__init__()
        self.inside, self._make = inside, make

    def forward(self, inputs: Any) -> Any:
        return self._make(self.inside(logits_of(inputs)))


@pytest.mark.parametrize("name", CONTAINERS)
def test_batches_and_outputs_in_containers_train_in_bf16(name: str) -> None:
    make = CONTAINERS[name]

    class Contained(Blobs):
        def train_data(self, params: Any) -> Any:
            return Mappings(self, make)

        validation_data = train_data

        def model(self, params: Any) -> nn.Module:
            return InContainers(super().model(params), make)

        def loss(self, outputs: Any, targets: Any) -> Any:
            assert type(outputs) is type(make(torch.zeros(1)))
            assert logits_of(outputs).dtype == torch.float32
            return super().loss(logits_of(outputs), targets)

        def metrics(self, outputs: Any, targets: Any) -> Any:
            return super().metrics(logits_of(outputs), targets)

    training = {"precision": "bf16", "epochs": 1}
    (one,) = Trainer(spec_of(training=training), Contained(dtype="float32"), group=Group()).advance(1)
    plain = run_trial(Group(), spec_of(training=training, options={"dtype": "float32"}))["measurements"][0]
    assert one.metrics["train_loss"] == plain.metrics["train_loss"]


@dataclass
class Numbers(IterableDataset):
    says: int

    def __len__(self) -> int:
        return self.says

    def __iter__(self) -> Any:
        return ((torch.tensor([float(number)]), number) for number in range(5))


class Iterated(Blobs):
    def __init__(self, says: int) -> None:
        super().__init__()
        self.says = says

    def train_data(self, params: Any) -> Any:
        return Numbers(self.says)


def test_an_iterable_dataset_with_a_length_is_read_once_and_shuffled_like_others() -> None:
    samples = load_samples(Iterated(5), "train", {}, CPU)
    assert isinstance(samples, DatasetSamples)
    ((inputs, targets),) = samples.batches([torch.tensor([3, 1])])
    assert (inputs.flatten().tolist(), targets.tolist()) == ([3.0, 1.0], [3, 1])
    with pytest.raises(TaskError, match="train_data: yields 5 samples, but its length is 7"):
        load_samples(Iterated(7), "train", {}, CPU)


TASK = "tests.trainers.test_nested:Boxes"


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


@pytest.mark.large
@pytest.mark.parametrize(
    ("world_size", "options", "training"),
    [
        (1, {}, {"data_workers": 1}), (2, {}, {}),
        (2, {"kind": "stream"}, {"schedule": "constant", "warmup_epochs": 0}),
    ],
)  # fmt: skip
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
