"""Reads image files as pixels, as in training."""

import io
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .batches import Encoded, encoded
from .errors import InputError

IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Image formats that Pillow may read. Its other readers start programs or are rarely tested."""
MOST_PIXELS = 150_000_000


class ImageRows:
    """Scales images to cover the form's size, and crops the middle. Raises ImportError without Pillow.

    Args:
        form: `channels`, `height`, `width`; optional `ranges`, the values of black and white for Pillow's modes I
            (integers) and F (floats). With `ranges`, transparent pixels become white, else transparency is dropped.
    """

    kind = "image"
    dtype = "uint8"
    fill = 0

    def __init__(self, form: Mapping[str, Any]) -> None:
        import PIL.Image  # noqa: F401 - so that a missing package is reported before the first row

        self.shape = (int(form["channels"]), int(form["height"]), int(form["width"]))
        self._ranges = form.get("ranges")

    def encode(self, row: Any, number: int) -> Encoded:
        """Encode an image as uint8 [channels, height, width]. Raises InputError if Pillow cannot read it."""
        where = f"row {number + 1}"
        if not isinstance(row, str | Path | bytes):
            raise InputError(number, f"{where}: found {type(row).__name__}, allowed: an image file")
        name = "the content of a file" if isinstance(row, bytes) else repr(str(row))
        try:
            return encoded(self.dtype, self.shape, self.pixels(io.BytesIO(row) if isinstance(row, bytes) else row))
        except (OSError, ValueError, SyntaxError) as error:
            reason = " ".join(str(error).split())[:80]
            raise InputError(number, f"{where}: {name} is not a complete image ({reason})") from None

    def pixels(self, source: Any) -> bytes:
        """Return an image file's pixels, channel by channel. Raises Pillow's errors."""
        from PIL import Image, ImageOps

        channels, height, width = self.shape
        with opened_image(source) as opened:
            upright = ImageOps.exif_transpose(opened)
            image = _eight_bits(upright) if self._ranges is None else _visible(upright, self._ranges)
            image = image.convert("L" if channels == 1 else "RGB")
        if image.size != (width, height):
            image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
        return b"".join(band.tobytes() for band in image.split())


@contextmanager
def opened_image(source: Any) -> Iterator[Any]:
    """Open an image file of `IMAGE_FORMATS`.

    Raises ValueError for too many pixels or a file that is not regular, else Pillow's errors.
    """
    from PIL import Image

    if isinstance(source, str | Path) and not stat.S_ISREG(Path(source).stat().st_mode):
        raise ValueError("it is not a regular file")
    try:
        opened = Image.open(source, formats=IMAGE_FORMATS)
    except Image.DecompressionBombError as error:
        raise ValueError(str(error)) from None
    with opened as image:
        if image.width * image.height > MOST_PIXELS:
            raise ValueError(f"it has {image.width * image.height} pixels, more than {MOST_PIXELS}")
        yield image


def _visible(image: Any, ranges: Mapping[str, Any]) -> Any:
    """Convert an image to 8 bits without transparency. Raises ValueError for a mode without `ranges`."""
    from PIL import Image

    if image.mode in {"RGBA", "LA", "PA", "RGBa", "La"} or "transparency" in image.info:
        colours = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), colours)
    kind = image.mode[:1]
    if kind not in {"I", "F"}:
        return image
    if kind not in ranges:
        what = "floats" if kind == "F" else "more than 8 bits"
        raise ValueError(f"it has {what} for each pixel, unlike the training images")
    low, high = ranges[kind]
    scale = 255 / (high - low)
    # A point operation on floats runs in C; converting them truncates, so the added half rounds.
    floats = image.convert("I").convert("F") if kind == "I" else image
    return floats.point(lambda value: value * scale + (0.5 - low * scale)).convert("L")


def _eight_bits(image: Any) -> Any:
    """Convert 16 bits per pixel to 8 bits. Pillow would clip bright pixels."""
    if not image.mode.startswith("I"):
        return image
    # A point operation on integers runs in C and truncates; the added term keeps 257 x 3 / 257 from becoming 2.
    return image.convert("I").point(lambda value: value * (1 / 257) + 0.001).convert("L")
