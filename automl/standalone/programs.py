"""Runs the traced model on batches of numbers, with torch or ONNX Runtime."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from .batches import Encoded
from .errors import ModelError
from .onnx_process import OnnxProcess
from .provenance import trusted_program


class TorchProgram:
    """A program of `torch.export`. Raises UntrustedProgramError, or ModelError for a wrong device."""

    def __init__(self, path: str | Path, device: str = "cpu", *, trust: bool = False) -> None:
        import torch

        self._torch = torch
        self._device = torch.empty(0, device=device).device  # with its index: programs distinguish cuda:0
        program = torch.export.load(trusted_program(path, trust=trust))
        if self._device.type != "cpu":
            program = _moved(program, self._device)
        self._module: Any = program.module()

    def run(self, batch: Encoded, *, last: bool = False) -> list[Any]:
        """Return each row's outputs as nested lists, or with `last` only the outputs at its last position."""
        torch = self._torch
        flat = torch.frombuffer(batch.numbers, dtype=getattr(torch, batch.dtype))
        with torch.no_grad():
            outputs = self._module(flat.view(batch.shape).to(self._device))
        listed: list[Any] = (outputs[:, -1] if last else outputs).tolist()
        return listed


def _moved(program: Any, device: Any) -> Any:
    """Move a traced program to a device, including its steps, which name the CPU."""
    try:
        from torch.export.passes import move_to_device_pass
    except ImportError:
        raise ModelError(
            f"found the device {device}, allowed: cpu. A newer torch can move programs to other devices"
        ) from None
    return move_to_device_pass(program, str(device))


class OnnxProgram:
    """An ONNX model; needs ONNX Runtime and numpy. Raises OnnxRuntimeError if loading or running fails."""

    def __init__(self, path: str | Path) -> None:
        self._process = OnnxProcess(str(path))
        self.notes = self._process.notes()

    def arrays(self, inputs: Sequence[Any]) -> list[Any]:
        """Return all outputs of the file, as numpy arrays."""
        return self._process.outputs(inputs)

    def run(self, batch: Encoded, *, last: bool = False) -> list[Any]:
        """Return each row's outputs as nested lists, or with `last` only the outputs at its last position."""
        import numpy as np

        numbers = np.frombuffer(batch.numbers, dtype=batch.dtype).reshape(batch.shape)
        listed: list[Any] = self._process.outputs([numbers], last=last)[0].tolist()
        return listed


Program: TypeAlias = TorchProgram | OnnxProgram
"""Turns a batch into outputs. Outputs at each row's last position alone take far less time."""
