"""Networks for images. Shapes: n images of c channels, height h, width w."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainers.tasks.pictures.augmentation import Augmentation, Mixup
from trainers.tasks.shared.data_fingerprint import DataMark

_GROUPS = 4


class VisionNetwork(nn.Module):
    """Normalisation, augmentation while training, a convolutional body, a linear head.

    Input: uint8 [n, c, h, w], as the files have it, so that what is exported takes raw pixels; output [n, outputs].
    """

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
        """Return logits [n, outputs]; while training with mixup [n, 2, outputs], for `mixed_loss`."""
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
    """Return `depth` stages of convolutions, each followed by halving the image, and how many features come out.

    The first stage has one convolution, since at full size a second one would cost as much as all the others.
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
    """Return `depth` residual blocks, each but the first halving the image, and how many features come out."""
    layers: list[nn.Module] = [nn.Conv2d(inputs, channels, 3, padding=1, bias=False)]
    before = channels
    for stage in range(depth):
        after = channels * 2**stage
        layers.append(_Residual(before, after, stride=1 if stage == 0 else 2))
        before = after
    layers += [_norm(before), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers), before


class _Residual(nn.Module):
    """Two convolutions beside a shortcut; GroupNorm and not BatchNorm, so that k ranks train as one."""

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
        """Return [n, after, h / stride, w / stride]."""
        added: Tensor = self.shortcut(images) + self.inner(images)
        return added


def _norm(channels: int) -> nn.Module:
    return nn.GroupNorm(_GROUPS if channels % _GROUPS == 0 else 1, channels)
