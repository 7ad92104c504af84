"""Feeds hostile input to every door, and counts what ends with anything but an answer or one clear line.

    python benchmarks/fuzz.py --inputs 20000 --seed 0 --json

An input is bad if it raises something that is not an error for users, takes longer than `MOST_SECONDS`, or if what is
printed, stored or drawn of it is not safe.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import random
import resource
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import yaml
from PIL import Image

from automl import cli
from automl.terminal.output import SafeConsole
from reports.page import as_json
from reports.page_templates import packed, unpacked
from search_spaces.messages import RunError, UserError
from search_spaces.untrusted_text import escaped, storable, storable_deep
from studies.spec.study_spec import apply_overrides, parse_spec, spec_to_mapping
from studies.spec.yaml_reader import read_yaml
from studies.storage.views.mlflow_connect import experiment_id, open_client
from studies.storage.views.mlflow_runs import create
from studies.storage.views.mlflow_view import log
from studies.storage.views.view_rows import MirroredEpoch, MirroredTrial
from trainers.checkpoints.checkpoint import load_model, read_checkpoint
from trainers.checkpoints.model_export import load
from trainers.contract.task_loading import load_task

MOST_SECONDS = 20.0
SPEC = """
study: fuzzed
task: digits
objectives:
  - {metric: val_error, direction: minimize}
  - {metric: cost_usd, direction: minimize}
space:
  learning_rate: {type: float, low: 1.0e-3, high: 1.0, log: true}
  width: {type: int, low: 4, high: 64, log: true, when: {architecture: mlp}}
  architecture: {type: categorical, choices: [mlp, cnn]}
constraints: [{metric: latency_ms, max: 5}]
training: {epochs: 12, warmup_epochs: 1, schedule: cosine}
search: {sampler: auto, pruner: {name: mo_asha, grace: 2, eta: 2}, seed: 3}
budget: {usd: 0.01, trials: 20, hours: 1}
resources: {slots: 2, cpus_per_rank: 1}
checkpoints: {folder: artifacts, every_seconds: 60}
mlflow: "off"
"""
TOKENS = [
    "\\x00", "\\ud800", "\x00", "\x1b[2J", "\u202e", "nan", ".inf", "-1", "1e999", "9" * 400, "null", "{}", "[]",
    "!!python/object:os.system x", "&a [*a]", "<<: *a", "'", '"', ": ", "- ", "\t", "\r\n", "true", "1_000", "0x",
    "../..", "~", "%", "${HOME}", "\U0001f701" * 50, "{{7*7}}", "<script>", "a" * 5000, "[" * 300, "\ufeff", "0o7",
    "2026-01-01", "module:Class", "os:system", "1:2:3", "\\U00110000",
]  # fmt: skip
CSV = "age,city,score,rich\n39,Rome,0.5,yes\n20,Oslo,?,no\n" + "44,Lima,1.5,yes\n18,Oslo,,no\n" * 12
COMMANDS = (
    "status", "trials", "explain", "export", "enqueue", "list", "stop", "sync", "report", "resume", "confirm", "launch",
    "simulate", "train", "compare", "init", "audit", "cancel", "gc", "price",
)  # fmt: skip
READING = (
    ["status", "fuzzed"], ["status", "fuzzed", "--json"], ["status"], ["list"], ["trials", "fuzzed"],
    ["trials", "fuzzed", "--format", "csv"], ["explain", "fuzzed", "0"], ["explain", "fuzzed", "1", "--json"],
    ["report", "fuzzed", "--out", "{folder}/report.html"], ["audit", "fuzzed"], ["gc", "fuzzed"],
    ["export", "fuzzed", "0", "--out", "{folder}/model.pt"], ["enqueue", "fuzzed", "--param", "width=8"],
    ["price", "set", "fuzzed", "2"], ["cancel", "fuzzed", "0"], ["stop", "fuzzed"], ["sync", "fuzzed"],
)  # fmt: skip
"""Commands that look at a store, or write to it without training."""
AUTOML = str(Path(sys.executable).parent / "automl")
MOST_MEMORY_BYTES = 16 * 1024**3

Door = Callable[[random.Random, Path], None]


def main() -> None:
    """Run the fuzzer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=2000, help="Number of inputs.")
    parser.add_argument("--seed", type=int, default=0, help="Random seed.")
    parser.add_argument(
        "--doors", nargs="+", choices=DOORS, default=list(DOORS), help="Doors to knock at; all if none."
    )
    parser.add_argument("--json", action="store_true", help="Print one JSON document.")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # torch's, about layers without weights
    found = fuzz(given.inputs, given.seed, given.doors)
    if given.json:
        print(json.dumps(found))
    else:
        for door, count in found["inputs"].items():
            print(f"{door:12} {count:7} inputs, {found['taken'].get(door, 0)} taken, {found['bad'].get(door, 0)} bad")
        for example in found["examples"]:
            print(f"\n{example['door']}, input {example['input']}:\n{example['traceback']}")
    sys.exit(1 if found["bad"] else 0)


