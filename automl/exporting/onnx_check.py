"""Whether an ONNX file answers as the program does that it was made of: it is run once before it is passed on."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from automl.exporting.errors import ExportError
from automl.standalone.programs import OnnxProgram
from search_spaces.wording import install_command

FAR = 1e-4
"""Largest difference of an answer, absolute and as a share of the answer."""
MISSING = f"--format onnx needs more packages: {install_command('onnx')}"


def check_answers(path: Path, program: ExportedProgram) -> None:
    """Refuse a file that ONNX Runtime does not run, or that gives other answers to the program's example.

    Args:
        path: An .onnx file.
        program: What it was made of, with its example.

    Raises:
        ExportError: It is such a file, or ONNX Runtime is not installed.
    """
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
                f"--format onnx: found answers of the shape {list(its.shape)}, allowed: {list(mine.shape)}, as the "
                "program gives them"
            )
        if not torch.allclose(mine.double(), its.double(), rtol=FAR, atol=FAR, equal_nan=True):
            far = float((mine.double() - its.double()).abs().max())
            raise ExportError(
                f"--format onnx: found answers that differ from the program's by {far:.2g}, allowed: {FAR:g}; does the "
                "model draw random numbers?"
            )
