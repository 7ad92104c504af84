"""A synthetic example row of an exported model, without user data."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Any

EXAMPLE_IMAGE = "input_example.png"
"""File name of the example in a package of an image model."""


def example_rows(manifest: Mapping[str, Any]) -> list[Any]:
    """Return an example row, for images a file name (see `example_image`); empty if only the model's code knows it."""
    rows = manifest["rows"]
    kind = None if rows is None else rows["kind"]
    if kind == "table":
        numbers = {one["name"]: "2024-12-31" if one["is_date"] else one["median"] for one in rows["numbers"]}
        return [numbers | {one["name"]: next(iter(one["levels"]), None) for one in rows["categories"]}]
    if kind == "text":
        return ["An example of a text."]
    if kind == "image":
        return [EXAMPLE_IMAGE]
    return [_zeros(rows["shape"], rows["dtype"])] if kind == "array" else []


def example_image(manifest: Mapping[str, Any]) -> bytes | None:
    """Return a grey PNG image of the model's input size; None for other models."""
    rows = manifest["rows"]
    if rows is None or rows["kind"] != "image":
        return None
    width, height = int(rows["width"]), int(rows["height"])
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)  # 8 bits, grey, no interlacing
    pixels = zlib.compress((b"\0" + b"\x80" * width) * height)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def _zeros(shape: list[int], dtype: str) -> Any:
    if shape:
        return [_zeros(shape[1:], dtype) for _ in range(max(1, shape[0]))]
    return 0.0 if dtype.startswith("float") else 0
