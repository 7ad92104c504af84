"""Finds the devices (slots) of this machine or of a cluster to join, without loading torch."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from search_spaces.machine_resources import available_cpus
from studies.gangs.pool_protocol import PoolError

_SLICE, _UNKNOWN_SLICE = "MIG-", "GPU (MIG slice)"


@dataclass(frozen=True, kw_only=True, slots=True)
class AvailableSlots:
    """Devices on which ranks can train; `device_name` is the GPUs' name, or "CPU"."""

    device: Literal["cpu", "cuda"]
    device_name: str
    slots: int


def find_slots(device: str, cpus_per_rank: int, ray_address: str | None, *, autoscale: bool = False) -> AvailableSlots:
    """Return the slots of a cluster or of this machine. Raises PoolError if GPUs or the cluster are missing.

    `device` is "cpu", "cuda" or "auto" (GPUs if there are any). With `autoscale`, GPUs may come later.
    """
    if ray_address is None:
        cpu_slots, gpu_names = int(available_cpus()) // cpus_per_rank, local_gpu_names()
    else:
        from studies.gangs.ray_cluster import cluster_room

        cpu_slots, gpu_names = cluster_room(ray_address, cpus_per_rank)
    if device == "cuda" and autoscale:
        return AvailableSlots(device="cuda", device_name=(gpu_names or ("GPU",))[0], slots=len(gpu_names))
    if device == "cuda" and not gpu_names:
        raise PoolError("resources.device is 'cuda', but there is no GPU here. Set it to auto or cpu")
    if gpu_names and device in {"auto", "cuda"}:
        return AvailableSlots(device="cuda", device_name=gpu_names[0], slots=len(gpu_names))
    return AvailableSlots(device="cpu", device_name="CPU", slots=max(cpu_slots, 1))


def own_cpus(slots: int, cpus_per_rank: int) -> dict[int, tuple[int, ...]]:
    """Return each slot's own CPUs; empty if some CPUs would be unused, since Linux then schedules better."""
    if not hasattr(os, "sched_getaffinity"):
        return {}
    cpus = sorted(os.sched_getaffinity(0))
    if slots * cpus_per_rank != len(cpus):
        return {}
    return {slot: tuple(cpus[slot * cpus_per_rank : (slot + 1) * cpus_per_rank]) for slot in range(slots)}


@cache
def local_gpu_names() -> tuple[str, ...]:
    """Return the names of this machine's NVIDIA GPUs in CUDA_VISIBLE_DEVICES, from the driver."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return ()
    lines = _answer(command, "--query-gpu=uuid,name", "--format=csv,noheader")
    gpus = [tuple(line.split(", ", 1)) for line in lines if ", " in line]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    slices = _slices(_answer(command, "-L")) if visible and _SLICE in visible else []
    return visible_gpu_names([(uuid.strip(), name.strip()) for uuid, name in gpus], visible, slices)


def _answer(*command: str) -> list[str]:
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return []
    return answer.stdout.splitlines()


def _slices(listed: list[str]) -> list[tuple[str, str]]:
    """Return UUID and torch's name of each GPU slice (MIG) from lines of `nvidia-smi -L`."""
    found, gpu = [], ""
    for line in listed:
        if one := re.match(r"GPU \d+: (.+) \(UUID:", line):
            gpu = one[1]
        elif one := re.match(r"\s+(MIG \S+)\s.*\(UUID: (\S+)\)", line):
            found.append((one[2], f"{gpu} {one[1]}"))
    return found


def visible_gpu_names(
    gpus: list[tuple[str, str]], visible: str | None, slices: Sequence[tuple[str, str]] = ()
) -> tuple[str, ...]:
    """Return the names of the GPUs that a CUDA process sees, in its order.

    `visible` is CUDA_VISIBLE_DEVICES: indices or UUID prefixes, up to the first entry that names no GPU. UUIDs of
    unlisted MIG slices count as GPUs, because drivers accept older names of slices.
    """
    if visible is None:
        return tuple(name for _, name in gpus)
    names: list[str] = []
    for one in (part.strip() for part in visible.split(",")):
        by_index = gpus[int(one)][1] if one.isdecimal() and int(one) < len(gpus) else None
        by_uuid = next((name for uuid, name in (*gpus, *slices) if one and uuid.startswith(one)), None)
        if (found := by_index or by_uuid or (_UNKNOWN_SLICE if one.startswith(_SLICE) else None)) is None:
            break
        names.append(found)
    return tuple(names)
