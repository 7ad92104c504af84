"""Writes the export formats, each completely or not at all."""

import base64
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

import automl.standalone
from automl.exporting.atomic_outputs import ExportError, new_file, new_folder
from automl.exporting.card import EXAMPLE_IMAGE, card_of, example_image, example_rows
from automl.standalone.model import MANIFEST
from automl.standalone.programs import OnnxProgram
from automl.standalone.provenance import digest_of, remember
from search_spaces.messages import install_command
from trainers.model.traced_program import quiet

FAR = 1e-4  # absolute and relative tolerance for predictions of an export
MISSING = f"--format onnx needs more packages. Install them: {install_command('onnx')}"
CARD = "README.md"
REQUIREMENTS = "requirements.txt"
RUNTIME = "predictor"  # folder of a package with a copy of `automl.standalone`
_OF_THE_CODE = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "custom", "from_node")
"""Keys of torch's notes on each operation's source code."""
_EXAMPLE = "input_example.json"


def check_answers(path: Path, program: ExportedProgram) -> None:
    """Raise ExportError if ONNX Runtime is missing, cannot run the file, or predicts the example differently."""
    args, kwargs = program.example_inputs
    inputs = [leaf.numpy() for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    with torch.no_grad():
        expected = [one for one in pytree.tree_leaves(program.module()(*args, **kwargs)) if isinstance(one, Tensor)]
    try:
        found = [torch.from_numpy(one.copy()) for one in OnnxProgram(path).arrays(inputs)]
    except ImportError:
        raise ExportError(MISSING) from None
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ExportError(f"--format onnx: ONNX Runtime cannot run the file: {reason}") from error
    _check_near(expected, found)


def _check_near(expected: list[Tensor], found: list[Tensor]) -> None:
    for mine, its in zip(expected, found, strict=True):
        if mine.shape != its.shape:
            raise ExportError(
                f"--format onnx: the exported file returns the shape {list(its.shape)}, but the model returns "
                f"{list(mine.shape)}"
            )
        if not torch.allclose(mine.double(), its.double(), rtol=FAR, atol=FAR, equal_nan=True):
            far = float((mine.double() - its.double()).abs().max())
            raise ExportError(
                f"--format onnx: predictions of file and model differ by {far:.2g}, more than {FAR:g}. Does the "
                "model draw random numbers?"
            )


def write_package(programs: Sequence[ExportedProgram], manifest: Mapping[str, Any], out: Path) -> None:
    """Write a package: programs, manifest, and code that runs them. `out` must be missing or empty."""
    with new_folder(out) as folder:
        for name, program in zip(manifest["programs"], programs, strict=True):
            save_program(program, manifest, folder / name)
        _write_json(folder / MANIFEST, manifest)
        if rows := example_rows(manifest):
            _write_json(folder / _EXAMPLE, rows)
        if image := example_image(manifest):
            (folder / EXAMPLE_IMAGE).write_bytes(image)
        (folder / CARD).write_text(card_of(manifest), encoding="utf-8")
        (folder / REQUIREMENTS).write_text(requirements(manifest), encoding="utf-8")
        home = Path(automl.standalone.__file__).parent
        for file in sorted(home.rglob("*.py")):
            copy = (folder / RUNTIME) / file.relative_to(home)
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, copy)


def write_torch_export(programs: Sequence[ExportedProgram], manifest: Mapping[str, Any], out: Path) -> None:
    """Write a .pt2 file for `torch.export.load`, with manifest, card and an example row."""
    (program,) = programs
    with new_file(out) as path:
        save_program(program, manifest, path, _papers(manifest, out.name))


def write_onnx(programs: Sequence[ExportedProgram], manifest: Mapping[str, Any], out: Path) -> None:
    """Write an .onnx file with metadata. Raises ExportError if a package or operation is missing, or answers differ."""
    try:
        import onnx
        import onnxscript  # noqa: F401 - torch needs it
    except ImportError:
        raise ExportError(MISSING) from None
    (program,) = programs
    try:
        with torch.no_grad(), quiet():
            made = torch.onnx.export(program, dynamo=True, optimize=True, verbose=False)
        model = made.model_proto  # type: ignore[union-attr]
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ExportError(f"--format onnx: ONNX cannot express the model's operations: {reason}") from error
    onnx.helper.set_model_props(model, {MANIFEST: json.dumps(manifest), **_papers(manifest, out.name)})
    with new_file(out) as path:
        onnx.save(model, str(path))
        check_answers(path, program)


def write_mlflow(programs: Sequence[ExportedProgram], manifest: Mapping[str, Any], out: Path) -> None:
    """Write a package as a folder for `mlflow models serve` and `mlflow.pyfunc.load_model`."""
    from automl.exporting.mlflow_model import save_model

    with TemporaryDirectory() as scratch, new_folder(out) as folder:
        package = Path(scratch) / "model"
        write_package(programs, manifest, package)
        folder.rmdir()
        save_model(package, folder)


def _papers(manifest: Mapping[str, Any], file: str) -> dict[str, str]:
    image = example_image(manifest)
    rows = example_rows(manifest) if image is None else [base64.b64encode(image).decode()]
    return {CARD: card_of(manifest, file=file), **({_EXAMPLE: json.dumps(rows, ensure_ascii=False)} if rows else {})}


def save_program(
    program: ExportedProgram, manifest: Mapping[str, Any], path: Path, papers: Mapping[str, str] | None = None
) -> None:
    """Write a program without example rows (user data), lines of the user's code, and checks of shapes in Python.

    Raises ExportError if the program takes or returns the user's own container types.
    """
    _own_memory(program.state_dict)
    program._example_inputs = None  # noqa: SLF001 - there is no public way
    program._guards_code = []  # noqa: SLF001 - as above
    for module in program.graph_module.modules():
        if isinstance(module, GraphModule):
            for node in module.graph.nodes:
                for name in _OF_THE_CODE:
                    node.meta.pop(name, None)
    try:
        torch.export.save(program, path, extra_files={MANIFEST: json.dumps(manifest), **(papers or {})})
    except NotImplementedError as error:
        reason = " ".join(str(error).split())[:200]
        raise ExportError(
            f"torch.export cannot write the model's inputs or outputs: {reason}. It can write tensors, and "
            "tuples, lists and dicts of them"
        ) from error
    remember([digest_of(path)])


def _own_memory(weights: dict[str, Tensor]) -> None:
    """Copy weights that are views of a larger tensor, which torch would save whole. Shared weights stay shared."""
    copies: dict[int, Tensor] = {}
    for name, one in weights.items():
        if one.untyped_storage().nbytes() != one.numel() * one.element_size():
            copies.setdefault(id(one), one.detach().clone())
            weights[name] = nn.Parameter(copies[id(one)]) if isinstance(one, nn.Parameter) else copies[id(one)]


def requirements(manifest: Mapping[str, Any]) -> str:
    """Return a requirements.txt with the model's packages, in the exported versions."""
    versions = {name: one for name, one in manifest["environment"].items() if name != "python"}
    return "".join(f"{name}=={one.partition('+')[0]}\n" for name, one in versions.items())


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
