"""Gives training functions names that other processes can import, and saves functions without an importable name."""

import base64
import functools
import hashlib
import inspect
import pickletools
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from search_spaces.space import Space
from studies.spec.spec_errors import SpecError
from trainers.contract.training_function import is_training_function, problem_of
from trainers.contract.user_code import INSTALLED

FOLDER = "automl_functions"  # folder for saved functions, beside a study
_PLACE = "automl.search"
_WIDTH = 100
_MOST_BYTES = 32 * 2**20
_MODULE = '''"""The training function {name}, saved by automl.search with all that it refers to.

{source}
"""

import base64

import cloudpickle

{name} = cloudpickle.loads(
    base64.b64decode(
        """
{content}
"""
    )
)
'''


def plain_function(train: Callable[..., object]) -> Callable[..., object]:
    """Wrap a partial, a bound method or an object with `__call__` in a function. Returns other objects unchanged."""
    inner: Any = train
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not callable(inner) or inspect.isclass(inner) or inspect.isbuiltin(inner) or inspect.isfunction(train):
        return train
    written = inner if inspect.isroutine(inner) else type(inner).__call__

    @functools.wraps(getattr(written, "__func__", written))
    def call(*values: Any, **named: Any) -> object:
        return train(*values, **named)

    holder = getattr(inner, "__self__", None if inspect.isfunction(inner) else inner)  # object with the method
    if holder is not None:
        call.__module__ = type(holder).__module__
    for one in (holder, inner, train):
        if isinstance(space := getattr(one, "space", None), Space | Mapping):
            call.space = space  # type: ignore[attr-defined]
    call.__name__ = getattr(inner, "__name__", type(inner).__name__)
    call.__qualname__ = f"{plain_function.__name__}.<locals>.{call.__name__}"
    call.__signature__ = inspect.signature(train)  # type: ignore[attr-defined]
    return call


def name_of(function: Callable[..., object], folder: Path, study: str) -> tuple[str, Path]:
    """Return a training function's name for a spec, and the folder of its module.

    Args:
        study: Each study has its own file, because equal source may refer to different objects.

    Raises:
        SpecError: The function is not a training function, or cannot be saved.
    """
    name = getattr(function, "__name__", type(function).__name__)
    if name == "<lambda>":
        raise SpecError(_PLACE, (), "a study cannot store a lambda, which has no name. Define the function with def")
    if not is_training_function(function):
        raise SpecError(_PLACE, (), f"the first parameter of {name} is not called trial. Write def {name}(trial, ...)")
    if problem := problem_of(function):
        raise SpecError(_PLACE, (), f"found {name}: {problem}")
    module = sys.modules.get(function.__module__)
    path = getattr(module, "__file__", None)
    if function.__module__ == "__main__" or "<locals>" in function.__qualname__ or path is None:
        return f"{FOLDER}.{_save(function, name, folder, study)}:{name}", folder
    if not INSTALLED.isdisjoint(Path(path).parts):
        return f"{function.__module__}:{function.__qualname__}", folder
    root = Path(path).absolute().parents[function.__module__.count(".") + (Path(path).name == "__init__.py")]
    return f"{function.__module__}:{function.__qualname__}", root


def _save(function: Callable[..., object], name: str, folder: Path, study: str) -> str:
    """Save a function as a module, and return its name. Equal source has the same name within a study."""
    source = _source_of(function)
    module = f"{name}_{hashlib.sha256(f'{study} {source}'.encode()).hexdigest()[:8]}"
    path = folder / FOLDER / f"{module}.py"
    try:
        saved = _pickled(function)
    except Exception as error:  # noqa: BLE001 - pickling runs code of any object that the function refers to
        problem = f"found {name}, which refers to something that cannot be saved ({type(error).__name__}: {error})"
        raise SpecError(_PLACE, (), " ".join(problem.split())) from None
    if len(saved) > _MOST_BYTES:
        size, most = f"{len(saved) / 2**20:.0f} MiB", f"{_MOST_BYTES >> 20} MiB"
        problem = f"{name} uses {size} of data from outside the function, more than {most}"
        raise SpecError(_PLACE, (), f"{problem}. Read the data inside the function")
    shown = source.replace("\\", "\\\\").replace('"""', "'''")
    before, after = _MODULE.format(name=name, source=shown, content="\0").split("\0")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not _holds(path, before, saved, after):
            content = base64.b64encode(saved).decode()
            lines = "\n".join(content[start : start + _WIDTH] for start in range(0, len(content), _WIDTH))
            draft = path.with_suffix(".new")
            draft.write_text(before + lines + after, encoding="utf-8")
            draft.replace(path)
    except OSError as error:
        raise SpecError(_PLACE, (), f"cannot write {path}: {error.strerror or error}") from None
    return module


