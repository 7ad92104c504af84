"""Reads images from idx files (MNIST's format) or from a folder for each class: uint8 [n, c, h, w], 1 or 3 channels."""

import math
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from automl.standalone.image_rows import ImageRows, opened_image
from search_spaces.messages import found, install_command, listed, shown
from trainers.protocol import TaskError
from trainers.tasks.shared.split_task import Rows
from trainers.tasks.table.files import read_bytes

Pixels = np.ndarray[Any, np.dtype[np.uint8]]  # images, uint8 [n, c, h, w]

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_OTHER_ENDINGS = frozenset({
    "", ".heic", ".heif", ".avif", ".jfif", ".jp2", ".jxl", ".svg", ".psd", ".ico", ".raw", ".dng", ".cr2", ".nef",
    ".arw", ".dcm",
})  # fmt: skip
_UNSIGNED_BYTE = 0x08
_IDX_NAMES = {"train": ("*train-images*idx3*", "*train-labels*idx1*"), "test": ("*t*-images*idx3*", "*t*-labels*idx1*")}
"""Patterns for names as in MNIST: t10k-images-idx3-ubyte.gz, emnist-letters-test-images-idx3-ubyte."""
_LARGEST_SIDE = 64
_PART_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val"),
    "test": ("test", "testing"),
}
_MORE_PART_NAMES = {
    "train": ("train_set", "training_set"), "validation": ("dev", "validation_set"), "test": ("test_set", "holdout"),
}  # fmt: skip
_BITS = (8, 10, 12, 14, 16)
"""Possible bits per pixel in files of 16 or 32 bits: the smallest number that fits all training images."""
Ranges = dict[str, tuple[float, float]]  # values of black and white, for Pillow's modes I and F


@dataclass(frozen=True, kw_only=True, slots=True)
class Images:
    """Images with classes: pixels uint8 [n, c, h, w], classes int64 [n]."""

    pixels: Pixels
    labels: Rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A part's images: an idx file and a file of labels, or a folder with a sub-folder per class."""

    images: Path
    labels: Path | None = None
    parts: tuple[str, ...] = ()  # sub-folders of other parts


def find_sources(path: Path, *, is_new: bool) -> dict[str, Source]:
    """Return a folder's parts: "train", and if present "validation" and "test".

    The folder has idx files with MNIST's names, folders of parts with a sub-folder for each class, or only sub-folders
    for classes. If `is_new`, a sub-folder called test with the same classes as the folder counts as a part.
    """
    if not path.is_dir():
        what = "a file" if path.exists() else "no such folder"
        raise TaskError(f"{path}: found {what}, allowed: a folder of idx files, or of one folder for each class")
    sources = {part: source for part in _IDX_NAMES if (source := _idx_source(path, part)) is not None}
    if "train" in sources:
        return sources
    inner = {one.name.lower(): one for one in path.iterdir() if one.is_dir()}
    names = {part: (*all_of, *(_MORE_PART_NAMES[part] if is_new else ())) for part, all_of in _PART_NAMES.items()}
    parts = {part: Source(images=inner[name]) for part, all_of in names.items() for name in all_of if name in inner}
    if "train" in parts or not is_new:
        return parts if "train" in parts else {"train": Source(images=path)}
    folders = [one.images for one in parts.values()]
    found = {name for name, one in inner.items() if not _is_hidden(one.name) and one not in folders}
    if not found and len(parts) > 1:
        named = listed(one.name for one in folders)
        raise TaskError(f"{path}: found {named}, but no folder train. Rename the folder of training images to train")
    own = {part: one for part, one in parts.items() if found & {inside.name.lower() for inside in one.images.iterdir()}}
    return {"train": Source(images=path, parts=tuple(one.images.name for one in own.values())), **own}


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "__", "@"))


def _idx_source(path: Path, part: str) -> Source | None:
    images, labels = (
        [one for one in sorted(path.glob(name)) if part == "train" or "train-" not in one.name]
        for name in _IDX_NAMES[part]
    )
    return Source(images=images[0], labels=labels[0]) if images and labels else None


def class_folders(source: Source, *, with_hidden: bool) -> tuple[str, ...]:
    """Return a folder's sub-folders with images, sorted; by value if all names are numbers."""
    path = source.images
    names = [
        one.name
        for one in path.iterdir()
        if one.is_dir()
        and (with_hidden or not (_is_hidden(one.name) or one.name in source.parts))
        and any(image_files(one, with_hidden=with_hidden))
    ]
    if len(names) < 2:
        kinds = ", ".join(ENDINGS[:4])
        allowed = "one for each of at least two classes, or idx files such as train-images-idx3-ubyte.gz"
        raise TaskError(f"{path}: found {len(names)} sub-folders with images ({kinds}, ...), allowed: {allowed}")
    return tuple(sorted(names, key=int if all(name.isdigit() for name in names) else str))


