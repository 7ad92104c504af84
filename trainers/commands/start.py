"""Prepares arguments, environment and temporary folder of a program. Does not import torch.

The process that created a folder automl-trial-HOST-PID-RANDOM holds a lock (flock) on its file `lock`. A folder without
a held lock is left over. Process ids cannot show this, because they repeat in other containers.
"""

import fcntl
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path

from trainers.commands.command import Command, EpochNumber, arguments, as_text, filled, names_in, search_path
from trainers.contract.user_code import hash_of
from trainers.functions.own_loop import OwnLoop
from trainers.ranks.process_state import variables_here

_NAME = "automl-trial-"
_SHORT_FOLDER = Path("/tmp")  # noqa: S108 - mkdtemp makes names that cannot be guessed
_LONGEST_SOCKET_BYTES = 107
"""Limit of a socket's path in bytes (`sun_path` in unix(7))."""
_LOCK = "lock"
_BEGUN_SECONDS = 3600.0
"""Age in seconds from which a folder without a file `lock` counts as left over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkingFolder:
    """Temporary folder of one attempt on one rank, and the path of its socket."""

    path: Path
    channel: Path


@contextmanager
def working_folder() -> Iterator[WorkingFolder]:
    """Create a temporary folder, deleted after the block, and delete folders of dead processes."""
    with ExitStack() as stack:
        path = stack.enter_context(_locked_folder(Path(tempfile.gettempdir())))
        channel = path / "channel"
        if len(os.fsencode(channel)) > _LONGEST_SOCKET_BYTES:
            channel = stack.enter_context(_locked_folder(_SHORT_FOLDER)) / "channel"
        yield WorkingFolder(path=path, channel=channel)


@contextmanager
def _locked_folder(place: Path) -> Iterator[Path]:
    for old in place.glob(f"{_NAME}*"):
        with suppress(OSError):
            _delete_if_left(old)
    folder = Path(tempfile.mkdtemp(prefix=f"{_NAME}{socket.gethostname()[:16]}-{os.getpid()}-", dir=place))
    try:
        new = folder / f"{_LOCK}.new"  # no other process may take the lock first
        with new.open("wb") as lock:
            with suppress(OSError):  # some network disks have no locks
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            new.rename(folder / _LOCK)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _delete_if_left(folder: Path) -> None:
    try:
        lock = (folder / _LOCK).open("rb")
    except FileNotFoundError:
        if time.time() - folder.stat().st_mtime < _BEGUN_SECONDS:
            return
    else:
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    shutil.rmtree(folder, ignore_errors=True)


_VARIABLE_PREFIX = "AUTOML_"
_WITHHELD_PREFIXES = ("RAY_", _VARIABLE_PREFIX)
"""Variables that configure the rank's own Ray and processes, and so are withheld from the program."""
_MOST_SCRIPT_BYTES = 2**24
_LOGGED = Path(__file__).parent / "logged"


def start_of(
    command: Command, own: OwnLoop, place: Mapping[str, str], *, folder: WorkingFolder, kept: Path, log: Path
) -> tuple[list[str], dict[str, str], Path, Path | None, frozenset[str]]:
    """Return a program's arguments, environment, folder, file of metrics (or None), and variables that trials change.

    Creates the folder, and writes a file of parameters. `log` is the output's path, beside `{trial_folder}`.
    """
    spec, names = own.spec, {name for name, _ in command.names()}
    params = json.dumps(dict(spec.params))
    params_file = folder.path / "params.json"
    params_file.write_text(params, encoding="utf-8")
    trial_folder = log.parent / "files"
    if "trial_folder" in names:
        trial_folder.mkdir(parents=True, exist_ok=True)
    values = {name: as_text(value) for name, value in {**spec.training, **spec.params}.items()} | {
        "world_size": str(spec.world_size),
        "seed": str(spec.seed),
        "study": spec.study,
        "trial": str(spec.trial),
        "attempt": str(spec.attempt),
        "epochs": str(own.settings.epochs),
        "scaled_learning_rate": as_text(own.learning_rate if own.has_rate else spec.params["learning_rate"]),
        "checkpoint_folder": str(kept),
        "trial_folder": str(trial_folder),
        "params_file": str(params_file),
    }
    shared = ("study", "trial", "attempt", "params_file", "epochs", "seed", "checkpoint_folder")
    ours = {name.upper(): values[name] for name in shared}
    ours |= {"PARAMS": params, "LEARNING_RATE": values["scaled_learning_rate"], "CHANNEL": str(folder.channel)}
    ours = {f"{_VARIABLE_PREFIX}{name}": value for name, value in ours.items()}
    given = variables_here(spec.environment)
    changing = {*given, *place, *ours, *(name for name, text in command.environment.items() if names_in(text))}
    environment = {
        **given,
        **{name: value for name, value in os.environ.items() if not name.startswith(_WITHHELD_PREFIXES)},
        "PATH": search_path(),
        "OMP_NUM_THREADS": str(spec.cpus_per_rank),
        "PYTHONUNBUFFERED": "1",
        **place,
        **ours,
        **{name: filled(text, values) for name, text in command.environment.items()},
    }
    if command.logged:
        number = None if command.epoch_from is None else astuple(EpochNumber.of(command.epoch_from))
        environment[f"{_VARIABLE_PREFIX}LOGGED"] = json.dumps(
            {"logger": next(iter(command.metrics)), "names": command.logged, "epoch_from": number}
        )
        environment["PYTHONPATH"] = os.pathsep.join([str(_LOGGED), *filter(None, [environment.get("PYTHONPATH")])])
    base = Path(spec.python_path[0] if spec.python_path else ".").absolute()
    where = base / filled(command.folder, values)
    argv = arguments(command.parts, values)
    if command.has_own_folder:
        where.mkdir(parents=True, exist_ok=True)
        argv = [_beside(base, one) for one in argv]
    json_file = where / filled(command.json_file, values) if command.json_file else None
    return argv, environment, where, json_file, frozenset(changing)


def _beside(base: Path, argument: str) -> str:
    with suppress(OSError, ValueError):
        if argument.strip("./") and (base / argument).exists():
            return str(base / argument)
    return argument


def script_files(command: Command, base_folder: Path) -> dict[str, str]:
    """Return hashes of the command's files by relative path."""
    found: dict[str, str] = {}
    for part in command.parts:
        for text in part if isinstance(part, tuple) else (part,):
            path = command.script_folder(base_folder) / text
            with suppress(OSError, ValueError):
                if path.is_file() and path.stat().st_size <= _MOST_SCRIPT_BYTES:
                    found[path.relative_to(base_folder).as_posix()] = hash_of(path)
    return found
