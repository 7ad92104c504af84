#!/usr/bin/env python
"""Serving: requests a second and latencies of an exported model behind HTTP, with and without batches across requests.

    python benchmarks/serving.py --json [--task tabular|text] [--width N] [--clients 32] [--requests 6000]
    python benchmarks/serving.py --json --soak 100000

The same clients ask the same model, by default a residual network for rows of a table, behind `automl serve-model`,
behind the same server with one row in a batch, and behind `mlflow models serve`. The servers take turns, so only ratios
within a run can be compared with those of another machine. Processor time a request depends least on what else runs.

`--soak` lets two workers answer that many requests while the model is replaced, a worker is killed, and a client sends
what is no HTTP.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from serving_parts.clients import Told, asked, request_of
from serving_parts.models import Exported, exported
from serving_parts.servers import Server, of_mlflow, ours

WARM_UP = 200
FEWER = 8
"""By how much fewer requests a slow server is asked."""
_GARBAGE_PAUSE_SECONDS = 0.02


def main() -> None:
    """Run the benchmark, and print one JSON object."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        model = exported(Path(folder), arguments.task, arguments.width)
        done = soak(model, arguments.soak, arguments.clients) if arguments.soak else compared(model, arguments)
    found = {"load": os.getloadavg()[0], "cpus": os.cpu_count(), "task": arguments.task, "width": arguments.width}
    print(json.dumps(found | done, indent=None if arguments.json else 2))


def compared(model: Exported, arguments: argparse.Namespace) -> dict[str, Any]:
    """Ask the three servers in turn, some rounds of it."""
    one = [request_of("/predict", {"row": row}) for row in model.rows]
    key = "dataframe_records" if isinstance(model.rows[0], dict) else "inputs"
    theirs = [request_of("/invocations", {key: [row]}) for row in model.rows]
    servers: dict[str, tuple[Callable[[], AbstractContextManager[Server]], list[bytes], int]] = {
        "batches": (lambda: ours(model.package), one, arguments.requests),
        "one_by_one": (
            lambda: ours(model.package, "--batch-rows", "1"), one, arguments.requests // FEWER
        ),
        "mlflow": (lambda: of_mlflow(model.mlflow), theirs, arguments.requests // FEWER),
    }  # fmt: skip
    rounds: dict[str, list[Told]] = {name: [] for name in servers}
    cpu_ms: dict[str, list[float]] = {name: [] for name in servers}
    for _ in range(arguments.rounds):
        for name, (start, requests, count) in servers.items():
            with start() as server:
                asked(server.port, requests, clients=arguments.clients, count=WARM_UP)
                before = server.cpu_seconds()
                rounds[name].append(asked(server.port, requests, clients=arguments.clients, count=count))
                cpu_ms[name].append(1000 * (server.cpu_seconds() - before) / count)
    figures = {name: _of_rounds(told) for name, told in rounds.items()}
    for name, found in cpu_ms.items():
        figures[name]["cpu_ms_per_request"] = round(statistics.median(found), 3)
    speed = {name: one["requests_per_second"] for name, one in figures.items()}
    return {
        "clients": arguments.clients,
        **figures,
        "batches_over_one_by_one": round(speed["batches"] / speed["one_by_one"], 2),
        "batches_over_mlflow": round(speed["batches"] / speed["mlflow"], 2),
        "largest_difference_of_probabilities": _largest_difference(rounds["batches"][0], rounds["one_by_one"][0]),
    }


def soak(model: Exported, count: int, clients: int) -> dict[str, Any]:
    """Ask two workers while what may happen to a server happens."""
    requests = [request_of("/predict", {"row": row}) for row in model.rows]
    over = threading.Event()
    with ours(model.package, "--workers", "2", "--threads", "1", "--poll-seconds", "0.5") as server:
        garbage = threading.Thread(target=_send_garbage, args=(server.port, over))
        garbage.start()
        events = _Events({count // 3: lambda: _replace(model), count // 2: lambda: _kill_worker(server)})
        try:
            told = asked(server.port, requests, clients=clients, count=count, on_answer=events.at)
        finally:
            over.set()
            garbage.join()
        workers = len(server.workers())
    log = next(model.package.parent.glob("server-*.log")).read_text()
    return {
        "requests": count,
        "answered": len(told.seconds),
        "lost": told.lost,
        "statuses": {str(status): number for status, number in sorted(told.statuses.items())},
        "without_retry_after": told.without_retry_after,
        "broken_connections": told.broken,
        "broken_twice": told.broken_twice,
        "workers_at_the_end": workers,
        "loaded_again": log.count("now serving"),
        "wrong_answers": _wrong(told),
        **told.figures(),
    }


class _Events:
    """What happens once so many requests are answered; called in one thread."""

    def __init__(self, by_count: dict[int, Callable[[], None]]) -> None:
        self._by_count = by_count

    def at(self, count: int) -> None:
        if what := self._by_count.pop(count, None):
            threading.Thread(target=what).start()


def _replace(model: Exported) -> None:
    """Write the model anew, which the server takes for another one."""
    program = model.package / "model.pt2"
    copy = program.with_suffix(".tmp")
    copy.write_bytes(program.read_bytes())
    copy.replace(program)


def _kill_worker(server: Server) -> None:
    os.kill(server.workers()[0], signal.SIGKILL)


def _send_garbage(port: int, over: threading.Event) -> None:
    draw = random.Random(0)
    while not over.wait(_GARBAGE_PAUSE_SECONDS):
        kinds = (
            draw.randbytes(draw.randint(1, 4000)),
            b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
            request_of("/predict", {"row": draw.choice([1, None, [], "", "x" * 20_000])}),
            b"GET / HTTP/9.9\r\n\r\n" * 20,
        )
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(draw.choice(kinds))
            if draw.random() < 0.5:
                connection.settimeout(0.2)
                connection.recv(100)


def _of_rounds(rounds: list[Told]) -> dict[str, float]:
    """Return the medians of the rounds' figures."""
    every = [told.figures() for told in rounds]
    assert all(set(told.statuses) == {200} for told in rounds), [told.statuses for told in rounds]
    return {name: statistics.median(one[name] for one in every) for name in every[0]}


def _probabilities(told: Told) -> dict[int, dict[str, float]]:
    return {row: json.loads(body)["probabilities"] for row, body in told.answers.items()}


def _largest_difference(first: Told, second: Told) -> float:
    """Return by how much the probabilities of the same row differ at most."""
    one, other = _probabilities(first), _probabilities(second)
    shared = one.keys() & other.keys()
    return max(abs(one[row][label] - other[row][label]) for row in shared for label in one[row])


def _wrong(told: Told) -> int:
    """Return the number of rows whose last answer is no answer to a row: its probabilities do not add up to one."""
    return sum(abs(sum(each.values()) - 1) > 1e-5 for each in _probabilities(told).values())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the object in one line")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=6000, help="a round of the server with batches")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--task", choices=("tabular", "text"), default="tabular")
    parser.add_argument("--width", type=int, help="units of a layer of the model (128, text: 64)")
    parser.add_argument("--soak", type=int, default=0, metavar="REQUESTS")
    return parser.parse_args()


if __name__ == "__main__":
    main()
