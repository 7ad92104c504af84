"""The golden record: what simulated studies decide, suggest, pay and charge, as hashes that a refactoring must keep.

    python -m tests.support.golden                 compare with tests/golden.json; exit code 1 if anything differs
    python -m tests.support.golden --logs FOLDER   write every recorded line, to find the first one that differs
    python -m tests.support.golden --write         record anew; the commit says what was meant to change

A case is one study: over a table of learning curves, or of a spec whose space is continuous and conditional, killed
once and resumed. Its lines hold every configuration, epoch, decision with its numbers, attempt, charge and the
reference point, with numbers as `repr` writes them, bit for bit. Sentences that people read are hashed apart from the
rest, so that better words do not look like other decisions.

Floating-point results depend on the processor's instructions and on the number of threads, so the studies run in a
process of their own in which numpy, SciPy and torch are held to AVX2 and one thread.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from automl.launching.earlier_studies import trials_of_record
from studies.records.records import Constraint, Objective, StudyRecord
from studies.search.model.transfer import EarlierStudy, thinned
from studies.simulation.recorded_curves import CurveTable, pooled, read_table, with_world_sizes
from studies.simulation.simulated_study import simulate
from tests.support import curve_tables
from tests.support.assembled_study import AssembledStudy
from tests.support.paths import ROOT, SHARED

RECORD = ROOT / "tests" / "golden.json"
CURVES = SHARED / "curves"
"""Recorded curves are too large for the repository: cases over them are left out where they are missing."""
SAME_ARITHMETIC = {
    "OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    "MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "avx2", "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    "PYTHONHASHSEED": "0",
}  # fmt: skip
Lines = tuple[list[str], list[str]]
"""What was decided, and what was said about it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One simulated study.

    Attributes:
        table: Name of the function in this module that gives its table.
        second: Second objective: `size`, `cost`, or `both` for three objectives.
        settings: Further arguments of `simulate`.
        earlier: Whether another study of the same table comes first, from which this one learns.
        constraint: Bound on the model's size as a quantile of the table's sizes; None for no constraint.
    """

    table: str
    second: str = "size"
    settings: Mapping[str, Any] = field(default_factory=dict)
    earlier: bool = False
    constraint: float | None = None


def _case(table: str, second: str, sampler: str, pruner: object, *, slots: int, budget: float, **more: Any) -> Case:
    special = {name: more.pop(name) for name in ("earlier", "constraint") if name in more}
    settings = {"sampler": sampler, "pruner": pruner, "slots": slots, "budget_full_trials": budget, **more}
    return Case(table=table, second=second, settings=settings, **special)


MEDIAN = {"name": "median", "startup_trials": 3}
PROMOTION = {"name": "mo_asha", "variant": "promotion", "grace": 2}
CASES: Mapping[str, Case] = {
    "made_up/random+mo_asha": _case("made_up", "size", "random", "mo_asha", slots=3, budget=8),
    "made_up/random+none+faults": _case("made_up", "cost", "random", "none", slots=4, budget=8, fault_rate=0.5),
    "made_up/tpe+promotion": _case("made_up", "cost", "tpe", PROMOTION, slots=2, budget=8, seed=1),
    "made_up/nsga2+median": _case("made_up", "size", "nsga2", MEDIAN, slots=2, budget=8),
    "made_up/gp+none": _case("made_up", "size", "gp", "none", slots=1, budget=12, seed=2),
    "made_up/tpe+break_even": _case("made_up", "cost", "tpe", "break_even", slots=2, budget=8, seed=3),
    "made_up/cokriging+mo_asha": _case("made_up", "size", "cokriging", "mo_asha", slots=3, budget=8, seed=4),
    "made_up/auto+one_slot": _case("made_up", "cost", "auto", "auto", slots=1, budget=8),
    "made_up/auto+six_slots": _case("made_up", "size", "auto", "auto", slots=6, budget=14, seed=6),
    "made_up/auto+three_objectives": _case("made_up", "both", "auto", "auto", slots=3, budget=8, seed=7),
    "made_up/auto+earlier": _case("made_up", "size", "auto", "auto", slots=3, budget=6, seed=8, earlier=True),
    "made_up/tpe+earlier": _case("made_up", "cost", "tpe", "mo_asha", slots=3, budget=6, seed=9, earlier=True),
    "made_up/auto+constraint": _case("made_up", "cost", "auto", "auto", slots=3, budget=8, seed=10, constraint=0.3),
    "made_up/nsga2+constraint": _case("made_up", "cost", "nsga2", "mo_asha", slots=3, budget=8, constraint=0.3),
    "failing/auto": _case("failing", "size", "auto", "auto", slots=3, budget=8, seed=12, fault_rate=0.3),
    "world_sizes/auto": _case("world_sizes", "cost", "auto", "auto", slots=4, budget=8, seed=13),
    "world_sizes/tpe+mo_asha": _case("world_sizes", "cost", "tpe", "mo_asha", slots=4, budget=8, seed=14),
    "lcbench/auto+size": _case("lcbench", "size", "auto", "auto", slots=4, budget=6, seed=20),
    "lcbench/auto+cost": _case("lcbench", "cost", "auto", "auto", slots=2, budget=5, seed=21),
    "lcbench/random+mo_asha": _case("lcbench", "size", "random", "mo_asha", slots=4, budget=12, seed=22),
    "lcbench/tpe+promotion": _case("lcbench", "cost", "tpe", PROMOTION, slots=4, budget=6, seed=23),
    "taskset/auto+size": _case("taskset", "size", "auto", "auto", slots=4, budget=6, seed=24),
    "taskset/cokriging+promotion": _case("taskset", "cost", "cokriging", PROMOTION, slots=4, budget=4, seed=25),
}  # fmt: skip
NEEDS_CURVES = ("lcbench", "taskset")
USUAL = {"learning_rate": 0.001, "batch_per_rank": 128, "world_size": 1, "optimizer": "sgd", "momentum": 0.0}
SPECS: Mapping[str, tuple[Any, ...]] = {
    "spec/auto": ("auto", "auto"),
    "spec/tpe+mo_asha": ("tpe", {"name": "mo_asha", "grace": 2}),
    "spec/nsga2+median": ("nsga2", {"name": "median", "grace": 2, "startup_trials": 3}),
    "spec/random+break_even": ("random", "break_even"),
    "spec/cokriging+none": ("cokriging", "none"),
    "spec/random+promotion": ("random", PROMOTION),
    "spec/auto+baseline": ("auto", "auto", USUAL),
    "spec/random+mo_asha+baseline": ("random", "mo_asha", USUAL),
}
"""Sampler, pruner and baselines of the studies that are assembled from a spec, as `automl launch` does."""
KILLED_AFTER_COMMITS = 30


@functools.cache
def made_up() -> CurveTable:
    """A numeric space of two parameters, twelve epochs."""
    with tempfile.TemporaryDirectory() as folder:
        return curve_tables.table(Path(folder), count=120)


@functools.cache
def failing() -> CurveTable:
    """The same, of which the highest rates diverge."""
    content = curve_tables.arrays(count=120, seed=3, name="failing")
    diverges = content["params"][:, 0] > 10**-0.8
    for name in [name for name in content if name.startswith("metric_")]:
        content[name] = np.where(diverges[:, None] & (np.arange(12) >= 3), np.nan, content[name])
    with tempfile.TemporaryDirectory() as folder:
        return read_table(curve_tables.write(Path(folder), content))


@functools.cache
def world_sizes() -> CurveTable:
    """Two tables as one, with a category, whose configurations take one, two or four slots."""
    tables = []
    with tempfile.TemporaryDirectory() as folder:
        for seed, name in enumerate(("first", "second")):
            path = curve_tables.write(Path(folder), curve_tables.arrays(seed=seed, name=name), f"{name}.npz")
            tables.append(read_table(path))
    return with_world_sizes(pooled(tables), (1, 2, 4), 0.8)


@functools.cache
def lcbench() -> CurveTable:
    """A table of 2,000 configurations and 52 epochs."""
    return read_table(CURVES / "lcbench" / "126026.npz")


@functools.cache
def taskset() -> CurveTable:
    """Two measured tables as one: noisy, and a fifth of it diverged."""
    names = ("patch32_GRU64_avg_bs128.npz", "patch128_LSTM128_bs64.npz")
    return pooled([read_table(CURVES / "taskset" / name) for name in names])


def available() -> tuple[str, ...]:
    """Names of the cases whose tables are at hand."""
    here = [name for name, case in CASES.items() if case.table not in NEEDS_CURVES or CURVES.is_dir()]
    return (*here, *SPECS)


def record(name: str) -> Lines:
    """Run one case and write down what happened, line by line."""
    if name in SPECS:
        return _record_of_spec(*SPECS[name])
    case = CASES[name]
    table = globals()[case.table]()
    error = next(one for one in ("val_error", "valid_error", "valid_loss", "val_loss")
                 if one in table.metrics)  # fmt: skip
    size = next(iter(table.statics))
    others = {"size": [size], "cost": ["cost_usd"], "both": [size, "cost_usd"]}[case.second]
    objectives = tuple(Objective(metric=metric) for metric in (error, *others))
    settings = {**case.settings, "objectives": objectives}
    if case.constraint is not None:
        bound = float(np.quantile(table.statics[size], case.constraint))
        settings["constraints"] = (Constraint(metric=size, max=bound),)
    if case.earlier:
        settings["earlier"] = (_earlier_study(table, objectives),)
    study = simulate(table, **settings)
    decided, said = _lines(study.record)
    decided += [
        _line("milestone", one.trial, one.epoch, one.spent_usd, one.values, one.test_values) for one in study.milestones
    ]
    return decided, said


def _record_of_spec(sampler: str, pruner: object, *baselines: Mapping[str, Any]) -> Lines:
    with tempfile.TemporaryDirectory() as folder:
        study = AssembledStudy(Path(folder), sampler, pruner, baselines)
        assert study.run_until_killed(study.limits, KILLED_AFTER_COMMITS), "the study ended before it was killed"
        study.run(study.limits)
        record = study.record()
        study.store.close()
    return _lines(record)


def _earlier_study(table: CurveTable, objectives: tuple[Objective, ...]) -> EarlierStudy:
    """What a random search with MO-ASHA leaves, with trials that were cut short."""
    study = simulate(
        table, objectives=objectives, slots=2, budget_full_trials=5, seed=99, sampler="random", pruner="mo_asha"
    )
    trials = trials_of_record(study.record, objectives)
    return EarlierStudy(name="before", trials=thinned(trials, objectives))


def _lines(whole: StudyRecord) -> Lines:
    decided: list[str] = []
    said: list[str] = []
    decided.append(_line("study", whole.state, whole.stop_reason, whole.overshoot_nano_usd, whole.reference_point))
    for trial in whole.trials:
        decided.append(
            _line("trial", trial.id, trial.number, trial.state, trial.failure, trial.params, trial.world_size,
                  trial.origin, trial.paid_nano_usd, trial.resume_epoch)
        )  # fmt: skip
        said.append(_line("trial", trial.id, trial.reason, (trial.error or "").splitlines()[-1:]))
        decided += [
            _line("epoch", trial.id, one.epoch, one.metrics, one.wall_seconds, one.cost_nano_usd,
                  one.checkpoint is not None, one.is_milestone, one.measured_at)
            for one in trial.epochs
        ]  # fmt: skip
        for one in trial.decisions:
            decided.append(_line("decision", trial.id, one.epoch, one.action, one.numbers, one.decided_at))
            said.append(_line("decision", trial.id, one.epoch, one.reason))
        decided += [
            _line("attempt", trial.id, one.attempt, one.slots, one.start_epoch, one.outcome, one.started_at.timestamp())
            for one in trial.attempts
        ]
    decided += [
        _line("charge", one.kind, one.trial, one.attempt, one.slots, one.seconds, one.usd_per_slot_hour,
              one.cost_nano_usd, one.charged_at.timestamp())
        for one in whole.charges
    ]  # fmt: skip
    return decided, said


def _line(*parts: object) -> str:
    return " ".join(_plain(part) for part in parts)


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}={_plain(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_plain, value)) + "]"
    if hasattr(value, "item"):  # numpy's scalars are written like Python's
        value = value.item()
    return repr(value)


def digest(lines: list[str]) -> str:
    """A hash of lines, short enough to read."""
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=10).hexdigest()


def hashes(names: tuple[str, ...], logs: Path | None = None) -> dict[str, dict[str, Any]]:
    """The record of some cases: number of lines, hash of the decisions, hash of the sentences."""
    found = {}
    for name in names:
        decided, said = record(name)
        found[name] = {"lines": len(decided), "decisions": digest(decided), "sentences": digest(said)}
        if logs is not None:
            logs.mkdir(parents=True, exist_ok=True)
            (logs / f"{name.replace('/', '.')}.txt").write_text("\n".join([*decided, "", *said]) + "\n")
    return found


def recorded_here(names: tuple[str, ...], logs: Path | None = None) -> dict[str, dict[str, Any]]:
    """`hashes` from a process that calculates the same on every x86-64 machine with AVX2."""
    command = [sys.executable, "-m", "tests.support.golden", "--cases", *names]
    command += [] if logs is None else ["--logs", str(logs)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | SAME_ARITHMETIC, capture_output=True, text=True, check=False, timeout=1200
    )
    if done.returncode:
        raise RuntimeError(f"the golden record could not be made:\n{done.stderr}")
    document: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return document


def differences(found: Mapping[str, Mapping[str, Any]], known: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """One line for each case that is not as it was recorded."""
    for name, now in found.items():
        before = known.get(name)
        changed = [part for part in now if before is None or before[part] != now[part]]
        if changed:
            yield f"{name}: {', '.join(changed)}"


def main(say: Callable[[str], None] = print) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="record anew")
    parser.add_argument("--logs", type=Path, help="folder for the recorded lines")
    parser.add_argument("--cases", nargs="+", help="print the hashes of these cases, from this very process")
    wanted = parser.parse_args()
    if wanted.cases:
        say(json.dumps(hashes(tuple(wanted.cases), wanted.logs)))
        return 0
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    found = recorded_here(available(), wanted.logs)
    if wanted.write:
        RECORD.write_text(
            json.dumps({name: found.get(name) or known[name] for name in (*CASES, *SPECS)}, indent=2) + "\n"
        )
    changed = list(differences(found, known))
    for line in changed:
        say(f"differs: {line}")
    say(f"{len(found)} cases, {len(changed)} differ")
    return 0 if wanted.write else int(bool(changed))


if __name__ == "__main__":
    sys.exit(main())