def read_idx(source: Source) -> Images:
    """Read images and labels from idx files, which may be compressed with gzip."""
    if source.labels is None:
        raise TaskError(f"{source.images}: no file of labels. Put an idx file of labels beside it")
    pixels, labels = _idx(source.images, 3), _idx(source.labels, 1)
    if len(pixels) != len(labels):
        raise TaskError(f"{source.labels}: found {len(labels)} labels, allowed: {len(pixels)}, one for each image")
    if len(pixels) == 0:
        raise TaskError(f"{source.images}: no images. Give at least two")
    return Images(pixels=pixels[:, None], labels=labels.astype(np.int64))


def ranges_of(folder: Path, classes: Sequence[str]) -> Ranges:
    """Return the ranges of pixel values in images of more than 8 bits per pixel. Raises TaskError if infinite."""
    image_library()
    found: dict[str, list[tuple[float, float]]] = {}
    for path in (one for name in classes for one in image_files(folder / name)):
        mode = _look(path)[0][:1]
        if mode in {"I", "F"}:
            with opened_image(path) as image:
                pixels = np.asarray(image, dtype=np.float64)
            if not np.isfinite(pixels).all():
                raise TaskError(f"{path}: a pixel is infinite or not a number. Replace or remove the file")
            found.setdefault(mode, []).append((float(pixels.min()), float(pixels.max())))
    return {
        mode: _range(mode, min(low for low, _ in all_of), max(high for _, high in all_of))
        for mode, all_of in found.items()
    }


def _range(mode: str, low: float, high: float) -> tuple[float, float]:
    tops = [1.0] * (mode == "F") + [2.0**bits - 1 for bits in _BITS]
    if low >= 0:
        return 0.0, next((top for top in tops if high <= top), high)
    return (-1.0, 1.0) if low >= -1 and high <= 1 else (low, high)


def read_folder(
    source: Source, classes: Sequence[str], *, size: tuple[int, int] | None, channels: int | None, ranges: Ranges | None
) -> Images:
    """Read images from a folder with a sub-folder for each class. TaskError for a sub-folder of another name.

    Args:
        size: (height, width) to scale and crop to. None means the images' common size if at most 64, else a square of
            the smallest side of any image, at most 64.
        channels: 1 for grey, 3 for colours; None means the first image's.
        ranges: Ranges of images of more than 8 bits. None also reads hidden folders, and scales as in version 1.
    """
    image_library()
    folder, with_hidden = source.images, ranges is None
    unknown = [
        one.name
        for one in sorted(folder.iterdir())
        if one.is_dir()
        and one.name not in classes
        and (with_hidden or not (_is_hidden(one.name) or one.name in source.parts))
        and any(image_files(one, with_hidden=with_hidden))
    ]
    if unknown:
        raise TaskError(f"{folder}: found the class {unknown[0]!r}, allowed: the training folder's, {listed(classes)}")
    files = [
        (path, number)
        for number, name in enumerate(classes)
        for path in image_files(folder / name, with_hidden=with_hidden)
    ]
    paths = tuple(path for path, _ in files)
    if not paths:
        raise TaskError(f"{folder}: no images. Add files that end in {', '.join(ENDINGS[:4])}, ...")
    if channels is None:
        channels = _channels(paths[0])
    height, width = size if size is not None else _common_size(paths)
    pixels = np.empty((len(paths), channels, height, width), dtype=np.uint8)
    for index, path in enumerate(paths):
        pixels[index] = read_image(path, channels, height, width, ranges)
    return Images(pixels=pixels, labels=np.array([number for _, number in files], dtype=np.int64))


def read_image(path: Path, channels: int, height: int, width: int, ranges: Ranges | None) -> Pixels:
    """Return an image, uint8 [c, h, w], scaled to cover the size and cropped, as exported models do."""
    from PIL import Image

    rows = ImageRows({"channels": channels, "height": height, "width": width, "ranges": ranges})
    try:
        return np.frombuffer(rows.pixels(path), dtype=np.uint8).reshape(rows.shape)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise _no_image(path, error) from None


