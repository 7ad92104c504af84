"""The model itself: a program that turns a batch of numbers into outputs, run by torch or by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from .batches import Encoded
from .program_check import checked_program


class Program(Protocol):
    """Turns a batch into outputs."""

    def run(self, batch: Encoded) -> list[Any]:
        """Return the outputs of each row, as nested lists."""


class TorchProgram:
    """A program of `torch.export`; needs torch alone.

    Args:
        path: A .pt2 file.
        device: Where to compute.

    Raises:
        UnsafeProgramError: The file could run code; it is not loaded.
    """

    def __init__(self, path: str | Path, device: str = "cpu") -> None:
        import torch

        self._torch, self._device = torch, torch.device(device)
        module: Any = torch.export.load(checked_program(path)).module()
        self._module = module.to(self._device)

    def run(self, batch: Encoded) -> list[Any]:
        """Return the outputs of each row, as nested lists."""
        torch = self._torch
        flat = torch.frombuffer(batch.numbers, dtype=getattr(torch, batch.dtype))
        with torch.no_grad():
            outputs: list[Any] = self._module(flat.view(batch.shape).to(self._device)).tolist()
        return outputs


class OnnxProgram:
    """An ONNX model; needs ONNX Runtime alone, which brings numpy.

    Args:
        path: An .onnx file.
    """

    def __init__(self, path: str | Path) -> None:
        import numpy as np
        import onnxruntime

        self._numpy = np
        self._session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name

    @property
    def notes(self) -> dict[str, str]:
        """What was written into the file beside the model, by name."""
        return dict(self._session.get_modelmeta().custom_metadata_map)

    def arrays(self, inputs: Sequence[Any]) -> list[Any]:
        """Return all outputs for all inputs of the file, arrays of numpy each."""
        names = [one.name for one in self._session.get_inputs()]
        outputs: list[Any] = self._session.run(None, dict(zip(names, inputs, strict=True)))
        return outputs

    def run(self, batch: Encoded) -> list[Any]:
        """Return the outputs of each row, as nested lists."""
        numbers = self._numpy.frombuffer(batch.numbers, dtype=batch.dtype).reshape(batch.shape)
        outputs: list[Any] = self._session.run(None, {self._input: numbers})[0].tolist()
        return outputs
