"""Runs a command as a trial, on one rank: as far as it is granted, with checkpoints, up to its end.

pool ── grants, drains ──► Course ◄── waits, tells ── CommandTrainer ◄── questions, lines, end ── the program
"""

from __future__ import annotations

import queue
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from trainers.background_writes import Pending
from trainers.checkpoint_place import counting
from trainers.commands.channel import Channel, Question
from trainers.commands.command import Command
from trainers.commands.epoch_book import EpochBook
from trainers.commands.kept_folder import FolderCheckpoints
from trainers.commands.metric_lines import Reported, reader_of
from trainers.commands.places import Place, all_places, own_place, variables
from trainers.commands.program import Program
from trainers.commands.rank_log import RankLog, log_folder, log_path
from trainers.commands.start import script_files, start_of
from trainers.commands.working_folder import working_folder
from trainers.ddp import Group
from trainers.errors import classified, error_of_text
from trainers.group_store import StoreClient
from trainers.own_loop import Course, OwnLoop
from trainers.process import Remains
from trainers.protocol import LostError, Measurement, RankAssignment, TaskError, TrialSpec
from trainers.step_counter import StepCounter

_LOOK_SECONDS = 1.0
"""Time between two looks whether the program has used its CPUs, which is a sign of life."""
_FOREVER = 2**31
_KILLS = frozenset({signal.SIGKILL, signal.SIGTERM})
"""Signals that say nothing of the command: another attempt may succeed."""
_SHELL_SIGNALS = 128
"""A shell whose program was killed by a signal ends with this and the signal's number."""


class _OverError(Exception):
    """The trial ends here: it was pruned, paused or stopped. Has an argument if the program was asked to end."""


@dataclass(frozen=True, slots=True)
class _Exited:
    """The program has ended: with an exit status, with the reason for which it could not be run, or None: nobody knows."""

    status: int | str | None


_Event = Question | Reported | ValueError | _Exited | None
"""What happens to a program; None once the trial is over."""


