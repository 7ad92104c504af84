"""Runs a command as a trial, on one rank: handles the program's questions, printed lines and exit."""

import queue
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path

from trainers.checkpoints.checkpoint_writer import CheckpointWriter, Pending
from trainers.checkpoints.locations import counting
from trainers.commands.channel import Channel, Question
from trainers.commands.command import Command
from trainers.commands.epoch_book import EpochBook, Reader, Reported, likely_pattern, reader_of, way_to_report
from trainers.commands.forks import Fork
from trainers.commands.kept_folder import ARE_OLD, FILES, are_old, files_in, put_files
from trainers.commands.program import STDOUT, Program
from trainers.commands.rank_variables import HeldPorts, Meeting, Place, all_places, own_place, variables
from trainers.commands.start import WorkingFolder, script_files, start_of, working_folder
from trainers.failures import classified, error_of_text
from trainers.functions.own_loop import Course, OwnLoop
from trainers.loop.step_counter import StepCounter
from trainers.protocol import LostError, Measurement, RankAssignment, TaskError, TrainingError, TrialSpec
from trainers.ranks.group_store import StoreClient
from trainers.ranks.printed_output import RankLog, path_of
from trainers.ranks.process import Remains
from trainers.ranks.process_group import Group

_KILLS = frozenset({signal.SIGKILL, signal.SIGTERM})
"""Signals from outside the command, after which another attempt may succeed."""
_SHELL_SIGNALS = 128
"""A shell's exit status minus the signal that killed its program."""
_UNSET = re.compile(r"environment variable \w+ expected|KeyError: '(RANK|\w+_RANK|\w*WORLD_SIZE|MASTER_\w+)'")
_SHELLS_LINE = re.compile(r"\S+: line \d+: +\d+ [A-Z]")
"""A shell's line about a killed program, printed after the program's last line."""
_TAKEN = re.compile(r"address already in use|EADDRINUSE", re.IGNORECASE)


def exit_error(
    status: int | str | None,
    where: str,
    *,
    epochs: tuple[int, int],
    way: str,
    last_words: str,
    last_lines: Sequence[str],
    ports: Collection[int],
) -> TrainingError:
    """Return the error for a program that ended too early.

    Args:
        status: Exit status (negative for a signal), reason of a failed start, or None if the supervisor was killed.
        epochs: Numbers of reported and of expected epochs.
        ports: Ports assigned while free, which another process may have taken since.
    """
    if status is None:
        return LostError(f"the supervisor of the command was killed ({where})")
    if isinstance(status, str):
        return TaskError(f"the command cannot be run ({where}): {status}")
    if status == 0:
        done, planned = epochs
        how_far = f"after epoch {done} of {planned}" if done else "without a report"
        wanted = "a report of each epoch, or a report with `last`" if done else way
        ending = " / ".join(f"{line:.100}" for line in (*last_lines[-3:-1], last_words) if line)
        printed = f"The output ended with: {ending}" if ending else "It printed nothing"
        pattern = None if done else likely_pattern(last_lines)
        fits = f"Its output fits task.metrics: {{pattern: '{pattern}'}}. " if pattern else ""
        return TaskError(f"the command ended with exit status 0 {how_far}. Expected: {wanted}. {fits}{printed}")
    killed_by = -status if status < 0 else status - _SHELL_SIGNALS
    if killed_by in _KILLS:
        return LostError(f"the command was killed by signal {killed_by} ({where})")
    text = "\n".join(last_lines)
    for port in ports:
        if _TAKEN.search(text) and re.search(rf"\b{port}\b", text):
            return LostError(f"another process took port {port} before the command did ({where})")
    how = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
    if _SHELLS_LINE.match(last_words) and len(last_lines) > 1:
        last_words = f"{last_lines[-2].strip()} / {last_words}"
    if _UNSET.search(last_words):
        last_words += ". One rank gets torchrun's variables only if world_size is in the space: add world_size: 1"
    return error_of_text(f"the command {how} ({where})", last_words, last_lines)


@dataclass(frozen=True, slots=True)
class Exited:
    """Event: the program has ended. `exit_error` explains `status`."""

    status: int | str | None


Event = Question | Reported | ValueError | TrainingError | Exited | None
"""Event from a program; None once the trial is over."""


