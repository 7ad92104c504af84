"""Tensors that ranks store in parts. Each rank writes its rows to its own file, called a share.

A share has the safetensors layout (https://huggingface.co/docs/safetensors). A tensor's name is its path in the
content; `rows` in the header's metadata maps each name, in JSON, to [path, shape of the whole tensor, first row]. The
main file has size and CRC-32 of each share. They detect damage but not malice; nothing in a share is ever executed.
"""

import json
import math
import mmap
import os
import struct
import warnings
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import torch
from torch import Tensor

from trainers.checkpoints.checkpoint_cache import Content, DamagedObjectError
from trainers.checkpoints.checkpoint_stores import place_of
from trainers.checkpoints.locations import is_url, share_path
from trainers.failures import CheckpointError, StorageError, of_unread_file


def check_shares(path: str | Path, content: Mapping[str, Any]) -> None:
    """Read all shares without the cache. Raises CheckpointError for a damaged share."""
    if "shares" in content:
        for number, facts in enumerate(_facts(content, path)):
            with closing(_share(path, number, content, facts, fresh=True)) as share:
                check_share(share, facts)


def shares_of(content: Mapping[str, Any], path: str | Path) -> "list[tuple[ShareFile, ShareFacts]]":
    """Return the ranks' shares with their sizes and checksums from the main file."""
    return [(_share(path, rank, content, one), one) for rank, one in enumerate(_facts(content, path))]


def _facts(content: Mapping[str, Any], path: str | Path) -> "list[ShareFacts]":
    try:
        facts = [ShareFacts(bytes=size, crc32=crc, sha256=sha256) for size, crc, sha256 in content["shares"]]
        if not all([*map(type, row)] == [int, int, str] for row in content["shares"]):
            raise TypeError("each share needs size, CRC-32 and SHA-256")
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: its list of shares has an unknown form") from error
    return facts


def _share(
    path: str | Path, rank: int, content: Mapping[str, Any], facts: "ShareFacts", *, fresh: bool = False
) -> "ShareFile":
    share = share_path(path, rank, len(content["shares"]))
    if not is_url(path):
        return ShareFile(share)
    try:
        copy = place_of(share).open_part(share, Content(bytes=facts.bytes, sha256=facts.sha256), fresh=fresh)
    except FileNotFoundError as error:
        raise CheckpointError(f"{share} is missing. Keep all files of a checkpoint together") from error
    except DamagedObjectError as error:
        raise CheckpointError(f"{share} is damaged: {error}") from error
    except OSError as error:
        raise StorageError(f"cannot read {share}: {error}") from error
    return ShareFile(share, copy)


_ALIGNMENT = 64
_LENGTH = struct.Struct("<Q")
_CHUNK_BYTES = 2**22
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "C64": torch.complex64, "C128": torch.complex128,
}  # fmt: skip
"""Torch dtypes by their names in a share. safetensors has all but the last name."""
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

