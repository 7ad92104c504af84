"""The faults of chaos.py. Each is a function of the scene that says what it did to whom, or None if it could not."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import sqlalchemy as sa

from chaos_parts.clock import Clock
from chaos_parts.scene import STUDY, Scene
from studies.storage.schema.engine import parse_url

Fault = Callable[[Scene, random.Random], "str | None"]
FREEZE_SECONDS = (1.0, 4.0)
LEASE_LOST_SECONDS = 14.0
FULL_SECONDS = 4.0
LOCKED_SECONDS = 5.0
ROOM_FOR_FILES_BYTES = 4096
DATABASE_AWAY_SECONDS = (1.0, 8.0)


def _kill(victims: list[psutil.Process], rng: random.Random) -> str | None:
    if not victims:
        return None
    victim = rng.choice(victims)
    with contextlib.suppress(psutil.Error):
        victim.kill()
        return f"pid {victim.pid}"
    return None


def _freeze(victims: list[psutil.Process], rng: random.Random, seconds: float) -> str | None:
    if not victims:
        return None
    victim = rng.choice(victims)
    try:
        victim.suspend()
    except psutil.Error:
        return None
    threading.Timer(seconds, _thaw, [victim]).start()
    return f"pid {victim.pid} for {seconds:.1f} s"


def _interrupt(pid: int) -> str | None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        return f"pid {pid}"
    return None


def _thaw(victim: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        victim.resume()


def _ranks(scene: Scene) -> list[psutil.Process]:
    """Processes of the leader's slots."""
    leader = scene.leader()
    return [] if leader is None else scene.named("ray::Rank", leader)


def kill_rank(scene: Scene, rng: random.Random) -> str | None:
    """Kill the process of a slot, idle or training."""
    return _kill(_ranks(scene), rng)


def freeze_rank(scene: Scene, rng: random.Random) -> str | None:
    """Stop the process of a slot for a few seconds."""
    return _freeze(_ranks(scene), rng, rng.uniform(*FREEZE_SECONDS))


def kill_group_store(scene: Scene, rng: random.Random) -> str | None:
    """Kill the process over which process groups form."""
    return _kill(scene.named("ray::GroupStore", scene.leader()), rng)


def kill_raylet(scene: Scene, rng: random.Random) -> str | None:
    """Kill Ray's own process on the only node of the cluster."""
    return _kill([one for one in scene.named("raylet/raylet", scene.leader()) if one.name() == "raylet"], rng)


def kill_views(scene: Scene, rng: random.Random) -> str | None:
    """Kill a process that mirrors the store into Optuna or MLflow."""
    return _kill(scene.named("views_program", scene.leader()), rng)


def freeze_views(scene: Scene, rng: random.Random) -> str | None:
    """Stop a process that mirrors the store for a few seconds."""
    return _freeze(scene.named("views_program", scene.leader()), rng, rng.uniform(*FREEZE_SECONDS))


def kill_leader(scene: Scene, rng: random.Random) -> str | None:
    """Kill the controller that has the lease."""
    leader = scene.leader()
    return None if leader is None else _kill([psutil.Process(leader)], rng)


def freeze_leader(scene: Scene, rng: random.Random) -> str | None:
    """Stop the controller for so long that it loses its lease, and wake it up again."""
    leader = scene.leader()
    return None if leader is None else _freeze([psutil.Process(leader)], rng, LEASE_LOST_SECONDS)


def kill_standby(scene: Scene, rng: random.Random) -> str | None:
    """Kill a controller that stands by."""
    leader = scene.leader()
    return _kill([psutil.Process(one.pid) for one in scene.controllers if one.pid != leader], rng)


def interrupt_leader(scene: Scene, rng: random.Random) -> str | None:  # noqa: ARG001 - there is one leader
    """Ask the controller to drain, as an operating system does that shuts down."""
    leader = scene.leader()
    return None if leader is None else _interrupt(leader)