class Inbox:
    """Queue of a program's events that can be searched for reports."""

    def __init__(self) -> None:
        self._new: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._seen: deque[Event] = deque()

    def put(self, event: Event) -> None:
        """Add an event, from any thread."""
        self._new.put(event)

    def take(self, seconds: float) -> Event:
        """Wait for the next event, and remove it from the queue."""
        return self._seen.popleft() if self._seen else self._new.get(timeout=seconds)

    def has_report(self) -> bool:
        """Return whether a report is waiting in the queue."""
        with suppress(queue.Empty):
            while True:
                self._seen.append(self._new.get_nowait())
        return any(isinstance(one, Reported) for one in self._seen)


_ON_BOTH = "standard error and standard output have different metrics. Let the pattern match lines of one of them"
_STARTED_OVER = "started over: the command had saved nothing in {checkpoint_folder}; its earlier epochs count as lost"
_LOOK_SECONDS = 1.0
"""Seconds between two checks of CPU use, which shows that the program is alive."""
_FOREVER = 2**31
_YES = "yes"


class _End(Enum):
    BY_ITSELF = "the program reported its last epoch, and ended"
    TOLD = "the trial is over, and the program knows it from the answer to its report"
    UNTOLD = "the trial is over, and the program does not know it"


class CommandTrainer:
    """Runs a command as a trial on one rank. Raises TrainingError for a wrong option."""

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
            self._counter = counter or StepCounter()
            self._own = OwnLoop(spec, "a command")
            self._settings = settings = self._own.settings
            self._base_folder = Path(spec.python_path[0] if spec.python_path else ".").absolute()
            self._events = Inbox()
            self._reader = reader_of(command) if group.rank == 0 else None
            self._checkpoints = CheckpointWriter(spec, settings, group, self._counter.tick)
            self._book = EpochBook(settings.epochs, self._checkpoints.is_due)
            self._over = threading.Event()
            self._meeting = Meeting(assignment.key, group, store, self._over.is_set)
            self._has_begun = False
            self._signs: tuple[float, int] = 0.0, 0
            self._stream: str | None = None
            self._told: list[Mapping[str, object]] = []
            self._went_on_at: float | None = None

    def run(self, course: Course) -> None:
        """Run the command until it or the trial ends, then end its processes. Raises TrainingError if it failed."""
        threading.Thread(target=self._wait_until_over, args=(course,), name="closing", daemon=True).start()
        with classified(), working_folder() as folder, self._meeting:
            kept = folder.path / "checkpoint"
            kept.mkdir()
            ports = HeldPorts(2)
            try:
                places = self._prepare(kept, ports)
            finally:
                ports.release()
            if places is not None:
                self._follow(course, folder, places)

    def close(self) -> Remains:
        """Return an empty check: no model is in this process's memory."""
        return Remains([])

    # ------------------------------------------------------------------ before the program starts

    def _prepare(self, kept: Path, ports: HeldPorts) -> list[Place] | None:
        assignment = self._assignment
        place = own_place(str(kept), assignment.store, one_host=assignment.one_host, ports=ports)
        self._counter.begin("ranks")
        places = all_places(place, self._meeting)
        if places is None:
            return None
        self._kept = Path(places[0].folder) if places[0].host == place.host else kept
        is_own = self._kept == kept
        with counting(self._counter.tick):
            self._book.start(self._restore(kept if is_own else None))
        have_restored = self._meeting.gather("restored", "")
        self._counter.done()
        self._ports = places[0].port, place.worker_port
        return None if have_restored is None else places

    def _restore(self, folder: Path | None) -> int:
        path = self._spec.resume_from
        if path is None:
            return 0
        content = self._checkpoints.read(path, together=False)
        if folder is not None:
            put_files(content, folder, path)
        return int(content["position"]["epoch"])

    def _start(self, folder: WorkingFolder, places: list[Place]) -> Program:
        spec, command, rank = self._spec, self._command, self._group.rank
        of_ranks = variables(places, rank, is_asked="world_size" in spec.params)
        log = path_of(spec, rank, self._base_folder)
        argv, environment, working, json_file, changing = start_of(
            command, self._own, of_ranks, folder=folder, kept=self._kept, log=log
        )
        own = command.has_own_folder
        fork = Fork(command.preload, argv, environment, str(working), changing, has_own_folder=own)
        return Program(
            argv,
            environment,
            str(working),
            log=RankLog(log, int(command.log_mib * 2**20)),
            json_file=json_file if self._reader is not None else None,
            on_line=None if self._reader is None else partial(self._read_line, self._reader),
            on_exit=lambda status: self._events.put(Exited(status)),
            remove=[str(folder.path), str(folder.channel.parent)],
            kill_seconds=command.kill_seconds,
            fork=fork if command.preload else None,
        )

    # ------------------------------------------------------------------ what the program says, from other threads

    def _read_line(self, reader: Reader, line: str, stream: str) -> None:
        """Read metrics from a line. The first output stream with metrics decides; lines of the other are ignored."""
        is_other = self._stream not in {None, stream}
        try:
            reported = reader(line)
        except ValueError as error:
            reported = None
            if not is_other:
                self._events.put(error)
        if reported is None:
            return
        if not is_other:
            self._stream = stream if len(self._command.patterns) < 2 else None
            self._told.append(reported.metrics)
            if reported.ignored:
                self._program.note(f"only numbers are metrics; ignored: {reported.ignored}")
            self._events.put(reported)
        elif stream == STDOUT and reported.metrics not in self._told:
            self._events.put(TaskError(_ON_BOTH))

    def _wait_until_over(self, course: Course) -> None:
        course.until(_FOREVER)
        self._over.set()
        self._events.put(None)

    # ------------------------------------------------------------------ while it runs

    def _follow(self, course: Course, folder: WorkingFolder, places: list[Place]) -> None:
        channel = Channel(str(folder.channel), self._events.put)
        end, program = _End.UNTOLD, None
        try:
            self._program = program = self._start(folder, places)
            self._book.go_on()
            self._counter.begin("command")
            if self._reader is not None:  # a program that prints cannot report when its first epoch begins
                self._begin(course)
            while (taken := self._take(self._next_event(), course)) is None:
                pass
            end = taken
        finally:
            channel.close()  # first, so that no open question waits for an answer
            if program is not None:
                program.end(self._command.end_seconds if end is _End.TOLD else 0.0, self._command.kill_seconds)

    def _next_event(self) -> Event:
        while True:
            look_seconds = _LOOK_SECONDS
            if self._book.held is not None:
                look_seconds = min(self._command.end_seconds - self._book.waited_seconds(), _LOOK_SECONDS)
                if look_seconds <= 0.0:
                    return Exited(0)
            key, longest = self._command.report_limit(is_first=self._book.is_silent)
            if self._group.rank == 0 and self._book.held is None and self._book.waited_seconds() > longest:
                raise TaskError(
                    f"the command has not reported an epoch for {longest:g} s (task.{key}), after epoch "
                    f"{self._book.epoch} of {self._settings.epochs}"
                )
            with suppress(queue.Empty):
                return self._events.take(look_seconds)
            signs = self._program.cpu_seconds(), self._program.seen
            if any(now > before for now, before in zip(signs, self._signs, strict=True)):
                self._counter.tick()
            self._signs = signs

    def _take(self, event: Event, course: Course) -> _End | None:
        if event is None:
            return _End.UNTOLD
        if isinstance(event, ValueError | TrainingError):
            if self._book.held is not None:  # it has reported all its epochs
                return None
            raise event if isinstance(event, TrainingError) else TaskError(f"the command's output: {event}")
        if isinstance(event, Exited):
            return self._ended(event, course)
        if isinstance(event, Reported):
            return self._report(event, course, None)
        self._counter.tick()
        if event.ask == "report":
            return self._report(Reported(epoch=event.epoch, metrics=event.metrics, last=event.last), course, event)
        if event.ask == "resume":
            self._begin(course)
            event.answer(folder=str(self._kept) if any(self._kept.iterdir()) else None)
        elif event.ask == "checkpoint":
            self._offer_folder(event, course)
        else:
            event.answer()
        return None

    def _begin(self, course: Course, *, with_program: bool = False) -> None:
        if not self._has_begun:
            self._has_begun = True
            if not with_program:
                self._book.go_on()
            names = {name for name, _ in self._command.names()}
            facts = self._own.facts(
                self._book.epoch,
                script_files(self._command, self._base_folder),
                is_scaled="learning_rate" not in names or "scaled_learning_rate" in names,
                resuming=_STARTED_OVER if self._spec.attempt > 1 and self._spec.resume_from is None else "",
            )
            course.begin(facts, self._book.waited_seconds())
            self._counter.begin_epoch(self._book.epoch + 1, 0.0)

    def _offer_folder(self, question: Question, course: Course) -> None:
        what = f"checkpoint/{question.epoch}"
        if self._group.rank > 0:  # rank 0 may be far behind, and this rank has other events to handle
            self._meeting.pass_on(what, partial(_offer, question, self._kept), self._events.put)
            return
        ends = question.last or course.seconds_left() is not None
        wanted = self._book.is_wanted(question.epoch, self._spec, ends=ends)
        said = _YES if wanted else "no"
        self._meeting.say(what, said)
        _offer(question, self._kept, said)

    def _report(self, reported: Reported, course: Course, question: Question | None) -> _End | None:
        self._counter.done()
        if self._group.rank > 0:
            epoch = int(reported.epoch) if isinstance(reported.epoch, int) else self._book.epoch + 1
            if reported.last or epoch >= self._settings.epochs:  # all ranks go on, because they may have work left
                self._release(question)
                return None
            return self._wait(epoch, course, question)
        if self._book.held is not None and (reported.is_printed or self._command.logged):
            return self._after_last(reported, course, question)
        self._begin(course, with_program=True)
        again, drains = self._book.take_again(reported), course.seconds_left() is not None
        if again is not None:  # the controller has its metrics, and charges its time as lost
            return self._tell(self._measurement(again, {}, saves=False, ends=drains), course, question)
        metrics, epoch = self._book.take(reported), self._book.epoch
        complete = reported.last or epoch == self._settings.epochs
        ends = drains and not complete and self._book.may_end
        # The files belong to this epoch only if the program waits for an answer, or is stopped at this line.
        is_latest = question is not None or (self._program.hold() and not self._events.has_report())
        saves = is_latest and self._command.numbers_epochs and self._book.saves(self._spec, ends=ends or complete)
        measurement = self._measurement(epoch, metrics, saves=saves, ends=ends)
        if complete:
            is_early = epoch < self._settings.epochs
            self._book.held = replace(measurement, complete=is_early, unsaved=is_early and not self._book.may_end)
            self._release(question)
            return None
        return self._tell(measurement, course, question)

    def _after_last(self, reported: Reported, course: Course, question: Question | None) -> _End | None:
        if self._book.trains_on(reported, is_numbered=self._command.numbers_epochs):
            return self._ended(Exited(0), course)
        if question is not None:
            question.answer()
        return None

    def _tell(self, measurement: Measurement, course: Course, question: Question | None) -> _End | None:
        course.measured(Pending(news=measurement))
        end = self._wait(_FOREVER if measurement.ended else measurement.epoch, course, question)
        self._counter.begin_epoch(measurement.epoch + 1, 0.0)
        return end

    def _wait(self, epoch: int, course: Course, question: Question | None) -> _End | None:
        if course.until(epoch) is not None:
            self._release(question)
            return None
        if question is None:
            return _End.UNTOLD
        self._program.will_be_asked(self._command.end_seconds)
        question.answer(over=True)
        return _End.TOLD

    def _release(self, question: Question | None) -> None:
        self._book.go_on()
        self._went_on_at = time.time() if question is None else None
        if question is not None:
            question.answer()
        elif self._group.rank == 0:
            self._program.go_on()

    def _measurement(self, epoch: int, metrics: dict[str, float], *, saves: bool, ends: bool) -> Measurement:
        path, write = None, None
        if saves and self._spec.checkpoint_folder is not None:
            with counting(self._counter.tick):
                is_old = self._went_on_at is not None and are_old(self._kept, self._went_on_at, time.time())
                files = files_in(self._kept)
            if files:
                content = self._checkpoints.content(epoch, metrics, **{FILES: files, ARE_OLD: is_old})
                path, write = self._checkpoints.write(lambda: content, epoch)
        size = 0 if write is None else write.wait()
        seconds = self._book.waited_seconds()
        return Measurement(
            epoch=epoch, metrics=metrics, checkpoint=path, checkpoint_bytes=size, wall_seconds=seconds, ended=ends
        )

    def _ended(self, exited: Exited, course: Course) -> _End:
        book, rank = self._book, self._group.rank
        if exited.status == 0 and rank > 0:
            return _End.BY_ITSELF
        if exited.status == 0 and book.held is not None:
            final = replace(book.held, wall_seconds=book.held.wall_seconds + book.waited_seconds())
            course.measured(Pending(news=final))
            return _End.BY_ITSELF
        raise exit_error(
            exited.status,
            f"attempt {self._spec.attempt}, rank {rank}",
            epochs=(book.epoch, self._settings.epochs),
            way=way_to_report(self._command),
            last_words=self._program.last_words,
            last_lines=self._program.last_lines,
            ports=self._ports if book.is_at_start else (),
        )


def _offer(question: Question, folder: Path, said: str | None) -> None:
    if said is None:
        question.answer(over=True)
    else:
        question.answer(folder=str(folder) if said == _YES else None)