def fuzz(inputs: int, seed: int, names: Sequence[str]) -> dict[str, Any]:
    """Feed so many inputs to the doors in turn.

    Args:
        inputs: Number of inputs.
        seed: Random seed; input n of a seed is always the same.
        names: Names of the doors.

    Returns:
        `inputs`, of them `taken` as valid, and `bad`, by door, and the first `examples` of bad ones with tracebacks.
    """
    counts: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    bad: Counter[str] = Counter()
    examples: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        _prepare(Path(folder))
        if "stores" in names:
            _prepare_store(Path(folder))
        with _little_memory():
            for number in range(inputs):
                door = names[number % len(names)]
                counts[door] += 1
                problem = _problem(DOORS[door], random.Random(f"{seed}-{number}"), Path(folder))
                taken[door] += problem is None
                if problem:
                    bad[door] += 1
                    examples += [{"door": door, "input": number, "traceback": problem}] if len(examples) < 20 else []
    return {"seed": seed, "inputs": dict(counts), "taken": dict(taken), "bad": dict(bad), "examples": examples}


@contextlib.contextmanager
def _little_memory() -> Iterator[None]:
    """Bound the address space of this process: a file may ask for any amount of memory.

    Afterwards the bound of before holds again: browsers that the process starts reserve far more than they use.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _problem(door: Door, draw: random.Random, folder: Path) -> str | None:
    """The traceback of a bad input; empty if it was refused in one line, None if it was taken."""
    try:
        with _limited():
            door(draw, folder)
    except (UserError, RunError):
        return ""
    except BaseException:  # noqa: BLE001 - whatever it is, it is what was looked for
        return escaped(traceback.format_exc())[-4000:]
    return None


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"no answer within {MOST_SECONDS:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _prepare(folder: Path) -> None:
    from trainers.loop.trainer import Trainer
    from trainers.protocol import TrialSpec
    from trainers.ranks.process_group import Group

    spec = TrialSpec(
        study="fuzz", trial=0, task="digits", params={"architecture": "mlp", "width": 4, "depth": 1},
        training={"epochs": 1}, milestones=(1,), checkpoint_folder=str(folder / "whole"),
    )  # fmt: skip
    (measured,) = Trainer(spec, load_task("digits"), group=Group()).advance(1)
    Path(str(measured.checkpoint)).rename(folder / "whole.pt")


def _prepare_store(folder: Path) -> None:
    """A store with a study of a few real trials; their checkpoints stay where they are."""
    (folder / "fuzzed.yaml").write_text(SPEC.replace("trials: 20", "trials: 3"))
    command = [AUTOML, "launch", "fuzzed.yaml", "--store", f"sqlite:///{folder}/whole.db", "--json"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


# ---------------------------------------------------------------------- mutations


def _mangled(draw: random.Random, text: str) -> str:
    """A text with some parts removed, doubled, swapped or replaced."""
    for _ in range(draw.choice([0, 1, 1, 2, 5])):
        at = draw.randrange(len(text) + 1)
        end = min(len(text), at + draw.choice([0, 1, 1, 3, 20]))
        new = draw.choice([draw.choice(TOKENS), chr(draw.randrange(0x110000)), "", text[at:end] * 2])
        text = text[:at] + new + text[end:]
    return text


def _mangled_bytes(draw: random.Random, data: bytes) -> bytes:
    mangled = bytearray(data)
    for _ in range(draw.choice([0, 1, 1, 2, 8])):
        at = draw.randrange(len(mangled) + 1)
        end = min(len(mangled), at + draw.choice([0, 1, 1, 4, 64, 4096]))
        mangled[at:end] = draw.randbytes(draw.choice([0, 1, 1, 4, 64]))
        if not mangled:
            break
    return bytes(mangled)


def _value(draw: random.Random, depth: int = 0) -> Any:
    kinds: list[Callable[[], Any]] = [
        lambda: None, lambda: draw.random() < 0.5, lambda: draw.randint(-(10**30), 10**30), lambda: draw.gauss(0, 1e9),
        lambda: float("nan"), lambda: float("inf"), lambda: draw.choice(TOKENS), lambda: -1, lambda: 0,
    ]  # fmt: skip
    if depth < 3:
        kinds += [
            lambda: [_value(draw, depth + 1) for _ in range(draw.randint(0, 3))],
            lambda: {draw.choice(TOKENS): _value(draw, depth + 1) for _ in range(draw.randint(0, 3))},
        ]
    return draw.choice(kinds)()


def _replaced(draw: random.Random, mapping: Any) -> Any:
    """A copy of nested data in which one place has another value."""
    if isinstance(mapping, dict) and mapping and draw.random() < 0.85:
        key = draw.choice(list(mapping))
        return {**mapping, key: _replaced(draw, mapping[key])}
    if isinstance(mapping, list) and mapping and draw.random() < 0.85:
        at = draw.randrange(len(mapping))
        return [*mapping[:at], _replaced(draw, mapping[at]), *mapping[at + 1 :]]
    return _value(draw)


# ---------------------------------------------------------------------- doors


def _spec_text(draw: random.Random, _folder: Path) -> None:
    spec = parse_spec(read_yaml(_mangled(draw, SPEC), "fuzzed.yaml"), "fuzzed.yaml")
    json.dumps(spec_to_mapping(spec)).encode()


def _spec_values(draw: random.Random, _folder: Path) -> None:
    mapping = yaml.safe_load(SPEC)
    for _ in range(draw.choice([0, 1, 1, 3])):
        mapping = _replaced(draw, mapping)
    json.dumps(spec_to_mapping(parse_spec(mapping))).encode()


def _overrides(draw: random.Random, _folder: Path) -> None:
    key = _mangled(draw, draw.choice(["budget.usd", "space.width.low", "objectives.0.metric", "search.pruner"]))
    parse_spec(apply_overrides(yaml.safe_load(SPEC), [f"{key}={draw.choice(TOKENS)}"]))


def _arguments(draw: random.Random, folder: Path) -> None:
    """The command line with an empty store; `train` and `compare` get a task that does not exist."""
    words = [
        draw.choice(COMMANDS),
        *draw.choices([*TOKENS, "--json", "--store", "--set", "--param", "--out", "0"], k=draw.randint(0, 4)),
    ]
    words = [word.replace("\x00", "") or "x" for word in words]
    if words[0] in {"train", "compare"}:
        words.insert(1, "no_task")
    if words[0] == "init":
        words = ["init", "no_task"]
    _run(words, folder / "none.db")


def _stores(draw: random.Random, folder: Path) -> None:
    """A store in which somebody has changed some values, and a command that looks at it."""
    path = folder / "changed.db"
    shutil.copy(folder / "whole.db", path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for _ in range(draw.choice([1, 1, 2, 5])):
            table = draw.choice(["studies", "trials", "attempts", "epochs", "decisions", "charges", "leases"])
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info(automl_{table})")]
            column, which = draw.choice(columns), draw.random()
            rows = [row[0] for row in connection.execute(f"SELECT id FROM automl_{table}")]
            row = rows[int(which * len(rows))]
            (before,) = connection.execute(f"SELECT {column} FROM automl_{table} WHERE id = ?", [row]).fetchone()
            with contextlib.suppress(sqlite3.Error, OverflowError, UnicodeEncodeError):
                update = f"UPDATE automl_{table} SET {column} = ? WHERE id = ?"
                connection.execute(update, [_changed_value(draw, before), row])
        connection.commit()
    _run([word.format(folder=folder) for word in draw.choice(READING)], path)


def _changed_value(draw: random.Random, before: Any) -> Any:
    if isinstance(before, str) and before[:1] in "{[" and draw.random() < 0.7:
        with contextlib.suppress(ValueError):  # it is damaged already
            return json.dumps(_replaced(draw, json.loads(before)), default=str)
    if isinstance(before, str) and draw.random() < 0.5:
        return _mangled(draw, before)
    value = _value(draw)
    return value if isinstance(value, int | float | str | None) else json.dumps(value, default=str)


def _run(words: list[str], store: Path) -> None:
    """Run a command line in this process; raises if it ends with a traceback, or control characters come out."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["automl", *words, "--store", f"sqlite:///{store}"]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as ended:
        if "Traceback" in err.getvalue() or ended.code not in {0, 1, 2, None}:
            raise AssertionError(err.getvalue()) from None
    finally:
        sys.argv = before
    _assert_harmless(out.getvalue() + err.getvalue())


