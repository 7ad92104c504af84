"""Weights of residual networks from a file: which they are, that they are used, and files that are refused."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.task_files import metrics_of, trained
from tests.trainers.tasks.test_vision import image_folder
from trainers.contract.task_loading import TaskLoadError, load_task
from trainers.local.try_out_task import probe
from trainers.model.network import count
from trainers.protocol import TaskError
from trainers.tasks.pictures.picture_networks import Layout, ResidualBody, fill, layout_of
from trainers.tasks.vision import Vision

PUBLISHED = {
    18: ((2, 2, 2, 2), False, 11_689_512), 34: ((3, 4, 6, 3), False, 21_797_672), 50: ((3, 4, 6, 3), True, 25_557_032),
    101: ((3, 4, 23, 3), True, 44_549_160), 152: ((3, 8, 36, 3), True, 60_192_808),
}  # fmt: skip
"""Blocks, whether they have bottlenecks, and parameters with the head of 1,000 classes, as torchvision lists them."""


def small(classes: int = 5, *, has_bottlenecks: bool = False) -> dict[str, torch.Tensor]:
    """Weights of one block in each stage, drawn anew at each call."""
    layout = Layout(blocks=(1, 1, 1, 1), has_bottlenecks=has_bottlenecks, width=64, classes=classes)
    body, head = ResidualBody(layout), nn.Linear(layout.features, classes)
    return {**body.state_dict(), **{f"fc.{name}": value for name, value in head.state_dict().items()}}


@pytest.fixture
def file(tmp_path: Path) -> str:
    torch.manual_seed(0)
    torch.save(small(), tmp_path / "weights.pth")
    return str(tmp_path / "weights.pth")


@pytest.mark.parametrize("layers", PUBLISHED)
def test_networks_have_the_parameters_that_are_published(layers: int) -> None:
    blocks, has_bottlenecks, parameters = PUBLISHED[layers]
    layout = Layout(blocks=blocks, has_bottlenecks=has_bottlenecks, width=64, classes=1000)
    assert layout.layers == layers
    with torch.device("meta"):
        body = ResidualBody(layout)
        head = nn.Linear(layout.features, 1000)
        weights = {**body.state_dict(), "fc.weight": head.weight, "fc.bias": head.bias}
    assert sum(one.numel() for module in (body, head) for one in module.parameters()) == parameters
    assert layout_of(weights, "a file") == layout


def test_normalisation_is_batch_norm_with_the_statistics_of_the_file() -> None:
    weights = small()
    body = ResidualBody(layout_of(weights, "a file"))
    body.load_state_dict({name: value for name, value in weights.items() if not name.startswith("fc")})
    norm: Any = body.bn1
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    theirs = nn.BatchNorm2d(64)
    theirs.load_state_dict(norm.state_dict())
    values = torch.randn(3, 64, 4, 4)
    assert torch.allclose(body.train().bn1(values), theirs.eval()(values), atol=1e-5)  # type: ignore[operator]


@pytest.mark.parametrize(("ending", "has_bottlenecks"), [("pt", True), ("safetensors", False)])
def test_the_body_is_the_files_and_the_head_too_if_it_has_as_many_classes(folder, tmp_path, ending, has_bottlenecks):
    path = str(tmp_path / f"weights.{ending}")
    for classes in (2, 5):
        weights = small(classes, has_bottlenecks=has_bottlenecks)
        if ending == "pt":
            torch.save({"state_dict": {f"module.{name}": value for name, value in weights.items()}}, path)
        else:
            from safetensors.torch import save_file

            save_file(weights, path)
        model = Vision(str(folder), checkpoint=path).model({})
        found = model.state_dict()
        assert torch.equal(found["body.layer3.0.conv2.weight"], weights["layer3.0.conv2.weight"])
        assert found["head.1.weight"].shape == (2, 2048 if has_bottlenecks else 512)
        assert (classes == 2) == torch.equal(found["head.1.bias"], weights["fc.bias"][:2])


@pytest.mark.medium
def test_it_is_fine_tuned_and_keeps_its_statistics(folder: Path, file: str) -> None:
    options = {"train": str(folder), "checkpoint": file}
    params = {"optimizer": "adamw", "learning_rate": 1e-3, "batch_per_rank": 32, "mixup": 0.2}
    task, trainer = trained("vision", options, params, 5)
    assert metrics_of(task, trainer, "validation")["val_accuracy"] > 0.8
    now, then = trainer.module.state_dict(), torch.load(file, weights_only=True)
    assert torch.equal(now["body.layer1.0.bn1.running_mean"], then["layer1.0.bn1.running_mean"])
    assert not torch.equal(now["body.layer1.0.bn1.weight"], then["layer1.0.bn1.weight"])
    assert "channels" not in task.space()  # type: ignore[attr-defined]
    assert any("10 layers" in line for line in task.describe())  # type: ignore[attr-defined]


def test_folders_of_images_have_a_size_that_suits_and_the_probe_finds_nothing_wrong(tmp_path: Path, file: str) -> None:
    path = str(image_folder(tmp_path / "images", side=40))
    assert Vision(path, checkpoint=file).train_data({})[0].shape[1:] == (3, 128, 128)
    task = Vision(path, checkpoint=file, size=48)
    assert task.train_data({})[0].shape[1:] == (3, 48, 48)
    probe(task, {"learning_rate": 0.01, "batch_per_rank": 8}, {"epochs": 1}, ["val_error"])
    (row,) = count(task, [{"mixup": 0.5}], {"epochs": 1})
    assert row["model_parameters"] == sum(one.numel() for one in task.model({}).parameters())
    assert row["flops_per_sample"] > 0


class Hostile:
    """What runs when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path(self.path),))


