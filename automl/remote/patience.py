"""How long a service may be away before a command gives up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from automl.remote.errors import UnreachableError

PATIENCE_SECONDS = 60.0
"""Time for which a service that does not answer is asked again, as while it starts anew."""
_PAUSE_SECONDS = 1.0
Found = TypeVar("Found")


@dataclass(slots=True)
class Patience:
    """Waits between failures, the first of which in a row begins the time that the service has.

    Attributes:
        clock: Function that returns the present moment in seconds.
        sleep: Function that waits for so many seconds.
    """

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _failed_at: float | None = None

    def answered(self) -> None:
        """Note that the service is there."""
        self._failed_at = None

    def failed(self, error: UnreachableError) -> None:
        """Wait until the service may be asked again.

        Raises:
            UnreachableError: It has not answered for `PATIENCE_SECONDS`.
        """
        now = self.clock()
        if self._failed_at is None:
            self._failed_at = now
        if now - self._failed_at >= PATIENCE_SECONDS:
            raise error
        self.sleep(_PAUSE_SECONDS)


def patiently(ask: Callable[[], Found]) -> Found:
    """Ask again as long as the service does not answer, for `PATIENCE_SECONDS`."""
    patience = Patience()
    while True:
        try:
            return ask()
        except UnreachableError as error:
            patience.failed(error)