def lock_store(scene: Scene, rng: random.Random) -> str | None:  # noqa: ARG001
    """Hold the write lock of an SQLite store."""
    if not scene.store.startswith("sqlite"):
        return None

    def hold() -> None:
        path = scene.folder / scene.store.removeprefix("sqlite:///")
        with contextlib.suppress(sqlite3.OperationalError), contextlib.closing(sqlite3.connect(path)) as connection:
            connection.isolation_level = None
            connection.execute("BEGIN IMMEDIATE")
            time.sleep(LOCKED_SECONDS)
            connection.execute("ROLLBACK")

    threading.Thread(target=hold).start()
    return f"for {LOCKED_SECONDS:g} s"


def cut_connections(scene: Scene, rng: random.Random) -> str | None:  # noqa: ARG001
    """End all connections to a PostgreSQL store."""
    if not scene.store.startswith("postgresql"):
        return None
    engine = sa.create_engine(parse_url(scene.store))
    query = "select count(pg_terminate_backend(pid)) from pg_stat_activity where pid <> pg_backend_pid()"
    try:
        with engine.connect() as connection:
            return f"{connection.execute(sa.text(query)).scalar()} connections"
    except sa.exc.SQLAlchemyError:
        return None
    finally:
        engine.dispose()


def restart_database(scene: Scene, rng: random.Random) -> str | None:
    """Let the PostgreSQL server that holds the store exit at once, as in a crash, and start it again after a while."""
    if scene.database is None:
        return None
    seconds, pid = rng.uniform(*DATABASE_AWAY_SECONDS), scene.database.get_pid()
    try:
        os.kill(pid, signal.SIGQUIT)  # SIGKILL would leave its children, and then it cannot be started again
    except (TypeError, ProcessLookupError):  # it is away already
        return None

    def start() -> None:
        time.sleep(seconds)
        while True:
            try:
                scene.database.ensure_postgres_running()
            except (AssertionError, OSError, subprocess.SubprocessError):  # its predecessor has not quite ended
                time.sleep(1.0)
            else:
                return

    threading.Thread(target=start).start()
    return f"pid {pid}, for {seconds:.1f} s"


def set_price(scene: Scene, rng: random.Random) -> str | None:
    """Change the price of a slot: no fault, but money has to be right around it too."""
    price = round(rng.uniform(0.5, 4.0), 3)
    code, _, _ = scene.run("price", "set", STUDY, str(price), "--store", scene.store)
    return f"to {price}" if code == 0 else None


def fill_disk(scene: Scene, rng: random.Random) -> str | None:  # noqa: ARG001
    """Leave no room on the disk of store and checkpoints for a while."""
    if not scene.own_disk:
        return None
    ballast = scene.folder / "ballast"

    def fill() -> None:
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(b"\0" * ROOM_FOR_FILES_BYTES):
                pass
        time.sleep(FULL_SECONDS)
        ballast.unlink(missing_ok=True)

    threading.Thread(target=fill).start()
    return f"for {FULL_SECONDS:g} s"


def clock_steps(clock: Clock) -> Fault:
    """A fault that sets the clock of all processes of the scene, forward or back, as a time server does."""

    def step(scene: Scene, rng: random.Random) -> str | None:  # noqa: ARG001
        offset = rng.choice([-60.0, -5.0, 0.0, 5.0, 60.0])
        clock.set(offset)
        return f"to {offset:+g} s"

    return step


WEIGHTS: dict[Fault, float] = {
    kill_rank: 6.0,
    freeze_rank: 3.0,
    kill_group_store: 1.0,
    kill_raylet: 0.5,
    kill_views: 1.0,
    freeze_views: 0.5,
    kill_leader: 1.0,
    freeze_leader: 0.5,
    kill_standby: 1.0,
    interrupt_leader: 0.5,
    lock_store: 1.0,
    cut_connections: 2.0,
    restart_database: 1.0,
    set_price: 0.5,
    fill_disk: 1.0,
}
"""How often each fault is chosen, relative to the others."""


def drawn(rng: random.Random, clock: Clock | None) -> Iterator[Fault]:
    """Yield faults for ever, in an order that the seed determines."""
    weights = WEIGHTS | ({clock_steps(clock): 1.5} if clock is not None else {})
    faults = list(weights)
    while True:
        yield rng.choices(faults, [weights[one] for one in faults])[0]
