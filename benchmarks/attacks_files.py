"""Hostile files at every door that opens files: nothing runs, hangs or fills the memory, and the refusal is one line.

    python benchmarks/attacks_files.py --json
    python benchmarks/attacks_files.py --mutations 10000 --seed 7

opens each file of `hostile_files.py`, and mutated models (a package of ours, and an .onnx file), in a forked process. A
fault is a command that was run, a file that was written outside, a traceback, control characters, more than 5 s of a
processor, more than 1 GiB of memory, or no end. Exit code 1 if there is a fault.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import hostile_files as files
import onnxruntime  # noqa: F401 - imported before the processes are forked
import pyarrow.parquet  # noqa: F401 - as above
import tokenizers  # noqa: F401 - as above
import torch.export.passes
import torch.export.pt2_archive
import torch.fx.experimental.proxy_tensor  # noqa: F401 - imported before the processes are forked

import automl.commands.predict
from automl import cli
from automl.exporting.archive import unpack
from automl.standalone.errors import ModelError
from automl.standalone.serving.errors import ServeError
from automl.standalone.serving.served import load_served
from search_spaces.user_errors import RunError, UserError
from studies.simulation.recorded_curves import read_table
from trainers.checkpoints.model_export import load
from trainers.contract.task_loading import load_task
from trainers.tasks.pictures.picture_networks import read_weights

PROCESSOR_SECONDS = 5.0
MEMORY_BYTES = 2**30
END_SECONDS = 20.0
"""Clock time after which a process hangs."""
HARD_BYTES = 8 * 2**30
REFUSED = 2
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

Door: TypeAlias = Callable[[Path, Path], Any]
"""Opens a file. The second argument is the folder with honest files."""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One hostile file, and the door that opens it. `is_refused`: whether an answer is a fault, too."""

    door: str
    format: str
    name: str
    make: files.Make
    is_refused: bool = True

    def __str__(self) -> str:
        return f"{self.door}: {self.format}: {self.name}"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a process ended. `code` None: it was killed after `END_SECONDS`."""

    code: int | None
    seconds: float
    bytes: int
    said: str


def command(*words: object) -> None:
    """Run a command line in this process."""
    sys.argv = ["automl", *map(str, words)]
    cli.main()


def predict(model: Path, base: Path) -> None:
    """Predict one row with a model."""
    kind = next((one for one in ("array", "text", "image") if f'"kind": "{one}"' in _manifest(model)), "table")
    kind = "array" if model.suffix == ".onnx" else kind
    command("predict", model, base / {"image": "a.png", "text": "rows.txt"}.get(kind, "rows.csv" if kind == "table" else "rows.jsonl"))


def _manifest(model: Path) -> str:
    path = model / "manifest.json"
    return path.read_text(errors="replace") if path.is_file() and path.stat().st_size < 10**7 else ""


def simulated(path: Path, _: Path) -> None:
    """Read recorded curves."""
    print(read_table(path))


def unpacked(path: Path, base: Path) -> None:
    """Unpack the answer of a service."""
    del base
    with path.open("rb") as file:
        print(unpack(file, path.parent / "out"))


DOORS: dict[str, Door] = {
    "predict": predict,
    "serve-model": lambda model, _: load_served(str(model), None, "cpu").version,
    "rows": lambda rows, base: command("predict", base / "table", rows),
    "pictures": lambda rows, base: command("predict", base / "image", rows),
    "training": lambda folder, _: load_task("vision", {"train": str(folder)}).train_data({}),
    "curves": simulated,
    "weights": lambda path, _: load(path),
    "networks": lambda path, _: read_weights(str(path)),
    "spec": lambda path, _: command("launch", path, "--dry-run"),
    "archives": unpacked,
}


def attacks() -> Iterator[Attack]:
    """Yield all attacks."""
    for form, makers in files.REFUSED_MODELS.items():
        for name, make in makers.items():
            for door in ("predict", "serve-model"):
                yield Attack(door=door, format=form, name=name, make=make, is_refused=door == "predict")
    for name, make in files.HARMLESS_MODELS.items():
        yield Attack(door="predict", format="package", name=name, make=make, is_refused=False)
    for door, form, makers in (
        ("pictures", "image", files.PICTURES), ("training", "image folder", files.TRAINING),
        ("curves", "npz", files.CURVES), ("weights", "pt", files.WEIGHTS), ("spec", "YAML", files.SPECS),
        ("archives", "ZIP", files.ARCHIVES), *(("rows", form, makers) for form, makers in files.ROW_FILES.items()),
        ("networks", "safetensors, pth", files.NETWORKS),
    ):  # fmt: skip
        for name, make in makers.items():
            yield Attack(door=door, format=form, name=name, make=make, is_refused=door != "archives")
    yield Attack(door="rows", format="Parquet", name="a pickled type", make=files.parquet, is_refused=False)


def opened(door: Door, path: Path, base: Path, log: Path) -> Ended:
    """Open a file in a forked process."""
    own = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024
    log.write_bytes(b"")
    child = os.fork()
    if not child:
        _open(door, path, base, log)
    begun, status, used = time.monotonic(), 0, None
    while used is None:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            used = usage
        elif time.monotonic() - begun > END_SECONDS:
            os.killpg(child, signal.SIGKILL)
            begun = -1e9
            _, _, used = os.wait4(child, 0)
        else:
            time.sleep(0.01)
    text = log.read_text(errors="replace")
    notes = re.search(r"^children (\S+) (\d+)$", text, re.MULTILINE)
    seconds, most = (float(notes[1]), int(notes[2])) if notes else (0.0, 0)
    return Ended(
        code=None if begun < 0 else os.waitstatus_to_exitcode(status),
        seconds=used.ru_utime + used.ru_stime + seconds,
        bytes=max(used.ru_maxrss - own, most) * 1024,
        said=text if notes is None else text[: notes.start()],
    )


def _open(door: Door, path: Path, base: Path, log: Path) -> None:
    """Open the file in this process, and end it."""
    code = 1
    try:
        os.setsid()
        for stream in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), stream)
        has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (has + HARD_BYTES, has + HARD_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(path.parent)
        try:
            door(path, base)
            code = 0
        except (UserError, RunError, ModelError, ServeError) as error:
            sys.stderr.write(f"{error}\n")
            code = REFUSED
        except SystemExit as ended:
            code = int(ended.code or 0)
    except BaseException:  # noqa: BLE001 - what was looked for
        sys.stderr.write(traceback.format_exc())
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        os.write(2, f"\nchildren {used.ru_utime + used.ru_stime} {used.ru_maxrss}\n".encode())
    os._exit(code)


def faults(ended: Ended, place: files.Place, *, is_refused: bool) -> list[str]:
    """Return what must not happen, but did."""
    last = ended.said.strip().splitlines()[-1:]
    found = {
        "it ran a command": place.marker.exists(),
        "it wrote outside of its folder": any("escaped" in one.name for one in place.folder.parent.iterdir()),
        "it did not end": ended.code is None,
        f"it was killed by signal {-(ended.code or 0)}": (ended.code or 0) < 0,
        f"a traceback: {last}": "Traceback" in ended.said or "panicked" in ended.said,
        "control characters": bool(_CONTROL.search(ended.said.replace("\r\n", "\n"))),
        "it was not refused": is_refused and ended.code == 0,
        "no line of reason": bool(ended.code) and not ended.said.strip(),
        f"{len(ended.said.splitlines())} lines": bool(ended.code) and len(ended.said.strip().splitlines()) > 4,
        f"{ended.seconds:.1f} s of a processor": ended.seconds > PROCESSOR_SECONDS,
        f"{ended.bytes / 2**30:.2f} GiB of memory": ended.bytes > MEMORY_BYTES,
    }
    return [what for what, happened in found.items() if happened]


def mutated(draw: random.Random, content: bytes) -> bytes:
    """Return bytes with some of them changed, cut, doubled or replaced by others."""
    for _ in range(draw.choice((1, 1, 2, 8))):
        start = draw.randrange(len(content)) if content else 0
        end = min(len(content), start + draw.choice((1, 2, 4, 40)))
        new = draw.choice((
            draw.randbytes(end - start), b"", content[start:end] * 2, b"\xff" * (end - start), b"-1", b"9" * 12, b"null",
            b"[]", b'"x"', b"1e999", b"\x00", draw.choice((content[:1], content[-200:])),
        ))  # fmt: skip
        content = content[:start] + new + content[end:]
    return content


def mutations(count: int, seed: int) -> Iterator[Attack]:
    """Yield models with random changes: half have another manifest beside an honest program, others another file."""

    def package(place: files.Place, draw: random.Random, kind: str) -> Path:
        folder = place.model(kind)
        file = folder / draw.choice(("manifest.json", "manifest.json", "manifest.json", "m.pt2"))
        file.write_bytes(mutated(draw, file.read_bytes()))
        return folder

    def of_onnx(place: files.Place, draw: random.Random) -> Path:
        path = files.onnx_file(place)
        path.write_bytes(mutated(draw, path.read_bytes()))
        return path

    for number in range(count):
        draw = random.Random(f"{seed} {number}")  # noqa: S311 - for reproducible tests
        kind = ("table", "text", "onnx", "array", "image", "onnx")[number % 6]
        make: files.Make = (
            (lambda place, draw=draw: of_onnx(place, draw))
            if kind == "onnx"
            else lambda place, draw=draw, kind=kind: package(place, draw, kind)
        )
        door = draw.choice(("predict", "predict", "serve-model"))
        yield Attack(door=door, format=f"mutated {kind}", name=str(number), make=make, is_refused=False)


def attack(some: Iterator[Attack], folder: Path) -> dict[str, Any]:
    """Open all files. Returns their number by format, what happened, and the most that one took."""
    base = folder / "base"
    _fork(lambda: _prepare(base))
    for kind in ("table", "array", "text", "image"):
        if (honest := opened(predict, base / kind, base, folder / "log")).code != 0:
            raise RuntimeError(f"an honest model is refused, so no refusal says anything: {honest.said}")
    counts: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    found: list[str] = []
    seconds, most = 0.0, 0
    for number, one in enumerate(some):
        place = files.Place(folder / "tried" / str(number) / "files", base)
        place.folder.mkdir(parents=True)
        path = one.make(place)
        ended = opened(DOORS[one.door], path, base, place.folder.parent / "log")
        counts[one.format] += 1
        ends["taken" if ended.code == 0 else "refused"] += 1
        seconds, most = max(seconds, ended.seconds), max(most, ended.bytes)
        if problems := faults(ended, place, is_refused=one.is_refused):
            found.append(f"{one}: {'; '.join(problems)}")
            print(found[-1], file=sys.stderr, flush=True)
        shutil.rmtree(place.folder.parent)
    return {
        "files": sum(counts.values()), "formats": len(counts), "by_format": dict(counts), **ends, "faults": found,
        "processor_seconds": round(seconds, 2), "memory_mib": most >> 20,
    }  # fmt: skip


def _prepare(base: Path) -> None:
    files.base_models(base)
    (base / "rows.csv").write_text(files.ROWS)
    (base / "rows.txt").write_text("a b a b a\n")
    (base / "rows.jsonl").write_text("[1, 2, 3]\n")
    (base / "a.png").write_bytes(files.png(8, 8))


def _fork(work: Callable[[], object]) -> None:
    """Work in another process: threads of torch in this one would hang in its children."""
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:  # noqa: BLE001 - its traceback is printed
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("the honest models cannot be written")


def _fake_ghostscript(folder: Path) -> None:
    """Put a program named `gs` on the path, which makes the marker of the file beside it."""
    folder.mkdir()
    program = folder / "gs"
    program.write_text('#!/bin/sh\nmkdir "$(dirname "$PWD")/files.marker" 2>/dev/null || mkdir "$PWD.marker"\n')
    program.chmod(0o700)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"


def main() -> None:
    """Attack, and print what did not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--doors", help="Doors to attack, with commas between them; all if missing.")
    parser.add_argument("--mutations", type=int, default=60, help="Number of mutated models.")
    parser.add_argument("--seed", type=int, default=0, help="Random seed of the mutations.")
    parser.add_argument("--json", action="store_true", help="Print one JSON document.")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    doors = given.doors.split(",") if given.doors else list(DOORS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_DATA_HOME"] = str(folder / "data")
        _fake_ghostscript(folder / "bin")
        results = {
            "hostile": attack((one for one in attacks() if one.door in doors), folder / "hostile"),
            "mutated": attack(mutations(given.mutations, given.seed), folder / "mutated"),
        }
    if given.json:
        print(json.dumps(results))
    else:
        for kind, found in results.items():
            print(f"{kind}: {found['files']} files of {found['formats']} formats, at most {found['processor_seconds']} s "
                  f"of a processor and {found['memory_mib']} MiB")  # fmt: skip
            print("".join(f"  {one}\n" for one in found["faults"]), end="")
    sys.exit(1 if any(found["faults"] for found in results.values()) else 0)


if __name__ == "__main__":
    main()
