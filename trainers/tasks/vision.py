"""Classification of images in idx files such as MNIST's, or in folders with a sub-folder per class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from search_spaces.messages import listed
from trainers.contract.task import Params
from trainers.protocol import TaskError
from trainers.tasks.pictures import images
from trainers.tasks.shared import task_options
from trainers.tasks.shared.split_task import Share, SplitTask, part_sizes, parts_of, shares_of, split
from trainers.tasks.shared.task_options import check_kind
from trainers.tasks.shared.trivial_models import most_frequent_class

if TYPE_CHECKING:
    from torch import Tensor, nn

    from search_spaces.space import Space
    from trainers.tasks.pictures.augmentation import Mixup

_ARCHITECTURES = ("cnn", "residual")
_COLOURS = 3  # number of channels of a colour image
_CHECKPOINT_SIDE = 128
"""Height and width of images for a checkpoint: a third of the work of 224 pixels, the size of its training."""


class Vision(SplitTask):
    """Classifies images. Outputs [n, classes]; metrics `val_error`, `val_accuracy` and others of `SplitTask`.

    Images are uint8. The model normalises each batch by the training images' mean and deviation.
    """

    parameters = ("architecture", "channels", "depth", "dropout", "shift", "flip", "operations", "magnitude", "mixup")
    no_test = "there are no test images. Set task_options.test to a folder, or test_share above 0"
    options_of_new_studies = MappingProxyType({"reading": 2, "test_share": "auto"})
    path_options = ("train", "validation", "test", "train_labels", "validation_labels", "test_labels", "checkpoint")

    def __init__(
        self,
        train: str,
        train_labels: str | None = None,
        *,
        test: str | None = None,
        test_labels: str | None = None,
        validation: str | None = None,
        validation_labels: str | None = None,
        size: int | None = None,
        grey: bool | None = None,
        checkpoint: str | None = None,
        validation_share: float = 0.1,
        test_share: Share = 0.0,
        reading: int = 1,
    ) -> None:
        """Read all images. Raises TaskError for a wrong file or option.

        Args:
            train: Folder with idx files under MNIST's names; or with the folders train and optionally validation and
                test; or with a sub-folder for each class. Or an idx file, beside `train_labels`.
            test: Folder of classes or idx file, which the search never uses; default: the test part in `train`.
            validation: Folder of classes or idx file; default: `validation_share` of the training images.
            size: Height and width of images from folders; None means the images' own size, at most 64.
            grey: True to drop the colours of images from folders; None decides by the first image.
            checkpoint: File of weights of torchvision's residual networks, to fine-tune; images of folders are then
                128 x 128 unless `size` is given.
            reading: 1 reads folders as existing studies do. 2 skips hidden folders and training images that are copies
                of validation or test images, keeps the brightness of images of whole numbers or floats, and makes
                transparent pixels white.
        """
        self._reading = task_options.whole(reading, "reading", low=1, high=2)
        is_new = reading > 1
        shares = shares_of(validation_share, test_share)
        side = None if size is None else task_options.whole(size, "size", low=4, high=1024)
        self._checkpoint = None if checkpoint is None else task_options.path(checkpoint, "checkpoint")
        side = _CHECKPOINT_SIDE if side is None and self._checkpoint is not None else side
        self._size = None if side is None else (side, side)
        self._channels = None if grey is None else 1 if grey else 3
        sources = _sources(
            {"train": train, "validation": validation, "test": test},
            {"train": train_labels, "validation": validation_labels, "test": test_labels},
            is_new=is_new,
        )
        own = sources["train"]
        self.classes: tuple[str, ...] = () if own.labels else images.class_folders(own, with_hidden=not is_new)
        self._ranges = images.ranges_of(own.images, self.classes) if is_new and not own.labels else None
        whole = self._read(own)
        if not self.classes:
            self.classes = tuple(str(label) for label in np.unique(whole.labels))
            whole = images.encode_labels(whole, self.classes, path=own.images)
        images.check_labels(whole, self.classes, path=own.labels or own.images)
        others = {part: self._read_other(source, whole) for part, source in sources.items() if part != "train"}
        rows = split(whole.labels, len(whole.labels), **(shares | dict.fromkeys(others, 0.0)))
        own_parts = parts_of(whole.pixels, whole.labels, rows)
        self._parts = own_parts | {part: (one.pixels, one.labels) for part, one in others.items()}
        self._copies = self._kept_copies = 0
        self._unread = images.unread_files(own.images) if is_new and not own.labels else {}
        if is_new:
            self._parts, self._copies, self._kept_copies = images.without_copies(self._parts)
        self._mean, self._deviation = _moments(self._parts["train"][0])
        if self._checkpoint is not None:
            from trainers.tasks.pictures.picture_networks import layout_of, read_weights

            self._layout = layout_of(read_weights(self._checkpoint), self._checkpoint)

    def describe(self) -> tuple[str, ...]:
        """Return facts about the files, one line each."""
        channels, height, width = self._parts["train"][0].shape[1:]
        colours = "grey" if channels == 1 else "colour"
        return (
            f"images: {height} x {width}, {colours}, {len(self.classes)} classes: {listed(self.classes)}",
            f"rows: {part_sizes(self._parts)}",
            *([] if self._checkpoint is None else [f"model: {self._checkpoint}, {self._layout.layers} layers"]),
        )

    def data_check(self) -> dict[str, Any]:
        """Return `findings`, a line for each unusual fact about the files."""
        if self._reading == 1:
            return {}
        deep = {"I": "whole numbers of more than 8 bits", "F": "floats"}
        ranges = (self._ranges or {}).items()
        findings = [
            f"{sum(endings.values())} files of {name!r} are {listed(one or 'without an ending' for one in endings)}, "
            "which cannot be read: convert them to PNG or JPEG"
            for name, endings in self._unread.items()
        ]
        findings += [f"images of {deep[mode]}: {low:g} is black, {high:g} is white" for mode, (low, high) in ranges]
        for copies, what in ((self._copies, "left out"), (self._kept_copies, "kept, as their class has no others")):
            if copies:
                cure = "remove copies from the folders"
                findings.append(f"{copies} training images are copies of validation or test images, and {what}: {cure}")
        return {"findings": findings}

    def encode(self, rows: Sequence[str | Path]) -> Tensor:
        """Return image files as inputs of the model, uint8 [n, channels, height, width]. Raises TaskError."""
        import torch

        check_kind(rows, (str, Path), "image files")
        images.image_library()
        channels, height, width = self._parts["train"][0].shape[1:]
        return torch.from_numpy(
            np.stack([images.read_image(Path(row), channels, height, width, self._ranges) for row in rows])
        )

    def preprocessing(self) -> dict[str, Any]:
        """Return the steps of `encode` as plain values."""
        channels, height, width = self._parts["train"][0].shape[1:]
        form = {"kind": "image", "channels": channels, "height": height, "width": width}
        return (
            form if self._ranges is None else form | {"ranges": {mode: list(one) for mode, one in self._ranges.items()}}
        )

    def model(self, params: Params) -> nn.Module:
        """Return the network `architecture` or the checkpoint's, with an output for each class."""
        if self._checkpoint is not None:
            return self._from_checkpoint(self._checkpoint, params)
        from trainers.tasks.pictures.picture_networks import plain_body, residual_body

        architecture = task_options.choice(params.get("architecture", "cnn"), "architecture", _ARCHITECTURES)
        inputs, height, width = self._parts["train"][0].shape[1:]
        channels, depth = cast("int", params.get("channels", 16)), cast("int", params.get("depth", 2))
        if architecture == "residual":
            body, features = residual_body(inputs, channels, depth)
        else:
            body, features = plain_body(inputs, channels, depth, (height, width))
        return self._network(params, body, features, self._mean, self._deviation)

    def _from_checkpoint(self, checkpoint: str, params: Params) -> nn.Module:
        from trainers.tasks.pictures.picture_networks import DEVIATION, MEAN, ResidualBody, fill

        body = ResidualBody(self._layout)
        network = self._network(params, body, self._layout.features, MEAN, DEVIATION)
        fill(body, cast("Any", network.head)[-1], checkpoint)
        return network

    def _network(
        self, params: Params, body: nn.Module, features: int, mean: Sequence[float], deviation: Sequence[float]
    ) -> nn.Module:
        from trainers.tasks.pictures.augmentation import Augmentation
        from trainers.tasks.pictures.picture_networks import VisionNetwork

        return VisionNetwork(
            mean=mean,
            deviation=deviation,
            body=body,
            features=features,
            outputs=len(self.classes),
            dropout=cast("float", params.get("dropout", 0.0)),
            augmentation=Augmentation(
                shift=cast("int", params.get("shift", 0)),
                flip=bool(params.get("flip", False)),
                operations=task_options.whole_parameter(params, "operations", 0, low=0, high=8),
                magnitude=task_options.number_parameter(params, "magnitude", 0.3, low=0.0, high=1.0),
            ),
            mixup=self._mixup(params),
            meaning=self.classes,
        )

    def _mixup(self, params: Params) -> Mixup | None:
        from trainers.tasks.pictures.augmentation import Mixup, Partners

        alpha = task_options.number_parameter(params, "mixup", 0.0, low=0.0, high=10.0)
        return Mixup(alpha, Partners(*self.train_data(params)), len(self.classes)) if alpha > 0 else None

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each image's cross entropy in nats, shape [n]; in mixtures, for the classes of both images."""
        return self.smoothed_loss(outputs, targets, 0.0)

    def smoothed_loss(self, outputs: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        """Return each image's cross entropy, shape [n], with smoothed targets."""
        if outputs.dim() == 2:
            return super().smoothed_loss(outputs, targets, smoothing)
        from trainers.tasks.pictures.augmentation import mixed_loss

        return mixed_loss(outputs, targets, smoothing)

    def space(self) -> Space:
        """Return the default search space, smaller for a checkpoint. Only colour images are flipped."""
        from search_spaces.parameters import Categorical, Conditional, Float, Int, Parameter
        from search_spaces.space import Space

        channels, height, width = self._parts["train"][0].shape[1:]
        has_checkpoint = self._checkpoint is not None
        low, high = (5e-5, 1e-3) if has_checkpoint else (3e-4, 5e-3)
        space: dict[str, Parameter | Conditional] = {
            "learning_rate": Float(low=low, high=high, log=True),
            "batch_per_rank": Categorical([16, 32, 64] if has_checkpoint else [32, 64, 128]),
            "optimizer": Categorical(["adamw"]),
            "weight_decay": Float(low=1e-5, high=1e-1, log=True),
        }
        if not has_checkpoint:
            space |= {
                "architecture": Categorical(["cnn", "residual"]),
                "channels": Categorical([8, 16, 32]),
                "depth": Int(low=2, high=3),
            }
        space |= {
            "dropout": Float(low=0.0, high=0.5),
            "shift": Int(low=0, high=max(1, min(height, width) // 10)),
            "flip": Categorical([False, True] if channels == _COLOURS else [False]),
            "operations": Categorical([0, 1, 2]),
            "magnitude": Float(low=0.1, high=0.6).when(operations=[1, 2]),
        }
        return Space(space)

    def first_trials(self) -> list[dict[str, Any]]:
        """Return good parameters of a small convolutional network; none for a checkpoint."""
        if self._checkpoint is not None:
            return []
        return [{
            "learning_rate": 3e-3, "batch_per_rank": 128, "optimizer": "adamw", "weight_decay": 0.05,
            "architecture": "cnn", "channels": 16, "depth": 2, "dropout": 0.3, "shift": 1,
            "flip": self._parts["train"][0].shape[1] == _COLOURS, "operations": 0,
        }]  # fmt: skip

    def baselines(self) -> list[dict[str, Any]]:
        """Return the trivial baseline, which ignores the images."""
        return [most_frequent_class(self)]

    def _read(self, source: images.Source) -> images.Images:
        if source.labels is not None:
            return images.read_idx(source)
        return images.read_folder(source, self.classes, size=self._size, channels=self._channels, ranges=self._ranges)

    def _read_other(self, source: images.Source, whole: images.Images) -> images.Images:
        channels, height, width = whole.pixels.shape[1:]
        if source.labels is None:
            return images.read_folder(
                source, self.classes, size=(height, width), channels=channels, ranges=self._ranges
            )
        other = images.read_idx(source)
        if other.pixels.shape[1:] != whole.pixels.shape[1:]:
            shape = "{1} x {2}".format(*other.pixels.shape[1:])
            raise TaskError(f"{source.images}: found images of {shape}, allowed: {height} x {width}, as for training")
        return images.encode_labels(other, self.classes, path=source.labels)


def _sources(paths: dict[str, str | None], labels: dict[str, str | None], *, is_new: bool) -> dict[str, images.Source]:
    train = Path(task_options.path(paths["train"], "train"))
    sources = {} if labels["train"] is not None else images.find_sources(train, is_new=is_new)
    for part, given in paths.items():
        path, own_labels = None if given is None else Path(task_options.path(given, part)), labels[part]
        if own_labels is not None and path is not None:
            label_path = Path(task_options.path(own_labels, f"{part}_labels"))
            sources[part] = images.Source(images=path, labels=label_path)
        elif path is not None and part != "train":
            if not path.is_dir():
                needed = f"a folder of classes; an idx file needs its labels in task_options.{part}_labels"
                raise TaskError(f"task_options.{part}: found {given!r}, allowed: {needed}")
            sources[part] = images.Source(images=path)
        elif own_labels is not None:
            raise TaskError(f"task_options.{part}_labels: found {own_labels!r} without {part}. Name both")
    return sources


def _moments(pixels: images.Pixels) -> tuple[list[float], list[float]]:
    """Return mean and deviation of each channel, without a floating-point copy of the images."""
    counts = [np.bincount(pixels[:, channel].ravel(), minlength=256) for channel in range(pixels.shape[1])]
    levels = np.arange(256)
    means = [float((count * levels).sum() / count.sum()) for count in counts]
    variances = [float((n * (levels - mean) ** 2).sum() / n.sum()) for n, mean in zip(counts, means, strict=True)]
    return means, [max(variance**0.5, 1.0) for variance in variances]
