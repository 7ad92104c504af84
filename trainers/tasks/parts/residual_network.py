"""The residual networks of He et al. 2016 (arXiv 1512.03385), with the names that torchvision gives to their tensors.

Shapes: n images of c channels, height h, width w.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

_STAGES = (64, 128, 256, 512)
_EPS = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """What a file's names and shapes say of its network.

    Attributes:
        blocks: Number of blocks of each of the four stages.
        has_bottlenecks: Whether a block has three convolutions, the middle one of fewer channels.
        width: Channels of the middle convolutions of the first stage.
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
