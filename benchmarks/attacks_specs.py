"""The most costly specs that the service accepts for reading: processor time of parsing and of checking each.

    nice -n 10 python benchmarks/attacks_specs.py --json

makes specs of several hostile kinds, each as large as `automl.service.limits` allows, and reads them in a forked
process: as the service does (`parse`), and against a built-in task as its check program does (`check`). A fault is more
than 2 s of a processor. Exit code 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from automl.launching.prepared_study import facts_of
from automl.service.http.gate import API_BODY
from automl.service.limits import spec_within
from search_spaces.messages import UserError
from search_spaces.space import Space
from studies.spec.checks import check_against_task, with_baselines, with_first_trials
from studies.spec.study_spec import parse_spec

MOST_SECONDS, END_SECONDS = 2.0, 8
_SIZES = 17
"""Powers of two tried as sizes; larger specs have more characters than are allowed."""

Make: TypeAlias = Callable[[int], dict[str, Any] | str]
"""Makes a spec of some size."""


def _spec(**keys: Any) -> dict[str, Any]:
    return {"study": "a", "task": "digits", "budget": {"trials": 1}, **keys}


def _constant(count: int, **more: Any) -> dict[str, Any]:
    return {f"p{number}": 1 for number in range(count)} | more


def _chain(count: int, *, closed: bool = False, value: int = 1) -> dict[str, Any]:
    """Parameters of which each exists at a value of the one before."""
    space = {f"p{n}": {"type": "int", "low": 1, "high": 2, "when": {f"p{n - 1}": value}} for n in range(1, count)}
    first = {"type": "int", "low": 1, "high": 2} | ({"when": {f"p{count - 1}": 1}} if closed else {})
    return {"p0": first} | space


def _anchors(count: int) -> str:
    """Lists of lists, by aliases: few characters, and many values once written out."""
    depth = 12
    lists = "".join(f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 2)}]\n" for n in range(1, depth))
    return f"study: a\ntask: digits\ntask_options:\n  a0: &a0 [{', '.join('x' * (count // 2**depth + 1))}]\n{lists}"


def _relations(count: int, text: str, **space: Any) -> dict[str, Any]:
    return _spec(space={"x": {"type": "int", "low": 1, "high": 9}, **space, "constraints": [text] * count})


KINDS: dict[str, Make] = {
    "many choices": lambda n: _spec(space={"x": list(range(n))}),
    "choices in fractions": lambda n: _spec(space={"x": [one + 0.5 for one in range(n)]}),
    "choices of a training option": lambda n: _spec(space={"learning_rate": [(one + 1) / 1e6 for one in range(n)]}),
    "choices of clashing options": lambda n: _spec(
        space={name: [(one + 1) / 1e6 for one in range(n)] for name in ("learning_rate", "weight_decay", "dropout")}
        | {"schedule": ["constant", "cosine"], "warmup_epochs": list(range(n)), "clip_norm": list(range(1, n))}
    ),
    "values of a condition": lambda n: _spec(
        space={"x": {"type": "int", "low": 0, "high": n}, "y": {"type": "int", "low": 0, "high": 1,
                                                             "when": {"x": list(range(n))}}}),
    "many parameters": lambda n: _spec(space=_constant(n)),
    "long names": lambda n: _spec(space={("ab" * 90)[: n % 180 + 1] + str(one): 1 for one in range(n)}),
    "a chain of conditions": lambda n: _spec(space=_chain(n)),
    "a circle of conditions": lambda n: _spec(space=_chain(n, closed=True)),
    "an unknown parent": lambda n: _spec(
        space={"abba" * 12 + "baab" * 12 + f"{one:x}": 1 for one in range(n)}
        | {"y": {"type": "int", "low": 0, "high": 1, "when": {"ab" * 50: 1}}}
    ),
    "conditions of an option": lambda n: _spec(
        space=_chain(n, value=2)
        | {"shard": {"type": "categorical", "choices": ["none", "full"], "when": {f"p{n - 1}": 2}}}
    ),
    "objectives": lambda n: _spec(objectives=[{f"m{one}": "min"} for one in range(n)]),
    "objectives by name": lambda n: _spec(objectives=[f"loss_{one:x}" for one in range(n)]),
    "constraints of metrics": lambda n: _spec(constraints=[{"metric": f"{one:x}", "max": 1} for one in range(n)]),
    "earlier studies": lambda n: _spec(search={"from_studies": [f"{one:x}" for one in range(n)]}),
    "first trials": lambda n: _spec(space=_constant(n), search={"first_trials": [{}] * n}),
    "different first trials": lambda n: _spec(
        space={"x": [0, 1]}, search={"first_trials": [{"x": one} for one in range(n)]}
    ),
    "a long first trial": lambda n: _spec(space=_constant(n), search={"first_trials": [_constant(n)]}),
    "baselines": lambda n: _spec(
        space=_constant(n), baselines=[{"name": f"{one:x}", "params": {"p0": 1}} for one in range(n)]
    ),
    "baselines of unknown metrics": lambda n: _spec(
        baselines=[{"name": "b", "metrics": {f"val_erro{one:x}": 1.0 for one in range(n)}}]
    ),
    "reference points": lambda n: _spec(
        objectives=[{f"m{one}": "min"} for one in range(n)], reference_point={f"m{one}": 1.0 for one in range(n)}
    ),
    "promotion": lambda n: _spec(promotion={f"m{one}": 1.0 for one in range(n)}),
    "unknown keys": lambda n: _spec(**{f"k{one}": 1 for one in range(n)}),
    "an unknown long key": lambda n: _spec(training={"ab" * n: 1}),
    "unknown choices of a text": lambda n: _spec(training={"optimizer": "ab" * n}),
    "options of a task": lambda n: _spec(task_options={f"k{one}": [[]] for one in range(n)}),
    "deep options": lambda n: _spec(task_options={f"k{one}": json.loads("[" * 95 + "]" * 95) for one in range(n)}),
    "options of a pruner": lambda n: _spec(search={"pruner": {"name": "mo_asha"} | _constant(n)}),
    "a long command": lambda n: _spec(task={"command": ["train", *["{x}"] * n]}, space={"x": [1, 2]}),
    "a command of many names": lambda n: _spec(
        task={"command": ["train", *[f"{{p{one}}}" for one in range(n)]]}, space=_constant(n)
    ),
    "anchors": _anchors,
    "a long scalar": lambda n: "study: a\ntask: digits\nstore: '" + "x\n\n" * n + "'",
    "an address of many": lambda n: _spec(store="@" + "://:" * n + " "),
    "a relation of minus signs": lambda n: _relations(n, "-" * 480 + "x <= 1"),
    "a relation of nots": lambda n: _relations(n, "not " * 120 + "x <= 1"),
    "a relation of sums": lambda n: _relations(n, "x" + "+x" * 245 + "<=1"),
    "a relation of powers": lambda n: _relations(n, "x" + "**9" * 150 + "<=1"),
    "a relation of comparisons": lambda n: _relations(n, "x" + "==x" * 160, x=[1, 2]),
    "relations with choices": lambda n: _relations(
        n // 64, " and ".join(["x==x"] * 50), x=[f"{one:x}" for one in range(n)]
    ),
    "relations with texts": lambda n: _relations(
        n // 64, "x in ['1'" + ",'1'" * 120 + "]", x=[f"{one:x}" for one in range(n)]
    ),
    "relations that are seldom kept": lambda n: _relations(1, "p0 + p1 > 9", **{
        f"p{one}": {"type": "int", "low": 1, "high": 2} for one in range(n)}),
    "relations of an unknown name": lambda n: _relations(1, "ab" * 50 + " < 1", **_constant(n)),
    "an unknown parameter": lambda n: _spec(space={f"learning_rat{one:x}": 1 for one in range(n)}),
}  # fmt: skip


def largest(make: Make) -> dict[str, Any] | str:
    """Return the largest spec of a kind that the service reads, of sizes between powers of two."""
    size = 1
    for power in reversed(range(_SIZES)):
        if _is_within(make(size + 2**power)):
            size += 2**power
    return make(size)


def _is_within(spec: dict[str, Any] | str) -> bool:
    if len(json.dumps({"spec": spec})) > API_BODY:
        return False
    try:
        spec_within(spec, "spec")
    except UserError:
        return False
    return True


def read(spec: dict[str, Any] | str) -> dict[str, Any]:
    """Return seconds of a processor by step, and how it ended."""
    began, seconds = time.process_time(), dict[str, float]()

    def note(step: str) -> None:
        nonlocal began
        seconds[step] = round(time.process_time() - began, 2)
        began = time.process_time()

    step, said = "parse", ""
    try:
        parsed = parse_spec(spec_within(spec, "spec"), "spec")
        note(step)
        step = "check"
        facts = facts_of("digits", {}, source="spec", folder=Path(), space=None, by_module=False)
        began = time.process_time()
        is_command = parsed.task == "command"
        own = parsed.space.names() if parsed.space else ()
        parameters = None if is_command else [*(facts.parameters or ()), *own]
        parsed = check_against_task(parsed, parameters, None if is_command else facts.metrics, facts.space or Space({}))
        parsed = with_first_trials(parsed, ())
        with_baselines(parsed, (), facts.metrics)
        note(step)
    except UserError as error:
        said = str(error)
        note(step)
    return {**seconds, "said": said[:100]}


def measured(spec: dict[str, Any] | str) -> dict[str, Any]:
    """Read a spec in a forked process, of which `END_SECONDS` of a processor are the most."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        resource.setrlimit(resource.RLIMIT_CPU, (END_SECONDS, END_SECONDS))
        os.write(writing, json.dumps(read(spec)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    _, status, used = os.wait4(child, 0)
    if not text:
        how = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "an error"
        return {"parse": round(used.ru_utime + used.ru_stime, 2), "said": f"ended by {how}"}
    found: dict[str, Any] = json.loads(text)
    return found


def main() -> None:
    """Print the processor time of each kind."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--kinds", default="", help="Parts of names of kinds, separated by commas; empty: all.")
    given = parser.parse_args()
    chosen = [kind for kind in KINDS if any(part in kind for part in given.kinds.split(","))]
    found = {}
    for kind in chosen:
        found[kind] = measured(largest(KINDS[kind]))
        if not given.json:
            print(kind, found[kind], flush=True)
    slow = [kind for kind, one in found.items() if max(one.get("parse", 0.0), one.get("check", 0.0)) > MOST_SECONDS]
    if given.json:
        print(json.dumps({"seconds": found, "faults": slow}, indent=1))
    else:
        print(*(f"did not hold: {kind} takes over {MOST_SECONDS:g} s" for kind in slow), sep="\n")
    sys.exit(1 if slow else 0)


if __name__ == "__main__":
    main()
