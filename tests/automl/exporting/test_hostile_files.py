"""Files of others, in the formats that are read here: they run no code, and stay within their folder and bounds."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import resource
import shutil
import struct
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from automl.exporting.atomic_outputs import unpack
from automl.predicting.predict_rows import opened_model, predict_file
from automl.predicting.row_files import rows_of
from automl.standalone.errors import InputError
from automl.standalone.image_rows import ImageRows
from search_spaces.messages import RunError, UserError
from studies.simulation.recorded_curves import read_table
from studies.spec.study_spec import load_spec
from tests.automl.exporting.test_provenance import HOSTILE, Hostile, changed, good
from tests.support import optional
from trainers.checkpoints.checkpoint import load_model
from trainers.checkpoints.model_export import load
from trainers.contract.task_loading import load_task

__all__ = ["good"]
MOST_SECONDS, MOST_BYTES = 5.0, 2**30
TOLERANCE = 5
"""A busy machine takes longer."""
TABLE = {"kind": "table", "numbers": [{"name": "a"}], "categories": [], "known": ["a"]}
ARRAY = {"kind": "array", "dtype": "float32", "shape": [2]}

Make = Callable[[Path, Path], Any]
"""Writes a hostile file at a path, or a folder there. The other path is made by whoever runs the file's code."""


def content(data: bytes | str) -> Make:
    return lambda path, _: path.write_bytes(data if isinstance(data, bytes) else data.encode())


def pickled(marker: Path) -> bytes:
    return pickle.dumps(Hostile(marker))


def package(manifest: Any, **files: bytes) -> Make:
    """A folder of a model; `manifest` is its text, or what differs from a usual one."""

    def make(path: Path, marker: Path) -> None:
        path.mkdir()
        usual = {"format": 1, "programs": ["m.pt2"], "rows": ARRAY, "answers": {"kind": "array"}}
        text = manifest if isinstance(manifest, str) else json.dumps(usual | manifest)
        (path / "manifest.json").write_text(text)
        code = f"import os; os.mkdir({str(marker)!r})"
        for name in ("predictor/__init__.py", "predictor/model.py", "sitecustomize.py", "torch.py", "model.py"):
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_text(code)
        torch.save(Hostile(marker), path / "m.pt2", pickle_module=pickle)
        for name, data in files.items():
            (path / name).write_bytes(data)

    return make


def linked_package(path: Path, marker: Path) -> None:
    package({})(path, marker)
    outside = path.with_name("outside.pt2")
    (path / "m.pt2").rename(outside)
    (path / "m.pt2").symlink_to(outside)


def mlflow_model(path: Path, marker: Path) -> None:
    path.mkdir()
    (path / "python_model.pkl").write_bytes(pickled(marker))
    flavor = "flavors: {python_function: {loader_module: mlflow.pyfunc.model, python_model: python_model.pkl}}\n"
    (path / "MLmodel").write_text(flavor)
    (path / "artifacts").mkdir()


def zipped(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return file.getvalue()


def exported(*names: str) -> Make:
    return content(zipped(("export.json", b"{}"), *[(name, b"x") for name in names]))


def link_in_archive(path: Path, marker: Path) -> None:
    link = zipfile.ZipInfo("m/link")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("export.json", "{}")
        archive.writestr(link, str(marker.parent))
        archive.writestr("m/link/marker", "x")


def onnx_file(node: str, shape: int, **values: Any) -> Make:
    """A model that answers a constant of so many numbers."""

    def make(path: Path, _: Path) -> None:
        onnx = optional.module("onnx")
        kind, helper = onnx.TensorProto, onnx.helper
        ends = [helper.make_tensor_value_info("x", kind.FLOAT, ["n", 2]), helper.make_tensor_value_info("y", 1, None)]
        nodes = [helper.make_node(node, ["s"], ["c"], **values), helper.make_node("Add", ["x", "c"], ["y"])]
        sizes = helper.make_tensor("s", kind.INT64, [2], [shape, 2])
        graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [sizes])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("other", 1)],
                                  ir_version=8)  # fmt: skip
        manifest = {"format": 1, "rows": ARRAY, "answers": {"kind": "array"}}
        helper.set_model_props(model, {"manifest.json": json.dumps(manifest)})
        path.write_bytes(model.SerializeToString())

    return make


