"""The clock of a controller's process: seconds since 1970 when the process began, and what has passed since then.

The clock of the machine is set now and then, and a laptop sleeps. Durations that are charged must not follow: this
clock never goes back and never jumps. Time in which the machine was suspended does not pass by it, as it does not for
ranks, since nothing was trained and nothing was there to be used. So moments by this clock may be behind those of a
clock on the wall, by as much as that was set forward since the process began; the next process begins with the wall's.
"""

from __future__ import annotations

import time

_BEGAN_AT = time.time() - time.monotonic()


def now() -> float:
    """The present moment in seconds since 1970, by a clock that nobody sets."""
    return _BEGAN_AT + time.monotonic()
