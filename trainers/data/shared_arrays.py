"""Shares a task's data among the ranks of a node: all ranks map one file into memory.

A large array is written to a file named by the hash of its content, and replaced by a memory mapping. Writing to the
mapping changes only private copies of pages. Every process that maps a file holds a shared lock on it; the next process
that shares an array deletes unlocked files.
"""

import fcntl
import hashlib
import logging
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

log = logging.getLogger(__name__)

LEAST_BYTES = 16 * 2**20  # least size of a shared array; mapping a smaller array costs more than it saves
_DEEPEST = 4
_SPARE_SHARE = 0.5  # largest part of the disk's free space for one array
_MOST_ITEMS = 1000  # most items of a searched container; longer containers hold samples


def share_arrays(holder: object, folder: Path | None = None) -> None:
    """Replace an object's large arrays and tensors by mappings of files that this node's processes share.

    Searches attributes, and dicts, lists, tuples, Datasets, dataclasses and objects of the same package in them. Skips
    views, non-contiguous arrays and device tensors. Replaces nothing if no file can be written.
    """
    own = folder or Path(tempfile.gettempdir()) / f"automl-arrays-{os.getuid()}"
    _Sharing(own, type(holder).__module__.partition(".")[0]).visit(holder, _DEEPEST)


class _Sharing:
    def __init__(self, folder: Path, package: str) -> None:
        self._folder, self._package = folder, package
        self._replaced: dict[int, tuple[Any, Any]] = {}  # holds the originals, so that ids are not reused

    def visit(self, value: Any, depth: int) -> Any:
        if id(value) in self._replaced:
            return self._replaced[id(value)][1]
        if isinstance(value, np.ndarray | Tensor):
            new = self._shared(value)
        elif depth == 0 or not self._is_looked_into(value):
            return value
        else:
            self._replaced[id(value)] = value, value  # a cycle ends here
            new = self._visit_inside(value, depth - 1)
        self._replaced[id(value)] = value, new
        return new

    def _is_looked_into(self, value: Any) -> bool:
        if isinstance(value, dict | list | tuple):
            return len(value) <= _MOST_ITEMS
        if isinstance(value, nn.Module | ModuleType | type | FunctionType):
            return False
        is_ours = type(value).__module__.partition(".")[0] == self._package
        return is_ours or isinstance(value, Dataset) or is_dataclass(value)

    def _visit_inside(self, value: Any, depth: int) -> Any:
        if type(value) is dict:
            value.update({name: self.visit(one, depth) for name, one in value.items()})
        elif type(value) is list:
            value[:] = [self.visit(one, depth) for one in value]
        elif isinstance(value, tuple):
            items = [self.visit(one, depth) for one in value]
            if any(new is not old for new, old in zip(items, value, strict=True)):
                return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        elif not isinstance(value, dict | list) and hasattr(value, "__dict__"):
            attributes = vars(value)
            attributes.update({name: self.visit(one, depth) for name, one in attributes.items()})
        return value

    def _shared(self, value: NDArray[Any] | Tensor) -> Any:
        if isinstance(value, Tensor):
            if not _stands_alone(value):
                return value
            array = self._mapped(value.detach().view(torch.uint8).numpy())
            return value if array is None else torch.from_numpy(array).view(value.dtype).view(value.shape)
        is_whole = value.flags.owndata and value.flags.c_contiguous and not value.dtype.hasobject
        if type(value) is not np.ndarray or not is_whole or value.nbytes < LEAST_BYTES:
            return value
        array = self._mapped(value.reshape(-1).view(np.uint8))
        return value if array is None else array.view(value.dtype).reshape(value.shape)

    def _mapped(self, content: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
        flat = content.reshape(-1)
        name = f"{hashlib.blake2b(flat.data, digest_size=20).hexdigest()}-{flat.nbytes}"
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            found = self._folder.lstat()
            if found.st_uid != os.getuid() or self._folder.is_symlink():
                raise PermissionError(f"{self._folder} belongs to another user")
            with _locked(self._folder / "lock"):
                _sweep(self._folder, keep=name)
                path = self._folder / name
                if not path.exists() or path.stat().st_size != flat.nbytes:
                    if flat.nbytes > _SPARE_SHARE * shutil.disk_usage(self._folder).free:
                        return None
                    _write(path, flat)
                with path.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_SH)
                    # The mapping keeps a duplicate of the descriptor, and with it the lock.
                    mapping = mmap.mmap(file.fileno(), flat.nbytes, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
                return np.frombuffer(mapping, dtype=np.uint8)
        except (OSError, ValueError) as error:
            log.warning("each rank keeps its own copy of the task's data, because sharing failed: %s", error)
            return None


def _stands_alone(tensor: Tensor) -> bool:
    """Return whether a tensor is plain, large, on the CPU, and fills its whole storage."""
    is_plain = type(tensor) is Tensor and tensor.device.type == "cpu" and tensor.layout == torch.strided
    if not is_plain or tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
        return False
    if not tensor.is_contiguous() or tensor.dim() == 0:
        return False
    size = tensor.numel() * tensor.element_size()
    return size >= LEAST_BYTES and tensor.untyped_storage().nbytes() == size


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(path: Path, content: NDArray[np.uint8]) -> None:
    unfinished = path.with_suffix(".unfinished")
    try:
        with unfinished.open("wb") as file:
            file.write(content.data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def _sweep(folder: Path, *, keep: str) -> None:
    for path in folder.iterdir():
        if path.name in {"lock", keep}:
            continue
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
