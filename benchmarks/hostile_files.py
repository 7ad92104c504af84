"""Hostile files by format, for `attacks_files.py`: each would run code, read other files, hang or fill the memory."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

Make = Callable[["Place"], Any]
ROWS = "a,b,c\n1,2,x\n"
ARRAY = {"kind": "array", "dtype": "float32", "shape": [3]}
TABLE = {
    "kind": "table", "missing": ["?"], "known": ["a", "b", "c"], "farthest": 5.0,
    "numbers": [{"name": name, "is_date": False, "mean": 1.0, "deviation": 2.0, "median": 1.0, "marks": False}
                for name in ("a", "b")],
    "categories": [{"name": "c", "levels": ["x", "y"]}],
}  # fmt: skip
IMAGE = {"kind": "image", "channels": 3, "height": 8, "width": 8}
TOKENIZER: dict[str, Any] = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1, "b": 2}, "unk_token": "[UNK]"},
}  # fmt: skip
LABELS = {"kind": "classes", "labels": ["no", "yes"]}


def text(**changes: Any) -> dict[str, Any]:
    """Return rows of texts whose tokenizer has these parts."""
    tokenizer = json.dumps(TOKENIZER | changes)
    marks = {"longest": 16, "keep": "start", "pad": 0, "unknown": 0, "first": None}
    return {"kind": "text", "tokenizer": tokenizer, **marks}


@dataclass
class Place:
    """An empty folder for a hostile file. `base` has honest models; `marker` exists once a command was run."""

    folder: Path
    base: Path
    marker: Path = field(init=False)

    def __post_init__(self) -> None:
        self.marker = self.folder.parent / f"{self.folder.name}.marker"

    def write(self, name: str, content: bytes | str) -> Path:
        """Write a file below the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def model(self, kind: str = "table", **manifest: Any) -> Path:
        """Copy an honest model's folder, with other keys in its manifest."""
        folder = self.folder / "model"
        folder.mkdir()
        for one in (self.base / kind).iterdir():
            (folder / one.name).write_bytes(one.read_bytes())
        known = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps(known | manifest))
        return folder

    def hostile(self) -> bytes:
        """Return a pickle that makes the marker."""
        return pickle.dumps(Hostile(str(self.marker)), 2)

    def torch_file(self) -> bytes:
        """Return a file of `torch.save` whose pickle makes the marker."""
        file = io.BytesIO()
        torch.save(Hostile(str(self.marker)), file, pickle_module=pickle)
        return file.getvalue()


