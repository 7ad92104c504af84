"""Clock of a controller's process: seconds since 1970 at its start, and from then on a clock that cannot be set."""

import time

_BEGAN_AT = time.time() - time.monotonic()


def now() -> float:
    """Return the current moment in seconds since 1970, by a clock that cannot be set."""
    return _BEGAN_AT + time.monotonic()
