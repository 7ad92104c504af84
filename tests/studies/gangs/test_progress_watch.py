"""The thread that asks ranks for their progress ends with the pool, also if Ray is gone before it has looked."""

import threading

import pytest

from studies.gangs.rank_deaths_and_reports import ProgressWatch


class Watch(ProgressWatch):
    """Fails at its second look, as when Ray is shut down meanwhile; the pool is closed by then, or not."""

    def __init__(self, closing: threading.Event, *, closes: bool) -> None:
        super().__init__([], lambda _: None, ask_seconds=0.001)
        self.looks, self._closing, self._closes = 0, closing, closes

    def look(self) -> None:
        self.looks += 1
        if self.looks == 2:
            if self._closes:
                self._closing.set()
            raise AttributeError("'Worker' object has no attribute 'core_worker'")


def test_a_look_that_fails_while_the_pool_closes_ends_quietly() -> None:
    closing = threading.Event()
    watch = Watch(closing, closes=True)
    watch.run(closing)
    assert watch.looks == 2


def test_any_other_failure_is_raised() -> None:
    closing = threading.Event()
    with pytest.raises(AttributeError, match="core_worker"):
        Watch(closing, closes=False).run(closing)
