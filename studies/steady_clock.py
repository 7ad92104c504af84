"""Clock of the controller's process, in seconds since 1970, which ignores later changes of the system clock."""

import time

_BEGAN_AT = time.time() - time.monotonic()


def now() -> float:
    """Return the current time in seconds since 1970; changes of the system clock since the import have no effect."""
    return _BEGAN_AT + time.monotonic()