def saved(value: Callable[[Path], Any], **how: Any) -> Make:
    return lambda path, marker: torch.save(value(marker), path, pickle_module=pickle, **how)


def tar_of_torch(path: Path, marker: Path) -> None:
    """The format before torch 1.6."""
    with tarfile.open(path, "w") as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            entry = tarfile.TarInfo(name)
            entry.size = len(pickled(marker))
            archive.addfile(entry, io.BytesIO(pickled(marker)))


def array_file(header: str, data: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def objects(path: Path, marker: Path) -> None:
    file = io.BytesIO()
    np.save(file, np.array([Hostile(marker)], dtype=object), allow_pickle=True)
    path.write_bytes(zipped(("params.npy", file.getvalue())))


def png(side: int, *chunks: tuple[bytes, bytes]) -> bytes:
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    written = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", header), *chunks)
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)


def text_bomb() -> bytes:
    return png(8, (b"zTXt", b"k\0\0" + zlib.compress(bytes(200 * 2**20))), (b"IDAT", b""))


def postscript(marker: Path) -> bytes:
    return (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n"
        + f"({marker}) (w) file closefile\nshowpage\n%%EOF\n".encode()
    )


def parquet_with(notes: Callable[[Path], dict[bytes, bytes]]) -> Make:
    def make(path: Path, marker: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pa_parquet

        field = pa.field("a", pa.binary(), metadata=notes(marker))
        pa_parquet.write_table(pa.table([[b"x"]], schema=pa.schema([field])), path)

    return make


def skops_file(path: Path, marker: Path) -> None:
    schema = {"__class__": "mkdir", "__module__": "os", "__loader__": "ObjectNode", "content": str(marker), "__id__": 1}
    path.write_bytes(zipped(("schema.json", json.dumps(schema | {"protocol": 2, "_skops_version": "1"}).encode())))


def idx(*sizes: int, data: bytes = b"") -> bytes:
    return struct.pack(f">4B{len(sizes)}I", 0, 0, 8, len(sizes), *sizes) + data


# ---------------------------------------------------------------------- who reads them


def as_model(path: Path) -> None:
    """As `automl predict` does."""
    model, rows = opened_model(path), path.with_name("rows.jsonl")
    rows.write_text("[1.0, 1.0]\n")
    predict_file(model, rows, None)


def as_checkpoint(path: Path) -> None:
    for read in (load_model, load):
        try:
            read(path)
        except (UserError, RunError) as error:
            refused = error
    raise refused


def as_rows(path: Path) -> None:
    list(rows_of(path, TABLE))


def as_training_rows(path: Path) -> None:
    load_task("tabular", {"train": str(path)})


def as_image(path: Path) -> None:
    ImageRows({"channels": 3, "height": 8, "width": 8}).encode(str(path), 0)


def as_image_folder(path: Path) -> None:
    for name in ("a", "b"):
        folder = path.parent / "images" / name
        folder.mkdir(parents=True)
        shutil.copy(path, folder / path.name)
    load_task("vision", {"train": str(path.parent / "images")})


def as_idx(path: Path) -> None:
    folder = path.parent / "idx"
    folder.mkdir()
    for part in ("train", "t10k"):
        shutil.copy(path, folder / f"{part}-images-idx3-ubyte{path.suffix.replace('.idx', '')}")
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(2, data=b"\0\1"))
    load_task("vision", {"train": str(folder)})


def as_archive(path: Path) -> None:
    with path.open("rb") as file:
        unpack(file, path.parent / "unpacked")


def as_estimator(path: Path) -> None:
    scikit_learn = optional.module("automl.libraries.scikit_learn")
    state = object.__new__(scikit_learn.EstimatorState)
    state._estimator, state._trusted = object(), [*scikit_learn._TRUSTED]
    try:
        state.load_state_dict({"estimator": torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)})
    except Exception as error:  # the training function that calls it is the user's, and so is what it raises
        raise RunError(str(error)) from error


