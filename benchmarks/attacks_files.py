"""Mutated files of models, checkpoints, weights and specs: each loads, or is refused in one line within its bounds.

    nice -n 10 python benchmarks/attacks_files.py --files 10000 --seed 0
    nice -n 10 python benchmarks/attacks_files.py --kinds "known program,ONNX" --minutes 30

changes bytes of a file of each kind, or of a member of an archive, and opens the result in a forked process with 1 GiB
of memory beyond its own. A fault is another exception than a refusal, more than one line, 5 s of a processor, or no end
within 60 s. Exit code 1 if there is one. Printed for each kind: numbers of files that loaded, were refused and failed,
and the most seconds of a processor and MiB of memory of one file; `own_mib` is the memory before any file is opened.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import onnxruntime  # noqa: F401 - imported before the processes are forked, as three parts of torch
import psutil
import torch
import torch._dynamo
import torch._functorch.aot_autograd
import torch._inductor.codecache
from safetensors.torch import save_file
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the tests' hostile files are no part of the package

from automl.exporting.formats import save_program
from automl.standalone.provenance import digest_of, remember
from search_spaces.messages import RunError, UserError
from studies.spec.study_spec import load_spec
from tests.automl.exporting.test_hostile_files import as_model, onnx_file, zipped
from trainers.checkpoints.checkpoint import load_model
from trainers.contract.task_loading import load_task
from trainers.loop.trainer import Trainer
from trainers.model.traced_program import example_call, traced
from trainers.protocol import TrialSpec
from trainers.ranks.process_group import Group
from trainers.tasks.pictures.picture_networks import read_weights

PROCESSOR_SECONDS, MEMORY_BYTES, END_SECONDS = 5.0, 2**30, 60.0
_FAULT = 3
_ROWS: dict[str, Any] = {"kind": "array", "dtype": "float32", "shape": [2]}
_SPEC = """
study: mutated
task: digits
objectives: [{metric: val_error, direction: minimize}, {metric: cost_usd, direction: minimize}]
space:
  learning_rate: {type: float, low: 1.0e-3, high: 1.0, log: true}
  width: {type: int, low: 16, high: 256}