class Hostile:
    """Makes a folder as soon as it is unpickled."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.marker,)


def archive(*members: tuple[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return a ZIP file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as made:
        for name, content in members:
            made.writestr(name, content)
    return file.getvalue()


def changed_program(place: Place, edit: Callable[[dict[str, bytes]], Any]) -> Path:
    """Return a folder whose program has other members."""
    folder = place.model()
    with zipfile.ZipFile(folder / "m.pt2") as whole:
        members = {name: whole.read(name) for name in whole.namelist()}
    edit(members)
    (folder / "m.pt2").write_bytes(archive(*members.items()))
    return folder


def pickled_weights(place: Place) -> Path:
    """Return a folder whose weights are a pickle."""

    def edit(members: dict[str, bytes]) -> None:
        name = next(one for one in members if one.endswith("_weights_config.json"))
        config = json.loads(members[name])
        first = next(iter(config["config"].values()))
        first["use_pickle"] = True
        members[name] = json.dumps(config).encode()
        members[name.rpartition("/")[0] + "/" + first["path_name"]] = place.torch_file()

    return changed_program(place, edit)


def operator(target: str) -> Make:
    """Return a maker of folders whose program calls an operator."""

    def edit(members: dict[str, bytes]) -> None:
        name = next(one for one in members if one.endswith("models/model.json"))
        model = json.loads(members[name])
        model["graph_module"]["graph"]["nodes"][0]["target"] = target
        members[name] = json.dumps(model).encode()

    return lambda place: changed_program(place, edit)


def instead(name: str, make: Callable[[Path], Any]) -> Make:
    """Return a maker of folders in which a file is something else."""

    def made(place: Place) -> Path:
        folder = place.model()
        (folder / name).unlink()
        make(folder / name)
        return folder

    return made


def zeros(path: Path) -> None:
    """Make a link to a file without end."""
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    """Make a file of 1 TiB that takes no space."""
    path.touch()
    os.truncate(path, 2**40)


def with_code(place: Place) -> Path:
    """Return an honest model with a `predictor` package of other code."""
    folder = place.model()
    for name in ("predictor/__init__.py", "predictor/model.py", "predict.py"):
        place.write(f"model/{name}", f"import os; os.mkdir({str(place.marker)!r})")
    return folder


def of_mlflow(place: Place) -> Path:
    """Return a model of MLflow with a pickle."""
    flavour = "flavors:\n  python_function: {loader_module: mlflow.pyfunc.model, python_model: python_model.pkl}\n"
    place.write("model/MLmodel", flavour)
    return place.write("model/python_model.pkl", place.hostile()).parent


def onnx_file(place: Place, location: str | None = None, **more: Any) -> Path:
    """Write an .onnx file that adds two weights; a location makes them external data."""
    import onnx
    from onnx import TensorProto, helper

    weights = helper.make_tensor("w", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    if location is not None:
        weights.ClearField("float_data")
        weights.data_location = TensorProto.EXTERNAL
        for key, value in (("location", location), ("length", "12")):
            weights.external_data.add(key=key, value=value)
    ends = [helper.make_tensor_value_info(one, TensorProto.FLOAT, ["rows", 3]) for one in "xy"]
    nodes = more.get("nodes") or [helper.make_node("Add", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weights])
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("evil", 1)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=8)
    manifest = {"format": 1, "rows": ARRAY, "answers": {"kind": "array"}} | more.get("manifest", {})
    helper.set_model_props(model, {"manifest.json": json.dumps(manifest)})
    path = place.folder / "model.onnx"
    onnx.save(model, str(path))
    return path


def external(location: str) -> Make:
    """Return a maker of .onnx files whose weights lie elsewhere."""

    def made(place: Place) -> Path:
        outside = place.folder.parent / "outside.bin"
        outside.write_bytes(struct.pack("<3f", 7, 7, 7))
        (place.folder / "link.bin").symlink_to(outside)
        return onnx_file(place, location.format(folder=place.folder.parent))

    return made


def node(*arguments: Any, **attributes: Any) -> Make:
    """Return a maker of .onnx files with one other node."""

    def made(place: Place) -> Path:
        from onnx import helper

        return onnx_file(place, nodes=[helper.make_node(*arguments, **attributes)])

    return made


def huge_constant(place: Place) -> Path:
    """Write an .onnx file that computes 4 TiB while it is loaded."""
    from onnx import TensorProto, helper

    shape = helper.make_tensor("n", TensorProto.INT64, [1], [2**40])
    nodes = [
        helper.make_node("Constant", [], ["s"], value=shape),
        helper.make_node("ConstantOfShape", ["s"], ["z"]),
        helper.make_node("ReduceSum", ["z"], ["r"], keepdims=0),
        helper.make_node("Add", ["x", "r"], ["y"]),
    ]
    return onnx_file(place, nodes=nodes)


def png(width: int, height: int) -> bytes:
    """Return a PNG that claims to have so many pixels; its data are zeros."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">2I5B", width, height, 8, 0, 0, 0, 0)
    data = zlib.compress(bytes(min(2**24, height * (width + 1))), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def tiff(width: int, height: int) -> bytes:
    """Return a TIFF that claims to have so many pixels."""
    entries = [(256, 4, width), (257, 4, height), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, 8), (278, 4, height),
               (279, 4, 2**31)]  # fmt: skip
    body = b"".join(struct.pack("<2H2I", tag, kind, 1, value) for tag, kind, value in entries)
    return b"II*\x00" + struct.pack("<IH", 8, len(entries)) + body + bytes(4)