def _holds(path: Path, before: str, saved: bytes, after: str) -> bool:
    """Return whether the module exists with the same meaning."""
    if not path.exists():
        return False
    text = path.read_text(encoding="utf-8")
    if not (text.startswith(before) and text.endswith(after)):
        return False
    try:
        return say_the_same(base64.b64decode(text[len(before) : -len(after)]), saved)
    except ValueError:  # a user has edited it
        return False


def _pickled(function: Callable[..., object]) -> bytes:
    """Pickle a function with everything that it refers to, even in its own module, which ranks may not find."""
    import cloudpickle

    module = sys.modules.get(function.__module__)
    path = Path(getattr(module, "__file__", None) or "")
    is_own = module is not None and path.name and INSTALLED.isdisjoint(path.parts)
    if not is_own or module.__name__ in cloudpickle.list_registry_pickle_by_value():  # type: ignore[union-attr]
        return bytes(cloudpickle.dumps(function))
    cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(function))
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _source_of(function: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):  # the function was typed into a plain interpreter
        return function.__qualname__


_TRACKER_ID = re.compile(r"[0-9a-f]{32}")
_AFTER_TRACKER_ID = [("NONE", None), ("TUPLE", None), ("REDUCE", None)]
"""Opcodes after a tracker id: the end of cloudpickle's call of `_make_skeleton_class`."""
_CELL = re.compile(r"(?<=[/\\]ipykernel_)\d+(?=[/\\])|(?<=<ipython-input-)\d+(?=-)")
_TENSOR_KEY = re.compile(rb"Storage\nq\x01(X....\d+)q\x02", re.DOTALL)  # names a pickled tensor by its address
_LITERALS = frozenset({"NONE", "NEWTRUE", "NEWFALSE"})
_SETS = frozenset({"FROZENSET", "ADDITEMS"})
_Instruction = tuple[str, Any]


def say_the_same(one: bytes, other: bytes) -> bool:
    """Return whether two pickled functions differ only in values that change with every run."""
    return one == other or _said(one) == _said(other)


def _said(pickled: bytes) -> list[_Instruction]:
    said = _instructions(pickled)
    ids: dict[str, int] = {}
    for place, (_, value) in enumerate(said):
        if isinstance(value, str) and _TRACKER_ID.fullmatch(value) and _is_tracker_id(said, place):
            said[place] = "tracker id", ids.setdefault(value, len(ids))
    return said


def _is_tracker_id(said: list[_Instruction], place: int) -> bool:
    """Return whether 32 digits are cloudpickle's tracker id, not a checksum or path of the user."""
    return said[place + 1 : place + 1 + len(_AFTER_TRACKER_ID)] == _AFTER_TRACKER_ID


def _instructions(pickled: bytes) -> list[_Instruction]:
    """Return a pickle's opcodes, with sorted set members and resolved memo numbers, independent of hashes."""
    said: list[_Instruction] = []
    memo: list[_Instruction] = []
    objects = 0
    for operation, value, _ in pickletools.genops(pickled):
        name = operation.name
        if name == "MEMOIZE" and not _is_value(said[-1]):
            memo.append(("OBJECT", [objects]))
            objects += 1
        elif name == "MEMOIZE":
            memo.append(said[-1])
        elif name in {"BINGET", "LONG_BINGET"}:
            said.append(memo[int(value or 0)])
        elif name != "FRAME":
            if name in _SETS:
                start = 1 + max(place for place, (name, _) in enumerate(said) if name == "MARK")
                if all(map(_is_value, said[start:])):
                    said[start:] = sorted(said[start:], key=repr)
            said.append((name, _without_run(value)))
    return said


def _without_run(value: Any) -> Any:
    """Remove parts that change with every run: the kernel of a notebook's cell, a tensor's address."""
    if isinstance(value, bytes):
        key = _TENSOR_KEY.search(value, 0, 512)  # it is before the values
        return value.replace(key[1], b"") if key else value
    return _CELL.sub("", value) if isinstance(value, str) else value


def _is_value(instruction: _Instruction) -> bool:
    name, value = instruction
    return name in _LITERALS or isinstance(value, str | bytes | int | float)
