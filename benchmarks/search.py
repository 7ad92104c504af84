#!/usr/bin/env python
"""Search: how many dollars others need for what ours has found, over recorded learning curves.

    python benchmarks/search.py --curves FOLDER --seeds 0:5 --json

Simulates studies (docs/simulation.md) of all contestants, one line of JSON each in a folder of results, and skips those
that are there; then prints the figures. README.md has the rules.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import sys
import traceback
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from json_lines import append_line, read_lines
from search_peers.calibration import Calibration
from search_peers.figures import figures, printed
from search_peers.histories import imported
from search_peers.policies import CONTESTANTS, Contestant, available
from search_scoring import Yardstick, steps, yardstick

from automl.launching.earlier_studies import trials_of_record
from studies.records.records import FINISH, Objective
from studies.search.model.transfer import EarlierStudy, thinned
from studies.simulation.recorded_curves import (
    CurvesError,
    CurveTable,
    find_tables,
    pooled,
    read_table,
    with_price_factors,
)
from studies.simulation.simulated_study import simulate

BENCHMARKS = Path(__file__).resolve().parent
PRICE_FACTORS = (0.5, 1.0, 2.0, 4.0)
LEARNED = ("val_error", "valid_loss", "val_loss")
"""The first objective: whichever of these a table has."""
MANY_SLOTS = 16
EARLIER_SEED = 1000
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, kw_only=True)
class Task:
    """One table, or several that are searched as one.

    Attributes:
        place: Position in the sorted list of single tables; None for pooled ones.
    """

    name: str
    files: tuple[str, ...]
    place: int | None


@dataclass(frozen=True, kw_only=True)
class Job:
    """One study to simulate; its fields but the files are its key.

    Attributes:
        full_trials: Budget in mean costs of a full training.
        before: Files of the tasks that were studied before.
    """

    policy: str
    task: str
    files: tuple[str, ...]
    second: str
    prices: str
    slots: int
    seed: int
    full_trials: float
    before: tuple[tuple[str, ...], ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from other studies."""
        return self.policy, self.task, self.second, self.prices, self.slots, self.seed, self.full_trials


def budget_full_trials(slots: int) -> float:
    """20 full trainings for few slots, 40 for many."""
    return 40.0 if slots >= MANY_SLOTS else 20.0


# ---------------------------------------------------------------------- what to simulate


def tasks_in(folder: Path, chosen: str) -> list[Task]:
    """The tasks of a folder: every table of `lcbench`, and those of `taskset` as one.

    Args:
        folder: Holds one or both of these folders; any other one with tables counts as `lcbench` does.
        chosen: all, even, odd (places in the sorted list; odd and all have the pooled task as well), or names.
    """
    files = find_tables([folder])
    single = [path for path in files if path.parent.name != "taskset"]
    together = [path for path in files if path.parent.name == "taskset"]
    tasks = [Task(name=path.stem, files=(str(path),), place=place) for place, path in enumerate(single)]
    if together:
        tasks.append(Task(name="taskset", files=tuple(map(str, together)), place=None))
    if chosen == "all":
        return tasks
    if chosen in {"even", "odd"}:
        wanted = 0 if chosen == "even" else 1
        return [task for task in tasks if (1 if task.place is None else task.place % 2) == wanted]
    names = chosen.split(",")
    if unknown := set(names) - {task.name for task in tasks}:
        raise SystemExit(f"--tasks: found {min(unknown)}, allowed: all, even, odd or names of {folder}")
    return [task for task in tasks if task.name in names]


def jobs_of(arguments: argparse.Namespace, tasks: Iterable[Task]) -> list[Job]:
    """All studies; those that come first make the most of a run that is cut short: seed by seed, ours first."""
    single = [task for task in tasks_in(arguments.curves, "all") if task.place is not None]
    return [
        Job(
            policy=policy, task=task.name, files=task.files, second=second, prices=prices, slots=slots, seed=seed,
            full_trials=full_trials or budget_full_trials(slots),
            before=studied_before(task, single, CONTESTANTS[policy]),
        )
        for seed, slots, full_trials, prices, second, task, policy in itertools.product(
            arguments.seeds, arguments.slots, arguments.full_trials, arguments.prices, arguments.seconds, tasks,
            arguments.policies,
        )
        if task.place is not None or not (CONTESTANTS[policy].earlier or CONTESTANTS[policy].again)
        if second != "none" or not CONTESTANTS[policy].planar
        if second == "none" or not CONTESTANTS[policy].scalar
        if second != "size" or not CONTESTANTS[policy].history
    ]  # fmt: skip


