"""Mixup: training images are mixed with others, and so are their classes (Zhang et al. 2018, arXiv 1710.09412).

What an image is mixed with, and how much of it stays, is drawn as `trainers.tasks.parts.augmentation` draws: from the
epoch's seed and the image's own pixels. The other one is any training image, and not one of the batch: on two ranks
that has other images than on one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from trainers.tasks.parts.augmentation import uniform

_QUANTILES, _CELLS = 4096, 2**14
_STREAM = 0x6D69787570
"""What is added to the epoch's seed, so that draws have nothing to do with those of the augmentation."""


class Partners:
    """The training images and their classes, which copies of a model share.

    Attributes:
        pixels: uint8 [n, c, h, w], on the CPU.
        labels: Class of each, int64 [n], on the CPU.
    """

    def __init__(self, pixels: Tensor, labels: Tensor) -> None:
        self.pixels, self.labels = pixels, labels

    def __deepcopy__(self, _memo: dict[int, Any]) -> Partners:
        """Return this object: it is read alone, and as large as the data."""
        return self


class Mixup(nn.Module):
    """Draws for each image another one, and the share of the first in their mixture.

    Args:
        alpha: Both parameters of the Beta distribution of the share, above 0; with small ones most images stay nearly
            whole.
        partners: The training images.
        classes: Number of classes.
    """

    key: Tensor
    shares: Tensor

    def __init__(self, alpha: float, partners: Partners, classes: int) -> None:
        super().__init__()
        self._partners, self._classes = partners, classes
        self.register_buffer("shares", torch.from_numpy(beta_quantiles(alpha, _QUANTILES)), persistent=False)
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def set_epoch_seed(self, seed: int) -> None:
        """Draw from this seed from now on; the trainer calls it before each epoch, with the same one on all ranks."""
        self.key.fill_(seed)

    def draw(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what images [n, c, h, w] are mixed with.

        Returns:
            Other images, as `pixels`; the share of the first ones, float32 [n, 1, 1, 1]; and what the classes of the
            others count, float32 [n, classes], of which each row sums up to the share of the other one.
        """
        draws = uniform(pixels, self.key + _STREAM, 2)
        chosen = (draws[:, 0] * len(self._partners.labels)).long().to(self._partners.labels.device)
        share = self.shares[(draws[:, 1] * _QUANTILES).long()]
        labels = self._partners.labels[chosen].to(pixels.device)
        counts = one_hot(labels, self._classes) * (1 - share[:, None])
        return self._partners.pixels[chosen].to(pixels.device), share[:, None, None, None], counts


def beta_quantiles(alpha: float, count: int) -> NDArray[np.float32]:
    """Return the middles of `count` equally likely parts of the Beta distribution whose parameters are both `alpha`.

    The lower half is integrated over s = x^min(alpha, 1), in which the density has no pole; the upper one mirrors it.
    """
    power = min(alpha, 1.0)
    edges = np.linspace(0, 0.5**power, _CELLS + 1)
    middles = ((edges[1:] + edges[:-1]) / 2) ** (1 / power)
    mass = np.concatenate([[0.0], np.cumsum(middles ** (alpha - power) * (1 - middles) ** (alpha - 1))])
    wanted = (np.arange(count // 2) + 0.5) / count
    lower = np.interp(wanted, mass / mass[-1] / 2, edges) ** (1 / power)
    return np.concatenate([lower, 1 - lower[::-1]]).astype(np.float32)


def mixed_loss(outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the cross entropy of mixtures with the classes of both images, in nats, shape [n].

    Args:
        outputs: Logits and what the classes of the other images count, [n, 2, classes].
        targets: Classes of the first images, [n].
        smoothing: Share of the target that is spread over all classes.
    """
    logits, counts = outputs.unbind(1)
    kept = 1 - counts.sum(dim=1, keepdim=True)
    both = one_hot(targets, logits.shape[1]) * kept + counts
    return cross_entropy(logits, both, reduction="none", label_smoothing=smoothing)
