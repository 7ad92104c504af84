"""Images into classes: idx files such as MNIST's, or folders with one sub-folder for each class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from search_spaces.wording import listed
from trainers.contract.task import Params
from trainers.protocol import TaskError
from trainers.tasks.pictures import images
from trainers.tasks.shared import task_options
from trainers.tasks.shared.new_rows import check_kind
from trainers.tasks.shared.split_task import SplitTask, check_share, part_sizes, split
from trainers.tasks.shared.trivial_models import most_frequent_class

if TYPE_CHECKING:
    from torch import Tensor, nn

    from search_spaces.space import Space
    from trainers.tasks.pictures.augmentation import Mixup

_ARCHITECTURES = ("cnn", "residual")
_CHECKPOINT_SIDE = 128
"""Pixels of a side for a checkpoint: a third of the work of the 224 that it was trained with."""


class Vision(SplitTask):
    """Classify images. Outputs [n, classes]; `val_error` and `val_accuracy`.

    Images stay uint8 until the model normalises a batch, with the training images' mean and deviation, which are among
    its weights.
    """

    parameters = ("architecture", "channels", "depth", "dropout", "shift", "flip", "operations", "magnitude", "mixup")
    metric_names = ("val_error", "val_accuracy")
    no_test = "found no test images, allowed: a folder in task_options.test, or a share in test_share"
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
        test_share: float = 0.0,
    ) -> None:
        """Read all images.

        Args:
            train: A folder: with idx files under MNIST's names; or with the folders train and, if you like, validation
                and test; or with one sub-folder for each class. Or an idx file, beside `train_labels`.
            test: A folder of classes or an idx file, which the search never sees; None takes what is in `train`.
            validation: A folder of classes or an idx file; without it, `validation_share` of the training images.
            size: Height and width of the images, for folders; None takes their own, or at most 64.
            grey: Whether to drop colours, for folders; None looks at the first image.
            checkpoint: A file of weights of torchvision's residual networks, to fine-tune in place of training from
                scratch; folders of images are brought to 128 x 128 then, unless `size` says otherwise.

        Raises:
            TaskError: A file or an option is wrong; one line.
        """
        check_share(validation_share, "validation_share", lowest=0.001)
        check_share(test_share, "test_share", lowest=0.0)
        side = None if size is None else task_options.whole(size, "size", low=4, high=1024)
        self._checkpoint = None if checkpoint is None else task_options.path(checkpoint, "checkpoint")
        side = _CHECKPOINT_SIDE if side is None and self._checkpoint is not None else side
        self._size = None if side is None else (side, side)
        self._channels = None if grey is None else 1 if grey else 3
        sources = _sources(
            {"train": train, "validation": validation, "test": test},
            {"train": train_labels, "validation": validation_labels, "test": test_labels},
        )
        own = sources["train"]
        self.classes: tuple[str, ...] = () if own.labels else images.class_folders(own.images)
        whole = self._read(own)
        if not self.classes:
            self.classes = tuple(str(label) for label in np.unique(whole.labels))
            whole = images.encode_labels(whole, self.classes, path=own.images)
        images.check_labels(whole, self.classes, path=own.labels or own.images)
        others = {part: self._read_other(source, whole) for part, source in sources.items() if part != "train"}
        shares = {"validation": validation_share, "test": test_share} | dict.fromkeys(others, 0.0)
        rows = split(whole.labels, len(whole.labels), validation=shares["validation"], test=shares["test"])
        self._parts: dict[str, tuple[Any, Any]] = {
            part: (whole.pixels[chosen], whole.labels[chosen])
            for part, chosen in zip(("train", "validation", "test"), rows, strict=True)
            if len(chosen)
        } | {part: (one.pixels, one.labels) for part, one in others.items()}
        self._mean, self._deviation = _moments(self._parts["train"][0])
        if self._checkpoint is not None:
            from trainers.tasks.pictures.resnet import layout_of, read_weights

            self._layout = layout_of(read_weights(self._checkpoint), self._checkpoint)

    def describe(self) -> tuple[str, ...]:
        """Return what was found in the files, one line each."""
        channels, height, width = self._parts["train"][0].shape[1:]
        colours = "grey" if channels == 1 else "colour"
        return (
            f"images: {height} x {width}, {colours}, {len(self.classes)} classes: {listed(self.classes)}",
            f"rows: {part_sizes(self._parts)}",
            *([] if self._checkpoint is None else [f"model: {self._checkpoint}, {self._layout.layers} layers"]),
        )

    def encode(self, rows: Sequence[str | Path]) -> Tensor:
        """Return image files as the model takes them, uint8 [n, channels, height, width].

        Raises:
            TaskError: A row is no path, or a file is no image.
        """
        import torch

        check_kind(rows, (str, Path), "image files")
        images.image_library()
        channels, height, width = self._parts["train"][0].shape[1:]
        return torch.from_numpy(np.stack([images.read_image(Path(row), channels, height, width) for row in rows]))

    def decode(self, outputs: Tensor) -> list[str]:
        """Return the classes that the model's outputs [n, classes] say."""
        return [self.classes[index] for index in outputs.argmax(dim=-1).tolist()]

    def preprocessing(self) -> dict[str, Any]:
        """Return what `encode` does to an image, as plain values."""
        channels, height, width = self._parts["train"][0].shape[1:]
        return {"kind": "image", "channels": channels, "height": height, "width": width}

    def postprocessing(self) -> dict[str, Any]:
        """Return what `decode` does to outputs, as plain values."""
        return {"kind": "classes", "labels": list(self.classes)}

    def model(self, params: Params) -> nn.Module:
        """Return the network that `architecture` names, or the checkpoint's, with one output for each class."""
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
        from trainers.tasks.pictures.resnet import DEVIATION, MEAN, ResidualBody, fill

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
        """Return each image's cross entropy in nats, shape [n]; of mixtures, with the classes of both images."""
        return self.smoothed_loss(outputs, targets, 0.0)

    def smoothed_loss(self, outputs: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        """Return each image's cross entropy with smoothed targets, see `BaseTask.smoothed_loss`; shape [n]."""
        if outputs.dim() == 2:
            return super().smoothed_loss(outputs, targets, smoothing)
        from trainers.tasks.pictures.augmentation import mixed_loss

        return mixed_loss(outputs, targets, smoothing)

    def space(self) -> Space:
        """Return the default search space, a smaller one for a checkpoint."""
        from trainers.tasks.pictures.picture_space import vision_space

        return vision_space(self._parts["train"][0].shape[1:], has_checkpoint=self._checkpoint is not None)

    def first_trials(self) -> list[dict[str, Any]]:
        """Return parameters known to be good, with which a search of the default space begins; none of a checkpoint."""
        from trainers.tasks.pictures.picture_space import vision_first_trials

        shape = self._parts["train"][0].shape[1:]
        return vision_first_trials(shape, has_checkpoint=self._checkpoint is not None)

    def baselines(self) -> list[dict[str, Any]]:
        """Return the answer that looks at no image."""
        return [most_frequent_class(self._parts["train"][1], self._parts["validation"][1])]

    def _read(self, source: images.Source) -> images.Images:
        if source.labels is not None:
            return images.read_idx(source)
        return images.read_folder(source.images, self.classes, size=self._size, channels=self._channels)

    def _read_other(self, source: images.Source, whole: images.Images) -> images.Images:
        """Read a validation or test part in the training images' shape."""
        channels, height, width = whole.pixels.shape[1:]
        if source.labels is None:
            return images.read_folder(source.images, self.classes, size=(height, width), channels=channels)
        other = images.read_idx(source)
        if other.pixels.shape[1:] != whole.pixels.shape[1:]:
            shape = "{1} x {2}".format(*other.pixels.shape[1:])
            raise TaskError(f"{source.images}: found images of {shape}, allowed: {height} x {width}, as for training")
        return images.encode_labels(other, self.classes, path=source.labels)


def _sources(paths: dict[str, str | None], labels: dict[str, str | None]) -> dict[str, images.Source]:
    """Return where each part is, from what the options name and what the training folder holds."""
    train = Path(task_options.path(paths["train"], "train"))
    sources = {} if labels["train"] is not None else images.find_sources(train)
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
            raise TaskError(f"task_options.{part}_labels: found {own_labels!r}, allowed: beside {part} only")
    return sources


def _moments(pixels: images.Pixels) -> tuple[list[float], list[float]]:
    """Return mean and deviation of each channel, without a copy of all images in floating point."""
    counts = [np.bincount(pixels[:, channel].ravel(), minlength=256) for channel in range(pixels.shape[1])]
    levels = np.arange(256)
    means = [float((count * levels).sum() / count.sum()) for count in counts]
    variances = [
        float((count * (levels - mean) ** 2).sum() / count.sum()) for count, mean in zip(counts, means, strict=True)
    ]
    return means, [max(variance**0.5, 1.0) for variance in variances]