def studied_before(task: Task, single: Sequence[Task], contestant: Contestant) -> tuple[tuple[str, ...], ...]:
    """The files of the tables that follow a task in the list of single ones, from the first on after the last.

    Or those of the task itself, if that is what was studied before.
    """
    if task.place is None:
        return ()
    following = [single[(task.place + k) % len(single)] for k in range(1, contestant.earlier + 1)]
    return (*([task.files] if contestant.again else []), *(one.files for one in following if one.name != task.name))


# ---------------------------------------------------------------------- simulating


@functools.lru_cache(maxsize=4)
def table_of(files: tuple[str, ...], prices: str) -> CurveTable:
    """A task's table, kept by each process."""
    table = pooled([read_table(path) for path in files])
    return with_price_factors(table, PRICE_FACTORS, zlib.crc32(table.name.encode())) if prices == "vary" else table


def objectives_of(table: CurveTable, second: str) -> tuple[Objective, ...]:
    """Error first; then the table's first constant, dollars so far, or nothing."""
    learned = Objective(metric=next(name for name in LEARNED if name in table.metrics))
    if second == "none":
        return (learned,)
    return learned, Objective(metric="cost_usd" if second == "dollars" else next(iter(table.statics)))


@functools.lru_cache(maxsize=16)
def yardsticks(files: tuple[str, ...], prices: str, second: str) -> tuple[Yardstick, Yardstick]:
    """The yardsticks for validation and for test metrics."""
    table = table_of(files, prices)
    objectives = objectives_of(table, second)
    return yardstick(table, objectives), yardstick(table, objectives, scored_on="test")


def simulated(job: Job) -> dict[str, Any]:
    """One study, as the line that is kept of it.

    Raises:
        RuntimeError: The study failed, as when a contestant raised: what it had by then is no result.
    """
    warnings.filterwarnings("ignore", module="optuna")
    table, contestant = table_of(job.files, job.prices), CONTESTANTS[job.policy]
    objectives = objectives_of(table, job.second)
    calibration = Calibration(table, objectives[0].metric)
    earlier = [studied(files, job.second, job.prices, job.slots, job.seed) for files in job.before]
    if contestant.history:
        earlier.append(imported(contestant.history, table, objectives, job.slots, EARLIER_SEED + job.seed))
    study = simulate(
        table,
        objectives=objectives,
        slots=job.slots,
        budget_full_trials=job.full_trials,
        seed=job.seed,
        sampler=contestant.sampler,
        pruner=contestant.pruner,
        finish=0.0 if contestant.is_baseline else FINISH,  # others know nothing of it
        earlier=earlier,
        on_decision=calibration.look,
        advice=contestant.advice,
    )
    if study.record.state == "failed":
        raise RuntimeError(f"the study failed: {study.record.stop_reason}")
    reached = [steps(study, by) for by in yardsticks(job.files, job.prices, job.second)]
    validation, test = ([[round(s.spent_usd, 9), round(s.share, 6)] for s in found] for found in reached)
    states = [trial.state for trial in study.record.trials]
    line = {name: value for name, value in asdict(job).items() if name not in {"files", "before"}}
    return line | {
        "budget_usd": study.budget_usd,
        "validation": validation,
        "test": test,
        "trials": {state: states.count(state) for state in sorted(set(states))},
        "epochs": sum(len(trial.epochs) for trial in study.record.trials),
        "seconds": round(study.real_seconds, 3),
        "suggest_ms": in_ms(study.latencies.suggest),
        "decide_ms": in_ms(study.latencies.decide),
        "free_slot_ms": in_ms(study.latencies.free_slot),
        "calibration": calibration.forecasts,
    }


@functools.lru_cache(maxsize=4)
def studied(files: tuple[str, ...], second: str, prices: str, slots: int, seed: int) -> EarlierStudy:
    """What ours finds on another task, from another seed, as a study to learn from."""
    table = table_of(files, prices)
    objectives = objectives_of(table, second)
    study = simulate(
        table,
        objectives=objectives,
        slots=slots,
        budget_full_trials=budget_full_trials(slots),
        seed=EARLIER_SEED + seed,
    )
    trials = trials_of_record(study.record, objectives)
    return EarlierStudy(name=table.name, trials=thinned(trials, objectives))


def in_ms(latencies: list[tuple[int, float]]) -> list[list[float]]:
    """Pairs of the number of trials and milliseconds."""
    return [[trials, round(1e3 * seconds, 2)] for trials, seconds in latencies]


def kept(folder: Path) -> Iterator[dict[str, Any]]:
    """All studies of a folder of results."""
    for path in sorted(folder.glob("*.jsonl")):
        yield from read_lines(path)


