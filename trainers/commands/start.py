"""What a program is started with: its arguments, and the variables of its environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from trainers.code_files import hash_of
from trainers.commands.command import Command, arguments, filled, search_path
from trainers.commands.working_folder import WorkingFolder
from trainers.own_environment import variables_here
from trainers.own_loop import OwnLoop

_VARIABLE_PREFIX = "AUTOML_"
_WITHHELD_PREFIXES = ("RAY_", _VARIABLE_PREFIX)
"""Variables of a rank that its program does not get: they are about the rank's own Ray and our own processes."""
_MOST_SCRIPT_BYTES = 2**24


def start_of(
    command: Command,
    own: OwnLoop,
    place: Mapping[str, str],
    *,
    folder: WorkingFolder,
    kept: Path,
) -> tuple[list[str], dict[str, str]]:
    """Return arguments and environment of a rank's program; its parameters are written to a file as well.

    Args:
        command: What is run.
        own: The trial.
        place: Variables that tell the program its rank.
        folder: Place of this attempt's temporary files.
        kept: Folder whose content is kept for going on.

    Raises:
        OSError: The file of the parameters cannot be written.
    """
    spec = own.spec
    params = json.dumps(dict(spec.params))
    params_file = folder.path / "params.json"
    params_file.write_text(params, encoding="utf-8")
    values = {name: _as_text(value) for name, value in {**spec.training, **spec.params}.items()} | {
        "world_size": str(spec.world_size),
        "seed": str(spec.seed),
        "epochs": str(own.settings.epochs),
        "scaled_learning_rate": repr(own.learning_rate),
        "checkpoint_folder": str(kept),
        "params_file": str(params_file),
    }
    ours = {
        "STUDY": spec.study,
        "TRIAL": str(spec.trial),
        "ATTEMPT": str(spec.attempt),
        "PARAMS": params,
        "PARAMS_FILE": values["params_file"],
        "EPOCHS": values["epochs"],
        "SEED": values["seed"],
        "LEARNING_RATE": values["scaled_learning_rate"],
        "CHECKPOINT_FOLDER": values["checkpoint_folder"],
        "CHANNEL": str(folder.channel),
    }
    environment = {
        **variables_here(spec.environment),
        **{name: value for name, value in os.environ.items() if not name.startswith(_WITHHELD_PREFIXES)},
        "PATH": search_path(),
        "OMP_NUM_THREADS": str(spec.cpus_per_rank),
        "PYTHONUNBUFFERED": "1",
        **place,
        **{f"{_VARIABLE_PREFIX}{name}": value for name, value in ours.items()},
        **{name: filled(text, values) for name, text in command.environment.items()},
    }
    return arguments(command.parts, values), environment


def script_files(command: Command, base_folder: Path) -> dict[str, str]:
    """Return the hashes of the files that a command names, such as its script, by their relative paths."""
    found: dict[str, str] = {}
    for part in command.parts:
        for text in part if isinstance(part, tuple) else (part,):
            path = base_folder / command.folder / text
            with suppress(OSError, ValueError):
                if path.is_file() and path.stat().st_size <= _MOST_SCRIPT_BYTES:
                    found[path.relative_to(base_folder).as_posix()] = hash_of(path)
    return found


def _as_text(value: object) -> str:
    """Return a parameter as an argument: texts as they are, other values as in JSON."""
    return value if isinstance(value, str) else json.dumps(value)
