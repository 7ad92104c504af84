"""Objectives that were written for Optuna: which functions are, and which space their calls of `suggest_...` describe.

An objective says what may vary while it runs. A trial here has its parameters before it starts: they are in the store,
decide how many slots it gets, and are what its cost is forecast from. So the space is read from the objective's source
where all its calls are literal, and has to be given where one is not.
"""

from __future__ import annotations

import ast
import inspect
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from automl.adapters.optuna_objective import as_training_function
from search_spaces.parameters import Categorical, Float, Parameter, SpaceError
from search_spaces.space import Space
from search_spaces.wording import listed
from studies.spec.errors import SpecError
from studies.spec.study_spec import StudySpec

PREFIX = "suggest_"
MEASURED = frozenset({"cost_usd", "wall_seconds", "peak_memory_bytes"})
"""Metrics that an objective's trials have without reporting them."""
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "suggest_float": ("name", "low", "high", "step", "log"),
    "suggest_int": ("name", "low", "high", "step", "log"),
    "suggest_categorical": ("name", "choices"),
}
_INSTALLED = frozenset({"site-packages", "dist-packages"})


def is_optuna_objective(function: Callable[..., object]) -> bool:
    """Whether a function, or one of the user's own that it calls, calls `suggest_float` or the like of a trial."""
    return any(name.startswith(PREFIX) for one in _functions(function) for name in _names(one.__code__))


def with_space_of(objective: Callable[..., object], spec: StudySpec, source: str) -> StudySpec:
    """Return the spec with the space that an objective describes, if it has none of its own.

    Parameters that only some branches ask for are in each trial, and do nothing in the others.

    Args:
        objective: The objective.
        spec: Spec of the study.
        source: Name of the spec in messages.

    Raises:
        SpecError: There is no space, and the objective's source does not say all of it; or more ranks are asked for
            than an objective can use.
    """
    name = getattr(objective, "__name__", "objective")
    if spec.space is None:
        parameters, unclear = _described(objective)
        if unclear or not parameters:
            known = ", ".join(f"{key!r}: {_in_python(one)}" for key, one in parameters.items())
            what = f"what {listed(unclear)} asks for" if unclear else "what it asks for"
            allowed = f"space={{{known}}} and {what}; or Optuna's own study, with our pruners"
            problem = f"found {name}, an objective for Optuna whose space its source does not tell, allowed: {allowed}"
            raise SpecError(source, ("space",), f"{problem} (automl.adapters.for_optuna)")
        spec = spec.model_copy(update={"space": Space(parameters)})
    if spec.space is not None and "world_size" in spec.space:
        problem = f"found a number of ranks for {name}, an objective for Optuna, which trains on one; allowed: without"
        raise SpecError(source, ("space", "world_size"), problem)
    return spec


def training_function_of(objective: Callable[..., object], spec: StudySpec) -> Callable[..., object]:
    """Return the training function that runs an objective in a study with this spec."""
    metrics = [one.metric for one in spec.objectives if one.metric not in MEASURED]
    return as_training_function(objective, metrics, spec.training.epochs)


def _described(function: Callable[..., object]) -> tuple[dict[str, Parameter], list[str]]:
    """The parameters that calls describe literally, and what is unclear.

    Unclear are calls whose names or ranges are worked out, or differ from those of an earlier call for the same name,
    and functions without a source.
    """
    parameters: dict[str, Parameter] = {}
    unclear: list[str] = []
    for one in _functions(function):
        calls = _calls(one)
        if calls is None:
            unclear += [one.__name__] if any(name.startswith(PREFIX) for name in _names(one.__code__)) else []
            continue
        for call in calls:
            entry = _entry(call)
            if entry is None or parameters.setdefault(*entry) != entry[1]:
                unclear.append(" ".join(ast.unparse(call).split()))
    return parameters, unclear


def _functions(function: Callable[..., object]) -> Iterator[FunctionType]:
    """The function, and those of the user's own modules that it refers to, each once."""
    waiting, seen = [function], set[int]()
    while waiting:
        one = inspect.unwrap(waiting.pop(0))
        if not isinstance(one, FunctionType) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [other for other in _referred(one) if _is_users(sys.modules.get(other.__module__))]


def _referred(function: FunctionType) -> Iterator[FunctionType]:
    """Functions that a function names, by themselves or in a module."""
    names = sorted(_names(function.__code__))
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, FunctionType):
            yield value
        elif isinstance(value, ModuleType) and _is_users(value):
            inside = (vars(value).get(attribute) for attribute in names)
            yield from (one for one in inside if isinstance(one, FunctionType))


def _is_users(module: ModuleType | None) -> bool:
    """Whether a module is the user's own: not installed, and not Python's."""
    if module is None or module.__name__ == "__main__":
        return module is not None
    path = Path(getattr(module, "__file__", None) or sysconfig.get_path("stdlib"))
    return _INSTALLED.isdisjoint(path.parts) and not path.is_relative_to(sysconfig.get_path("stdlib"))


def _names(code: CodeType) -> set[str]:
    """Global names and attributes that code mentions, functions inside it included."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _calls(function: FunctionType) -> list[ast.Call] | None:
    """Its calls of `suggest_...`, in their order; None where the source is not known."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _kind_of(node)]
    return sorted(calls, key=lambda call: (call.lineno, call.col_offset))


def _kind_of(call: ast.Call) -> str:
    """The name of the method that is called, if it is one of `suggest_...`; else empty."""
    return call.func.attr if isinstance(call.func, ast.Attribute) and call.func.attr.startswith(PREFIX) else ""


def _entry(call: ast.Call) -> tuple[str, Parameter] | None:
    """Name and parameter of a call; None if they are not written literally, or make no parameter."""
    kind = _kind_of(call)
    if kind not in _ARGUMENTS:
        return None
    given = dict(zip(_ARGUMENTS[kind], call.args, strict=False))
    given |= {word.arg or "**": word.value for word in call.keywords}
    try:
        values = {name: ast.literal_eval(value) for name, value in given.items()}
        name = values.pop("name")
        if "choices" in values:
            values["choices"] = list(values["choices"])
        if kind == "suggest_int" and values.get("step") == 1:  # Optuna's default, also on a logarithmic scale
            del values["step"]
        return name, Space.from_dict({name: {"type": kind.removeprefix(PREFIX), **values}}).parameter(name)
    except (ValueError, TypeError, KeyError, SpaceError):
        return None


def _in_python(parameter: Parameter) -> str:
    """A parameter as a user writes it."""
    if isinstance(parameter, Categorical):
        return f"automl.Categorical({list(parameter.choices)!r})"
    more = {"step": parameter.step, "log": parameter.log or None}
    text = "".join(f", {key}={value!r}" for key, value in more.items() if value is not None)
    kind = "Float" if isinstance(parameter, Float) else "Int"
    return f"automl.{kind}({parameter.low!r}, {parameter.high!r}{text})"
