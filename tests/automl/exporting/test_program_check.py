"""Program files of somebody else: what torch would execute while it loads them is refused before."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from automl.exporting.formats import save_program
from automl.standalone.errors import ModelError, UnsafeProgramError
from automl.standalone.model import load
from automl.standalone.program_check import checked_program
from trainers.model.traced_program import example_call, traced

Content = dict[str, bytes]
MODEL, WEIGHTS = "m/models/model.json", "m/data/weights/model_weights_config.json"


class Hostile:
    """Makes a file as soon as it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.layer(rows.reshape(rows.shape[0] * 2, -1).reshape(rows.shape[0], 3, 2).sum(dim=2))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "m.pt2"
    manifest = {
        "format": 1, "programs": ["m.pt2"], "rows": {"kind": "array", "dtype": "float32", "shape": [6]},
        "answers": {"kind": "array"},
    }  # fmt: skip
    save_program(traced(example_call(Net(), (torch.rand(4, 6),))), manifest, path)
    return path


def changed(path: Path, change: Callable[[Content], None]) -> Path:
    """A copy of the file with other content."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    change(content)
    out = path.with_name("hostile.pt2")
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return out


def in_json(name: str, change: Callable[[Any], None]) -> Callable[[Content], None]:
    def edit(content: Content) -> None:
        value = json.loads(content[name])
        change(value)
        content[name] = json.dumps(value).encode()

    return edit


def pickled(marker: Path) -> bytes:
    file = io.BytesIO()
    torch.save(Hostile(marker), file, pickle_module=pickle)
    return file.getvalue()


def first_node(model: Any) -> Any:
    return model["graph_module"]["graph"]["nodes"][0]


def first_length(model: Any) -> Any:
    values = model["graph_module"]["graph"]["tensor_values"].values()
    return next(size["as_expr"] for value in values for size in value["sizes"] if "as_expr" in size)


def pickled_weights(content: Content, marker: Path) -> None:
    content["m/data/weights/weight_0"] = pickled(marker)
    in_json(WEIGHTS, lambda value: next(iter(value["config"].values())).update(use_pickle=True))(content)


def in_model(change: Callable[[Any], None]) -> Callable[[Content, Path], None]:
    return lambda content, _: in_json(MODEL, change)(content)


def in_signature(**values: Any) -> Callable[[Content, Path], None]:
    return in_model(lambda model: model["graph_module"]["module_call_graph"][0]["signature"].update(values))


def container(kind: str, context: str) -> str:
    return json.dumps([1, {"type": kind, "context": context, "children_spec": []}])


HOSTILE: dict[str, Callable[[Content, Path], Any]] = {
    "pickled weights": pickled_weights,
    "pickled examples": lambda c, marker: c.update({"m/data/sample_inputs/model.pt": pickled(marker)}),
    "an expression": lambda c, marker: in_json(
        MODEL, lambda m: first_length(m).update(expr_str=f"__import__('os').mkdir({str(marker)!r})")
    )(c),
    "an operator": in_model(lambda m: first_node(m).update(target="torch.hub.load")),
    "an operator that maps files": in_model(lambda m: first_node(m).update(target="torch.ops.aten.from_file.default")),
    "an operator below an operator": in_model(
        lambda m: first_node(m).update(target="torch.ops.aten.add.__class__.mro")
    ),
    "guards": in_model(lambda m: m.update(guards_code=["print(1)"])),
    "a name that is code": in_signature(forward_arg_names=["x=print(1)"]),
    "a container that imports": in_signature(in_spec=container("collections.defaultdict", "{}")),
    "keys that import": in_signature(
        in_spec=container("builtins.dict", '[{"__enum__": 1, "fqn": "os:x", "name": "y"}]')
    ),
    "a compiled library": lambda c, _: c.update({"m/data/aotinductor/model/model.so": b"ELF"}),
    "a file outside": lambda c, _: c.update({"other/models/model.json": b"{}"}),
    "the format of torch 2.7": lambda c, marker: (
        c.clear(), c.update({"version": b"8.20", "serialized_state_dict.pt": pickled(marker)}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_could_be_code_is_refused(good: Path, tmp_path: Path, kind: str) -> None:
    marker = tmp_path / "marker"
    hostile = changed(good, lambda content: HOSTILE[kind](content, marker))
    with pytest.raises(UnsafeProgramError, match=r"hostile\.pt2: found ") as caught:
        checked_program(hostile)
    assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match=r"hostile\.pt2(: found | is no model )"):
        load(hostile)
    assert not marker.exists()


@pytest.mark.parametrize("kind", ["pickled weights", "pickled examples", "an expression"])
def test_torch_alone_would_have_run_it(good: Path, tmp_path: Path, kind: str) -> None:
    marker = tmp_path / "marker"
    hostile = changed(good, lambda content: HOSTILE[kind](content, marker))
    with contextlib.suppress(Exception):  # the damage is done before it finds that something is wrong
        torch.export.load(str(hostile))
    assert marker.exists()


def test_a_file_of_ours_passes_unchanged(good: Path) -> None:
    same = changed(good, lambda content: None)
    rows = torch.rand(5, 6)
    expected = torch.export.load(str(good)).module()(rows)
    answers = load(same).predict(rows.tolist())
    assert torch.allclose(torch.tensor([answer["outputs"] for answer in answers]), expected, atol=1e-6)


def test_a_compressed_or_damaged_file_is_refused(good: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.pt2"
    damaged.write_bytes(good.read_bytes()[:-100])
    with pytest.raises(UnsafeProgramError, match="is no program"):
        checked_program(damaged)
    packed = tmp_path / "packed.pt2"
    with zipfile.ZipFile(good) as archive, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as out:
        for name in archive.namelist():
            out.writestr(name, archive.read(name))
    with pytest.raises(UnsafeProgramError, match="the compressed file"):
        checked_program(packed)


def test_nothing_of_the_training_code_or_of_the_data_is_in_the_file(good: Path) -> None:
    content = good.read_bytes()
    assert b"test_program_check" not in content
    assert b'stack_trace": "' not in content


def entry(name: bytes, content: bytes, offset: int) -> tuple[bytes, bytes]:
    """A file in an archive: what stands before its content, and what stands in the directory."""
    size = struct.pack("<III", zlib.crc32(content), len(content), len(content))
    local = struct.pack("<IHHHHH", 0x04034B50, 20, 0, 0, 0, 0x21) + size + struct.pack("<HH", len(name), 0)
    directory = struct.pack("<IHHHHHH", 0x02014B50, 20, 20, 0, 0, 0, 0x21) + size
    return local + name + content, directory + struct.pack("<HHHHHII", len(name), 0, 0, 0, 0, 0, offset) + name


def archive_of(content: dict[str, bytes], start: int, moved: int = 0) -> tuple[bytes, bytes]:
    """Files and directory of an archive that starts at a place, and says so less `moved`."""
    files, directory = b"", b""
    for name, one in content.items():
        local, listed = entry(name.encode(), one, start + len(files) - moved)
        files, directory = files + local, directory + listed
    return files, directory


def test_what_torch_finds_in_an_archive_of_two_directories_is_what_was_checked(good: Path, tmp_path: Path) -> None:
    """Python takes the directory before the end of a file, torch the one whose place is written there."""
    marker = tmp_path / "marker"
    with zipfile.ZipFile(good) as archive:
        plain = {name: archive.read(name) for name in archive.namelist()}
    (examples,) = (name for name in plain if name.endswith("sample_inputs/model.pt"))
    hostile, listed = archive_of(plain | {examples: pickled(marker)}, 0)
    at = len(hostile)
    first, _ = archive_of(plain, at + len(listed))
    moved = len(listed) + len(first)
    first, second = archive_of(plain, at + len(listed), moved)
    assert len(second) == len(listed)
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, len(plain), len(plain), len(listed), at, 0)
    path = tmp_path / "two.pt2"
    path.write_bytes(hostile + listed + first + second + end)
    with contextlib.suppress(Exception):
        torch.export.load(str(path))
    assert marker.exists(), "torch alone runs it"
    marker.rmdir()
    with contextlib.suppress(ModelError):
        load(path)
    assert not marker.exists()


def test_a_manifest_that_grows_when_it_is_unpacked_is_not_unpacked(good: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed.pt2"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("m/extra/manifest.json", b"[" * 10_000_000)
    with pytest.raises(ModelError, match="is compressed or very large"):
        load(packed)
