"""The clock of a controller's process: seconds since 1970 at its begin, and from then on a clock that nobody sets."""

from __future__ import annotations

import time

_BEGAN_AT = time.time() - time.monotonic()


def now() -> float:
    """The present moment in seconds since 1970, by a clock that nobody sets."""
    return _BEGAN_AT + time.monotonic()