EPS = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
GIF = b"GIF89a\xff\xff\xff\xff\x80\x00\x00" + bytes(6) + b",\x00\x00\x00\x00\xff\xff\xff\xff\x00\x08\x01\x00\x00;"
BMP = b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, 10**6, 10**6, 1, 24, 0, 0, 1, 1, 0, 0)
JPEG = b"\xff\xd8\xff\xc0" + struct.pack(">HBHHB", 17, 8, 65500, 65500, 3) + b"\x01\x11\x00\x02\x11\x00\x03\x11\x00\xff\xd9"
SVG = "<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>"


def picture(content: bytes | str) -> Make:
    """Return a maker of a file named like a PNG."""
    return lambda place: place.write("pictures/a.png", content)


def special_picture(make: Callable[[Path], Any]) -> Make:
    """Return a maker of a folder with something that is named like a PNG."""

    def made(place: Place) -> Path:
        (place.folder / "pictures").mkdir()
        make(place.folder / "pictures" / "a.png")
        return place.folder / "pictures"

    return made


def classes(content: bytes | str) -> Make:
    """Return a maker of a training folder of two classes, one with a hostile picture."""

    def made(place: Place) -> Path:
        for number in range(40):
            place.write(f"train/class {number % 2}/{number}.png", png(8, 8))
        return place.write("train/class 0/hostile.png", content).parents[1]

    return made


