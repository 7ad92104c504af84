"""Recognises trainables of Ray Tune, and Optuna objectives, whose space is read from literal `suggest_...` calls.

Trials need parameters before they start, for slots and cost. Parameters found later are learned as trials run.
"""

import ast
import inspect
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from automl.adapters.optuna_objective import as_training_function
from automl.adapters.tune_trainable import INTEGRATIONS, MODULES, is_trainable_class
from automl.adapters.tune_trainable import as_training_function as function_of_tune
from search_spaces.messages import listed
from search_spaces.parameters import Parameter, SpaceError
from search_spaces.space import Space
from search_spaces.suggestions import Domain, choice_domain, float_domain, int_domain
from studies.spec.sections import SearchSpec
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import StudySpec
from trainers.contract.user_code import INSTALLED

PREFIX = "suggest_"
MEASURED = frozenset({"cost_usd", "wall_seconds", "peak_memory_bytes"})
"""Metrics that an objective need not report."""
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "suggest_float": ("name", "low", "high", "step", "log"),
    "suggest_int": ("name", "low", "high", "step", "log"),
    "suggest_categorical": ("name", "choices"),
}
_DOMAINS: Mapping[str, Callable[..., Domain]] = {
    "suggest_float": float_domain,
    "suggest_int": int_domain,
    "suggest_categorical": choice_domain,
}
_RAY = frozenset({"ray", "session", "train", "tune"})


def is_optuna_objective(function: Callable[..., object]) -> bool:
    """Return whether a function, or a user's function that it calls, uses `suggest_...` methods."""
    return any(name.startswith(PREFIX) for one in _functions(function) for name in _names(one.__code__))


def is_tune_trainable(function: Callable[..., object]) -> bool:
    """Return whether a class, a function, or a user's function that it calls reports to Ray Tune."""
    if is_trainable_class(function):
        return True
    try:
        takes = list(inspect.signature(function).parameters)[:1]
    except (TypeError, ValueError):
        return False
    for one in _functions(function) if takes else ():
        names = _names(one.__code__)
        values = [one.__globals__.get(name) for name in names]
        functions = [value for value in values if isinstance(value, FunctionType)]
        is_rays = any(isinstance(value, ModuleType) and value.__name__ in MODULES for value in values)
        modules = [str(getattr(value, "__module__", None)) for value in values]
        if any(name.startswith(INTEGRATIONS) for name in (*names, *modules)):
            return True
        is_likely = is_rays or (takes == ["config"] and not names.isdisjoint(_RAY))
        if any(one.__name__ == "report" and one.__module__.startswith("ray.") for one in functions) or (
            "report" in names and is_likely
        ):
            return True
    return False


def with_space_of(objective: Callable[..., object], spec: StudySpec, source: str) -> StudySpec:
    """Return the spec with the objective's space, if the spec has none.

    Parameters of single branches are in each trial, and unused in other branches. If the source does not show the whole
    space, `search.learn_space` is set. A given space is complete unless it sets `search.learn_space`.

    Raises:
        SpecError: A `suggest_...` call has invalid arguments, the search needs a complete space, or the spec asks for
            more ranks than the objective uses.
    """
    name = getattr(objective, "__name__", "objective")
    if spec.space is None:
        described = _described(objective)
        if described.problems:
            raise SpecError(source, ("space",), f"{described.problems[0]}, in the Optuna objective {name}")
        search = spec.search
        if described.unclear or not described.parameters:
            search = learning(search, listed(described.unclear) or name, source)
        spec = spec.model_copy(update={"space": Space(described.parameters), "search": search})
    may_share = any("prepare" in _names(one.__code__) for one in _functions(objective))  # train on several ranks
    if spec.space is not None and "world_size" in spec.space and not may_share:
        problem = f"the Optuna objective {name} does not call trial.prepare(), so it trains on one rank"
        raise SpecError(source, ("space", "world_size"), f"{problem}. Remove world_size from the space")
    return spec


def learning(search: SearchSpec, unclear: str, source: str) -> SearchSpec:
    """Return `search` with `learn_space` on. Raises SpecError if the search needs the whole space."""
    problem = search.problem_of_learning()
    if problem is not None:
        path, text = problem
        known = f"{text}, or space={{...}} with the parameters of {unclear}"
        raise SpecError(source, ("search", *path), known)
    return search.model_copy(update={"learn_space": True})


def training_function_of(objective: Callable[..., object], spec: StudySpec) -> Callable[..., object]:
    """Return the training function that runs an Optuna objective."""
    metrics = [one.metric for one in spec.objectives if one.metric not in MEASURED]
    return as_training_function(objective, metrics, spec.training.epochs)


