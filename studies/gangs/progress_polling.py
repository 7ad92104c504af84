"""Polling of the ranks on Ray for their progress, to distinguish slow ranks from hanging ranks.

A second thread of each rank answers. A hanging rank's count does not change, or it does not answer: both are silence.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from studies.gangs.pool_protocol import Event, Progress
from studies.gangs.rank_deaths_and_reports import Gang

ASK_SECONDS = 2.0
"""Seconds between two questions to a rank; gangs with shorter epochs report often enough by themselves."""


@dataclass(kw_only=True, slots=True)
class _Heard:
    gang: Gang
    counts: dict[int, Any] = field(default_factory=dict)
    asked: dict[Any, int] = field(default_factory=dict)
    told: tuple[int, bool] = (0, True)
    asks_all: bool = False


class ProgressWatch:
    """Posts the progress of gangs."""

    def __init__(self, gangs: Iterable[Gang], post: Callable[[Event], None], ask_seconds: float = ASK_SECONDS) -> None:
        self._gangs, self._post, self.ask_seconds = gangs, post, ask_seconds
        self._heard: dict[str, _Heard] = {}

    def run(self, closing: threading.Event) -> None:
        """Poll until the pool is closed, and Ray with it."""
        while not closing.wait(self.ask_seconds):
            try:
                self.look()
            except Exception:
                if not closing.is_set():
                    raise

    def look(self) -> None:
        """Post the answers to earlier questions, and ask again."""
        gangs = {gang.key: gang for gang in self._gangs if gang.reports and not gang.over.is_set()}
        self._heard = {key: self._heard.get(key) or _Heard(gang=gang) for key, gang in gangs.items()}
        for heard in self._heard.values():
            if heard.asked:
                self._take_in(heard)
            if time.monotonic() - heard.gang.spoke_at >= self.ask_seconds:
                self._ask(heard)

    def _ask(self, heard: _Heard) -> None:
        actors = heard.gang.actors if heard.asks_all else heard.gang.actors[:1]
        waits_for = set(heard.asked.values())
        for rank, actor in enumerate(actors):
            if rank not in waits_for:
                heard.asked[actor.call.remote("steps", heard.gang.key)] = rank

    def _take_in(self, heard: _Heard) -> None:
        import ray

        answered, _ = ray.wait(list(heard.asked), num_returns=len(heard.asked), timeout=0)
        for ref in answered:
            rank = heard.asked.pop(ref)
            try:
                heard.counts[rank] = ray.get(ref)
            except Exception:  # noqa: BLE001 - the reader of the rank's reports handles its death
                heard.counts.pop(rank, None)
        now = (sum(one.count for one in heard.counts.values()), any(one.is_first for one in heard.counts.values()))
        if now == heard.told or not heard.counts:
            heard.asks_all = len(heard.gang.actors) > 1
            return
        heard.told = now
        gang, own = heard.gang, heard.counts.get(0)
        self._post(
            Progress(
                trial_id=gang.trial_id,
                attempt=gang.attempt,
                epoch=own.epoch if own else 0,
                fraction=own.fraction if own else 0.0,
                is_first=now[1],
            )
        )
