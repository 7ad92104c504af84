"""Networks for images, from scratch or with published weights. Shapes: n images of c channels, height h, width w.

Published weights are for torchvision's residual networks (He et al. 2016, arXiv 1512.03385; wide networks: arXiv
1605.07146). The names and shapes of the weights in a file identify the network.
"""

import pickle
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from search_spaces.messages import near_file, one_line
from trainers.protocol import TaskError
from trainers.tasks.pictures.augmentation import Augmentation, Mixup
from trainers.tasks.shared.data_fingerprint import DataMark

_GROUPS = 4


class VisionNetwork(nn.Module):
    """Image classifier: normalisation, augmentation, body and linear head; uint8 [n, c, h, w] to [n, outputs]."""

    mean: Tensor
    deviation: Tensor

    def __init__(
        self,
        *,
        mean: Sequence[float],
        deviation: Sequence[float],
        body: nn.Module,
        features: int,
        outputs: int,
        dropout: float,
        augmentation: Augmentation,
        mixup: Mixup | None,
        meaning: object,
    ) -> None:
        super().__init__()
        self.mark = DataMark(meaning)
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(1, -1, 1, 1))
        self.register_buffer("deviation", torch.tensor(deviation, dtype=torch.float32).view(1, -1, 1, 1))
        self.body = body
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(features, outputs))
        self.augmentation, self.mixup = augmentation, mixup

    def forward(self, pixels: Tensor) -> Tensor:
        """Return logits [n, outputs]; in training with mixup, [n, 2, outputs] for `mixed_loss`."""
        if not self.training:
            return self._logits(pixels)
        if self.mixup is None:
            return self._logits(self.augmentation(pixels))
        others, share, counts = self.mixup.draw(pixels)
        first, other = (self.augmentation(one).to(self.mean.dtype) for one in (pixels, others))
        logits = self._logits(torch.lerp(other, first, share))
        return torch.stack([logits.to(counts.dtype), counts], dim=1)

    def _logits(self, pixels: Tensor) -> Tensor:
        images = (pixels.to(self.mean.dtype) - self.mean) / self.deviation
        logits: Tensor = self.head(self.body(images))
        return logits


def plain_body(inputs: int, channels: int, depth: int, size: tuple[int, int]) -> tuple[nn.Module, int]:
    """Return a body of `depth` convolutional stages, each of which halves the image, and its number of features.

    The first stage has one convolution, because a second at full size would cost as much as all others.
    """
    layers: list[nn.Module] = []
    before, (height, width) = inputs, size
    for stage in range(depth):
        after = channels * 2**stage
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(after, after, 3, padding=1), nn.ReLU()] if stage else []
        if min(height, width) > 1:
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
        before = after
    pooled = (min(height, 4), min(width, 4))
    hidden = before * pooled[0] * pooled[1]
    features = 8 * channels
    layers += [nn.AdaptiveAvgPool2d(pooled), nn.Flatten(), nn.Linear(hidden, features), nn.ReLU()]
    return nn.Sequential(*layers), features


def residual_body(inputs: int, channels: int, depth: int) -> tuple[nn.Module, int]:
    """Return a body of `depth` residual blocks, each after the first halving the image, and its number of features."""
    layers: list[nn.Module] = [nn.Conv2d(inputs, channels, 3, padding=1, bias=False)]
    before = channels
    for stage in range(depth):
        after = channels * 2**stage
        layers.append(_Residual(before, after, stride=1 if stage == 0 else 2))
        before = after
    layers += [_norm(before), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers), before


class _Residual(nn.Module):
    """Two convolutions beside a shortcut, with GroupNorm: BatchNorm would depend on the number of ranks."""

    def __init__(self, before: int, after: int, *, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            _norm(before),
            nn.ReLU(),
            nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False),
            _norm(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
        )
        same = stride == 1 and before == after
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, after, 1, stride=stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        added: Tensor = self.shortcut(images) + self.inner(images)
        return added


def _norm(channels: int) -> nn.Module:
    return nn.GroupNorm(_GROUPS if channels % _GROUPS == 0 else 1, channels)


