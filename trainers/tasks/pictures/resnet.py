"""The residual networks of He et al. 2016 (arXiv 1512.03385), with the names that torchvision gives to their tensors.

Shapes: n images of c channels, height h, width w.

Weights of residual networks from a file, as torchvision has published them.

A file says by its names and shapes which one it holds: 18, 34, 50, 101 or 152 layers, or a wide one (arXiv 1605.07146).
"""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from search_spaces.wording import one_line
from trainers.protocol import TaskError

MEAN, DEVIATION = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
"""Of the images of ImageNet in each colour, from 0 to 255: with them the published weights were trained."""
_HEAD = ("fc.weight", "fc.bias")
_WRAPPED = ("state_dict", "model")
"""Keys below which training programs keep the weights."""
_BLOCK = re.compile(r"layer([1-4])\.(\d{1,3})\.conv1\.weight")
_ALLOWED = "weights of a ResNet (18, 34, 50, 101, 152 layers, or wide) of torchvision, as .pt, .pth or .safetensors"


def read_weights(path: str) -> dict[str, Tensor]:
    """Return the tensors of a file by their names, on the CPU.

    Nothing in the file is run: what is neither a tensor nor a plain value is refused.
    """
    file = Path(path)
    if not file.is_file():
        what = "a folder" if file.is_dir() else "no such file"
        raise TaskError(f"task_options.checkpoint: {path}: found {what}, allowed: {_ALLOWED}")
    try:
        found = _safe_tensors(path) if file.suffix == ".safetensors" else _torch_file(path)
    except pickle.UnpicklingError:
        problem = "found an object that is no tensor, which is code when it is read"
        raise TaskError(f"task_options.checkpoint: {path}: {problem}, allowed: {_ALLOWED}") from None
    except TaskError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a damaged file makes torch raise
        reason = one_line(str(error))[:120]
        raise TaskError(
            f"task_options.checkpoint: {path}: found a damaged file ({reason}), allowed: {_ALLOWED}"
        ) from None
    for key in _WRAPPED:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in found.items()
    ):
        raise TaskError(f"task_options.checkpoint: {path}: found no mapping of names to tensors, allowed: {_ALLOWED}")
    return {name.removeprefix("module."): value for name, value in found.items()}


def layout_of(weights: Mapping[str, Tensor], path: str) -> Layout:
    """Return which network weights are of, after a trial to fill it."""
    blocks = [0] * len(_STAGES)
    for name in weights:
        found = _BLOCK.fullmatch(name)
        if found is not None:
            blocks[int(found[1]) - 1] += 1
    first, head = weights.get("layer1.0.conv1.weight"), weights.get("fc.weight")
    if first is None or first.dim() != 4 or not all(blocks) or sum(blocks) > 100:
        near = next(iter(weights), None)
        said = "no weights" if near is None else f"weights of another network, such as {one_line(near)[:80]!r}"
        raise TaskError(f"task_options.checkpoint: {path}: found {said}, allowed: {_ALLOWED}")
    layout = Layout(
        blocks=tuple(blocks),
        has_bottlenecks="layer1.0.conv3.weight" in weights,
        width=len(first),
        classes=0 if head is None else len(head),
    )
    with torch.device("meta"):
        own = ResidualBody(layout).state_dict()
    problem = next((name for name in own.keys() ^ (weights.keys() - set(_HEAD)) if "num_batches" not in name), None)
    problem = problem or next(
        (name for name in own if name in weights and own[name].shape != weights[name].shape), None
    )
    if problem is not None:
        has = f"{problem!r} {list(weights[problem].shape)}" if problem in weights else f"no {problem!r}"
        wanted = f"one of shape {list(own[problem].shape)}" if problem in own else "no such tensor"
        raise TaskError(f"task_options.checkpoint: {path}: found {has}, allowed: {wanted} in {layout.layers} layers")
    return layout


def fill(body: ResidualBody, head: nn.Linear, path: str) -> None:
    """Give a body the weights of a file, and the head too if the file has one of as many classes.

    A model without values is left so.
    """
    own = body.state_dict()
    if any(value.is_meta for value in own.values()):
        return
    weights = read_weights(path)
    layout_of(weights, path)
    body.load_state_dict({name: weights.get(name, value) for name, value in own.items()})
    kept = [weights.get(name) for name in _HEAD]
    if kept[0] is not None and kept[1] is not None and kept[0].shape == head.weight.shape:
        head.load_state_dict({"weight": kept[0], "bias": kept[1]})


