"""Where the output of ranks is kept: files beside the spec, on the machine of the rank. Does not import torch."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from trainers.checkpoint_urls import trial_folder
from trainers.protocol import TrialSpec

FOLDER = "automl_logs"
"""Folder beside the spec."""
_NAME = re.compile(r"attempt-(\d+)\.rank-(\d+)\.log")


def log_folder(base_folder: str | Path, study: str, trial: int, *, seed: int | None = None) -> Path:
    """Return the folder of a trial's logs: of the search, or of the training that has confirmed it with a seed."""
    return Path(base_folder) / FOLDER / study / trial_folder(trial, seed)


def seeds_of_trial(base_folder: str | Path, study: str, trial: int) -> list[int]:
    """Return the seeds of the trainings that have confirmed a trial, and of which there are logs."""
    own = log_folder(base_folder, study, trial)
    endings = (path.name.removeprefix(f"{own.name}-seed-") for path in own.parent.glob(f"{own.name}-seed-*"))
    return sorted(int(ending) for ending in endings if ending.isdecimal())


def folders_of_trial(base_folder: str | Path, study: str, trial: int) -> list[Path]:
    """Return all folders of a trial's logs: of the search, and of each seed with which it was confirmed."""
    seeds = (None, *seeds_of_trial(base_folder, study, trial))
    return [log_folder(base_folder, study, trial, seed=seed) for seed in seeds]


def path_of(spec: TrialSpec, rank: int, base_folder: str | Path) -> Path:
    """Return the file of a rank's latest output; a training that confirms has a folder of its own for each seed."""
    seed = spec.seed if spec.test_at else None
    return log_path(log_folder(base_folder, spec.study, spec.trial, seed=seed), spec.attempt, rank)


def log_path(folder: Path, attempt: int, rank: int) -> Path:
    """Return the file of the latest output of a rank; older output is in the file with `.1` behind its name."""
    return folder / f"attempt-{attempt}.rank-{rank}.log"


def logs_in(folder: Path, since: float = 0.0) -> dict[tuple[int, int], Path]:
    """Return the files of a trial by attempt and rank.

    Args:
        folder: The folder, from `log_folder`.
        since: Moment of the study's creation, in seconds since 1970: older files are of another one of the same name.
    """
    found: dict[tuple[int, int], Path] = {}
    for path in folder.glob("*.log"):
        with suppress(OSError):  # it may vanish just now
            if (named := _NAME.fullmatch(path.name)) and path.stat().st_mtime >= since:
                found[int(named[1]), int(named[2])] = path
    return dict(sorted(found.items()))


def older(path: Path) -> Path:
    """Return the file of the output before that of a log."""
    return path.with_name(f"{path.name}.1")