def parquet(place: Place) -> Path:
    """Write a Parquet file whose column has an extension type that is a pickle."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    notes = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": place.hostile()}
    names = [pa.field(name, pa.int64(), metadata=notes) for name in "abc"]
    path = place.folder / "rows.parquet"
    pq.write_table(pa.table([[1], [2], [3]], schema=pa.schema(names)), path)
    return path


def curves(name: str, content: Callable[[Place], bytes]) -> Make:
    """Return a maker of recorded curves with one other array."""

    def made(place: Place) -> Path:
        return place.write("curves.npz", archive((name, content(place)), compression=zipfile.ZIP_DEFLATED))

    return made


def npy(descr: str, shape: str, content: bytes = b"") -> bytes:
    """Return an array file that claims to have so many elements."""
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + content


def linked_member() -> bytes:
    """Return an archive whose folder is a link to another one."""
    link = zipfile.ZipInfo("model/out")
    link.external_attr = 0o120777 << 16
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("export.json", "{}")
        made.writestr(link, "..")
        made.writestr("model/out/escaped", "x")
    return file.getvalue()


NOT_A_FILE: dict[str, Make] = {
    "a manifest that is a link to /dev/zero": instead("manifest.json", zeros),
    "a manifest that is a FIFO": instead("manifest.json", os.mkfifo),
    "a program that is a link to /dev/zero": instead("m.pt2", zeros),
    "a program that is a FIFO": instead("m.pt2", os.mkfifo),
    "a program of 1 TiB": instead("m.pt2", sparse),
}
REFUSED_MODELS: dict[str, dict[str, Make]] = {
    "package": NOT_A_FILE | {
        "pickled weights": pickled_weights,
        "the operator torch.hub.load": operator("torch.hub.load"),
        "an operator that maps files": operator("torch.ops.aten.from_file.default"),
        "a compiled library": lambda p: changed_program(p, lambda m: m.update({"m/data/aotinductor/m/m.so": b"ELF"})),
        "a program outside": lambda p: p.model(programs=["../m.pt2"]),
        "a program 100,000 times": lambda p: p.model(programs=["m.pt2"] * 100_000),
        "a deep manifest": lambda p: p.write("model/manifest.json", "[" * 10**6).parent,
        "a manifest of 65 MiB": lambda p: p.write("model/manifest.json", " " * 65 * 2**20).parent,
        "terminal codes": lambda p: p.model(format="\x1b]0;owned\x07"),
        "rows of 10^12 numbers": lambda p: p.model("array", rows=ARRAY | {"shape": [10**12]}),
        "images of 10^12 pixels": lambda p: p.model("image", rows=IMAGE | {"height": 10**6, "width": 10**6}),
        "an encoding that is no encoding": lambda p: p.model(rows=TABLE | {"encoding": "undefined"}),
        "an encoding that decompresses": lambda p: p.model(rows=TABLE | {"encoding": "zlib"}),
        "a mean that is a text": lambda p: p.model(rows=json.loads(json.dumps(TABLE).replace("1.0", '"x"'))),
        "a broken tokenizer": lambda p: p.model("text", rows=text(model={"type": "WordLevel"})),
    },
    "MLflow": {"a pickle": of_mlflow},
    "pickle": {"a pickle": lambda p: p.write("model.pkl", p.hostile())},
    "pt2": {
        "a pickle": lambda p: p.write("m.pt2", p.torch_file()),
        "a manifest that expands": lambda p: p.write(
            "m.pt2", archive(("m/extra/manifest.json", b" " * 2**28), compression=zipfile.ZIP_DEFLATED)),
        "no archive": lambda p: p.write("m.pt2", b"PK\x03\x04" + bytes(100)),
        "200,000 members": lambda p: p.write("m.pt2", archive(*((f"m/{n}", b"") for n in range(200_000)))),
    },
    "onnx": {
        "weights in ../../etc/passwd": external("../../../../../../../../etc/passwd"),
        "weights in /etc/passwd": external("/etc/passwd"),
        "weights beside the folder": external("../outside.bin"),
        "weights behind a link": external("link.bin"),
        "weights that never end": external("/dev/zero"),
        "no model": lambda p: p.write("model.onnx", bytes(range(256)) * 40),
        "an unknown operator": node("Run", ["x"], ["y"], domain="evil"),
        "4 TiB of zeros": huge_constant,
        "rows of 10^12 numbers": lambda p: onnx_file(p, manifest={"rows": ARRAY | {"shape": [10**12]}}),
    },
}  # fmt: skip
"""Models that are refused, or fail with a row, by format."""
HARMLESS_MODELS: dict[str, Make] = {
    "other code in predictor/": with_code,
    "padding to 10^9 tokens": lambda p: p.model("text", rows=text(padding={
        "strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "[UNK]"})),
    "500,000 columns": lambda p: p.model(rows=TABLE | {"known": [*"abc", *(f"{n} {'x' * 60}" for n in range(500_000))]}),
}  # fmt: skip
"""Models that may answer, but do nothing else."""
PICTURES: dict[str, Make] = {
    "PostScript": picture(EPS),
    "PDF": picture(b"%PDF-1.4\n1 0 obj\n<<>>\nendobj\ntrailer\n<<>>\n%%EOF"),
    "SVG": picture(SVG),
    "PNG of 3.6 gigapixels": picture(png(60_000, 60_000)),
    "PNG of 160 megapixels": picture(png(16_000, 10_000)),
    "PNG without data": picture(png(8, 8)[:40]),
    "TIFF of 10^18 pixels": picture(tiff(10**9, 10**9)),
    "GIF of 4 gigapixels": picture(GIF),
    "BMP of 10^12 pixels": picture(BMP),
    "JPEG of 4 gigapixels": picture(JPEG),
    "PPM of 10^12 pixels": picture(b"P6 1000000 1000000 255\n\x00"),
    "WebP without data": picture(b"RIFF\xff\xff\xff\xffWEBPVP8L\xff\xff\xff\xff\x2f" + b"\xff" * 40),
    "a link to /dev/zero": special_picture(zeros),
    "a FIFO": special_picture(os.mkfifo),
}
TRAINING: dict[str, Make] = {
    "PostScript": classes(EPS),
    "PNG of 3.6 gigapixels": classes(png(60_000, 60_000)),
}
ROW_FILES: dict[str, dict[str, Make]] = {
    "Parquet": {"no table": lambda p: p.write("rows.parquet", b"PAR1" + b"\xff" * 60 + b"PAR1")},
    "JSON lines": {
        "a million brackets": lambda p: p.write("rows.jsonl", "[" * 10**6),
        "a number of 100,000 digits": lambda p: p.write("rows.jsonl", f'{{"a": {"9" * 10**5}, "b": 1, "c": "x"}}'),
    },
    "CSV": {
        "other bytes": lambda p: p.write("rows.csv", b"a,b,c\n\xff\x00\xfe,1,2\n"),
        "a broken archive": lambda p: p.write("rows.csv.gz", gzip.compress(ROWS.encode() * 99)[:40]),
    },
}
CURVES: dict[str, Make] = {
    "pickled objects": curves("static_a.npy", lambda p: npy("|O", "(1,)", p.hostile())),
    "10^15 elements": curves("metric_a.npy", lambda _: npy("<f8", "(1000000000000000,)")),
    "an expression": curves("metric_a.npy", lambda _: npy("<f8", "__import__('os').getcwd()")),
    "a broken array": curves("metric_a.npy", lambda _: b"\x93NUMPY\xff\xff" + bytes(50)),
}
WEIGHTS: dict[str, Make] = {
    "a pickle": lambda p: p.write("m.pt", p.hostile()),
    "a pickle of torch": lambda p: p.write("m.pt", p.torch_file()),
    "an archive that is none": lambda p: p.write("m.pt", b"PK\x03\x04" + bytes(300)),
}
NETWORKS: dict[str, Make] = {
    "a head of 2^60 bytes": lambda p: p.write("r.safetensors", struct.pack("<Q", 2**60) + b"{}"),
    "tensors beyond the end": lambda p: p.write("r.safetensors", struct.pack("<Q", 67) + json.dumps(
        {"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode().ljust(67)),
    "a pickle": lambda p: p.write("r.pth", p.torch_file()),
}  # fmt: skip
SPECS: dict[str, Make] = {
    "an object": lambda p: p.write("s.yaml", f"study: !!python/object/apply:os.mkdir [{str(p.marker)!r}]\ntask: digits\n"),
    "names that double": lambda p: p.write("s.yaml", "a0: &a0 [x]\n" + "".join(
        f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))),
    "a million brackets": lambda p: p.write("s.yaml", "study: " + "[" * 10**5),
    "a link to /dev/zero": lambda p: (p.folder / "s.yaml").symlink_to("/dev/zero") or p.folder / "s.yaml",
}  # fmt: skip
ARCHIVES: dict[str, Make] = {
    "a member above": lambda p: p.write("a.zip", archive(("export.json", b"{}"), ("m/../../../escaped", b"x"), ("m/b", b"x"))),
    "an absolute member": lambda p: p.write("a.zip", archive(
        ("export.json", b"{}"), (f"m/{p.folder.parent}/escaped", b"x"), ("m/b", b"x"))),
    "a link": lambda p: p.write("a.zip", linked_member()),
    "no description": lambda p: p.write("a.zip", archive(("m/b", b"x"))),
}  # fmt: skip


def base_models(folder: Path) -> None:
    """Write honest models of each kind of rows."""
    from automl.exporting.formats import save_program
    from trainers.model.traced_program import example_call, traced

    class Net(torch.nn.Module):
        def __init__(self, inputs: int, *, tokens: bool = False) -> None:
            super().__init__()
            self.tokens = tokens
            self.layer = torch.nn.Embedding(3, 2) if tokens else torch.nn.Linear(inputs, 2)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            if self.tokens:
                return self.layer(rows.clamp(0, 2)).sum(dim=1)
            return self.layer(rows.flatten(1).float())

    for kind, rows, example in (
        ("table", TABLE, torch.rand(4, 3)), ("array", ARRAY, torch.rand(4, 3)), ("text", text(), torch.ones(4, 5).long()),
        ("image", IMAGE, torch.zeros(4, 3, 8, 8, dtype=torch.uint8)),
    ):  # fmt: skip
        manifest = {"format": 1, "programs": ["m.pt2"], "rows": rows, "answers": LABELS}
        (folder / kind).mkdir(parents=True)
        net = Net(int(np.prod(example.shape[1:])), tokens=kind == "text")
        save_program(traced(example_call(net, (example,))), manifest, folder / kind / "m.pt2")
        (folder / kind / "manifest.json").write_text(json.dumps(manifest))
