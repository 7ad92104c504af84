"""Saves and restores the global state of a process, so that its trials do not affect each other.

`_settings` lists the state: torch's switches, global hooks, environment, working folder, import path, warning filters,
signal handlers. Imported or patched modules, open files and the task's own objects are not restored.
"""

import gc
import multiprocessing
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.multiprocessing
from torch.nn.modules import module as torch_modules
from torch.optim import optimizer as torch_optimizers

_TRACKING_URI, _TRACKER_PREFIX = "MLFLOW_TRACKING_URI", "MLFLOW_"
_SQLITE = "sqlite:///"


def variables_here(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are valid on this machine, without MLflow's if its SQLite file is not here."""
    uri = variables.get(_TRACKING_URI, "")
    if uri.startswith(_SQLITE) and not Path(uri.removeprefix(_SQLITE)).is_file():
        return {name: value for name, value in variables.items() if not name.startswith(_TRACKER_PREFIX)}
    return dict(variables)


@contextmanager
def own_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables that this process lacks, in the block."""
    added = {name: value for name, value in variables_here(variables).items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


_SEED = 0
"""Seed of the global generators before a task is constructed."""

_SWITCHES = (
    "cudnn.enabled", "cudnn.benchmark", "cudnn.benchmark_limit", "cudnn.deterministic", "cudnn.allow_tf32",
    "mkldnn.enabled", "mkldnn.deterministic", "cuda.matmul.allow_fp16_accumulation",
    "cuda.matmul.allow_fp16_reduced_precision_reduction", "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "fp32_precision", "cudnn.fp32_precision", "cudnn.conv.fp32_precision", "cudnn.rnn.fp32_precision",
    "cuda.matmul.fp32_precision", "mkldnn.fp32_precision", "mkldnn.matmul.fp32_precision",
    "mkldnn.conv.fp32_precision", "mkldnn.rnn.fp32_precision",
)  # fmt: skip
"""Attributes of `torch.backends`, older names first, because setting an older name also sets newer names."""

_UNREADABLE = object()
"""Value of a setting that torch cannot read, as after mixing older and newer names."""


class _Setting(NamedTuple):
    read: Callable[[], Any]
    write: Callable[[Any], object]


class ProcessState:
    """Global state of this process and the training thread when this object is created."""

    def __init__(self) -> None:
        self._values = [(one, one.read()) for one in _settings()]

    def restore(self) -> None:
        """Restore changed state, and seed the global generators of torch, numpy and Python."""
        for setting, value in self._values:
            if _value(setting) != value:
                setting.write(value)
        # As in `trainers.data.seeds.reseed`, in a fifth of the time: `reseed` stores a traceback for later GPUs.
        torch.default_generator.manual_seed(_SEED)
        if cast("Any", torch.cuda).is_initialized():
            torch.cuda.manual_seed_all(_SEED)
        np.random.seed(_SEED)
        random.seed(_SEED)


def _value(setting: _Setting) -> Any:
    try:
        return setting.read()
    except (RuntimeError, OSError):  # torch cannot read it, or the working folder is gone
        return _UNREADABLE


def _settings() -> Iterator[_Setting]:
    candidates = [*_numbers(), *_kernels(), *_hooks(), *_surroundings()]
    return (one for one in candidates if _value(one) is not _UNREADABLE)


def _numbers() -> Iterator[_Setting]:
    yield _Setting(torch.get_default_dtype, torch.set_default_dtype)
    yield _Setting(_default_device, torch.set_default_device)
    yield _Setting(torch.is_grad_enabled, torch.set_grad_enabled)
    yield _Setting(
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda value: torch.autograd.set_detect_anomaly(*value),
    )
    for device in ("cpu", "cuda"):
        yield _Setting(*_autocast(device))
    yield _Setting(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled)
    yield _Setting(
        cast("Any", torch)._C._is_multithreading_enabled,  # noqa: SLF001 - torch has a setter only
        torch.autograd.set_multithreading_enabled,
    )
    yield _attribute(torch.utils.deterministic, "fill_uninitialized_memory")
    yield _Setting(_flushes_denormals, torch.set_flush_denormal)
    yield _Setting(np.geterr, lambda value: np.seterr(**value))


def _kernels() -> Iterator[_Setting]:
    yield _Setting(
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    )
    yield _Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)
    for path in _SWITCHES:
        owner, _, name = path.rpartition(".")
        with suppress(AttributeError):  # another version of torch
            found = attrgetter(owner)(torch.backends) if owner else torch.backends
            getattr(found, name)
            yield _attribute(found, name)
    sdp = torch.backends.cuda
    yield _Setting(sdp.flash_sdp_enabled, sdp.enable_flash_sdp)
    yield _Setting(sdp.mem_efficient_sdp_enabled, sdp.enable_mem_efficient_sdp)
    yield _Setting(sdp.math_sdp_enabled, sdp.enable_math_sdp)
    yield _Setting(sdp.cudnn_sdp_enabled, sdp.enable_cudnn_sdp)
    yield _Setting(_compiler_options, _set_compiler_options)
    yield _Setting(torch.get_num_threads, torch.set_num_threads)


def _hooks() -> Iterator[_Setting]:
    for owner, prefix in ((torch_modules, "_global_"), (torch_optimizers, "_global_optimizer_")):
        for name, value in vars(owner).items():
            if not name.startswith(prefix):
                continue
            if isinstance(value, dict):
                yield _Setting(value.copy, _filler(value))
            elif value is None or isinstance(value, bool):
                yield _attribute(owner, name)


def _surroundings() -> Iterator[_Setting]:
    yield _Setting(os.environ.copy, _set_environment)
    yield _Setting(os.getcwd, os.chdir)
    yield _Setting(sys.path.copy, lambda value: sys.path.__setitem__(slice(None), value))
    yield _Setting(lambda: warnings.filters[:], _set_warning_filters)
    yield _Setting(_signal_handlers, _set_signal_handlers)
    yield _Setting(sys.getrecursionlimit, sys.setrecursionlimit)
    yield _Setting(gc.isenabled, lambda value: gc.enable() if value else gc.disable())
    yield _Setting(gc.get_threshold, lambda value: gc.set_threshold(*value))
    yield _Setting(torch.multiprocessing.get_sharing_strategy, torch.multiprocessing.set_sharing_strategy)
    yield _Setting(
        lambda: multiprocessing.get_start_method(allow_none=True),
        lambda value: multiprocessing.set_start_method(value, force=True),
    )


def _attribute(owner: Any, name: str) -> _Setting:
    return _Setting(lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


def _filler(held: dict[Any, Any]) -> Callable[[dict[Any, Any]], None]:
    def fill(value: dict[Any, Any]) -> None:
        held.clear()
        held.update(value)

    return fill


def _default_device() -> torch.device | None:
    """Return the default device; None for the CPU: setting "cpu" would send every operation through Python."""
    device = torch.get_default_device()
    return None if device.type == "cpu" else device


def _autocast(device: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    def write(value: tuple[bool, torch.dtype]) -> None:
        torch.set_autocast_enabled(device, value[0])
        torch.set_autocast_dtype(device, value[1])

    return lambda: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)), write


def _compiler_options() -> dict[str, Any]:
    config: Any = sys.modules.get("torch._dynamo.config")
    return {} if config is None else config.get_config_copy()


def _set_compiler_options(value: dict[str, Any]) -> None:
    changed = _compiler_options()
    for name, option in value.items():
        if changed[name] != option:
            setattr(sys.modules["torch._dynamo.config"], name, option)


def _flushes_denormals() -> bool:
    """Return whether denormal numbers become zero in this thread. torch cannot read this setting."""
    smallest, half = sys.float_info.min, 0.5
    return smallest * half == 0.0


def _set_environment(value: dict[str, str]) -> None:
    for name in os.environ.keys() - value.keys():
        del os.environ[name]
    for name, text in value.items():
        if os.environ.get(name) != text:
            os.environ[name] = text


def _set_warning_filters(value: list[Any]) -> None:
    warnings.resetwarnings()  # also forgets earlier warnings
    warnings.filters.extend(value)  # type: ignore[attr-defined]


def _signal_handlers() -> dict[int, Any]:
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def _set_signal_handlers(value: dict[int, Any]) -> None:
    for number, handler in value.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)
