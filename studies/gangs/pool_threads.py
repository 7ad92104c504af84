"""The threads of a pool, which have to end before Ray does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


class PoolThreads:
    """Starts threads, and waits for their ends."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self, name: str, target: Callable[..., None], *arguments: Any) -> None:
        """Call a function in a thread of its own."""
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        with self._changing:
            self._threads = [*self.living(), thread]
            thread.start()

    def living(self) -> list[threading.Thread]:
        """Threads that have not ended."""
        return [thread for thread in self._threads if thread.is_alive()]

    def join(self, seconds: float) -> None:
        """Wait for all threads but the one that asks, so many seconds in all."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0.0))