Key: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Rows of a tensor that this rank stores, shape [n, ...]; a tensor without dimensions is whole."""

    rows: Tensor
    first: int
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareFacts:
    """Size and checksums of a share, as the main file stores them. `sha256` is empty in a folder."""

    bytes: int
    crc32: int
    sha256: str = ""


class ShareFile:
    """A share to read: a file, opened for each reading, or an open `copy` of an object."""

    def __init__(self, path: str, copy: BinaryIO | None = None) -> None:
        self._path, self._copy = path, copy
        if copy is not None:
            weakref.finalize(self, copy.close)  # the last tensor that reads from it is gone

    def __str__(self) -> str:
        return self._path

    def size(self) -> int:
        """Return the size of the file in bytes. Raises OSError if the file is missing."""
        return Path(self._path).stat().st_size if self._copy is None else os.fstat(self._copy.fileno()).st_size

    def read_into(self, offset: int, memory: memoryview) -> None:
        """Fill `memory` from `offset` on. Raises StorageError (disk fails) or CheckpointError (file too short)."""
        try:
            with self._opened() as file:
                file.seek(offset)
                at = 0
                while at < len(memory):
                    count = file.readinto(memory[at:])
                    if not count:
                        raise CheckpointError(f"{self} is damaged: it ends within a tensor")
                    at += count
        except OSError as error:
            raise of_unread_file(self._path, error) from error

    def _opened(self) -> AbstractContextManager[Any]:
        return Path(self._path).open("rb", buffering=0) if self._copy is None else nullcontext(self._copy)

    def close(self) -> None:
        """Close the open copy, if there is one."""
        if self._copy is not None:
            self._copy.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Extent:
    file: ShareFile
    offset: int
    first: int
    rows: int


class StoredTensor:
    """A tensor whose rows are stored in shares. Any rows can be read separately."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        self.shape, self.dtype = torch.Size(shape), dtype
        self._extents: list[_Extent] = []

    def numel(self) -> int:
        """Return the number of elements."""
        return self.shape.numel()

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, or of the whole tensor if it has no dimensions."""
        return self.dtype.itemsize * math.prod(self.shape[1:])

    @property
    def rows(self) -> int:
        """Number of rows; 1 for a tensor without dimensions."""
        return self.shape[0] if self.shape else 1

    def add(self, extent: _Extent) -> None:
        """Add a place of some of the tensor's rows."""
        self._extents.append(extent)

    def close(self) -> None:
        """Raise CheckpointError unless each row is stored exactly once."""
        self._extents.sort(key=lambda one: (one.first, one.rows))
        at = 0
        for extent in self._extents:
            if extent.first != at:
                break
            at += extent.rows
        if at != self.rows or sum(one.rows for one in self._extents) != at:
            raise CheckpointError(f"rows are missing or stored twice in a tensor of shape {list(self.shape)}")

    def read_into(self, target: Tensor, first: int = 0) -> None:
        """Fill `target`, shape [n, ...] on any device, with n rows from row `first` on. Raises CheckpointError."""
        rows = target.shape[0] if self.shape else 1
        direct = target.device.type == "cpu" and target.is_contiguous()
        buffer = target if direct else torch.empty(target.shape, dtype=self.dtype)
        if buffer.numel() == 0:
            return
        memory = memoryview(byte_view(buffer))
        for file, offset, begin, size in self._ranges(first, rows):
            file.read_into(offset, memory[begin : begin + size])
        if not direct:
            target.copy_(buffer)

    def chunks(self) -> Iterator[bytes]:
        """Yield the tensor's bytes in chunks of a few megabytes. Raises CheckpointError."""
        for file, offset, _, size in self._ranges(0, self.rows):
            for begin in range(0, size, _CHUNK_BYTES):
                chunk = bytearray(min(_CHUNK_BYTES, size - begin))
                file.read_into(offset + begin, memoryview(chunk))
                yield bytes(chunk)

    def whole(self) -> Tensor:
        """Return the whole tensor on the CPU. Raises CheckpointError."""
        tensor = torch.empty(self.shape, dtype=self.dtype)
        self.read_into(tensor)
        return tensor

    def _ranges(self, first: int, rows: int) -> Iterator[tuple[ShareFile, int, int, int]]:
        """Yield (file, offset in the file, offset in the requested rows, size), in bytes, of each stored range."""
        size = self.row_bytes
        for one in self._extents:
            begin, end = max(first, one.first), min(first + rows, one.first + one.rows)
            if begin < end and size:
                yield one.file, one.offset + (begin - one.first) * size, (begin - first) * size, (end - begin) * size