def encode_labels(images: Images, classes: Sequence[str], *, path: Path) -> Images:
    """Return images with classes numbered from 0, because some data sets number them from 1."""
    known = np.array([int(name) for name in classes])
    unknown = images.labels[~np.isin(images.labels, known)]
    if len(unknown):
        allowed = f"the training images' classes, {listed(classes)}"
        raise TaskError(f"{path}: found the class {unknown[0]}, allowed: {allowed}")
    return Images(pixels=images.pixels, labels=np.searchsorted(known, images.labels).astype(np.int64))


def check_labels(images: Images, classes: Sequence[str], *, path: Path) -> None:
    """Raise TaskError unless each class has two images, for training and validation."""
    counts = np.bincount(images.labels, minlength=len(classes))
    for number, name in enumerate(classes):
        if counts[number] < 2:
            problem = f"found {counts[number]} images of the class {shown(name)}"
            raise TaskError(f"{path}: {problem}. Each class needs two: one for training and one for validation")


def image_library() -> None:
    """Raise TaskError unless the package Pillow is installed."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise TaskError(f"folders of images need the package Pillow. Install it: {install_command('vision')}") from None


def _idx(path: Path, dimensions: int) -> Pixels:
    content = read_bytes(path)
    head = 4 + 4 * dimensions
    magic = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if content[:4] != magic or len(content) < head:
        problem = found(content[:4].hex(" "), f"{magic.hex(' ')}, an idx file of bytes in {dimensions} dimensions")
        raise TaskError(f"{path}: first bytes: {problem}")
    shape = struct.unpack(f">{dimensions}I", content[4:head])
    if len(content) - head != math.prod(shape):
        problem = f"found {len(content) - head} bytes of data"
        raise TaskError(f"{path}: {problem}, allowed: {math.prod(shape)}, for {' x '.join(map(str, shape))}")
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(shape).copy()


def image_files(folder: Path, *, with_hidden: bool = False) -> list[Path]:
    """Return a folder's image files, without hidden files and folders such as __MACOSX."""
    if not folder.is_dir():
        return []
    images = sorted(one for one in folder.rglob("*") if one.suffix.lower() in ENDINGS and not one.name.startswith("."))
    return [one for one in images if with_hidden or not any(map(_is_hidden, one.relative_to(folder).parts[:-1]))]


def unread_files(folder: Path) -> dict[str, dict[str, int]]:
    """Return each sub-folder's numbers of unreadable image files, by ending."""
    unread: dict[str, dict[str, int]] = {}
    for inside in sorted(one for one in folder.iterdir() if one.is_dir() and not _is_hidden(one.name)):
        others = (one.suffix.lower() for one in inside.rglob("*") if one.is_file() and not _is_hidden(one.name))
        if counts := Counter(one for one in others if one in _OTHER_ENDINGS):
            unread[inside.name] = dict(counts)
    return unread


def without_copies(parts: Mapping[str, tuple[Pixels, Rows]]) -> tuple[dict[str, tuple[Pixels, Rows]], int, int]:
    """Remove training images that other parts have, except a class's last. Returns parts, numbers removed and kept."""
    others = {pixels.tobytes() for part, (images, _) in parts.items() if part != "train" for pixels in images}
    images, labels = parts["train"]
    kept = np.array([pixels.tobytes() not in others for pixels in images])
    stay = ~kept & (np.bincount(labels[kept], minlength=labels.max() + 1)[labels] == 0)
    kept |= stay
    return {**parts, "train": (images[kept], labels[kept])}, int((~kept).sum()), int(stay.sum())


def _channels(path: Path) -> int:
    mode = _look(path)[0]
    return 1 if mode in {"1", "L", "LA", "F"} or mode.startswith("I") else 3


def _common_size(paths: Sequence[Path]) -> tuple[int, int]:
    sizes = {_look(path)[1] for path in paths}
    if len(sizes) == 1 and max(max(size) for size in sizes) <= _LARGEST_SIDE:
        return sizes.pop()
    side = max(8, min(_LARGEST_SIDE, *(min(size) for size in sizes)))
    return side, side


def _look(path: Path) -> tuple[str, tuple[int, int]]:
    try:
        with opened_image(path) as image:
            return image.mode, (image.height, image.width)
    except (OSError, ValueError, SyntaxError) as error:
        raise _no_image(path, error) from None


def _no_image(path: Path, error: BaseException) -> TaskError:
    reason = " ".join(str(error).replace(str(path), "").replace("''", "").split())[:80]
    return TaskError(f"{path}: the file is not a complete image ({reason}). Replace or remove it")
