"""A team's service as it runs: uvicorn in a thread, tokens of two projects, and a worker in a process of its own."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import uvicorn

from automl.service.http.context import ServiceContext
from automl.service.http.service_app import make_app
from automl.service.operator_policy import Policy
from studies.queueing import access_tokens
from studies.storage.study_store import Store

SPEC: dict[str, Any] = {
    "study": "tiny",
    "task": "digits",
    "objectives": [{"metric": "val_error"}, {"metric": "cost_usd"}],
    "space": {"learning_rate": {"type": "float", "low": 0.01, "high": 0.5, "log": True}},
    "training": {"epochs": 2},
    "search": {"sampler": "random", "pruner": "none"},
    "baselines": [],
    "budget": {"usd": 2.0, "trials": 2},
    "resources": {"slots": 1, "device": "cpu"},
}


@dataclass(frozen=True, kw_only=True)
class TeamService:
    url: str
    store: Store
    folder: Path
    ann: str  # a member of the project "red"
    bob: str  # a member of the project "blue"
    viewer: str  # reads what is of the project "red"


@contextmanager
def team_service(folder: Path, *, usd_per_slot_hour: float = 1.0) -> Iterator[TeamService]:
    """Serve an empty store of a folder."""
    store = Store(f"sqlite:///{folder}/automl.db")
    made = {
        name: access_tokens.create(store, name=name, user=name, project=project, role=role, days=1)[0]
        for name, project, role in (("ann", "red", "member"), ("bob", "blue", "member"), ("eve", "red", "viewer"))
    }
    policy = Policy(code_folders={}, artifacts=str(folder / "artifacts"), usd_per_slot_hour=usd_per_slot_hour)
    app = make_app(ServiceContext(store=store, policy=policy), host="127.0.0.1")
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.05)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield TeamService(
            url=f"http://127.0.0.1:{port}", store=store, folder=folder,
            ann=made["ann"], bob=made["bob"], viewer=made["eve"],
        )  # fmt: skip
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def worker(store: Store, folder: Path, name: str = "w", slots: int = 1) -> Iterator[subprocess.Popen[bytes]]:
    """Run what waits in the queue of a store, in processes that have ended when the block ends."""
    command = [sys.executable, "-m", "automl", "worker", "--store", store.url, "--slots", str(slots), "--name", name]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AUTOML_")}
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--device", "cpu", "--logs", str(folder / "logs")],
            cwd=folder, env=environment, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            yield process
        finally:
            children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            process.terminate()
            try:
                process.wait(60.0)
            except subprocess.TimeoutExpired:
                process.kill()
            for child in psutil.wait_procs(children, timeout=30.0)[1]:
                child.kill()
