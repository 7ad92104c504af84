"""Program files of somebody else can run code while torch loads them: they are refused by their digest."""

import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from automl.exporting.formats import save_program
from automl.standalone import provenance
from automl.standalone.errors import ModelError, UntrustedProgramError
from automl.standalone.model import load, program_names
from automl.standalone.provenance import digest_of, remember, trusted_program
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
def test_a_file_that_nobody_here_exported_is_refused_before_it_is_loaded(good: Path, tmp_path: Path, kind: str) -> None:
    marker = tmp_path / "marker"
    hostile = changed(good, lambda content: HOSTILE[kind](content, marker))
    with pytest.raises(ModelError):
        load(hostile)
    with pytest.raises(UntrustedProgramError, match=r"hostile\.pt2 was not exported by you on this machine"):
        trusted_program(hostile, trust=False)
    assert not marker.exists()


def test_an_export_loads_wherever_it_is_moved_and_any_file_that_is_trusted(good: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere.pt2"
    moved.write_bytes(good.read_bytes())
    assert load(moved).predict([[1.0] * 6])
    other = changed(good, lambda content: content.update({"m/extra/note": b"from elsewhere"}))
    with pytest.raises(UntrustedProgramError):
        load(other)
    assert load(other, trust=True).predict([[1.0] * 6])
    remember([digest_of(other)])
    assert load(other).predict([[1.0] * 6])
    assert provenance._file().stat().st_mode & 0o777 == 0o600


def test_a_home_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    remember(["0" * 64])
    with pytest.raises(UntrustedProgramError, match="--trust"):
        trusted_program(tmp_path / "file", trust=False)


@pytest.mark.parametrize("names", [["../m.pt2"], ["/etc/passwd"], [], "m.pt2", [1], None])
def test_a_manifest_names_no_file_outside_its_folder(names: Any) -> None:
    with pytest.raises(ModelError, match="allowed: names of files in the model's folder"):
        program_names({"programs": names})


@pytest.mark.medium
def test_a_package_trusts_its_own_program_and_no_other(good: Path, tmp_path: Path) -> None:
    """Its copy of this code runs already."""
    package, other = tmp_path / "package", tmp_path / "other"
    for folder in (package, other):
        folder.mkdir()
        (folder / "m.pt2").write_bytes(changed(good, lambda c: c.update({"m/extra/x": b"y"})).read_bytes())
        (folder / "manifest.json").write_text(json.dumps({
            "format": 1, "programs": ["m.pt2"], "rows": {"kind": "array", "dtype": "float32", "shape": [6]},
            "answers": {"kind": "array"},
        }))  # fmt: skip
    shutil.copytree(Path(provenance.__file__).parent, package / "predictor", ignore=shutil.ignore_patterns("serving"))
    code = "from predictor.model import load; import sys; print(len(load(sys.argv[1]).predict([[1.0] * 6])))"
    ran = [
        subprocess.run([sys.executable, "-c", code, str(one)], cwd=package, capture_output=True, text=True, check=False)
        for one in (package, other)
    ]
    assert (ran[0].stdout, ran[0].returncode) == ("1\n", 0), ran[0].stderr
    assert ran[1].returncode == 1
    assert "was not exported by you on this machine" in ran[1].stderr