class CommandTrainer:
    """Runs a command on one rank.

    Args:
        spec: The trial.
        command: What is run.
        assignment: Which rank this is, and the pool's store.
        group: This rank's place in the gang; no process group is formed for it.
        store: The pool's store; None is enough for one rank.
        counter: Counts what this rank does, for threads that watch it.

    Raises:
        TrainingError: An option of the trial is wrong.
    """

    def __init__(
        self,
        spec: TrialSpec,
        command: Command,
        *,
        assignment: RankAssignment,
        group: Group,
        store: StoreClient | None,
        counter: StepCounter | None = None,
    ) -> None:
        with classified():
            self._spec, self._command, self._assignment, self._group = spec, command, assignment, group
            self._store, self._counter = store, counter or StepCounter()
            self._own = OwnLoop(spec, "a command")
            self._settings = settings = self._own.settings
            self._base_folder = Path(spec.python_path[0] if spec.python_path else ".").absolute()
            self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
            self._reader = reader_of(command.metrics) if group.rank == 0 else None
            self._book = EpochBook(settings.epochs)
            self._checkpoints = FolderCheckpoints(self._own)
            self._has_begun = False
            self._signs: tuple[float, int] = 0.0, 0

    def run(self, course: Course) -> None:
        """Run the command; returns once it has ended, or the trial is over, and nothing of it is left.

        Raises:
            TrainingError: The command failed, or did not keep to the form of one that trains.
        """
        with classified(), working_folder() as folder:
            kept = folder / "checkpoint"
            kept.mkdir()
            places = self._meet(kept)
            self._kept = Path(places[0].folder) if places[0].host == self._place.host else kept
            is_own = self._kept == kept
            with counting(self._counter.tick):
                self._book.start(self._checkpoints.restore(kept if is_own else None))
            self._follow(course, folder, places)

    def close(self) -> Remains:
        """Nothing is left in memory."""
        return Remains([])

    # ------------------------------------------------------------------ before the program starts

    def _meet(self, kept: Path) -> list[Place]:
        self._place = own_place(str(kept), self._assignment.store, one_host=self._assignment.one_host)
        return all_places(self._place, self._group, self._store, self._assignment.key)

    def _start(self, folder: Path, places: list[Place]) -> Program:
        spec, command, rank = self._spec, self._command, self._group.rank
        argv, environment = start_of(command, self._own, variables(places, rank), folder=folder, kept=self._kept)
        log = log_path(log_folder(self._base_folder, spec.study, spec.trial), spec.attempt, rank)
        return Program(
            argv,
            environment,
            str(self._base_folder / command.folder),
            log=RankLog(log, int(command.log_mib * 2**20)),
            on_line=None if self._reader is None else self._read_line,
            on_exit=lambda status: self._events.put(_Exited(status)),
            remove=str(folder),
            kill_seconds=command.kill_seconds,
        )

    # ------------------------------------------------------------------ what the program says, from other threads

    def _read_line(self, line: str) -> None:
        assert self._reader is not None  # noqa: S101 - lines are read where there is one
        try:
            reported = self._reader(line)
        except ValueError as error:
            self._events.put(error)
            return
        if reported is not None:
            self._events.put(reported)

    def _wait_until_closed(self, course: Course) -> None:
        course.until(_FOREVER)
        self._events.put(None)

    # ------------------------------------------------------------------ while it runs

    def _follow(self, course: Course, folder: Path, places: list[Place]) -> None:
        channel = Channel(str(folder / "channel"), self._events.put)
        program = self._program = self._start(folder, places)
        threading.Thread(target=self._wait_until_closed, args=(course,), name="closing", daemon=True).start()
        self._counter.begin("command")
        if self._reader is not None:  # it cannot say where its first epoch begins
            self._begin(course)
        asked = False
        try:
            while not self._take(self._next_event(), course):
                pass
        except _OverError as over:
            asked = bool(over.args)
        finally:
            channel.close()  # first, so that nothing that it still asks waits for an answer
            program.end(self._command.end_seconds if asked else 0.0, self._command.kill_seconds)

    def _next_event(self) -> _Event:
        """Return what happens next; meanwhile whether the program is alive is counted."""
        while True:
            if self._book.held is not None and self._book.waited_seconds() > self._command.end_seconds:
                return _Exited(0)
            longest = self._command.report_seconds
            if longest is not None and self._group.rank == 0 and self._book.waited_seconds() > longest:
                raise TaskError(
                    f"the command has not reported an epoch for {longest:g} s (task.report_seconds), after epoch "
                    f"{self._book.epoch} of {self._settings.epochs}"
                )
            with suppress(queue.Empty):
                return self._events.get(timeout=_LOOK_SECONDS)
            signs = self._program.cpu_seconds(), self._program.seen
            if any(now > before for now, before in zip(signs, self._signs, strict=True)):
                self._counter.tick()
            self._signs = signs

    def _take(self, event: _Event, course: Course) -> bool:
        """Take in what has happened; returns whether the command is done.

        Raises:
            _OverError: The trial is over; with an argument if the program was asked to end.
        """
        if event is None:
            raise _OverError
        if isinstance(event, ValueError):
            raise TaskError(f"the command's output: {event}")
        if isinstance(event, _Exited):
            return self._ended(event, course)
        if isinstance(event, Reported):
            self._report(event, course, None)
            return False
        self._counter.tick()
        if event.ask == "report":
            self._report(Reported(epoch=event.epoch, metrics=event.metrics, last=event.last), course, event)
        elif event.ask == "resume":
            self._begin(course)
            event.answer(folder=str(self._kept) if any(self._kept.iterdir()) else None)
        elif event.ask == "checkpoint":
            self._offer_folder(event, course)
        else:
            event.answer()
        return False

    def _begin(self, course: Course) -> None:
        """Tell that the first epoch begins: what was before it belongs to the start."""
        if not self._has_begun:
            self._has_begun = True
            course.begin(self._own.facts(self._book.epoch, script_files(self._command, self._base_folder)))
            self._book.go_on()
            self._counter.begin_epoch(self._book.epoch + 1, 0.0)

    def _offer_folder(self, question: Question, course: Course) -> None:
        """Say whether a checkpoint of this epoch is wanted; all ranks get rank 0's answer."""
        key = f"command/{self._assignment.key}/checkpoint/{question.epoch}"
        if self._group.rank == 0:
            wanted = self._book.is_wanted(question.epoch, self._spec, drains=course.seconds_left() is not None)
            if self._store is not None and self._group.world_size > 1:
                self._store.set(key, "yes" if wanted else "no")
        else:
            assert self._store is not None  # noqa: S101 - a gang of several ranks has one
            wanted = self._store.get(key) == b"yes"
        question.answer(folder=str(self._kept) if wanted else None)

    def _report(self, reported: Reported, course: Course, question: Question | None) -> None:
        """Tell an epoch's measurement, and wait until the next one is granted.

        Raises:
            _OverError: The trial is over.
            TaskError: The report cannot be that of the next epoch.
        """
        if self._group.rank > 0:
            epoch = int(reported.epoch) if isinstance(reported.epoch, int) else self._book.epoch + 1
            self._counter.done()
            if reported.last or epoch >= self._settings.epochs:  # rank 0 goes on too, and both may have work to do
                self._release(question)
            else:
                self._wait(epoch, course, question)
            return
        self._begin(course)
        metrics = self._book.take(reported)
        if metrics is None:  # trained before, by an attempt whose checkpoint is older than its last report
            _answer(question)
            return
        self._counter.done()
        epoch, drains = self._book.epoch, course.seconds_left() is not None
        complete = reported.last or epoch == self._settings.epochs
        ends = drains and not complete and self._book.may_end
        if question is None:
            self._program.hold()  # it must not change its files meanwhile, nor go on where it has to wait
        measurement = self._measurement(metrics, saves=self._book.saves(self._spec, ends=ends or complete), ends=ends)
        if complete:
            self._book.held = replace(measurement, complete=epoch < self._settings.epochs)
            self._release(question)
            return
        course.measured(Pending(news=measurement))
        self._wait(_FOREVER if ends else epoch, course, question)
        self._counter.begin_epoch(epoch + 1, 0.0)

    def _wait(self, epoch: int, course: Course, question: Question | None) -> None:
        if course.until(epoch) is None:
            if question is not None:
                question.answer(over=True)
                raise _OverError("asked")
            raise _OverError
        self._release(question)

    def _release(self, question: Question | None) -> None:
        self._book.go_on()
        _answer(question)
        if question is None and self._group.rank == 0:
            self._program.go_on()

    def _measurement(self, metrics: dict[str, float], *, saves: bool, ends: bool) -> Measurement:
        epoch, path, size = self._book.epoch, None, 0
        if saves:
            self._book.written()
            with counting(self._counter.tick):
                path, size = self._checkpoints.write(self._kept, epoch, metrics)
        return Measurement(
            epoch=epoch,
            metrics=metrics,
            checkpoint=path,
            checkpoint_bytes=size,
            wall_seconds=self._book.waited_seconds(),
            ended=ends,
        )

    def _ended(self, exited: _Exited, course: Course) -> bool:
        """Take in the end of the program, which is right only after its last report.

        Raises:
            TrainingError: It failed, or ended too early.
        """
        book, rank = self._book, self._group.rank
        if exited.status == 0 and rank > 0:
            return True
        if exited.status == 0 and book.held is not None:
            final = replace(book.held, wall_seconds=book.held.wall_seconds + book.waited_seconds())
            course.measured(Pending(news=final))
            return True
        where = f"attempt {self._spec.attempt}, rank {rank}"
        if exited.status is None:
            raise LostError(f"the supervisor of the command was killed ({where})")
        if isinstance(exited.status, str):
            raise TaskError(f"the command cannot be run ({where}): {exited.status}")
        if exited.status == 0:
            after = f"after epoch {book.epoch} of {self._settings.epochs}; " if book.epoch else "without a report; "
            raise TaskError(
                f"the command ended with exit status 0 {after}allowed: a report of each epoch, or one that says last"
            )
        last = self._program.last_lines()
        killed_by = -exited.status if exited.status < 0 else exited.status - _SHELL_SIGNALS
        if killed_by in _KILLS:
            raise LostError(f"the command was killed by signal {killed_by} ({where})")
        how = (
            f"was killed by signal {-exited.status}" if exited.status < 0 else f"ended with exit status {exited.status}"
        )
        raise error_of_text(f"the command {how} ({where})", last)


def _answer(question: Question | None) -> None:
    if question is not None:
        question.answer()
