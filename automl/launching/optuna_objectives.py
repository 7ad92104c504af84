"""Objectives that were written for Optuna: which functions are, and which space their calls of `suggest_...` describe.

An objective says what may vary while it runs. A trial here has its parameters before it starts: they are in the store,
decide how many slots it gets, and are what its cost is forecast from. So a search of an objective needs the space; what
its source says of it literally is written out for whoever left it out.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType

from automl.adapters.optuna_objective import as_training_function
from search_spaces.parameters import SpaceError
from search_spaces.space import Space
from search_spaces.wording import listed
from studies.spec.errors import SpecError
from studies.spec.study_spec import StudySpec

PREFIX = "suggest_"
MEASURED = frozenset({"cost_usd", "wall_seconds", "peak_memory_bytes"})
"""Metrics that an objective's trials have without reporting them."""
_TYPES: Mapping[str, str] = {
    "suggest_float": "Float",
    "suggest_int": "Int",
    "suggest_categorical": "Categorical",
}


def training_function_of(objective: Callable[..., object], spec: StudySpec, source: str) -> Callable[..., object]:
    """Return the training function that runs an objective in a study.

    Args:
        objective: The objective.
        spec: Spec of the study.
        source: Name of the spec in messages.

    Raises:
        SpecError: There is no space, or more ranks are asked for than an objective can use.
    """
    name = getattr(objective, "__name__", "objective")
    if spec.space is None:
        allowed = f"the space that its values come from: {space_in_words(objective)}; or Optuna's own study, with our "
        problem = f"found {name}, an objective for Optuna, and no space, allowed: {allowed}"
        raise SpecError(source, ("space",), f"{problem}pruners (automl.adapters.for_optuna)")
    if "world_size" in spec.space:
        problem = f"found a number of ranks for {name}, an objective for Optuna, which trains on one; allowed: without"
        raise SpecError(source, ("space", "world_size"), problem)
    metrics = [one.metric for one in spec.objectives if one.metric not in MEASURED]
    return as_training_function(objective, metrics, spec.training.epochs)


def is_optuna_objective(function: Callable[..., object]) -> bool:
    """Whether a function, or one of its module that it calls, calls `suggest_float` or the like of a trial."""
    return any(name.startswith(PREFIX) for one in _functions(function) for name in _names(one.__code__))


def space_in_words(function: Callable[..., object]) -> str:
    """Return the space that an objective describes, as a line of Python.

    Calls whose names or ranges are worked out while it runs are named beside it.
    """
    found: dict[str, str] = {}
    others: list[str] = []
    for one in _functions(function):
        for call in _calls(one):
            entry = _entry(call)
            if entry is None:
                others.append(" ".join(ast.unparse(call).split()))
            else:
                found.setdefault(*entry)
    text = f"space={{{', '.join(f'{name!r}: {value}' for name, value in found.items())}}}"
    return f"{text} and what {listed(others)} asks for" if others else text


def _functions(function: Callable[..., object]) -> Iterator[FunctionType]:
    """The function, and those of the same module that it calls, each once."""
    waiting, seen = [function], set[int]()
    while waiting:
        one = inspect.unwrap(waiting.pop(0))
        if not isinstance(one, FunctionType) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        called = (one.__globals__.get(name) for name in sorted(_names(one.__code__)))
        waiting += [o for o in called if isinstance(o, FunctionType) and o.__module__ == one.__module__]


def _names(code: CodeType) -> set[str]:
    """Global names and attributes that code mentions, functions inside it included."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _calls(function: FunctionType) -> list[ast.Call]:
    """Its calls of `suggest_...`, in their order; none where the source is not known."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return []
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    of_trial = [call for call in calls if call.func.attr in _TYPES]  # type: ignore[attr-defined]
    return sorted(of_trial, key=lambda call: (call.lineno, call.col_offset))


def _entry(call: ast.Call) -> tuple[str, str] | None:
    """Name and parameter of a call, as Python; None if they are not written literally, or make no parameter."""
    kind = _TYPES[call.func.attr]  # type: ignore[attr-defined]
    names = ("name", "choices") if kind == "Categorical" else ("name", "low", "high", "step", "log")
    given = dict(zip(names, call.args, strict=False)) | {word.arg: word.value for word in call.keywords if word.arg}
    try:
        values = {name: ast.literal_eval(value) for name, value in given.items()}
        name = values.pop("name")
        values = {key: value for key, value in values.items() if not _is_default(kind, key, value)}
        form = {"type": kind.lower(), **{k: list(v) if k == "choices" else v for k, v in values.items()}}
        Space.from_dict({name: form})
    except (ValueError, TypeError, KeyError, SpaceError):
        return None
    if kind == "Categorical":
        return name, f"automl.Categorical({list(values['choices'])!r})"
    more = "".join(f", {key}={values[key]!r}" for key in ("step", "log") if key in values)
    return name, f"automl.{kind}({values['low']!r}, {values['high']!r}{more})"


def _is_default(kind: str, key: str, value: object) -> bool:
    return (key == "log" and value is False) or (key == "step" and value in ((None,) if kind == "Float" else (1,)))
