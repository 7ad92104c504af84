"""Runs `automl train` and `automl compare`, and stops them before they exceed their budget."""

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from automl.mcp_server.tool import ToolProblem
from search_spaces.machine_resources import available_cpus
from studies.gangs.available_slots import find_slots
from studies.money.budget import price_of

_CHUNK_BYTES = 2**20
_MEASURED_BYTES = 64 * 2**20
LONGEST_SECONDS = 900.0  # most seconds of one training, even if its budget allows more
FIRST_START_SECONDS = 30.0  # expected seconds until ranks train, before any measurement; each rank loads torch
_END_SECONDS = 0.5
_one_at_a_time = threading.Lock()
_measured: dict[tuple[str, int], float] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Resources of this machine."""

    device: str  # "cpu" or "cuda"
    device_name: str
    slots: int
    cores: int
    usd_per_slot_hour: float  # list price of a slot in dollars per hour
    price_source: str

    def usd(self, ranks: int, seconds: float) -> float:
        """Return the dollars for a training on `ranks` ranks, with one slot each."""
        return ranks * seconds * self.usd_per_slot_hour / 3600.0


def this_machine() -> Machine:
    """Return this machine's resources."""
    places = find_slots("auto", 1, None)
    price = price_of(places.device, places.device_name, 1)
    return Machine(
        device=places.device,
        device_name=places.device_name,
        slots=places.slots,
        cores=max(1, int(available_cpus())),
        usd_per_slot_hour=price.usd_per_slot_hour,
        price_source=price.source,
    )


def loopback_bytes_per_second() -> float:
    """Measure TCP's bytes per second over loopback, which gloo uses. Sends 64 MiB, in about 0.1 s."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        began = time.perf_counter()
        sender = threading.Thread(target=_send, args=(server.getsockname(),), daemon=True)
        sender.start()
        connection, _ = server.accept()
        with connection:
            left = _MEASURED_BYTES
            while left > 0:
                received = len(connection.recv(_CHUNK_BYTES))
                if not received:
                    break
                left -= received
        sender.join()
    return (_MEASURED_BYTES - left) / max(time.perf_counter() - began, 1e-9)


def _send(address: tuple[str, int]) -> None:
    chunk = bytes(_CHUNK_BYTES)
    with socket.create_connection(address) as connection:
        for _ in range(_MEASURED_BYTES // _CHUNK_BYTES):
            connection.sendall(chunk)


def expected_seconds(kind: str, ranks: int) -> tuple[float, str]:
    """Return a training's expected seconds, and the basis of the estimate."""
    known = _measured.get((kind, ranks))
    if known is not None:
        return known, "measured in the latest training"
    return FIRST_START_SECONDS, "assumed, since no training was measured here yet: mostly the start of the ranks"


def run(arguments: Sequence[str], *, kind: str, ranks: int, budget_usd: float, machine: Machine) -> dict[str, Any]:
    """Run a command that prints JSON, within a budget. Returns the JSON with `cost_usd` and `seconds`.

    Raises ToolProblem if the command fails or exhausts its budget, or another training is running.
    """
    if not _one_at_a_time.acquire(blocking=False):
        raise ToolProblem(
            "these tools run one training at a time, and another one runs on this machine",
            "call again when the other training has ended",
        )
    try:
        return _run(arguments, kind, ranks, budget_usd, machine)
    finally:
        _one_at_a_time.release()


def _run(arguments: Sequence[str], kind: str, ranks: int, budget_usd: float, machine: Machine) -> dict[str, Any]:
    seconds = min(budget_usd / max(machine.usd(ranks, 1.0), 1e-12), LONGEST_SECONDS) - _END_SECONDS
    if seconds <= 0:
        raise ToolProblem(
            f"budget_usd is {budget_usd:g}, which does not even pay for the start of the training processes",
            "pass a larger budget_usd",
        )
    environment = {name: value for name, value in os.environ.items() if name not in {"AUTOML_SERVER", "AUTOML_STORE"}}
    began = time.monotonic()
    process = subprocess.Popen(  # noqa: S603 - a program of this project
        [sys.executable, "-m", "automl", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that its ranks end with it
    )
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        cost = machine.usd(ranks, time.monotonic() - began)
        message = f"stopped after {seconds:.0f} s, at {cost:.4g} dollars: its budget is used up, and there is no result"
        raise ToolProblem(message, "call again with a larger budget_usd, fewer ranks or fewer epochs") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()  # closes its pipes
    took = time.monotonic() - began
    if process.returncode != 0:
        lines = [line for line in errors.splitlines() if line.strip()]
        is_with_cure = len(lines) > 1 and lines[-2].startswith("automl: ")
        problem = ". ".join(lines[-2:] if is_with_cure else lines[-1:])
        raise ToolProblem(problem[:1000] or "the training failed", "change the arguments accordingly")
    _measured[kind, ranks] = took
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found | {"seconds": took, "cost_usd": machine.usd(ranks, took)}


def rank_losses(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """Return batches, seconds and losses of each rank, from the ranks' logs."""
    return [_rank(folder / f"rank-{rank}.csv", rank) for rank in range(ranks)]


def _rank(path: Path, rank: int) -> dict[str, Any]:
    epochs: dict[str, list[float]] = defaultdict(list)
    samples, seconds = 0, 0.0
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            epochs[row["epoch"]].append(float(row["loss"]))
            samples += int(row["samples"])
            seconds += float(row["seconds"])
    losses = [loss for of_epoch in epochs.values() for loss in of_epoch]
    return {
        "rank": rank,
        "batches": len(losses),
        "samples": samples,
        "seconds": round(seconds, 4),
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
        "mean_loss_by_epoch": [round(fmean(of_epoch), 6) for of_epoch in epochs.values()],
    }
