"""Random changes of training images in each epoch. Shapes: n images of c channels, h x w pixels.

Draws depend on the epoch's seed and the image's pixels, not on its place in a batch. So changes are the same for any
number of ranks and data workers, and in resumed epochs. Mixup (Zhang et al. 2018, arXiv 1710.09412) mixes an image and
its class with any training image and its class, because batches depend on the ranks.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, grid_sample, one_hot

_QUANTILES, _CELLS = 4096, 2**14
_STREAM = 0x6D69787570  # addend to the epoch's seed, which makes mixup's draws independent of the augmentation's


class Partners:
    """All training images, uint8 [n, c, h, w], and classes, int64 [n], on the CPU, shared by copies of a model."""

    def __init__(self, pixels: Tensor, labels: Tensor) -> None:
        self.pixels, self.labels = pixels, labels

    def __deepcopy__(self, _memo: dict[int, Any]) -> "Partners":
        return self


class Mixup(nn.Module):
    """Draws for each image another image to mix with, and the weight of the first image in the mixture.

    `alpha`, above 0, is both parameters of the weight's Beta distribution. Small values mostly keep one image.
    """

    key: Tensor
    shares: Tensor

    def __init__(self, alpha: float, partners: Partners, classes: int) -> None:
        super().__init__()
        self._partners, self._classes = partners, classes
        self.register_buffer("shares", torch.from_numpy(beta_quantiles(alpha, _QUANTILES)), persistent=False)
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def set_epoch_seed(self, seed: int) -> None:
        """Set the seed of the next draws, before each epoch, equally on all ranks."""
        self.key.fill_(seed)

    def draw(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return other images, the weight of `pixels` in the mixture [n, 1, 1, 1], and class weights of the others.

        The class weights, float32 [n, classes], sum to the weight of the other image.
        """
        draws = uniform(pixels, self.key + _STREAM, 2)
        chosen = (draws[:, 0] * len(self._partners.labels)).long().to(self._partners.labels.device)
        share = self.shares[(draws[:, 1] * _QUANTILES).long()]
        labels = self._partners.labels[chosen].to(pixels.device)
        counts = one_hot(labels, self._classes) * (1 - share[:, None])
        return self._partners.pixels[chosen].to(pixels.device), share[:, None, None, None], counts