MEAN, DEVIATION = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
"""Mean and deviation of ImageNet's colours, from 0 to 255, for published weights."""
_HEAD = ("fc.weight", "fc.bias")
_WRAPPED = ("state_dict", "model")  # keys under which training programs keep the weights
_BLOCK = re.compile(r"layer([1-4])\.(\d{1,3})\.conv1\.weight")
_ALLOWED = "weights of a ResNet (18, 34, 50, 101, 152 layers, or wide) of torchvision, as .pt, .pth or .safetensors"


def read_weights(path: str) -> dict[str, Tensor]:
    """Return a file's tensors by name, without running code from the file. Raises TaskError for other content."""
    file = Path(path)
    if not file.is_file():
        what, near = ("a folder", "") if file.is_dir() else ("no such file", near_file(file))
        raise TaskError(f"task_options.checkpoint: {path}: found {what}, allowed: {_ALLOWED}{near}")
    try:
        found = _safe_tensors(path) if file.suffix == ".safetensors" else _torch_file(path)
    except pickle.UnpicklingError:
        problem = "found an object that is not a tensor, and may run code when it is read"
        raise TaskError(f"task_options.checkpoint: {path}: {problem}, allowed: {_ALLOWED}") from None
    except TaskError:
        raise
    except Exception as error:  # noqa: BLE001 - a damaged file may raise any error
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


def layout_of(weights: Mapping[str, Tensor], path: str) -> "Layout":
    """Identify the network of a file's weights. Raises TaskError unless names and shapes fit a known network."""
    blocks = [0] * len(_STAGES)
    for name in weights:
        found = _BLOCK.fullmatch(name)
        if found is not None:
            blocks[int(found[1]) - 1] += 1
    first, head = weights.get("layer1.0.conv1.weight"), weights.get("fc.weight")
    if first is None or first.dim() != 4 or not all(blocks) or sum(blocks) > 100:
        near = next(iter(weights), None)
        found_weights = "no weights" if near is None else f"weights of another network, such as {one_line(near)[:80]!r}"
        raise TaskError(f"task_options.checkpoint: {path}: found {found_weights}, allowed: {_ALLOWED}")
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
        found_tensor = f"{problem!r} {list(weights[problem].shape)}" if problem in weights else f"no {problem!r}"
        needed_tensor = f"a tensor of shape {list(own[problem].shape)}" if problem in own else "no such tensor"
        raise TaskError(
            f"task_options.checkpoint: {path}: found {found_tensor}, but {layout.layers} layers need {needed_tensor}"
        )
    return layout


def fill(body: "ResidualBody", head: nn.Linear, path: str) -> None:
    """Load a file's weights into a body, and into a head with the same number of classes. Skips meta tensors."""
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
        warnings.simplefilter("ignore")  # warnings about forms of pickles, which the error repeats
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
    """Sizes of a residual network. Bottleneck blocks have three convolutions; `classes` is 0 without a head."""

    blocks: tuple[int, ...]
    has_bottlenecks: bool
    width: int
    classes: int

    @property
    def features(self) -> int:
        """Number of features that the body returns."""
        return _STAGES[-1] * (4 if self.has_bottlenecks else 1)

    @property
    def layers(self) -> int:
        """Number of layers, as in the network's name."""
        return sum(self.blocks) * (3 if self.has_bottlenecks else 2) + 2


class ResidualBody(nn.Module):
    """Residual network without its head: normalised images [n, 3, h, w] to [n, features].

    Normalisation uses the file's statistics, because statistics of few images are poor and depend on the world size.
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
        """Return the features of images, [n, features]."""
        values = self.maxpool(relu(self.bn1(self.conv1(images))))
        for number in range(len(_STAGES)):
            values = self.get_submodule(f"layer{number + 1}")(values)
        features: Tensor = values.mean(dim=(2, 3))
        return features


class _Block(nn.Module):
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
        values = self.bn2(self.conv2(relu(self.bn1(self.conv1(images)))))
        if self.conv3 is not None and self.bn3 is not None:
            values = self.bn3(self.conv3(relu(values)))
        shortcut = images if self.downsample is None else self.downsample(images)
        return relu(values + shortcut)


class FrozenNorm(nn.Module):
    """BatchNorm with fixed statistics, also in training. Scale and shift are learned."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, images: Tensor) -> Tensor:
        """Return normalised images of the same shape."""
        scale = self.weight * torch.rsqrt(self.running_var + _EPS)
        shift = self.bias - self.running_mean * scale
        return images * scale[:, None, None] + shift[:, None, None]