def _checkpoint_bytes(draw: random.Random, folder: Path) -> None:
    path = folder / "mangled.pt"
    path.write_bytes(_mangled_bytes(draw, (folder / "whole.pt").read_bytes()))
    load_model(path)


def _checkpoint_values(draw: random.Random, folder: Path) -> None:
    content = read_checkpoint(folder / "whole.pt")
    key = draw.choice(list(content))
    content[key] = _replaced(draw, content[key])
    path = folder / "changed.pt"
    torch.save(content, path)
    exported = folder / "exported.pt"
    spec = content["spec"] if isinstance(content["spec"], dict) else {}
    torch.save({"weights": content["model"], **{k: spec.get(k) for k in ("params", "task", "task_options")}}, exported)
    with contextlib.suppress(UserError, RunError):
        load_model(path)
    load(exported)


def _table(draw: random.Random, folder: Path) -> None:
    path = folder / "table.csv"
    path.write_bytes(_mangled(draw, CSV).encode("utf-8", "surrogatepass"))
    if draw.random() < 0.3:
        path.write_bytes(_mangled_bytes(draw, path.read_bytes()))
    options: dict[str, Any] = {"train": str(path)}
    if draw.random() < 0.5:
        options["target"] = draw.choice(["rich", "age", *TOKENS])
    load_task(draw.choice(["tabular", "text"]), options)


