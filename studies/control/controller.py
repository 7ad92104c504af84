"""Carries out the commands of a study's state machine.

    events ─► machine.handle ─► grants at once ─► one commit ─► everything else

Permission to train an epoch (a grant) may be sent before the commit, since an epoch can be repeated after a crash.
Stopping, pausing or resuming a trial must wait for the commit.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

from studies.control.files.kept_files import Deleter
from studies.control.machine.next_trial import narrowed
from studies.control.machine.state import StudyMachine
from studies.control.machine.study_setup import (
    ClosePool,
    Command,
    DeleteFile,
    DrainGang,
    EndGang,
    Grant,
    KillGang,
    ReleaseSlots,
    StartGang,
    Step,
    Suggest,
)
from studies.gangs.pool_protocol import (
    CancelRequested,
    DrainRequested,
    Event,
    GangPool,
    PoolError,
    PriceSet,
    SlotsReady,
    SuggestionFailed,
    Tick,
    TrialQueued,
)
from studies.search.samplers.suggester import Suggester, Suggestion
from studies.storage.study_store import LeaseLostError, QueuedTrial, new_id
from studies.storage.writing.changes import Change
from studies.storage.writing.retrying import retry

TICK_SECONDS = 0.5
_MEANWHILE = "training continues, measurements wait"
log = logging.getLogger(__name__)


class Rows(Protocol):
    """Methods of `Store` that a controller calls; simulations implement them in memory."""

    def commit(
        self, study_id: int, lease_token: str | None, changes: Iterable[Change], *, commit_id: str | None = None
    ) -> None:
        """Write all changes or none, once for each `commit_id`."""

    def enqueue(
        self,
        study_id: int,
        params: Mapping[str, Any],
        *,
        world_size: int,
        origin: str,
        attributes: Mapping[str, Any] | None = None,
        study_attributes: Mapping[str, Any] | None = None,
        lease_token: str | None = None,
        enqueue_id: str | None = None,
    ) -> int:
        """Insert a waiting configuration, once for each `enqueue_id`; returns its row id."""

    def queued(self, study_id: int) -> list[QueuedTrial]:
        """Return waiting configurations, oldest first."""

    def cancel_requests(self, study_id: int) -> list[int]:
        """Return the ids of unfinished trials that a user asked to cancel."""

    def price_that_was_set(self, study_id: int) -> float | None:
        """Return the price from `automl price set`, which replaces the spec's; None if never set."""