training: {epochs: 4}
budget: {trials: 8}
"""

Kind: TypeAlias = tuple[str, Callable[[Path], Any]]
"""Name of the mutated file below the folder of honest files, and what opens a file or the folder it lies in."""


def as_known_model(path: Path) -> None:
    """Open a program whose origin is known, so that torch loads its mutated bytes."""
    os.environ["XDG_DATA_HOME"] = str(path.parent)
    remember([digest_of(path)])
    as_model(path)


KINDS: dict[str, Kind] = {
    "program": ("m.pt2", as_model),
    "known program": ("m.pt2", as_known_model),
    "manifest beside a known program": ("package/manifest.json", lambda path: as_model(path.parent)),
    "ONNX": ("m.onnx", as_model),
    "safetensors": ("w.safetensors", lambda path: read_weights(str(path))),
    "weights": ("w.pth", lambda path: read_weights(str(path))),
    "checkpoint": ("checkpoint.pt", load_model),
    "spec": ("spec.yaml", load_spec),
}


def write_honest(folder: Path) -> None:
    """Write a good file of each kind."""
    (folder / "package").mkdir(parents=True)
    manifest = {"format": 1, "programs": ["m.pt2"], "rows": _ROWS, "answers": {"kind": "array"}}
    save_program(traced(example_call(nn.Linear(2, 3), (torch.rand(4, 2),))), manifest, folder / "m.pt2")
    shutil.copy(folder / "m.pt2", folder / "package" / "m.pt2")
    (folder / "package" / "manifest.json").write_text(json.dumps(manifest))
    onnx_file("ConstantOfShape", 1)(folder / "m.onnx", folder)
    weights = dict(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).state_dict())
    save_file(weights, str(folder / "w.safetensors"))
    torch.save(weights, folder / "w.pth")
    params: dict[str, Any] = {"architecture": "mlp", "width": 4, "depth": 1}
    spec = TrialSpec(
        study="mutated", trial=0, task="digits", params=params, training={"epochs": 1}, milestones=(1,),
        checkpoint_folder=str(folder / "trial"),
    )  # fmt: skip
    (measured,) = Trainer(spec, load_task("digits"), group=Group()).advance(1)
    Path(str(measured.checkpoint)).rename(folder / "checkpoint.pt")
    (folder / "spec.yaml").write_text(_SPEC)


def mutated(draw: random.Random, content: bytes) -> bytes:
    """Return bytes with some of them changed, cut, doubled or replaced: in an archive, mostly those of a member."""
    if draw.random() < 0.75 and zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        name = draw.choice(list(members))
        members[name] = _changed(draw, members[name])
        return zipped(*members.items())
    return _changed(draw, content)


def _changed(draw: random.Random, content: bytes) -> bytes:
    for _ in range(draw.choice((1, 1, 2, 8))):
        start = draw.randrange(len(content)) if content else 0
        end = min(len(content), start + draw.choice((1, 2, 4, 40)))
        old = content[start:end]
        new = (draw.randbytes(len(old)), b"", old * 2, b"\xff" * len(old), b"-1", b"9" * 12, b"null", b"[]", b"1e999")
        content = content[:start] + draw.choice(new) + content[end:]
    return content


def opened(read: Callable[[Path], Any], path: Path, log: Path) -> tuple[int | None, float, int]:
    """Open a file in a forked process. Returns its exit code (None: killed), seconds of a processor, MiB of memory."""
    if not (child := os.fork()):
        _open(read, path, log)
    begun, code = time.monotonic(), None
    while True:
        done, status, used = os.wait4(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            break
        if time.monotonic() - begun > END_SECONDS:
            os.killpg(child, signal.SIGKILL)
            _, _, used = os.wait4(child, 0)
            break
        time.sleep(0.002)
    return code, used.ru_utime + used.ru_stime, used.ru_maxrss // 1024


def _open(read: Callable[[Path], Any], path: Path, log: Path) -> None:
    """Open the file in this process, and end it."""
    code, said = 0, ""
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        most = psutil.Process().memory_info().data + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # predictions
        read(path)
    except (UserError, RunError) as error:
        code, said = 2, str(error)
    except BaseException:  # noqa: BLE001 - what was looked for
        code, said = _FAULT, traceback.format_exc()
    log.write_text(said, errors="replace")
    os._exit(code)


def attack(count: int, seed: int, folder: Path, *, kinds: Sequence[str], seconds: float) -> dict[str, Any]:
    """Open mutated files of some kinds for some seconds at most. Returns figures by kind, and faults."""
    honest, log, tried = folder / "honest", folder / "log", folder / "tried"
    if not (child := os.fork()):  # threads of torch in this process would hang in the forked ones
        write_honest(honest)
        os._exit(0)
    os.waitpid(child, 0)
    figures: dict[str, dict[str, Any]] = {
        kind: {"loaded": 0, "refused": 0, "failed": 0, "processor_seconds": 0.0, "mib": 0} for kind in kinds
    }
    faults: list[str] = []
    for kind in kinds:
        name, read = KINDS[kind]
        if opened(read, honest / name, log)[0] != 0:
            raise RuntimeError(f"an honest file is refused, so no refusal says anything: {kind}: {log.read_text()}")
    begun, number = time.monotonic(), 0
    while number < count and time.monotonic() - begun < seconds:
        kind = kinds[number % len(kinds)]
        name, read = KINDS[kind]
        draw = random.Random(f"{seed} {number}")
        source, path = honest / name, tried / name
        shutil.copytree(source.parent, path.parent) if "/" in name else tried.mkdir()
        path.write_bytes(mutated(draw, source.read_bytes()))
        log.write_text("")
        code, took, mib = opened(read, path, log)
        said, of_kind = log.read_text(), figures[kind]
        of_kind[{0: "loaded", 2: "refused"}.get(code if code is not None else -1, "failed")] += 1
        of_kind["processor_seconds"] = max(of_kind["processor_seconds"], round(took, 2))
        of_kind["mib"] = max(of_kind["mib"], mib)
        wrong = [
            *([f"exit code {code}: {' '.join(said.split()[-30:])}"] if code not in {0, 2} else []),
            *([f"{len(said.splitlines())} lines"] if code == 2 and len(said.splitlines()) != 1 else []),
            *([f"{took:.1f} s"] if took > PROCESSOR_SECONDS else []),
        ]
        if wrong:
            faults.append(f"{kind} {number}: {'; '.join(wrong)}")
            print(faults[-1], file=sys.stderr, flush=True)
        shutil.rmtree(tried)
        number += 1
    own = psutil.Process().memory_info().rss >> 20
    return {"files": number, "kinds": figures, "faults": faults, "own_mib": own}


def main() -> None:
    """Open mutated files, and print what did not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=80, help="Number of mutated files.")
    parser.add_argument("--seed", type=int, default=0, help="Random seed.")
    parser.add_argument("--kinds", default=",".join(KINDS), help="Kinds of files, separated by commas.")
    parser.add_argument("--minutes", type=float, default=1e9, help="Most minutes, after which fewer files will do.")
    given = parser.parse_args()
    kinds = given.kinds.split(",")
    if unknown := sorted(set(kinds) - set(KINDS)):
        parser.error(f"--kinds: found {', '.join(unknown)}, allowed: {', '.join(KINDS)}")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        os.environ["XDG_DATA_HOME"] = f"{name}/data"
        found = attack(given.files, given.seed, Path(name), kinds=kinds, seconds=60.0 * given.minutes)
    print(json.dumps(found, indent=1))
    sys.exit(1 if found["faults"] else 0)


if __name__ == "__main__":
    main()