def _images(draw: random.Random, folder: Path) -> None:
    """Images as idx files, the format of MNIST, or as files in one folder for each class."""
    place = folder / "images"
    shutil.rmtree(place, ignore_errors=True)
    if draw.random() < 0.7:
        place.mkdir()
        for part in ("train", "t10k"):
            whole = struct.pack(">4B3I", 0, 0, 8, 3, 60, 8, 8) + draw.randbytes(60 * 64)
            labels = struct.pack(">4BI", 0, 0, 8, 1, 60) + bytes([0, 1] * 30)
            (place / f"{part}-images-idx3-ubyte").write_bytes(_mangled_bytes(draw, whole))
            (place / f"{part}-labels-idx1-ubyte").write_bytes(labels)
    else:
        for number in range(40):
            file = place / f"class {number % 2}" / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            drawn = io.BytesIO()
            Image.new("L", (8, 8), number).save(drawn, "png")
            file.write_bytes(_mangled_bytes(draw, drawn.getvalue()) if number == 3 else drawn.getvalue())
    load_task("vision", {"train": str(place)}).train_data({})


def _names(draw: random.Random, _folder: Path) -> None:
    text = _mangled(draw, "".join(draw.choices(TOKENS, k=2)))
    storable(text).encode()
    json.dumps(storable_deep({text: [text]})).encode()
    _assert_harmless(escaped(text))
    out = io.StringIO()
    SafeConsole(file=out, width=120).print(text, markup=False, highlight=False)
    _assert_harmless(out.getvalue())
    page = str(packed(as_json({text: text})).text)
    if set("<&>") & set(page) or unpacked(page) != as_json({text: text}):
        raise AssertionError(page)


def _mlflow(draw: random.Random, folder: Path) -> None:
    """Names and values of parameters, metrics and reasons, as a user's task and exceptions may have them, in MLflow."""
    name, other = (storable(_mangled(draw, "".join(draw.choices([*TOKENS, "a/b", "/", "..", "."], k=2)))) for _ in "ab")
    epoch = MirroredEpoch(epoch=1, metrics={name: 1.0, other: 2.0}, measured_at=draw.random() * 1e9)
    trial = MirroredTrial(
        id=1, number=0, state="failed", failure="error", reason=name, params={name: other, other: 0.5}, world_size=1,
        origin=other, started_at=1.0, ended_at=2.0, epochs=(epoch,), facts={}, paid_nano_usd=1,
    )  # fmt: skip
    client, experiment = _mlflow_client(folder)
    log(client, create(client, experiment, {"automl.origin": trial.origin}, name, 1.0), trial)


@functools.cache
def _mlflow_client(folder: Path) -> tuple[Any, str]:
    uri = f"sqlite:///{folder}/fuzzed-mlflow.db"
    client = open_client(uri)
    return client, experiment_id(client, uri, "fuzzed")


def _assert_harmless(text: str) -> None:
    if escaped(text) != text:
        raise AssertionError(f"control characters reach the terminal: {ascii(text)[:500]}")


DOORS: dict[str, Door] = {
    "spec text": _spec_text,
    "spec values": _spec_values,
    "overrides": _overrides,
    "arguments": _arguments,
    "checkpoints": _checkpoint_bytes,
    "exports": _checkpoint_values,
    "tables": _table,
    "images": _images,
    "names": _names,
    "mlflow": _mlflow,
    "stores": _stores,
}


if __name__ == "__main__":
    main()