def byte_view(tensor: Tensor) -> Any:
    """Return the memory of a contiguous CPU tensor as an array of bytes."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def copy_rows(source: Tensor | StoredTensor, target: Tensor, first: int = 0) -> None:
    """Fill `target`, shape [n, ...] on any device, with n rows of `source` from row `first` on."""
    if isinstance(source, StoredTensor) and source.dtype == target.dtype:
        source.read_into(target, first)
        return
    if isinstance(source, StoredTensor):
        rows = torch.empty(target.shape, dtype=source.dtype)
        source.read_into(rows, first)
    else:
        rows = source[first : first + target.shape[0]] if target.dim() else source
    target.copy_(rows)


def whole(value: Tensor | StoredTensor) -> Tensor:
    """Return a checkpoint's tensor in memory."""
    return value.whole() if isinstance(value, StoredTensor) else value


def with_whole_tensors(value: Any) -> Any:
    """Return a saved state with all tensors in memory."""
    if isinstance(value, StoredTensor):
        return whole(value)
    if type(value) is dict:
        return {name: with_whole_tensors(one) for name, one in value.items()}
    return value


def in_memory(weights: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a state dict with all tensors in memory; the same dict if no tensor is stored."""
    has_stored = any(isinstance(value, StoredTensor) for value in weights.values())
    return {name: whole(value) for name, value in weights.items()} if has_stored else weights


def mapped_whole(weights: Mapping[str, Any], scratch: BinaryIO) -> Mapping[str, Any]:
    """Copy stored tensors to the file `scratch`, and map it into memory. May raise OSError or CheckpointError."""
    offsets: dict[str, int] = {}
    at = 0
    for name, value in weights.items():
        if isinstance(value, StoredTensor) and value.numel():
            at += scratch.write(bytes(-at % _ALIGNMENT))
            offsets[name] = at
            for chunk in value.chunks():
                at += scratch.write(chunk)
    scratch.flush()
    if not offsets:
        return in_memory(weights)
    memory = mmap.mmap(scratch.fileno(), at, access=mmap.ACCESS_READ)

    def mapped(value: StoredTensor, offset: int) -> Tensor:
        return torch.frombuffer(memory, dtype=value.dtype, count=value.numel(), offset=offset).view(value.shape)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that the memory is read-only
        return {
            name: mapped(value, offsets[name]) if name in offsets else whole(value) for name, value in weights.items()
        }


def pieces_in(content: Mapping[Any, Any], at: Key = ()) -> Iterator[tuple[Key, Piece]]:
    """Yield each `Piece` in nested mappings, with its path of keys."""
    for name, value in content.items():
        if isinstance(value, Piece):
            yield (*at, name), value
        elif isinstance(value, Mapping):
            yield from pieces_in(value, (*at, name))


def without_pieces(content: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return nested mappings with None in place of each `Piece`."""
    return {
        name: None if isinstance(value, Piece) else without_pieces(value) if isinstance(value, Mapping) else value
        for name, value in content.items()
    }


def write_share(pieces: Iterable[tuple[Key, Piece]], file: BinaryIO) -> ShareFacts:
    """Write a header and the `Piece`s to a file, with one tensor at a time in host memory."""
    header: dict[str, Any] = {}
    rows, tensors, end = {}, [], 0
    for key, piece in pieces:
        name = "/".join(map(str, key))
        while name in header:  # for example for the keys 1 and "1"
            name += "'"
        begin, end = end, end + piece.rows.numel() * piece.rows.dtype.itemsize
        form = {"dtype": _NAMES[piece.rows.dtype], "shape": list(piece.rows.shape), "data_offsets": [begin, end]}
        header[name], rows[name] = form, [list(key), list(piece.shape), piece.first]
        tensors.append(piece.rows)
    header["__metadata__"] = {"format": "pt", "rows": json.dumps(rows)}
    text = json.dumps(header).encode()
    text += b" " * (-(_LENGTH.size + len(text)) % _ALIGNMENT)
    size, crc = 0, 0
    contents = (memoryview(byte_view(tensor.cpu().contiguous())) for tensor in tensors)
    parts: Iterator[Any] = chain([_LENGTH.pack(len(text)), text], contents)
    for data in parts:
        file.write(data)
        size, crc = size + len(data), zlib.crc32(data, crc)
    return ShareFacts(bytes=size, crc32=crc)


def attach(content: dict[Any, Any], shares: Sequence[tuple[ShareFile, ShareFacts]]) -> None:
    """Add the shares' tensors to a main file's content. Raises CheckpointError for a wrong size or index."""
    found: dict[Key, StoredTensor] = {}
    for path, facts in shares:
        for key, dtype, shape, extent in _index_of(path, facts):
            tensor = found.setdefault(key, StoredTensor(shape, dtype))
            if (tensor.shape, tensor.dtype) != (torch.Size(shape), dtype):
                raise CheckpointError(f"{path} is damaged: {key} has different shapes or types in two ranks' files")
            tensor.add(extent)
    for key, tensor in found.items():
        tensor.close()
        node = content
        for name in key[:-1]:
            node = node.setdefault(name, {})
            if not isinstance(node, dict):
                raise CheckpointError(f"{shares[0][0]} is damaged: the path {key} continues below a plain value")
        node[key[-1]] = tensor


def check_share(share: ShareFile, facts: ShareFacts) -> None:
    """Read a whole share. Raises CheckpointError if it is missing or damaged."""
    _check_size(share, facts)
    crc = 0
    for at in range(0, facts.bytes, _CHUNK_BYTES):
        chunk = bytearray(min(_CHUNK_BYTES, facts.bytes - at))
        share.read_into(at, memoryview(chunk))
        crc = zlib.crc32(chunk, crc)
    if crc != facts.crc32:
        raise CheckpointError(f"{share} is damaged: its CRC-32 is {crc:08x} instead of {facts.crc32:08x}")


def _check_size(share: ShareFile, facts: ShareFacts) -> None:
    try:
        size = share.size()
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{share} is missing here. Keep all files of a checkpoint together, in a folder that all ranks see"
        ) from error
    except OSError as error:
        raise of_unread_file(str(share), error) from error
    if size != facts.bytes:
        raise CheckpointError(f"{share} is damaged: it has {size} bytes instead of {facts.bytes}")