DEEP = "[" * 100_000 + "]" * 100_000
HUGE = "{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }"
OBJECT = "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
DAMAGED = zipped(("params.npy", array_file(OBJECT)), method=zipfile.ZIP_DEFLATED).replace(b"NUMPY", b"\xff" * 5)
LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefghi", "bcdefghij", strict=True)
)
FILES: dict[str, dict[str, tuple[Callable[[Path], None], Make]]] = {
    "pt2": {
        "no archive": (as_model, content(b"PK\x03\x04" * 99)),
        "a bomb": (as_model, content(zipped(("m/extra/manifest.json", bytes(2**28)), method=zipfile.ZIP_DEFLATED))),
        "a deep manifest": (as_model, content(zipped(("m/extra/manifest.json", DEEP.encode())))),
    },
    "package": {
        "a pickle": (as_model, package({})),
        "a link": (as_model, linked_package),
        "a program outside": (as_model, package({"programs": ["../outside.pt2"]})),
        "an absolute program": (as_model, package({"programs": ["/etc/passwd"]})),
        "a deep manifest": (as_model, package(DEEP)),
        "a number of 10,000 digits": (as_model, package('{"format": ' + "9" * 10_000 + "}")),
        "many programs": (as_model, package({"programs": ["m.pt2"] * 100_000})),
        "a tokenizer": (as_model, package({"rows": {"kind": "text", "tokenizer": DEEP}})),
    },
    "mlflow": {"a pickle": (as_model, mlflow_model)},
    "onnx": {
        "junk": (as_model, content(b"\x08\x09" * 99)),
        "nothing": (as_model, content(b"")),
        "an unknown operator": (as_model, onnx_file("System", 1, domain="other")),
        "terabytes": (as_model, onnx_file("ConstantOfShape", 2**40)),
        "an overflow": (as_model, onnx_file("ConstantOfShape", 2**62)),
        "more than the machine has": (as_model, onnx_file("ConstantOfShape", 2**36)),
        "a length below the content": (as_model, content(b"\x3a\xff\xff\xff\xff\x0f")),
    },
    "pt": {
        "a pickle": (as_checkpoint, lambda path, marker: path.write_bytes(pickled(marker))),
        "an object": (as_checkpoint, saved(Hostile)),
        "an object in weights": (as_checkpoint, saved(lambda marker: {"model": {"w": Hostile(marker)}, "spec": {}})),
        "the format before": (as_checkpoint, saved(Hostile, _use_new_zipfile_serialization=False)),
        "a tar": (as_checkpoint, tar_of_torch),
        "a task that is code": (as_checkpoint, saved(lambda _: {"weights": {}, "params": {}, "task": "os:mkdir",
                                                                "task_options": {}})),
    },
    "npz": {
        "objects": (read_table, objects),
        "an object header": (read_table, content(zipped(("params.npy", array_file(OBJECT, b"cos\nmkdir\n."))))),
        "terabytes": (read_table, content(zipped(("params.npy", array_file(HUGE))))),
        "an array": (read_table, content(array_file(OBJECT.replace("|O", "<f8"), bytes(8)))),
        "damaged bytes": (read_table, content(DAMAGED)),
        "a header that is code": (read_table, content(zipped(("params.npy", array_file("__import__('os').abort()"))))),
    },
    "yaml": {
        "an object": (load_spec, lambda path, marker: path.write_text(f"!!python/object/apply:os.mkdir ['{marker}']")),
        "a name": (load_spec, content("study: !!python/name:os.system")),
        "laughs": (load_spec, content(LAUGHS)),
        "depth": (load_spec, content(DEEP)),
    },
    "csv": {
        "zeros": (as_rows, content(b"a\n" + b"\0" * 2**20)),
        "quotes that never end": (as_rows, content(b'a\n"' + b"x,\n" * 2**18)),
        "a formula": (as_training_rows, content("a,b\n" + "=cmd|'/c calc'!A1,1\n@SUM(1),2\n" * 9)),
    },
    "jsonl": {
        "depth": (as_rows, content(DEEP)),
        "a long number": (as_rows, content('{"a": ' + "9" * 10_000 + "}")),
        "no objects": (as_rows, content("[1]\nnull\n")),
    },
    "parquet": {
        "junk": (as_rows, content(b"PAR1" + b"\xff" * 999 + b"PAR1")),
        "a footer of 4 GiB": (as_training_rows, content(b"PAR1" + b"\xff\xff\xff\xff" + b"PAR1")),
        "a pickled type": (as_rows, parquet_with(lambda marker: {
            b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": pickled(marker)})),
    },
    "gz": {
        "no end": (as_rows, content(gzip.compress(b"a\n1\n" * 999)[:-20])),
        "another format": (as_rows, content(bz2.compress(b"a\n1\n") + lzma.compress(b"a"))),
    },
    "png": {
        "3.6 billion pixels": (as_image, content(png(60_000))),
        "169 million pixels": (as_image_folder, content(png(13_000))),
        "PostScript": (as_image, lambda path, marker: path.write_bytes(postscript(marker))),
        "PostScript to train on": (as_image_folder, lambda path, marker: path.write_bytes(postscript(marker))),
        "200 MiB of text": (as_image, lambda path, _: path.write_bytes(text_bomb())),
        "a pickle": (as_image, lambda path, marker: path.write_bytes(pickled(marker))),
    },
    "jpg": {
        "PostScript": (as_image, lambda path, marker: path.write_bytes(postscript(marker))),
        "an SVG": (as_image, content('<!DOCTYPE s [<!ENTITY x SYSTEM "/etc/passwd">]><svg>&x;</svg>')),
    },
    "tif": {"offsets in a circle": (as_image, content(b"II*\0\x08\0\0\0" + b"\0\0\x08\0\0\0" * 9))},
    "ppm": {"terabytes": (as_image, content(b"P6 1048576 1048576 255\n"))},
    "gif": {"4 billion pixels": (as_image, content(b"GIF89a\xff\xff\xff\xff\0\0\0,\0\0\0\0\xff\xff\xff\xff\0\2\0;"))},
    "idx": {
        "64 GiB": (as_idx, content(idx(2**24, 64, 64))),
        "an overflow": (as_idx, content(idx(2**31, 2**31, 2**31))),
    },
    "zip": {
        "names outside": (as_archive, exported("m/../../marker", "m/../marker", "m/x")),
        "absolute names": (as_archive, lambda path, marker: exported(str(marker), "m//marker")(path, marker)),
        "a link": (as_archive, link_in_archive),
        "no export": (as_archive, content(zipped(("x", b"y")))),
    },
    "skops": {"an object": (as_estimator, skops_file)},
}  # fmt: skip
HARMLESS = {
    ("csv", "zeros"), ("csv", "a formula"), ("jsonl", "no objects"), ("parquet", "a pickled type"),
    ("zip", "names outside"), ("zip", "absolute names"),
}  # fmt: skip
"""Files that are read, as far as they are data; archives are unpacked inside their folder."""
CASES = [(ending, what) for ending, some in FILES.items() for what in some]


def test_there_are_as_many_files_as_the_documents_say() -> None:
    assert len(FILES) >= 12
    assert len(CASES) + len(HOSTILE) >= 40


@pytest.mark.medium
@pytest.mark.parametrize(("ending", "what"), CASES)
def test_a_file_of_others_runs_nothing_and_stays_within_bounds(tmp_path: Path, ending: str, what: str) -> None:
    place, marker = tmp_path / "deep" / "in", tmp_path / "marker"
    place.mkdir(parents=True)
    path = place / f"file.{ending}"
    read, make = FILES[ending][what]
    make(path, marker)
    if ending == "skops":
        optional.module("automl.libraries.scikit_learn")  # takes seconds, which are not the file's
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    said = ""
    try:
        read(path)
    except (UserError, RunError, InputError) as error:
        said = str(error)
    took = time.perf_counter() - began
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert bool(said) != ((ending, what) in HARMLESS)
    assert "\n" not in said
    assert len(said) < 2000
    assert took < MOST_SECONDS * TOLERANCE
    assert grown < MOST_BYTES
    assert sorted(one.name for one in tmp_path.iterdir()) == ["deep"]
    assert [one.name for one in place.parent.iterdir()] == ["in"]
    assert not marker.exists()


def test_no_file_of_a_program_is_read_before_its_digest(good: Path, tmp_path: Path) -> None:
    """As in test_provenance.py, by the way of `automl predict`."""
    for kind in HOSTILE:
        hostile = changed(good, lambda inside, kind=kind: HOSTILE[kind](inside, tmp_path / "marker"))
        with pytest.raises(UserError, match=r"^MODEL: "):
            opened_model(hostile)
    assert not (tmp_path / "marker").exists()
