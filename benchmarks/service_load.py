"""A team's service under load: many clients, a queue of studies under limits, and workers that die and freeze.

    python benchmarks/service_load.py --json

starts a service and three workers in processes of their own, submits studies of five users over HTTP, lets clients read
all the while, kills one worker and freezes another. Then it asks: has every study ended, or does it say why not? Was a
limit passed? How were the slots shared as long as everybody had studies that waited? How quick were reads? Is the audit
of each study clean?
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy as sa
from turnaround import machine

from automl.stored.auditing import audit
from studies.queueing import access_tokens
from studies.queueing.job_queue import JobQueue
from studies.records.records import NANO
from studies.storage.schema import tables as t
from studies.storage.study_store import Store

USERS = ("ann", "bob", "cid", "dan", "eve")
WORKERS = 3
USD_PER_SLOT_HOUR = 1.0
LONGEST_SECONDS = 3000.0
FROZEN_SECONDS = 25.0
THINK_SECONDS = 1.0
"""Time between two reads of a client, as of a page that somebody watches."""


@dataclass
class Load:
    """What is asked of the service, and what was seen.

    Attributes:
        url: Address of the service.
        secrets: Token of each user.
        seconds: Durations of reads.
        problems: Answers that were no success.
        begun: Set when all studies are submitted: a client that asks for one before is told that there is none.
        over: Set when clients are to end.
    """

    url: str
    secrets: dict[str, str]
    seconds: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    begun: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def ask(self, user: str, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a request, and return what the answer holds."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.secrets[user]}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=30.0) as answer:
            return json.load(answer)

    def read_on(self, number: int) -> None:
        """Read as one client does, until the end."""
        chance, user = random.Random(number), USERS[number % len(USERS)]
        while not self.begun.wait(THINK_SECONDS):
            if self.over.is_set():
                return
        while not self.over.wait(THINK_SECONDS * chance.uniform(0.5, 1.5)):
            path = chance.choice(
                ["/studies", "/queue", "/accounts", "/workers", f"/studies/{user}{chance.randrange(8)}"]
            )
            began = time.perf_counter()
            try:
                self.ask(user, "GET", f"/api/v1{path}")
            except OSError as error:
                self.problems.append(f"{path}: {error}")
            self.seconds.append(time.perf_counter() - began)


def spec_of(name: str, usd: float) -> dict[str, Any]:
    """Return a small study."""
    return {
        "study": name, "task": "digits", "objectives": [{"metric": "val_error"}], "training": {"epochs": 6},
        "budget": {"usd": usd, "hours": None, "trials": None}, "resources": {"slots": 1},
        "space": {"learning_rate": {"type": "float", "low": 0.001, "high": 0.5, "log": True},
                  "batch_per_rank": {"type": "categorical", "choices": [32, 64]}},
        "search": {"sampler": "random", "pruner": "mo_asha"}, "baselines": [],
    }  # fmt: skip


@contextlib.contextmanager
def processes(folder: Path, store: Store, clients: int) -> Iterator[tuple[Load, list[subprocess.Popen[bytes]]]]:
    """Service, workers and clients."""
    environment = {**os.environ, "AUTOML_STORE": store.url}
    secrets = {
        user: access_tokens.create(store, name="load", user=user, project="even", role="member", days=1)[0]
        for user in USERS
    }
    automl = [sys.executable, "-m", "automl"]
    serving = [*automl, "serve", "--port", "0", "--artifacts", str(folder / "artifacts"),
               "--price-per-slot-hour", str(USD_PER_SLOT_HOUR)]  # fmt: skip
    log = (folder / "service.log").open("wb")
    service = subprocess.Popen(serving, cwd=folder, env=environment, stderr=log)
    workers = [
        subprocess.Popen(
            [*automl, "worker", "--slots", "1", "--name", f"w{number}", "--device", "cpu"],
            cwd=folder, env=environment, stderr=(folder / f"w{number}.log").open("wb"),
        )
        for number in range(WORKERS)
    ]  # fmt: skip
    load = Load(url=_address(folder / "service.log"), secrets=secrets)
    threads = [threading.Thread(target=load.read_on, args=(number,), daemon=True) for number in range(clients)]
    try:
        for thread in threads:
            thread.start()
        yield load, workers
    finally:
        load.over.set()
        _end([service, *workers])


def _address(log: Path) -> str:
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        for line in log.read_text(errors="replace").splitlines():
            if "automl service: " in line:
                return line.split("automl service: ")[1].split(" ")[0]
        time.sleep(0.1)
    raise SystemExit(f"the service did not start: {log.read_text(errors='replace')[-500:]}")


def _end(started: list[subprocess.Popen[bytes]]) -> None:
    trees = [process for one in started for process in _tree(one.pid)]
    for process in trees:
        with contextlib.suppress(psutil.Error):
            process.resume()
    for one in started:
        one.send_signal(signal.SIGTERM)
    for one in started:
        try:
            one.wait(60.0)
        except subprocess.TimeoutExpired:
            one.kill()
    for process in psutil.wait_procs(trees, timeout=20.0)[1]:
        process.kill()


def _tree(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        one = psutil.Process(pid)
        return [one, *one.children(recursive=True)]
    return []


def disturb(queue: JobQueue, workers: list[subprocess.Popen[bytes]], studies: int) -> Iterator[str]:
    """Kill one worker after a quarter of the studies, and freeze another after half of them, for a while."""
    while _ended(queue) < studies // 4:
        yield ""
    workers[0].kill()
    yield "killed w0"
    while _ended(queue) < studies // 2:
        yield ""
    tree = _tree(workers[1].pid)
    for process in tree:
        process.suspend()
    yield "froze w1"
    until = time.monotonic() + FROZEN_SECONDS
    while time.monotonic() < until:
        yield ""
    for process in tree:
        with contextlib.suppress(psutil.Error):
            process.resume()
    yield "thawed w1"
    yield from itertools.repeat("")


def _ended(queue: JobQueue) -> int:
    return sum(job.state not in {"queued", "running"} for job in queue.jobs())


def is_over(queue: JobQueue) -> bool:
    """Whether each study has ended, or waits for money that is not there."""
    return all(job.state not in {"queued", "running"} or job.reason.startswith("waits for") for job in queue.jobs())


def shares(store: Store, until: float) -> dict[str, float]:
    """Return slot-seconds of each user up to a moment."""
    had = dict.fromkeys(USERS, 0.0)
    r = t.job_runs.c
    query = sa.select(t.jobs.c.user, r.slot_numbers, r.started_at, r.ended_at).join(t.jobs, t.jobs.c.id == r.job_id)
    with store.snapshot() as connection:
        for row in connection.execute(query):
            end = until if row.ended_at is None else min(row.ended_at, until)
            had[row.user] += max(end - row.started_at, 0.0) * len(row.slot_numbers)
    return had


def measure(folder: Path, *, studies: int, clients: int, usd: float) -> dict[str, Any]:
    """Run the whole load, and return what was found."""
    store = Store(f"sqlite:///{folder}/automl.db")
    queue = JobQueue(store)
    poor_usd = usd * (studies // len(USERS)) / 2
    queue.set_limit("user", USERS[-1], round(poor_usd * NANO))
    queue.set_limit("project", "even", round(usd * studies * NANO))
    began, contended_until, events = time.monotonic(), 0.0, []
    with processes(folder, store, clients) as (load, workers):
        for number in range(studies):
            user = USERS[number % len(USERS)]
            load.ask(user, "POST", "/api/v1/studies", {"spec": spec_of(f"{user}{number // len(USERS)}", usd)})
        load.begun.set()
        for event in disturb(queue, workers, studies):
            if event:
                events.append([round(time.monotonic() - began, 1), event])
                print(f"{events[-1][0]:7.1f} s {event}", file=sys.stderr)
            waiting = {job.user for job in queue.jobs(states=("queued",)) if not job.reason}
            contended_until = queue.now() if waiting == set(USERS) else contended_until
            if is_over(queue) or time.monotonic() - began > LONGEST_SECONDS:
                break
            time.sleep(1.0)
    had = shares(store, contended_until)
    mean = statistics.fmean(had.values())
    findings = [one for name in store.study_names() for one in audit(store, name)["findings"]]
    accounts = queue.accounts()
    states: dict[str, int] = {}
    for job in queue.jobs():
        states[job.state] = states.get(job.state, 0) + 1
    quick = sorted(load.seconds)
    return {
        "studies": studies,
        "clients": clients,
        "minutes": (time.monotonic() - began) / 60,
        "events": events,
        "states": states,
        "unexplained": [job.study for job in queue.jobs() if job.state in {"queued", "running"} and not job.reason],
        "limits_passed": [str(one) for one in accounts if one.spent_nano_usd > one.limit_nano_usd],
        "spent_of_limit": {f"{one.kind} {one.name}": one.spent_nano_usd / one.limit_nano_usd for one in accounts},
        "slot_seconds": had,
        "largest_deviation_of_a_share": max(abs(one / mean - 1.0) for one in had.values()) if mean else None,
        "reads": len(quick),
        "read_p50_ms": 1e3 * statistics.median(quick),
        "read_p95_ms": 1e3 * quick[int(0.95 * len(quick))],
        "read_problems": load.problems[:10],
        "findings": findings,
        "machine": machine(),
    }


def main() -> None:
    """Parse the arguments, measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object")
    parser.add_argument("--studies", type=int, default=40)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--usd", type=float, default=0.002, help="budget of a study: seconds of a slot at $1 an hour")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), studies=arguments.studies, clients=arguments.clients, usd=arguments.usd)
    if arguments.as_json:
        print(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