def _index_of(share: ShareFile, facts: ShareFacts) -> Iterator[tuple[Key, torch.dtype, list[int], _Extent]]:
    """Yield the tensors of a share's header, checked as far as possible without other shares."""
    _check_size(share, facts)
    end = 0
    try:
        (length,) = _LENGTH.unpack(_read(share, 0, _LENGTH.size))
        start = _LENGTH.size + length
        if start > facts.bytes:
            raise ValueError(f"a header of {length} bytes would be longer than the file")
        header = json.loads(_read(share, _LENGTH.size, length))
        for name, (key, shape, first) in json.loads(header["__metadata__"]["rows"]).items():
            dtype, (begin, stop) = _DTYPES[header[name]["dtype"]], header[name]["data_offsets"]
            if not key or not all(type(one) in {str, int} for one in key):
                raise ValueError(f"{key} is not a path of names and numbers")
            if not all(type(one) is int and one >= 0 for one in (*shape, first, begin, stop)) or begin != end:
                raise ValueError(f"{key} has a wrong shape or offset")
            end = stop
            row_bytes = dtype.itemsize * math.prod(shape[1:])
            rows = header[name]["shape"][0] if shape else 1
            if type(rows) is not int or rows * row_bytes != stop - begin or start + stop > facts.bytes:
                raise ValueError(f"the size of {key} does not fit its shape or the file")
            yield tuple(key), dtype, shape, _Extent(file=share, offset=start + begin, first=first, rows=rows)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, struct.error) as error:
        raise CheckpointError(
            f"{share} is damaged: its header cannot be read ({type(error).__name__}: {error})"
        ) from error


def _read(share: ShareFile, offset: int, size: int) -> bytearray:
    content = bytearray(size)
    share.read_into(offset, memoryview(content))
    return content