def _torch_file(path: str) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forms of pickles, which are told by the error that follows
        return torch.load(path, map_location="cpu", weights_only=True)


def _safe_tensors(path: str) -> object:
    try:
        from safetensors.torch import load_file
    except ImportError:
        problem = f"{path} needs the package safetensors: pip install safetensors"
        raise TaskError(f"task_options.checkpoint: {problem}") from None
    return load_file(path)


_STAGES = (64, 128, 256, 512)
_EPS = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """What a file's names and shapes say of its network.

    Attributes:
        has_bottlenecks: Whether a block has three convolutions, the middle one of fewer channels.
        classes: Number of classes of the head; 0 without one.
    """

    blocks: tuple[int, ...]
    has_bottlenecks: bool
    width: int
    classes: int

    @property
    def features(self) -> int:
        """Number of features that the body gives."""
        return _STAGES[-1] * (4 if self.has_bottlenecks else 1)

    @property
    def layers(self) -> int:
        """Number of layers that the network is called by."""
        return sum(self.blocks) * (3 if self.has_bottlenecks else 2) + 2


class ResidualBody(nn.Module):
    """All of a residual network but its head; [n, features] for normalised images [n, 3, h, w].

    Normalisation keeps the statistics of the file, and learns scales and shifts alone: few images of one's own make
    poor statistics, and so k ranks train as one.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, _STAGES[0], 7, stride=2, padding=3, bias=False)
        self.bn1 = FrozenNorm(_STAGES[0])
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        outputs = [channels * (4 if layout.has_bottlenecks else 1) for channels in _STAGES]
        stages = zip(pairwise([_STAGES[0], *outputs]), layout.blocks, strict=True)
        for number, ((before, after), count) in enumerate(stages):
            inner = layout.width * 2**number
            blocks = [
                _Block(before if block == 0 else after, inner, after, layout, stride=2 if block == 0 and number else 1)
                for block in range(count)
            ]
            self.add_module(f"layer{number + 1}", nn.Sequential(*blocks))

    def forward(self, images: Tensor) -> Tensor:
        """Return [n, features]."""
        values = self.maxpool(relu(self.bn1(self.conv1(images))))
        for number in range(len(_STAGES)):
            values = self.get_submodule(f"layer{number + 1}")(values)
        features: Tensor = values.mean(dim=(2, 3))
        return features


class _Block(nn.Module):
    """Two convolutions, or three with a bottleneck, beside a shortcut."""

    def __init__(self, before: int, inner: int, after: int, layout: Layout, *, stride: int) -> None:
        super().__init__()
        if layout.has_bottlenecks:
            self.conv1 = nn.Conv2d(before, inner, 1, bias=False)
            self.conv2 = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False)
            self.conv3: nn.Module | None = nn.Conv2d(inner, after, 1, bias=False)
            self.bn3: nn.Module | None = FrozenNorm(after)
        else:
            self.conv1 = nn.Conv2d(before, inner, 3, stride=stride, padding=1, bias=False)
            self.conv2 = nn.Conv2d(inner, after, 3, padding=1, bias=False)
            self.conv3 = self.bn3 = None
        self.bn1, self.bn2 = FrozenNorm(inner), FrozenNorm(inner if layout.has_bottlenecks else after)
        same = stride == 1 and before == after
        self.downsample = (
            None if same else nn.Sequential(nn.Conv2d(before, after, 1, stride=stride, bias=False), FrozenNorm(after))
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return [n, after, h / stride, w / stride]."""
        values = self.bn2(self.conv2(relu(self.bn1(self.conv1(images)))))
        if self.conv3 is not None and self.bn3 is not None:
            values = self.bn3(self.conv3(relu(values)))
        shortcut = images if self.downsample is None else self.downsample(images)
        return relu(values + shortcut)


class FrozenNorm(nn.Module):
    """BatchNorm with given statistics while training too; scale and shift are learned."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, images: Tensor) -> Tensor:
        """Return the shape of `images`."""
        scale = self.weight * torch.rsqrt(self.running_var + _EPS)
        shift = self.bias - self.running_mean * scale
        return images * scale[:, None, None] + shift[:, None, None]