def beta_quantiles(alpha: float, count: int) -> NDArray[np.float32]:
    """Return the midpoints of `count` equally likely parts of the Beta distribution with both parameters `alpha`.

    The lower half is integrated over s = x^min(alpha, 1), where the density has no pole; the upper half mirrors it.
    """
    power = min(alpha, 1.0)
    edges = np.linspace(0, 0.5**power, _CELLS + 1)
    middles = ((edges[1:] + edges[:-1]) / 2) ** (1 / power)
    mass = np.concatenate([[0.0], np.cumsum(middles ** (alpha - power) * (1 - middles) ** (alpha - 1))])
    wanted = (np.arange(count // 2) + 0.5) / count
    lower = np.interp(wanted, mass / mass[-1] / 2, edges) ** (1 / power)
    return np.concatenate([lower, 1 - lower[::-1]]).astype(np.float32)


def mixed_loss(outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the cross entropy in nats, shape [n]. `outputs` [n, 2, classes]: logits, other images' class weights."""
    logits, counts = outputs.unbind(1)
    kept = 1 - counts.sum(dim=1, keepdim=True)
    both = one_hot(targets, logits.shape[1]) * kept + counts
    return cross_entropy(logits, both, reduction="none", label_smoothing=smoothing)


OPERATIONS = (
    "identity", "shift_x", "shift_y", "rotation", "shear_x", "shear_y", "brightness", "contrast", "erasing",
)  # fmt: skip
_ROTATION_RADIANS, _SHEAR, _SHIFT_SHARE, _GAIN, _ERASED_SHARE = 0.5236, 0.3, 0.3, 0.9, 0.5
"""Strengths of operations at magnitude 1. Lengths are fractions of the image's side."""
_DRAWS_OF_OPERATION = 4
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64
"""Constants of SplitMix64 (Steele, Lea and Flood 2014), as signed 64-bit integers."""


class Augmentation(nn.Module):
    """Shifts and flips images, and changes them as RandAugment does (Cubuk et al. 2020, arXiv 1909.13719).

    Args:
        shift: Largest shift in pixels in each direction; new pixels repeat the edge.
        operations: Number of random operations, drawn from `OPERATIONS` with equal probability.
        magnitude: Strength of the operations, from 0 to 1. The sign is random.
    """

    key: Tensor

    def __init__(self, *, shift: int, flip: bool, operations: int, magnitude: float) -> None:
        super().__init__()
        self._shift, self._flip, self._operations, self._magnitude = shift, flip, operations, magnitude
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def set_epoch_seed(self, seed: int) -> None:
        """Set the seed of the next draws, before each epoch, equally on all ranks."""
        self.key.fill_(seed)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return changed pixels [n, c, h, w]: uint8, or with RandAugment float32 from 0 to 255."""
        if not (self._shift or self._flip or self._operations):
            return pixels
        draws = uniform(pixels, self.key, 3 + _DRAWS_OF_OPERATION * self._operations)
        if self._shift:
            pixels = shifted(pixels, self._shift, draws[:, :2])
        if self._flip:
            pixels = flipped(pixels, draws[:, 2])
        if self._operations:
            policy = draws[:, 3:].reshape(-1, self._operations, _DRAWS_OF_OPERATION)
            pixels = augmented(pixels, self._magnitude, policy)
        return pixels


def uniform(pixels: Tensor, key: Tensor, count: int) -> Tensor:
    """Return random numbers in [0, 1), float32 [n, count], hashed from each image and `key` (int64 scalar)."""
    flat = pixels.flatten(1).to(torch.int64)
    places = torch.arange(flat.shape[1], device=pixels.device)
    image = (flat * _mixed(places)).sum(dim=1)  # integers wrap around, so the sum is exact in any order
    number = torch.arange(1, count + 1, device=pixels.device) * _GOLDEN
    words = _mixed(_mixed(image + _mixed(key))[:, None] + number)
    return _right(words, 40).to(torch.float32) * 2.0**-24


def _mixed(words: Tensor) -> Tensor:
    words = words + _GOLDEN
    words = (words ^ _right(words, 30)) * _FIRST
    words = (words ^ _right(words, 27)) * _SECOND
    return words ^ _right(words, 31)


def _right(words: Tensor, bits: int) -> Tensor:
    """Shift bits to the right, and fill with zeros. torch's own shift repeats the sign bit."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def shifted(pixels: Tensor, most: int, draws: Tensor) -> Tensor:
    """Shift each image by at most `most` whole pixels in each direction, by random numbers [n, 2]."""
    n, c, height, width = pixels.shape
    down, right = ((draws * (2 * most + 1)).to(torch.int64) - most).unbind(1)
    rows = (torch.arange(height, device=pixels.device) + down[:, None]).clamp(0, height - 1)
    columns = (torch.arange(width, device=pixels.device) + right[:, None]).clamp(0, width - 1)
    moved = pixels.gather(2, rows[:, None, :, None].expand(n, c, height, width))
    return moved.gather(3, columns[:, None, None, :].expand(n, c, height, width))


def flipped(pixels: Tensor, draws: Tensor) -> Tensor:
    """Mirror images left to right if their random number in `draws` [n] is below one half."""
    return torch.where((draws < 0.5)[:, None, None, None], pixels.flip(3), pixels)


def augmented(pixels: Tensor, magnitude: float, policy: Tensor) -> Tensor:
    """Return float32 pixels from 0 to 255, changed by the operations that `policy` [n, operations, 4] chooses.

    All moves form one affine map with one interpolation. Brightness and contrast follow, then erasing.
    """
    kinds = (policy[:, :, 0] * len(OPERATIONS)).to(torch.int64)
    signed = torch.where(policy[:, :, 1] < 0.5, -magnitude, magnitude)
    images = _moved(pixels.to(torch.float32), kinds, signed)
    for kind, strength, draws in zip(kinds.unbind(1), signed.unbind(1), policy.unbind(1), strict=True):
        of = dict(_strengths(kind, strength * _GAIN))
        brightness, contrast = of["brightness"][:, None], of["contrast"][:, None]
        mean = images.mean(dim=(1, 2, 3), keepdim=True)  # brightness scales about black, contrast about the mean
        images = ((images - mean) * (1 + contrast) + mean).mul(1 + brightness).clamp(0, 255)
        images = _erased(images, magnitude * (kind == OPERATIONS.index("erasing")), draws[:, 2:])
    return images


def _moved(images: Tensor, kinds: Tensor, signed: Tensor) -> Tensor:
    height, width = images.shape[2:]
    y = torch.arange(height, device=images.device, dtype=torch.float32)[None, :, None] - (height - 1) / 2
    x = torch.arange(width, device=images.device, dtype=torch.float32)[None, None, :] - (width - 1) / 2
    for kind, strength in zip(kinds.unbind(1), signed.unbind(1), strict=True):
        of = dict(_strengths(kind, strength))
        angle = of["rotation"] * _ROTATION_RADIANS
        cosine, sine = angle.cos(), angle.sin()
        x, y = cosine * x - sine * y, sine * x + cosine * y
        x = x + of["shear_x"] * _SHEAR * y + of["shift_x"] * _SHIFT_SHARE * width
        y = y + of["shear_y"] * _SHEAR * x + of["shift_y"] * _SHIFT_SHARE * height
    places = torch.stack([x * (2 / width), y * (2 / height)], dim=3)
    with torch.autocast(images.device.type, enabled=False):
        return grid_sample(images, places, padding_mode="border", align_corners=False)


def _strengths(kind: Tensor, strength: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield each operation with its strength for each image, [n, 1, 1]: 0 for images with another operation."""
    for number, name in enumerate(OPERATIONS):
        yield name, (strength * (kind == number))[:, None, None]


def _erased(images: Tensor, strength: Tensor, draws: Tensor) -> Tensor:
    height, width = images.shape[2:]
    half = strength[:, None] * (_ERASED_SHARE / 2)
    rows = (torch.arange(height, device=images.device) + 0.5) / height
    columns = (torch.arange(width, device=images.device) + 0.5) / width
    within_rows = (rows - draws[:, :1]).abs() < half
    within_columns = (columns - draws[:, 1:]).abs() < half
    hidden = (within_rows[:, :, None] & within_columns[:, None, :])[:, None]
    return torch.where(hidden, images.mean(dim=(1, 2, 3), keepdim=True), images)
