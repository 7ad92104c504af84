"""Texts of the page in compressed form, which its script unpacks: a script of 5 MB takes less than 2 MB of the file.

The bytes are zlib's, written in base 85, which takes a quarter more characters than bytes; base64 takes a third. The
three characters that HTML could read as markup are replaced by three that base 85 leaves free.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass

from markupsafe import Markup

_MARKUP, _FREE = "<&>", ",.:"
_TO_PAGE = str.maketrans(_MARKUP, _FREE)
_FROM_PAGE = str.maketrans(_FREE, _MARKUP)


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """A compressed text.

    Attributes:
        text: Bytes of zlib in base 85, safe inside a script element.
        size: Number of these bytes; the last group of five characters may hold fewer than four.
    """

    text: Markup
    size: int


def packed(text: str) -> Packed:
    """Return a text in compressed form."""
    compressed = zlib.compress(text.encode(), 9)
    safe = base64.b85encode(compressed).decode().translate(_TO_PAGE)
    return Packed(text=Markup(safe), size=len(compressed))  # noqa: S704 - no character of markup is left


def unpacked(text: str) -> str:
    """Return the text that `packed` was given, from what stands in the page."""
    return zlib.decompress(base64.b85decode(text.strip().translate(_FROM_PAGE))).decode()
