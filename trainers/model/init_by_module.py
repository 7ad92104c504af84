"""Builds models without memory on torch's `meta` device, and initializes parameters block by block.

Values come from each module's `reset_parameters` (or torch's `_reset_parameters`), seeded by the trial's seed and the
module's name, so they do not depend on ranks or sharding. Values that a constructor sets in other ways would be lost.
So writes to tensors are recorded while the model is built, and a model with other writes is refused.
"""

import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from trainers.contract.task import Params, Task, model_of
from trainers.data.seeds import derive, reseed
from trainers.model.sharding import units_of
from trainers.protocol import TaskError

_RESETS = ("reset_parameters", "_reset_parameters")
_SAME_VALUES = {torch.ops.aten._to_copy.default, torch.ops.aten.clone.default}  # noqa: SLF001 - it has no public name


class ModuleInit:
    """A model without values, and `fill`, which sets them. TaskError if `reset_parameters` does not set a value."""

    def __init__(self, task: Task, params: Params, seed: int) -> None:
        self._seed = seed
        writes = _Writes()
        try:
            reseed(derive("weights", seed))  # for buffers
            with _parameters_on_meta(), writes:
                self.module = model_of(task, params)
        except TaskError:
            raise
        except Exception as error:
            raise _refusal(f"the model cannot be built without values ({type(error).__name__}: {error})") from error
        self._resets = frozenset(_resets(self.module, writes))

    def fill(self, modules: list[nn.Module]) -> None:
        """Create the modules' own parameters on the CPU, with initial values."""
        made: dict[int, nn.Parameter] = {}
        for module in modules:
            own = module._parameters  # noqa: SLF001 - a parameter may have two names; public iterators yield one
            for name, parameter in own.items():
                if parameter is not None and parameter.is_meta:
                    own[name] = made.setdefault(id(parameter), _like(parameter, "cpu"))
        names = {id(module): name for name, module in self.module.named_modules()}
        for module in reversed(modules):
            name = names[id(module)]
            if name in self._resets:
                reseed(derive("module", self._seed, *name.encode()))
                next(getattr(module, one) for one in _RESETS if callable(getattr(module, one, None)))()


class _Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._by_storage: dict[int, list[nn.Module | None]] = {}
        self._alive: list[torch.UntypedStorage] = []  # a freed storage's address could be used again

    def of(self, tensor: Tensor) -> list[nn.Module | None]:
        return self._by_storage.get(_storage(tensor), [])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for argument, value in self._arguments(func, args, kwargs or {}):
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            if is_written and isinstance(value, Tensor) and value.is_meta:
                self._note(value, [_resetting()])
        if func in _SAME_VALUES and result.is_meta:
            self._note(result, self.of(args[0]))
        return result

    def _note(self, tensor: Tensor, modules: list[nn.Module | None]) -> None:
        self._alive.append(tensor.untyped_storage())
        self._by_storage.setdefault(_storage(tensor), []).extend(modules)

    @staticmethod
    def _arguments(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
        for number, argument in enumerate(func._schema.arguments):  # noqa: SLF001 - it has no public name
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            yield from ((argument, one) for one in (value if isinstance(value, list | tuple) else [value]))


def _resets(module: nn.Module, writes: _Writes) -> Iterator[str]:
    names = {id(one): name for name, one in module.named_modules()}
    for unit in units_of(module):
        inside = {id(one) for one in unit}
        for part in unit:
            for own, parameter in part.named_parameters(recurse=False):
                tensor = f"{names[id(part)]}.{own}".lstrip(".")
                if is_lazy(parameter):
                    raise _refusal(f"{tensor} has no shape before the first forward pass")
                if parameter.numel() == 0:
                    continue
                givers = writes.of(parameter)
                if not givers or None in givers:
                    raise _refusal(f"{tensor} gets values outside of the reset_parameters() of {type(part).__name__}")
                for giver in givers:
                    if id(giver) not in inside:
                        raise _refusal(f"{tensor} gets values from a reset_parameters() outside of its block")
                    yield names[id(giver)]


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    made: dict[int, tuple[weakref.ref[nn.Parameter], nn.Parameter]] = {}

    def without_memory(_: nn.Module, __: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or parameter.is_meta or is_lazy(parameter):
            return parameter
        known = made.get(id(parameter))
        if known is not None and known[0]() is parameter:  # several modules share it
            return known[1]
        empty = _like(parameter, "meta")
        made[id(parameter)] = weakref.ref(parameter), empty
        return empty

    register: Any = register_module_parameter_registration_hook  # its annotation lacks hooks that return something
    hook = register(without_memory)
    try:
        yield
    finally:
        hook.remove()


def _resetting() -> nn.Module | None:
    frame, found = sys._getframe(1), None  # noqa: SLF001 - constructors call resets, and cannot be wrapped
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name in _RESETS and isinstance(frame.f_locals.get("self"), nn.Module):
            found = frame.f_locals["self"]
    return found


def _like(parameter: nn.Parameter, device: str) -> nn.Parameter:
    like = nn.Parameter(torch.empty_like(parameter, device=device), requires_grad=parameter.requires_grad)
    like.__dict__.update(parameter.__dict__)  # the task's own attributes
    return like


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - views of one tensor share it


def _refusal(why: str) -> TaskError:
    return TaskError(
        f"init_by_module is true, but {' '.join(why.split())}. Set values in reset_parameters() of the module that "
        "owns them, or set init_by_module to false"
    )