def key_of(line: dict[str, Any]) -> tuple[Any, ...]:
    """The key of the job that a line is of."""
    return tuple(line[name] for name in ("policy", "task", "second", "prices", "slots", "seed", "full_trials"))


def simulate_all(jobs: list[Job], folder: Path, processes: int) -> int:
    """Simulate what is not there yet, and keep each as soon as it is done; returns how many failed."""
    done = {key_of(line) for line in kept(folder)}
    missing = [job for job in jobs if job.key not in done]
    failed = 0
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as executor:
        waiting: dict[Future[dict[str, Any]], Job] = {}
        left = iter(missing)
        for count in itertools.count():
            for job in itertools.islice(left, 2 * processes - len(waiting)):
                waiting[executor.submit(simulated, job)] = job
            if not waiting:
                return failed
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                job = waiting.pop(future)
                try:
                    line = future.result()
                except Exception:  # noqa: BLE001 - the others go on
                    failed += 1
                    print(f"{job.key} failed:\n{traceback.format_exc()}", file=sys.stderr)
                    continue
                append_line(folder / f"{job.policy}.jsonl", line)
            if count % 50 == 0:
                print(f"{count} of {len(missing)} studies simulated", file=sys.stderr)
    return failed


# ---------------------------------------------------------------------- the command


def arguments_of(words: list[str] | None = None) -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, required=True, help="a folder that holds lcbench/ and taskset/")
    parser.add_argument("--tasks", default="all", help="all, even, odd, or names with commas between them")
    parser.add_argument("--seeds", type=seeds, default=range(2), metavar="A:B", help="B is left out; 0:2 by default")
    parser.add_argument("--policies", type=policies, default=None, metavar="NAMES", help="ours and all baselines")
    parser.add_argument("--ours", default="ours", metavar="NAME", help="whom the others are compared with")
    parser.add_argument("--slots", type=numbers, default=[4, 16], metavar="N,N")
    parser.add_argument("--full-trials", type=numbers, default=[0], metavar="N,N",
                        help="budgets in mean full trainings; 20, or 40 from 16 slots on, by default")  # fmt: skip
    parser.add_argument("--seconds", type=words_of("size", "dollars", "none"), default=["size", "dollars"],
                        help="the second objective: size, dollars, none or several of them")  # fmt: skip
    parser.add_argument("--prices", type=words_of("uniform", "vary"), default=["uniform", "vary"])
    parser.add_argument("--quick", action="store_true", help="4 slots, uniform prices, every fourth task")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--results", type=Path, default=BENCHMARKS.parent / ".bench" / "search")
    parser.add_argument("--again", type=policies, default=[], metavar="NAMES", help="forget what is kept of these")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(words)
    if arguments.policies is None:
        arguments.policies = [arguments.ours, *(name for name, one in CONTESTANTS.items() if one.is_baseline)]
    if arguments.quick:
        arguments.slots, arguments.prices = [4], ["uniform"]
    return arguments


def seeds(text: str) -> range:
    first, _, last = text.partition(":")
    return range(int(first), int(last)) if last else range(int(first), int(first) + 1)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def policies(text: str) -> list[str]:
    names = list(CONTESTANTS) if text == "all" else text.split(",")
    for name in names:
        if name not in CONTESTANTS:
            raise argparse.ArgumentTypeError(f"found {name}, allowed: all, {', '.join(CONTESTANTS)}")
    return [name for name in names if available(name)]


def words_of(*allowed: str) -> Any:
    def read(text: str) -> list[str]:
        words = text.split(",")
        for word in words:
            if word not in allowed:
                raise argparse.ArgumentTypeError(f"found {word}, allowed: {', '.join(allowed)}")
        return words

    return read


def forget(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        (folder / f"{name}.jsonl").unlink(missing_ok=True)


def main() -> int:
    """Simulate, then print the figures of what was asked for."""
    arguments = arguments_of()
    try:
        tasks = tasks_in(arguments.curves, arguments.tasks)
    except CurvesError as error:
        print(f"search.py: {error}", file=sys.stderr)
        return 2
    if arguments.quick:
        tasks = tasks[::4]
    os.environ.update(dict.fromkeys(THREADS, "1"))  # the processes to come: one core each is quicker
    arguments.results.mkdir(parents=True, exist_ok=True)
    forget(arguments.results, arguments.again)
    jobs = jobs_of(arguments, tasks)
    failed = simulate_all(jobs, arguments.results, arguments.jobs)
    wanted = {job.key for job in jobs}
    lines = {key_of(line): line for line in kept(arguments.results) if key_of(line) in wanted}
    document = figures(list(lines.values()), arguments.ours)
    print(json.dumps(document) if arguments.json else printed(document))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