def _without(name: str) -> dict[str, torch.Tensor]:
    return {key: value for key, value in small().items() if key != name}


BAD: dict[str, tuple[Any, str]] = {
    "another network": ({"encoder.weight": torch.zeros(2)}, r"found weights of another network, such as 'encoder\.wei"),
    "nothing": ({}, "found no weights"),
    "numbers": ({"layer1.0.conv1.weight": 1}, "found no mapping of names to tensors"),
    "a list": ([torch.zeros(1)], "found no mapping of names to tensors"),
    "a tensor that is missing": (
        _without("bn1.bias"),
        r"found no 'bn1\.bias', but 10 layers need a tensor of shape \[64\]",
    ),
    "a tensor too many": (
        small() | {"extra": torch.zeros(1)},
        r"found 'extra' \[1\], but 10 layers need no such tensor",
    ),
    "another shape": (
        small() | {"conv1.weight": torch.zeros(64, 1, 7, 7)},
        r"found 'conv1\.weight' \[64, 1, 7, 7\], but 10 layers need a tensor of shape \[64, 3, 7, 7\]",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_other_files_are_one_line(folder: Path, tmp_path: Path, what: str) -> None:
    content, message = BAD[what]
    path = tmp_path / "bad.pt"
    torch.save(content, path)
    with pytest.raises(TaskError, match=rf"^task_options\.checkpoint: .*bad\.pt: {message}") as caught:
        Vision(str(folder), checkpoint=str(path))
    assert "\n" not in str(caught.value)


def test_code_in_a_file_is_not_run(folder: Path, tmp_path: Path) -> None:
    trap = tmp_path / "it ran"
    for name, write in (("zip.pt", torch.save), ("plain.pth", lambda one, path: path.write_bytes(pickle.dumps(one)))):
        write({"conv1.weight": Hostile(str(trap))}, tmp_path / name)
        with pytest.raises(
            TaskLoadError, match=r"found an object that is not a tensor, and may run code .*, allowed: wei"
        ) as caught:
            load_task("vision", {"train": str(folder), "checkpoint": str(tmp_path / name)})
        assert "\n" not in str(caught.value)
        assert not trap.exists()


@pytest.mark.parametrize("name", ["bad.pt", "bad.safetensors"])
def test_damaged_and_missing_files(folder: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for content, message in ((None, "found no such file"), (b"PK\3\4 and no more", "found ")):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(
            TaskError, match=rf"^task_options\.checkpoint: .*{name}: {message}.*, allowed: weig"
        ) as caught:
            Vision(str(folder), checkpoint=str(path))
        assert "\n" not in str(caught.value)


def test_a_file_that_becomes_another_network_is_named_and_a_model_without_values_reads_none(folder, file):
    task = Vision(str(folder), checkpoint=file)
    torch.save({"a": torch.zeros(1)}, file)
    with pytest.raises(TaskError, match=r"^task_options\.checkpoint: .* found weights of another network"):
        task.model({})
    with torch.device("meta"):
        body = ResidualBody(layout_of(small(), "a file"))
        fill(body, nn.Linear(512, 2), "/there/is/none")
