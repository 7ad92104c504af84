"""The scene of chaos.py: a folder, a store, a study, and the controllers that drive it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy as sa
import yaml

from chaos_parts.clock import Clock
from studies.storage.schema.engine import parse_url

AUTOML = str(Path(sys.executable).parent / "automl")
STUDY = "chaos"
MARK = "AUTOML_CHAOS_MARK"
"""Environment variable by which processes of the scene are found, also those that lost their parent."""
CONTROLLERS = 2
"""One drives the study, the other stands by."""

SPEC: dict[str, Any] = {
    "study": STUDY,
    "task": "chaos_parts.task:Blobs",
    "space": {
        "learning_rate": {"type": "float", "low": 0.001, "high": 1.0, "log": True},
        "pace_seconds": {"type": "float", "low": 0.05, "high": 6.0, "log": True},
        "batch_per_rank": {"type": "categorical", "choices": [16]},
    },
    "objectives": [
        {"metric": "val_loss", "direction": "minimize"},
        {"metric": "cost_usd", "direction": "minimize"},
    ],
    "training": {"epochs": 9, "reference_batch": 16},
    "search": {"sampler": "random", "pruner": {"name": "mo_asha", "grace": 1, "eta": 3}, "seed": 0},
    "budget": {"usd": 1000.0, "trials": 100000},
    "checkpoints": {"every_seconds": 1},
    "resources": {"price_per_slot_hour": 1.0},
}
"""The spec, but for what a scene says: the slots, which are also the choices of world_size, and where rows go."""


@dataclass(kw_only=True)
class Scene:
    """Where the faults happen.

    Attributes:
        folder: Folder of the study's files, on a disk of its own if `own_disk`.
        store: URL of the store.
        own_disk: Whether the folder is a mount of its own, which can be filled.
        environment: Environment of all processes of the scene.
        database: Server of the store, which may be stopped and started; None if the store has none of our own.
        slots: Number of slots of a controller.
        mlflow: Tracking URI of MLflow, or "off".
        controllers: Controllers that were started and have not been waited for.
    """

    folder: Path
    store: str
    own_disk: bool
    environment: dict[str, str]
    database: Any = None
    slots: int = 2
    mlflow: str = "sqlite:///mlflow.db"
    controllers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def begin(self) -> None:
        """Write the spec."""
        sizes = {"type": "categorical", "choices": list(range(1, self.slots + 1))}
        own = {"space": SPEC["space"] | {"world_size": sizes}, "resources": SPEC["resources"] | {"slots": self.slots}}
        spec = SPEC | own | {"store": self.store, "mlflow": self.mlflow}
        (self.folder / "spec.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))

    def keep_controllers(self) -> None:
        """Start controllers in place of those that have ended."""
        self.controllers = [one for one in self.controllers if one.poll() is None]
        while len(self.controllers) < CONTROLLERS:
            self.controllers.append(self.start("launch", "spec.yaml", "--json"))

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a command whose output goes to the scene's log."""
        # The log stands beside the folder: a full disk must not silence what is said about it.
        with self.folder.with_suffix(".log").open("ab") as log:
            return subprocess.Popen(
                [AUTOML, *words],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def run(self, *words: str, seconds: float = 300.0) -> tuple[int, str, str]:
        """Run a command to its end; returns exit code, stdout and stderr."""
        done = subprocess.run(
            [AUTOML, *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def leader(self) -> int | None:
        """Process id of the controller that holds the lease; None if none does."""
        rows = self.rows("select pid from automl_leases where released_at is null")
        ours = {one.pid for one in self.controllers if one.poll() is None}
        return next((row[0] for row in rows if row[0] in ours), None)

    def rows(self, query: str, **values: Any) -> list[Any]:
        """Read rows of the store; none while it cannot be read."""
        engine = sa.create_engine(_readable(self.store, self.folder))
        try:
            with engine.connect() as connection:
                return list(connection.execute(sa.text(query), values))
        except sa.exc.SQLAlchemyError:
            return []
        finally:
            engine.dispose()

    def processes(self) -> list[psutil.Process]:
        """All processes of the scene, whoever started them."""
        return [one for one in psutil.process_iter() if _environment(one).get(MARK) == self.environment[MARK]]

    def named(self, words: str, below: int | None) -> list[psutil.Process]:
        """Processes below a controller whose command line has the words; none without a controller."""
        if below is None:
            return []
        with contextlib.suppress(psutil.Error):
            return [one for one in psutil.Process(below).children(recursive=True) if words in _command_line(one)]
        return []

    def end(self) -> list[str]:
        """Kill what is left, and return the command lines of processes that no controller owns any more."""
        for controller in self.controllers:
            controller.kill()
            controller.wait()
        time.sleep(5.0)  # what hangs from a controller may take a moment to notice its death
        left = [one for one in self.processes() if one.pid != os.getpid()]
        lines = [_command_line(one) for one in left]
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()
        return lines


@contextlib.contextmanager
def scene(store: str, *, database: Any, clock: Clock | None, **options: Any) -> Iterator[Scene]:
    """A scene in a folder of its own, on a small disk of its own if this process may mount one.

    Args:
        store: URL of the store; empty for an SQLite file in the folder.
        database: Server of the store if it is our own, else None.
        clock: Clock of the processes; None takes that of the machine.
        options: Attributes of the scene: `slots`, `mlflow`.
    """
    base = Path(f"/tmp/automl-chaos-{uuid.uuid4().hex[:8]}")
    folder = base / "study"
    folder.mkdir(parents=True)
    own_disk = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "chaos", folder], check=False).returncode == 0
    modules = os.pathsep.join(filter(None, [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, MARK: base.name, "PYTHONPATH": modules, "COLUMNS": "160"}
    if clock is not None:
        environment |= clock.environment
    try:
        yield Scene(
            folder=folder,
            store=store or "sqlite:///automl.db",
            own_disk=own_disk,
            environment=environment,
            database=database,
            **options,
        )
    finally:
        if own_disk:
            subprocess.run(["umount", "-l", folder], check=False)


def audit(scene_: Scene) -> dict[str, Any]:
    """What `automl audit` finds in the study."""
    code, out, err = scene_.run("audit", STUDY, "--store", scene_.store, "--json")
    try:
        return {"exit_code": code, **json.loads(out)}
    except ValueError:
        return {"exit_code": code, "error": err.strip()[-2000:]}


def _readable(store: str, folder: Path) -> str:
    if store.startswith("sqlite:///"):
        return f"sqlite:///file:{folder / store.removeprefix('sqlite:///')}?mode=ro&uri=true"
    return parse_url(store).render_as_string(hide_password=False)


def _environment(process: psutil.Process) -> dict[str, str]:
    with contextlib.suppress(psutil.Error, OSError):
        return process.environ()
    return {}


def _command_line(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""