class Controller:
    """Drives one study until it closes, stops early with checkpoints, or fails.

    Without a `suggester`, no trials are added. Without a `lease_token`, no other controller can exist. `background`
    prepares suggestions in a thread; simulations must switch it off, since their time is virtual. With `keeps_pool`,
    the caller closes the pool. `warm` lists the free slots of an open pool; if None, `run` opens the pool.
    """

    def __init__(
        self,
        *,
        machine: StudyMachine,
        pool: GangPool,
        store: Rows,
        suggester: Suggester | None,
        study_id: int,
        lease_token: str | None,
        background: bool = True,
        on_commit: Callable[[StudyMachine], None] | None = None,
        tick_seconds: float = TICK_SECONDS,
        keeps_pool: bool = False,
        warm: tuple[int, ...] | None = None,
    ) -> None:
        self.machine = machine
        self._keeps_pool, self._warm = keeps_pool, warm
        self._pool, self._store, self._suggester = pool, store, suggester
        self._study_id, self._lease_token = study_id, lease_token
        self._tick_seconds = tick_seconds
        self._on_commit = on_commit or (lambda _machine: None)
        self._asker = ThreadPoolExecutor(1, thread_name_prefix="suggest") if background else None
        self._deleter = Deleter()
        self._is_lease_lost = threading.Event()
        self._looked_at = pool.now()
        self._known_cancelled: set[int] = set()
        self._known_queued: set[int] = {t.id for t in machine.trials.values() if t.state == "queued"}

    def run(self) -> None:
        """Drive the study to its end. Raises LeaseLostError when another controller has taken over."""
        try:
            self._carry_out(self.machine.begin(self._pool.now()))
            if not self.machine.finished:
                self._open_pool()
            while not self.machine.finished:
                self._advance()
        except LeaseLostError:
            log.warning("another process has taken over this study and continues it, so this process stops")
            raise
        finally:
            if self._asker is not None:
                self._asker.shutdown(wait=False, cancel_futures=True)
            self._close_pool()
            self._deleter.finish()

    def _close_pool(self) -> None:
        if not self._keeps_pool:
            self._pool.close()

    def _open_pool(self) -> None:
        try:
            if self._warm is None:
                self._pool.open(self.machine.setup.slots)
            else:
                self._pool.post(SlotsReady(slots=self._warm))
        except PoolError as error:
            refused = self.machine.pool_refused(str(error), self._pool.now())
            log.error("%s", error)
            self._carry_out(refused)
        else:
            self._carry_out(self.machine.pool_opened(self._pool.now()))

    def drain(self, reason: str) -> None:
        """Stop all trials with a checkpoint; callable from signal handlers and any thread."""
        self._pool.post(DrainRequested(reason=reason))  # type: ignore[arg-type]

    def lose_lease(self) -> None:
        """Make `run` raise LeaseLostError before its next commit; callable from any thread."""
        self._is_lease_lost.set()

    def look_for_requests(self) -> None:
        """Read other processes' requests from the store: configurations, cancellations and a price."""
        price = self._store.price_that_was_set(self._study_id)
        if price is not None:
            self._pool.post(PriceSet(usd_per_slot_hour=price))
        for queued in self._store.queued(self._study_id):
            if queued.id not in self._known_queued and queued.origin != "sampler":
                self._known_queued.add(queued.id)
                event = TrialQueued(
                    trial_id=queued.id, params=queued.params, origin=queued.origin, world_size=queued.world_size
                )
                self._pool.post(event)
        for trial_id in self._store.cancel_requests(self._study_id):  # may include trials enqueued just now
            if trial_id not in self._known_cancelled:
                self._known_cancelled.add(trial_id)
                self._pool.post(CancelRequested(trial_id=trial_id))

    def _advance(self) -> None:
        """Handle all waiting events in one commit; under load, too, check for hanging trials in time."""
        next_look = min(self._looked_at + self._tick_seconds, self.machine.cut_at)
        events: list[Event] = self._pool.wait(max(next_look - self._pool.now(), 0.0))
        if self._is_lease_lost.is_set():
            raise LeaseLostError("another process has taken over this study and continues it")
        if not events or self._pool.now() >= next_look:
            self._looked_at = self._pool.now()
            events = [*events, Tick(late_seconds=max(self._looked_at - next_look, 0.0))]
        step = self.machine.handle(events, self._pool.now())
        for command in step.commands:
            if isinstance(command, Grant):
                self._pool.grant(command.trial_id, command.attempt, command.until)
        self._carry_out(step)

    def _carry_out(self, step: Step) -> None:
        changes: list[Change] = list(step.changes)
        if changes:
            self._commit(changes)
            self._on_commit(self.machine)
        for command in step.commands:
            self._do(command)

    def _commit(self, changes: list[Change]) -> None:
        """Commit, and retry while the database is away; the commit's id prevents writing twice."""
        write = partial(self._store.commit, self._study_id, self._lease_token, changes, commit_id=new_id())
        retry(write, _MEANWHILE)

    def _do(self, command: Command) -> None:
        match command:
            case StartGang():
                self._pool.start(command.trial_id, command.spec, command.slots, command.until)
            case DrainGang():
                self._pool.drain(command.trial_id, command.attempt, command.within_seconds)
            case EndGang():
                self._pool.end(command.trial_id, command.attempt, command.retire)
            case KillGang():
                self._pool.kill(command.trial_id, command.attempt)
            case ReleaseSlots():
                self._pool.release(command.slots)
            case DeleteFile():
                self._deleter.delete(command.path)
            case Suggest():
                self._suggest(command)
            case ClosePool():
                self._close_pool()
            case Grant():
                pass  # done already, before the commit

    def _suggest(self, command: Suggest) -> None:
        if self._asker is None:
            self._pool.post(self._suggested(command))
            return
        future = self._asker.submit(self._suggested, command)
        future.add_done_callback(self._hand_over)

    def _hand_over(self, done: Future[TrialQueued | SuggestionFailed]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._pool.post(done.result())
        else:  # without this event, the study would wait for its next trial forever
            self._pool.post(SuggestionFailed(message=f"no trial could be queued: {type(error).__name__}: {error}"))

    def _suggested(self, command: Suggest) -> TrialQueued | SuggestionFailed:
        try:
            assert self._suggester is not None, "no trial may be suggested here"  # noqa: S101 - an invariant
            suggestion = self._suggester.suggest(command.number, command.history)
            if command.most_ranks is not None and not suggestion.is_named:
                suggestion = narrowed(self.machine.setup, suggestion, command.most_ranks, command.number)
        except Exception as error:
            log.exception("the sampler raised")
            return SuggestionFailed(message=f"the sampler raised {type(error).__name__}: {error}")
        enqueue_id = new_id()
        return retry(lambda: self._enqueue(suggestion, enqueue_id), _MEANWHILE)

    def _enqueue(self, suggestion: Suggestion, enqueue_id: str) -> TrialQueued:
        world_size = int(suggestion.params.get("world_size") or 1)
        trial_id = self._store.enqueue(
            self._study_id,
            suggestion.params,
            world_size=world_size,
            origin="sampler",
            attributes=suggestion.trial_attributes,
            study_attributes=suggestion.study_attributes,
            lease_token=self._lease_token,
            enqueue_id=enqueue_id,
        )
        self._known_queued.add(trial_id)
        return TrialQueued(
            trial_id=trial_id,
            params=suggestion.params,
            origin="sampler",
            world_size=world_size,
            attributes=suggestion.trial_attributes,
        )
