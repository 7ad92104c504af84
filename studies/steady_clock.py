"""Clock that ignores changes of the system clock."""

import time

_BEGAN_AT = time.time() - time.monotonic()


def now() -> float:
    """Return the current time in seconds since 1970, without changes of the system clock since the import."""
    return _BEGAN_AT + time.monotonic()