def function_of_trainable(
    train: Callable[..., object], constants: Mapping[str, Any], spec: StudySpec
) -> Callable[..., object]:
    """Return the training function that runs a trainable of Ray Tune, with checkpoints if it reads them.

    Epochs set in the spec end a function that continues; the default number does not.
    """
    resumes = any("get_checkpoint" in _names(one.__code__) for one in _functions(train))
    is_given = "epochs" in spec.training.model_fields_set
    return function_of_tune(train, constants, spec.training.epochs, has_checkpoints=resumes, may_go_on=is_given)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Described:
    parameters: dict[str, Parameter]
    unclear: list[str]
    problems: list[str]


def _described(function: Callable[..., object]) -> _Described:
    parameters: dict[str, Parameter] = {}
    differing: set[str] = set()
    unclear: list[str] = []
    problems: list[str] = []
    for one in _functions(function):
        calls = _calls(one)
        if calls is None:
            unclear += [one.__name__] if any(name.startswith(PREFIX) for name in _names(one.__code__)) else []
            continue
        for call in calls:
            text, entry = " ".join(ast.unparse(call).split()), _entry(call)
            if problem := _problem_of(call):
                problems.append(f"{text}: {problem}")
            elif entry is None or parameters.setdefault(*entry) != entry[1]:
                unclear.append(text)
                differing |= set() if entry is None else {entry[0]}
    parameters = {name: one for name, one in parameters.items() if name not in differing}
    return _Described(parameters=parameters, unclear=unclear, problems=problems)


def _functions(function: Callable[..., object]) -> Iterator[FunctionType]:
    """Yield the function, and the user's functions that it refers to, each once."""
    waiting, seen = [function], set[int]()
    while waiting:
        one = inspect.unwrap(waiting.pop(0))
        if not isinstance(one, FunctionType) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [other for other in _referred(one) if _is_users(sys.modules.get(other.__module__))]


def _referred(function: FunctionType) -> Iterator[FunctionType]:
    names = sorted(_names(function.__code__))
    owner = function.__globals__.get(function.__qualname__.rpartition(".")[0])
    for name in names:
        value = getattr(owner, name, None) if isinstance(owner, type) else None
        if isinstance(value, FunctionType):
            yield value
        value = function.__globals__.get(name)
        if isinstance(value, FunctionType):
            yield value
        elif isinstance(value, ModuleType) and _is_users(value):
            inside = (vars(value).get(attribute) for attribute in names)
            yield from (one for one in inside if isinstance(one, FunctionType))


def _is_users(module: ModuleType | None) -> bool:
    if module is None or module.__name__ == "__main__":
        return module is not None
    path = Path(getattr(module, "__file__", None) or sysconfig.get_path("stdlib"))
    return INSTALLED.isdisjoint(path.parts) and not path.is_relative_to(sysconfig.get_path("stdlib"))


def _names(code: CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _calls(function: FunctionType) -> list[ast.Call] | None:
    """Return a function's `suggest_...` calls in order, or None without source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _kind_of(node)]
    return sorted(calls, key=lambda call: (call.lineno, call.col_offset))


def _kind_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) and call.func.attr.startswith(PREFIX) else ""


def _literal(call: ast.Call) -> dict[str, Any] | None:
    names = _ARGUMENTS[_kind_of(call)]
    given = dict(zip(names, call.args, strict=False))
    given |= {word.arg or "**": word.value for word in call.keywords}
    try:
        values = {name: ast.literal_eval(value) for name, value in given.items()}
    except (ValueError, TypeError):
        return None
    return values if set(names[:2]) <= set(values) <= set(names) else None


def _problem_of(call: ast.Call) -> str | None:
    """Return why a `suggest_...` call must fail, or None if it may succeed."""
    if _kind_of(call) not in _ARGUMENTS:
        return f"found {_kind_of(call)}, allowed: {listed(_ARGUMENTS)}"
    values = _literal(call)
    if values is None:
        return None
    name = values.pop("name")
    try:
        _DOMAINS[_kind_of(call)](**values)
    except SpaceError as error:
        return str(error)
    except TypeError:
        return "an argument is missing"
    return None if isinstance(name, str) and name else f"name: found {name!r}, allowed: a text that is not empty"


def _entry(call: ast.Call) -> tuple[str, Parameter] | None:
    kind = _kind_of(call)
    values = _literal(call) if kind in _ARGUMENTS else None
    if values is None:
        return None
    name = values.pop("name")
    if kind == "suggest_int" and values.get("step") == 1:  # Optuna's default, also on a logarithmic scale
        del values["step"]
    if isinstance(values.get("choices"), tuple):
        values["choices"] = list(values["choices"])
    try:
        return name, Space.from_dict({name: {"type": kind.removeprefix(PREFIX), **values}}).parameter(name)
    except (TypeError, SpaceError):
        return None
