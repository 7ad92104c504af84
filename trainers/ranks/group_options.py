"""Backend and deadline of a training's process group. Does not import torch."""

from dataclasses import dataclass
from typing import Literal

from trainers.protocol import BACKENDS, Backend

BackendChoice = Literal["auto", "nccl", "gloo"]
GROUP_SECONDS = 600.0  # default deadline of a process group, and default of `faults.group_seconds`


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupOptions:
    """User's options for the process group of a training without a study.

    Attributes:
        backend: "auto" means NCCL if each rank has its own GPU, else gloo.
        seconds: Longest silence of a loading rank, and deadline of forming the group and of every collective.
    """

    backend: BackendChoice = "auto"
    seconds: float = GROUP_SECONDS

    def backend_of(self, device: Literal["cpu", "cuda"], *, ranks: int, devices: int) -> Backend:
        """Return the backend. "auto" is NCCL if there is a GPU for each rank, else gloo."""
        if self.backend != "auto":
            return self.backend
        return BACKENDS[device] if ranks <= devices else "gloo"

    def problem(self, device: Literal["cpu", "cuda"], *, ranks: int, devices: int) -> str | None:
        """Return the reason why the backend is unavailable, with a cure, or None."""
        if self.backend != "nccl":
            return None
        if device == "cpu":
            return "nccl is chosen for a CPU, but NCCL connects only GPUs. Choose gloo or auto, or device cuda"
        if ranks > devices:
            gpus = "1 GPU" if devices == 1 else f"{devices} GPUs"
            why_not = f"nccl is chosen for {ranks} ranks on {gpus}, but NCCL needs a GPU for each rank"
            return f"{why_not}. Choose gloo or auto, or at most one rank for each GPU"
        return None
